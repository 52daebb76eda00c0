package peers

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

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/node/base"
)

// probeEvery is the time between two echo requests to a peer's machine;
// probeMissed of them in a row without an answer make it unreachable.
const (
	probeEvery  = time.Second
	probeMissed = 3
)

// echo knows which other nodes' machines answer on the underlay. It speaks for those
// whose data path has never answered the detector: of an older version, or without one
// yet.
type echo struct {
	part     *base.Part
	detector *detector
	mu       sync.Mutex
	plan     *onpath.NodePlan
	missed   map[netip.Addr]int // echo requests since the last answer
}

// unreachable are the names of the plan's peers that do not answer, by their data path
// or, if that never did, by their machine.
func (e *echo) unreachable() (names []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.plan == nil {
		return nil
	}
	for _, p := range e.plan.Datapath.Peers {
		lost, known := e.detector.verdict(p.Address)
		if lost || !known && e.missed[p.Address] > probeMissed {
			names = append(names, p.Node)
		}
	}
	slices.Sort(names)
	return names
}

// follow takes up a plan.
func (e *echo) follow(p *onpath.NodePlan) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.plan = p
}

// run sends echo requests to the machines of these peers. A machine where
// that is not possible reports nobody as unreachable.
func (e *echo) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	conns := map[bool]*icmp.PacketConn{}
	for _, v4 := range []bool{true, false} {
		c, err := e.listen(v4)
		if err != nil {
			e.part.Log.Warn("peers cannot be probed", "ipv4", v4, "err", err)
			continue
		}
		conns[v4] = c
		context.AfterFunc(ctx, func() { c.Close() })
		wg.Go(func() { e.hear(c, v4) })
	}
	for seq := 1; e.part.Clock.Sleep(ctx, probeEvery) == nil; seq++ {
		e.ask(conns, seq)
	}
}

func (e *echo) listen(v4 bool) (c *icmp.PacketConn, err error) {
	network, address := "ip6:ipv6-icmp", "::"
	if v4 {
		network, address = "ip4:icmp", "0.0.0.0"
	}
	err = netnsrun.Do(e.part.NetNS, func() error {
		c, err = icmp.ListenPacket(network, address)
		return err
	})
	return c, err
}

func (e *echo) ask(conns map[bool]*icmp.PacketConn, seq int) {
	var targets []netip.Addr
	e.mu.Lock()
	plan := e.plan
	e.mu.Unlock()
	if plan != nil {
		for _, p := range plan.Datapath.Peers {
			if _, known := e.detector.verdict(p.Address); !known {
				targets = append(targets, p.Address)
			}
		}
	}
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
		e.count(to)
		_, _ = c.WriteTo(b, &net.IPAddr{IP: to.AsSlice()}) // an unreachable network counts as no answer
	}
	e.keep(targets)
}

// hear notes who answers, until the socket is closed.
func (e *echo) hear(c *icmp.PacketConn, v4 bool) {
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
				e.answered(addr.Unmap())
			}
		}
	}
}

func (e *echo) count(a netip.Addr) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.missed == nil {
		e.missed = map[netip.Addr]int{}
	}
	e.missed[a]++
}

func (e *echo) answered(a netip.Addr) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.missed[a]; ok {
		e.missed[a] = 0
	}
}

// keep forgets all but these.
func (e *echo) keep(addrs []netip.Addr) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for a := range e.missed {
		if !slices.Contains(addrs, a) {
			delete(e.missed, a)
		}
	}
}
