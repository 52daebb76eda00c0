package datapathtest

import (
	"encoding/binary"

	"github.com/onpath/onpath"
)

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
