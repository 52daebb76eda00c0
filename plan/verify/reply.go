package verify

import (
	"slices"

	"github.com/onpath/onpath"
)

// answers checks the way back from an element: to where its packets came from,
// past the mirrors between.
func (w *walker) answers(st state, s set, to *site, g *onpath.Group) *failure {
	n := w.cl.wants[st.next-1]
	if n.p.forwardOnly() || !st.strict {
		return nil
	}
	came := st.at
	st.at = to
	if why := to.unreachable(st.via, came); why != "" {
		return w.lose(st, s, "has no way back from %s: %s", st.way.Note, why)
	}
	if st.jumped || w.unselected {
		return nil // they go back where the packets came from, past the same elements
	}
	var mirrors []wanted
	var prev *wanted
	for i := st.next - 2; i >= 0 && prev == nil; i-- {
		switch m := w.cl.wants[i]; {
		case m.p != n.p || m.reverse != n.reverse:
			w.between(m, n)
			i = 0
		case m.step().mirror:
			mirrors = append(mirrors, wanted{m.p, m.k, !m.reverse})
		case st.passed>>i&1 == 0:
			prev = &wanted{m.p, m.k, !m.reverse}
		}
	}
	if w.cl.emits != 0 {
		return nil // the answers to what an instance began come to itself first
	}
	return w.back(st, w.turn(s), g.Back, mirrors, prev)
}

// between notes a mirror at the end of the operator's chain, of which the node of a
// tenant's first element knows nothing.
func (w *walker) between(m, n wanted) {
	if m.step().mirror && m.step().serves {
		w.c.note("mirror %s of chain %s gets copies of the packets that go on to chain %s, and none of their answers",
			m.step().deployment, m.p.key, n.p.key)
	}
}

// back walks the table for answers: mirrors in order, then the element before.
func (w *walker) back(st state, s set, id onpath.TableID, mirrors []wanted, prev *wanted) *failure {
	if st.steps++; st.steps > maxSteps {
		return w.answer(st, s, "goes in a circle")
	}
	t := st.at.tables[id]
	if t == nil {
		return w.answer(st, s, "is lost: node %s has no %s", st.at.node, tableName(id))
	}
	if t.ID <= onpath.ClassifierTable(onpath.TierTenant) {
		return w.backEnd(st, s, mirrors, prev)
	}
	return w.divide(st, s, t, func(hit set, r *onpath.Rule) *failure {
		return w.backAct(st, hit, t.actionOf(r), mirrors, prev)
	})
}

func (w *walker) backAct(st state, s set, a onpath.Action, mirrors []wanted, prev *wanted) *failure {
	switch a.Kind {
	case onpath.ActionTable:
		return w.back(st, s, a.Table, mirrors, prev)
	case onpath.ActionGroup:
	case onpath.ActionExit, onpath.ActionRoute, onpath.ActionDeliver:
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
	if st.past {
		switch {
		case g.Mode == onpath.ModeMirror:
			return w.answer(st, s, "is copied to element %d of chain %s twice", k+1, named(chain))
		case st.at.skips(g):
			return w.back(st, s, g.Then, nil, nil)
		}
		return nil
	}
	if st.at.skips(g) && w.skipped(st, chain, k) {
		return w.back(st, s, g.Then, mirrors, prev)
	}
	if len(mirrors) > 0 {
		m := mirrors[0]
		if chain != m.p.key || k != m.k || g.Mode != onpath.ModeMirror {
			return w.answer(st, s, "does not meet mirror %s", m.step().deployment)
		}
		if f := w.copied(st, s, g, m); f != nil {
			return f
		}
		return w.back(st, s, g.Then, mirrors[1:], prev)
	}
	if prev == nil || chain != prev.p.key || k != prev.k || g.Mode == onpath.ModeMirror || g.Reverse != prev.reverse {
		return w.answer(st, s, "is sent through element %d of chain %s", k+1, named(chain))
	}
	if st.at.skips(g) && !has(g, st.via) {
		st.past = true // the flow entry knows the element, the search for mirrors goes on
		return w.back(st, s, g.Then, nil, nil)
	}
	return nil
}

// skipped reports whether the walk has passed an element by.
func (w *walker) skipped(st state, chain string, k int) bool {
	for i, n := range w.cl.wants[:st.next] {
		if st.passed>>i&1 == 1 && n.k == k && n.p.key == chain {
			return true
		}
	}
	return false
}

func (w *walker) backEnd(st state, s set, mirrors []wanted, prev *wanted) *failure {
	if len(mirrors) > 0 {
		return w.answer(st, s, "does not meet mirror %s", mirrors[0].step().deployment)
	}
	if prev != nil {
		return w.answer(st, s, "leaves without crossing element %d (%s) of chain %s", prev.k+1, prev.step().deployment, named(prev.p.key))
	}
	return nil
}

// answer fails for the flow whose answers are in the set.
func (w *walker) answer(st state, s set, format string, args ...any) *failure {
	return w.lose(st, w.turn(s), "has an answer that "+format, args...)
}

// copied checks that answers get the copy made that is due, by a group of mirrors
// which they meet.
func (w *walker) copied(st state, s set, g *onpath.Group, m wanted) *failure {
	open := false
	for _, member := range g.Members {
		if !st.at.takes(member) {
			continue
		}
		v := member.Vport
		open = true
		if !m.step().into[m.reverse][v] {
			return w.answer(st, s, "is copied to %s, which is no instance of element %d (%s) of chain %s",
				w.c.vportName(st.at, v), m.k+1, m.step().deployment, named(m.p.key))
		}
		to, f := w.send(st, w.turn(s), v)
		if f != nil {
			return f
		}
		if in := to.local(v); in == nil || in.State == onpath.VportClosed {
			return w.answer(st, s, "gets a copy made for %s that is dropped at node %s: vport %d is away or closed there",
				m.step().deployment, to.node, v)
		}
	}
	if !open && m.step().serves {
		return w.answer(st, s, "gets no copy made for %s, although an instance is ready", m.step().deployment)
	}
	return nil
}

// metMirror is a mirror that the packets of a class have met.
type metMirror struct {
	want  wanted
	group onpath.GroupID
	open  bool // an instance is ready
}

// returning checks what answers meet that come in at an edge, before they are led to
// the vport that the packets came out of: the mirrors which the packets met behind
// it. The edge's node finds them by its own tables.
func (w *walker) returning(st state, s set, edge *site) *failure {
	met := st.copies
	context := st.context
	if w.cl.emits != 0 && st.inline == 1 {
		context = st.at.contextOf(w.cl.emits, st.path, st.reversed)
		if context == 0 && st.at.chainOf(st.path) != w.cl.parts[0].p.key {
			return nil // the answers are the instance's own, and met by no mirror of another chain
		}
	}
	st.at = edge
	if st.inline == 0 {
		return w.copiedBack(st, s, met)
	}
	g := edge.groups[context]
	if g == nil {
		met = slices.DeleteFunc(slices.Clone(met), func(m metMirror) bool { return !m.open })
		if len(met) == 0 {
			return nil
		}
		return w.lose(st, s, "has an answer that does not meet mirror %s: node %s has no group %d",
			met[len(met)-1].want.step().deployment, edge.node, context)
	}
	met = slices.Clone(met)
	return w.again(st, s, g.Then, met, met)
}

// again walks the table behind the last element once more, at an edge: due are the
// mirrors that are still to be met, of those met.
func (w *walker) again(st state, s set, id onpath.TableID, due, met []metMirror) *failure {
	if st.steps++; st.steps > maxSteps {
		return w.lose(st, s, "has an answer for whose copies node %s goes in a circle", st.at.node)
	}
	t := st.at.tables[id]
	if t == nil {
		return w.copiedSo(st, s, due, met)
	}
	return w.divide(st, s, t, func(hit set, r *onpath.Rule) *failure {
		return w.againAct(st, hit, t.actionOf(r), due, met)
	})
}

func (w *walker) againAct(st state, s set, a onpath.Action, due, met []metMirror) *failure {
	if a.Kind == onpath.ActionTable {
		return w.again(st, s, a.Table, due, met)
	}
	g := st.at.groups[a.Group]
	if a.Kind == onpath.ActionGroup && g != nil && st.at.skips(g) {
		return w.again(st, s, g.Then, due, met)
	}
	if a.Kind != onpath.ActionGroup || g == nil || g.Mode != onpath.ModeMirror {
		return w.copiedSo(st, s, due, met)
	}
	_, k, _ := g.ID.Split()
	for len(due) > 0 && !due[0].open && k != due[0].want.k {
		due = due[1:]
	}
	if len(due) == 0 || st.at.chainOf(g.Path) != due[0].want.p.key || k != due[0].want.k {
		return w.lose(st, s, "has an answer that is copied to element %d of chain %s when it comes in at node %s", k+1,
			named(st.at.chainOf(g.Path)), st.at.node)
	}
	if due[0].open && !slices.ContainsFunc(g.Members, st.at.takes) {
		return w.copiedSo(st, s, due, met)
	}
	due[0].group = g.ID
	return w.again(st, s, g.Then, due[1:], met)
}

// copiedSo ends a walk for the mirrors that answers meet.
func (w *walker) copiedSo(st state, s set, due, met []metMirror) *failure {
	due = slices.DeleteFunc(slices.Clone(due), func(m metMirror) bool { return !m.open })
	if len(due) > 0 {
		return w.lose(st, s, "has an answer that does not meet mirror %s when it comes in at node %s",
			due[0].want.step().deployment, st.at.node)
	}
	return w.copiedBack(st, s, met)
}

// copiedBack checks the copies of answers that come in at an edge, to what has met
// these mirrors. Each is of the same element's group for the other direction.
func (w *walker) copiedBack(st state, s set, met []metMirror) *failure {
	for _, m := range slices.Backward(met) {
		if !m.open {
			continue
		}
		g := st.at.groups[m.group^1]
		if g == nil || g.Mode != onpath.ModeMirror {
			return w.lose(st, s,
				"has an answer that does not meet mirror %s when it comes in at node %s, which has no group %d",
				m.want.step().deployment, st.at.node, m.group^1)
		}
		if f := w.copied(st, w.turn(s), g, wanted{m.want.p, m.want.k, !m.want.reverse}); f != nil {
			return f
		}
	}
	return nil
}
