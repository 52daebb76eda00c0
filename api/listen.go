package api

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/onpath/onpath/api/join"
	"github.com/onpath/onpath/internal/fairshare"
)

// ServeUnix serves operators on a unix socket until ctx ends.
func (s *Server) ServeUnix(ctx context.Context, l net.Listener) error {
	return s.serve(ctx, l, s.Local())
}

// ServeTLS serves nodes and users on a TCP listener until ctx ends.
func (s *Server) ServeTLS(ctx context.Context, l net.Listener) error {
	a, err := join.Authority(s.o.Authority)
	if err != nil {
		return err
	}
	most := s.o.Connections
	if most == 0 {
		most = files() * 3 / 4
	}
	return s.serve(ctx, tls.NewListener(fairshare.Listen(l, most, max(most/2, 1)), a.ServerTLS()), s.Remote())
}

// files is how many the process may have open.
func files() int {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 1024 // which most systems give at least
	}
	return int(min(l.Cur, 1<<20))
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
