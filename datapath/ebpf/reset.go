package ebpf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// When an instance that ends TCP dies, the programs reset its connections as
// soon as one end speaks. An end that only waits, as a client does in the middle
// of a download, would wait on; so the driver resets it too, with the last
// acknowledgement number that its flow entry noted. If the end has received more
// than it acknowledged, it challenges the reset (RFC 5961 §3.2) and so speaks.

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

// resetWaiting sends resets to the ends outside of all connections that lead
// from the edge to lost members.
func (d *Driver) resetWaiting(ctx context.Context, edge uint32, lost map[uint32]map[uint32]bool) error {
	t, r, err := d.openFlows()
	if err != nil || t == nil {
		return err
	}
	defer t.close()
	var packets [][]byte
	err = t.each(ctx, func(k *flowKey, v *flowValue) bool {
		if unthree(k.Scope) == edge && k.Proto == unix.IPPROTO_TCP && v.kind() == nextVport && v.Entry != 0 &&
			v.Flags&(flowRST|flowAtEdge) == flowAtEdge && lost[r.group(v)][unthree(v.Next)] {
			packets = append(packets, resetFor(k, v.Entry))
		}
		return true
	})
	if err != nil {
		return err
	}
	return d.ns.do(func() error { return sendRaw(packets) })
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
		return append(ip, tcp...) // the kernel fills in the header's sum
	}
	ip := []byte{0x60, 0, 0, 0, 0, 20, unix.IPPROTO_TCP, 64}
	ip = append(append(ip, k.Dst[:]...), k.Src[:]...)
	return append(ip, tcp...)
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

// sendRaw sends whole IP packets by the kernel's routes.
func sendRaw(packets [][]byte) error {
	var errs []error
	for _, version := range []byte{4, 6} {
		fd := -1
		for _, p := range packets {
			if p[0]>>4 != version {
				continue
			}
			if fd < 0 {
				var err error
				if fd, err = rawSocket(version); err != nil {
					errs = append(errs, err)
					break
				}
			}
			errs = append(errs, sendOne(fd, p))
		}
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	return errors.Join(errs...)
}

func rawSocket(version byte) (int, error) {
	domain := unix.AF_INET
	if version == 6 {
		domain = unix.AF_INET6
	}
	fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_RAW)
	if err != nil {
		return -1, fmt.Errorf("open raw socket: %w", err)
	}
	return fd, nil
}

func sendOne(fd int, p []byte) error {
	var to unix.Sockaddr
	if p[0]>>4 == 4 {
		to = &unix.SockaddrInet4{Addr: [4]byte(p[16:20])}
	} else {
		to = &unix.SockaddrInet6{Addr: [16]byte(p[24:40])}
	}
	if err := unix.Sendto(fd, p, 0, to); err != nil {
		return fmt.Errorf("send reset: %w", err)
	}
	return nil
}
