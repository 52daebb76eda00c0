package trial

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/internal/packet"
)

// tries is how often each packet of a network trial is sent, so that one that is lost by
// chance does not count as refused.
const (
	tries    = 3
	tryEvery = 20 * time.Millisecond
)

// dialTime is how long a TCP connection may take to come about.
const dialTime = 2 * time.Second

// sendEach sends packets of all sorts.
func (m Machine) sendEach(ctx context.Context, p Part, word []byte) (*Result, error) {
	var out Result
	conn, why := m.dial(ctx, "tcp", netip.AddrPortFrom(p.Address, p.Listens.TCP))
	tcp := Packet{Name: TCP, Arrived: why == nil}
	if why != nil {
		tcp.Why = reason(why)
	} else {
		_ = conn.Close()
	}
	out.Packets = append(out.Packets, tcp)
	from, err := m.sourceTowards(ctx, p.Address)
	if err != nil {
		return nil, err
	}
	raw, err := m.raw(p.Address.Is6())
	if err != nil {
		return nil, err
	}
	defer unix.Close(raw)
	list := sorts()
	failed := make([]error, len(list))
	for range tries {
		for i, s := range list {
			failed[i] = sendRaw(raw, p.Address, s.packet(p, from, marked(word, uint64(i))))
		}
		sleep(ctx, tryEvery)
	}
	for i, s := range list {
		t := Packet{Name: s.name, Size: s.size}
		if failed[i] != nil {
			t.Why = reason(failed[i])
		}
		out.Packets = append(out.Packets, t)
	}
	return &out, context.Cause(ctx)
}

// reason is what the system says, without the call that it says it of.
func reason(err error) string {
	var no unix.Errno
	switch {
	case errors.Is(err, unix.EMSGSIZE):
		return "the sender's own device takes no packet of this size"
	case errors.As(err, &no):
		return no.Error()
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer"
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return "no answer"
	}
	return err.Error()
}

// packet is one of its sort.
func (s *sort) packet(p Part, from netip.Addr, payload []byte) []byte {
	to, v6 := p.Address, p.Address.Is6()
	protocol, head := s.protocol, bytes.Clone(s.header)
	switch s.protocol {
	case protocolUDP:
		port := p.Listens.UDP
		if s.tunnel {
			port = p.Tunnel
		}
		head = binary.BigEndian.AppendUint16(head, sourcePort)
		head = binary.BigEndian.AppendUint16(head, port)
		head = append(head, 0, 0, 0, 0)
	case protocolICMP:
		head = []byte{8, 0, 0, 0, 0, 1, 0, 1}
		if v6 {
			protocol, head[0] = protocolICMPv6, 128
		}
	}
	if s.foreign {
		if from = foreignSource4; v6 {
			from = foreignSource6
		}
	}
	body := append(head, payload...)
	if network := len(packet.Blank(v6, protocol, 0, from, to)); s.size > network+len(body) {
		body = append(body, make([]byte, s.size-network-len(body))...)
	}
	s.check(protocol, body, from, to)
	b := packet.Blank(v6, protocol, len(body), from, to)
	copy(b[len(b)-len(body):], body)
	return b
}

// sourcePort is the one of UDP packets that are made here.
const sourcePort = 47970

// check writes lengths and checksums of the transport.
func (s *sort) check(protocol uint8, body []byte, from, to netip.Addr) {
	switch protocol {
	case protocolUDP:
		binary.BigEndian.PutUint16(body[4:], uint16(len(body)))
		binary.BigEndian.PutUint16(body[6:], ^packet.Sum(packet.PseudoSum(from, to, protocol, len(body)), body))
	case protocolICMPv6:
		binary.BigEndian.PutUint16(body[2:], ^packet.Sum(packet.PseudoSum(from, to, protocol, len(body)), body))
	case protocolICMP:
		binary.BigEndian.PutUint16(body[2:], ^packet.Sum(0, body))
	}
}

// raw is a socket that takes whole IP packets.
func (m Machine) raw(v6 bool) (fd int, err error) {
	family := unix.AF_INET
	if v6 {
		family = unix.AF_INET6
	}
	err = netnsrun.Do(m.NetNS, func() (err error) {
		fd, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("open a raw socket: %w", err)
	}
	return fd, nil
}

func sendRaw(fd int, to netip.Addr, b []byte) error {
	if to.Is6() {
		return unix.Sendto(fd, b, 0, &unix.SockaddrInet6{Addr: to.As16()})
	}
	return unix.Sendto(fd, b, 0, &unix.SockaddrInet4{Addr: to.As4()})
}

// dial connects from the machine.
func (m Machine) dial(ctx context.Context, network string, to netip.AddrPort) (c net.Conn, err error) {
	err = netnsrun.Do(m.NetNS, func() error {
		ctx, cancel := context.WithTimeout(ctx, dialTime)
		defer cancel()
		d := net.Dialer{FallbackDelay: -1}
		c, err = d.DialContext(ctx, network, to.String())
		return err
	})
	return c, err
}

// sourceTowards is the address from which the machine sends to another.
func (m Machine) sourceTowards(ctx context.Context, to netip.Addr) (netip.Addr, error) {
	c, err := m.dial(ctx, "udp", netip.AddrPortFrom(to, 9)) // sends nothing
	if err != nil {
		e := onpath.Errorf(onpath.CodeUnavailable, "there is no way to %s from here: %w", to, err)
		e.Remedy = "look at the machine's routes"
		return netip.Addr{}, e
	}
	defer c.Close()
	a, err := netip.ParseAddrPort(c.LocalAddr().String())
	return a.Addr().Unmap(), err
}
