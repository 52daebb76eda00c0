package signalling

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/onpath/onpath/signal/gist"
)

// TestErrorsAreHeard: a node hears GIST Errors at its socket, as the data path does not hand
// them over, and nothing else that came by the data path already.
func TestErrorsAreHeard(t *testing.T) {
	s, err := Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	got := make(chan gist.Packet, 2)
	go s.Errors(ctx, func(netip.AddrPort, []byte) {}, func(p gist.Packet) { got <- p })
	c, err := net.Dial("udp", netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(s.conn.LocalAddr().(*net.UDPAddr).Port)).String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	flow := gist.Toward(netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"))
	wrong := &gist.Message{Hops: 1, Type: gist.ErrorMessage, Error: &gist.Error{Class: gist.PermanentFailure, Code: 7}}
	query := &gist.Message{Hops: 1, NSLPID: gist.NSLPID, Type: gist.Query, QMode: true, Reply: true, MRI: &flow}
	for _, b := range [][]byte{[]byte("short"), query.Append(nil), wrong.Append(nil)} {
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
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
