package accel

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"
)

// local is a relay at the loopback that takes other relays' legs, and how to open one to an
// origin by it.
func local(t *testing.T) (r *Relay, leg func(origin netip.AddrPort) *net.TCPConn) {
	t.Helper()
	self := netip.MustParseAddr("127.0.0.1")
	r, err := New(Config{Secret: testSecret, Self: self, Log: slog.New(slog.DiscardHandler),
		Origin: func(string, netip.AddrPort) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	l, err := ListenRelays(netip.AddrPortFrom(self, 0))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = r.ServeRelays(l) }()
	t.Cleanup(func() { l.Close(); <-ended; r.Close() })
	return r, func(origin netip.AddrPort) *net.TCPConn {
		h := header{client: netip.MustParseAddrPort("192.0.2.1:1"), origin: origin, tenant: "acme"}
		_, _ = rand.Read(h.nonce[:])
		head, err := h.encode(testSecret, self)
		if err != nil {
			t.Fatal(err)
		}
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		if _, err := c.Write(head); err != nil {
			t.Fatal(err)
		}
		return c.(*net.TCPConn)
	}
}

func listening(t *testing.T, handle func(*net.TCPConn)) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go handle(c.(*net.TCPConn))
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// TestOnward: the last leg carries bytes both ways, ends each direction by itself, and passes
// an origin's reset and refusal on.
func TestOnward(t *testing.T) {
	r, leg := local(t)
	sent := make([]byte, 1<<20)
	_, _ = rand.Read(sent)
	c := leg(listening(t, func(c *net.TCPConn) {
		defer c.Close()
		b, _ := io.ReadAll(c) // until the client's direction has ended
		_, _ = c.Write(b)
	}))
	go func() { _, _ = c.Write(sent); _ = c.CloseWrite() }()
	if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes of %d came back: %v", len(got), len(sent), err)
	}

	c = leg(listening(t, func(c *net.TCPConn) {
		_, _ = c.Read(make([]byte, 1))
		_ = c.SetLinger(0)
		c.Close()
	}))
	_, _ = c.Write([]byte{1})
	if _, err := io.ReadAll(c); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the origin resets; the client is told %v", err)
	}
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	c = leg(gone.Addr().(*net.TCPAddr).AddrPort())
	if _, err := io.ReadAll(c); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the origin refuses; the client is told %v", err)
	}

	c = leg(listening(t, func(c *net.TCPConn) { _, _ = c.Write([]byte{1}) })) // and stays
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if s := r.Stats(); s.Opened != 3 || s.Refused != 1 {
		t.Errorf("it counts %+v", s)
	}
	r.Close()
	if _, err := io.ReadAll(c); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the relay is closed; the client is told %v", err)
	}
}
