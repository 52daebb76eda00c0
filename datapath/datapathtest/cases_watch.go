package datapathtest

import (
	"fmt"
	"maps"

	"github.com/onpath/onpath"
)

// watch: each hop counts a watched flow's packets, to the packet, with the
// reasons of drops, and those of no other flow.
func watch(b *testbed) {
	fw := b.instance("fw", "n2")
	l := one(&chain{path: 1, match: toServer(), mtu: 1400}, fw)
	b.apply(l)
	b.nodes[gateway].loose[edgeVport] = true // the ICMP errors' bytes
	t := udp4(1)
	b.forward(t, fw) // before the watch: not counted
	for _, n := range []string{gateway, "n2"} {
		b.watching(n, t, t.Reverse())
	}
	for range 5 {
		b.forward(t, fw)
		b.forward(udp4(2), fw)
	}
	for range 4 {
		b.backward(t, fw)
	}
	for range 2 { // the function drops these
		p := newPacket(t).bytes()
		b.send(gateway, clientNet, p)
		b.expect(fw.node, onpath.DeviceName(fw.vport), p)
	}
	for range 2 {
		p := newPacket(t)
		p.payload = make([]byte, 1401-28)
		b.send(gateway, clientNet, p.bytes())
		b.dropped(gateway, clientNet, onpath.DropTooBig)
		b.isTooBig(clientNet, p.bytes(), 1400)
	}
	fw.state = onpath.VportClosed
	b.apply(l)
	for range 3 {
		b.send(gateway, clientNet, newPacket(t).bytes())
		b.dropped(gateway, clientNet, onpath.DropNoInstance)
	}
	drops := map[onpath.DropReason]uint64{onpath.DropTooBig: 2, onpath.DropNoInstance: 3}
	b.watched(gateway, t, map[onpath.VportID]seen{edgeVport: {in: 12, out: 5, dropped: drops}, fw.vport: {in: 5, out: 7}})
	b.watched("n2", t, map[onpath.VportID]seen{edgeVport: {in: 7, out: 5}, fw.vport: {in: 5, out: 7}})
	b.watched(gateway, t.Reverse(), map[onpath.VportID]seen{edgeVport: {in: 4, out: 4}, fw.vport: {in: 4, out: 4}})
	b.watched("n2", t.Reverse(), map[onpath.VportID]seen{edgeVport: {in: 4, out: 4}, fw.vport: {in: 4, out: 4}})
}

// seen are packets counted at a vport.
type seen struct {
	in, out uint64
	dropped map[onpath.DropReason]uint64
}

func (b *testbed) watching(node string, ts ...onpath.Tuple) []onpath.FlowCounters {
	b.t.Helper()
	f, err := b.nodes[node].dp.Watch(b.t.Context(), onpath.WatchSpec{Tuples: ts})
	if err != nil || len(f) != len(ts) {
		b.t.Fatalf("Watch on %s: %v, %v", node, f, err)
	}
	return f
}

func (b *testbed) watched(node string, t onpath.Tuple, want map[onpath.VportID]seen) {
	b.t.Helper()
	var got map[onpath.VportID]seen
	defer func() {
		if b.t.Failed() {
			b.t.Logf("counted: %v", got)
		}
	}()
	b.eventually(fmt.Sprintf("%v counted on %s as %v", t, node, want), func() bool {
		got = map[onpath.VportID]seen{}
		for v, c := range b.watching(node, t)[0].Vports {
			got[v] = seen{c.In.Packets, c.Out.Packets, c.Dropped}
		}
		return maps.EqualFunc(got, want, func(x, y seen) bool {
			return x.in == y.in && x.out == y.out && maps.Equal(x.dropped, y.dropped)
		})
	})
}

// bareToo compares bare entries with whole ones, in what they say.
func (b *testbed) bareToo(f onpath.FlowFilter) {
	b.t.Helper()
	for _, node := range b.joined() {
		left := map[string]int{}
		for sign, bare := range map[int]bool{1: false, -1: true} {
			f.Bare = bare
			for _, e := range b.flows(node, f) {
				left[fmt.Sprint(e.Vport, e.Kind, e.Next, e.Functions, e.Path, e.Reverse)] += sign
			}
		}
		for e, n := range left {
			if n != 0 {
				b.t.Errorf("%s: of entries %s there are %d more among all than among bare ones", node, e, n)
			}
		}
	}
}
