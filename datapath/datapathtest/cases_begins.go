package datapathtest

import (
	"reflect"
	"slices"
	"time"

	"github.com/onpath/onpath"
)

// says sends a packet of a connection, or with reverse one of its replies, across the
// gateway through instances and functions in the order given; through none, the kernel
// alone carries it.
func (b *testbed) says(t onpath.Tuple, reverse bool, flags uint8, is ...*instance) {
	b.t.Helper()
	p := newPacket(t)
	if flags&syn == 0 {
		p.seq = 1001
	}
	p.flags, p.ack = flags, 1001
	b.carries(p, reverse, is...)
}

// carries is says for a packet of the connection's first direction, or as the other one says it.
func (b *testbed) carries(p packet, reverse bool, is ...*instance) {
	b.t.Helper()
	in, out := clientNet, serverNet
	if reverse {
		p.tuple, in, out = p.tuple.Reverse(), serverNet, clientNet
	}
	if len(is) == 0 {
		b.untouched(in, p.bytes(), out)
		return
	}
	b.send(gateway, in, p.bytes())
	sent := p.bytes()
	for _, i := range is {
		if i.inline != nil {
			sent = b.runs(sent, reverse, i)
		} else {
			sent = b.cross(hop{at: i, reverse: reverse, copied: i.mirror}, sent)
		}
	}
	b.expect(gateway, out, withTTL(sent, 1))
}

// connects opens a connection through the instances, so that its entries are established.
func (b *testbed) connects(t onpath.Tuple, is ...*instance) {
	b.t.Helper()
	back := reversed(is)
	b.says(t, false, syn, is...)
	b.says(t, true, syn|ack, back...)
	for range 2 {
		b.says(t, false, ack, is...)
		b.says(t, true, ack, back...)
	}
}

// waysToEnd of a connection, as the gateway may see them.
var waysToEnd = []struct {
	name string
	end  func(b *testbed, t onpath.Tuple, is ...*instance)
}{
	{"by FIN", func(b *testbed, t onpath.Tuple, is ...*instance) {
		b.says(t, false, fin|ack, is...)
		b.says(t, true, fin|ack, reversed(is)...)
		b.says(t, false, ack, is...)
	}},
	{"by FIN, with SYNs in between as anybody may forge them", func(b *testbed, t onpath.Tuple, is ...*instance) {
		b.says(t, false, fin|ack, is...)
		b.says(t, false, syn, is...)
		b.says(t, true, syn, reversed(is)...)
		b.says(t, true, syn|ack, reversed(is)...)
		b.says(t, true, fin|ack, reversed(is)...)
		b.says(t, true, syn|ack, reversed(is)...)
		b.says(t, false, ack, is...)
	}},
	{"by a RST of the server", func(b *testbed, t onpath.Tuple, is ...*instance) { b.says(t, true, rst|ack, reversed(is)...) }},
	{"by a RST of the client", func(b *testbed, t onpath.Tuple, is ...*instance) { b.says(t, false, rst|ack, is...) }},
}

// decided is a chain, what a connection crosses by it, and what becomes of it.
type decided struct {
	name  string
	chain *chain
	cross []*instance
	// gone: the chain ends as another begins; or it stays, and the other stands before it.
	gone bool
}

// decisions lists what a flow entry may say of a connection for which the rules in force
// say something else.
func (b *testbed) decisions() []decided {
	box, mirror, sleeper, f := b.instance("box", "n2"), b.instance("mirror", gateway), b.instance("sleeper", gateway), b.inline("f", gateway)
	mirror.mirror, sleeper.state = true, onpath.VportClosed
	datagrams := onpath.Match{Protocol: []uint8{udp}}
	through := func(e *element) *chain { return &chain{match: toServer(), elements: []*element{e}} }
	unselected := func() *chain { return through(&element{instances: []*instance{box}, match: &datagrams}) }
	mirrored := func() *chain {
		return through(&element{instances: []*instance{mirror}, mode: onpath.ModeMirror, none: onpath.NoneBypass})
	}
	bypassed := through(&element{instances: []*instance{sleeper}, none: onpath.NoneBypass})
	return []decided{
		{name: "no element selects it", chain: unselected()},
		{name: "no element selected it", chain: unselected(), gone: true},
		{name: "it is mirrored alone", chain: mirrored(), cross: []*instance{mirror}},
		{name: "it was mirrored alone", chain: mirrored(), cross: []*instance{mirror}, gone: true},
		{name: "its element had no instance", chain: bypassed, gone: true},
		{name: "it crosses an instance", chain: through(&element{instances: []*instance{box}}), cross: []*instance{box}},
		{name: "it crossed an instance", chain: through(&element{instances: []*instance{box}}), cross: []*instance{box}, gone: true},
		{name: "it crosses a function", chain: through(&element{instances: []*instance{f}}), cross: []*instance{f}},
		{name: "it crossed a function", chain: through(&element{instances: []*instance{f}}), cross: []*instance{f}, gone: true},
	}
}

// beginsAnew: whatever an entry says of a connection that has ended, another by the same
// ports goes by the rules that are in force when it begins, also where these cut older
// connections. One that lives goes on; the rules cut it only once its own chain is gone.
func beginsAnew(b *testbed) {
	for i, cut := range []bool{false, true} {
		b.beginsByRules(onpath.PathID(100*i), uint16(1000+1000*i), cut)
	}
}

// behindAWall are all decisions, an instance that each connection is to cross instead, and a
// layout with the instances of them all.
func behindAWall(b *testbed) (wall *instance, list []decided, l *layout) {
	wall = b.instance("wall", gateway)
	list = b.decisions()
	b.looseEdge()
	l = &layout{instances: []*instance{wall}}
	for _, d := range list {
		for _, e := range d.chain.elements {
			l.instances = append(l.instances, e.instances...)
		}
	}
	l.instances = distinct(l.instances)
	return wall, list, l
}

func (b *testbed) beginsByRules(path onpath.PathID, port uint16, cut bool) {
	wall, list, l := behindAWall(b)
	for n, d := range list {
		young := &chain{path: path + onpath.PathID(2*n+2), cut: cut, match: toServer(), elements: []*element{{instances: []*instance{wall}}}}
		young.began, young.adopt = b.h.Now(), time.Hour
		d.chain.path = path + onpath.PathID(2*n+1)
		var flows []onpath.Tuple
		l.chains = []*chain{d.chain}
		b.apply(l)
		for _, end := range waysToEnd {
			for range 2 { // one that begins while the chain drains, and one after that
				t := tcp4(port)
				port++
				b.connects(t, d.cross...)
				end.end(b, t, d.cross...)
				flows = append(flows, t)
			}
		}
		lives := tcp4(port)
		port++
		b.connects(lives, d.cross...)
		judged := func(which int) {
			for i, t := range flows {
				if i%2 == which {
					b.connects(t, wall)
				}
				if b.t.Failed() {
					b.t.Fatalf("of a connection that had ended %s; %s", waysToEnd[i/2].name, d.name)
				}
			}
		}
		l.chains = []*chain{young, d.chain}
		d.chain.ended = d.gone
		b.apply(l)
		judged(0)
		b.livesOn(lives, d.cross...)
		if d.gone {
			d.chain.closed = true
			b.apply(l)
			l.chains = []*chain{young}
			b.apply(l)
		}
		judged(1)
		switch {
		case !d.gone:
			b.livesOn(lives, d.cross...)
		case cut:
			b.isCut(clientNet, serverNet, lives)
		default:
			b.passesBy(lives, 1)
		}
	}
}

// forgotten: both ends of a connection have forgotten it without a word, and other rules are in
// force than when it began: another by the same ports goes its way until it is accepted, and
// then by those. What was begun and not open yet goes on as it began. While rules are the same, a
// SYN and its answer change nothing.
func forgotten(b *testbed) {
	wall, list, l := behindAWall(b)
	for n, d := range list {
		young := &chain{path: onpath.PathID(2*n + 2), match: toServer(), elements: []*element{{instances: []*instance{wall}}}}
		d.chain.path = onpath.PathID(2*n + 1)
		port, back := uint16(1000+10*n), reversed(d.cross)
		opens := func(t onpath.Tuple) {
			b.says(t, false, syn, d.cross...)
			b.says(t, true, syn|ack, back...)
		}
		l.chains = []*chain{d.chain}
		b.apply(l)
		for i := range uint16(4) {
			b.connects(tcp4(port+i), d.cross...)
		}
		same, opening := tcp4(port), tcp4(port+4)
		b.connects(same, d.cross...)
		opens(same)
		opens(opening)
		l.chains = []*chain{young, d.chain}
		d.chain.ended = d.gone
		b.apply(l)
		b.connects(opening, d.cross...)
		b.livesOn(opening, d.cross...)
		for i := range uint16(4) {
			t, reverse := tcp4(port+i), i%2 == 1
			b.livesOn(t, d.cross...)
			isNotAccepted(b, t, reverse, d.cross...)
			for _, flags := range []uint8{syn, syn, ack} { // sent again
				b.says(t, reverse, flags, wall)
				b.says(t, !reverse, flags|ack, wall)
			}
			b.livesOn(t, wall)
		}
		if b.t.Failed() {
			b.t.Fatalf("of a connection that was forgotten; %s", d.name)
		}
		d.chain.ended = true
		b.apply(l)
		d.chain.closed = true
		b.apply(l)
	}
}

// forgottenWithin: likewise of a connection that crosses an operator's chain since before a
// tenant's chain began behind that, also where the last instance keeps the reset to itself. One
// that lives crosses the operator's chain alone, also where the tenant's cuts older ones.
func forgottenWithin(b *testbed) {
	wall, op := b.instance("wall", gateway), b.instance("op", gateway)
	bridge, far := b.bridged("bridge", gateway), b.instance("far", "n2")
	b.looseEdge()
	mirrors := func(is []*instance) bool { return slices.ContainsFunc(is, func(i *instance) bool { return i.mirror }) }
	sets := append(slices.DeleteFunc(b.wrapping(), mirrors), []*instance{op}, []*instance{bridge}, []*instance{far}, []*instance{op, far}, []*instance{far, op})
	all := distinct(append(slices.Concat(sets...), wall))
	for n, ops := range sets {
		l, young := wrapped(onpath.PathID(2*n+1), all, ops, []*instance{wall})
		young.cut = n%2 == 1
		both, port := l.chains, uint16(1000+10*n)
		l.chains = both[:1]
		b.apply(l)
		opening := tcp4(port + 9)
		for i := range uint16(4) {
			b.connects(tcp4(port+i), ops...)
		}
		b.says(opening, false, syn, ops...)
		b.says(opening, true, syn|ack, reversed(ops)...)
		l.chains, young.began = both, b.h.Now()
		b.apply(l)
		b.connects(opening, ops...)
		for i := range uint16(4) {
			t, reverse := tcp4(port+i), i%2 == 1
			b.livesOn(t, ops...)
			if i < 2 {
				isNotAccepted(b, t, reverse, ops...)
			} else {
				isRefused(b, t, reverse, ops...)
			}
			first := append(along(ops, reverse), wall)     // who speaks first meets the operator's first
			for _, flags := range []uint8{syn, syn, ack} { // sent again
				b.says(t, reverse, flags, first...)
				b.says(t, !reverse, flags|ack, reversed(first)...)
			}
		}
		if b.t.Failed() {
			b.t.Fatalf("within %s", names(ops))
		}
	}
}

// livesOn sends SYNs as anybody may forge them within a connection that lives, in both
// directions, some right behind a RST or FINs: they go its way, and change nothing for it.
func (b *testbed) livesOn(t onpath.Tuple, is ...*instance) {
	b.t.Helper()
	way := func() (ends [2]onpath.FlowEntry) {
		for n, t := range []onpath.Tuple{t, t.Reverse()} {
			ends[n], _ = b.entry(gateway, edgeVport, t)
			ends[n].Packets, ends[n].Bytes, ends[n].Idle = 0, 0, 0
		}
		return ends
	}
	before := way()
	for _, reverse := range []bool{false, true} {
		crossed := is
		if reverse {
			crossed = reversed(is)
		}
		for _, seq := range []uint32{0, 500, 1001 + 1<<23, 1 << 31} {
			b.says(t, reverse, syn, crossed...)
			b.says(t, reverse, ack, crossed...)
			b.forges(t, reverse, rst, seq, crossed...)
			b.says(t, reverse, syn, crossed...)
		}
		b.says(t, reverse, ack, crossed...)
	}
	b.forges(t, false, fin, 1<<31, is...)
	b.forges(t, true, fin, 1<<31, reversed(is)...)
	b.says(t, false, syn, is...)
	b.says(t, false, ack, is...)
	if after := way(); !reflect.DeepEqual(before, after) {
		b.t.Errorf("a SYN within a connection that lives changed where that goes: %+v, before %+v", after, before)
	}
}

// forges is says for a packet whose number does not fit.
func (b *testbed) forges(t onpath.Tuple, reverse bool, flags uint8, seq uint32, is ...*instance) {
	b.t.Helper()
	p := newPacket(t)
	p.flags, p.seq = flags, seq
	b.carries(p, reverse, is...)
}

func distinct(is []*instance) (out []*instance) {
	seen := map[*instance]bool{}
	for _, i := range is {
		if !seen[i] {
			out = append(out, i)
		}
		seen[i] = true
	}
	return out
}
