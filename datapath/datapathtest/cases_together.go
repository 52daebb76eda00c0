package datapathtest

import (
	"net/netip"
	"slices"

	"github.com/onpath/onpath"
)

// between are n flows between a client and a server, of different ports.
func between(client, server netip.Addr, from, n int) (list []onpath.Tuple) {
	for i := range n {
		list = append(list, tuple(udp, client, uint16(2000+from+i), server, uint16(53+i%2)))
	}
	return list
}

// together: all flows of an address, or between two, meet one instance, whichever end
// begins them, also where instances have come and gone since the first.
func together(b *testbed) {
	for k, how := range []onpath.Together{onpath.TogetherFlow, onpath.TogetherSource, onpath.TogetherHosts} {
		staysTogether(b, how, k)
	}
}

func staysTogether(b *testbed, how onpath.Together, nth int) {
	b.t.Helper()
	l, is := b.pool(4)
	l.chains[0].elements[0].together = how
	l.instances, l.chains[0].elements[0].instances = is[:3], is[:3]
	b.apply(l)
	const pairs, each = 12, 3
	other := netip.MustParseAddr("10.9.0.77")
	at := map[netip.Addr]*instance{}
	meet := func(what string, from int, server netip.Addr, among ...*instance) {
		b.t.Helper()
		apart := 0
		for _, reverse := range []bool{false, true} {
			var ts []onpath.Tuple
			for c := range pairs {
				ts = append(ts, between(netip.AddrFrom4([4]byte{10, 1, byte(9 + nth), byte(c)}), server, from, each)...)
			}
			from += each
			for t, i := range b.spread(ts, reverse, among...) {
				if at[t.Src] == nil {
					at[t.Src] = i
				}
				if at[t.Src] != i {
					apart++
				}
			}
		}
		if how.Apart() != (apart > 0) {
			b.t.Errorf("%s: %s: %d of %d flows met another instance than the first of their addresses", how, what, apart, 2*pairs*each)
		}
	}
	meet("at first", 0, server, is[:3]...)
	if how == onpath.TogetherSource {
		meet("to another server", 100, other, is[:3]...)
	}

	l.instances, l.chains[0].elements[0].instances = is, is
	is[0].weight, is[1].state, is[2].weight = 5, onpath.VportDraining, 0
	b.apply(l)
	meet("after one instance came, and one drains", 200, server, is...)
	fresh := count(b.spread(flows(100*nth, 100), false, is...))
	if fresh[is[3]] == 0 || fresh[is[1]] > 0 || fresh[is[2]] > 0 {
		b.t.Errorf("%s: flows of others met the instances %v times", how, []int{fresh[is[0]], fresh[is[1]], fresh[is[2]], fresh[is[3]]})
	}

	gone := is[0]
	gone.withdrawn = true
	b.apply(l)
	for a, i := range at {
		if i == gone {
			delete(at, a)
		}
	}
	meet("after one instance went", 300, server, is[1:]...)
	b.nodes[gone.node].devices = slices.DeleteFunc(b.nodes[gone.node].devices, func(d string) bool {
		return d == onpath.DeviceName(gone.vport)
	})
	for _, i := range is[1:] {
		i.withdrawn = true
	}
	b.apply(l)
	for _, i := range is[1:] {
		b.nodes[i.node].devices = slices.DeleteFunc(b.nodes[i.node].devices, func(d string) bool {
			return d == onpath.DeviceName(i.vport)
		})
	}
}
