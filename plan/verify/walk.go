package verify

import (
	"fmt"
	"slices"

	"github.com/onpath/onpath"
)

// wanted is one element that a class of flows ought to cross next.
type wanted struct {
	p       *promise
	k       int
	reverse bool
}

func (w wanted) step() *step { return &w.p.steps[w.k] }

// class is a set of flows with one promise.
type class struct {
	set   set
	wants []wanted
	// parts are the directions of promises that it is of, operator's first.
	parts []*traffic
	start *site
	table onpath.TableID
	entry onpath.VportID // edge at which it leaves again
	emits onpath.VportID // instance's vport at which it starts; 0: at an edge
}

// state is how far a walk has come.
type state struct {
	at    *site
	via   onpath.VportID // vport that the packet came from
	table onpath.TableID
	next  int // of the class's wants
	// inline counts the instances crossed, mirrors the copies made at the edge.
	inline, mirrors int
	bypassed        bool // of the last promise: an inline element without instance
	// strict: new flows get here, so that a drop counts. A closed instance
	// gets nothing now; what would leave the promised way there counts still.
	strict bool
	steps  int
	way    *hop
	on     *promise // whose step was taken last
}

// hop is one station of a way, the latest first.
type hop struct {
	text string
	from *hop
}

func (h *hop) words() (out []string) {
	for ; h != nil; h = h.from {
		out = append(out, h.text)
	}
	slices.Reverse(out)
	return out
}

// failure is a set of flows that leave the promised way.
type failure struct {
	set     box
	at      string
	way     *hop
	message string
	on      *promise // whose promise is broken
	// unknown: the proof lacks something, and so nothing is refuted.
	unknown bool
}

type visit struct {
	at       *site
	via      onpath.VportID
	table    onpath.TableID
	next     int
	strict   bool
	begun    bool
	mirrored bool
	bypassed bool
	set      setID
}

// walker follows one class.
type walker struct {
	c    *checker
	cl   *class
	seen map[visit]bool
	// some and turned remember what was found out of sets, most of which are
	// met again at every hop.
	found  map[setID]box
	turned map[setID]set
}

// setID tells sets apart without comparing their contents: neither a box nor a
// list is ever written to again, and each subtraction makes a new list.
type setID struct {
	box  *uint64
	less *box
}

func idOf(s set) setID {
	id := setID{box: &s.box[0]}
	if len(s.less) > 0 {
		id.less = &s.less[0]
	}
	return id
}

// some finds a part of a set; nil: it is empty, or the budget is used up.
func (w *walker) some(s set) box {
	b, ok := w.found[idOf(s)]
	if !ok {
		b = w.c.space.some(s, &w.c.budget)
		w.found[idOf(s)] = b
	}
	return b
}

// turn is the set of the answers.
func (w *walker) turn(s set) set {
	out, ok := w.turned[idOf(s)]
	if !ok {
		out = w.c.space.turnedSet(s)
		w.turned[idOf(s)] = out
	}
	return out
}

// maxSteps is how many tables a packet may be looked up in.
const maxSteps = 64 * (onpath.MaxElements + 1)

// follow walks a class from its start; nil: it keeps to its promise.
func (c *checker) follow(cl *class) *failure {
	w := &walker{c: c, cl: cl, seen: map[visit]bool{}, found: map[setID]box{}, turned: map[setID]set{}}
	st := state{at: cl.start, via: cl.start.edge, table: cl.table, strict: true, way: &hop{text: "gateway " + cl.start.node}}
	if len(cl.parts) > 0 {
		st.on = cl.parts[len(cl.parts)-1].p
	}
	if cl.emits != 0 {
		st.via, st.inline, st.strict = cl.emits, 1, cl.start.open(cl.emits)
		st.way = &hop{text: "emitted by " + c.instanceAt(cl.emits) + " on " + cl.start.node}
	}
	switch {
	case cl.table != 0:
		return w.walk(st, cl.set)
	case cl.emits == 0:
		return w.leave(st, cl.set, onpath.ActionExit)
	case len(cl.parts) > 0:
		return w.lose(st, cl.set, "is dropped: the instance may send nothing of itself (spoofed)")
	}
	return nil
}

func (w *walker) fail(st state, s set, format string, args ...any) *failure {
	b := w.some(s)
	if b == nil {
		if w.c.budget.left < 0 {
			return w.gaveUp(st)
		}
		return nil // nothing is left of it
	}
	return &failure{set: b, at: st.at.node, way: st.way, on: st.on, message: fmt.Sprintf(format, args...)}
}

func (w *walker) gaveUp(st state) *failure {
	return &failure{at: st.at.node, unknown: true, message: fmt.Sprintf("gave up after %d steps: its traffic overlaps with too many rules", maxCuts)}
}

// lose is a failure to deliver: it counts only where new flows get.
func (w *walker) lose(st state, s set, format string, args ...any) *failure {
	if !st.strict {
		return nil
	}
	return w.fail(st, s, format, args...)
}

// walk looks a set up in a table.
func (w *walker) walk(st state, s set) *failure {
	if st.steps++; st.steps > maxSteps {
		return w.fail(st, s, "goes in a circle")
	}
	v := visit{st.at, st.via, st.table, st.next, st.strict, st.inline > 0, st.mirrors > 0, st.bypassed, idOf(s)}
	if w.seen[v] {
		return nil
	}
	w.seen[v] = true
	t := st.at.tables[st.table]
	if t == nil {
		return w.lose(st, s, "is dropped: there is no table %d", st.table)
	}
	for i := range t.Rules {
		for _, b := range t.rule(w.c.space, i) {
			hit, ok := w.c.space.and(s, b)
			if !ok {
				continue
			}
			if f := w.take(st, hit, &t.Rules[i]); f != nil {
				return f
			}
			if s, ok = w.c.space.minus(s, b); !ok {
				return nil
			}
		}
	}
	if f, none := w.nothing(st, s); none {
		return f
	}
	return w.act(st, s, t.Miss)
}

// nothing reports whether a set is empty, or cannot be judged.
func (w *walker) nothing(st state, s set) (*failure, bool) {
	if w.some(s) != nil {
		return nil, false
	}
	if w.c.budget.left < 0 {
		return w.gaveUp(st), true
	}
	return nil, true
}

// take does what a rule says, unless it is of a chain of which nothing can be
// said now, or serves the last flows of a path that has ended.
func (w *walker) take(st state, hit set, r *onpath.Rule) *failure {
	if f, none := w.nothing(st, hit); none {
		return f
	}
	if r.Path != 0 {
		if why := w.c.unsettled[st.at.chainOf(r.Path)]; why != "" {
			if len(w.cl.parts) > 0 {
				return &failure{at: st.at.node, unknown: true, message: fmt.Sprintf("part of its traffic is also chain %s's: %s", st.at.chainOf(r.Path), why)}
			}
			return nil
		}
		if p := st.at.paths[r.Path]; w.cl.emits != 0 && st.inline == 1 && p != nil && !p.Ended.IsZero() {
			return nil
		}
	}
	return w.act(st, hit, r.Action)
}

func (w *walker) act(st state, s set, a onpath.Action) *failure {
	switch a.Kind {
	case onpath.ActionTable:
		st.table = a.Table
		return w.walk(st, s)
	case onpath.ActionGroup:
		return w.group(st, s, a.Group)
	case onpath.ActionDrop:
		if w.cl.emits != 0 && len(w.cl.wants) == 0 && len(w.cl.parts) == 0 {
			return nil // what an instance may not send
		}
		return w.lose(st, s, "is dropped (%s)", a.Reason)
	case onpath.ActionExit, onpath.ActionRoute:
		return w.leave(st, s, a.Kind)
	}
	return w.lose(st, s, "meets an unknown action %q", a.Kind)
}

// leave ends a walk out of the data path.
func (w *walker) leave(st state, s set, kind onpath.ActionKind) *failure {
	if st.next < len(w.cl.wants) {
		n := w.cl.wants[st.next]
		st.on = n.p
		how := "leaves"
		if st.inline == 0 {
			how = "goes on by ordinary forwarding"
		}
		return w.fail(st, s, "%s without crossing element %d (%s) of chain %s", how, n.k+1, n.step().deployment, n.p.key)
	}
	if w.cl.emits != 0 && len(w.cl.parts) == 0 {
		return w.fail(st, s, "is let out, although no chain of the instance's selects it")
	}
	if st.inline == 0 && (kind != onpath.ActionRoute || w.routes()) {
		return nil // nothing was to be crossed, or copies only
	}
	switch last := w.routes(); {
	case kind == onpath.ActionRoute && !last:
		return w.fail(st, s, "leaves by the routes of node %s instead of where it entered", st.at.node)
	case kind == onpath.ActionRoute:
		return nil
	case last && !st.bypassed && w.crossed():
		return w.fail(st, s, "goes back to where it entered instead of leaving at its last element (exit: last)")
	}
	return w.exit(st, s)
}

// routes reports whether the class is to leave at its last element's node.
func (w *walker) routes() bool {
	if len(w.cl.parts) == 0 {
		return false
	}
	t := w.cl.parts[len(w.cl.parts)-1]
	return t.p.exitLast() && !t.reverse && t.p.tier != onpath.TierOperator
}

// crossed reports whether an inline element of the last promise is among the
// wants: else nothing of it was crossed that could be last.
func (w *walker) crossed() bool {
	t := w.cl.parts[len(w.cl.parts)-1]
	if t.after >= 0 {
		return true
	}
	return slices.ContainsFunc(w.cl.wants, func(n wanted) bool { return n.p == t.p && !n.step().mirror })
}

// exit carries a set back to the edge where it entered.
func (w *walker) exit(st state, s set) *failure {
	entry := w.cl.entry
	if entry == 0 {
		return w.lose(st, s, "is dropped: the node does not know where flows that start here leave")
	}
	if st.on == nil || !st.on.forwardOnly() {
		if f := w.beside(st, s); f != nil {
			return f
		}
	}
	if st.at.edge == entry {
		return nil
	}
	to, f := w.send(st, s, entry)
	if f != nil || to == nil {
		return f
	}
	if to.edge != entry {
		return w.lose(st, s, "is dropped at node %s: vport %d is not its edge", to.node, entry)
	}
	if st.on != nil && st.on.forwardOnly() || to.reaches(st.via, st.at) {
		return nil
	}
	return w.lose(st, s, "has an answer that is dropped: node %s, where it comes in, does not know vport %d of node %s", to.node, st.via, st.at.node)
}

// send carries a set to the node of a remote vport. Nil and no failure: it does
// not get there, and that does not count.
func (w *walker) send(st state, s set, v onpath.VportID) (*site, *failure) {
	p := st.at.vports[v]
	if p == nil {
		return nil, w.lose(st, s, "is dropped: node %s does not know vport %d", st.at.node, v)
	}
	if p.Kind != onpath.VportRemote {
		return st.at, nil
	}
	to := w.c.sites[p.Peer]
	if to == nil {
		return nil, &failure{at: st.at.node, unknown: true, message: fmt.Sprintf("the plan of node %s, to which node %s sends, is not known", p.Peer, st.at.node)}
	}
	mine, its := st.at.peers[p.Peer], to.peers[st.at.node]
	switch {
	case mine == nil:
		return nil, w.lose(st, s, "is dropped: node %s does not know how to reach node %s", st.at.node, p.Peer)
	case its == nil:
		return nil, w.lose(st, s, "is dropped at node %s, which does not know node %s (tunnel-source)", p.Peer, st.at.node)
	case mine.Secret != its.Secret:
		return nil, w.lose(st, s, "is dropped at node %s: the two nodes' secrets differ (tunnel-secret)", p.Peer)
	case to.config.Underlay.Address.IsValid() && mine.Address != to.config.Underlay.Address:
		return nil, w.lose(st, s, "is lost: node %s looks for node %s at %s", st.at.node, p.Peer, mine.Address)
	}
	return to, nil
}
