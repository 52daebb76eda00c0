package engine

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/onpath/onpath/engine/control"
)

// TestSupplyIsReplaced: who waits for an agent that another one replaces is told so, and does
// not wait until its own time is up.
func TestSupplyIsReplaced(t *testing.T) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "control"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := newSupply()
	agent := func() *net.UnixConn {
		c, err := net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		end, err := l.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		go s.serve(end)
		return c
	}
	first := agent()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	answer := make(chan error, 1)
	go func() {
		_, err := s.ask(ctx, control.Want{Dial: "example.com:80"})
		answer <- err
	}()
	var w control.Want
	if _, err := control.Read(first, &w); err != nil {
		t.Fatal(err)
	}
	agent()
	if err := <-answer; !errors.Is(err, errNoAgent) {
		t.Errorf("it waited for an agent that is gone: %v", err)
	}
}
