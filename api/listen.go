package api

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/onpath/onpath"
)

// SocketPath is where a server listens and the CLI looks for it.
const SocketPath = "/run/onpath/server.sock"

// ListenUnix opens the unix socket, for the owner and group of the process
// only. What a dead server left is removed, a living one is an error.
func ListenUnix(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, onpath.Errorf(onpath.CodeUnavailable, "socket %s: %w", path, err)
	}
	if c, err := net.Dial("unix", path); err == nil {
		_ = c.Close()
		e := onpath.Errorf(onpath.CodeExists, "another server answers at %s", path)
		e.Remedy = "stop it, or give this one another socket"
		return nil, e
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, onpath.Errorf(onpath.CodeUnavailable, "socket %s: %w", path, err)
	}
	// It appears under its name only once its mode is right.
	l, err := net.Listen("unix", path+".new")
	if err != nil {
		return nil, onpath.Errorf(onpath.CodeUnavailable, "socket %s: %w", path, err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(path+".new", 0o660), os.Rename(path+".new", path)); err != nil {
		_ = l.Close()
		return nil, onpath.Errorf(onpath.CodeUnavailable, "socket %s: %w", path, err)
	}
	return &unixListener{l, path}, nil
}

type unixListener struct {
	net.Listener
	path string
}

func (l *unixListener) Close() error {
	_ = os.Remove(l.path)
	return l.Listener.Close()
}

// ServeUnix serves operators on a unix socket until ctx ends.
func (s *Server) ServeUnix(ctx context.Context, l net.Listener) error {
	return s.serve(ctx, l, s.Local())
}

// ServeTLS serves nodes and users on a TCP listener until ctx ends.
func (s *Server) ServeTLS(ctx context.Context, l net.Listener) error {
	a, err := s.authority()
	if err != nil {
		return err
	}
	return s.serve(ctx, tls.NewListener(l, a.ServerTLS()), s.Remote())
}

// stopTime is what requests have to end by themselves when the server stops.
const stopTime = time.Second

func (s *Server) serve(ctx context.Context, l net.Listener, h http.Handler) error {
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	server := &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return base },
		ErrorLog:    slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		cancel() // watches and other streams end
		end, done := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
		defer done()
		if server.Shutdown(end) != nil {
			_ = server.Close()
		}
	})
	err := server.Serve(l)
	if stop() { // it ended by itself
		return fmt.Errorf("listen on %s: %w", l.Addr(), err)
	}
	<-stopped
	return nil
}
