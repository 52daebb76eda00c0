package ebpf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// When an instance that ends TCP dies, the programs reset its connections as
// soon as one end speaks. An end that only waits, as a client does in the middle
// of a download, would wait on; so the driver resets it too, by the last
// acknowledgement number that its flow entry noted.
//
// The node to which the end is connected sends the reset by itself if the dead
// instance is the first on the way. Else the node of the element before it does:
// into that element, as if the dead instance had answered, so that the reset
// finds the way back as every answer does. There entries know the number but for
// its low byte, and the reset has one in the window behind it: the end challenges
// it (RFC 5961 §3.2) and so speaks. So does an end that has received more than it
// acknowledged, when it acknowledges.

// lostGroups are the groups with lost: reset that have a member which want
// closes and d.state had open; by id, with these members.
func lostGroups(old, want *state) map[uint32]map[uint32]bool {
	if old == nil {
		return nil
	}
	lost := map[uint32]map[uint32]bool{}
	for id, g := range old.groups {
		if g.Flags&groupReset == 0 {
			continue
		}
		for _, m := range g.Members[:g.Count] {
			if open(old, m.Vport) && !open(want, m.Vport) {
				if lost[id] == nil {
					lost[id] = map[uint32]bool{}
				}
				lost[id][m.Vport] = true
			}
		}
	}
	return lost
}

func open(s *state, vport uint32) bool {
	slot, ok := s.slots[vport]
	return ok && s.vports[slot].State != stateClosed
}

// reset is an IP packet to send. Without a vport it goes by the kernel's routes,
// else into the local instance behind it.
type reset struct {
	packet []byte
	into   *vportValue
}

// resetWaiting sends resets to the ends of all connections that lead to lost
// members.
func (d *Driver) resetWaiting(ctx context.Context, s *state, lost map[uint32]map[uint32]bool) error {
	t, r, err := d.openFlows()
	if err != nil || t == nil {
		return err
	}
	defer t.close()
	before := map[uint32]*vportValue{}
	for _, v := range s.vports {
		if v.Kind == vportInstance && v.State != stateClosed && v.Flags&flagMirror == 0 {
			before[v.ID] = &v
		}
	}
	var resets []reset
	err = t.each(ctx, func(k *flowKey, v *flowValue) bool {
		if k.Proto != unix.IPPROTO_TCP || v.kind() != nextVport || v.ack() == 0 ||
			!lost[r.group(v)][unthree(v.Next)] || over(t, r, k, v) {
			return true
		}
		if v.Flags&flowAtEdge != 0 {
			resets = append(resets, reset{packet: resetFor(k, v.ack())})
		} else if into := before[unthree(k.Scope)]; into != nil {
			resets = append(resets, reset{packet: resetFor(k, v.ack()+0x100), into: into})
		}
		return true
	})
	if err != nil || len(resets) == 0 {
		return err
	}
	return d.ns.do(func() error { return sendResets(resets) })
}

// over tells a connection that has ended.
func over(t flowTables, r *reader, k *flowKey, v *flowValue) bool {
	flags, both := v.Flags, uint8(0)
	mate := r.mate(k, v)
	for _, m := range t {
		var other flowValue
		if m.Lookup(mate, &other) == nil {
			flags, both = flags|other.Flags, flags&other.Flags
			break
		}
	}
	return flags&flowRST != 0 || both&flowFIN != 0
}

// resetFor is an IP packet that resets the end from which packets of k come.
func resetFor(k *flowKey, seq uint32) []byte {
	tcp := make([]byte, 20)
	copy(tcp, k.DPort[:])
	copy(tcp[2:], k.SPort[:])
	binary.BigEndian.PutUint32(tcp[4:], seq)
	tcp[12], tcp[13] = 5<<4, 0x04
	src, dst := narrow(k.Src), narrow(k.Dst)
	pseudo := append(dst.AsSlice(), src.AsSlice()...)
	pseudo = append(pseudo, 0, unix.IPPROTO_TCP, 0, byte(len(tcp)))
	binary.BigEndian.PutUint16(tcp[16:], ^sum16(append(pseudo, tcp...)))
	if src.Is4() {
		ip := []byte{0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, unix.IPPROTO_TCP, 0, 0}
		ip = append(append(ip, dst.AsSlice()...), src.AsSlice()...)
		binary.BigEndian.PutUint16(ip[10:], ^sum16(ip))
		return append(ip, tcp...)
	}
	ip := []byte{0x60, 0, 0, 0, 0, 20, unix.IPPROTO_TCP, 64}
	ip = append(append(ip, k.Dst[:]...), k.Src[:]...)
	return append(ip, tcp...)
}

// sendResets sends as many as can be sent.
func sendResets(resets []reset) error {
	fds := map[int]int{}
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	var errs []error
	for _, r := range resets {
		domain, to := destination(r)
		fd, ok := fds[domain]
		if !ok {
			var err error
			if fd, err = unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocolOf(domain)); err != nil {
				return errors.Join(append(errs, fmt.Errorf("open raw socket: %w", err))...)
			}
			fds[domain] = fd
		}
		p := r.packet
		if r.into != nil {
			p = slices.Concat(r.into.DMAC[:], r.into.SMAC[:], etherType(p), p)
		}
		if err := unix.Sendto(fd, p, 0, to); err != nil {
			errs = append(errs, fmt.Errorf("send reset: %w", err))
		}
	}
	return errors.Join(errs...)
}

// destination is the kind of socket by which a reset leaves, and its address.
func destination(r reset) (domain int, to unix.Sockaddr) {
	switch p := r.packet; {
	case r.into != nil:
		return unix.AF_PACKET, &unix.SockaddrLinklayer{Ifindex: int(r.into.Ifindex)}
	case p[0]>>4 == 4:
		return unix.AF_INET, &unix.SockaddrInet4{Addr: [4]byte(p[16:20])}
	default:
		return unix.AF_INET6, &unix.SockaddrInet6{Addr: [16]byte(p[24:40])}
	}
}

// protocolOf is the protocol of a raw socket: it receives nothing.
func protocolOf(domain int) int {
	if domain == unix.AF_PACKET {
		return 0
	}
	return unix.IPPROTO_RAW
}

func etherType(packet []byte) []byte {
	if packet[0]>>4 == 6 {
		return []byte{0x86, 0xdd}
	}
	return []byte{0x08, 0x00}
}

// sum16 is the one's complement sum of RFC 1071.
func sum16(b []byte) uint16 {
	var s uint32
	for i := 0; i+1 < len(b); i += 2 {
		s += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}
