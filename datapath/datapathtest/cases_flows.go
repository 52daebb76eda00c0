package datapathtest

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/onpath/onpath"
)

// flows are n UDP flows of many clients.
func flows(from, n int) []onpath.Tuple {
	out := make([]onpath.Tuple, n)
	for i := range out {
		k := from + i
		out[i] = tuple(udp, netip.AddrFrom4([4]byte{10, 1, byte(k >> 8), byte(k)}), uint16(1024+k*7%60000), server, 53)
	}
	return out
}

// spread sends the first packet of each flow in, at the clients' side or turned
// round at the servers', and finds out which instance each came to.
func (b *testbed) spread(ts []onpath.Tuple, reverse bool, among ...*instance) map[onpath.Tuple]*instance {
	b.t.Helper()
	device := clientNet
	if reverse {
		device = serverNet
	}
	sent := map[onpath.Tuple][]byte{}
	for _, t := range ts {
		p := newPacket(t).bytes()
		if reverse {
			p = answerTo(t).bytes()
		}
		sent[t] = p
		b.send(gateway, device, p)
	}
	met := map[onpath.Tuple]*instance{}
	for until := time.Now().Add(patience); len(met) < len(ts) && time.Now().Before(until); {
		for _, i := range among {
			b.gather(i, reverse, sent, met)
		}
	}
	if len(met) != len(ts) {
		b.t.Fatalf("of %d flows %d came to an instance", len(ts), len(met))
	}
	return met
}

// gather receives what has come to an instance by now.
func (b *testbed) gather(i *instance, reverse bool, sent map[onpath.Tuple][]byte, met map[onpath.Tuple]*instance) {
	b.t.Helper()
	in, _ := hop{at: i, reverse: reverse}.sides()
	for {
		f, ok := b.h.Receive(i.node, in, time.Millisecond)
		if !ok {
			return
		}
		t := tupleOf(f.Packet)
		if reverse {
			t = t.Reverse()
		}
		b.same(i.node, in, f.Packet, sent[t])
		add(&b.want(i.node, b.vportOf(i.node, in)).Out, f.Packet)
		met[t] = i
	}
}

// finishFirst lets the first packet of each flow come out of its instance and leave,
// so that both directions have entries.
func (b *testbed) finishFirst(met map[onpath.Tuple]*instance) {
	b.t.Helper()
	b.finishFirstAt(met, 1)
}

// finishFirstAt does so at the nth routed element.
func (b *testbed) finishFirstAt(met map[onpath.Tuple]*instance, n uint8) {
	b.t.Helper()
	for t, i := range met {
		_, out := hop{at: i}.sides()
		p := withTTL(newPacket(t).bytes(), n)
		b.send(i.node, out, p)
		b.expect(gateway, serverNet, withTTL(p, 1))
	}
}

func count(met map[onpath.Tuple]*instance) map[*instance]int {
	n := map[*instance]int{}
	for _, i := range met {
		n[i]++
	}
	return n
}

// pool is a chain of one element with n instances.
func (b *testbed) pool(n int) (*layout, []*instance) {
	var is []*instance
	for k := range n {
		is = append(is, b.instance(string(rune('a'+k)), nodes[k%2]))
	}
	c := &chain{path: 1, match: toServer(), elements: []*element{{instances: is}}}
	return &layout{chains: []*chain{c}, instances: is}, is
}

// shares: 10,000 flows meet three instances by their weights, within a tenth.
func shares(b *testbed) {
	l, is := b.pool(3)
	is[2].weight = 2
	b.apply(l)
	n := count(b.spread(flows(0, 10_000), false, is...))
	for k, want := range []int{2500, 2500, 5000} {
		if got := n[is[k]]; got < want*9/10 || got > want*11/10 {
			b.t.Errorf("instance %d got %d of 10000 flows, must be within a tenth of %d", k, got, want)
		}
	}
}

// sticks: adding an instance, draining one, and changing weights move no flow;
// removing one moves its own only.
func sticks(b *testbed) {
	l, is := b.pool(4)
	l.instances, l.chains[0].elements[0].instances = is[:3], is[:3]
	b.apply(l)
	ts := flows(0, 600)
	before := b.spread(ts, false, is[:3]...)
	b.finishFirst(before)

	l.instances, l.chains[0].elements[0].instances = is, is
	is[0].weight = 5
	b.apply(l)
	b.mustStick("adding an instance", before, b.spread(ts, false, is...))
	if n := count(b.spread(flows(1000, 200), false, is...)); n[is[3]] == 0 {
		b.t.Error("the added instance gets no new flows")
	}

	is[1].state = onpath.VportDraining
	b.apply(l)
	b.mustStick("draining an instance", before, b.spread(ts, false, is...))
	if n := count(b.spread(flows(2000, 200), false, is...)); n[is[1]] != 0 {
		b.t.Errorf("the draining instance got %d new flows", n[is[1]])
	}

	is[2].withdrawn = true
	b.apply(l)
	left := []*instance{is[0], is[1], is[3]}
	after := b.spread(ts, false, left...)
	maps.DeleteFunc(before, func(_ onpath.Tuple, i *instance) bool { return i == is[2] })
	b.mustStick("removing another instance", before, after)
	b.mustStick("nothing at all", after, b.spread(ts, false, left...))
	back := b.spread(ts, true, left...)
	b.mustStick("turning round", after, back)
	b.nodes[is[2].node].devices = slices.DeleteFunc(b.nodes[is[2].node].devices, func(d string) bool {
		return d == onpath.DeviceName(is[2].vport)
	})
}

func (b *testbed) mustStick(why string, before, after map[onpath.Tuple]*instance) {
	b.t.Helper()
	moved := 0
	for t, i := range before {
		if after[t] != i {
			moved++
		}
	}
	if moved > 0 {
		b.t.Errorf("%s moved %d of %d flows", why, moved, len(before))
	}
}

// symmetry: a flow that the servers' side starts meets the instances that it
// would meet if the clients' side started it.
func symmetry(b *testbed) {
	l, is := b.pool(3)
	b.apply(l)
	ts := flows(0, 300)
	forward := b.spread(ts, false, is...)
	b.remove()
	if !b.reopen() {
		b.t.Skip("the harness lacks Reopen: a flow can begin from one side only")
	}
	b.apply(l)
	b.mustStick("starting from the other side", forward, b.spread(ts, true, is...))
}

// remove takes the data path off all nodes.
func (b *testbed) remove() {
	b.t.Helper()
	for _, name := range b.joined() {
		if err := b.nodes[name].dp.Remove(b.t.Context()); err != nil {
			b.t.Fatalf("Remove on %s: %v", name, err)
		}
	}
	b.closed = true
}

// reopen opens the data path again after remove, with counters that begin anew.
func (b *testbed) reopen() bool {
	r, ok := b.h.(Reopener)
	if !ok {
		return false
	}
	b.closed = false
	for _, name := range b.joined() {
		b.nodes[name].dp = r.Reopen(name)
		b.nodes[name].want = map[onpath.VportID]*onpath.VportCounters{}
	}
	return true
}

// repick: when an instance is gone, its flows go on at another, both ways, and
// the others' stay.
func repick(b *testbed) {
	l, is := b.pool(3)
	b.apply(l)
	ts := flows(0, 60)
	before := b.spread(ts, false, is...)
	b.finishFirst(before)
	is[0].state = onpath.VportClosed
	b.apply(l)
	back := b.spread(ts, true, is[1], is[2])
	after := b.spread(ts, false, is[1], is[2])
	b.mustStick("turning round", back, after)
	maps.DeleteFunc(before, func(_ onpath.Tuple, i *instance) bool { return i == is[0] })
	b.mustStick("closing another instance", before, after)

	// When it comes back, nothing moves again.
	is[0].state = onpath.VportUp
	b.apply(l)
	b.mustStick("coming back", after, b.spread(ts, false, is...))
	b.mustStick("coming back", after, b.spread(ts, true, is...))
}

// repickBetween: the dead instance stands between other elements, on other
// nodes; whichever direction speaks first, both meet the same other one.
func repickBetween(b *testbed) {
	fw, br := b.instance("fw", "n2"), b.bridged("br", gateway)
	x, y := b.instance("x", gateway), b.instance("y", sideNode)
	c := &chain{path: 1, match: toServer(), elements: []*element{
		{instances: []*instance{fw}}, {instances: []*instance{x, y}}, {instances: []*instance{br}},
	}}
	l := &layout{chains: []*chain{c}, instances: []*instance{fw, x, y, br}}
	b.apply(l)
	for n := range uint16(8) {
		t := udp4(n)
		p := newPacket(t).bytes()
		b.send(gateway, clientNet, p)
		p = b.cross(hop{at: fw}, p)
		used, other, f := b.either(x, y)
		b.same(used.node, used.name, f.Packet, p)
		add(&b.want(used.node, used.vport).Out, p)
		p = withTTL(p, 1)
		b.send(used.node, onpath.DeviceName(used.vport), p)
		p = b.cross(hop{at: br}, p)
		b.expect(gateway, serverNet, withTTL(p, 1))
		b.backward(t, br, used, fw)

		used.state = onpath.VportClosed
		b.apply(l)
		if n%2 == 0 {
			b.backward(t, br, other, fw)
			b.forward(t, fw, other, br)
		} else {
			b.forward(t, fw, other, br)
		}
		used.state = onpath.VportUp // and comes back before the answer
		b.apply(l)
		b.backward(t, br, other, fw)
		b.forward(t, fw, other, br)
	}
}

// resets: with lost: reset a running connection of a dead instance is reset, at both
// ends, once more whichever speaks, and a new one works at once.
func resets(b *testbed) {
	l, is := b.pool(2)
	first, second := is[0], is[1]
	l.chains[0].elements[0].lost = onpath.LostReset
	second.state = onpath.VportDraining
	b.apply(l)
	t := tcp4(1000)
	b.handshake(t, first)

	first.state, second.state = onpath.VportClosed, onpath.VportUp
	b.apply(l)
	b.nodes[gateway].loose[edgeVport] = true
	for device, p := range map[string]packet{clientNet: running(t, 1001, 5001), serverNet: running(t.Reverse(), 5001, 1001)} {
		b.send(gateway, device, p.bytes())
		b.dropped(gateway, device, onpath.DropReset)
		for range 2 { // because it speaks, and before, or after, because it might only wait
			b.isReset(device, p.tuple, p.ack)
		}
	}

	b.forward(tcp4(1001), second)
	b.forward(t, second)
	b.backward(t, second)
}

// isReset expects the RST that ends t for its sender.
func (b *testbed) isReset(device string, t onpath.Tuple, seq uint32) {
	b.t.Helper()
	isResetAt(b, gateway, device, t, seq)
}

func isResetAt(b *testbed, node, device string, t onpath.Tuple, seq uint32) Frame {
	b.t.Helper()
	f := b.receive(node, device)
	if err := checksums(f.Packet); err != nil {
		b.t.Errorf("the RST: %v", err)
	}
	_, l4 := transportOf(f.Packet)
	if got := tupleOf(f.Packet); got != t.Reverse() || l4[13]&rst == 0 {
		b.t.Fatalf("instead of a RST for %v came %x", t, f.Packet)
	}
	if got := uint32(l4[4])<<24 | uint32(l4[5])<<16 | uint32(l4[6])<<8 | uint32(l4[7]); got != seq {
		b.t.Errorf("the RST has sequence number %d, must be %d", got, seq)
	}
	return f
}

// noneDrop: without an instance nothing passes, new flows or old.
func noneDrop(b *testbed) {
	fw := b.instance("fw", gateway)
	l := one(&chain{path: 1, match: toServer()}, fw)
	b.apply(l)
	b.forward(udp4(1), fw)
	fw.state = onpath.VportClosed
	b.apply(l)
	for _, t := range []onpath.Tuple{udp4(1), udp4(2), tcp4(3)} {
		b.send(gateway, clientNet, newPacket(t).bytes())
		b.dropped(gateway, clientNet, onpath.DropNoInstance)
	}
	b.send(gateway, serverNet, answerTo(udp4(1)).bytes())
	b.dropped(gateway, serverNet, onpath.DropNoInstance)
}

// noneBypass: without an instance traffic goes past the element, new flows and
// old, both ways.
func noneBypass(b *testbed) {
	ids, fw := b.instance("ids", gateway), b.instance("fw", "n2")
	l := one(&chain{path: 1, match: toServer()}, ids, fw)
	l.chains[0].elements[0].none = onpath.NoneBypass
	b.apply(l)
	b.forward(udp4(1), ids, fw)
	b.backward(udp4(1), fw, ids)
	ids.state = onpath.VportClosed
	b.apply(l)
	for _, t := range []onpath.Tuple{udp4(1), udp4(2)} {
		b.forward(t, fw)
		b.backward(t, fw)
	}
	// Nothing left of the chain: the packet passes, whoever forwards it.
	l.chains[0].elements[1].none = onpath.NoneBypass
	fw.state = onpath.VportClosed
	b.apply(l)
	b.untouched(clientNet, newPacket(udp4(3)).bytes(), serverNet)
	b.untouched(serverNet, answerTo(udp4(3)).bytes(), clientNet)
	if got := b.counters(gateway).Paths[1].Passed.Packets; got == 0 {
		b.t.Error("what is passed by is not counted as passed")
	}
}

// bypassMirrors: where an element between mirrors has no instance any more, flows old and
// new go past it, and are copied as before, both ways.
func bypassMirrors(b *testbed) {
	for n, where := range []string{gateway, "n2"} {
		before, dies := b.instance("before", where), b.instance("dies", where)
		behind, fw := b.instance("behind", sideNode), b.instance("fw", gateway)
		before.mirror, behind.mirror = true, true
		l := one(&chain{path: onpath.PathID(n + 1), match: toServer()}, before, dies, behind, fw)
		for _, e := range l.chains[0].elements[:3] {
			e.none = onpath.NoneBypass
		}
		l.chains[0].elements[0].mode, l.chains[0].elements[2].mode = onpath.ModeMirror, onpath.ModeMirror
		b.apply(l)
		old, young := udp4(uint16(100+n)), tcp6(uint16(200+n))
		b.forward(old, before, dies, behind, fw)
		b.backward(old, fw, behind, dies, before)
		dies.state = onpath.VportClosed
		b.apply(l)
		for range 2 {
			for _, t := range []onpath.Tuple{old, young} {
				b.forward(t, before, behind, fw)
				b.backward(t, fw, behind, before)
			}
		}
		// Nothing left of the chain but mirrors.
		l.chains[0].elements[3].none = onpath.NoneBypass
		fw.state = onpath.VportClosed
		b.apply(l)
		b.looseEdge()
		for _, t := range []onpath.Tuple{old, young, udp4(uint16(300 + n))} {
			b.forward(t, before, behind)
			b.backward(t, behind, before)
		}
	}
}

// flowsCounted: wherever instances are, each has the flows that lead through it, both
// directions being one; also those that it keeps to itself, or that nobody answers.
func flowsCounted(b *testbed) {
	const through, answered, kept = 7, 4, 2
	for n, where := range []string{gateway, "n2"} {
		fw, br, m := b.instance("fw", where), b.bridged("br", sideNode), b.instance("m", "n2")
		m.mirror = true
		c := &chain{path: onpath.PathID(n + 1), match: toServer()}
		l := one(c, fw, br, m)
		c.elements[2].mode, c.elements[2].none = onpath.ModeMirror, onpath.NoneBypass
		b.apply(l)
		ports := uint16(1000 * (n + 1))
		for i := range uint16(through) {
			t := udp4(ports + i)
			b.forward(t, fw, br, m)
			if i < answered {
				b.backward(t, m, br, fw)
				b.forward(t, fw, br, m)
			}
		}
		for i := range uint16(kept) {
			b.send(gateway, clientNet, newPacket(udp4(ports+100+i)).bytes())
			b.expect(where, onpath.DeviceName(fw.vport), newPacket(udp4(ports+100+i)).bytes())
		}
		b.quiet()
		for _, v := range []struct {
			node string
			id   onpath.VportID
			want uint64
		}{
			{gateway, fw.vport, through + kept}, {where, fw.vport, through + kept},
			{where, br.vport, through}, {sideNode, br.vport, through}, {sideNode, br.back, through}, {sideNode, m.vport, through},
		} {
			if got := b.counters(v.node).Vports[v.id].Flows; got != v.want {
				b.t.Errorf("%s: %d flows at vport %d, must be %d", v.node, got, v.id, v.want)
			}
		}
	}
	f := b.inline("f", gateway)
	b.apply(one(&chain{path: 3, match: toServer()}, f))
	for i := range uint16(through) {
		b.acrossFunctions(udp4(3000+i), 0, f)
	}
	if got := b.counters(gateway).Vports[f.vport].Flows; got != through {
		b.t.Errorf("%d flows at the function, must be %d", got, through)
	}
	t := udp4(3000)
	for _, filter := range []onpath.FlowFilter{{}, {Vport: f.vport}, {Path: 1}, {Tuple: &t}} {
		b.bareToo(filter)
	}
}
