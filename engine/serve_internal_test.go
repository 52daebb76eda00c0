package engine

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"os"
	"testing"

	"github.com/onpath/onpath"
)

// TestServeAfterSocketsFailed: an engine that could not take sockets over, as with too many
// files open, serves none of the new ports, and takes them when they are handed over again.
func TestServeAfterSocketsFailed(t *testing.T) {
	e, err := New(slog.New(slog.DiscardHandler), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	defer func() { stop(); <-ended }()
	s := &served{udp: map[uint16]*net.UDPConn{}, tcp: map[uint16]net.Listener{}, http: map[uint16]*http.Server{}}
	if err := e.do(ctx, func() { e.served = s }); err != nil {
		t.Fatal(err)
	}
	socket := func() *os.File {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		f, err := l.(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	broken := socket()
	broken.Close()
	ports := []onpath.ServedPort{{Protocol: "tcp", Port: 80}, {Protocol: "tcp", Port: 81}}
	if e.Serve(ctx, ports, []*os.File{socket(), broken}) == nil {
		t.Fatal("a closed socket is served")
	}
	if err := e.Serve(ctx, ports, []*os.File{socket(), socket()}); err != nil {
		t.Error(err)
	}
	if err := e.do(ctx, func() {
		if len(s.http) != 2 {
			t.Errorf("%d ports are served of %v", len(s.http), ports)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := e.Serve(ctx, nil, nil); err != nil {
		t.Error(err)
	}
}
