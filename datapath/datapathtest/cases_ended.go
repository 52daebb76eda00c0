package datapathtest

import (
	"time"

	"github.com/onpath/onpath"
)

// ended: live flows of a chain that is configured no more go the ordinary way,
// in both directions, or begin anew by the chain that selects them now, while
// the instance of the old one is still there and once it is gone.
func ended(b *bed) {
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
func closedPath(b *bed) {
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
