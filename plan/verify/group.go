package verify

import (
	"cmp"
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
	st.path, st.reversed = g.Path, g.Reverse
	want := w.cl.wants[st.next].step()
	st.on = w.cl.wants[st.next].p
	st.next++
	open := false
	for _, m := range g.Members {
		if st.at.vports[m.Vport] == nil {
			continue // is passed over
		}
		taker := st.at.takes(m)
		open = open || taker
		if f := w.member(st, s, g, m.Vport, taker); f != nil {
			return f
		}
	}
	if want.mirror {
		st.copies = append(st.copies[:len(st.copies):len(st.copies)], metMirror{w.cl.wants[st.next-1], id, open})
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
	st.passed |= 1 << (st.next - 1)
	st.way = &hop{onpath.Note{Text: fmt.Sprintf("past %s, which has no instance", want.deployment), About: want.deployment}, st.way}
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
	name := named(st.at.chainOf(g.Path))
	name.Text = fmt.Sprintf("element %d of chain %s", k+1, name.About)
	if path == nil {
		return w.lose(st, s, "is dropped: group %d is of path %d, which node %s does not have", g.ID, g.Path, st.at.node)
	}
	if k < len(path.Elements) {
		name = onpath.Note{Text: fmt.Sprintf("element %d (%s) of chain %s", k+1, path.Elements[k], path.Chain), About: path.Chain}
	}
	if st.next >= len(w.cl.wants) {
		return w.fail(st, s, "is sent through %s, which does not select it or lies behind it", name)
	}
	n := w.cl.wants[st.next]
	st.on = n.p
	switch {
	case path.Chain != n.p.key || k != n.k || k >= len(path.Elements) || path.Elements[k] != n.step().deployment:
		return w.fail(st, s, "is sent through %s, and ought to cross element %d (%s) of chain %s", name, n.k+1, n.step().deployment, named(n.p.key))
	case reverse != n.reverse || g.Reverse != n.reverse:
		return w.fail(st, s, "is sent through %s as if it ran the other way", name)
	case st.path != g.Path || st.reversed != g.Reverse:
		return w.fail(st, s, "is sent through %s, and taken for path %d of chain %q by the rule that leads there", name, st.path, named(st.at.chainOf(st.path)))
	case cmp.Or(g.Together, onpath.TogetherFlow) != n.step().together:
		return w.fail(st, s, "is chosen an instance of %s by %q, against the chain's together: %s", name,
			cmp.Or(g.Together, onpath.TogetherFlow), n.step().together)
	case !n.step().together.Apart() && len(g.Weights) > 0:
		return w.fail(st, s, "is chosen an instance of %s by where it comes from, against the chain's together: %s",
			name, n.step().together)
	case (g.Mode == onpath.ModeMirror) != n.step().mirror:
		return w.fail(st, s, "is %s %s, against the chain's mode", map[bool]string{true: "only copied to", false: "sent through"}[g.Mode == onpath.ModeMirror], name)
	}
	return nil
}

// member delivers a set to one member and follows what comes out.
func (w *walker) member(st state, s set, g *onpath.Group, v onpath.VportID, taker bool) *failure {
	n := w.cl.wants[st.next-1]
	if !n.step().into[n.reverse][v] {
		return w.fail(st, s, "is delivered to %s, which is no instance of element %d (%s) of chain %s", w.c.vportName(st.at, v), n.k+1, n.step().deployment, named(n.p.key))
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
		return w.fail(st, s, "is delivered to instance %s behind vport %d, which is %s's", named(in.Instance), v, named(keyOf(i)))
	}
	if g.Mode == onpath.ModeMirror {
		if !in.Mirror && in.Emit != 0 {
			return w.fail(st, s, "would go on twice: what mirror %s emits is not dropped", in.Instance)
		}
		return nil
	}
	if f := w.sides(st, s, to, in); f != nil {
		return f
	}
	return w.behind(st, s, to, g, in)
}

// sides checks that what goes into an instance comes out of it: at its other side, if
// it is bridged.
func (w *walker) sides(st state, s set, to *site, in *onpath.Vport) *failure {
	out, i := in.ID, w.c.res.byVport[in.ID]
	if i != nil && i.Spec.Back != 0 {
		out = i.Spec.Vport + i.Spec.Back - in.ID
	}
	there := to.local(out)
	switch {
	case there == nil:
		return w.lose(st, s, "comes out of %s at vport %d, which node %s does not have", in.Instance, out, to.node)
	case to.out(in) != out || to.out(there) != in.ID || there.Instance != in.Instance:
		return w.lose(st, s, "is taken at node %s to come out of %s at vport %d, and comes out at vport %d", to.node, in.Instance, to.out(in), out)
	case in.Mirror || there.Mirror:
		return w.lose(st, s, "is dropped behind %s, whose vport is a mirror's", in.Instance)
	}
	return nil
}

// behind goes on with what comes out of an instance. Elements that change
// packets may leave them as they are; what else they emit is looked at as
// classes that start there.
func (w *walker) behind(st state, s set, to *site, g *onpath.Group, in *onpath.Vport) *failure {
	st.way = &hop{onpath.Note{Text: fmt.Sprintf("%s on %s", in.Instance, to.node), About: in.Instance}, st.way}
	back := to.groups[g.ID]
	if back == nil {
		st.at = to
		return w.lose(st, s, "is dropped behind %s: node %s has no group %d", in.Instance, to.node, g.ID)
	}
	if f := w.answers(st, s, to, back); f != nil {
		return f
	}
	out := to.out(in)
	st.at, st.via, st.table = to, out, back.Then
	st.inline++
	st.bypassed, st.jumped = false, false
	st.context, st.copies = g.ID, nil
	if f := w.walk(st, s); f != nil {
		return f
	}
	return w.redirected(st, s, g, in)
}
