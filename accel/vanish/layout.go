package vanish

import (
	"encoding/binary"
	"net/netip"
)

// The layouts and numbers of bpf/vanish.h.

// State of a half.
type State uint8

// States.
const (
	Observe   State = 1 + iota // note what comes, and leave it to the socket
	Drain                      // translate; the sockets still hold bytes
	Translate                  // the sockets are gone
	Forward                    // what comes is translated already
	Own                        // packets of a socket that drains
)

// Out is how packets of a half go on.
type Out uint8

// Ways.
const (
	Neighbour Out = iota // by a device, to the neighbour that its routes name
	Into                 // as if they came in at a device
)

const flagClamp = 1

// leaving is in the device of a key of packets that leave by it.
const leaving = 0x80000000

// Over says how far an end is with its end.
type Over uint8

// Ends.
const (
	Finished Over = 1 << iota // it has sent FIN
	Reset                     // it has sent RST
)

const halves = 65536

// Key names a half: where its packets come in, and from whom.
type Key struct {
	Ifindex      uint32
	Src, Dst     [4]byte
	Sport, Dport [2]byte
}

// NewKey returns the key of packets that come in by a device.
func NewKey(ifindex int, from, to netip.AddrPort) Key {
	return Key{uint32(ifindex), from.Addr().As4(), to.Addr().As4(), port(from), port(to)}
}

func port(a netip.AddrPort) (b [2]byte) {
	binary.BigEndian.PutUint16(b[:], a.Port())
	return b
}

// From is the end whose packets come in.
func (k Key) From() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4(k.Src), binary.BigEndian.Uint16(k.Sport[:]))
}

// To is to whom that end sends them.
func (k Key) To() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4(k.Dst), binary.BigEndian.Uint16(k.Dport[:]))
}

// Half is what becomes of packets from one end.
type Half struct {
	OutIfindex, OtherIfindex  uint32
	Src, Dst                  [4]byte
	Sport, Dport              [2]byte
	SeqAdd, AckAdd            uint32
	TSAdd, EchoAdd, EchoFloor uint32
	OwnSeq, OwnAck            uint32
	State                     State
	Out                       Out
	Flags, ShiftIn, ShiftOut  uint8
	Over                      Over
	MACs                      [12]byte
	_                         [2]byte
	SeenStamp, SeenAck        uint32
	_                         uint32
	Seen, Packets, Bytes      uint64
}
