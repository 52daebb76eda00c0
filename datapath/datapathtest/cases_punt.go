package datapathtest

import (
	"bytes"
	"context"
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/onpath/onpath"
)

// gist is a message of GIST as far as the data path reads it: magic number, common header.
func gist(qmode bool, nslpid uint16) []byte {
	b := make([]byte, 24)
	binary.BigEndian.PutUint32(b, 0x4e04bda5)
	b[4], b[5] = 1, 32
	binary.BigEndian.PutUint16(b[8:], nslpid)
	if b[10] = 3; qmode {
		b[10] = 0x80
	}
	return b
}

func signalling(from, to netip.Addr, port uint16, payload []byte) []byte {
	p := newPacket(tuple(udp, from, 40000, to, port))
	p.payload = payload
	return p.bytes()
}

// punt: nobody reads, somebody reads, too many come, nothing is wanted any more.
func punt(b *testbed) {
	reader, ok := b.nodes[gateway].dp.(onpath.PuntReader)
	if !ok {
		b.t.Fatal("the driver has no punt port")
	}
	const application = 32704
	l := one(&chain{path: 1, match: web()}, b.instance("idle", gateway))
	query, query6 := signalling(client, server, 270, gist(true, application)), signalling(client6, server6, 270, gist(true, application))
	b.apply(l)
	b.untouched(clientNet, query, serverNet)
	c := b.config(gateway, l)
	c.Punt = &onpath.Punt{NSLPID: application, Rate: 100}
	b.configure(gateway, c)
	b.untouched(clientNet, query, serverNet)

	ctx, stop := context.WithCancel(b.t.Context())
	got, over := make(chan onpath.Punted, 200), make(chan struct{})
	go func() {
		defer close(over)
		_ = reader.Punted(ctx, func(p onpath.Punted) { p.Packet = bytes.Clone(p.Packet); got <- p })
	}()
	next := func(wait time.Duration) *onpath.Punted {
		select {
		case p := <-got:
			return &p
		case <-time.After(wait):
			return nil
		}
	}
	for begun := time.Now(); ; { // until it reads
		b.h.Send(gateway, clientNet, Frame{Packet: query})
		if p := next(200 * time.Millisecond); p != nil {
			break
		}
		b.receive(gateway, serverNet)
		if time.Since(begun) > 5*time.Second {
			b.t.Fatal("the agent is given nothing")
		}
	}
	own := b.nodes[gateway].spec.Uplinks[1].Addresses[0].Addr()
	for name, p := range map[string][]byte{"query": query, "query6": query6, "own address": signalling(client, own, 270, gist(false, application))} {
		b.h.Send(gateway, clientNet, Frame{Packet: p})
		if g := next(patience); g == nil || !bytes.Equal(g.Packet, p) || g.Vport != edgeOf(gateway) || g.Device == 0 {
			b.t.Errorf("%s: the agent got %+v", name, g)
		}
	}
	for _, p := range [][]byte{
		signalling(client, server, 270, gist(false, application)), // between two others
		signalling(client, server, 270, gist(true, application+1)),
		signalling(client, server, 271, gist(true, application)),
		signalling(client, server, 270, []byte("no message of GIST's, of its length")),
		signalling(client, server, 270, gist(true, application)[:8]),
	} {
		b.untouched(clientNet, p, serverNet)
	}
	for range 200 {
		b.h.Send(gateway, clientNet, Frame{Packet: query})
	}
	n := 0
	for next(200*time.Millisecond) != nil {
		n++
	}
	if n < 3 || n > 100 {
		b.t.Errorf("of 200 packets at once the agent was given %d; the rate is 100 a second", n)
	}
	b.noEntries()
	c.Punt = nil
	b.configure(gateway, c)
	b.untouched(clientNet, query, serverNet)
	stop()
	<-over
}
