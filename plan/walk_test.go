package plan

import (
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
	// gates are the pairs of gateways' edges: each tells the other of its entries.
	gates map[onpath.VportID]onpath.VportID
	// change is what an instance does to a packet.
	change func(instance string, t onpath.Tuple) onpath.Tuple
}

type place struct {
	vport onpath.VportID
	tuple onpath.Tuple
}

type hop struct {
	to    onpath.VportID
	group onpath.GroupID // of the element delivered to, in this direction
	entry onpath.VportID
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

func newModel(s *sim) *model {
	m := &model{home: map[onpath.VportID]*index{}, entries: map[place]hop{}, context: map[place]context{}, gates: map[onpath.VportID]onpath.VportID{}, change: func(_ string, t onpath.Tuple) onpath.Tuple { return t }}
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
				m.gates[v.ID], m.gates[v.Backup] = v.Backup, v.ID
			}
		}
	}
	return m
}

// send has a packet come in at an edge.
func (m *model) send(edge onpath.VportID, t onpath.Tuple) way {
	w := way{out: t}
	v := edge
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
			m.learn(place{v, t}, h)
			if h.to != h.entry || v == edge && h.group != 0 {
				m.learn(place{h.to, t.Reverse()}, m.back(v, t, h))
			} else {
				m.learn(place{h.entry, t.Reverse()}, m.back(v, t, h))
			}
		}
		if x != m.home[h.to] && !x.hasRemote(h.to) {
			w.end = fmt.Sprintf("drop: %s does not know vport %d", x.plan.Node, h.to)
			return w
		}
		if y := m.home[h.to]; y != nil && y.edge == h.to {
			w.end, w.out, w.at = "exit", t, h.to
			return w
		}
		x = m.home[h.to]
		in := x.local[h.to]
		if in == nil {
			w.end = fmt.Sprintf("drop: vport %d is away", h.to)
			return w
		}
		w.through = append(w.through, in.Instance)
		if _, ok := m.context[place{h.to, t}]; !ok {
			m.context[place{h.to, t}] = context{h.group, h.entry}
		}
		t = m.change(in.Instance, t)
		v = h.to
		if in.Other != 0 {
			v = in.Other
		}
	}
	w.end = "drop: loop"
	return w
}

// learn inserts if absent. The other gateway of a pair is told what is learnt at an
// edge, but of packets that leave, and takes it over if it knows the vport.
func (m *model) learn(p place, h hop) {
	if _, ok := m.entries[p]; ok {
		return
	}
	m.entries[p] = h
	if o := m.gates[p.vport]; o != 0 && m.home[o] != nil && m.gates[h.to] == 0 && (m.home[o] == m.home[h.to] || m.home[o].hasRemote(h.to)) {
		if _, ok := m.entries[place{o, p.tuple}]; !ok {
			m.entries[place{o, p.tuple}] = hop{h.to, h.group, o}
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
	return hop{to: v, group: m.context[place{into, t}].group ^ 1, entry: h.entry}
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
		if l := x.local[v]; strings.HasSuffix(end, "spoofed") && l.Routes && slices.Contains(l.Own, t.Src) {
			return hop{to: l.Entry, entry: l.Entry}, ""
		}
		return h, end
	}
	return hop{}, "drop: spoofed"
}

func (m *model) walk(x *index, id onpath.TableID, t onpath.Tuple, entry onpath.VportID, untouched bool, w *way) (hop, string) {
	for range 100 {
		table := x.tables[id]
		if table == nil {
			return hop{}, fmt.Sprintf("drop: %s has no table %d", x.plan.Node, id)
		}
		a := table.Miss
		for _, r := range table.Rules {
			if matchesTuple(r.Match, t) {
				a = r.Action
				if r.Path != 0 && !slices.Contains(w.paths, r.Path) {
					w.paths = append(w.paths, r.Path)
				}
				break
			}
		}
		switch a.Kind {
		case onpath.ActionTable:
			id = a.Table
		case onpath.ActionExit:
			if untouched {
				return hop{}, "kernel"
			}
			return hop{to: entry, entry: entry}, ""
		case onpath.ActionRoute:
			return hop{}, "route"
		case onpath.ActionDrop:
			return hop{}, "drop: " + string(a.Reason)
		case onpath.ActionGroup:
			g := x.groups[a.Group]
			member := choose(x, g, t)
			switch {
			case g.Mode == onpath.ModeMirror:
				if member != 0 {
					w.mirrors = append(w.mirrors, m.instanceOf(member))
				}
				id = g.Then
			case member != 0:
				return hop{to: member, group: g.ID, entry: entry}, ""
			case g.None == onpath.NoneBypass:
				id = g.Then
			default:
				return hop{}, "drop: no-instance"
			}
		}
	}
	return hop{}, "drop: loop"
}

func (m *model) instanceOf(v onpath.VportID) string {
	if x := m.home[v]; x != nil && x.local[v] != nil {
		return x.local[v].Instance
	}
	return "?"
}

// choose is rendezvous hashing over the members that take new flows.
func choose(x *index, g *onpath.Group, t onpath.Tuple) onpath.VportID {
	var best onpath.VportID
	var most uint64
	for _, mb := range g.Members {
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
