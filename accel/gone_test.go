package accel

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath/internal/netnsrun"
)

// TestGone: an end that vanishes in the middle of a transfer, or while it reads nothing, holds
// its place for a bounded time. One that rests keeps it.
func TestGone(t *testing.T) {
	const gone = time.Second
	w := build(t, "")
	told := make(chan error, 3)
	w.serve(func(c net.Conn) {
		b := make([]byte, 64<<10)
		var err error
		for err == nil {
			_, err = c.Write(b)
		}
		told <- err
	})
	r := w.relay("r1", &fixed{Tenant: "acme"}, func(c *Config) { c.gone = gone })
	dial := func() net.Conn {
		c, err := w.dial()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	rests := dial()
	time.Sleep(4 * gone)
	if _, err := io.ReadFull(rests, make([]byte, 32<<20)); err != nil {
		t.Fatalf("a reader that rested is told %v", err)
	}
	rests.Close()
	<-told

	reads := dial()
	go func() { _, _ = io.Copy(io.Discard, reads) }()
	dial()
	time.Sleep(200 * time.Millisecond)
	err := netnsrun.Do(w.lab.NetNS("client"), func() error {
		l, err := netlink.LinkByName("eth0")
		return errors.Join(err, netlink.LinkSetDown(l))
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		select {
		case err := <-told:
			if !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.EPIPE) {
				t.Errorf("the origin is told %v, must be a reset", err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("of a client that is gone the relay holds %d connections", r.Stats().Tenants["acme"].Connections)
		}
	}
}
