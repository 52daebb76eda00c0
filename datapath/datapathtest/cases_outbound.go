package datapathtest

import (
	"net/netip"

	"github.com/onpath/onpath"
)

// outbound: what an instance sends from its own address and no chain selects
// leaves at its entry, translated if the address is private, or not at all.
func outbound(b *testbed) {
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
			if got.SrcPort < 32768 || got.SrcPort >= 32768+24576 {
				b.t.Errorf("%v left from port %d, which is not reserved for translations", t, got.SrcPort)
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

// outboundForged: a RST or FIN whose number does not fit ends nothing that an instance of this
// node or of another one began, so that a SYN behind it goes the connection's way.
func outboundForged(b *testbed) {
	fw, here, there := b.instance("fw", gateway), b.instance("here", gateway), b.instance("there", "n2")
	l := one(&chain{path: 1, match: web()}, fw)
	for n, is := range []*instance{here, there} {
		is.own, is.routes = []netip.Addr{netip.AddrFrom4([4]byte{100, 64, 0, byte(9 + n)})}, true
		l.instances = append(l.instances, is)
	}
	l.nat = []netip.Prefix{netip.MustParsePrefix("100.64.0.0/10")}
	b.apply(l)
	for _, is := range []*instance{here, there} {
		device, t := onpath.DeviceName(is.vport), tuple(tcp, is.own[0], 2000, server, 9)
		var outside onpath.Tuple
		inside := func(flags uint8, seq, acked uint32) {
			p := newPacket(t)
			p.flags, p.seq, p.ack = flags, seq, acked
			b.send(is.node, device, p.bytes())
			f := b.receive(gateway, serverNet)
			add(&b.want(gateway, edgeVport).Out, f.Packet)
			outside = tupleOf(f.Packet)
		}
		answer := func(flags uint8, seq uint32) packet {
			p := newPacket(outside.Reverse())
			p.flags, p.seq, p.ack = flags, seq, 1001
			b.send(gateway, serverNet, p.bytes())
			p.tuple = t.Reverse()
			return p
		}
		arrives := func(flags uint8, seq uint32) {
			b.t.Helper()
			b.expect(is.node, device, answer(flags, seq).bytes())
		}
		const begins = 1<<30 + 12345
		inside(syn, 1000, 0)
		arrives(syn|ack, begins)
		for n := range uint32(3) {
			inside(ack, 1001, begins+1+n)
			arrives(ack, begins+1+n)
		}
		for _, off := range []uint32{1 << 23, 1 << 31, 1<<32 - 1<<23} {
			arrives(rst, begins+off)
			arrives(syn, begins)
			arrives(fin|ack, begins+off)
			arrives(syn, begins)
		}
	}
}

// outboundBig: what an instance of another node sends of itself, and its answers, must fit
// the tunnel, which no path says.
func outboundBig(b *testbed) {
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
func outboundErrors(b *testbed) {
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
func (b *testbed) quotes(n int, e []byte, from, to netip.Addr, t onpath.Tuple) {
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
