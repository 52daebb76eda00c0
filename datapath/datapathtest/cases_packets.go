package datapathtest

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"github.com/onpath/onpath"
)

// fragments follow the first of their datagram; one whose first did not come by
// is dropped if the chain is strict, else passed by.
func fragments(b *testbed) {
	fw, br := b.instance("fw", "n2"), b.bridged("br", gateway)
	dns := toServer()
	dns.Protocol, dns.DstPorts = []uint8{udp}, ports(onpath.PortRange{First: 53, Last: 53})
	c := &chain{path: 1, match: dns, strict: true}
	l := one(c, fw, br)
	b.apply(l)
	for n, t := range []onpath.Tuple{udp4(1), tuple(udp, client6, 1, server6, 53)} {
		p := newPacket(t)
		p.payload, p.id = bytes.Repeat([]byte("fragment"), 15), 4000+uint32(n)
		first, rest := p, p
		first.more, rest.offset = true, 64
		for range 2 {
			b.through(clientNet, first.bytes(), serverNet, forwards(fw, br)...)
			b.through(clientNet, rest.bytes(), serverNet, forwards(fw, br)...)
			first.id, rest.id = first.id+100, rest.id+100
		}
		reply := p
		reply.tuple = t.Reverse()
		first, rest = reply, reply
		first.more, rest.offset = true, 64
		b.through(serverNet, first.bytes(), clientNet, backwards(br, fw)...)
		b.through(serverNet, rest.bytes(), clientNet, backwards(br, fw)...)

		orphan := p
		orphan.id, orphan.offset = 9000, 64
		b.send(gateway, clientNet, orphan.bytes())
		b.dropped(gateway, clientNet, onpath.DropUnclassified)
	}
	// One that no chain can select, for its addresses or its protocol, is nobody's, however
	// strict the chain.
	for n, t := range []onpath.Tuple{
		tuple(udp, netip.MustParseAddr("10.8.0.1"), 1, client, 1), tcp4(1), tcp6(1), tuple(udp, netip.MustParseAddr("2001:db8:8::1"), 1, client6, 1),
	} {
		orphan := newPacket(t)
		orphan.payload, orphan.id, orphan.offset = bytes.Repeat([]byte("fragment"), 15), 9100+uint32(n), 64
		from, to := serverNet, clientNet
		if t.Protocol == tcp {
			from, to = clientNet, serverNet
		}
		b.untouched(from, orphan.bytes(), to)
	}
	b.pathCounts(1, 12, 0)
	c.strict = false
	b.apply(l)
	for n, t := range []onpath.Tuple{udp4(2), tuple(udp, client6, 2, server6, 53)} {
		orphan := newPacket(t)
		orphan.payload, orphan.id, orphan.offset = bytes.Repeat([]byte("fragment"), 15), 9500, 64
		b.untouched(clientNet, orphan.bytes(), serverNet)
		b.pathCounts(1, 12, uint64(n)+1)
	}
	// A fragment that no chain selects by its addresses is nobody's.
	other := newPacket(tuple(udp, server, 1, client, 1))
	other.payload, other.id, other.offset = bytes.Repeat([]byte("fragment"), 15), 9600, 64
	other.tuple.Src = netip.MustParseAddr("10.8.0.1")
	b.untouched(serverNet, other.bytes(), clientNet)
	b.pathCounts(1, 12, 2)
}

// unreadable: what is selected by addresses but whose ports cannot be read.
func unreadable(b *testbed) {
	fw := b.instance("fw", gateway)
	c := &chain{path: 1, match: web(), strict: true}
	l := one(c, fw)
	b.apply(l)
	cut := newPacket(tcp4(1)).bytes()[:30]
	binary.BigEndian.PutUint16(cut[2:], 30)
	cut[10], cut[11] = 0, 0
	binary.BigEndian.PutUint16(cut[10:], ^sum(0, cut[:20]))
	b.send(gateway, clientNet, cut)
	b.dropped(gateway, clientNet, onpath.DropUnclassified)
	c.strict = false
	b.apply(l)
	b.untouched(clientNet, cut, serverNet)
	b.pathCounts(1, 0, 1)
}

// extensions: IPv6 extension headers are walked.
func extensions(b *testbed) {
	fw := b.instance("fw", "n2")
	b.apply(one(&chain{path: 1, match: web()}, fw))
	padding := []byte{0, 0, 1, 4, 0, 0, 0, 0} // next header, length, PadN
	header := func(next byte) []byte { return append([]byte{next}, padding[1:]...) }
	for n, ext := range [][]byte{
		header(tcp),
		append(header(60), header(tcp)...),
		append(append(header(60), header(60)...), header(tcp)...),
	} {
		p := newPacket(tcp6(uint16(n)))
		p.ext, p.extType = ext, 60 // destination options
		b.through(clientNet, p.bytes(), serverNet, forwards(fw)...)
		b.leads(gateway, edgeVport, p.tuple, onpath.NextVport, fw.vport)
	}
}

// tooManyExtensions: behind a pile of extension headers the ports count as
// unreadable, or the pile would lead past the firewall.
func tooManyExtensions(b *testbed) {
	fw := b.instance("fw", gateway)
	b.apply(one(&chain{path: 1, match: web(), strict: true}, fw))
	p := newPacket(tcp6(1))
	p.extType = 60
	for n := range 40 {
		next := byte(60)
		if n == 39 {
			next = tcp
		}
		p.ext = append(p.ext, next, 0, 1, 4, 0, 0, 0, 0)
	}
	b.send(gateway, clientNet, p.bytes())
	b.dropped(gateway, clientNet, onpath.DropUnclassified)
}

// vlan: frames of a VLAN are of another network than that of the router's uplink, and no
// chain takes them; the kernel has no device for them here. One with tag 0, which only
// has a priority, is taken, and elements see no tag.
func vlan(b *testbed) {
	fw := b.instance("fw", gateway)
	b.apply(one(&chain{path: 1, match: toServer()}, fw))
	for n, tags := range [][]uint16{{100}, {200, 100}, {0, 100}} {
		b.h.Send(gateway, clientNet, Frame{Tags: tags, Packet: newPacket(udp4(uint16(n))).bytes()})
		b.quiet()
	}
	p := newPacket(udp4(7)).bytes()
	b.sendFrame(gateway, clientNet, Frame{Tags: []uint16{0}, Packet: p})
	if f := b.expect(gateway, onpath.DeviceName(fw.vport), p); len(f.Tags) > 0 {
		b.t.Errorf("the element got VLAN tags %v", f.Tags)
	}
}

// mtu: what is longer than the path carries is dropped and its sender told;
// what just fits passes; the MSS of TCP is lowered in both directions.
func mtu(b *testbed) {
	fw := b.instance("fw", "n2")
	b.apply(one(&chain{path: 1, match: toServer(), mtu: 1400}, fw))
	b.nodes[gateway].loose[edgeVport] = true
	for n, t := range []onpath.Tuple{udp4(1), tuple(udp, client6, 1, server6, 53)} {
		p := newPacket(t)
		head := []int{28, 48}[n]
		p.payload = make([]byte, 1400-head)
		b.through(clientNet, p.bytes(), serverNet, forwards(fw)...)
		p.payload = make([]byte, 1401-head)
		b.send(gateway, clientNet, p.bytes())
		b.dropped(gateway, clientNet, onpath.DropTooBig)
		b.isTooBig(clientNet, p.bytes(), 1400)
	}
	// Without DF the tunnel carries fragments: its sender may hear no ICMP.
	p := newPacket(udp4(1))
	p.nodf, p.payload = true, make([]byte, 1500-28)
	b.through(clientNet, p.bytes(), serverNet, forwards(fw)...)
	for n, t := range []onpath.Tuple{tcp4(5), tcp6(5)} {
		limit := []uint16{1360, 1340}[n]
		p := newPacket(t)
		p.mss = 1460
		b.send(gateway, clientNet, p.bytes())
		p.mss = limit
		got := b.cross(hop{at: fw}, p.bytes())
		b.expect(gateway, serverNet, withTTL(got, 1))

		r := answerTo(t)
		r.mss = 1460
		b.send(gateway, serverNet, r.bytes())
		r.mss = limit
		got = b.cross(hop{at: fw, reverse: true}, r.bytes())
		b.expect(gateway, clientNet, withTTL(got, 1))

		p = newPacket(t)
		p.tuple.SrcPort, p.mss = 6, 500 // small enough already
		b.through(clientNet, p.bytes(), serverNet, forwards(fw)...)
	}
}

// mtuOptions: a fragment that is too big has the error that its sender needs to
// make smaller ones, and the rest of its datagram does not count as forged.
func mtuOptions(b *testbed) {
	fw := b.instance("fw", "n2")
	b.apply(one(&chain{path: 1, match: toServer(), mtu: 1400}, fw))
	b.nodes[gateway].loose[edgeVport] = true
	tooBig := func(p packet) {
		b.t.Helper()
		b.send(gateway, clientNet, p.bytes())
		b.dropped(gateway, clientNet, onpath.DropTooBig)
		b.isTooBig(clientNet, p.bytes(), 1400)
	}
	for _, t := range []onpath.Tuple{ping6(7), tuple(udp, client6, 7, server6, 53)} {
		p := newPacket(t)
		p.payload, p.id, p.piece = make([]byte, 2000), 7000, 1424
		first, rest := p, p
		first.more, rest.offset = true, 1424
		tooBig(first)
		// What is left of the datagram reaches the instance, which lets it through.
		b.send(gateway, clientNet, rest.bytes())
		f := b.expect(fw.node, onpath.DeviceName(fw.vport), rest.bytes())
		b.sendFrame(fw.node, onpath.DeviceName(fw.vport), Frame{Packet: withTTL(f.Packet, 1)})
		b.dropped(fw.node, onpath.DeviceName(fw.vport), onpath.DropUnclassified)
	}
	p := newPacket(udp4(7)) // IPv4's fragments have no DF
	p.payload, p.id, p.piece = make([]byte, 2000), 7000, 1424
	first, rest := p, p
	first.more, rest.offset = true, 1424
	b.through(clientNet, first.bytes(), serverNet, forwards(fw)...)
	b.through(clientNet, rest.bytes(), serverNet, forwards(fw)...)
	p = newPacket(udp4(8))
	p.payload, p.options = make([]byte, 1380), []byte{1, 1, 1, 0}
	tooBig(p)
	p = newPacket(tuple(udp, client6, 8, server6, 53))
	p.payload, p.ext, p.extType = make([]byte, 1380), []byte{udp, 0, 1, 4, 0, 0, 0, 0}, 60
	tooBig(p)
}

// isTooBig expects the ICMP error that tells the sender of p what fits.
func (b *testbed) isTooBig(device string, p []byte, mtu int) {
	b.t.Helper()
	b.isTooBigAt(gateway, device, p, mtu)
}

func (b *testbed) isTooBigAt(node, device string, p []byte, mtu int) {
	b.t.Helper()
	f := b.receive(node, device)
	if err := checksums(f.Packet); err != nil {
		b.t.Errorf("the ICMP error: %v", err)
	}
	protocol, e := transportOf(f.Packet)
	src, dst := addresses(p)
	_, to := addresses(f.Packet)
	said, kind := int(binary.BigEndian.Uint16(e[6:])), []byte{3, 4}
	if protocol == icmpv6 {
		said, kind = int(binary.BigEndian.Uint32(e[4:])), []byte{2, 0}
	}
	if !bytes.Equal(e[:2], kind) || said != mtu || to != src {
		b.t.Fatalf("instead of an ICMP error to %s with MTU %d came %x", src, mtu, f.Packet)
	}
	quote := e[8:]
	if len(quote) < 28 || !bytes.HasPrefix(p, quote[:min(len(quote), 20)]) {
		b.t.Errorf("the ICMP error about a packet to %s does not quote it: %x", dst, quote)
	}
}

// hopLimit: where it runs out, the packet goes no further.
func hopLimit(b *testbed) {
	fw := b.bridged("fw", gateway)
	b.apply(one(&chain{path: 1, match: toServer()}, fw))
	b.nodes[gateway].loose[fw.back] = true // the error goes back by there
	p := newPacket(udp4(1))
	p.ttl = 1
	b.send(gateway, clientNet, p.bytes())
	b.cross(hop{at: fw}, p.bytes())
	b.dropped(gateway, onpath.DeviceName(fw.back), onpath.DropTTL)
	b.h.Receive(gateway, onpath.DeviceName(fw.back), quietTime) // an ICMP error, if any
}

// local: what is to or from the node itself, and what concerns a link only, is
// never selected.
func local(b *testbed) {
	fw := b.instance("fw", gateway)
	b.apply(one(&chain{path: 1, match: onpath.Match{}}, fw))
	up := b.nodes[gateway].spec.Uplinks[0]
	at4, at6 := up.Addresses[0].Addr(), up.Addresses[1].Addr()
	for _, t := range []onpath.Tuple{
		tuple(tcp, client, 1, at4, 22), tuple(tcp, client6, 1, at6, 22),
		tuple(udp, client, 1, b.nodes[gateway].spec.Underlay.Addr(), 9),
		tuple(udp, client, 1, netip.MustParseAddr("224.0.0.5"), 89),
		tuple(udp, netip.MustParseAddr("0.0.0.0"), 68, netip.MustParseAddr("255.255.255.255"), 67),
		tuple(udp, netip.MustParseAddr("fe80::9"), 546, netip.MustParseAddr("ff02::1:2"), 547),
		tuple(icmpv6, client6, 1, netip.MustParseAddr("ff02::1"), 1),
	} {
		b.h.Send(gateway, clientNet, Frame{Packet: newPacket(t).bytes()})
	}
	b.drain() // the node's own kernel may answer, or forward
	before := b.h.Forwarded(gateway)
	for kind := byte(133); kind <= 137; kind++ { // Neighbour Discovery, between global addresses, too
		p := newPacket(tuple(icmpv6, client6, 0, server6, 0))
		p.icmpType, p.ttl = kind, 255
		b.h.Send(gateway, clientNet, Frame{Packet: p.bytes()})
		b.h.Send(gateway, onpath.DeviceName(fw.vport), Frame{Packet: p.bytes()}) // nobody is there to hear it
	}
	b.eventually("the kernel has forwarded the one uplink's", func() bool { return b.h.Forwarded(gateway) == before+5 })
	b.drain()
	b.noEntries()
	b.pathCounts(1, 0, 0)
	b.forward(udp4(1), fw)
	p := newPacket(tuple(icmpv6, client6, 0, server6, 0))
	p.icmpType, p.ttl = 136, 254 // has passed a router, and is none
	b.send(gateway, clientNet, p.bytes())
	add(&b.want(gateway, fw.vport).Out, p.bytes())
	b.eventually("it goes to the element", func() bool {
		e, ok := b.entry(gateway, edgeVport, p.tuple)
		return ok && e.Next == fw.vport
	})
	b.h.Receive(gateway, onpath.DeviceName(fw.vport), quietTime) // where the harness lets it through
}

// linkSource: a source that must not leave its link passes by no chain to a destination
// beyond, and ports of DHCP alone make no packet DHCP.
func linkSource(b *testbed) {
	fw := b.instance("fw", gateway)
	b.apply(one(&chain{path: 1, match: toServer(), strict: true}, fw))
	for _, src := range []string{"169.254.9.9", "240.0.0.9", "fe80::9"} {
		to := server
		if src == "fe80::9" {
			to = server6
		}
		for _, t := range []onpath.Tuple{tuple(udp, netip.MustParseAddr(src), 7, to, 161), tuple(tcp, netip.MustParseAddr(src), 7, to, 80)} {
			b.send(gateway, clientNet, newPacket(t).bytes())
			b.dropped(gateway, clientNet, onpath.DropSpoofed)
		}
	}
	b.quiet()
	b.noEntries()
	before := b.h.Forwarded(gateway)
	for _, t := range []onpath.Tuple{tuple(udp, client, 68, server, 67), tuple(udp, client, 67, server, 67), tuple(udp, client6, 546, server6, 547)} {
		b.h.Send(gateway, clientNet, Frame{Packet: newPacket(t).bytes()})
	}
	b.eventually("the kernel has forwarded DHCP", func() bool { return b.h.Forwarded(gateway) == before+3 })
	b.drain()
	b.noEntries()
	for _, t := range []onpath.Tuple{
		tuple(udp, client, 9, server, 67), tuple(udp, client, 68, server, 9), tuple(udp, client6, 67, server6, 68), tuple(udp, client, 546, server, 547),
	} {
		b.forward(t, fw)
	}
}

// ownSource: what comes in with the node's own address as its source passes by no chain,
// and leaves no entry for the node's own answers. What no chain takes is the kernel's.
func ownSource(b *testbed) {
	fw := b.instance("fw", gateway)
	b.apply(one(&chain{path: 1, match: toServer()}, fw))
	up := b.nodes[gateway].spec.Uplinks[0]
	for _, t := range []onpath.Tuple{
		tuple(udp, up.Addresses[0].Addr(), 7, server, 9), tuple(udp, up.Addresses[1].Addr(), 7, server6, 9),
		tuple(tcp, up.Addresses[0].Addr(), 7, server, 80), tuple(tcp, up.Addresses[1].Addr(), 7, server6, 80),
	} {
		b.send(gateway, clientNet, newPacket(t).bytes())
		b.dropped(gateway, clientNet, onpath.DropSpoofed)
	}
	b.quiet()
	b.noEntries()
	b.untouched(clientNet, newPacket(tuple(udp, up.Addresses[1].Addr(), 7, netip.MustParseAddr("2001:db8:1::77"), 9)).bytes(), clientNet)
	b.forward(udp4(1), fw)
}

// linkGroup: frames for all machines of a link, or for some, that carry a packet for one
// address are forwarded by nobody: several gateways there would each send a copy.
func linkGroup(b *testbed) {
	fw := b.instance("fw", gateway)
	b.apply(one(&chain{path: 1, match: toServer()}, fw))
	before := b.h.Forwarded(gateway)
	for _, to := range []string{"ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:09", "33:33:00:00:00:09"} {
		for _, t := range []onpath.Tuple{udp4(1), tcp4(2), tcp6(3)} {
			b.h.Send(gateway, clientNet, Frame{Src: "02:cc:00:00:00:77", Dst: to, Packet: newPacket(t).bytes()})
		}
	}
	b.quiet()
	b.noEntries()
	b.pathCounts(1, 0, 0)
	if n := b.h.Forwarded(gateway) - before; n != 0 {
		b.t.Errorf("the kernel forwarded %d packets", n)
	}
	b.forward(udp4(1), fw)
}

// malformed: lengths that lie crash nothing and slip past nothing.
func malformed(b *testbed) {
	fw := b.instance("fw", gateway)
	b.apply(one(&chain{path: 1, match: web(), strict: true}, fw))
	whole := newPacket(tcp4(1)).bytes()
	for n := range len(whole) - 1 {
		b.h.Send(gateway, clientNet, Frame{EtherType: 0x0800, Packet: whole[:n+1]})
	}
	for at := range 24 { // every bit of the header, wrong
		for bit := range 8 {
			p := bytes.Clone(whole)
			p[at] ^= 1 << bit
			if at >= 12 && at < 20 || at == 0 && p[0]>>4 != 4 || at == 9 || at >= 20 {
				continue // other addresses, protocols and ports are other flows
			}
			b.h.Send(gateway, clientNet, Frame{EtherType: 0x0800, Packet: p})
		}
	}
	if f, ok := b.h.Receive(gateway, serverNet, quietTime); ok {
		b.t.Errorf("past the element slipped %x", f.Packet)
	}
	b.drain()
	b.skipBooks()
}

// drain throws away what comes out.
func (b *testbed) drain() {
	for _, name := range b.joined() {
		for _, d := range b.nodes[name].devices {
			for wait := quietTime; ; wait = 0 {
				if _, ok := b.h.Receive(name, d, wait); !ok {
					break
				}
			}
		}
	}
}
