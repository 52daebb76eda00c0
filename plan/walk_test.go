package plan

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"

	"github.com/onpath/onpath"
)

// model walks packets through the plans in force, learning as the data path
// does: a choice writes entries in both directions, never over existing ones.
type model struct {
	home    map[onpath.VportID]*index // who has a vport: an instance's or an edge
	entries map[place]hop
	context map[place]context
	// As the data path marks entries: learned for answers, emitted where an instance
	// began the flow, given where an instance was handed packets of one, and which flows'
	// packets went by them (as numbered by flow).
	learned, emitted, given map[place]bool
	used                    map[place]map[int]bool
	flow                    int
	// peers holds the pairs of gateways' edges: each tells the other of its entries.
	peers map[onpath.VportID]onpath.VportID
	// change is what an instance does to a packet.
	change func(instance string, t onpath.Tuple) onpath.Tuple
	// prefer are instances that are chosen wherever they are members, also where they
	// are closed or drain: live flows may lead to them still.
	prefer map[string]bool
}

type place struct {
	vport onpath.VportID
	tuple onpath.Tuple
}

type hop struct {
	to    onpath.VportID
	group onpath.GroupID // of the element delivered to, in this direction
	entry onpath.VportID
	// mirrors are those that get copies on the way there.
	mirrors []string
	groups  []onpath.GroupID // of these mirrors, in order
	// path and reverse are the last rule's or group's.
	path    onpath.PathID
	reverse bool
	// kernel: nothing but mirrors was met.
	kernel bool
}

type context struct {
	group onpath.GroupID
	entry onpath.VportID
}

// way is what became of a packet.
type way struct {
	through []string // inline instances
	mirrors []string
	end     string // "exit", "kernel", "drop: …"
	at      onpath.VportID
	out     onpath.Tuple
	paths   []onpath.PathID
}

// emptyModel knows no node and no flow.
func emptyModel() *model {
	return &model{
		home: map[onpath.VportID]*index{}, peers: map[onpath.VportID]onpath.VportID{},
		entries: map[place]hop{}, context: map[place]context{},
		learned: map[place]bool{}, emitted: map[place]bool{}, given: map[place]bool{}, used: map[place]map[int]bool{},
		change: func(_ string, t onpath.Tuple) onpath.Tuple { return t },
	}
}

func newModel(s *sim) *model {
	m := emptyModel()
	for _, st := range s.states {
		x := indexOf(st.Acked)
		if x == nil {
			continue
		}
		for v := range x.local {
			m.home[v] = x
		}
		if x.edge != 0 {
			m.home[x.edge] = x
		}
		for _, v := range x.vports {
			if v.Backup != 0 {
				m.peers[v.ID], m.peers[v.Backup] = v.Backup, v.ID
			}
		}
	}
	return m
}

// send has a packet come in at an edge, or come out of an instance.
func (m *model) send(from onpath.VportID, t onpath.Tuple) way {
	w := way{out: t}
	v := from
	for range 100 {
		x := m.home[v]
		if x == nil {
			w.end = fmt.Sprintf("drop: nobody has vport %d", v)
			return w
		}
		h, known := m.entries[place{v, t}]
		if !known {
			var end string
			if h, end = m.decide(x, v, t, &w); end != "" {
				w.end, w.out, w.at = end, t, h.to
				return w
			}
			m.learnWay(x, v, t, h)
		}
		if m.used[place{v, t}] == nil {
			m.used[place{v, t}] = map[int]bool{}
		}
		m.used[place{v, t}][m.flow] = true
		w.mirrors = append(w.mirrors, h.mirrors...)
		if h.kernel {
			w.end, w.out, w.at = "kernel", t, h.to
			return w
		}
		if why := m.carried(x, h.to); why != "" {
			w.end = "drop: " + why
			return w
		}
		x = m.home[h.to]
		if x.edge == h.to {
			w.end, w.out, w.at = "exit", t, h.to
			return w
		}
		in := x.local[h.to]
		switch {
		case in == nil:
			w.end = fmt.Sprintf("drop: vport %d is away", h.to)
		case in.State == onpath.VportClosed && !m.prefer[in.Instance]:
			w.end = fmt.Sprintf("drop: vport %d is closed", h.to)
		case in.Mirror || in.Other != 0 && x.local[in.Other] != nil && x.local[in.Other].Mirror:
			w.end = fmt.Sprintf("drop: mirror %s takes it", in.Instance)
		}
		if w.end != "" {
			return w
		}
		w.through = append(w.through, in.Instance)
		if _, ok := m.context[place{h.to, t}]; !ok && h.group != 0 {
			m.context[place{h.to, t}] = context{h.group, h.entry}
		}
		v = h.to
		if in.Other != 0 {
			v = in.Other
		}
		m.given[place{v, t}] = true
		if t = m.change(in.Instance, t); t.IsZero() {
			w.end = "drop: the instance's"
			return w
		}
	}
	w.end = "drop: loop"
	return w
}

// carried says why a packet does not get from a node to a vport.
func (m *model) carried(x *index, v onpath.VportID) string {
	y := m.home[v]
	if y == x {
		return ""
	}
	p := x.vports[v]
	if p == nil || p.Kind != onpath.VportRemote {
		return fmt.Sprintf("%s does not know vport %d", x.plan.Node, v)
	}
	if y == nil || y.plan.Node != p.Peer {
		return fmt.Sprintf("vport %d is not on %s", v, p.Peer)
	}
	there, here := peerOf(x, y.plan.Node), peerOf(y, x.plan.Node)
	if there == nil || here == nil || there.Secret != here.Secret || there.Address != y.plan.Datapath.Underlay.Address {
		return fmt.Sprintf("no tunnel leads from %s to %s", x.plan.Node, y.plan.Node)
	}
	return ""
}

func peerOf(x *index, node string) *onpath.Peer {
	for i := range x.plan.Datapath.Peers {
		if p := &x.plan.Datapath.Peers[i]; p.Node == node {
			return p
		}
	}
	return nil
}

// learnWay writes what was decided for a packet that came from v, and for its answer.
func (m *model) learnWay(x *index, v onpath.VportID, t onpath.Tuple, h hop) {
	m.learn(place{v, t}, h)
	b := m.back(v, t, h)
	at := h.to
	if h.to == h.entry && (v != x.edge || h.group == 0) {
		at = h.entry
	}
	y := m.home[at]
	if y == nil {
		return
	}
	if h.group == 0 && !m.answered(y, v, t, h) {
		return
	}
	if h.group != 0 {
		var group onpath.GroupID
		b.mirrors, group = m.answering(y, y.groups[h.group], t.Reverse(), v)
		if v != x.edge {
			b.group = cmp.Or(b.group, group)
		}
	} else if v == x.edge {
		b.mirrors, b.kernel = m.copiesReversed(y, h.groups, t), h.kernel
	} else {
		b.mirrors = m.behind(y, b.group^1, t)
	}
	if _, ok := m.entries[place{at, t.Reverse()}]; !ok {
		m.learned[place{at, t.Reverse()}] = true
	}
	m.learn(place{at, t.Reverse()}, b)
}

// answered reports whether the answers to what leaves at a node's edge are led back.
func (m *model) answered(y *index, v onpath.VportID, t onpath.Tuple, h hop) bool {
	path := h.path
	if c, ok := m.context[place{m.into(v), t}]; ok {
		path, _, _ = c.group.Split()
	}
	p := y.paths[path]
	if p == nil {
		return path == 0
	}
	_, same := m.entries[place{h.entry, t}]
	return !p.Forward || !same // what an element began or changed comes back to it
}

// into is the vport by which packets come into the instance that they leave at v.
func (m *model) into(v onpath.VportID) onpath.VportID {
	if x := m.home[v]; x != nil && x.local[v] != nil && x.local[v].Other != 0 {
		return x.local[v].Other
	}
	return v
}

// answering are the mirrors that answers meet before the element, or edge, from
// which the packet came: along the table for answers. It also gives that element's
// group.
func (m *model) answering(x *index, g *onpath.Group, answer onpath.Tuple, from onpath.VportID) (out []string, element onpath.GroupID) {
	if g == nil {
		return nil, 0
	}
	id := g.Back
	for range 100 {
		table := x.tables[id]
		if table == nil || id <= onpath.ClassifierTable(onpath.TierTenant) {
			return out, 0
		}
		a := actionIn(table, answer)
		next := x.groups[a.Group]
		switch {
		case a.Kind == onpath.ActionTable:
			id = a.Table
			continue
		case a.Kind != onpath.ActionGroup || next == nil || next.Path != g.Path:
			return out, 0
		case next.Mode == onpath.ModeMirror:
			out = append(out, m.copies(x, next, answer)...)
		case m.choose(x, next, answer) != 0 || next.None != onpath.NoneBypass || hasMember(next, from):
			return out, next.ID
		}
		id = next.Then
	}
	return out, 0
}

func hasMember(g *onpath.Group, v onpath.VportID) bool {
	return slices.ContainsFunc(g.Members, func(m onpath.Member) bool { return m.Vport == v })
}

// behind are the mirrors that answers meet which come in at an edge where packets of
// a flow left after their last element, whose group is g.
func (m *model) behind(x *index, id onpath.GroupID, t onpath.Tuple) []string {
	g := x.groups[id]
	if g == nil {
		return nil
	}
	h, _ := m.walk(x, g.Then, t, 0, false, &way{})
	return m.copiesReversed(x, h.groups, t)
}

// copiesReversed are the copies of answers to what met these groups of mirrors.
func (m *model) copiesReversed(x *index, met []onpath.GroupID, t onpath.Tuple) (out []string) {
	for _, id := range slices.Backward(met) {
		if g := x.groups[id^1]; g != nil {
			out = append(out, m.copies(x, g, t.Reverse())...)
		}
	}
	return out
}

// copies is the mirror that gets a copy.
func (m *model) copies(x *index, g *onpath.Group, t onpath.Tuple) []string {
	member := m.choose(x, g, t)
	if member == 0 {
		return nil
	}
	i := m.home[member]
	switch {
	case m.carried(x, member) != "" || i == nil || i.local[member] == nil || i.local[member].State == onpath.VportClosed:
		return []string{"?/lost-00000"}
	case !i.local[member].Mirror && i.local[member].Emit != 0:
		return []string{"?/twice-00000"}
	}
	return []string{i.local[member].Instance}
}

// learn inserts if absent. The other gateway of a pair is told what is learnt at an
// edge, but of packets that leave, and takes it over if it knows the vport.
func (m *model) learn(p place, h hop) {
	if _, ok := m.entries[p]; ok {
		return
	}
	m.entries[p] = h
	if o := m.peers[p.vport]; o != 0 && m.home[o] != nil && m.peers[h.to] == 0 && (m.home[o] == m.home[h.to] || m.home[o].hasRemote(h.to)) {
		if _, ok := m.entries[place{o, p.tuple}]; !ok {
			m.entries[place{o, p.tuple}] = hop{to: h.to, group: h.group, entry: o, mirrors: h.mirrors}
		}
	}
}

// back is the entry of the answer: it goes where the packet came from.
func (m *model) back(v onpath.VportID, t onpath.Tuple, h hop) hop {
	x := m.home[v]
	if x.edge == v {
		return hop{to: v, entry: v}
	}
	into := v
	if o := x.local[v].Other; o != 0 {
		into = o
	}
	b := hop{to: v, entry: h.entry}
	if c, ok := m.context[place{into, t}]; ok {
		b.group = c.group ^ 1
	}
	return b
}

// decide walks tables for a packet without an entry.
func (m *model) decide(x *index, v onpath.VportID, t onpath.Tuple, w *way) (hop, string) {
	if x.edge == v {
		table := x.plan.Datapath.Edge.Table
		if table == 0 {
			return hop{}, "kernel"
		}
		return m.walk(x, table, t, v, true, w)
	}
	into := v
	if o := x.local[v].Other; o != 0 {
		into = o
	}
	if c, ok := m.context[place{into, t}]; ok {
		return m.walk(x, x.groups[c.group].Then, t, c.entry, false, w)
	}
	if e := x.local[v].Emit; e != 0 {
		h, end := m.walk(x, e, t, x.local[v].Entry, false, w)
		m.emitted[place{v, t}] = end == ""
		if l := x.local[v]; strings.HasSuffix(end, "spoofed") && l.Routes && slices.Contains(l.Own, t.Src) {
			return hop{to: l.Entry, entry: l.Entry}, ""
		}
		for _, g := range x.groups { // what came before it, by what it is taken for
			if end == "" && g.Path == h.path && g.Reverse == h.reverse && hasMember(g, into) {
				m.context[place{into, t}] = context{g.ID, h.entry}
			}
		}
		return h, end
	}
	return hop{}, "drop: spoofed"
}

func (m *model) walk(x *index, id onpath.TableID, t onpath.Tuple, entry onpath.VportID, untouched bool, w *way) (hop, string) {
	h := hop{entry: entry}
	for range 100 {
		table := x.tables[id]
		if table == nil {
			return hop{groups: h.groups}, fmt.Sprintf("drop: %s has no table %d", x.plan.Node, id)
		}
		for _, r := range table.Rules {
			if matchesTuple(r.Match, t) {
				if r.Path != 0 && !slices.Contains(w.paths, r.Path) {
					w.paths = append(w.paths, r.Path)
				}
				if r.Path != 0 {
					h.path, h.reverse = r.Path, r.Reverse
				}
				break
			}
		}
		switch a := actionIn(table, t); a.Kind {
		case onpath.ActionTable:
			id = a.Table
		case onpath.ActionExit:
			h.to = entry
			if untouched && len(h.groups) == 0 {
				return hop{}, "kernel"
			}
			h.kernel = untouched
			return h, ""
		case onpath.ActionRoute:
			w.mirrors = append(w.mirrors, h.mirrors...)
			return hop{groups: h.groups}, "route"
		case onpath.ActionDrop:
			return hop{groups: h.groups}, "drop: " + string(a.Reason)
		case onpath.ActionGroup:
			g := x.groups[a.Group]
			if g == nil {
				return hop{groups: h.groups}, fmt.Sprintf("drop: %s has no group %d", x.plan.Node, a.Group)
			}
			member := m.choose(x, g, t)
			h.path, h.reverse = g.Path, g.Reverse
			switch {
			case g.Mode == onpath.ModeMirror:
				if member != 0 {
					h.mirrors = append(h.mirrors, m.copies(x, g, t)...)
					h.groups = append(h.groups, g.ID)
				}
				id = g.Then
			case member != 0:
				h.to, h.group = member, g.ID
				return h, ""
			case g.None == onpath.NoneBypass:
				id = g.Then
			default:
				return hop{groups: h.groups}, "drop: no-instance"
			}
		}
	}
	return hop{}, "drop: loop"
}

// actionIn is what a table does with a packet.
func actionIn(table *onpath.Table, t onpath.Tuple) onpath.Action {
	for _, r := range table.Rules {
		if matchesTuple(r.Match, t) {
			return r.Action
		}
	}
	return table.Miss
}

// choose is rendezvous hashing over the members that take new flows.
func (m *model) choose(x *index, g *onpath.Group, t onpath.Tuple) onpath.VportID {
	var best onpath.VportID
	var most uint64
	if g.Reverse {
		t = t.Reverse()
	}
	for _, mb := range g.Members {
		if m.preferred(mb.Vport) && x.vports[mb.Vport] != nil {
			return mb.Vport
		}
		if v := x.vports[mb.Vport]; v == nil || v.State != onpath.VportUp || mb.Weight == 0 {
			continue
		}
		h := fnv.New64a()
		fmt.Fprint(h, t, mb.Key)
		if s := h.Sum64(); best == 0 || s > most {
			best, most = mb.Vport, s
		}
	}
	return best
}

func (m *model) preferred(v onpath.VportID) bool {
	x := m.home[v]
	return x != nil && x.local[v] != nil && m.prefer[x.local[v].Instance]
}

func matchesTuple(m onpath.Match, t onpath.Tuple) bool {
	in := func(list []netip.Prefix, a netip.Addr) bool {
		return len(list) == 0 || slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	port := func(list []onpath.PortRange, p uint16) bool {
		return len(list) == 0 || hasPorts(t.Protocol) && slices.ContainsFunc(list, func(r onpath.PortRange) bool { return r.Contains(p) })
	}
	return in(m.Src, t.Src) && in(m.Dst, t.Dst) && port(m.SrcPorts, t.SrcPort) && port(m.DstPorts, t.DstPort) &&
		(len(m.Protocol) == 0 || slices.Contains(m.Protocol, t.Protocol)) &&
		(m.Family == 0 || m.Family == 4 == t.Src.Is4())
}

func (m *model) instanceOf(v onpath.VportID) string {
	if x := m.home[v]; x != nil && x.local[v] != nil {
		return x.local[v].Instance
	}
	return "?"
}
