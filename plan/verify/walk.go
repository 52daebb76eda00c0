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
	first *host          // the other machine, if chains that name neither are taken at its edge
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
	jumped          bool   // by a function, to the element that comes next
	bypassed        bool   // of the last promise: an inline element without instance
	passed          uint64 // wants passed by so, as bits: two chains have at most 62
	// strict: new flows get here, so that a drop counts. A closed instance
	// gets nothing now; what would leave the promised way there counts still.
	strict bool
	steps  int
	way    *hop
	on     *promise // whose step was taken last
	// context is the group of the last element crossed, path and reversed what the
	// last rule or group says of the packet.
	context  onpath.GroupID
	path     onpath.PathID
	reversed bool
	deliver  onpath.VportID // edge at which it leaves, instead of the one where it entered
	copies   []metMirror    // mirrors met since that element
	past     bool           // an answer's table has led past the element that it goes to
}

// hop is one station of a way, the latest first.
type hop struct {
	onpath.Note
	from *hop
}

func (h *hop) notes() (out []onpath.Note) {
	for ; h != nil; h = h.from {
		out = append(out, h.Note)
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
	about   []string // chains and instances of which the message speaks
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
	jumped   bool
	bypassed bool
	passed   uint64
	context  onpath.GroupID
	path     onpath.PathID
	reversed bool
	set      setID
}

// walker follows one class.
type walker struct {
	c    *checker
	cl   *class
	seen map[visit]bool // true: being walked, and met again in a circle
	// some and reversed remember what was found out of sets, most of which are
	// met again at every hop.
	found    map[setID]box
	reversed map[setID]set
	// unselected: a function has sent the class to an element that does not select it,
	// and to which no table leads.
	unselected bool
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
	out, ok := w.reversed[idOf(s)]
	if !ok {
		out = w.c.space.reversedSet(s)
		w.reversed[idOf(s)] = out
	}
	return out
}

// maxSteps is how many tables a packet may be looked up in.
const maxSteps = 64 * (onpath.MaxElements + 1)

// follow walks a class from its start; nil: it keeps to its promise.
func (c *checker) follow(cl *class) *failure {
	w := &walker{c: c, cl: cl, seen: map[visit]bool{}, found: map[setID]box{}, reversed: map[setID]set{}}
	st := state{at: cl.start, via: cl.start.edge, table: cl.table, strict: true,
		way: &hop{Note: onpath.Note{Text: "gateway " + cl.start.node}}}
	if len(cl.parts) > 0 {
		st.on = cl.parts[len(cl.parts)-1].p
	}
	if cl.emits != 0 {
		st.via, st.inline, st.strict = cl.emits, 1, cl.start.open(cl.emits)
		st.way = &hop{Note: onpath.Note{Text: "emitted by " + c.instanceAt(cl.emits) + " on " + cl.start.node,
			About: c.instanceAt(cl.emits)}}
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
	f := &failure{set: b, at: st.at.node, way: st.way, on: st.on, message: fmt.Sprintf(format, args...)}
	for _, a := range args {
		if n, ok := a.(onpath.Note); ok && n.About != "" {
			f.about = append(f.about, n.About)
		}
	}
	return f
}

func (w *walker) gaveUp(st state) *failure {
	return &failure{at: st.at.node, unknown: true,
		message: fmt.Sprintf("gave up after %d steps: its traffic overlaps with too many rules", maxCuts)}
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
	v := visit{st.at, st.via, st.table, st.next, st.strict, st.inline > 0, st.mirrors > 0, st.jumped, st.bypassed,
		st.passed, st.context, st.path, st.reversed, idOf(s)}
	if walking, ok := w.seen[v]; walking {
		return w.lose(st, s, "goes in a circle")
	} else if ok {
		return nil
	}
	w.seen[v] = true
	defer func() { w.seen[v] = false }()
	t := st.at.tables[st.table]
	if t == nil {
		return w.lose(st, s, "is dropped: node %s has no %s", st.at.node, tableName(st.table))
	}
	return w.divide(st, s, t, func(hit set, r *onpath.Rule) *failure {
		if r == nil {
			return w.act(st, hit, t.Miss)
		}
		return w.take(st, hit, r)
	})
}

// divide divides a set among a table's rules, and what none takes, for which the rule
// is nil; it ends with the first failure.
func (w *walker) divide(st state, s set, t *table, do func(set, *onpath.Rule) *failure) *failure {
	for i := range t.Rules {
		for _, b := range t.rule(w.c.space, i) {
			hit, ok := w.c.space.and(s, b)
			if !ok {
				continue
			}
			if f, none := w.nothing(st, hit); f != nil {
				return f
			} else if !none {
				if f := do(hit, &t.Rules[i]); f != nil {
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
	return do(s, nil)
}

// actionOf is what a table says by a rule, or by none.
func (t *table) actionOf(r *onpath.Rule) onpath.Action {
	if r == nil {
		return t.Miss
	}
	return r.Action
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
	if r.Path != 0 {
		if why := w.c.unsettled[st.at.chainOf(r.Path)]; why != "" {
			if len(w.cl.parts) > 0 {
				return &failure{at: st.at.node, unknown: true,
					message: fmt.Sprintf("part of its traffic is also chain %s's: %s", st.at.chainOf(r.Path), why)}
			}
			return nil
		}
		if f := w.enters(st, hit, r.Path); f != nil {
			return f
		}
		if p := st.at.paths[r.Path]; w.cl.emits != 0 && st.inline == 1 && p != nil && !p.Ended.IsZero() {
			return nil
		}
		st.path, st.reversed = r.Path, r.Reverse
	}
	return w.act(st, hit, r.Action)
}

// enters checks that a path which a rule at an edge starts takes flows.
func (w *walker) enters(st state, s set, id onpath.PathID) *failure {
	p := st.at.paths[id]
	if w.cl.emits != 0 || st.inline > 0 || p == nil || !p.Closed && p.Ended.IsZero() {
		return nil
	}
	if p.Closed {
		return w.lose(st, s, "is led into path %d of chain %s, which is closed here: its flow entries do not last", id, p.Chain)
	}
	return w.lose(st, s, "is led into path %d of chain %s, which has ended", id, p.Chain)
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
		if w.ends() && st.next == len(w.cl.wants) {
			return nil
		}
		return w.lose(st, s, "is dropped (%s)", a.Reason)
	case onpath.ActionDeliver:
		st.deliver = a.Vport
		return w.leave(st, s, a.Kind)
	case onpath.ActionExit, onpath.ActionRoute:
		return w.leave(st, s, a.Kind)
	}
	return w.lose(st, s, "meets an unknown action %q", a.Kind)
}

// tableName says what a table is for.
func tableName(id onpath.TableID) string {
	switch {
	case id == onpath.ClassifierTable(onpath.TierOperator):
		return "table 1, which chooses the operator's chain"
	case id == onpath.ClassifierTable(onpath.TierTenant):
		return "table 2, which chooses the tenant's chain"
	case id>>31 == 1:
		return fmt.Sprintf("table %d, for what the instance at vport %d sends", id, id&onpath.MaxID24)
	}
	path, k, _ := onpath.GroupID(id).Split()
	if k == onpath.MaxElements {
		return fmt.Sprintf("table %d, in front of the elements of path %d", id, path)
	}
	return fmt.Sprintf("table %d, for what is behind element %d of path %d", id, k+1, path)
}
