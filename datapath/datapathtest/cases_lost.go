package datapathtest

import "github.com/onpath/onpath"

// handshake opens a TCP connection through instances: afterwards the client has
// acknowledged 5001, the server 1001.
func (b *testbed) handshake(t onpath.Tuple, is ...*instance) {
	b.t.Helper()
	there, back := forwards(is...), backwards(reversed(is)...)
	b.through(clientNet, newPacket(t).bytes(), serverNet, there...)
	answer := answerTo(t)
	answer.seq = 5000
	b.through(serverNet, answer.bytes(), clientNet, back...)
	b.through(clientNet, running(t, 1001, 5001).bytes(), serverNet, there...)
}

func reversed(is []*instance) []*instance {
	var out []*instance
	for n := range is {
		out = append(out, is[len(is)-1-n])
	}
	return out
}

// running is a packet in the middle of a connection.
func running(t onpath.Tuple, seq, acked uint32) packet {
	p := newPacket(t)
	p.flags, p.seq, p.ack, p.payload = ack|psh, seq, acked, []byte("data")
	return p
}

// waiting: with lost: reset also the end is reset that only waits. From the first
// instance on the way the reset comes at once; else through the elements before
// the dead one, as if that had answered, with a number that makes the end speak.
func waiting(b *testbed) {
	br, fw := b.bridged("br", gateway), b.instance("fw", "n2")
	mortals := []*instance{b.instance("here", "n2"), b.instance("there", sideNode)}
	l := one(&chain{path: 1, match: toServer()}, br, fw)
	l.chains[0].elements = append(l.chains[0].elements, &element{instances: mortals, lost: onpath.LostReset})
	l.instances = append(l.instances, mortals...)
	mortals[1].state = onpath.VportDraining
	b.apply(l)
	for n, t := range []onpath.Tuple{tcp4(1000), tcp6(1000)} {
		dead := mortals[n]
		dead.state = onpath.VportUp
		b.apply(l)
		b.handshake(t, br, fw, dead)
		dead.state = onpath.VportClosed
		b.apply(l)
		b.nodes[gateway].loose[edgeVport] = true
		b.isReset(serverNet, t.Reverse(), 1001)

		f := b.receive(fw.node, onpath.DeviceName(fw.vport))
		if err := checksums(f.Packet); err != nil {
			b.t.Errorf("the RST: %v", err)
		}
		_, l4 := transportOf(f.Packet)
		if got := tupleOf(f.Packet); got != t.Reverse() || l4[13]&rst == 0 {
			b.t.Fatalf("instead of a RST for %v came %x", t, f.Packet)
		}
		if seq := be32(l4[4:]); seq <= 5001 || seq > 5001+256 {
			b.t.Errorf("the RST has sequence number %d, must be within 256 behind 5001", seq)
		}
		p := withTTL(f.Packet, 1)
		b.send(fw.node, onpath.DeviceName(fw.vport), p)
		p = b.cross(hop{at: br, reverse: true}, p)
		b.expect(gateway, clientNet, withTTL(p, 1))

		challenge := running(t, 1001, 5009) // has received more than it acknowledged
		p = challenge.bytes()
		b.send(gateway, clientNet, p)
		p = b.cross(hop{at: br}, p)
		b.expect(fw.node, onpath.DeviceName(fw.vport), p)
		p = withTTL(p, 1)
		b.send(fw.node, onpath.DeviceName(fw.vport), p)
		b.dropped(fw.node, onpath.DeviceName(fw.vport), onpath.DropReset)
		f = b.receive(fw.node, onpath.DeviceName(fw.vport))
		_, l4 = transportOf(f.Packet)
		if seq := be32(l4[4:]); seq != 5009 || l4[13]&rst == 0 {
			b.t.Errorf("what ends the connection has sequence number %d and flags %x, must be a RST with 5009", seq, l4[13])
		}
	}
}

// revenant: an instance that knows its connections dies and serves again, and what is left
// in it of one still speaks, when its ports belong to another connection, at another
// instance. That one stays there, both ways.
func revenant(b *testbed) {
	fw, mortals := b.instance("fw", "n2"), []*instance{b.instance("first", sideNode), b.instance("second", gateway)}
	l := one(&chain{path: 1, match: toServer()}, fw)
	l.chains[0].elements = append(l.chains[0].elements, &element{instances: mortals, lost: onpath.LostReset})
	l.instances = append(l.instances, mortals...)
	b.nodes[gateway].loose[edgeVport] = true
	for n, t := range []onpath.Tuple{tcp4(1000), tcp6(1000)} {
		old, stays := mortals[n], mortals[1-n]
		device := onpath.DeviceName(old.vport)
		old.state, stays.state = onpath.VportUp, onpath.VportDraining
		b.apply(l)
		b.handshake(t, fw, old)
		old.state, stays.state = onpath.VportClosed, onpath.VportUp
		b.apply(l)
		b.bothReset(t, fw)
		b.handshake(t, fw, stays)

		old.state = onpath.VportUp
		b.apply(l)
		left := running(t.Reverse(), 77, 1001)
		b.send(old.node, device, left.bytes())
		b.expect(fw.node, onpath.DeviceName(fw.vport), left.bytes())
		b.send(fw.node, onpath.DeviceName(fw.vport), withTTL(left.bytes(), 1))
		b.expect(gateway, clientNet, withTTL(left.bytes(), 2))
		left = running(t, 77, 5001)
		b.send(old.node, device, left.bytes())
		b.expect(gateway, serverNet, withTTL(left.bytes(), 1))

		b.through(clientNet, running(t, 1005, 5001).bytes(), serverNet, forwards(fw, stays)...)
		b.through(serverNet, running(t.Reverse(), 5001, 1009).bytes(), clientNet, backwards(stays, fw)...)
		end := running(t, 1009, 5005)
		end.flags = rst
		b.through(clientNet, end.bytes(), serverNet, forwards(fw, stays)...)
	}
}

// bothReset takes the resets of a connection whose instance has died: the server's, and
// the client's through the firewall before.
func (b *testbed) bothReset(t onpath.Tuple, fw *instance) {
	b.t.Helper()
	b.isReset(serverNet, t.Reverse(), 1001)
	b.passReset(fw)
}

// passReset has a firewall pass a reset that comes to it on to the client.
func (b *testbed) passReset(fw *instance) {
	b.t.Helper()
	device := onpath.DeviceName(fw.vport)
	p := withTTL(b.receive(fw.node, device).Packet, 1)
	b.send(fw.node, device, p)
	b.expect(gateway, clientNet, withTTL(p, 1))
}

// begunElsewhere: an instance that knows its connections has died, and the gateway has not
// heard. Where a connection by the same ports begins at another, its answers go there.
func begunElsewhere(b *testbed) {
	fw, mortals := b.instance("fw", "n2"), []*instance{b.instance("first", sideNode), b.instance("second", gateway)}
	l := one(&chain{path: 1, match: toServer()}, fw)
	l.chains[0].elements = append(l.chains[0].elements, &element{instances: mortals, lost: onpath.LostReset})
	l.instances = append(l.instances, mortals...)
	mortals[1].state = onpath.VportDraining
	b.apply(l)
	t := tcp4(1000)
	b.handshake(t, fw, mortals[0])
	mortals[0].state, mortals[1].state = onpath.VportClosed, onpath.VportUp
	b.applyAt(fw.node, l)
	b.passReset(fw)
	b.handshake(t, fw, mortals[1])
}

// portsAgain: a firewall's node knows a connection that was reset with its instance. When
// another by the same ports, which runs through another firewall, at another instance,
// comes to this one, as its own has died, it goes on where it is.
func portsAgain(b *testbed) {
	firewalls := []*instance{b.instance("fw1", "n2"), b.instance("fw2", sideNode)}
	mortals := []*instance{b.instance("first", sideNode), b.instance("second", gateway)}
	l := one(&chain{path: 1, match: toServer()}, firewalls...)
	l.chains[0].elements = []*element{{instances: firewalls}, {instances: mortals, lost: onpath.LostReset}}
	l.instances = append(l.instances, mortals...)
	b.nodes[gateway].loose[edgeVport] = true
	states := func(fw1, fw2, first, second onpath.VportState) {
		firewalls[0].state, firewalls[1].state, mortals[0].state, mortals[1].state = fw1, fw2, first, second
		b.apply(l)
	}
	const up, draining, closed = onpath.VportUp, onpath.VportDraining, onpath.VportClosed
	t := tcp4(1000)
	states(up, draining, up, draining)
	b.handshake(t, firewalls[0], mortals[0])
	states(up, draining, closed, up)
	b.bothReset(t, firewalls[0])
	states(closed, up, closed, up)
	b.handshake(t, firewalls[1], mortals[1])
	states(up, closed, up, up)
	b.through(serverNet, running(t.Reverse(), 5001, 1001).bytes(), clientNet, backwards(mortals[1], firewalls[0])...)
	b.through(clientNet, running(t, 1001, 5005).bytes(), serverNet, forwards(firewalls[0], mortals[1])...)
}

func be32(b []byte) uint32 {
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}

// heardFirst: an instance that knows its connections serves again, and a connection comes
// through it, or is begun by it, before the gateway knows that it does. Its answers are
// led back, and only the death after that resets it; but where the instance's node does
// not answer the gateway, they are reset.
func heardFirst(b *testbed) {
	fw, mortals := b.instance("fw", sideNode), []*instance{b.instance("first", "n2"), b.instance("second", "n2"), b.instance("third", "n2")}
	l := one(&chain{path: 1, match: toServer()}, fw)
	l.chains[0].elements = append(l.chains[0].elements, &element{instances: mortals, lost: onpath.LostReset})
	l.instances = append(l.instances, mortals...)
	for _, i := range mortals {
		i.state, i.packets = onpath.VportClosed, onpath.PacketsOriginate
		i.emits = []emission{{path: 1, element: 1, match: toServer()}}
	}
	b.apply(l)
	for n, t := range []onpath.Tuple{tcp4(1000), tcp6(1000)} {
		back, begun := mortals[n], t
		begun.SrcPort++
		device := onpath.DeviceName(back.vport)
		both := func() {
			b.through(serverNet, running(t.Reverse(), 5001, 1001).bytes(), clientNet, backwards(back, fw)...)
			b.send(gateway, serverNet, answerTo(begun).bytes())
			b.expect(back.node, device, answerTo(begun).bytes())
		}
		mortals[0].state, back.state = onpath.VportDraining, onpath.VportUp
		b.applyAt(back.node, l)
		b.applyAt(fw.node, l)
		b.handshake(t, fw, back)
		b.send(back.node, device, newPacket(begun).bytes())
		b.expect(gateway, serverNet, withTTL(newPacket(begun).bytes(), 1))
		both()
		b.applyAt(gateway, l)
		both()
	}
	mortals[1].state = onpath.VportClosed
	b.apply(l)
	b.nodes[gateway].loose[edgeVport] = true
	b.receive(gateway, serverNet) // both wait
	b.receive(gateway, serverNet)
	b.receive(fw.node, onpath.DeviceName(fw.vport))
	t := tcp6(1000).Reverse()
	b.send(gateway, serverNet, running(t, 5005, 1001).bytes())
	b.dropped(gateway, serverNet, onpath.DropReset)
	b.isReset(serverNet, t, 1001)

	mortals[0].state, mortals[2].state = onpath.VportDraining, onpath.VportUp
	b.applyAt(mortals[2].node, l)
	b.applyAt(fw.node, l)
	t = tcp4(2000)
	b.through(clientNet, newPacket(t).bytes(), serverNet, forwards(fw, mortals[2])...)
	mortals[2].state, mortals[2].away = onpath.VportClosed, true
	b.applyAt(gateway, l)
	b.send(gateway, serverNet, answerTo(t).bytes())
	b.dropped(gateway, serverNet, onpath.DropReset)
	b.isReset(serverNet, t.Reverse(), 1001)
}

// repickBefore: a stateless instance dies, and behind it stands an element whose
// instances know their connections, among them now some that were not there when
// the connections began. Each connection goes on at the instance that knows it.
func repickBefore(b *testbed) {
	x, y := b.instance("x", gateway), b.instance("y", "n2")
	caches := []*instance{
		b.instance("a", gateway), b.instance("b", "n2"), b.instance("c", sideNode), b.instance("d", "n2"),
	}
	l := &layout{
		chains: []*chain{{path: 1, match: toServer(), elements: []*element{
			{instances: []*instance{x, y}}, {instances: caches, lost: onpath.LostReset},
		}}},
		instances: append([]*instance{x, y}, caches...),
	}
	only := func(open *instance, others ...*instance) {
		for _, i := range others {
			i.state = onpath.VportDraining
		}
		open.state = onpath.VportUp
	}
	for n := range uint16(16) {
		t, owner := tcp4(1000+n), caches[n%4]
		dies, heir := x, y
		if n/4%2 == 1 {
			dies, heir = y, x
		}
		only(dies, x, y)
		only(owner, caches...)
		b.apply(l)
		b.handshake(t, dies, owner)

		for _, i := range caches {
			i.state = onpath.VportUp
		}
		heir.state, dies.state = onpath.VportUp, onpath.VportClosed
		b.apply(l)
		there := func() {
			b.through(clientNet, running(t, 1001, 5001).bytes(), serverNet, forwards(heir, owner)...)
		}
		back := func() {
			b.through(serverNet, running(t.Reverse(), 5001, 1001).bytes(), clientNet, backwards(owner, heir)...)
		}
		if n%2 == 0 {
			there()
		}
		back()
		there()
		back()
	}
}

// repickFunctions: functions stand before, between and behind elements, on another node
// than these or the same, and an instance dies: its flows go on at another one, whichever
// direction speaks first, even if the other says nothing; and once more when that dies.
func repickFunctions(b *testbed) {
	path := onpath.PathID(0)
	for _, on := range [][2]string{{gateway, gateway}, {"n2", sideNode}, {gateway, "n2"}, {"n2", "n2"}} {
		for _, stand := range [][3]bool{{false, true, false}, {true, false, false}, {true, true, false}, {false, true, true}, {true, true, true}} {
			path++
			x, y := b.instance("x", on[0]), b.instance("y", on[1])
			l := &layout{instances: []*instance{x, y}}
			c := &chain{path: path, match: toServer()}
			var before, behind []*instance
			function := func(to *[]*instance) {
				f := b.inline("f", gateway)
				*to, l.instances = append(*to, f), append(l.instances, f)
				c.elements = append(c.elements, &element{instances: []*instance{f}})
			}
			if stand[0] {
				function(&before)
			}
			c.elements = append(c.elements, &element{instances: []*instance{x, y}})
			if stand[1] {
				function(&behind)
			}
			if stand[2] {
				function(&behind)
			}
			l.chains = []*chain{c}
			for n := range uint16(2) {
				b.repickOne(l, tcp4(1000*uint16(path)+n), n%2 == 1, x, y, before, behind)
			}
		}
	}
}

// repickOne takes a connection through the death of the instance that it meets, and of
// the one that takes over.
func (b *testbed) repickOne(l *layout, t onpath.Tuple, answersFirst bool, x, y *instance, before, behind []*instance) {
	b.t.Helper()
	there := func(i *instance) {
		p := running(t, 1001, 5001).bytes()
		b.send(gateway, clientNet, p)
		p = b.cross(hop{at: i}, b.runs(p, false, before...))
		b.expect(gateway, serverNet, withTTL(b.runs(p, false, behind...), 1))
	}
	back := func(i *instance) {
		p := running(t.Reverse(), 5001, 1001).bytes()
		b.send(gateway, serverNet, p)
		p = b.cross(hop{at: i, reverse: true}, b.runs(p, true, reversed(behind)...))
		b.expect(gateway, clientNet, withTTL(b.runs(p, true, reversed(before)...), 1))
	}
	x.state, y.state = onpath.VportUp, onpath.VportDraining
	b.apply(l)
	there(x)
	back(x)
	for _, other := range []*instance{y, x} {
		x.state, y.state = onpath.VportClosed, onpath.VportClosed
		other.state = onpath.VportUp
		b.apply(l)
		if answersFirst {
			back(other)
			back(other)
		}
		there(other)
		back(other)
		there(other)
	}
}
