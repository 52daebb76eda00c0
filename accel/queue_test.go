package accel

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/onpath/onpath/internal/netnsrun"
)

// front is a tenant's listener, in front of an origin of the same address in another namespace.
type front struct {
	*Relay
	at netip.AddrPort
}

// fronts are a relay and one that shares its limits, of a tenant each.
func fronts(t *testing.T, limits Limits) (all [2]front) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	ns := filepath.Join(t.TempDir(), "origin")
	if err := netnsrun.Create(ns); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netnsrun.Remove(ns) })
	there := func(f func() error) error { return netnsrun.Do(ns, f) }
	if err := there(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	}); err != nil {
		t.Fatal(err)
	}
	for i := range all {
		l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		var origin net.Listener
		if err := there(func() (err error) {
			origin, err = net.Listen("tcp4", l.Addr().String())
			return err
		}); err != nil {
			t.Fatal(err)
		}
		go func() {
			for {
				c, err := origin.Accept()
				if err != nil {
					return
				}
				go func() { defer c.Close(); _, _ = io.Copy(c, c) }()
			}
		}()
		cfg := Config{Secret: testSecret, Self: netip.MustParseAddr("127.0.0.1"), Limits: limits, Log: slog.New(slog.DiscardHandler),
			Router: fixed{Tenant: fmt.Sprint(i)}, Shared: all[0].Relay, dialIn: there}
		r, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() { defer close(ended); _ = r.accept(l, clients, r.ingress) }()
		t.Cleanup(func() { l.Close(); <-ended; r.Close(); origin.Close() })
		all[i] = front{r, l.Addr().(*net.TCPAddr).AddrPort()}
	}
	return all
}

// dial connects from an address; with a place, once the relay has one for it.
func (f front) dial(t *testing.T, from string, place bool) net.Conn {
	t.Helper()
	self := &net.TCPAddr{IP: net.ParseIP(from)}
	if place {
		l, err := net.ListenTCP("tcp4", self) // a port that is free
		if err != nil {
			t.Fatal(err)
		}
		self = l.Addr().(*net.TCPAddr)
		l.Close()
		told := make(chan error, 1)
		f.SYN(SYN{Client: self.AddrPort(), Origin: f.at, Answer: func(err error) { told <- err }})
		select {
		case <-told:
		case <-time.After(time.Minute):
			t.Fatalf("a client of %s gets no place", from)
		}
	}
	c, err := (&net.Dialer{LocalAddr: self, Timeout: time.Minute}).Dial("tcp4", f.at.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func echoes(c net.Conn) error {
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	_, err := c.Write([]byte{7})
	_, failed := io.ReadFull(c, make([]byte, 1))
	return errors.Join(err, failed)
}

// TestQueueMoves: of a relay that a crowd has filled, clients that hold few get the last places,
// though connections of the crowd stand before theirs, at their tenant's listener or another's.
func TestQueueMoves(t *testing.T) {
	f := fronts(t, Limits{Connections: 100, PerTenant: 100})
	crowd := "127.1.0.1"
	var old []net.Conn
	for range 95 {
		c := f[0].dial(t, crowd, false)
		if err := echoes(c); err != nil {
			t.Fatal(err)
		}
		old = append(old, c)
	}
	var waits []net.Conn
	for i := range 2*maxHeaders + 20 {
		waits = append(waits, f[i/(2*maxHeaders)].dial(t, crowd, false))
	}
	for _, x := range []struct {
		who   string
		front front
		from  string
		place bool
	}{
		{"with a place, behind a crowd", f[0], "127.2.0.1", true},
		{"of another tenant, with a place", f[1], "127.3.0.1", true},
		{"of another tenant, answered without one", f[1], "127.4.0.1", false},
	} {
		began := time.Now()
		if err := echoes(x.front.dial(t, x.from, x.place)); err != nil {
			t.Errorf("a client %s: %v", x.who, err)
		}
		t.Logf("a client %s is served after %s", x.who, time.Since(began))
	}
	for i, c := range old {
		if err := echoes(c); err != nil {
			t.Fatalf("connection %d of those that were there: %v", i, err)
		}
	}
	_, _ = waits[len(waits)-1].Write([]byte{7}) // and may wait for its echo alone
	for _, c := range waits[2*maxHeaders:] {
		_ = c.(*net.TCPConn).CloseWrite()
	}
	waiting := func() int { f[1].mu.Lock(); defer f[1].mu.Unlock(); return f[1].waiting }
	for until := time.Now().Add(time.Minute); waiting() > 1 && time.Now().Before(until); {
		time.Sleep(again)
	}
	if n := waiting(); n != 1 {
		t.Errorf("of %d that have given up, and one that has sent a request, %d wait", len(waits[2*maxHeaders:])-1, n)
	}
	for _, c := range append(waits[:2*maxHeaders:2*maxHeaders], old[:20]...) {
		c.Close()
	}
	last := waits[len(waits)-1]
	_ = last.SetDeadline(time.Now().Add(time.Minute))
	if b, err := io.ReadAll(last); err != nil || len(b) != 1 {
		t.Errorf("the one that waits on is told %v, %v", b, err)
	}
}
