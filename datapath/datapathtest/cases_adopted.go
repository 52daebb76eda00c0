package datapathtest

import (
	"slices"
	"time"

	"github.com/onpath/onpath"
)

// adoption: while a chain is young, TCP connections older than it pass by, in
// both directions; new ones are steered.
func adoption(b *testbed) {
	fw := b.instance("fw", gateway)
	c := &chain{path: 1, match: toServer(), began: b.h.Now().Add(-time.Second), adopt: time.Hour}
	l := one(c, fw)
	b.apply(l)
	old := newPacket(tcp4(1))
	old.flags = ack
	reply := newPacket(tcp4(1).Reverse())
	reply.flags = ack
	b.untouched(clientNet, old.bytes(), serverNet)
	b.untouched(serverNet, reply.bytes(), clientNet)
	b.leads(gateway, edgeVport, tcp4(1), onpath.NextPass, 0)
	b.leads(gateway, edgeVport, tcp4(1).Reverse(), onpath.NextPass, 0)
	inside := newPacket(tcp4(2).Reverse()) // begins with an answer
	inside.flags = syn | ack
	b.untouched(serverNet, inside.bytes(), clientNet)
	b.pathCounts(1, 0, 3)
	b.pathBegan(1, 0)
	b.forward(tcp4(3), fw)
	b.forward(udp4(3), fw)
	b.pathCounts(1, 2, 3)
	b.pathBegan(1, 2)

	// Once it is grown, unknown connections are steered, adopted ones still pass.
	c.began = b.h.Now().Add(-2 * time.Hour)
	b.apply(l)
	b.untouched(clientNet, old.bytes(), serverNet)
	late := newPacket(tcp4(4))
	late.flags = ack
	b.through(clientNet, late.bytes(), serverNet, forwards(fw)...)
}

// adoptionClocks: instants of the server's clock mean nothing to a node. A plan that was
// kept begins no adoption; one that is under way goes on by it, and no plan puts its end off.
func adoptionClocks(b *testbed) {
	fw := b.instance("fw", gateway)
	middle := func(port uint16) []byte {
		p := newPacket(tcp4(port))
		p.flags = ack
		return p.bytes()
	}
	c := &chain{path: 1, match: toServer(), adopt: time.Minute}
	l := one(c, fw)
	l.restored, c.began, c.left = true, b.h.Now(), time.Minute
	b.apply(l)
	b.through(clientNet, middle(1), serverNet, forwards(fw)...)
	l.restored = false
	for i, ahead := range []time.Duration{-time.Hour, time.Minute, 48 * time.Hour} { // of the server's clock
		n := uint16(10 * i)
		c.began, c.left = b.h.Now().Add(ahead), time.Minute
		b.apply(l)
		b.untouched(clientNet, middle(n+2), serverNet)
		l.restored = true
		b.apply(l)
		b.untouched(clientNet, middle(n+3), serverNet)
		l.restored, c.left = false, -1 // the server knows that it is over
		b.apply(l)
		b.through(clientNet, middle(n+4), serverNet, forwards(fw)...)
	}
}

// adoptedAnew: a SYN by the ports of a connection that passed by changes nothing for that,
// whoever sent it. Where its receiver accepts it, the connection is no more: the receiver is
// reset, and what begins then goes through the chain, whichever direction it takes and
// whether or not the chain is grown since. So does what begins where no answer was seen.
func adoptedAnew(b *testbed) {
	fw := b.instance("fw", gateway)
	c := &chain{path: 1, match: toServer(), began: b.h.Now().Add(-time.Second), adopt: time.Hour}
	l := one(c, fw)
	for n, grown := range []time.Duration{time.Second, 2 * time.Hour} {
		for i, pass := range []int{1, 3} { // pending, and established
			t := tcp4(uint16(1 + 2*n + i))
			c.began = b.h.Now().Add(-time.Second)
			b.apply(l)
			b.passesBy(t, pass)
			c.began = b.h.Now().Add(-grown)
			b.apply(l)
			if pass > 1 {
				b.livesOn(t)
			}
			isNotAccepted(b, t, false)
			b.through(clientNet, newPacket(t).bytes(), serverNet, forwards(fw)...)
			answer := answerTo(t)
			answer.flags = syn | ack
			b.through(serverNet, answer.bytes(), clientNet, backwards(fw)...)
			p := newPacket(t)
			p.flags = ack
			b.through(clientNet, p.bytes(), serverNet, forwards(fw)...)
			b.forward(t, fw) // a SYN of a connection that went through changes nothing
			b.leads(gateway, edgeVport, t.Reverse(), onpath.NextVport, fw.vport)
		}
	}
	c.began = b.h.Now().Add(-time.Second)
	b.apply(l)
	b.passesBy(tcp6(9), 3)
	isNotAccepted(b, tcp6(9), true)
	b.through(serverNet, newPacket(tcp6(9).Reverse()).bytes(), clientNet, backwards(fw)...)
	b.leads(gateway, edgeVport, tcp6(9), onpath.NextVport, fw.vport)
	for range 3 {
		b.says(tcp4(20), false, ack)
	}
	b.forward(tcp4(20), fw)
	b.backward(tcp4(20), fw)
	for range 3 { // a SYN-ACK alone says nothing
		b.says(tcp4(21), false, ack)
		b.says(tcp4(21), true, ack)
		b.says(tcp4(21), true, syn|ack)
	}
}

// isNotAccepted begins a connection by the ports of one that crosses the elements, or passes
// by: the packet goes that one's way, and the end that accepts it is reset: by the last instance
// that the packet has crossed, or, where functions and mirrors are all, at the edge.
func isNotAccepted(b *testbed, t onpath.Tuple, reverse bool, is ...*instance) {
	b.t.Helper()
	f, last := isRefused(b, t, reverse, is...)
	if last == nil {
		return
	}
	f.Packet = b.forwardsFrame(hop{at: last, reverse: reverse}, f, f.Packet) // on to its receiver
	behind := along(is, reverse)
	for _, i := range behind[slices.Index(behind, last)+1:] {
		f.Packet = b.runs(f.Packet, reverse, i)
	}
	out := serverNet
	if reverse {
		out = clientNet
	}
	b.expect(gateway, out, withTTL(f.Packet, 1))
}

// isRefused is isNotAccepted until the instance has the reset.
func isRefused(b *testbed, t onpath.Tuple, reverse bool, is ...*instance) (f Frame, last *instance) {
	b.t.Helper()
	b.says(t, reverse, syn, along(is, reverse)...)
	p, at, node := answerTo(t), serverNet, gateway
	if reverse {
		p, at = newPacket(t), clientNet
	}
	p.flags, p.ack = syn|ack, 1001
	b.send(gateway, at, p.bytes())
	sent := p.bytes()
	one := slices.ContainsFunc(is, func(i *instance) bool { return i.inline == nil && !i.mirror })
	for _, i := range along(is, !reverse) {
		if one && last == nil && i.inline != nil {
			sent = b.runs(sent, !reverse, i)
		} else if one && last == nil {
			h := hop{at: i, reverse: !reverse}
			last, node, sent = i, i.node, b.cross(h, sent)
			_, at = h.sides()
		}
	}
	b.dropped(node, at, onpath.DropReset)
	return isResetAt(b, node, at, tupleOf(sent), 1001), last
}

// passesBy sends packets in the middle of a connection, both ways, past a young chain.
func (b *testbed) passesBy(t onpath.Tuple, times int) {
	b.t.Helper()
	for range times {
		b.says(t, false, ack)
		b.says(t, true, ack)
	}
	b.leads(gateway, edgeVport, t, onpath.NextPass, 0)
	b.leads(gateway, edgeVport, t.Reverse(), onpath.NextPass, 0)
}

// adoptedWithin: likewise of a tenant's chain that began within an operator's.
func adoptedWithin(b *testbed) {
	fw := b.instance("fw", gateway)
	op, bridge, far := b.instance("op", gateway), b.bridged("bridge", gateway), b.instance("far", "n2")
	for n, ops := range [][]*instance{{op}, {bridge}, {far}, {op, far}, {far, op}} {
		back := reversed(ops)
		path := onpath.PathID(1 + 2*n)
		guard := one(&chain{path: path, tier: onpath.TierOperator, tenant: "operator", match: toServer()}, ops...).chains[0]
		web := &chain{path: path + 1, match: toServer(), elements: []*element{{instances: []*instance{fw}}}}
		web.began, web.adopt = b.h.Now().Add(-time.Second), time.Hour
		b.apply(&layout{chains: []*chain{guard, web}, instances: []*instance{op, bridge, far, fw}})
		for i, times := range []int{1, 3, 1, 3} {
			t, reverse := tcp4(uint16(1+10*n+i)), i > 1
			for range times {
				b.says(t, false, ack, ops...)
				b.says(t, true, ack, back...)
			}
			for _, flags := range []uint8{syn, syn | ack, ack, syn} { // all from one end: the other one accepts nothing
				b.says(t, reverse, flags, along(ops, reverse)...)
			}
			if times > 1 {
				b.livesOn(t, ops...)
			}
			isNotAccepted(b, t, reverse, ops...)
			first := append(along(ops, reverse), fw)       // who speaks first meets the operator's first
			for _, flags := range []uint8{syn, syn, ack} { // sent again
				b.says(t, reverse, flags, first...)
				b.says(t, !reverse, flags|ack, reversed(first)...)
			}
			if b.t.Failed() {
				b.t.Fatalf("within %s, the server first: %t", names(ops), reverse)
			}
		}
	}
}

// wrapping lists elements of an operator's chain that stands before a tenant's.
func (b *testbed) wrapping() [][]*instance {
	fw, f, copied := b.instance("fw", gateway), b.inline("f", gateway), b.instance("copied", gateway)
	copied.mirror = true
	return [][]*instance{{f}, {fw, f}, {f, fw}, {copied}, {fw, copied}, {copied, f}}
}

// wrapped is a tenant's young chain behind an operator's.
func wrapped(path onpath.PathID, all, operators, tenants []*instance) (l *layout, young *chain) {
	guard := one(&chain{path: path, tier: onpath.TierOperator, tenant: "operator", match: toServer()}, operators...)
	young = one(&chain{path: path + 1, match: toServer(), adopt: time.Hour}, tenants...).chains[0]
	for _, c := range []*chain{guard.chains[0], young} {
		for _, e := range c.elements {
			if e.instances[0].mirror {
				e.mode, e.none = onpath.ModeMirror, onpath.NoneBypass
			}
		}
	}
	return &layout{chains: []*chain{guard.chains[0], young}, instances: all}, young
}

// adoptedBehind: a connection that is older than a tenant's chain passes by that chain alone:
// it crosses all that stands in the operator's chain before it, in both directions, whoever
// speaks first. One that begins crosses both.
func adoptedBehind(b *testbed) {
	box, g, watcher := b.instance("box", gateway), b.inline("g", gateway), b.instance("watcher", gateway)
	watcher.mirror = true
	b.looseEdge()
	port, path, wrapping := uint16(1), onpath.PathID(1), b.wrapping()
	all := distinct(append(slices.Concat(wrapping...), box, g, watcher))
	for _, operators := range wrapping {
		for _, tenants := range [][]*instance{{box}, {g}, {watcher, box}} {
			l, young := wrapped(path, all, operators, tenants)
			young.began = b.h.Now()
			b.apply(l)
			for _, t := range []onpath.Tuple{tcp4(port), tcp6(port).Reverse()} {
				first := t.Src == server6
				if first {
					t = t.Reverse()
				}
				for range 3 {
					b.says(t, first, ack, along(operators, first)...)
					b.says(t, !first, ack, along(operators, !first)...)
				}
			}
			if passed := b.counters(gateway).Paths[young.path].Passed.Packets; passed == 0 {
				b.t.Errorf("no packet is counted as passed by path %d", young.path)
			}
			b.says(tcp4(port+1), false, syn, slices.Concat(operators, tenants)...)
			if port, path = port+2, path+2; b.t.Failed() {
				b.t.Fatalf("behind %s, before %s", names(operators), names(tenants))
			}
		}
	}
}

// cutBehind: likewise of a tenant's chain that cuts what is older: the end that speaks is
// reset, and RSTs cross the operator's chain, and nothing else does.
func cutBehind(b *testbed) {
	box, g := b.instance("box", gateway), b.inline("g", gateway)
	b.looseEdge()
	port, path, wrapping := uint16(1), onpath.PathID(1), b.wrapping()
	all := distinct(append(slices.Concat(wrapping...), box, g))
	for _, operators := range wrapping {
		for _, tenants := range [][]*instance{{box}, {g}} {
			l, young := wrapped(path, all, operators, tenants)
			young.began, young.cut = b.h.Now(), true
			b.apply(l)
			for n, reverse := range []bool{false, true} {
				t, is := tcp4(port+uint16(n)), along(operators, reverse)
				for range 2 {
					b.isCutBehind(t, reverse, is)
				}
				b.says(t, reverse, rst, is...)
				b.isCutBehind(t, reverse, is)
			}
			b.says(tcp4(port+2), false, syn, slices.Concat(operators, tenants)...)
			if port, path = port+3, path+2; b.t.Failed() {
				b.t.Fatalf("behind %s, before %s", names(operators), names(tenants))
			}
		}
	}
}

// isCutBehind sends a packet in the middle of a connection by an operator's chain: it is
// reset at the last instance, or, where functions and mirrors are all, at the edge.
func (b *testbed) isCutBehind(t onpath.Tuple, reverse bool, is []*instance) {
	b.t.Helper()
	p, in, out := newPacket(t), clientNet, serverNet
	if reverse {
		p, in, out = newPacket(t.Reverse()), serverNet, clientNet
	}
	p.flags, p.seq, p.ack = ack, 1001, 777
	last := len(is)
	for last > 0 && (is[last-1].inline != nil || is[last-1].mirror) {
		last--
	}
	sent, at := p.bytes(), in
	b.send(gateway, in, sent)
	for _, i := range is[:last] {
		if i.inline != nil {
			sent = b.runs(sent, reverse, i)
			continue
		}
		if sent = b.cross(hop{at: i, reverse: reverse, copied: i.mirror}, sent); !i.mirror {
			at = onpath.DeviceName(i.vport)
		}
	}
	b.dropped(gateway, at, onpath.DropReset)
	b.isReset(at, p.tuple, 777)
	if last > 0 {
		return
	}
	p.flags |= rst // the other end, which may wait
	sent = p.bytes()
	for _, i := range is {
		if i.inline != nil {
			sent = b.runs(sent, reverse, i)
		} else {
			sent = b.cross(hop{at: i, reverse: reverse, copied: true}, sent)
		}
	}
	b.same(gateway, out, b.receive(gateway, out).Packet, withTTL(sent, 1))
}

// along are instances in the order in which a direction crosses them.
func along(is []*instance, reverse bool) []*instance {
	if reverse {
		return reversed(is)
	}
	return is
}

func names(is []*instance) (list []string) {
	for _, i := range is {
		list = append(list, i.name)
	}
	return list
}

// cuts: with existing: cut, older connections are reset, also those that passed by a chain
// which is gone.
func cuts(b *testbed) {
	fw := b.instance("fw", gateway)
	c := &chain{path: 1, match: toServer(), elements: []*element{{instances: []*instance{fw}}}, began: b.h.Now().Add(-time.Second), adopt: time.Hour}
	l := &layout{chains: []*chain{c}, instances: []*instance{fw}}
	b.apply(l)
	passed := []onpath.Tuple{tcp4(3), tcp4(4)}
	for i, t := range passed {
		b.passesBy(t, 1+2*i) // pending, and established
	}
	b.nodes[gateway].loose[edgeVport] = true
	b.succeeds(l, &chain{path: 2, match: c.match, elements: c.elements, began: b.h.Now(), adopt: time.Hour})
	for _, t := range passed {
		b.passesBy(t, 1)
	}
	b.succeeds(l, &chain{path: 3, match: c.match, elements: c.elements, began: b.h.Now(), adopt: time.Hour, cut: true})
	for _, t := range append(passed, tcp4(1), tcp6(2)) {
		b.isCut(clientNet, serverNet, t)
		b.isCut(serverNet, clientNet, t.Reverse())
		b.forward(t, fw)
	}
}

// succeeds has a chain take the place of the one that there is.
func (b *testbed) succeeds(l *layout, c *chain) {
	old := l.chains[0]
	old.ended = true
	l.chains = []*chain{c, old}
	b.apply(l)
	old.closed = true
	b.apply(l)
	l.chains = []*chain{c}
	b.apply(l)
}

// isCut sends a packet in the middle of a connection: its sender gets a reset by an answer,
// the other end, which may wait for ever, by what it would have received.
func (b *testbed) isCut(in, out string, t onpath.Tuple) {
	b.t.Helper()
	old := newPacket(t)
	old.flags, old.seq, old.ack = ack, 4711, 777
	b.send(gateway, in, old.bytes())
	b.dropped(gateway, in, onpath.DropReset)
	b.isReset(in, t, 777)
	old.flags |= rst
	b.same(gateway, out, b.receive(gateway, out).Packet, withTTL(old.bytes(), 1))
	b.untouched(in, old.bytes(), out) // so does the end itself that gives up
}
