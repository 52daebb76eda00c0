package datapathtest

import (
	"encoding/binary"
	"net/netip"

	"github.com/onpath/onpath"
)

// inline makes an instance of the exam's ebpf function.
func (b *testbed) inline(name, node string) *instance {
	b.t.Helper()
	i := &instance{name: name, node: node, vport: b.next, key: uint32(b.next), weight: 1, state: onpath.VportUp}
	b.next++
	b.join(node)
	f := b.h.Function(node, i.vport)
	i.inline = &f
	return i
}

// runs notes that the functions were given p one after the other and passed it on;
// it gives p as it came out. The way from to is forward.
func (b *testbed) runs(p []byte, reverse bool, fs ...*instance) []byte {
	for _, f := range fs {
		add(&b.want(f.node, f.vport).Out, p)
		add(&b.want(f.node, f.vport).In, p)
		a := ExamFunction(f.vport, tupleOf(p), reverse, dscpOf(p))
		if a.DSCP != nil {
			p = withDSCP(p, *a.DSCP)
		}
	}
	return p
}

func dscpOf(p []byte) uint8 {
	if p[0]>>4 == 6 {
		return p[0]&15<<2 | p[1]>>6
	}
	return p[1] >> 2
}

func withDSCP(p []byte, d uint8) []byte {
	p = append([]byte(nil), p...)
	if p[0]>>4 == 6 {
		p[0], p[1] = p[0]&0xf0|d>>2, p[1]&0x3f|d<<6
		return p
	}
	p[1] = p[1]&3 | d<<2
	p[10], p[11] = 0, 0
	binary.BigEndian.PutUint16(p[10:], ^sum(0, p[:20]))
	return p
}

// scribbled is of a flow about which each function tells the next what is not so, if it can.
func scribbled(src, dst netip.Addr, port uint16) onpath.Tuple {
	return tuple(udp, src, port, dst, scribbledPort)
}

func stamped(src, dst netip.Addr, port uint16) onpath.Tuple {
	return tuple(udp, src, port, dst, stampedPort)
}

// turn is a packet of a flow's nth turn, or the answer to it: a connection's first turn is
// its handshake.
func turn(t onpath.Tuple, n int, answers bool) packet {
	p := newPacket(t)
	if answers {
		p = answerTo(t.Reverse())
	}
	if t.Protocol != tcp {
		return p
	}
	there, back := uint32(1000), uint32(5000)
	switch {
	case n == 0 && answers:
		p.flags, p.seq, p.ack = syn|ack, back, there+1
	case answers:
		p.flags, p.seq, p.ack = ack, back+1, there+1
	case n > 0:
		p.flags, p.seq, p.ack = ack, there+1, back+1
	}
	return p
}

// acrossFunctions takes the nth packet of t and its answer through functions alone.
func (b *testbed) acrossFunctions(t onpath.Tuple, n int, fs ...*instance) {
	b.t.Helper()
	p := turn(t, n, false).bytes()
	b.send(gateway, clientNet, p)
	b.expect(gateway, serverNet, withTTL(b.runs(p, false, fs...), 1))
	back := make([]*instance, 0, len(fs))
	for i := range fs {
		back = append(back, fs[len(fs)-1-i])
	}
	p = turn(t.Reverse(), n, true).bytes()
	b.send(gateway, serverNet, p)
	b.expect(gateway, clientNet, withTTL(b.runs(p, true, back...), 1))
}

// functions: one, two and eight in a row, by both IP versions; drop and refuse.
func functions(b *testbed) {
	before := b.h.Forwarded(gateway)
	var fs []*instance
	const passes = 4 // the third packet of a flow establishes it
	steered := uint64(0)
	for n := range onpath.MaxInline {
		fs = append(fs, b.inline("f", gateway))
		if n != 0 && n != 1 && n != onpath.MaxInline-1 {
			continue
		}
		path := onpath.PathID(n + 1)
		b.apply(one(&chain{path: path, match: toServer()}, fs...))
		for _, t := range []onpath.Tuple{stamped(client, server, 1), stamped(client6, server6, 1), ping(9), tcp4(30), tcp6(30), scribbled(client, server, 2), scribbled(client6, server6, 2)} {
			t.SrcPort += uint16(100 * n)
			if t.Protocol == icmp {
				t.DstPort = t.SrcPort
			}
			for pass := range passes {
				b.acrossFunctions(t, pass, fs...)
			}
		}
		steered = 7 * 2 * passes
		b.pathCounts(path, steered, 0)
		b.pathBegan(path, 7)
	}
	if got := b.h.Forwarded(gateway) - before; got != 0 {
		b.t.Errorf("the kernel forwarded %d steered packets", got)
	}
	e, _ := b.entry(gateway, edgeVport, tcp4(730))
	if len(e.Functions) != onpath.MaxInline || e.Functions[0] != fs[0].vport || e.Functions[7] != fs[7].vport {
		b.t.Errorf("the entry names functions %v", e.Functions)
	}
	b.established(fs)
	b.verdicts(fs[0])
}

// established: in the middle of flows, where a faster part of a driver may run the
// functions, they do the same, and their verdicts hold.
func (b *testbed) established(fs []*instance) {
	b.t.Helper()
	for _, t := range []onpath.Tuple{stamped(client, server, 701), stamped(client6, server6, 701), tcp4(730), tcp6(730), scribbled(client, server, 702), scribbled(client6, server6, 702)} {
		flow := func(class uint8) []byte {
			p := newPacket(t)
			p.flags, p.ack = ack, 77
			return withDSCP(p.bytes(), class)
		}
		for range 3 {
			p := flow(0)
			b.send(gateway, clientNet, p)
			b.expect(gateway, serverNet, withTTL(b.runs(p, false, fs...), 1))
		}
		for _, class := range []uint8{droppedClass, refusedClass} {
			p := flow(class)
			b.send(gateway, clientNet, p)
			b.dropped(gateway, clientNet, onpath.DropFunction)
			add(&b.want(gateway, fs[0].vport).Out, p)
			if class == droppedClass {
				continue
			}
			answer := b.receive(gateway, clientNet).Packet
			if t.Protocol == tcp && tupleOf(answer) != t.Reverse() {
				b.t.Errorf("a refused packet of %v is answered by %v", t, tupleOf(answer))
			}
		}
		p := flow(0)
		b.send(gateway, clientNet, p)
		b.expect(gateway, serverNet, withTTL(b.runs(p, false, fs...), 1))
	}
	got := b.counters(gateway).Functions[fs[0].vport]
	if got.Reasons[7] != 6 || got.Reasons[8] != 6 {
		b.t.Errorf("the function counts reasons %v, must count 6 for 7 and 6 for 8", got.Reasons)
	}
}

// verdicts: the first function ends packets; those behind it do not see them.
func (b *testbed) verdicts(f *instance) {
	b.t.Helper()
	drop := newPacket(tuple(udp, client, 50, server, droppedPort)).bytes()
	b.send(gateway, clientNet, drop)
	b.dropped(gateway, clientNet, onpath.DropFunction)
	add(&b.want(gateway, f.vport).Out, drop)

	syn := newPacket(tuple(tcp, client, 51, server, refusedPort))
	p := syn.bytes()
	b.send(gateway, clientNet, p)
	b.dropped(gateway, clientNet, onpath.DropFunction)
	add(&b.want(gateway, f.vport).Out, p)
	r := tupleOf(b.receive(gateway, clientNet).Packet)
	if r != syn.tuple.Reverse() {
		b.t.Errorf("a refused connection is answered by %v, must be by %v", r, syn.tuple.Reverse())
	}
	p = newPacket(tuple(udp, client, 52, server, refusedPort)).bytes()
	b.send(gateway, clientNet, p)
	b.dropped(gateway, clientNet, onpath.DropFunction)
	add(&b.want(gateway, f.vport).Out, p)
	answer := b.receive(gateway, clientNet).Packet
	if answer[9] != icmp || answer[20] != 3 || answer[21] != 13 {
		b.t.Errorf("a refused datagram is answered by %x, must be by ICMP 3/13", answer)
	}
	b.nodes[gateway].loose[edgeVport] = true
	b.quiet()
	got := b.counters(gateway).Functions[f.vport]
	if got.Dropped.Packets != 7 || got.Answered.Packets != 8 || got.Reasons[5] != 1 || got.Reasons[6] != 2 {
		b.t.Errorf("the function counts %+v, must count 7 dropped, 1 of them for reason 5, and 8 answered, 2 of them for reason 6", got)
	}
}

// functionsMixed: functions on the gateway before, between and behind elements on
// each node.
func functionsMixed(b *testbed) {
	for n, on := range [][2]string{{gateway, gateway}, {"n2", sideNode}, {gateway, "n2"}, {"n2", gateway}} {
		f := []*instance{b.inline("f0", gateway), b.inline("f1", gateway), b.inline("f2", gateway), b.inline("f3", gateway)}
		fw, br := b.instance("fw", on[0]), b.bridged("br", on[1])
		path := onpath.PathID(n + 1)
		b.apply(one(&chain{path: path, match: toServer()}, f[0], fw, f[1], f[2], br, f[3]))
		for _, t := range []onpath.Tuple{stamped(client, server, 1000+uint16(n)), stamped(client6, server6, 1000+uint16(n)), tcp4(1000 + uint16(n))} {
			for range 2 {
				p := newPacket(t).bytes()
				b.send(gateway, clientNet, p)
				p = b.cross(hop{at: fw}, b.runs(p, false, f[0]))
				p = b.cross(hop{at: br}, b.runs(p, false, f[1], f[2]))
				b.expect(gateway, serverNet, withTTL(b.runs(p, false, f[3]), 1))

				p = answerTo(t).bytes()
				b.send(gateway, serverNet, p)
				p = b.cross(hop{at: br, reverse: true}, b.runs(p, true, f[3]))
				p = b.cross(hop{at: fw, reverse: true}, b.runs(p, true, f[2], f[1]))
				b.expect(gateway, clientNet, withTTL(b.runs(p, true, f[0]), 1))
			}
		}
		b.pathCounts(path, 12, 0)
	}
}

// functionsEdit: a function translates in front of an element, and alone.
func functionsEdit(b *testbed) {
	for n, with := range []bool{false, true} {
		f := b.inline("nat", gateway)
		var is []*instance
		fw := b.instance("fw", "n2")
		if with {
			is = append(is, fw)
		}
		m := toServer()
		m.Dst = append(m.Dst, netip.PrefixFrom(virtual, 32))
		m.DstPorts = ports(onpath.PortRange{First: translatedPort, Last: behindPort})
		m.Protocol = []uint8{udp, tcp}
		b.apply(one(&chain{path: onpath.PathID(n + 1), match: m}, append([]*instance{f}, is...)...))
		for _, protocol := range []uint8{udp, tcp} {
			port := 1000 + uint16(n)
			dialled, real := tuple(protocol, client, port, virtual, translatedPort), tuple(protocol, client, port, server, behindPort)
			for pass := range 4 {
				flow := func(t onpath.Tuple) packet { return turn(t, pass, t.Src == server || t.Src == virtual) }
				p := flow(dialled).bytes()
				b.send(gateway, clientNet, p)
				b.runs(p, false, f)
				p = flow(real).bytes()
				for _, i := range is {
					p = b.cross(hop{at: i}, p)
				}
				b.expect(gateway, serverNet, withTTL(p, 1))

				p = flow(real.Reverse()).bytes()
				b.send(gateway, serverNet, p)
				for _, i := range is {
					p = b.cross(hop{at: i, reverse: true}, p)
				}
				b.runs(p, true, f)
				want := flow(dialled.Reverse())
				want.ttl -= byte(len(is))
				b.expect(gateway, clientNet, withTTL(want.bytes(), 1))
			}
		}
	}
}

// translatedLives: a flow that a function translates is established as others are: by a
// packet behind the first of each direction, and, of TCP, by the acknowledgement that the
// answer to the SYN asks for. A question with its answer is not, nor a forged handshake.
func translatedLives(b *testbed) {
	f := b.inline("nat", gateway)
	m := toServer()
	m.Dst = append(m.Dst, netip.PrefixFrom(virtual, 32))
	m.DstPorts = ports(onpath.PortRange{First: translatedPort, Last: behindPort})
	m.Protocol = []uint8{udp, tcp}
	b.apply(one(&chain{path: 1, match: m}, f))
	there := func(t onpath.Tuple, edit func(*packet)) {
		b.t.Helper()
		p, q := newPacket(t), newPacket(t)
		q.tuple.Dst, q.tuple.DstPort = server, behindPort
		edit(&p)
		edit(&q)
		b.send(gateway, clientNet, p.bytes())
		b.runs(p.bytes(), false, f)
		b.expect(gateway, serverNet, withTTL(q.bytes(), 1))
	}
	back := func(t onpath.Tuple, edit func(*packet)) {
		b.t.Helper()
		p, q := newPacket(t.Reverse()), newPacket(t.Reverse())
		p.tuple.Src, p.tuple.SrcPort = server, behindPort
		edit(&p)
		edit(&q)
		b.send(gateway, serverNet, p.bytes())
		b.runs(p.bytes(), true, f)
		b.expect(gateway, clientNet, withTTL(q.bytes(), 1))
	}
	established := func(when string, want uint64) {
		b.t.Helper()
		if got := b.counters(gateway).Tenants["exam"].Established; got != want {
			b.t.Errorf("%s: %d entries are established, must be %d", when, got, want)
		}
	}
	segment := func(flags byte, seq, acked uint32) func(*packet) {
		return func(p *packet) { p.flags, p.seq, p.ack = flags, seq, acked }
	}
	dialled := func(protocol uint8, port uint16) onpath.Tuple {
		return tuple(protocol, client, port, virtual, translatedPort)
	}
	plain, question, forged, real := func(*packet) {}, dialled(udp, 1000), dialled(tcp, 1001), dialled(tcp, 1002)

	there(question, plain)
	back(question, plain)
	established("a question with its answer", 0)
	there(question, plain)
	back(question, plain)
	established("packets behind the first of each direction", 2)

	there(forged, segment(syn, 1000, 0))
	back(forged, segment(syn|ack, 1<<31, 1001))
	there(forged, segment(ack, 1001, 77))
	established("an acknowledgement of nothing that was sent", 2)

	there(real, segment(syn, 1000, 0))
	back(real, segment(syn|ack, 5000, 1001))
	there(real, segment(ack, 1001, 5001))
	back(real, segment(ack, 5001, 1001))
	established("a handshake and an answer", 4)
}

// editedAnswers: what the data path answers to a packet that a function translated speaks
// of the tuple that its sender wrote: a refusal behind it, too big, and time exceeded.
func editedAnswers(b *testbed) {
	nat, f := b.inline("nat", gateway), b.inline("f", gateway)
	m := toServer()
	m.Dst = append(m.Dst, netip.PrefixFrom(virtual, 32))
	m.DstPorts = ports(onpath.PortRange{First: translatedPort, Last: behindPort})
	m.Protocol = []uint8{udp, tcp}
	b.apply(one(&chain{path: 1, match: m, mtu: 1400}, nat, f))
	b.nodes[gateway].loose[edgeVport] = true
	for n, protocol := range []uint8{udp, tcp} {
		dialled := tuple(protocol, client, uint16(1000+n), virtual, translatedPort)
		real := tuple(protocol, client, dialled.SrcPort, server, behindPort)
		for pass := range 3 { // the first packet, and in the middle of a flow
			p, q := newPacket(dialled), newPacket(real)
			if pass > 0 {
				p.flags, q.flags, p.ack, q.ack = ack, ack, 77, 77
			}
			refused := withDSCP(p.bytes(), behindClass)
			b.send(gateway, clientNet, refused)
			b.runs(refused, false, nat)
			add(&b.want(gateway, f.vport).Out, refused)
			b.dropped(gateway, clientNet, onpath.DropFunction)
			answer := b.receive(gateway, clientNet).Packet
			b.speaksOf(answer, p)

			late := p
			late.ttl = 1
			b.send(gateway, clientNet, late.bytes())
			b.runs(late.bytes(), false, nat, f)
			b.dropped(gateway, clientNet, onpath.DropTTL)
			late.flags = 0 // whatever the protocol, an error
			b.speaksOf(b.receive(gateway, clientNet).Packet, late)

			big := p
			big.payload = make([]byte, 1401)
			b.send(gateway, clientNet, big.bytes())
			b.runs(big.bytes(), false, nat, f)
			b.dropped(gateway, clientNet, onpath.DropTooBig)
			b.isTooBig(clientNet, big.bytes(), 1400)

			b.send(gateway, clientNet, p.bytes())
			b.runs(p.bytes(), false, nat, f)
			b.expect(gateway, serverNet, withTTL(q.bytes(), 1))
		}
	}
}

// speaksOf checks that an answer of the data path's, a reset or an ICMP error, is to p.
func (b *testbed) speaksOf(answer []byte, p packet) {
	b.t.Helper()
	if err := checksums(answer); err != nil {
		b.t.Errorf("the answer %x: %v", answer, err)
	}
	of := answer
	if answer[9] == icmp {
		of = answer[28:]
	} else if got := tupleOf(answer); got != p.tuple.Reverse() {
		b.t.Errorf("%v is answered by %v", p.tuple, got)
		return
	} else {
		return
	}
	if src, dst := netip.AddrFrom4([4]byte(of[12:])), netip.AddrFrom4([4]byte(of[16:])); src != p.tuple.Src || dst != p.tuple.Dst ||
		binary.BigEndian.Uint16(of[22:]) != p.tuple.DstPort {
		b.t.Errorf("the answer to %v quotes %x", p.tuple, of)
	}
}

// functionsOut: closed, with none: drop and bypass, for running flows and new ones;
// and gone from the configuration.
func functionsOut(b *testbed) {
	strict, lax := b.inline("strict", gateway), b.inline("lax", gateway)
	dns := toServer()
	dns.Protocol = []uint8{udp}
	l := &layout{instances: []*instance{strict, lax}, chains: []*chain{
		{path: 1, match: web(), elements: []*element{{instances: []*instance{strict}}}},
		{path: 2, match: dns, elements: []*element{{instances: []*instance{lax}, none: onpath.NoneBypass}}},
	}}
	b.apply(l)
	b.acrossFunctions(tcp4(1), 0, strict)
	b.acrossFunctions(udp4(1), 0, lax)

	strict.state, lax.state = onpath.VportClosed, onpath.VportClosed
	b.apply(l)
	for _, port := range []uint16{1, 2} {
		p := newPacket(tcp4(port)).bytes()
		b.send(gateway, clientNet, p)
		b.dropped(gateway, clientNet, onpath.DropNoInstance)
	}
	b.untouchedBy(udp4(1))
	b.untouchedBy(udp4(2))
	if got := b.counters(gateway).Functions[lax.vport].Bypassed.Packets; got != 1 {
		b.t.Errorf("%d packets bypassed the function, must be 1", got)
	}

	strict.state, lax.state = onpath.VportUp, onpath.VportUp
	b.apply(l)
	b.acrossFunctions(tcp4(1), 0, strict)
	b.acrossFunctions(tcp4(3), 0, strict)
	b.acrossFunctions(udp4(1), 0, lax)
	b.skipBooks() // what a bypass counts at the edge is the driver's
}

// untouchedBy sends a packet that passes the gateway, however.
func (b *testbed) untouchedBy(t onpath.Tuple) {
	b.t.Helper()
	p := newPacket(t).bytes()
	b.h.Send(gateway, clientNet, Frame{Packet: p})
	b.same(gateway, serverNet, b.receive(gateway, serverNet).Packet, withTTL(p, 1))
}

// functionsMirror: a mirror beside functions gets what they let pass.
func functionsMirror(b *testbed) {
	f, ids, g := b.inline("f", gateway), b.instance("ids", gateway), b.inline("g", gateway)
	ids.mirror = true
	l := &layout{instances: []*instance{f, ids, g}, chains: []*chain{{path: 1, match: toServer(), elements: []*element{
		{instances: []*instance{f}},
		{instances: []*instance{ids}, mode: onpath.ModeMirror, none: onpath.NoneBypass},
		{instances: []*instance{g}},
	}}}}
	b.apply(l)
	device := onpath.DeviceName(ids.vport)
	for _, t := range []onpath.Tuple{stamped(client, server, 1), stamped(client6, server6, 1)} {
		p := newPacket(t).bytes()
		b.send(gateway, clientNet, p)
		p = b.runs(p, false, f, g)
		b.expect(gateway, device, p)
		b.expect(gateway, serverNet, withTTL(p, 1))
		p = answerTo(t).bytes()
		b.send(gateway, serverNet, p)
		p = b.runs(p, true, g, f)
		b.expect(gateway, device, p)
		b.expect(gateway, clientNet, withTTL(p, 1))
	}
}
