package node

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/onpath/onpath/internal/netnsrun"
)

// probeEvery is the time between two echo requests to a peer's machine;
// probeMissed of them in a row without an answer make it unreachable.
const (
	probeEvery  = time.Second
	probeMissed = 3
)

// peers knows which other nodes' machines answer on the underlay. It speaks for
// those whose data path has never answered (reach.go): of an older version, or
// without one yet.
type peers struct {
	mu     sync.Mutex
	missed map[netip.Addr]int // echo requests since the last answer
}

// unreachable are the names of the plan's peers that do not answer, by their
// data path or, if that never did, by their machine. Callers
// hold a.mu.
func (a *Agent) unreachable() (names []string) {
	if a.plan == nil {
		return nil
	}
	a.peers.mu.Lock()
	defer a.peers.mu.Unlock()
	for _, p := range a.plan.Datapath.Peers {
		lost, known := a.reach.verdict(p.Address)
		if lost || !known && a.peers.missed[p.Address] > probeMissed {
			names = append(names, p.Node)
		}
	}
	slices.Sort(names)
	return names
}

// watchPeers sends echo requests to the machines of all peers. A machine where
// that is not possible reports nobody as unreachable.
func (a *Agent) watchPeers(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	conns := map[bool]*icmp.PacketConn{}
	for _, v4 := range []bool{true, false} {
		c, err := a.listenICMP(v4)
		if err != nil {
			a.log.Warn("peers cannot be probed", "ipv4", v4, "err", err)
			continue
		}
		conns[v4] = c
		context.AfterFunc(ctx, func() { c.Close() })
		wg.Go(func() { a.hearPeers(c, v4) })
	}
	for seq := 1; a.clock.Sleep(ctx, probeEvery) == nil; seq++ {
		a.echoPeers(conns, seq)
	}
}

func (a *Agent) listenICMP(v4 bool) (c *icmp.PacketConn, err error) {
	network, address := "ip6:ipv6-icmp", "::"
	if v4 {
		network, address = "ip4:icmp", "0.0.0.0"
	}
	err = netnsrun.Do(a.opt.NetNS, func() error {
		c, err = icmp.ListenPacket(network, address)
		return err
	})
	return c, err
}

func (a *Agent) echoPeers(conns map[bool]*icmp.PacketConn, seq int) {
	a.mu.Lock()
	var targets []netip.Addr
	if a.plan != nil {
		for _, p := range a.plan.Datapath.Peers {
			targets = append(targets, p.Address)
		}
	}
	a.mu.Unlock()
	for _, to := range targets {
		c := conns[to.Is4()]
		if c == nil {
			continue
		}
		m := icmp.Message{Type: ipv6.ICMPTypeEchoRequest, Body: &icmp.Echo{ID: os.Getpid() & 0xffff, Seq: seq & 0xffff}}
		if to.Is4() {
			m.Type = ipv4.ICMPTypeEcho
		}
		b, err := m.Marshal(nil)
		if err != nil {
			continue // cannot be: the message is complete
		}
		a.peers.count(to)
		_, _ = c.WriteTo(b, &net.IPAddr{IP: to.AsSlice()}) // an unreachable network counts as no answer
	}
	a.peers.keep(targets)
}

// hearPeers notes who answers, until the socket is closed.
func (a *Agent) hearPeers(c *icmp.PacketConn, v4 bool) {
	protocol := 58
	if v4 {
		protocol = 1
	}
	b := make([]byte, 1500)
	for {
		n, from, err := c.ReadFrom(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		m, err := icmp.ParseMessage(protocol, b[:n])
		if err != nil || m.Type != ipv4.ICMPTypeEchoReply && m.Type != ipv6.ICMPTypeEchoReply {
			continue
		}
		if ip, ok := from.(*net.IPAddr); ok {
			if addr, ok := netip.AddrFromSlice(ip.IP); ok {
				a.peers.answered(addr.Unmap())
			}
		}
	}
}

func (p *peers) count(a netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.missed == nil {
		p.missed = map[netip.Addr]int{}
	}
	p.missed[a]++
}

func (p *peers) answered(a netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.missed[a]; ok {
		p.missed[a] = 0
	}
}

// keep forgets all but these.
func (p *peers) keep(addrs []netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for a := range p.missed {
		if !slices.Contains(addrs, a) {
			delete(p.missed, a)
		}
	}
}
