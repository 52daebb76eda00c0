package datapathtest

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/onpath/onpath"
)

// asleep: what is for a sleeping instance goes to the agent, in order, and nowhere else; what
// the agent lets in goes on as if the instance had been awake, and what comes once it is
// awake goes straight there, by the same entries.
func asleep(b *testbed) {
	for _, node := range []string{gateway, "n2"} {
		b.join(node)
		next := b.keeps(node)
		for _, fw := range []*instance{b.instance("fw", node), b.bridged("bump", node)} {
			c := &chain{path: onpath.PathID(fw.vport), match: toServer()}
			fw.hold, fw.asleep = onpath.DefaultHold, true
			l := one(c, fw)
			b.apply(l)
			var sent [][]byte
			for i := range uint16(3) {
				for _, t := range []onpath.Tuple{tcp4(100 + i), udp4(200 + i), tuple(udp, client6, 300+i, server6, 53), ping(400 + i)} {
					p := newPacket(t).bytes()
					b.send(gateway, clientNet, p)
					sent = append(sent, p)
				}
			}
			var kept []onpath.Punted
			for i, p := range sent {
				k := next()
				if k == nil || k.Vport != fw.vport || !bytes.Equal(k.Packet, p) {
					b.t.Fatalf("%s on %s: of %d packets the agent got as number %d: %+v", fw.name, node, len(sent), i, k)
				}
				kept = append(kept, *k)
			}
			b.quiet()
			inlet, err := b.nodes[node].dp.(onpath.PuntReader).Inlet(fw.vport)
			if err != nil {
				b.t.Fatal(err)
			}
			for i, k := range kept {
				if err := inlet.Deliver(k.Frame); err != nil {
					b.t.Fatal(err)
				}
				b.expect(gateway, serverNet, withTTL(b.cross(forwards(fw)[0], sent[i]), 1))
			}
			if err := inlet.Open(); err != nil {
				b.t.Fatal(err)
			}
			b.forward(udp4(200), fw)
			b.apply(l) // it sleeps again, before any configuration had it awake
			again := newPacket(udp4(200)).bytes()
			b.send(gateway, clientNet, again)
			k := next()
			if k == nil || k.Vport != fw.vport {
				b.t.Fatalf("%s sleeps again, and the agent got %+v", fw.name, k)
			}
			if err := errors.Join(inlet.Deliver(k.Frame), inlet.Close()); err != nil {
				b.t.Fatal(err)
			}
			b.expect(gateway, serverNet, withTTL(b.cross(forwards(fw)[0], again), 1))
			fw.asleep = false
			b.apply(l)
			for _, t := range []onpath.Tuple{udp4(200), tcp4(500)} {
				b.forward(t, fw)
				b.backward(t, fw)
			}
			if k := next(); k != nil {
				b.t.Errorf("%s is awake, and the agent still got %+v", fw.name, k)
			}
		}
	}
}

// asleepWithinHold: small packets are bounded by what keeping them takes, not by their length.
func asleepWithinHold(b *testbed) {
	b.join(gateway)
	next := b.keeps(gateway)
	fw := b.instance("fw", gateway)
	fw.hold, fw.asleep = onpath.MinHold, true
	b.apply(one(&chain{path: 1, match: toServer()}, fw))
	p := newPacket(udp4(1)).bytes()
	fit := int(onpath.MinHold) / (len(p) + onpath.HeldOverhead)
	sent := 4 * fit
	if sent*len(p) >= int(onpath.MinHold) {
		b.t.Fatalf("%d packets of %d bytes are too many for this case", sent, len(p))
	}
	for range sent {
		b.send(gateway, clientNet, p)
	}
	got := 0
	for ; next() != nil; got++ {
		add(&b.want(gateway, fw.vport).Out, p)
	}
	if got < fit || got == sent {
		b.t.Errorf("of %d packets the agent got %d, must be about the %d that it keeps", sent, got, fit)
	}
	for range sent - got {
		b.dropped(gateway, clientNet, onpath.DropRate)
	}
}

// keeps reads what a node's data path hands to the agent, until the case ends.
func (b *testbed) keeps(node string) (next func() *onpath.Punted) {
	reader, ok := b.nodes[node].dp.(onpath.PuntReader)
	if !ok {
		b.t.Fatal("the driver has no punt port")
	}
	ctx, stop := context.WithCancel(b.t.Context())
	got, over := make(chan onpath.Punted, 200), make(chan struct{})
	go func() {
		defer close(over)
		_ = reader.Punted(ctx, func(p onpath.Punted) {
			p.Packet, p.Frame = bytes.Clone(p.Packet), bytes.Clone(p.Frame)
			got <- p
		})
	}()
	b.t.Cleanup(func() { stop(); <-over })
	return func() *onpath.Punted {
		select {
		case p := <-got:
			return &p
		case <-time.After(300 * time.Millisecond):
			return nil
		}
	}
}
