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
func (b *bed) drops(node string, reason onpath.DropReason) uint64 {
	var n uint64
	for _, v := range b.counters(node).Vports {
		n += v.Dropped[reason]
	}
	return n
}

// tunnels: packets are taken only from known nodes, with the pair's secret, for
// vports that are here, and only on the underlay.
func tunnels(b *bed) {
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
func (b *bed) eventually(what string, ok func() bool) {
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
func quota(b *bed) {
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

// outbound: what an instance sends from its own address and no chain selects
// leaves at its entry, translated if the address is private, or not at all.
func outbound(b *bed) {
	pool, private := netip.MustParseAddr("10.1.200.1"), netip.MustParseAddr("100.64.0.9")
	fw, speaks, mute := b.instance("fw", gateway), b.instance("speaks", "n2"), b.instance("mute", gateway)
	speaks.own, speaks.routes = []netip.Addr{pool, private}, true
	mute.own = []netip.Addr{private}
	l := one(&chain{path: 1, match: web()}, fw)
	l.instances = append(l.instances, speaks, mute)
	l.nat = []netip.Prefix{netip.MustParsePrefix("100.64.0.0/10")}
	b.apply(l)
	device := onpath.DeviceName(speaks.vport)
	t := tuple(udp, pool, 1000, server, 9)
	b.send("n2", device, newPacket(t).bytes())
	b.expect(gateway, serverNet, withTTL(newPacket(t).bytes(), 1))
	b.send(gateway, serverNet, newPacket(t.Reverse()).bytes())
	b.expect("n2", device, newPacket(t.Reverse()).bytes())

	outside := b.nodes[gateway].spec.Uplinks[1].Addresses[0].Addr()
	seen := map[onpath.Tuple]bool{}
	for n, protocol := range []uint8{udp, tcp, icmp} {
		t := tuple(protocol, private, 2000, server, 9)
		if protocol == icmp {
			t.DstPort = t.SrcPort
		}
		for range 2 {
			p := newPacket(t).bytes()
			b.send("n2", device, p)
			f := b.receive(gateway, serverNet)
			add(&b.want(gateway, edgeVport).Out, f.Packet)
			got := tupleOf(f.Packet)
			if err := checksums(f.Packet); err != nil || got.Src != outside || got.Dst != server {
				b.t.Fatalf("%v left as %v (%v), must come from %s", t, got, err, outside)
			}
			seen[got] = true
			r := newPacket(got.Reverse())
			want := newPacket(t.Reverse())
			if protocol == icmp {
				r.flags, want.flags = echoReply, echoReply
			}
			add(&b.want(gateway, edgeVport).In, r.bytes())
			b.h.Send(gateway, serverNet, Frame{Packet: r.bytes()})
			b.expect("n2", device, want.bytes())
		}
		if len(seen) != n+1 {
			b.t.Errorf("the translation of %v changed in mid-flow: %v", t, seen)
		}
	}
	b.send(gateway, onpath.DeviceName(mute.vport), newPacket(tuple(udp, private, 1, server, 9)).bytes())
	b.dropped(gateway, onpath.DeviceName(mute.vport), onpath.DropSpoofed)
}

// outboundBig: what an instance of another node sends of itself, and its answers, must fit
// the tunnel, which no path says.
func outboundBig(b *bed) {
	own, own6, private := netip.MustParseAddr("10.1.200.1"), netip.MustParseAddr("2001:db8:1::200"), netip.MustParseAddr("100.64.0.9")
	fw, speaks := b.instance("fw", gateway), b.instance("speaks", "n2")
	speaks.own, speaks.routes = []netip.Addr{own, own6, private}, true
	l := one(&chain{path: 1, match: web()}, fw)
	l.instances, l.tunnelMTU = append(l.instances, speaks), 1450
	l.nat = []netip.Prefix{netip.MustParsePrefix("100.64.0.0/10")}
	b.apply(l)
	device := onpath.DeviceName(speaks.vport)
	b.nodes[gateway].loose[edgeVport], b.nodes["n2"].loose[speaks.vport] = true, true
	for n, t := range []onpath.Tuple{tuple(udp, own, 1000, server, 9), tuple(udp, own6, 1000, server6, 9), tuple(udp, private, 1001, server, 9)} {
		head := []int{28, 48, 28}[n]
		p := newPacket(t)
		p.payload = make([]byte, 1401-head)
		b.send("n2", device, p.bytes())
		b.dropped("n2", device, onpath.DropTooBig)
		b.isTooBigAt("n2", device, p.bytes(), 1400)
		p.payload = make([]byte, 1400-head)
		b.send("n2", device, p.bytes())
		left := b.receive(gateway, serverNet).Packet
		if len(left) != 1400 {
			b.t.Errorf("of %v came %d bytes", t, len(left))
		}
		p = newPacket(tupleOf(left).Reverse())
		p.payload = make([]byte, 1401-head)
		b.send(gateway, serverNet, p.bytes())
		b.dropped(gateway, serverNet, onpath.DropTooBig)
		b.isTooBig(serverNet, p.bytes(), 1400)
	}
	p := newPacket(tuple(tcp, own, 1002, server, 9))
	p.mss = 1460
	b.send("n2", device, p.bytes())
	p.mss = 1360
	b.expect(gateway, serverNet, withTTL(p.bytes(), 1))
}

// outboundErrors: ICMP errors about translated flows are translated both ways, by IPv4 and
// IPv6; and nothing private is let out, whatever an error is about.
func outboundErrors(b *bed) {
	private, private6, hop, hop6 := netip.MustParseAddr("100.64.0.9"), netip.MustParseAddr("fd64::9"), netip.MustParseAddr("100.64.0.10"), netip.MustParseAddr("fd64::10")
	speaks, fw, proxy := b.instance("speaks", "n2"), b.instance("fw", gateway), b.instance("proxy", gateway)
	speaks.own, speaks.routes = []netip.Addr{private, private6}, true
	fw.own, fw.routes = []netip.Addr{hop, hop6}, true
	proxied := netip.MustParseAddr("100.64.0.11")
	m := web()
	m.Protocol = []uint8{tcp}
	proxy.packets, proxy.own, proxy.routes = onpath.PacketsOriginate, []netip.Addr{proxied}, true
	proxy.emits = []emission{{path: 2, element: 0, match: m}}
	dns := toServer()
	dns.Protocol = []uint8{udp}
	l := &layout{instances: []*instance{speaks, fw, proxy}, chains: []*chain{
		{path: 1, match: dns, elements: []*element{{instances: []*instance{fw}}}},
		{path: 2, match: m, mtu: 1400, elements: []*element{{instances: []*instance{proxy}}}},
	}}
	l.nat = []netip.Prefix{netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("fd64::/64")}
	b.apply(l)
	device := onpath.DeviceName(speaks.vport)
	up := b.nodes[gateway].spec.Uplinks
	for n, t := range []onpath.Tuple{
		tuple(udp, private, 2000, beyond, 9), tuple(tcp, private, 2001, beyond, 9), tuple(icmp, private, 2002, beyond, 2002),
		tuple(udp, private6, 2000, beyond6, 9), tuple(tcp, private6, 2001, beyond6, 9), tuple(icmpv6, private6, 2002, beyond6, 2002),
	} {
		router, outside, kinds := server, up[1].Addresses[0].Addr(), [][2]byte{{3, 4}, {11, 0}, {3, 3}}
		if t.Src.Is6() {
			router, outside, kinds = server6, up[1].Addresses[1].Addr(), [][2]byte{{2, 0}, {3, 0}, {1, 4}}
		}
		p := newPacket(t).bytes()
		b.send("n2", device, p)
		left := b.receive(gateway, serverNet).Packet
		add(&b.want(gateway, edgeVport).Out, left)
		for _, kind := range kinds[:2] { // in, from a router on the way
			b.send(gateway, serverNet, icmpError(router, kind[0], kind[1], left).bytes())
			got := b.receive("n2", device).Packet
			add(&b.want("n2", speaks.vport).Out, got)
			b.quotes(n, got, router, t.Src, t)
		}
		back := answerTo(t)
		back.tuple = tupleOf(left).Reverse()
		b.send(gateway, serverNet, back.bytes())
		answer := b.receive("n2", device).Packet
		add(&b.want("n2", speaks.vport).Out, answer)
		e := icmpError(t.Src, kinds[2][0], kinds[2][1], answer) // out, about the answer
		b.send("n2", device, e.bytes())
		got := b.receive(gateway, serverNet).Packet
		add(&b.want(gateway, edgeVport).Out, got)
		b.quotes(n, got, outside, t.Dst, tupleOf(left).Reverse())
	}
	// A routed instance on the way of others, with a private address of its own.
	for _, v := range []struct {
		t            onpath.Tuple
		own, outside netip.Addr
		kind         byte
	}{{udp4(1), hop, up[0].Addresses[0].Addr(), 11}, {tuple(udp, client6, 1, server6, 53), hop6, up[0].Addresses[1].Addr(), 3}} {
		p := newPacket(v.t).bytes()
		b.send(gateway, clientNet, p)
		b.expect(gateway, onpath.DeviceName(fw.vport), p)
		b.send(gateway, onpath.DeviceName(fw.vport), icmpError(v.own, v.kind, 0, p).bytes())
		got := b.receive(gateway, clientNet).Packet
		add(&b.want(gateway, edgeVport).Out, got)
		b.quotes(9, got, v.outside, v.t.Src, v.t)
	}
	// What the data path itself says of a translated answer.
	t := tuple(tcp, proxied, 3000, server, 80)
	b.send(gateway, onpath.DeviceName(proxy.vport), newPacket(t).bytes())
	left := b.receive(gateway, serverNet).Packet
	add(&b.want(gateway, edgeVport).Out, left)
	big := newPacket(tupleOf(left).Reverse())
	big.flags, big.payload = ack, make([]byte, 1400)
	b.send(gateway, serverNet, big.bytes())
	b.dropped(gateway, serverNet, onpath.DropTooBig)
	b.nodes[gateway].loose[edgeVport] = true
	b.isTooBig(serverNet, big.bytes(), 1400)
}

// quotes checks that an ICMP error goes from one address to another, is about a packet of
// t, and is whole.
func (b *bed) quotes(n int, e []byte, from, to netip.Addr, t onpath.Tuple) {
	b.t.Helper()
	if err := checksums(e); err != nil {
		b.t.Errorf("the error about flow %d: %v", n, err)
	}
	src, dst := addresses(e)
	_, l4 := transportOf(e)
	if got := tupleOf(l4[8:]); src != from || dst != to || got != t {
		b.t.Errorf("the error about flow %d goes from %s to %s and quotes %v, must go from %s to %s and quote %v", n, src, dst, got, from, to, t)
	}
}

// reapply: the same configuration changes nothing; another replaces it whole,
// and running flows go on.
func reapply(b *bed) {
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
func refusals(b *bed) {
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
func outOfStep(b *bed) {
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
func removal(b *bed) {
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
func restart(b *bed) {
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
func capture(b *bed) {
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

func (b *bed) readCapture(file []byte, want onpath.Tuple, n int) {
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
func (b *bed) captureEnds() {
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
