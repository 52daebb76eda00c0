package signalling

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/onpath/onpath/signal/gist"
)

// TestDatagramsAreHeard: what comes to the socket is heard, with its sender.
func TestDatagramsAreHeard(t *testing.T) {
	s, err := Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	got := make(chan gist.Packet, 2)
	go s.Hear(ctx, func(netip.AddrPort, []byte) {}, func(p gist.Packet) { got <- p })
	c, err := net.Dial("udp", netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(s.conn.LocalAddr().(*net.UDPAddr).Port)).String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	wrong := &gist.Message{Hops: 1, Type: gist.ErrorMessage, Error: &gist.Error{Class: gist.PermanentFailure, Code: 7}}
	if _, err := c.Write(wrong.Append(nil)); err != nil {
		t.Fatal(err)
	}
	select {
	case p := <-got:
		if m, err := gist.Parse(p.Payload); err != nil || m.Type != gist.ErrorMessage || p.From.String() != c.LocalAddr().String() {
			t.Errorf("%+v from %s, %v", m, p.From, err)
		}
	case <-ctx.Done():
		t.Error("no Error is heard")
	}
}

// TestOwnAddresses: what goes to an address of the machine comes from it, whichever it is, so
// that it is known for one.
func TestOwnAddresses(t *testing.T) {
	s, err := Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, a := range []string{"127.0.0.1", "127.0.0.5"} {
		if to := netip.MustParseAddr(a); s.Source(to) != to {
			t.Errorf("to %s it would send by %s", to, s.Source(to))
		}
	}
}
