package dns

import (
	"net"
	"testing"
)

// TestConnections: no network has more than its share of the connections; one that ends
// leaves room for the next.
func TestConnections(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := newShared(inner)
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
