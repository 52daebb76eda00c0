package fake

import (
	"encoding/binary"

	"github.com/onpath/onpath/internal/packet"
)

// EtherTypes of VLAN tags.
const (
	typeVLAN = 0x8100
	typeQinQ = 0x88a8
)

// frame is an Ethernet frame taken apart.
type frame struct {
	src, dst  [6]byte
	tags      []uint16 // VLAN ids, outermost first
	etherType uint16
	payload   []byte
}

// parseFrame reads an Ethernet frame with up to two VLAN tags; what lies behind
// more keeps the EtherType of a tag.
func parseFrame(b []byte) (frame, bool) {
	if len(b) < 14 {
		return frame{}, false
	}
	f := frame{dst: [6]byte(b[:6]), src: [6]byte(b[6:12]), etherType: binary.BigEndian.Uint16(b[12:])}
	b = b[14:]
	for len(f.tags) < 2 && (f.etherType == typeVLAN || f.etherType == typeQinQ) {
		if len(b) < 4 {
			return frame{}, false
		}
		f.tags = append(f.tags, binary.BigEndian.Uint16(b)&0xfff)
		f.etherType = binary.BigEndian.Uint16(b[2:])
		b = b[4:]
	}
	f.payload = b
	return f, true
}

// inVLAN reports whether the frame belongs to a VLAN: one with tag 0 does not, it only
// has a priority.
func (f frame) inVLAN() bool { return len(f.tags) > 1 || len(f.tags) == 1 && f.tags[0] != 0 }

// isIP reports whether the frame carries IP as its EtherType says.
func (f frame) isIP() bool {
	if len(f.payload) == 0 {
		return false
	}
	v := f.payload[0] >> 4
	return (f.etherType == packet.TypeIPv4 && v == 4) || (f.etherType == packet.TypeIPv6 && v == 6)
}
