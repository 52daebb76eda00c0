package datapathtest

import (
	"slices"

	"github.com/onpath/onpath"
)

// underlayMissing: without the underlay address a configuration comes into force all the
// same. Other nodes' instances count as lost, until the next Apply finds the address.
func underlayMissing(b *testbed) {
	here, there, last := b.instance("here", gateway), b.instance("there", "n2"), b.instance("last", "n2")
	udpOnly := toServer()
	udpOnly.Protocol = []uint8{udp}
	l := &layout{
		chains: []*chain{
			{path: 1, match: udpOnly, elements: []*element{{instances: []*instance{here, there}}}},
			{path: 2, match: web(), elements: []*element{{instances: []*instance{last}, none: onpath.NoneBypass}}},
		},
		instances: []*instance{here, there, last},
	}
	here.state = onpath.VportDraining
	b.apply(l)
	both := func(t onpath.Tuple, i *instance) {
		b.t.Helper()
		b.forward(t, i)
		b.backward(t, i)
	}
	both(udp4(1), there)
	both(tcp4(1), last)

	b.h.Underlay(gateway, false)
	here.state = onpath.VportUp
	b.apply(l)
	both(udp4(1), here)
	both(udp4(2), here)
	b.untouched(clientNet, newPacket(tcp4(2)).bytes(), serverNet)

	here.state = onpath.VportDraining // of this node alone: it is no less in force
	c := b.config(gateway, l)
	c.Edge.Table = 0
	b.configure(gateway, c)
	b.untouched(clientNet, newPacket(udp4(3)).bytes(), serverNet)

	b.h.Underlay(gateway, true)
	b.apply(l)
	both(udp4(4), there)
	both(tcp4(4), last)
	both(udp4(1), here)

	b.h.Underlay(gateway, false)
	here.state = onpath.VportUp
	c = b.config(gateway, l)
	c.Peers = nil
	c.Vports = slices.DeleteFunc(c.Vports, func(v onpath.Vport) bool { return v.Kind == onpath.VportRemote })
	b.configure(gateway, c)
	both(udp4(5), here)
}
