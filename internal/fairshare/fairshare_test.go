package fairshare

import (
	"net"
	"net/netip"
	"testing"
	"time"
)

// TestRates: a network has its requests a second, whatever another asks; what is kept of
// networks is bounded.
func TestRates(t *testing.T) {
	now := time.Unix(1e9, 0)
	r := NewRates(func() time.Time { return now }, 100, 200)
	passed := 0
	var refused uint64
	for range 1000 {
		ok, over := r.Allow(netip.MustParseAddr("192.0.2.7"))
		if refused = over; ok {
			passed++
		}
	}
	if passed != 200 || refused != 800 {
		t.Errorf("%d pass, %d are refused", passed, refused)
	}
	if ok, _ := r.Allow(netip.MustParseAddr("192.0.2.8")); ok {
		t.Error("a neighbour in the same network has a share of its own")
	}
	if ok, over := r.Allow(netip.MustParseAddr("192.0.3.7")); !ok || over > 0 {
		t.Error("another network is refused")
	}
	for i := range 4 * mostNetworks {
		r.Allow(netip.AddrFrom4([4]byte{1 + byte(i>>16), byte(i >> 8), byte(i), 1}))
	}
	if n := len(r.young) + len(r.old); n > 2*mostNetworks {
		t.Errorf("%d networks are kept", n)
	}
	now = now.Add(time.Second)
	if ok, _ := r.Allow(netip.MustParseAddr("192.0.2.7")); !ok {
		t.Error("it is refused for ever")
	}
}

// TestConnections: no network has more than its share of the connections; one that ends
// leaves room for the next.
func TestConnections(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const ofNetwork = 16
	l := Listen(inner, 256, ofNetwork)
	accepted := make(chan net.Conn, 2*ofNetwork)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	var open []net.Conn
	defer func() {
		_ = l.Close()
		<-ended
		for _, c := range open {
			_ = c.Close()
		}
	}()
	dial := func(from string) net.Conn {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		c, err := d.DialContext(t.Context(), "tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
		return c
	}
	closed := func(c net.Conn) bool { // it waits until the server closes it
		_, err := c.Read(make([]byte, 1))
		return err != nil
	}
	var first net.Conn
	for i := range ofNetwork {
		dial("127.0.0.1")
		c := <-accepted
		open = append(open, c)
		if i == 0 {
			first = c
		}
	}
	if !closed(dial("127.0.0.2")) || len(accepted) > 0 {
		t.Error("a network has more than its share")
	}
	dial("127.0.1.1")
	open = append(open, <-accepted) // another network
	_ = first.Close()
	_ = first.Close() // counts once
	dial("127.0.0.1")
	open = append(open, <-accepted)
	if !closed(dial("127.0.0.1")) {
		t.Error("one connection ended, and two come in its place")
	}
}
