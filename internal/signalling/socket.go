// Package signalling is what signalling needs of a machine: a UDP socket that sends by a
// chosen address and tells of ICMP errors with what they quote, and a requester on it.
package signalling

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath/signal/gist"
)

// Socket is one for both IP versions.
type Socket struct {
	conn *net.UDPConn
	raw  interface {
		Control(func(fd uintptr)) error
	}
	routes *netlink.Handle // of the socket's network namespace
}

// Open opens a port of the calling thread's network namespace; 0: any.
func Open(port int) (*Socket, error) {
	c, err := net.ListenUDP("udp", &net.UDPAddr{Port: port})
	if err != nil {
		return nil, err
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	routes, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	s := &Socket{conn: c, raw: raw, routes: routes}
	if cerr := raw.Control(func(fd uintptr) {
		err = errors.Join(
			unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_RECVERR, 1),
			unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_RECVERR, 1),
			unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO))
	}); cerr != nil {
		err = cerr
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close closes the socket.
func (s *Socket) Close() error {
	s.routes.Close()
	return s.conn.Close()
}

// Source is the address by which this machine sends to another; invalid: it has no route. To
// an address of its own it is that one.
func (s *Socket) Source(to netip.Addr) netip.Addr {
	routes, err := s.routes.RouteGet(to.AsSlice())
	if err != nil || len(routes) == 0 {
		return netip.Addr{}
	}
	if routes[0].Type == unix.RTN_LOCAL {
		return to
	}
	from, _ := netip.AddrFromSlice(routes[0].Src)
	return from.Unmap()
}

// Send sends by an address of this machine.
func (s *Socket) Send(from netip.Addr, to netip.AddrPort, payload []byte) error {
	var control []byte
	switch {
	case !from.IsValid():
	case to.Addr().Is4():
		a := from.As4()
		control = pktinfo(unix.SOL_IP, unix.IP_PKTINFO, append(append(make([]byte, 4), a[:]...), make([]byte, 4)...))
	default:
		a := from.As16()
		control = pktinfo(unix.SOL_IPV6, unix.IPV6_PKTINFO, append(a[:], make([]byte, 4)...))
	}
	_, _, err := s.conn.WriteMsgUDPAddrPort(payload, control, to)
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EHOSTUNREACH) { // of a datagram before
		_, _, err = s.conn.WriteMsgUDPAddrPort(payload, control, to)
	}
	return err
}

func pktinfo(level, kind int, data []byte) []byte {
	b := make([]byte, unix.CmsgSpace(len(data)))
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	h.Level, h.Type = int32(level), int32(kind)
	h.SetLen(unix.CmsgLen(len(data)))
	copy(b[unix.CmsgLen(0):], data)
	return b
}

// Receive reads a datagram; an ICMP error that waits is no error of it.
func (s *Socket) Receive(buffer []byte, until time.Time) (n int, from netip.AddrPort, err error) {
	if err := s.conn.SetReadDeadline(until); err != nil {
		return 0, from, err
	}
	n, from, err = s.conn.ReadFromUDPAddrPort(buffer)
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EHOSTUNREACH) {
		return 0, netip.AddrPort{}, nil
	}
	return n, netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), err
}

// Hear calls tell with each ICMP port unreachable: to whom the datagram went, and what of it
// is quoted; and heard with each datagram.
func (s *Socket) Hear(ctx context.Context, tell func(to netip.AddrPort, quoted []byte), heard func(gist.Packet)) {
	buffer := make([]byte, 1<<16)
	for ctx.Err() == nil {
		n, from, err := s.Receive(buffer, clock().Add(time.Second)) // an ICMP error wakes it
		if err == nil && n > 0 {
			heard(gist.Packet{From: from, Payload: bytes.Clone(buffer[:n])})
		}
		for s.Error(tell) {
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

// Error reads one error that waits; false: none does.
func (s *Socket) Error(tell func(to netip.AddrPort, quoted []byte)) (more bool) {
	quoted, control := make([]byte, 2048), make([]byte, 512)
	_ = s.raw.Control(func(fd uintptr) {
		n, cn, _, to, err := unix.Recvmsg(int(fd), quoted, control, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
		if err != nil {
			return
		}
		more = true
		if at := addrPort(to); isUnreachable(control[:cn]) && at.IsValid() {
			tell(at, quoted[:n])
		}
	})
	return more
}

func addrPort(a unix.Sockaddr) netip.AddrPort {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port))
	}
	return netip.AddrPort{}
}

// isUnreachable: the error is an ICMP port unreachable (struct sock_extended_err).
func isUnreachable(control []byte) bool {
	list, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return false
	}
	for _, m := range list {
		e := m.Data
		if len(e) < 16 || m.Header.Type != unix.IP_RECVERR && m.Header.Type != unix.IPV6_RECVERR {
			continue
		}
		if unix.Errno(binary.NativeEndian.Uint32(e)) == unix.ECONNREFUSED {
			return true
		}
	}
	return false
}
