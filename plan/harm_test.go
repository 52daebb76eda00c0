package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/onpath/onpath"
)

// modelOf is a model of plans that were spoilt.
func modelOf(plans map[string]*onpath.NodePlan) *model {
	s := &sim{states: map[string]*NodeState{}}
	for n, p := range plans {
		s.states[n] = &NodeState{Acked: p}
	}
	m := newModel(s)
	m.change = natted()
	return m
}

// near is a random flow, often at the border of a match of the plans.
func (s *sim) near(plans map[string]*onpath.NodePlan) onpath.Tuple {
	t := s.randomTuple()
	p := plans[one(s, slices.Sorted(maps.Keys(plans)))]
	tab := s.someTable(&p.Datapath, 1)
	if tab == nil {
		return t
	}
	m := tab.Rules[s.rng.IntN(len(tab.Rules))].Match
	if len(m.Src) > 0 {
		t.Src = one(s, m.Src).Addr()
	}
	if len(m.Dst) > 0 {
		t.Dst = one(s, m.Dst).Addr()
	}
	switch {
	case t.Src.Is4() == t.Dst.Is4():
	case t.Src.Is4():
		t.Dst = own
	default:
		t.Dst = own6
	}
	if t.Src == t.Dst || t.Src == own && t.Dst == virtual || t.Src == virtual && t.Dst == own {
		t.Src = t.Src.Next() // no network sees what a host sends to itself, by whatever name
	}
	if len(m.Protocol) > 0 {
		t.Protocol = one(s, m.Protocol)
	}
	if len(m.DstPorts) > 0 {
		r := one(s, m.DstPorts)
		t.DstPort = one(s, []uint16{r.First, r.Last, r.Last + 1, r.First - 1})
	}
	if len(m.SrcPorts) > 0 {
		r := one(s, m.SrcPorts)
		t.SrcPort = one(s, []uint16{r.First, r.Last, r.Last + 1, r.First - 1})
	}
	return t
}

// harmFinder says what plans that were spoilt do to flows, held against the plans as they
// were: a flow that those lead misled as well, such as one from outside that pretends
// to come from an instance's own address, says nothing about the spoiling.
type harmFinder struct {
	s         *sim
	w         *world
	good, bad map[string]*onpath.NodePlan
	spoilt    string // the node
}

// flow is one that is walked from a place where it starts.
type flow struct {
	at    onpath.VportID // an edge, or an instance's vport that emits it
	node  string
	emits bool
	tuple onpath.Tuple
}

// harm walks flows; it says what goes wrong first. The flows given come before chance
// has its say.
func (j *harmFinder) harm(n int, first ...flow) string {
	good, bad := modelOf(j.good), modelOf(j.bad)
	for _, f := range first {
		if why := j.misled(good, bad, f); why != "" {
			return why
		}
	}
	edges, emitters := j.starts()
	for i := range n {
		near := j.bad
		if i%2 == 0 {
			near = map[string]*onpath.NodePlan{j.spoilt: []map[string]*onpath.NodePlan{j.good, j.bad}[j.s.rng.IntN(2)][j.spoilt]}
		}
		tu := j.s.near(near)
		for _, f := range edges {
			f.tuple = tu
			if why := j.misled(good, bad, f); why != "" {
				return why
			}
		}
		if len(emitters) > 0 {
			f := one(j.s, emitters)
			f.tuple = tu
			if why := j.misled(good, bad, f); why != "" {
				return why
			}
		}
	}
	return ""
}

// starts are where flows may start: edges in use, and instances that may send.
func (j *harmFinder) starts() (edges, emitters []flow) {
	for _, name := range sortedKeys(j.good) {
		d := &j.good[name].Datapath
		o, _ := j.s.objects[onpath.Key{Kind: onpath.KindNode, Name: name}].(*onpath.Node)
		if d.Edge != nil && o != nil && o.Gateway() && o.Status.Edge != 0 && j.w.nodes[name].hasEdge() {
			edges = append(edges, flow{at: d.Edge.Vport, node: name})
		}
		for i := range d.Vports {
			if v := &d.Vports[i]; v.Kind == onpath.VportInstance && !v.Mirror {
				emitters = append(emitters, flow{at: v.ID, node: name, emits: true})
			}
		}
	}
	return edges, emitters
}

// misled says how a flow goes wrong by the spoilt plans that does not by the others.
func (j *harmFinder) misled(good, bad *model, f flow) string {
	if !f.emits {
		why := j.wrong(bad, f)
		if why != "" && j.wrong(good, f) != "" {
			return ""
		}
		return why
	}
	was, is := emission(good, f), emission(bad, f)
	if was == is || bad.home[f.at] == nil || strings.HasPrefix(was, "drop") && strings.HasPrefix(is, "drop") {
		return "" // an instance that no node knows sends nothing
	}
	return fmt.Sprintf("%v emitted at vport %d of %s: %s, before: %s", f.tuple, f.at, f.node, is, was)
}

// wrong walks a flow of which nobody knows anything.
func (j *harmFinder) wrong(m *model, f flow) (why string) {
	defer func() {
		if e := recover(); e != nil {
			why = fmt.Sprintf("the model fails: %v", e) // on references to what is not there
		}
	}()
	m = m.untold()
	m.change = natted()
	return j.w.wrong(m, f.at, f.node, f.tuple)
}

// emission says what becomes of a packet that an instance sends.
func emission(m *model, f flow) (what string) {
	defer func() {
		if e := recover(); e != nil {
			what = fmt.Sprintf("the model fails: %v", e)
		}
	}()
	m = m.untold()
	m.change = natted()
	if m.home[f.at] == nil || m.home[f.at].local[f.at] == nil {
		return "the instance is not there"
	}
	w := m.send(f.at, f.tuple)
	if strings.HasPrefix(w.end, "drop") && len(w.through)+len(w.mirrors) == 0 {
		return w.end
	}
	what = fmt.Sprintf("through %v (mirrors %v) to %q", deployments(w.through), deployments(w.mirrors), w.end)
	if w.end == "exit" {
		what += fmt.Sprintf(" at %d as %v", max(w.at, m.peers[w.at]), w.out) // at either of a pair
	}
	return what
}
