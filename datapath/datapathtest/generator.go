package datapathtest

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/onpath/onpath"
)

var (
	clients      = prefixes("10.1.0.0/16", "2001:db8:1::/48")
	servers      = prefixes("10.9.0.0/16", "2001:db8:9::/48")
	ownAddresses = []netip.Addr{netip.MustParseAddr("10.9.7.7"), netip.MustParseAddr("2001:db8:9:7::7")}
)

func prefixes(s ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range s {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

// portRanges makes ranges of pairs.
func portRanges(p ...uint16) []onpath.PortRange {
	var out []onpath.PortRange
	for i := 0; i < len(p); i += 2 {
		out = append(out, onpath.PortRange{First: p[i], Last: p[i+1]})
	}
	return out
}

// generator makes random packets. What it makes often repeats tuples, so that flows
// come about, and takes up what instances were given.
type generator struct {
	*rand.Rand
	seed      uint64
	tuples    []onpath.Tuple
	delivered []delivery
	streams   []stream
	made      int  // packets
	functions bool // some are for ebpf functions
}

// fragmentAge is after how many packets no fragment of a datagram comes any more.
// A kernel's table of first fragments (4,096, one for each vport that a datagram came
// by) forgets, in no order that a model follows, those that fewer than half as many
// have come after.
const fragmentAge = 1 << 11

// delivery is what an instance was given.
type delivery struct {
	device string
	packet []byte
}

func newGenerator(seed uint64) *generator {
	m := &generator{Rand: newRand(seed), seed: seed, tuples: make([]onpath.Tuple, 300)}
	m.renew()
	return m
}

// renew forgets all tuples.
func (m *generator) renew() {
	for i := range m.tuples {
		m.tuples[i] = m.tuple()
	}
}

// one is true once in n times.
func (m *generator) one(n int) bool { return m.IntN(n) == 0 }

func pickOne[T any](m *generator, of ...T) T { return of[m.IntN(len(of))] }

// tuple is a flow from a client to a server, mostly.
func (m *generator) tuple() onpath.Tuple {
	t := onpath.Tuple{
		Protocol: pickOne[uint8](m, tcp, tcp, tcp, udp, udp, icmp, 132, 136, gre, 50, 4, 41, 89),
		SrcPort:  pickOne(m, uint16(1500), 3000, 4797, uint16(m.IntN(65536))),
		DstPort:  pickOne(m, uint16(80), 8080, 443, 22, 25, 53, 67, 9000, 547, onpath.DefaultTunnelPort, uint16(m.IntN(65536))),
	}
	if m.one(2) {
		t.Src = m.address("10.1.0.%d", 40)
		t.Dst = pickOne(m, m.address("10.9.0.%d", 40), m.address("10.9.0.%d", 40), m.address("10.9.5.%d", 9), ownAddresses[0], virtual)
	} else {
		t.Src = m.address("2001:db8:1::%x", 40)
		t.Dst = pickOne(m, m.address("2001:db8:9::%x", 40), m.address("2001:db8:9::%x", 40), m.address("2001:db8:9:5::%x", 9), ownAddresses[1])
		if t.Protocol == icmp {
			t.Protocol = icmpv6
		}
	}
	if m.one(5) {
		t.Protocol, t.DstPort = pickOne[uint8](m, tcp, udp), inlinePort
	}
	if m.functions && m.one(6) {
		t.Protocol = pickOne[uint8](m, tcp, udp)
		t.DstPort = pickOne[uint16](m, droppedPort, refusedPort, stampedPort, stampedPort, scribbledPort)
		if m.one(2) {
			t.DstPort = pickOne[uint16](m, translatedPort, behindPort)
			if t.Src.Is4() {
				t.Dst = pickOne(m, virtual, server)
			}
		}
	}
	if m.one(12) {
		t.Dst = m.oddAddress(t.Src.Is4())
	}
	if m.one(30) {
		t.Src = m.oddAddress(t.Src.Is4())
	}
	return t
}

func (m *generator) address(format string, n int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf(format, 1+m.IntN(n)))
}

// oddAddress is one that is not steered, not routed, or the node's.
func (m *generator) oddAddress(v4 bool) netip.Addr {
	if v4 {
		return netip.MustParseAddr(pickOne(m, "224.0.0.5", "255.255.255.255", "169.254.9.9", "0.0.0.0", "127.0.0.1", "10.0.1.1", "10.0.9.1", "10.77.0.9", "240.1.2.3", "10.0.9.254"))
	}
	return netip.MustParseAddr(pickOne(m, "ff02::1", "ff0e::5", "fe80::9", "::", "::1", "fd00:0:1::1", "fd00:0:9::1", "2001:db8:77::9", "fd00:0:9::fe"))
}

// frame is the next thing to put in, and where.
func (m *generator) frame(l *layout) (device string, f Frame, segment int) {
	m.made++
	if m.one(streamShare) {
		device, f = m.stream()
		return device, f, 0
	}
	t := m.tuples[m.IntN(len(m.tuples))]
	device = clientNet
	switch {
	case m.one(40):
		m.tuples[m.IntN(len(m.tuples))] = m.tuple()
	case len(m.delivered) > 0 && m.one(3):
		return m.again()
	case m.one(8):
		device = m.instance(l)
		if m.one(2) {
			t.Src = ownAddresses[map[bool]int{true: 0, false: 1}[t.Src.Is4()]]
		}
	case m.one(2):
		device = serverNet
		t = t.Reverse()
	}
	if device != serverNet && m.one(25) {
		return device, Frame{Packet: m.long(t)}, 0
	}
	f.Packet, segment = m.packet(t)
	if segment > 0 && l.mirrored(device) {
		segment = 0 // a kernel's test run cannot say of what kind it is, and then mirrors get no copy
	}
	if segment == 0 && (device == clientNet || device == serverNet) {
		m.wrap(&f)
	}
	return device, f, segment
}

// tunnelled is a packet from another node, as such send them, or forged.
func (m *generator) tunnelled(b *testbed, l *layout) *TunnelPacket {
	m.made++
	from := pickOne(m, "n2", "n2", sideNode)
	p := &TunnelPacket{From: b.nodes[from].spec.Underlay.Addr(), Secret: secret(gateway, from), Entry: edgeVport}
	t := m.tuples[m.IntN(len(m.tuples))]
	if m.one(2) {
		t = t.Reverse()
	}
	c := l.chains[m.IntN(len(l.chains))]
	reverse := m.one(2)
	if n := len(c.elements); n > 0 {
		k := m.IntN(n)
		e := c.elements[k]
		i := e.instances[m.IntN(len(e.instances))]
		p.Group, p.Next = onpath.GroupOf(c.path, k, reverse), i.vport
		if reverse {
			p.Next = i.otherSide()
		}
	}
	if m.one(3) {
		p.Next = edgeVport
	}
	p.Prev = b.remote(from, l, m)
	switch m.IntN(30) {
	case 0:
		p.From = netip.AddrFrom4([4]byte{10, 255, 0, byte(m.IntN(9))})
	case 1:
		p.Secret ^= 1 << m.IntN(24)
	case 2:
		p.Next = onpath.VportID(1 + m.IntN(60))
	case 3:
		p.Prev = onpath.VportID(1 + m.IntN(60))
	case 4:
		p.Entry = pickOne[onpath.VportID](m, sideVport, sideVport, 9)
	case 5:
		p.Group = onpath.GroupID(m.IntN(20 << 6))
	}
	unfit := func() bool { // no segments may meet mirrors, see frame
		return !plausible(p.Packet) || t.Protocol == tcp && l.mirrors(p.Group)
	}
	for p.Packet, _ = m.packet(t); unfit(); p.Packet, _ = m.packet(t) {
		t = m.tuples[m.IntN(len(m.tuples))]
	}
	return p
}

// mirrors tells whether the path of a group has mirrors.
func (l *layout) mirrors(g onpath.GroupID) bool {
	path, _, _ := g.Split()
	return slices.ContainsFunc(l.chains, func(c *chain) bool {
		return c.path == path && slices.ContainsFunc(c.elements, func(e *element) bool { return e.mode == onpath.ModeMirror })
	})
}

// plausible tells packets that another node may send on: it has refused those of
// addresses that no router forwards.
func plausible(p []byte) bool {
	return ends(p) != "" && within(p)
}

// within tells packets between addresses that the nodes have routes to, and not of their own.
func within(p []byte) bool {
	src, dst := addresses(p)
	known := slices.Concat(clients, servers, prefixes(virtual.String()+"/32", "10.77.0.0/16"))
	in := func(a netip.Addr) bool {
		return slices.ContainsFunc(known, func(k netip.Prefix) bool { return k.Contains(a) })
	}
	return in(src) && in(dst)
}

// remote is one of another node's vports.
func (b *testbed) remote(node string, l *layout, m *generator) onpath.VportID {
	var ids []onpath.VportID
	if id := edgeOf(node); id != 0 {
		ids = append(ids, id)
	}
	for _, i := range l.instances {
		if i.node == node {
			ids = append(ids, i.vport, i.otherSide())
		}
	}
	return ids[m.IntN(len(ids))]
}

// wrap puts a tag on, or says that it is no IP.
func (m *generator) wrap(f *Frame) {
	switch m.IntN(60) {
	case 0:
		if len(f.Packet) < 40 {
			break
		}
		f.EtherType = pickOne[uint16](m, 0x0806, 0x8847, 0x8863, 0x8864, 0x88cc, 0x86dd, 0x0800)
		if (f.EtherType == 0x86dd) == (f.Packet[0]>>4 == 6) {
			f.EtherType = 0x8848
		}
	}
}

// instance is the device of any of the gateway's.
func (m *generator) instance(l *layout) string {
	for {
		i := l.instances[m.IntN(len(l.instances))]
		if i.node == gateway && i.inline == nil {
			return onpath.DeviceName(pickOne(m, i.vport, i.otherSide()))
		}
	}
}

// mirrored tells whether what comes out of a device may meet a mirror.
func (l *layout) mirrored(device string) bool {
	for _, c := range l.chains {
		mirrors, here := false, false
		for _, e := range c.elements {
			mirrors = mirrors || e.mode == onpath.ModeMirror
			for _, i := range e.instances {
				here = here || device == onpath.DeviceName(i.vport) || device == onpath.DeviceName(i.otherSide())
			}
		}
		if mirrors && here {
			return true
		}
	}
	return false
}

// learn remembers what was delivered to an instance.
func (m *generator) learn(device string, f Frame) {
	if device == "" || len(f.Packet) == 0 {
		return
	}
	d := delivery{device, f.Packet}
	if len(m.delivered) < 500 {
		m.delivered = append(m.delivered, d)
		return
	}
	m.delivered[m.IntN(len(m.delivered))] = d
}

// again lets an instance emit what it was given, or an answer to it.
func (m *generator) again() (string, Frame, int) {
	d := m.delivered[m.IntN(len(m.delivered))]
	p := append([]byte(nil), d.packet...)
	if m.one(3) && m.valid(p) {
		b := newPacket(tupleOf(p).Reverse())
		b.flags = pickOne[byte](m, ack, syn|ack, rst, fin|ack)
		p = b.bytes()
	}
	return d.device, Frame{Packet: p}, 0
}

// valid tells packets from which a tuple can be read without more ado.
func (m *generator) valid(p []byte) bool {
	switch {
	case len(p) >= 28 && p[0] == 0x45 && p[6]&0x3f == 0 && p[7] == 0 && (p[9] == tcp || p[9] == udp):
	case len(p) >= 48 && p[0]>>4 == 6 && (p[6] == tcp || p[6] == udp):
	default:
		return false
	}
	return checksums(p) == nil
}

// packet is one with this tuple, whole or not.
func (m *generator) packet(t onpath.Tuple) (b []byte, segment int) {
	p := newPacket(t)
	p.flags = pickOne[byte](m, syn, syn, ack, ack|psh, ack|fin, rst, syn|ack, ack, byte(m.IntN(256)))
	p.seq, p.ack = m.Uint32(), m.Uint32()
	p.ttl = pickOne[byte](m, 64, 64, 64, 2, 1, 0, 255)
	p.id, p.nodf = uint32(uint16(m.made/fragmentAge*16+m.IntN(16))), m.one(4)
	p.payload = make([]byte, pickOne(m, 0, 1, m.IntN(100), m.IntN(1400), m.IntN(3000)))
	for i := range p.payload {
		p.payload[i] = byte(m.Uint32())
	}
	if t.Protocol == tcp && p.flags&syn != 0 && m.one(2) {
		p.mss = uint16(m.IntN(9000))
	}
	if t.Protocol == icmp || t.Protocol == icmpv6 {
		m.icmp(&p)
	}
	switch m.IntN(14) {
	case 0:
		p.offset, p.more = 8*m.IntN(8), m.one(2)
	case 1:
		p.more = true
	case 2:
		if t.Src.Is6() {
			p.ext, p.extType = m.extensions(t.Protocol)
		}
	case 3:
		if t.Protocol == tcp && len(p.payload) > 600 && p.flags&syn == 0 {
			p.offset, p.more = 0, false
			return p.bytes(), 500
		}
	}
	b = p.bytes()
	if m.functions && m.one(20) {
		b = withDSCP(b, pickOne[uint8](m, droppedClass, refusedClass))
	}
	return m.mangle(b), 0
}

// longest is the MTU of uplinks that take long packets, in bytes.
const longest = 9000

// Opening is how much of a long packet is not zero at the most, in bytes: a kernel's
// test run takes so much of it, and the rest is put behind.
const Opening = 2000

// long is a packet longer than one page, up to more than goes through an uplink.
func (m *generator) long(t onpath.Tuple) []byte {
	p := newPacket(t)
	p.flags = pickOne[byte](m, syn, ack, ack|psh, ack|fin)
	p.seq, p.ack, p.nodf = m.Uint32(), m.Uint32(), m.one(4)
	p.ttl = pickOne[byte](m, 64, 64, 1)
	p.payload = make([]byte, pickOne(m, longest-40, longest-20, 3400+m.IntN(longest-3400), longest+m.IntN(30)))
	for i := range m.IntN(200) {
		p.payload[i] = byte(m.Uint32())
	}
	if t.Protocol == icmp || t.Protocol == icmpv6 {
		p.icmpType, p.icmpCode, p.body = byte(m.IntN(256)), byte(m.IntN(3)), p.payload
	}
	return m.mangle(p.bytes())
}

func (m *generator) icmp(p *packet) {
	switch m.IntN(4) {
	case 0:
		p.flags = echoReply
		if p.tuple.Protocol == icmpv6 {
			p.icmpType = 129
		}
	case 1: // an error about something
		quoted := newPacket(m.tuples[m.IntN(len(m.tuples))])
		for quoted.tuple.Src.Is4() != p.tuple.Src.Is4() || translates(quoted.tuple) {
			quoted = newPacket(m.tuples[m.IntN(len(m.tuples))])
		}
		if m.one(2) {
			quoted.tuple = quoted.tuple.Reverse()
		}
		b := quoted.bytes()
		p.body = b[:min(len(b), pickOne(m, 28, 48, 128))]
		if m.one(2) {
			p.body = m.mangle(p.body)
		}
		p.icmpType, p.icmpCode = byte(m.IntN(14)), byte(m.IntN(6))
	case 2: // another message
		p.icmpType, p.icmpCode, p.body = byte(m.IntN(256)), byte(m.IntN(3)), p.payload
	}
}

// translates tells flows of which the model's functions leave errors alone.
func translates(t onpath.Tuple) bool {
	return t.DstPort == translatedPort || t.DstPort == behindPort || t.SrcPort == translatedPort || t.SrcPort == behindPort
}

// extensions is a row of IPv6 extension headers before the given protocol.
func (m *generator) extensions(last uint8) (b []byte, first uint8) {
	n := 1 + m.IntN(8)
	kinds := make([]uint8, n)
	for i := range kinds {
		kinds[i] = pickOne[uint8](m, 0, 43, 60, 60, 51, 135, 139, 140)
	}
	for i, kind := range kinds {
		next := last
		if i+1 < n {
			next = kinds[i+1]
		}
		units := m.IntN(3)
		size := 8 + 8*units
		h := make([]byte, size)
		h[0], h[1] = next, byte(units)
		if kind == 43 {
			h[3] = byte(m.IntN(2)) // segments left
		}
		if kind == 51 {
			h[1] = byte(size/4 - 2)
		}
		b = append(b, h...)
	}
	return b, kinds[0]
}

// mangle damages a packet, mostly not at all.
func (m *generator) mangle(b []byte) []byte {
	switch m.IntN(16) {
	case 0: // any bits of the headers
		for range 1 + m.IntN(3) {
			i := m.IntN(min(len(b), 64))
			b[i] ^= 1 << m.IntN(8)
		}
		if b[0]>>4 != 6 { // keeps its version, which the frame names
			b[0] = 4<<4 | b[0]&15
		} else {
			b[0] = 6<<4 | b[0]&15
		}
	case 1: // not below the network header, which a kernel's test run wants; the exam has those
		head := 20
		if b[0]>>4 == 6 {
			head = 40
		}
		if len(b) > head {
			b = b[:head+m.IntN(len(b)-head)]
		}
	case 2: // lengths
		at := 2
		if b[0]>>4 == 6 {
			at = 4
		}
		if len(b) > at+2 {
			binary.BigEndian.PutUint16(b[at:], uint16(m.IntN(2*len(b))))
		}
	case 3: // bytes behind the packet, as Ethernet pads
		b = append(b, make([]byte, m.IntN(40))...)
	case 4:
		if b[0] == 0x45 {
			b = m.options(b)
		}
	}
	return b
}

// options puts IPv4 options into a packet.
func (m *generator) options(b []byte) []byte {
	words := 1 + m.IntN(10)
	o := make([]byte, 4*words)
	for i := range o {
		o[i] = pickOne[byte](m, 0, 1, 1, 7, 68, 131, byte(m.Uint32()))
	}
	out := append(append(append([]byte(nil), b[:20]...), o...), b[20:]...)
	out[0] = 0x40 | byte(5+words)
	binary.BigEndian.PutUint16(out[2:], binary.BigEndian.Uint16(b[2:])+uint16(len(o)))
	out[10], out[11] = 0, 0
	binary.BigEndian.PutUint16(out[10:], ^sum(0, out[:20+len(o)]))
	return out
}

// crosses tells packets between a client and somebody else that the nodes have a route to.
func crosses(p []byte) bool {
	src, dst := addresses(p)
	client := func(a netip.Addr) bool {
		return slices.ContainsFunc(clients, func(k netip.Prefix) bool { return k.Contains(a) })
	}
	return within(p) && client(src) != client(dst)
}

// Recorded is a packet of a capture at the uplinks of a gateway.
type Recorded struct {
	Device string
	Packet []byte
}

// Record makes a capture of few flows between clients and servers. Some packets are damaged,
// and none is longer than the uplinks take.
func Record(seed uint64, packets int) []Recorded {
	m := newGenerator(seed)
	m.tuples = m.tuples[:16]
	out := make([]Recorded, 0, packets)
	for len(out) < packets {
		m.made++
		r, t := Recorded{Device: clientNet}, m.tuples[m.IntN(len(m.tuples))]
		if m.one(2) {
			r.Device, t = serverNet, t.Reverse()
		}
		segment := 0
		r.Packet, segment = m.packet(t)
		if segment == 0 && len(r.Packet) >= 46 && len(r.Packet) <= 1500 && crosses(r.Packet) {
			out = append(out, r)
		}
	}
	return out
}
