package packet

import (
	"encoding/binary"
	"net/netip"
	"testing"
)

// TestFragmentsJoin: a fragment has the ports of its first, for a minute and for its own
// datagram; memory is bounded.
func TestFragmentsJoin(t *testing.T) {
	made := func(id uint16, at uint16) Header {
		b := Blank(false, UDP, 16, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"))
		binary.BigEndian.PutUint16(b[4:], id)
		binary.BigEndian.PutUint16(b[6:], at)
		if at == 0x2000 {
			binary.BigEndian.PutUint16(b[20:], 1000+id)
			binary.BigEndian.PutUint16(b[22:], 53)
		}
		return Parse(b)
	}
	var f Fragments
	later := func(id uint16, now uint64) (uint16, Verdict) {
		h := made(id, 1)
		f.Join(&h, now)
		return h.Tuple.SrcPort, h.Verdict
	}
	if _, v := later(1, 0); v != Unreadable {
		t.Error("a fragment whose first did not come is read")
	}
	h := made(1, 0x2000)
	f.Join(&h, 0)
	if port, v := later(1, 60e9); port != 1001 || v != Fine {
		t.Error(port, v)
	}
	if _, v := later(2, 1); v != Unreadable {
		t.Error("a fragment of another datagram has the ports")
	}
	if _, v := later(1, 60e9+1); v != Unreadable {
		t.Error("the ports are there after more than a minute")
	}
	for id := range uint16(9000) {
		h := made(id, 0x2000)
		f.Join(&h, 1)
	}
	if _, v := later(10, 2); v != Unreadable {
		t.Error("nothing is forgotten")
	}
	if port, _ := later(8999, 2); port != 9999 {
		t.Error(port)
	}
}
