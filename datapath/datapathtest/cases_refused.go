package datapathtest

import (
	"bytes"
	"encoding/binary"

	"github.com/onpath/onpath"
)

// functionsApart: what a function was shown of a packet is not there any more when another
// tenant's sees a shorter one.
func functionsApart(b *testbed) {
	f, g := b.inline("f", gateway), b.inline("g", gateway)
	g.tenant = "other"
	at := func(port uint16) onpath.Match {
		m := toServer()
		m.DstPorts = ports(onpath.PortRange{First: port, Last: port})
		return m
	}
	b.apply(&layout{instances: []*instance{f, g}, chains: []*chain{
		{path: 1, match: at(5000), elements: []*element{{instances: []*instance{f}}}},
		{path: 2, match: at(leftoverPort), tenant: "other", elements: []*element{{instances: []*instance{g}}}},
	}})
	long := newPacket(tuple(udp, client, 1, server, 5000))
	long.payload = bytes.Repeat([]byte("secret"), 60)
	short := newPacket(tuple(udp, client, 1, server, leftoverPort))
	short.payload = []byte("x")
	for range 6 { // and in the end established, where a faster part may run them
		for p, f := range map[*packet]*instance{&long: f, &short: g} {
			raw := p.bytes()
			b.send(gateway, clientNet, raw)
			b.expect(gateway, serverNet, withTTL(b.runs(raw, false, f), 1))
			reply := *p
			reply.tuple = p.tuple.Reverse()
			raw = reply.bytes()
			b.send(gateway, serverNet, raw)
			b.expect(gateway, clientNet, withTTL(b.runs(raw, true, f), 1))
		}
	}
}

// refusedOptions: a connection that is refused hears so, whatever options and extension
// headers its SYN has; the RST has none.
func refusedOptions(b *testbed) {
	f := b.inline("f", gateway)
	b.apply(one(&chain{path: 1, match: toServer()}, f))
	b.nodes[gateway].loose[edgeVport] = true
	header := func(next byte) []byte { return []byte{next, 0, 1, 4, 0, 0, 0, 0} } // next header, length, PadN
	four, six := tuple(tcp, client, 1, server, refusedPort), tuple(tcp, client6, 1, server6, refusedPort)
	var syns []packet
	for _, options := range [][]byte{{1, 1, 1, 0}, {148, 4, 0, 0}, append([]byte{7, 39, 4}, make([]byte, 37)...)} {
		p := newPacket(four)
		p.options = options
		syns = append(syns, p)
	}
	for _, kind := range []byte{0, 60} {
		p := newPacket(six)
		p.ext, p.extType = header(tcp), kind
		syns = append(syns, p)
	}
	two := newPacket(six)
	two.ext, two.extType = append(header(60), header(tcp)...), 0
	for i, p := range append(syns, two) {
		p.tuple.SrcPort += uint16(i)
		p.payload = []byte("early data")
		raw := p.bytes()
		b.send(gateway, clientNet, raw)
		b.dropped(gateway, clientNet, onpath.DropFunction)
		add(&b.want(gateway, f.vport).Out, raw)
		r := b.receive(gateway, clientNet).Packet
		if err := checksums(r); err != nil {
			b.t.Errorf("the RST: %v", err)
		}
		size := 40
		if raw[0]>>4 == 6 {
			size = 60
		}
		_, l4 := transportOf(r)
		if len(r) != size || tupleOf(r) != p.tuple.Reverse() || l4[13] != rst|ack || binary.BigEndian.Uint32(l4[8:]) != p.seq+1+uint32(len(p.payload)) {
			b.t.Errorf("instead of a RST for %x came %x", raw, r)
		}
	}
}

// sourceRoute: what names routers that it is to pass goes through no chain, whether or not its
// flow is known; other options and routing headers do not matter.
func sourceRoute(b *testbed) {
	fw := b.instance("fw", gateway)
	b.apply(one(&chain{path: 1, match: toServer()}, fw))
	six := tuple(udp, client6, 1, server6, 53)
	b.forward(udp4(1), fw)
	b.forward(six, fw)
	routing := func(kind, left byte) []byte {
		return append([]byte{udp, 2, kind, left, 0, 0, 0, 0}, client6.AsSlice()...)
	}
	with := func(t onpath.Tuple, options, ext []byte) []byte {
		p := newPacket(t)
		p.options, p.ext, p.extType = options, ext, 43
		return p.bytes()
	}
	lsrr, ssrr := []byte{131, 7, 4, 10, 1, 0, 9, 0}, []byte{1, 137, 7, 4, 10, 1, 0, 9}
	for _, p := range [][]byte{
		with(udp4(1), lsrr, nil), with(udp4(1), ssrr, nil), with(udp4(2), lsrr, nil), with(udp4(2), append([]byte{68, 4, 5, 0}, lsrr...), nil),
		with(six, nil, routing(0, 1)), with(tuple(udp, client6, 2, server6, 53), nil, routing(0, 1)),
	} {
		b.send(gateway, clientNet, p)
		b.dropped(gateway, clientNet, onpath.DropSourceRoute)
	}
	b.quiet()
	for _, p := range [][]byte{
		with(udp4(1), []byte{148, 4, 0, 0}, nil), with(udp4(1), []byte{7, 7, 4, 131, 137, 0, 0, 0}, nil), with(udp4(1), []byte{0, 131, 7, 4}, nil),
		with(six, nil, routing(0, 0)), with(six, nil, routing(4, 1)),
	} {
		b.send(gateway, clientNet, p)
		b.expect(gateway, onpath.DeviceName(fw.vport), p)
	}
}
