package datapathtest

import (
	"slices"

	"github.com/onpath/onpath"
)

// kindsChange: an element's function becomes one of another kind, is attached another way or
// runs elsewhere. While the one before drains, its flows stay with it and new ones go to
// the other; what is left of them goes there, too, once it is gone.
func kindsChange(b *testbed) {
	kinds := func() []*instance {
		return []*instance{
			b.instance("routed", gateway), b.bridged("bridged", gateway), b.inline("function", gateway),
			b.instance("routed-elsewhere", "n2"), b.inline("function-elsewhere", "n2"),
		}
	}
	before, after := kinds(), kinds()
	head, tail := b.instance("head", gateway), b.instance("tail", gateway)
	all := slices.Concat(before, after, []*instance{head, tail})
	path, port := onpath.PathID(1), uint16(1000)
	for _, old := range before {
		for _, young := range after {
			if old.inline == nil && young.inline == nil {
				continue // other cases have instances that drain
			}
			e := &element{instances: []*instance{old}, lost: []onpath.Lost{onpath.LostRepick, onpath.LostReset}[path%2]}
			front, behind := &element{instances: []*instance{head}}, &element{instances: []*instance{tail}}
			stands := [][]*element{{e}, {front, e}, {e, behind}}[path%3]
			c := &chain{path: path, match: toServer(), elements: stands}
			b.changes(c, e, old, young, port, all)
			if b.t.Failed() {
				b.t.Fatalf("%s became %s, as one of %d elements", old.name, young.name, len(stands))
			}
			path, port = path+1, port+10
		}
	}
}

// changes has the element's one instance give way to another.
func (b *testbed) changes(c *chain, e *element, old, young *instance, port uint16, all []*instance) {
	b.t.Helper()
	crossed := func(i *instance) []*instance {
		var out []*instance
		for _, x := range c.elements {
			if x == e {
				out = append(out, i)
			} else {
				out = append(out, x.instances[0])
			}
		}
		return out
	}
	running, datagrams, late := tcp4(port), udp4(port), tcp4(port+1)
	old.state, young.state = onpath.VportUp, onpath.VportUp
	l := &layout{chains: []*chain{c}, instances: all}
	speak := func(t onpath.Tuple, i *instance) {
		b.t.Helper()
		b.says(t, false, ack, crossed(i)...)
		b.says(t, true, ack, reversed(crossed(i))...)
	}
	b.apply(l)
	b.connects(running, crossed(old)...)
	speak(datagrams, old)

	old.state = onpath.VportDraining
	e.instances = []*instance{old, young}
	b.apply(l)
	b.connects(late, crossed(young)...)
	b.blocks(c, young, port+2)
	speak(running, old)
	speak(datagrams, old)
	waysToEnd[0].end(b, running, crossed(old)...)

	old.state = onpath.VportClosed
	b.apply(l)
	if old.inline == nil { // flows of functions keep theirs, which is out of service
		speak(datagrams, young)
	}
	speak(late, young)
	e.instances = []*instance{young}
	b.apply(l)
	speak(late, young)
	b.connects(tcp4(port+3), crossed(young)...)
	for _, t := range []onpath.Tuple{late, tcp4(port + 3)} {
		waysToEnd[0].end(b, t, crossed(young)...)
	}
}

// blocks sends what the exam's function drops, if that comes first in the chain.
func (b *testbed) blocks(c *chain, i *instance, port uint16) {
	b.t.Helper()
	if i.inline == nil || c.elements[0].instances[len(c.elements[0].instances)-1] != i {
		return
	}
	p := newPacket(tuple(tcp, client, port, server, droppedPort)).bytes()
	b.send(gateway, clientNet, p)
	add(&b.want(i.node, i.vport).Out, p)
	if i.node == gateway {
		b.dropped(gateway, clientNet, onpath.DropFunction)
	}
}
