package datapathtest

import (
	"bytes"
	"context"
	"net/netip"
	"reflect"
	"sync"
	"time"

	"github.com/gopacket/gopacket/pcapgo"
	"github.com/onpath/onpath"
)

// drops sums a reason over all vports of a node, known or not.
func (b *testbed) drops(node string, reason onpath.DropReason) uint64 {
	var n uint64
	for _, v := range b.counters(node).Vports {
		n += v.Dropped[reason]
	}
	return n
}

// tunnels: packets are taken only from known nodes, with the pair's secret, for
// vports that are here, and only on the underlay.
func tunnels(b *testbed) {
	fw := b.instance("fw", "n2")
	b.apply(one(&chain{path: 1, match: toServer()}, fw))
	from := b.nodes[gateway].spec.Underlay.Addr()
	good := TunnelPacket{
		From: from, Secret: secret(gateway, "n2"), Next: fw.vport, Prev: edgeVport, Entry: edgeVport,
		Group: onpath.GroupOf(1, 0, false), Packet: newPacket(udp4(1)).bytes(),
	}
	b.h.SendTunnel("n2", good)
	b.expect("n2", onpath.DeviceName(fw.vport), good.Packet)
	b.leads("n2", fw.vport, udp4(1).Reverse(), onpath.NextVport, edgeVport)
	for _, bad := range []struct {
		reason onpath.DropReason
		change func(*TunnelPacket)
	}{
		{onpath.DropTunnelSource, func(p *TunnelPacket) { p.From = netip.MustParseAddr("10.255.0.77") }},
		{onpath.DropTunnelSecret, func(p *TunnelPacket) { p.Secret ^= 2 }},
		{onpath.DropTunnelSecret, func(p *TunnelPacket) { p.Secret = secret(gateway, sideNode) }},
		{onpath.DropUnknownVport, func(p *TunnelPacket) { p.Next = 4242 }},
	} {
		p, before := good, b.drops("n2", bad.reason)
		p.Packet = newPacket(udp4(2)).bytes()
		bad.change(&p)
		b.h.SendTunnel("n2", p)
		b.eventually("a drop as "+string(bad.reason), func() bool { return b.drops("n2", bad.reason) == before+1 })
	}
	if _, ok := b.entry("n2", fw.vport, udp4(2).Reverse()); ok {
		b.t.Error("a refused tunnel packet wrote an entry")
	}
	// The same port on an uplink, towards this node.
	before := b.drops(gateway, onpath.DropTunnelSource)
	at := b.nodes[gateway].spec.Uplinks[0].Addresses[0].Addr()
	b.send(gateway, clientNet, newPacket(tuple(udp, client, 5, at, onpath.DefaultTunnelPort)).bytes())
	b.dropped(gateway, clientNet, onpath.DropTunnelSource)
	b.eventually("a drop at the uplink", func() bool { return b.drops(gateway, onpath.DropTunnelSource) == before+1 })
	b.nodes[gateway].looseIn = true // whether such a packet came in is a matter of taste
	// And out of an instance, towards a peer.
	device := onpath.DeviceName(fw.vport)
	b.send("n2", device, newPacket(tuple(udp, client, 5, from, onpath.DefaultTunnelPort)).bytes())
	b.dropped("n2", device, onpath.DropTunnelSource)
}

// eventually waits for a counter.
func (b *testbed) eventually(what string, ok func() bool) {
	b.t.Helper()
	for until := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
		if time.Now().After(until) {
			b.t.Fatalf("there was not %s", what)
		}
	}
}

// quota: what a tenant's instances may cause is limited; other flows are not.
func quota(b *testbed) {
	own := netip.MustParseAddr("10.1.200.1")
	flooder, fw := b.instance("flooder", gateway), b.instance("fw", gateway)
	flooder.packets, flooder.own, flooder.routes, flooder.maxFlows = onpath.PacketsOriginate, []netip.Addr{own}, true, 8
	b.apply(&layout{instances: []*instance{flooder, fw}, chains: []*chain{
		{path: 1, match: web(), elements: []*element{{instances: []*instance{fw}}}},
	}})
	device := onpath.DeviceName(flooder.vport)
	for n := range uint16(8) {
		p := newPacket(tuple(udp, own, n+1, server, 9)).bytes()
		b.send(gateway, device, p)
		b.expect(gateway, serverNet, withTTL(p, 1))
	}
	for n := range uint16(20) {
		b.send(gateway, device, newPacket(tuple(udp, own, n+100, server, 9)).bytes())
		b.dropped(gateway, device, onpath.DropQuota)
	}
	p := newPacket(tuple(udp, own, 1, server, 9)).bytes()
	b.send(gateway, device, p)
	b.expect(gateway, serverNet, withTTL(p, 1))
	b.forward(tcp4(1), fw)
}

// reapply: the same configuration changes nothing; another replaces it whole,
// and running flows go on.
func reapply(b *testbed) {
	fw, br := b.instance("fw", gateway), b.bridged("br", "n2")
	l := one(&chain{path: 1, match: toServer()}, fw, br)
	b.apply(l)
	b.forward(tcp4(1), fw, br)
	b.backward(tcp4(1), br, fw)
	counters, flows := b.counters(gateway), len(b.flows(gateway, onpath.FlowFilter{}))
	for range 3 {
		b.apply(l)
	}
	after := b.counters(gateway)
	if !reflect.DeepEqual(counters.Vports, after.Vports) || counters.Learned != after.Learned {
		b.t.Errorf("applying the same again changed counters from %+v to %+v", counters, after)
	}
	if got := len(b.flows(gateway, onpath.FlowFilter{})); got != flows {
		b.t.Errorf("applying the same again changed %d entries to %d", flows, got)
	}
	b.forward(tcp4(1), fw, br)

	// Rules go first: running flows keep their instances, new ones are nobody's.
	l.chains[0].ended = true
	b.apply(l)
	b.forward(tcp4(1), fw, br)
	b.backward(tcp4(1), br, fw)
	b.untouched(clientNet, newPacket(tcp4(2)).bytes(), serverNet)

	// The driver keeps no pointer into what it was given.
	l.chains[0].ended = false
	b.apply(l)
	for _, c := range b.configs {
		for i := range c.Tables {
			clear(c.Tables[i].Rules)
		}
		clear(c.Groups)
	}
	b.forward(tcp4(3), fw, br)
}

// refusals: a configuration that contradicts itself is refused, and the one
// before stays in force.
func refusals(b *testbed) {
	fw := b.instance("fw", gateway)
	l := one(&chain{path: 1, match: toServer()}, fw)
	b.apply(l)
	for what, spoil := range map[string]func(*onpath.DatapathConfig){
		"two vports of one id":   func(c *onpath.DatapathConfig) { c.Vports = append(c.Vports, c.Vports[len(c.Vports)-1]) },
		"a vport of no kind":     func(c *onpath.DatapathConfig) { c.Vports[len(c.Vports)-1].Kind = "tap" },
		"a vport without a peer": func(c *onpath.DatapathConfig) { c.Peers = nil },
		"a vport of 25 bits":     func(c *onpath.DatapathConfig) { c.Vports[len(c.Vports)-1].ID = 1 << 24 },
		"two tables of one id":   func(c *onpath.DatapathConfig) { c.Tables = append(c.Tables, c.Tables[0]) },
		"an unknown action":      func(c *onpath.DatapathConfig) { c.Tables[0].Miss.Kind = "shrug" },
		"a group of id 0":        func(c *onpath.DatapathConfig) { c.Groups[0].ID = 0 },
	} {
		c := b.config(gateway, l)
		c.Generation++
		for i := range c.Groups {
			c.Groups[i].Members = nil // would show if any of it came into force
		}
		spoil(c)
		if err := b.nodes[gateway].dp.Apply(b.t.Context(), c); err == nil {
			b.t.Errorf("a configuration with %s was accepted", what)
		} else if onpath.CodeOf(err) != onpath.CodeInvalid {
			b.t.Errorf("a configuration with %s gives %q (%v), must be %q", what, onpath.CodeOf(err), err, onpath.CodeInvalid)
		}
	}
	b.forward(tcp4(1), fw)
	b.backward(tcp4(1), fw)
}

// outOfStep: a table or group that is missing, and a table that leads to itself.
func outOfStep(b *testbed) {
	fw := b.instance("fw", gateway)
	l := one(&chain{path: 1, match: toServer()}, fw)
	b.apply(l)
	for _, x := range []struct {
		reason onpath.DropReason
		spoil  func(*onpath.DatapathConfig)
	}{
		{onpath.DropNoTable, func(c *onpath.DatapathConfig) { c.Groups = nil }},
		{onpath.DropLoop, func(c *onpath.DatapathConfig) {
			c.Tables[1].Rules[0].Action = onpath.Action{Kind: onpath.ActionTable, Table: c.Tables[1].ID}
		}},
		{onpath.DropPolicy, func(c *onpath.DatapathConfig) {
			c.Tables[1].Rules[0].Action = onpath.Action{Kind: onpath.ActionDrop, Reason: onpath.DropPolicy}
		}},
	} {
		c := b.config(gateway, l)
		x.spoil(c)
		if err := b.nodes[gateway].dp.Apply(b.t.Context(), c); err != nil {
			b.t.Fatalf("Apply: %v", err)
		}
		b.send(gateway, clientNet, newPacket(udp4(1)).bytes())
		b.dropped(gateway, clientNet, x.reason)
		b.quiet()
	}
	b.apply(l)
	b.forward(udp4(1), fw)
}

// removal: after Remove traffic is ordinary and nothing is left; a new
// configuration begins anew.
func removal(b *testbed) {
	fw := b.instance("fw", gateway)
	l := one(&chain{path: 1, match: toServer()}, fw)
	b.apply(l)
	b.forward(udp4(1), fw)
	b.remove()
	b.untouched(clientNet, newPacket(udp4(1)).bytes(), serverNet)
	b.untouched(serverNet, answerTo(udp4(1)).bytes(), clientNet)
	if !b.reopen() {
		return
	}
	b.noEntries()
	b.remove() // nothing there is no error
	b.reopen()
	b.apply(l)
	b.forward(udp4(1), fw)
}

// restart: after Close packets take their way as before; the next agent takes
// over entries and counters.
func restart(b *testbed) {
	r, ok := b.h.(Reopener)
	if !ok {
		b.t.Skip("the harness lacks Reopen")
	}
	fw, br := b.instance("fw", gateway), b.bridged("br", "n2")
	l := one(&chain{path: 1, match: toServer()}, fw, br)
	b.apply(l)
	b.forward(tcp4(1), fw, br)
	for _, name := range b.joined() {
		if err := b.nodes[name].dp.Close(); err != nil {
			b.t.Fatalf("Close on %s: %v", name, err)
		}
	}
	b.backward(tcp4(1), br, fw)
	b.forward(tcp4(2), fw, br)
	for _, name := range b.joined() {
		b.nodes[name].dp = r.Reopen(name)
	}
	b.backward(tcp4(2), br, fw)
	b.leads(gateway, edgeVport, tcp4(1), onpath.NextVport, fw.vport)
	b.apply(l)
	b.forward(tcp4(1), fw, br)
	b.forward(tcp4(3), fw, br)
}

// capture writes what passes a vport as pcapng, and stops by count or context.
func capture(b *testbed) {
	fw := b.instance("fw", gateway)
	b.apply(one(&chain{path: 1, match: toServer()}, fw))
	wanted := udp4(7)
	var file bytes.Buffer
	done := make(chan error, 1)
	go func() {
		done <- b.nodes[gateway].dp.Capture(b.t.Context(), onpath.CaptureSpec{Vport: fw.vport, Count: 4, Tuple: &wanted}, &file)
	}()
	for {
		b.forward(udp4(8), fw) // another tuple
		b.forward(wanted, fw)
		select {
		case err := <-done:
			if err != nil {
				b.t.Fatalf("Capture: %v", err)
			}
			b.readCapture(file.Bytes(), wanted, 4)
			b.captureEnds()
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (b *testbed) readCapture(file []byte, want onpath.Tuple, n int) {
	b.t.Helper()
	r, err := pcapgo.NewNgReader(bytes.NewReader(file), pcapgo.DefaultNgReaderOptions)
	if err != nil {
		b.t.Fatalf("the capture is no pcapng: %v", err)
	}
	for range n {
		data, info, err := r.ReadPacketData()
		if err != nil {
			b.t.Fatalf("the capture ends early: %v", err)
		}
		if r.LinkType() == 1 { // Ethernet
			data = data[14:]
		}
		if got := tupleOf(data); got != want || info.Length < len(data) {
			b.t.Errorf("captured %v, %d of %d bytes, must be %v", got, len(data), info.Length, want)
		}
	}
	if _, _, err := r.ReadPacketData(); err == nil {
		b.t.Error("the capture holds more packets than were asked for")
	}
}

// captureEnds: ending the context ends a capture without error.
func (b *testbed) captureEnds() {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	var file safeBuffer
	done := make(chan error, 1)
	go func() {
		done <- b.nodes[gateway].dp.Capture(ctx, onpath.CaptureSpec{Vport: edgeVport}, &file)
	}()
	for until := time.Now().Add(patience); file.size() == 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(until) {
			b.t.Fatal("a capture wrote nothing")
		}
		b.h.Send(gateway, clientNet, Frame{Packet: newPacket(udp4(9)).bytes()})
	}
	b.drain()
	b.skipBooks()
	cancel()
	select {
	case err := <-done:
		if err != nil {
			b.t.Errorf("Capture: %v when its context ended", err)
		}
	case <-time.After(patience):
		b.t.Error("Capture goes on when its context has ended")
	}
	err := b.nodes[gateway].dp.Capture(b.t.Context(), onpath.CaptureSpec{Vport: 4242, Count: 1}, &file)
	if err == nil {
		b.t.Error("Capture at a vport that is not there succeeded")
	}
}

type safeBuffer struct {
	mu sync.Mutex
	n  int
}

func (s *safeBuffer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n += len(b)
	return len(b), nil
}

func (s *safeBuffer) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}
