package verify

import (
	"fmt"

	"github.com/onpath/onpath"
)

// group delivers a set to every member of a group, and past it if it may have
// none.
func (w *walker) group(st state, s set, id onpath.GroupID) *failure {
	g := st.at.groups[id]
	if g == nil {
		return w.lose(st, s, "is dropped: there is no group %d (no-table)", id)
	}
	if f := w.due(st, s, g); f != nil {
		return f
	}
	want := w.cl.wants[st.next].step()
	st.on = w.cl.wants[st.next].p
	st.next++
	open := false
	for _, m := range g.Members {
		if st.at.vports[m.Vport] == nil {
			continue // is passed over
		}
		taker := st.at.open(m.Vport) && m.Weight > 0
		open = open || taker
		if f := w.member(st, s, g, m.Vport, taker); f != nil {
			return f
		}
	}
	if want.mirror {
		if open {
			st.mirrors++
		} else if want.serves {
			if f := w.lose(st, s, "gets no copy made for %s, although an instance is ready", want.deployment); f != nil {
				return f
			}
		}
		st.table = g.Then
		return w.walk(st, s)
	}
	return w.without(st, s, g, want, open)
}

// without is what becomes of flows while no instance is ready.
func (w *walker) without(st state, s set, g *onpath.Group, want *step, open bool) *failure {
	if bypass := g.None == onpath.NoneBypass; bypass != want.bypass {
		return w.fail(st, s, "would be %s without a ready instance of %s, against the chain's none", fate(bypass), want.deployment)
	}
	if !open && want.serves {
		if f := w.lose(st, s, "is %s: node %s has no instance of %s to send to, although one is ready", fate(want.bypass), st.at.node, want.deployment); f != nil {
			return f
		}
	}
	if !want.bypass {
		return nil
	}
	if !open {
		w.c.bypasses(w.cl.wants[st.next-1], st)
	}
	st.strict = st.strict && !open
	st.bypassed = true
	st.way = &hop{fmt.Sprintf("past %s, which has no instance", want.deployment), st.way}
	st.table = g.Then
	return w.walk(st, s)
}

func fate(bypass bool) string {
	if bypass {
		return "passed by"
	}
	return "dropped"
}

// due holds a group against the element that ought to come next.
func (w *walker) due(st state, s set, g *onpath.Group) *failure {
	path := st.at.paths[g.Path]
	_, k, reverse := g.ID.Split()
	name := fmt.Sprintf("element %d of chain %s", k+1, st.at.chainOf(g.Path))
	if path == nil {
		return w.lose(st, s, "is dropped: group %d is of path %d, which node %s does not have", g.ID, g.Path, st.at.node)
	}
	if k < len(path.Elements) {
		name = fmt.Sprintf("element %d (%s) of chain %s", k+1, path.Elements[k], path.Chain)
	}
	if st.next >= len(w.cl.wants) {
		return w.fail(st, s, "is sent through %s, which does not select it or lies behind it", name)
	}
	n := w.cl.wants[st.next]
	st.on = n.p
	switch {
	case path.Chain != n.p.key || k != n.k || k >= len(path.Elements) || path.Elements[k] != n.step().deployment:
		return w.fail(st, s, "is sent through %s, and ought to cross element %d (%s) of chain %s", name, n.k+1, n.step().deployment, n.p.key)
	case reverse != n.reverse || g.Reverse != n.reverse:
		return w.fail(st, s, "is sent through %s as if it ran the other way", name)
	case (g.Mode == onpath.ModeMirror) != n.step().mirror:
		return w.fail(st, s, "is %s %s, against the chain's mode", map[bool]string{true: "only copied to", false: "sent through"}[g.Mode == onpath.ModeMirror], name)
	}
	return nil
}

// member delivers a set to one member and follows what comes out.
func (w *walker) member(st state, s set, g *onpath.Group, v onpath.VportID, taker bool) *failure {
	n := w.cl.wants[st.next-1]
	if !n.step().into[n.reverse][v] {
		return w.fail(st, s, "is delivered to %s, which is no instance of element %d (%s) of chain %s", w.c.vportName(st.at, v), n.k+1, n.step().deployment, n.p.key)
	}
	st.strict = st.strict && taker
	to, f := w.send(st, s, v)
	if f != nil || to == nil {
		return f
	}
	w.tells(st, v, to)
	in := to.local(v)
	if in == nil {
		return w.lose(st, s, "is dropped at node %s: vport %d is not there (unknown-vport)", to.node, v)
	}
	if in.State == onpath.VportClosed {
		if f := w.lose(st, s, "is dropped at node %s: vport %d is closed there", to.node, v); f != nil {
			return f
		}
		st.strict = false
	}
	if i := w.c.res.byVport[v]; i != nil && in.Instance != keyOf(i) {
		return w.fail(st, s, "is delivered to instance %s behind vport %d, which is %s's", in.Instance, v, keyOf(i))
	}
	if g.Mode == onpath.ModeMirror {
		if !in.Mirror && in.Emit != 0 {
			return w.fail(st, s, "would go on twice: what mirror %s emits is not dropped", in.Instance)
		}
		return nil
	}
	if in.Mirror {
		return w.lose(st, s, "is dropped behind %s, whose vport is a mirror's", in.Instance)
	}
	return w.behind(st, s, to, g, in)
}

// behind goes on with what comes out of an instance. Elements that change
// packets may leave them as they are; what else they emit is looked at as
// classes that start there.
func (w *walker) behind(st state, s set, to *site, g *onpath.Group, in *onpath.Vport) *failure {
	st.way = &hop{fmt.Sprintf("%s on %s", in.Instance, to.node), st.way}
	back := to.groups[g.ID]
	if back == nil {
		st.at = to
		return w.lose(st, s, "is dropped behind %s: node %s has no group %d", in.Instance, to.node, g.ID)
	}
	if f := w.answers(st, s, to, back); f != nil {
		return f
	}
	out := to.out(in)
	if to.local(out) == nil {
		st.at = to
		return w.lose(st, s, "comes out of %s at vport %d, which node %s does not have", in.Instance, out, to.node)
	}
	st.at, st.via, st.table = to, out, back.Then
	st.inline++
	st.bypassed = false
	return w.walk(st, s)
}

// answers checks the way back from an element: to where its packets came from,
// past the mirrors between.
func (w *walker) answers(st state, s set, to *site, g *onpath.Group) *failure {
	n := w.cl.wants[st.next-1]
	if n.p.forwardOnly() || !st.strict {
		return nil
	}
	came := st.at
	st.at = to
	if !to.reaches(st.via, came) {
		return w.lose(st, s, "has no way back: node %s, where it comes from node %s, does not know vport %d there", to.node, came.node, st.via)
	}
	var mirrors []wanted
	var prev *wanted
	for i := st.next - 2; i >= 0 && prev == nil; i-- {
		switch m := w.cl.wants[i]; {
		case m.p != n.p || m.reverse != n.reverse:
			i = 0
		case m.step().mirror:
			mirrors = append(mirrors, wanted{m.p, m.k, !m.reverse})
		default:
			prev = &wanted{m.p, m.k, !m.reverse}
		}
	}
	if w.cl.emits != 0 {
		return nil // the answers to what an instance began come to itself first
	}
	return w.back(st, w.turn(s), g.Back, mirrors, prev)
}

// back walks the table for answers: mirrors in order, then the element before.
func (w *walker) back(st state, s set, id onpath.TableID, mirrors []wanted, prev *wanted) *failure {
	if st.steps++; st.steps > maxSteps {
		return w.answer(st, s, "goes in a circle")
	}
	t := st.at.tables[id]
	if t == nil {
		return w.answer(st, s, "finds no table %d", id)
	}
	if t.ID <= onpath.ClassifierTable(onpath.TierTenant) {
		return w.backEnd(st, s, mirrors, prev)
	}
	for i := range t.Rules {
		for _, b := range t.rule(w.c.space, i) {
			hit, ok := w.c.space.and(s, b)
			if !ok {
				continue
			}
			if f, none := w.nothing(st, hit); f != nil {
				return f
			} else if !none {
				if f := w.backAct(st, hit, t.Rules[i].Action, mirrors, prev); f != nil {
					return f
				}
			}
			if s, ok = w.c.space.minus(s, b); !ok {
				return nil
			}
		}
	}
	if f, none := w.nothing(st, s); none {
		return f
	}
	return w.backAct(st, s, t.Miss, mirrors, prev)
}

func (w *walker) backAct(st state, s set, a onpath.Action, mirrors []wanted, prev *wanted) *failure {
	switch a.Kind {
	case onpath.ActionTable:
		return w.back(st, s, a.Table, mirrors, prev)
	case onpath.ActionGroup:
	case onpath.ActionExit, onpath.ActionRoute:
		return w.backEnd(st, s, mirrors, prev)
	default:
		return w.answer(st, s, "is dropped")
	}
	g := st.at.groups[a.Group]
	if g == nil {
		return w.answer(st, s, "finds no group %d", a.Group)
	}
	_, k, _ := g.ID.Split()
	chain := st.at.chainOf(g.Path)
	if len(mirrors) > 0 {
		m := mirrors[0]
		if chain != m.p.key || k != m.k || g.Mode != onpath.ModeMirror {
			return w.answer(st, s, "does not meet mirror %s", m.step().deployment)
		}
		return w.back(st, s, g.Then, mirrors[1:], prev)
	}
	if prev == nil || chain != prev.p.key || k != prev.k || g.Mode == onpath.ModeMirror || g.Reverse != prev.reverse {
		return w.answer(st, s, "is sent through element %d of chain %s", k+1, chain)
	}
	return nil
}

func (w *walker) backEnd(st state, s set, mirrors []wanted, prev *wanted) *failure {
	if len(mirrors) > 0 {
		return w.answer(st, s, "does not meet mirror %s", mirrors[0].step().deployment)
	}
	if prev != nil {
		return w.answer(st, s, "leaves without crossing element %d (%s) of chain %s", prev.k+1, prev.step().deployment, prev.p.key)
	}
	return nil
}

// answer fails for the flow whose answers are in the set.
func (w *walker) answer(st state, s set, format string, args ...any) *failure {
	return w.lose(st, w.turn(s), "has an answer that "+format, args...)
}
