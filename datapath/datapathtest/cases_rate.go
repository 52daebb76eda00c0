package datapathtest

import "github.com/onpath/onpath"

// rates: what an instance is sent, and what it sends, above its rate is dropped, and counted
// where it came from; each direction has its own limit, and what rests may burst.
func rates(b *testbed) {
	fw := b.instance("fw", gateway)
	l := one(&chain{path: 1, match: toServer()}, fw)
	p := newPacket(udp4(1))
	p.payload = make([]byte, 1424-28) // the burst is of 184.1 packets, and one more begins in it
	const burst = 185
	fw.rateOut = onpath.MinRate // gives a packet in 1.4 s
	b.apply(l)
	for range burst {
		b.through(clientNet, p.bytes(), serverNet, forwards(fw)...)
	}
	b.untilDropped(clientNet, p.bytes(), fw)

	fw.rateOut, fw.rateIn = 0, onpath.MinRate
	b.apply(l)
	for range burst {
		b.through(clientNet, p.bytes(), serverNet, forwards(fw)...)
	}
	in := onpath.DeviceName(fw.vport)
	b.untilDropped(in, withTTL(p.bytes(), 1), nil)

	fw.rateIn = 0 // the limit goes
	b.apply(l)
	for range 5 {
		b.through(clientNet, p.bytes(), serverNet, forwards(fw)...)
	}
}

// untilDropped sends a packet until its rate is used up; until then it comes to an instance,
// or, of none, leaves.
func (b *testbed) untilDropped(device string, p []byte, to *instance) {
	b.t.Helper()
	from := edgeVport
	if to == nil {
		from = b.vportOf(gateway, device)
	}
	for range 20 {
		was := b.counters(gateway).Vports[from].Dropped[onpath.DropRate]
		b.send(gateway, device, p)
		if to != nil {
			if _, ok := b.h.Receive(gateway, onpath.DeviceName(to.vport), quietTime); ok {
				add(&b.want(gateway, to.vport).Out, p)
				continue
			}
		} else if f, ok := b.h.Receive(gateway, serverNet, quietTime); ok {
			add(&b.want(gateway, edgeVport).Out, f.Packet)
			continue
		}
		if b.counters(gateway).Vports[from].Dropped[onpath.DropRate] > was {
			b.dropped(gateway, device, onpath.DropRate)
			return
		}
	}
	b.t.Fatal("nothing is dropped above the rate")
}
