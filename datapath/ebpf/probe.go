package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// struct probe of bpf/abi.h, behind the UDP header.
const (
	probeHead   = 24 // bytes before the vports
	probeVports = 32
	probeQuery  = 1
	probeReply  = 2
)

var _ onpath.PeerProber = (*Driver)(nil)

// ProbePeers implements onpath.PeerProber.
func (d *Driver) ProbePeers(from, inside netip.Addr) (onpath.PeerConversation, error) {
	c := &conversation{peers: map[netip.Addr]onpath.Peer{}, fd: -1, inside: -1}
	err := d.ns.do(func() (err error) {
		if c.fd, err = probeSocket(from.Unmap(), false); err == nil && inside.IsValid() {
			c.inside, err = probeSocket(inside, true)
		}
		return err
	})
	if err != nil {
		err = fmt.Errorf("open a socket on the underlay address %s to probe peers: %w", from, err)
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// probeSocket sends from the underlay, with the hop limit that peers insist on
// and ahead of the traffic that is probed. The address may be one that comes later.
func probeSocket(from netip.Addr, later bool) (int, error) {
	family := unix.AF_INET
	if from.Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	const class = 0xc0 // CS6, network control
	if from.Is6() {
		err = errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, 255),
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, class))
	} else {
		err = errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TTL, 255),
			unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TOS, class))
	}
	if later {
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1))
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PRIORITY, 6)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1<<20)
	if err = errors.Join(err, unix.Bind(fd, sockaddr(from, 0))); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func sockaddr(a netip.Addr, port uint16) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4(), Port: int(port)}
	}
	return &unix.SockaddrInet6{Addr: a.As16(), Port: int(port)}
}

// conversation is an onpath.PeerConversation over one socket on the underlay, and one inside
// WireGuard.
type conversation struct {
	fd, inside int                        // -1: none
	peers      map[netip.Addr]onpath.Peer // that were asked
	buf        [probeHead + 4*probeVports]byte
}

func (c *conversation) Ask(q onpath.PeerQuestion) error {
	if len(q.Vports) > probeVports {
		return onpath.Errorf(onpath.CodeInvalid, "a question about %d vports; one may name %d", len(q.Vports), probeVports)
	}
	to := q.Peer.Address.Unmap()
	q.Peer.Port = tunnelPort(onpath.Underlay{Port: q.Peer.Port})
	c.peers[to] = q.Peer
	b := make([]byte, probeHead+4*len(q.Vports))
	b[0] = 0x08
	put24(b[8:], q.Peer.Secret)
	b[11], b[12] = probeQuery, byte(len(q.Vports))
	binary.BigEndian.PutUint64(b[16:], q.Number)
	for i, v := range q.Vports {
		put24(b[probeHead+4*i:], uint32(v))
	}
	fd := c.fd
	if q.Peer.Inside {
		fd = c.inside
	}
	err := unix.Sendto(fd, b, 0, sockaddr(to, q.Peer.Port))
	if errors.Is(err, unix.EBADF) || errors.Is(err, unix.ENOTSOCK) {
		return err
	}
	return nil
}

func put24(b []byte, v uint32) { b[0], b[1], b[2] = byte(v>>16), byte(v>>8), byte(v) }

func get24(b []byte) uint32 { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }

func (c *conversation) Replies(wait time.Duration) ([]onpath.PeerReply, error) {
	timeout := unix.NsecToTimespec(int64(max(wait, 0)))
	poll := []unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLIN}, {Fd: int32(c.inside), Events: unix.POLLIN}}
	if _, err := unix.Ppoll(poll, &timeout, nil); err != nil && !errors.Is(err, unix.EINTR) {
		return nil, fmt.Errorf("wait for answers of peers: %w", err)
	}
	out, err := c.receive(c.fd, nil)
	if err == nil && c.inside >= 0 {
		out, err = c.receive(c.inside, out)
	}
	return out, err
}

// receive adds what has come at a socket.
func (c *conversation) receive(fd int, out []onpath.PeerReply) ([]onpath.PeerReply, error) {
	for {
		n, from, err := unix.Recvfrom(fd, c.buf[:], unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return out, nil
		case errors.Is(err, unix.EBADF), errors.Is(err, unix.ENOTSOCK):
			return out, err
		case err != nil:
			continue // an ICMP error about an earlier question
		}
		if a, ok := c.answer(c.buf[:n], from); ok {
			out = append(out, a)
		}
	}
}

// answer takes apart what came, if it is a peer's.
func (c *conversation) answer(b []byte, from unix.Sockaddr) (a onpath.PeerReply, ok bool) {
	var port int
	switch f := from.(type) {
	case *unix.SockaddrInet4:
		a.Peer, port = netip.AddrFrom4(f.Addr), f.Port
	case *unix.SockaddrInet6:
		a.Peer, port = netip.AddrFrom16(f.Addr).Unmap(), f.Port
	}
	peer, known := c.peers[a.Peer]
	if !known || port != int(peer.Port) || len(b) < probeHead || get24(b[8:]) != peer.Secret ||
		b[11] != probeReply || len(b) != probeHead+4*int(b[12]) {
		return a, false
	}
	a.Number = binary.BigEndian.Uint64(b[16:])
	a.States = map[onpath.VportID]onpath.VportState{}
	for v := b[probeHead:]; len(v) > 0; v = v[4:] {
		a.States[onpath.VportID(get24(v))] = stateName(v[3])
	}
	return a, true
}

func stateName(s uint8) onpath.VportState {
	switch s {
	case stateUp:
		return onpath.VportUp
	case stateDraining:
		return onpath.VportDraining
	}
	return onpath.VportClosed
}

func (c *conversation) Close() (err error) {
	for _, fd := range []int{c.fd, c.inside} {
		if fd >= 0 {
			err = errors.Join(err, unix.Close(fd))
		}
	}
	return err
}
