package fake

import (
	"container/list"
	"encoding/binary"
	"slices"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/packet"
)

// flowKey is what a flow entry is found by.
type flowKey struct {
	vport onpath.VportID
	tuple onpath.Tuple
}

// flow is one entry.
type flow struct {
	kind onpath.NextKind
	next onpath.VportID // a vport, or the edge for exits
	// group by which next was chosen; 0 where it was not: exits, own traffic.
	group onpath.GroupID
	// context is the group by which the packets came to the instance that they
	// now come out of; its Then table goes on. 0 at edges.
	context onpath.GroupID
	mirrors []mirror
	// functions are run before the packet goes to next.
	functions []inlined
	entry     onpath.VportID
	path      onpath.PathID
	reverse   bool           // in which functions are run; of another tier than path's, perhaps
	route     bool           // exit: last
	tenant    string         // in whose share it is
	counts    bool           // an instance of the tenant began it: against its MaxFlows
	place     *list.Element  // among the tenant's pending; nil: it is established
	learned   bool           // written for answers, not by a choice
	known     bool           // of context only: of a flow that came here from another instance
	adopted   bool           // led past a chain that is younger than the connection
	heard     bool           // a connection came out of next, which was closed here
	answered  onpath.VportID // next, if the other direction's SYN has come out of that

	packets, bytes uint64
	seen           time.Time
	fin, rst       bool   // TCP: seen in this direction
	ack            uint32 // TCP: the last acknowledgement number; 0: none
	// asked: ack has not come, but has to, to acknowledge the answer to a SYN.
	asked bool
	// generation in which a packet that began the connection decided it; 0: another packet did.
	generation int
	// noted: a SYN has come by it, and it is stale.
	noted bool
	// replied: a packet of the other direction has gone to where this one's come from.
	replied bool
}

// mirror is one copy to be made.
type mirror struct {
	group onpath.GroupID
	vport onpath.VportID
}

// sweepFirst is the number of entries at which ageing first sweeps all.
const sweepFirst = 1 << 16

func (f *flow) describe(k flowKey, now time.Time) onpath.FlowEntry {
	e := onpath.FlowEntry{
		Vport: k.vport, Tuple: k.tuple, Kind: f.kind, Next: f.next, Entry: f.entry,
		Path: f.path, Reverse: f.reverse, Packets: f.packets, Bytes: f.bytes,
		Idle:    onpath.Duration(max(0, now.Sub(f.seen))),
		Emitted: f.counts, Learned: f.learned, Adopted: f.adopted,
	}
	for _, m := range f.mirrors {
		e.Mirrors = append(e.Mirrors, m.vport)
	}
	for _, i := range f.functions {
		e.Functions = append(e.Functions, i.vport)
	}
	return e
}

// aged tells whether a flow has rested for too long: both directions' entries at
// one place, of which neither goes before the other.
func (n *Node) aged(k flowKey, f *flow) bool {
	idle := onpath.DefaultIdle
	if p := n.paths[f.path]; p != nil {
		idle = p.Idle.OrDefault()
	}
	seen, oneWay, closing, closed := f.seen, false, f.fin, f.rst
	back := n.other(k, f)
	if back != nil {
		if back.seen.After(seen) {
			seen = back.seen
		}
		oneWay = (f.packets == 0) != (back.packets == 0)
		closing = f.fin || back.fin
		closed = f.rst || back.rst || f.fin && back.fin
	}
	limit := idle.For(k.tuple.Protocol, oneWay, closing, closed)
	if f.rst || back != nil && back.rst {
		limit = min(limit, afterReset)
	}
	return n.now().Sub(seen) > limit
}

// afterReset is how long a connection stays after a RST: if its ends go on meanwhile, that
// was somebody else's.
const afterReset = 2 * time.Second

// mate is the key of the other direction's entry at the same place: at a bridged
// instance, at its other side.
func (n *Node) mate(k flowKey) flowKey {
	m := flowKey{k.vport, k.tuple.Reverse()}
	if v := n.local(k.vport); v != nil {
		m.vport = v.Other
	}
	return m
}

// mateOf is the key of the other direction's entry, also of what functions of this
// node stand between other nodes' vports.
func (n *Node) mateOf(k flowKey, f *flow) flowKey {
	m := n.mate(k)
	if k.vport == n.edgeVport() || n.local(k.vport) != nil {
		return m
	}
	switch f.kind {
	case onpath.NextExit:
		m.vport = n.edgeVport()
	case onpath.NextVport:
		m.vport = f.next
	}
	return m
}

// other is the entry of the other direction, in the same table.
func (n *Node) other(k flowKey, f *flow) *flow {
	if f.place != nil {
		return n.share(f.tenant).pending[n.mate(k)]
	}
	return n.flows[n.mate(k)]
}

// forgetFlow forgets both directions.
func (n *Node) forgetFlow(k flowKey, f *flow) {
	back := n.other(k, f)
	n.drop(k, f)
	if back != nil && back != f {
		n.drop(n.mate(k), back)
	}
}

// begunAnew forgets what was decided for a connection that has ended, or of which this node hears
// one end alone, if the packet begins another by the same ports: at the edge the entries of both
// directions; at an instance the packet is decided by its context once more. A connection that may live stays as it is, whoever sent the SYN. Where
// a SYN was led by a stale entry, and is accepted, the connection of that has ended: no end
// accepts one within a connection that it knows.
func (n *Node) begunAnew(w *work, f *flow) bool {
	if f.kind == onpath.NextPending || w.h.Protocol != packet.TCP || w.h.Flags&packet.SYN == 0 {
		return false
	}
	m, back := n.back(w, f)
	if !w.h.Begins() {
		if w.h.Flags&packet.RST == 0 {
			n.noteAccepting(w, m, back)
		}
		return false
	}
	over, stale := hasEnded(f, back), f.generation != n.generation
	if !over && (f.replied || back != nil && back.packets > 0 || !hearsOneEnd(n, f)) {
		f.noted = f.noted || stale && !w.repeats(f, back)
		return false
	}
	switch {
	case f.context == 0 || f.counts:
		n.drop(w.key, f)
		if back != nil && (over || stale || back.kind == onpath.NextPass) {
			n.drop(m, back)
		}
	case n.groups[f.context] == nil:
		return false
	default:
		f.kind, f.next, f.functions, f.mirrors, f.adopted, f.answered = onpath.NextPending, 0, nil, nil, false, 0
		f.fin, f.rst, f.path, f.reverse = false, false, n.groups[f.context].Path, n.groups[f.context].Reverse
		f.noted, f.generation = false, n.generation
		if back != nil {
			back.fin, back.rst, back.adopted, back.noted = false, false, false, false
		}
	}
	return true
}

// hearsOneEnd reports whether an entry that no answer has come to passes by, or is of a connection
// that is older than what is in force, and goes on without that this node hears the other end.
func hearsOneEnd(n *Node, f *flow) bool {
	p := n.paths[f.path]
	return f.kind == onpath.NextPass || f.adopted || f.generation != n.generation && (f.ack != 0 || p != nil && p.Forward)
}

// decided has an entry be of a generation if the packet that decides it begins a connection. Of
// another one the connection may be older than what is in force: the entry is stale.
func (f *flow) decided(w *work, generation int) {
	if w.h.Begins() {
		f.generation, f.noted = generation, false
	}
}

// repeats reports whether a SYN is sent once more, while the connection that back answers for
// is not open yet.
func (w *work) repeats(f, back *flow) bool {
	return back != nil && back.packets > 0 && (f.asked || f.ack == 0) && w.h.Whole() &&
		binary.BigEndian.Uint32(w.b[w.h.L4+4:])+1-back.ack <= 0xff
}

// noteAccepting ends a connection by whose stale entry a SYN was led if a SYN-ACK accepts that.
// At the edge before an instance, that sees to the packet.
func (n *Node) noteAccepting(w *work, m flowKey, back *flow) {
	if back == nil || !back.noted {
		return
	}
	if m.vport == n.edgeVport() {
		w.accepts = w.accepts || back.kind != onpath.NextVport
	} else if back.kind == onpath.NextVport && back.next != back.entry {
		return
	} else {
		w.accepts = true
	}
	back.rst = true
}

// back is the entry of the other direction of a packet's connection at the same place, nil
// if there is none, and its key.
func (n *Node) back(w *work, f *flow) (flowKey, *flow) {
	m := n.mateOf(w.key, f)
	if f.counts {
		m.vport = n.edgeVport()
		if f.kind == onpath.NextVport {
			m.vport = f.next
		}
	}
	return m, n.find(m, f.tenant)
}

// endAhead is how far a FIN or RST may be ahead of what the other direction has acknowledged, in
// bytes.
const endAhead = 1 << 22

// endFits reports whether the other end may take a packet's FIN or RST for one: others end
// nothing. Where that end has not been heard, each may.
func (n *Node) endFits(w *work, f *flow) bool {
	m, back := n.heardBack(w, f)
	if back == nil || back.packets == 0 {
		return !w.outside.IsValid() || n.nat.outward[w.h.Tuple.Reverse()].fits(w.b, &w.h)
	}
	if !w.h.Whole() {
		return true
	}
	due := back.ack
	if m.vport != n.edgeVport() {
		due &^= 0xff // an entry elsewhere has no room for it
	}
	return due == 0 || binary.BigEndian.Uint32(w.b[w.h.L4+4:])-due <= endAhead
}

// heardBack is back, also of what an instance of this node began: there it comes out of that.
func (n *Node) heardBack(w *work, f *flow) (flowKey, *flow) {
	m, back := n.back(w, f)
	if back == nil && w.key.vport == n.edgeVport() && f.kind == onpath.NextVport {
		m.vport = f.next
		back = n.find(m, f.tenant)
	}
	return m, back
}

// portsAgain reports whether a SYN uses the ports of a connection again, so that what its ends
// have said is no more. While one of them goes on, a SYN does not: anybody can send one.
func (n *Node) portsAgain(w *work, f *flow) bool {
	_, back := n.heardBack(w, f)
	if back == nil || back.packets == 0 {
		return true
	}
	if !w.h.Begins() || !hasEnded(f, back) {
		return false
	}
	back.fin, back.rst = false, false
	return true
}

// hasEnded reports whether the connection of two entries at one place has ended; back may be
// nil.
func hasEnded(f, back *flow) bool {
	return f.rst || back != nil && (back.rst || f.fin && back.fin)
}

// learn writes an entry unless there is one, which it then gives, and marks it
// as seen either way: what leads to an instance keeps its context alive.
func (n *Node) learn(w *work, k flowKey, f flow, tenant string) *flow {
	if old := n.find(k, tenant); old != nil {
		old.seen = n.now()
		return old
	}
	f.decided(w, n.generation)
	n.insert(k, &f, tenant)
	return &f
}

// sweep forgets everything that has aged.
func (n *Node) sweep() {
	now := n.now()
	n.each(func(k flowKey, f *flow) {
		if n.aged(k, f) {
			n.forgetFlow(k, f)
		}
	})
	for k, f := range n.fragments {
		if now.Sub(f.at) > fragmentLife {
			delete(n.fragments, k)
		}
	}
	n.nat.sweep(now)
}

// purge forgets the entries of paths and instances that are no longer here, of those
// that were; connections passed by because they are older than their chain stay so, unless
// a path cuts such.
func (n *Node) purge(were map[onpath.VportID]*onpath.Vport) {
	cuts := n.anyCuts()
	n.each(func(k flowKey, f *flow) {
		adopted := f.kind == onpath.NextPass && f.adopted && !cuts
		path := n.paths[f.path]
		ended := f.path != 0 && !adopted && (path == nil || path.Closed && k.vport == n.edgeVport())
		if s := n.shares[f.tenant]; ended && s != nil && k.vport == n.edgeVport() {
			s.spare++
		}
		was := were[k.vport]
		dangling := slices.ContainsFunc(f.functions, func(i inlined) bool { return n.function(i.vport) == nil })
		if ended || dangling || was != nil && was.Kind == onpath.VportInstance && n.local(k.vport) == nil {
			n.drop(k, f)
		}
	})
}

// anyCuts reports whether a path is young that cuts the connections which are older.
func (n *Node) anyCuts() bool {
	for id, p := range n.paths {
		if p.Cut && n.now().Before(n.adoptUntil[id]) {
			return true
		}
	}
	return false
}

// fragmentKey finds the first fragment's ports for those that follow.
type fragmentKey struct {
	vport    onpath.VportID
	tuple    onpath.Tuple // without ports; IPv6 without protocol (RFC 8200)
	id       uint32
	protocol uint8
}

type fragment struct {
	tuple onpath.Tuple
	at    time.Time
}

// fragmentLife is how long the rest of a datagram may take (RFC 1122: 60 s).
const fragmentLife = 60 * time.Second

// defragment gives the packet the tuple of its first fragment. A fragment whose
// first did not come by stays unreadable.
func (n *Node) defragment(vport onpath.VportID, h *packet.Header) {
	if !h.Fragment {
		return
	}
	k := fragmentKey{vport: vport, tuple: h.Tuple, id: h.ID}
	k.tuple.SrcPort, k.tuple.DstPort, k.tuple.Protocol = 0, 0, 0
	if !h.V6 {
		k.protocol = h.Protocol
	}
	now := n.now()
	if h.First {
		if h.Verdict == packet.Fine && !h.IsError { // nobody fragments errors
			n.fragments[k] = fragment{h.Tuple, now}
		}
		return
	}
	if f, ok := n.fragments[k]; ok && now.Sub(f.at) <= fragmentLife {
		h.Tuple, h.Verdict = f.tuple, packet.Fine
		h.Protocol = f.tuple.Protocol
	}
}
