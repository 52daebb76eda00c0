package trial

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
)

// unreachable is the error of a machine that does not answer.
func unreachable(p Part, err error) error {
	e := onpath.Errorf(onpath.CodeUnavailable, "%s does not answer by %s: %s", p.Address, p.Protocol, reason(err))
	e.Remedy = "see what passes between the two machines: onpath get nodes -o wide"
	return e
}

// sendStream sends by TCP as fast as the network takes it.
func (m Machine) sendStream(ctx context.Context, p Part, word []byte) (*Result, error) {
	c, err := m.dial(ctx, "tcp", netip.AddrPortFrom(p.Address, p.Listens.TCP))
	if err != nil {
		return nil, unreachable(p, err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	watch := begin()
	_ = c.SetWriteDeadline(watch.at(time.Duration(p.For)))
	if _, err := c.Write(word); err != nil {
		return nil, unreachable(p, err)
	}
	b := make([]byte, 256<<10)
	for watch.took() < time.Duration(p.For) {
		if _, err := c.Write(b); err != nil {
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				break
			}
			return nil, unreachable(p, err)
		}
	}
	return &Result{}, context.Cause(ctx)
}

// datagramSize is that of what a datagram carries: a packet of 1,228 bytes over IPv4 fits
// into every tunnel.
const datagramSize = 1200

// sendDatagrams sends by UDP as fast as the machine can.
func (m Machine) sendDatagrams(ctx context.Context, p Part, word []byte) (*Result, error) {
	c, err := m.dial(ctx, "udp", netip.AddrPortFrom(p.Address, p.Listens.UDP))
	if err != nil {
		return nil, unreachable(p, err)
	}
	defer c.Close()
	b := append(marked(word, 0), make([]byte, datagramSize-wordLength-8)...)
	watch := begin()
	for number := uint64(1); watch.took() < time.Duration(p.For) && ctx.Err() == nil; number++ {
		binary.BigEndian.PutUint64(b[wordLength:], number)
		if _, err := c.Write(b); errors.Is(err, unix.ENOBUFS) { // the device's queue is full
			sleep(ctx, 50*time.Microsecond)
		}
	}
	return &Result{}, context.Cause(ctx)
}

// Round trips: one at a time, and the least time from one to the next.
const (
	echoEvery  = 5 * time.Millisecond
	echoWait   = 500 * time.Millisecond
	echoInVain = 4 // as many without one answer: there will be none
)

// askEach measures round trips, each by ask.
func askEach(ctx context.Context, p Part, ask func(number int) (time.Duration, bool)) (*Result, error) {
	var t Result
	asked := 0
	for ; asked < p.Count && ctx.Err() == nil; asked++ {
		if asked == echoInVain && len(t.RoundTrips) == 0 {
			return nil, unreachable(p, context.DeadlineExceeded)
		}
		watch := begin()
		if took, ok := ask(asked + 1); ok {
			t.RoundTrips = append(t.RoundTrips, onpath.Duration(took))
		}
		sleep(ctx, echoEvery-watch.took())
	}
	if asked > 0 {
		t.Lost = 1 - float64(len(t.RoundTrips))/float64(asked)
	}
	return &t, context.Cause(ctx)
}

// echoUDP asks the trial's receiver.
func (m Machine) echoUDP(ctx context.Context, p Part, word []byte) (*Result, error) {
	c, err := m.dial(ctx, "udp", netip.AddrPortFrom(p.Address, p.Listens.UDP))
	if err != nil {
		return nil, unreachable(p, err)
	}
	defer c.Close()
	answer := make([]byte, 2048)
	return askEach(ctx, p, func(number int) (time.Duration, bool) {
		question, watch := marked(word, uint64(number)), begin()
		if _, err := c.Write(question); err != nil {
			return 0, false
		}
		_ = c.SetReadDeadline(watch.at(echoWait))
		for {
			n, err := c.Read(answer)
			if err != nil {
				return 0, false
			}
			if bytes.Equal(answer[:n], question) {
				return watch.took(), true
			}
		}
	})
}

// echo asks the other machine's kernel.
func (m Machine) echo(ctx context.Context, p Part) (*Result, error) {
	network, local, kind, protocol := "ip4:icmp", "0.0.0.0", icmp.Type(ipv4.ICMPTypeEcho), protocolICMP
	if p.Address.Is6() {
		network, local, kind, protocol = "ip6:ipv6-icmp", "::", ipv6.ICMPTypeEchoRequest, protocolICMPv6
	}
	var c *icmp.PacketConn
	err := netnsrun.Do(m.NetNS, func() (err error) { c, err = icmp.ListenPacket(network, local); return err })
	if err != nil {
		return nil, err
	}
	defer c.Close()
	id, answer := rand.IntN(1<<16), make([]byte, 2048)
	return askEach(ctx, p, func(number int) (time.Duration, bool) {
		b, err := (&icmp.Message{Type: kind, Body: &icmp.Echo{ID: id, Seq: number & 0xffff, Data: make([]byte, 56)}}).Marshal(nil)
		if err != nil {
			return 0, false
		}
		watch := begin()
		if _, err := c.WriteTo(b, &net.IPAddr{IP: p.Address.AsSlice()}); err != nil {
			return 0, false
		}
		_ = c.SetReadDeadline(watch.at(echoWait))
		for {
			n, _, err := c.ReadFrom(answer)
			if err != nil {
				return 0, false
			}
			if answers(answer[:n], protocol, id, number) {
				return watch.took(), true
			}
		}
	})
}

// answers reports whether an ICMP message is the answer to an echo request.
func answers(b []byte, protocol, id, number int) bool {
	m, err := icmp.ParseMessage(protocol, b)
	if err != nil || m.Type != ipv4.ICMPTypeEchoReply && m.Type != ipv6.ICMPTypeEchoReply {
		return false
	}
	e, ok := m.Body.(*icmp.Echo)
	return ok && e.ID == id && e.Seq == number&0xffff
}
