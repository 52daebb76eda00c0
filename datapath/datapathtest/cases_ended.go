package datapathtest

import (
	"net/netip"
	"time"

	"github.com/onpath/onpath"
)

// ended: live flows of a chain that is configured no more go the ordinary way,
// in both directions, or begin anew by the chain that selects them now, while
// the instance of the old one is still there and once it is gone.
func ended(b *testbed) {
	fw := b.instance("fw", "n2")
	l := one(&chain{path: 1, match: toServer()}, fw)
	b.apply(l)
	b.forward(tcp4(1), fw)
	b.backward(tcp4(1), fw)
	b.forward(udp4(1), fw)
	b.backward(udp4(1), fw)

	l.chains[0].ended = true // its path serves the flows that it has
	b.apply(l)
	b.forward(tcp4(1), fw)
	b.backward(udp4(1), fw)

	l.chains = nil
	b.apply(l)
	speak := func() {
		data := newPacket(tcp4(1))
		data.flags = ack
		b.untouched(clientNet, data.bytes(), serverNet)
		answer := newPacket(tcp4(1).Reverse())
		answer.flags = ack
		b.untouched(serverNet, answer.bytes(), clientNet)
		b.untouched(clientNet, newPacket(udp4(1)).bytes(), serverNet)
		b.untouched(serverNet, newPacket(udp4(1).Reverse()).bytes(), clientNet)
	}
	speak()
	if left := b.flows(gateway, onpath.FlowFilter{Path: 1}); len(left) > 0 {
		b.t.Errorf("entries of the ended path: %+v", left)
	}
	l.instances = nil
	b.apply(l)
	speak()

	other := b.instance("other", gateway)
	b.apply(one(&chain{path: 2, match: toServer()}, other))
	b.forward(udp4(1), other)
	b.backward(udp4(1), other)

	// What is cleaned up after a path that ended takes nothing from one that
	// began right after it.
	b.apply(one(&chain{path: 3, match: toServer()}, other))
	b.apply(one(&chain{path: 4, match: toServer()}, other))
	b.forward(udp4(2), other)
	b.backward(udp4(2), other)
	time.Sleep(300 * time.Millisecond) // longer than stragglers are waited for
	if _, ok := b.entry(gateway, edgeVport, udp4(2)); !ok {
		b.t.Error("the new path's entry went with the ended path's")
	}
	b.forward(udp4(2), other)
	b.backward(udp4(2), other)
}

// closedPath: live flows of a path that was closed go the ordinary way in both
// directions. What another node had been given of them before passes what is left of
// the path here, and leaves.
func closedPath(b *testbed) {
	x, fw := b.instance("x", "n2"), b.instance("fw", gateway)
	l := one(&chain{path: 1, match: toServer()}, x, fw)
	b.apply(l)
	tuples := []onpath.Tuple{tcp4(1), udp4(1), tcp6(1)}
	for _, t := range tuples {
		b.forward(t, x, fw)
		b.backward(t, fw, x)
	}
	l.chains[0].ended, l.chains[0].closed = true, true
	b.apply(l)
	for _, t := range tuples {
		p := newPacket(t)
		p.flags = ack
		b.tunnelTo("n2", fw.vport, x.vport, onpath.GroupOf(1, 1, false), p.bytes())
		b.expect(gateway, onpath.DeviceName(fw.vport), p.bytes())
		b.through(onpath.DeviceName(fw.vport), p.bytes(), serverNet)
	}
	b.apply(l) // what these wrote at the edge goes as well, after a while
	b.eventually("entries of the closed path at the edge are gone", func() bool {
		for _, e := range b.flows(gateway, onpath.FlowFilter{Path: 1}) {
			if e.Vport == edgeVport {
				return false
			}
		}
		return true
	})
	for _, t := range tuples {
		for device, way := range map[string]onpath.Tuple{clientNet: t, serverNet: t.Reverse()} {
			p := newPacket(way)
			p.flags = ack
			b.untouched(device, p.bytes(), map[string]string{clientNet: serverNet, serverNet: clientNet}[device])
		}
	}
}

// replacedElsewhere: a chain gets another function, which runs at the other gateway of
// a pair as the one before did, and keeps its container. Flows of the path that ends go
// by the one that follows as soon as it is closed where they enter, whoever speaks
// first, and stay there when each node in turn lets go of what was.
func replacedElsewhere(b *testbed) {
	f, g, fw := b.inline("f", sideNode), b.inline("g", sideNode), b.instance("fw", "n2")
	old := one(&chain{path: 1, match: toServer()}, f, fw).chains[0]
	young := one(&chain{path: 2, match: toServer()}, g, fw).chains[0]
	l := &layout{chains: []*chain{old}, instances: []*instance{f, fw}, pair: true}
	b.apply(l)
	flows := make([]onpath.Tuple, 8)
	for n := range flows {
		flows[n] = stamped(client, server, uint16(1000+n))
		b.crosses(flows[n], false, f, fw)
		b.crosses(flows[n], true, fw, f)
	}
	old.ended = true
	l.chains, l.instances = []*chain{young, old}, []*instance{f, fw, g}
	b.apply(l)
	b.crosses(flows[0], false, f, fw)
	b.crosses(flows[0], true, fw, f)

	old.closed = true
	b.apply(l)
	speak := func() {
		for n, t := range flows {
			if n%2 == 0 {
				b.crosses(t, true, fw, g)
			}
			b.crosses(t, false, g, fw)
			b.crosses(t, true, fw, g)
		}
	}
	speak()
	l.chains = []*chain{young}
	for _, node := range []string{"n2", sideNode, gateway} {
		b.applyAt(node, l)
		speak()
	}
	l.instances = []*instance{fw, g}
	b.apply(l)
	speak()
	for _, node := range b.joined() {
		for _, e := range b.flows(node, onpath.FlowFilter{}) {
			if e.Path != 2 || e.Next == f.vport {
				b.t.Errorf("%s: %v at vport %d leads to %s %d of path %d", node, e.Tuple, e.Vport, e.Kind, e.Next, e.Path)
			}
		}
	}
}

// elementGoes: a chain loses an element. A packet is in the one that stays while the
// other direction alone goes over to the new path, and the old one ends. It goes on,
// whichever direction it is of, and so does its flow.
func elementGoes(b *testbed) {
	goes, stays := b.instance("goes", gateway), b.bridged("stays", "n2")
	flow := uint16(0)
	for _, kind := range []func(uint16) onpath.Tuple{tcp4, udp4, tcp6} {
		for _, reverse := range []bool{false, true} {
			flow++
			b.keepsPacket(kind(flow), reverse, onpath.PathID(2*flow), goes, stays)
		}
	}
}

// keepsPacket takes a flow of the path from two elements to the second of them alone,
// by another path.
func (b *testbed) keepsPacket(t onpath.Tuple, reverse bool, path onpath.PathID, goes, stays *instance) {
	b.t.Helper()
	old := one(&chain{path: path, match: toServer()}, goes, stays).chains[0]
	young := one(&chain{path: path + 1, match: toServer()}, stays).chains[0]
	l := &layout{chains: []*chain{old}, instances: []*instance{goes, stays}}
	b.apply(l)
	b.crosses(t, false, goes, stays)
	b.crosses(t, true, stays, goes)

	p, from, to, h := newPacket(t), clientNet, serverNet, hop{at: stays, reverse: reverse}
	if reverse {
		p, from, to = newPacket(t.Reverse()), serverNet, clientNet
	}
	p.flags = ack
	in, out := h.sides()
	var held []byte
	var f Frame
	for range 2 {
		b.send(gateway, from, p.bytes())
		if held = p.bytes(); !reverse {
			held = b.cross(hop{at: goes}, held)
		}
		f = b.expect(stays.node, in, held)
	}

	old.ended = true
	l.chains = []*chain{young, old}
	b.apply(l)
	old.closed = true
	b.applyAt(gateway, l) // alone, as the planner does it
	b.crosses(t, !reverse, stays)
	goes.withdrawn = true
	b.applyAt(stays.node, l)
	b.sendFrame(stays.node, out, Frame{Src: f.Src, Dst: f.Dst, Packet: held})
	b.expect(gateway, to, withTTL(held, 1))
	goes.withdrawn = false
	l.chains = []*chain{young}
	b.apply(l)
	b.sendFrame(stays.node, out, Frame{Src: f.Src, Dst: f.Dst, Packet: held})
	b.expect(gateway, to, withTTL(held, 1))
	b.crosses(t, reverse, stays)
	b.crosses(t, !reverse, stays)
}

// crosses takes a packet of a client's flow, or its answer, from one uplink of the
// gateway to the other, through instances and functions in the order given.
func (b *testbed) crosses(t onpath.Tuple, reverse bool, is ...*instance) {
	b.t.Helper()
	p, in, out := newPacket(t).bytes(), clientNet, serverNet
	if reverse {
		p, in, out = answerTo(t).bytes(), serverNet, clientNet
	}
	b.send(gateway, in, p)
	for _, i := range is {
		if i.inline != nil {
			p = b.runs(p, reverse, i)
		} else {
			p = b.cross(hop{at: i, reverse: reverse}, p)
		}
	}
	b.expect(gateway, out, withTTL(p, 1))
}

// applyAt makes the layout so on one node, before all others.
func (b *testbed) applyAt(node string, l *layout) {
	b.t.Helper()
	b.generation++
	b.configs[node] = b.config(node, l)
	b.join(node)
	b.configure(node, b.configs[node])
}

// ledNowhere: an entry leads to an instance that is gone and that no group chose. The
// entry then counts no more: the flow goes by the rules, like an unknown one.
func ledNowhere(b *testbed) {
	fw, proxy := b.instance("fw", "n2"), b.instance("proxy", gateway)
	proxy.own, proxy.routes = []netip.Addr{netip.MustParseAddr("10.1.0.77"), netip.MustParseAddr("2001:db8:1::77")}, true
	l := one(&chain{path: 1, match: toServer(), began: b.h.Now(), adopt: time.Hour}, fw)
	l.instances = append(l.instances, proxy)
	b.apply(l)
	device := onpath.DeviceName(proxy.vport)
	flows := []onpath.Tuple{
		tuple(udp, proxy.own[0], 5000, server, 53), tuple(udp, proxy.own[1], 5000, server6, 53), tuple(tcp, proxy.own[0], 5000, server, 80),
	}
	answer := func(t onpath.Tuple) []byte {
		p := newPacket(t.Reverse())
		p.flags = ack
		return p.bytes()
	}
	for _, t := range flows { // its own, which no chain knows of
		b.send(gateway, device, newPacket(t).bytes())
		b.expect(gateway, serverNet, withTTL(newPacket(t).bytes(), 1))
		b.send(gateway, serverNet, answer(t))
		b.expect(gateway, device, answer(t))
	}
	proxy.withdrawn = true
	b.apply(l)
	for range 2 {
		for _, t := range flows[:2] {
			b.through(serverNet, answer(t), clientNet, backwards(fw)...)
		}
		b.untouched(serverNet, answer(flows[2]), clientNet) // older than the chain
	}
}
