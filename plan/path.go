package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/onpath/onpath"
)

// path is one list of elements of one chain in one cloudlet. A present one is
// compiled from its chain; any other is carried on as the nodes know it, until
// its flows are gone.
type path struct {
	id    onpath.PathID
	key   name   // of the chain
	chain *chain // nil: deleted, or too broken to say anything about the path
	tier  onpath.Tier
	spec  onpath.Path
	deps  []name // of the elements
	// members are the elements' instances in the cloudlet, by name.
	members [][]*instance
	// weights by element and node; nil for carried paths, whose members keep
	// the weights they have.
	weights []map[string]int
	// filling are the weights by element and instance key while some instances fill up.
	filling []map[uint32]uint32

	present bool // compiled from the chain
	steers  bool // rules start it, or shall
	over    bool // ended, and without flows: nodes let go of each other's parts

	tables []onpath.Table
	groups []onpath.Group // members are filled in for each node
	// forward and reverse are the classifiers' rules; emits are, for carried
	// paths, the rules in emit tables that continue it.
	forward, reverse []onpath.Rule
	emits            map[onpath.TableID][]onpath.Rule
	// waits says what keeps a present path from steering.
	waits string
	rank  int // in the order of the cloudlet's paths
}

func (p *path) ended() bool { return !p.spec.Ended.IsZero() }

// find gives chains their paths, and finds those that each cloudlet has.
func (w *pathfinder) find() {
	w.assignPaths()
	for _, cl := range w.inOrder {
		w.addPaths(cl)
	}
}

// assignPaths gives every possible chain the path id of its present elements.
// The id is used once the store has it. One that was changed back keeps the path that
// it had, if that still has flows.
func (w *pathfinder) assignPaths() {
	for _, c := range w.chains {
		if len(c.errs) > 0 || len(c.elements) == 0 {
			continue
		}
		st := &c.obj.Status
		if st.Path != 0 && st.Shape == c.shape {
			continue
		}
		next := *c.obj
		next.Status.Shape = c.shape
		next.Status.Cloudlets = nil
		switch id := w.returning(c); {
		case id != 0:
			next.Status.Path = id
			w.kept[id] = true
		case w.res.Used.Paths == len(w.IDs.Paths):
			w.res.Short.Paths++
			continue
		default:
			next.Status.Path = w.IDs.Paths[w.res.Used.Paths]
			w.res.Used.Paths++
		}
		w.update(&next)
	}
}

// addPaths finds the cloudlet's paths: those of chains, and those that nodes
// still have.
func (w *pathfinder) addPaths(cl *cloudlet) {
	cl.crowded = map[*chain]string{}
	known := w.knownPaths(cl)
	var have footprint // counted where a path is new
	for _, c := range cl.chains {
		if len(c.errs) > 0 || c.obj.Status.Path == 0 || c.obj.Status.Shape != c.shape {
			continue
		}
		if known[c.obj.Status.Path] == nil {
			if have == (footprint{}) {
				have = w.taken(cl)
			}
			next := have.add(c.footprint())
			if over := next.over(0); over != "" {
				cl.crowded[c] = fmt.Sprintf("its new path waits for ended ones to go: a gateway of cloudlet %s would have %s", cl.name, over)
				continue
			}
			have = next
		}
		p := w.compile(cl, c)
		if k := known[p.id]; k != nil && k.spec.Ended.IsZero() {
			p.spec.Began = k.spec.Began
			if !k.spec.Began.IsZero() {
				p.spec.Adopt = k.spec.Adopt
			}
		}
		delete(known, p.id)
		cl.paths = append(cl.paths, p)
	}
	for _, id := range slices.Sorted(maps.Keys(known)) {
		cl.paths = append(cl.paths, w.takeOver(cl, known[id]))
	}
	for _, p := range cl.paths {
		if p.present {
			w.decide(cl, p)
		}
	}
	for _, p := range cl.paths {
		if !p.present {
			w.carry(cl, p)
		}
	}
	w.orderPaths(cl)
}

// orderPaths puts the paths into the order of their rules: by tier, priority,
// chain; of one chain the present one first.
func (w *pathfinder) orderPaths(cl *cloudlet) {
	slices.SortStableFunc(cl.paths, func(a, b *path) int {
		if a.tier != b.tier {
			return cmp.Compare(a.tier, b.tier)
		}
		if c := cmp.Or(cmp.Compare(b.priority(), a.priority()), a.key.less(b.key)); c != 0 {
			return c
		}
		if a.present != b.present {
			if a.present {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.id, b.id)
	})
	cl.indexPaths()
}

// indexPaths makes the cloudlet's paths findable.
func (cl *cloudlet) indexPaths() {
	cl.pathsOf, cl.pathByID, cl.operators = map[name][]*path{}, map[onpath.PathID]*path{}, false
	for k, p := range cl.paths {
		p.rank = k
		cl.pathByID[p.id] = p
		cl.operators = cl.operators || p.tier == onpath.TierOperator && !p.over
		for _, d := range p.deps {
			cl.pathsOf[d] = append(cl.pathsOf[d], p)
		}
		if startsAtInstances(p) {
			from := p.chain.from.deployment
			cl.pathsOf[from] = append(cl.pathsOf[from], p)
		}
	}
}

// priority is the chain's; without a chain, below all.
func (p *path) priority() int {
	if p.chain == nil {
		return -onpath.MaxPriority - 1
	}
	return p.chain.priority()
}

func (p *path) sameRank(q *path) bool { return p.tier == q.tier && p.priority() == q.priority() }

// knownPath is a path as the nodes of a cloudlet have it.
type knownPath struct {
	spec  onpath.Path
	plans []*index // the newest that have it, the gateway's first
	// began and ended are the last times that any node knows.
	began, ended time.Time
}

// knownPaths reads the paths off the newest plans of the cloudlet's nodes, the
// gateway's first.
func (w *pathfinder) knownPaths(cl *cloudlet) map[onpath.PathID]*knownPath {
	out := map[onpath.PathID]*knownPath{}
	nodes := cl.nodes
	if cl.gateway != nil {
		nodes = append([]*node{cl.gateway}, nodes...)
	}
	for _, n := range nodes {
		if n.newest == nil {
			continue
		}
		for i := range n.newest.plan.Datapath.Paths {
			spec := &n.newest.plan.Datapath.Paths[i]
			k := out[spec.ID]
			if k == nil {
				k = &knownPath{spec: *spec}
				out[spec.ID] = k
			}
			k.plans = append(k.plans, n.newest)
			k.spec.Until = later(k.spec.Until, spec.Until)
			if k.ended = later(k.ended, spec.Ended); spec.Ended.IsZero() {
				k.began = later(k.began, spec.Began)
			}
		}
	}
	for _, k := range out {
		k.settleTimes()
		k.spec.Began, k.spec.Ended = w.past(k.spec.Began), w.past(k.spec.Ended)
	}
	return out
}

// settleTimes believes of what nodes know the last that happened: one that has no
// session may have missed that the path ended, or was taken back.
func (k *knownPath) settleTimes() {
	switch {
	case k.began.After(k.ended):
		k.spec.Began, k.spec.Ended = k.began, time.Time{}
	case !k.ended.IsZero():
		k.spec.Ended = k.ended
	}
}

// takeOver makes a path of what the nodes have.
func (w *pathfinder) takeOver(cl *cloudlet, k *knownPath) *path {
	p := w.readPath(k.plans[0], k.spec)
	for _, x := range k.plans {
		p.readEmits(x)
		if has := x.of(p.id); len(p.forward)+len(p.reverse) == 0 { // a host has rules of its own machine's chains
			p.forward, p.reverse = slices.Clone(has.forward), slices.Clone(has.reverse)
		}
	}
	w.findMembers(cl, p)
	return p
}

// readPath takes a path over as a node has it.
func (w *world) readPath(x *index, spec onpath.Path) *path {
	p := &path{id: spec.ID, spec: spec, tier: onpath.TierTenant, emits: map[onpath.TableID][]onpath.Rule{}}
	p.spec.Closed = false // each gateway's own
	p.key = nameIn(spec.Chain)
	for _, d := range spec.Elements {
		p.deps = append(p.deps, nameIn(d))
	}
	has := x.of(p.id)
	p.tables, p.groups = slices.Clone(has.tables), slices.Clone(has.groups)
	for i, t := range p.tables {
		p.tables[i] = withoutDelivery(t)
	}
	p.forward, p.reverse = slices.Clone(has.forward), slices.Clone(has.reverse)
	if slices.ContainsFunc(p.tables, func(t onpath.Table) bool { return t.Miss.Kind == onpath.ActionTable }) {
		p.tier = onpath.TierOperator
	}
	p.chain = w.chainNamed[p.key]
	return p
}

// findMembers looks up the instances of a path's elements.
func (w *pathfinder) findMembers(cl *cloudlet, p *path) {
	p.members = make([][]*instance, len(p.deps))
	for k, d := range p.deps {
		p.members[k] = w.instancesOf(cl, d)
	}
}

func isEmit(t onpath.TableID) bool { return t>>31 == 1 }

func (p *path) readEmits(x *index) {
	for id, rules := range x.of(p.id).emits {
		if p.emits[id] == nil {
			p.emits[id] = slices.Clone(rules)
		}
	}
}

// decide says whether a present path steers: because it does already, or
// because everything it needs is in place.
func (w *pathfinder) decide(cl *cloudlet, p *path) {
	c := p.chain
	if why := c.off(); why != "" {
		p.spec.Began = time.Time{}
		p.waits = why
		return
	}
	switch {
	case !p.spec.Began.IsZero():
		p.steers = true
	case slices.Contains(c.obj.Status.Cloudlets, cl.name) && cl.gateway != nil:
		// It did before its nodes forgot: it must not be bypassed meanwhile.
		p.steers, p.spec.Began, p.spec.Adopt = true, w.Now.UTC().Round(0), 0
	default:
		if p.waits = w.waits(cl, p); p.waits == "" {
			p.steers, p.spec.Began = true, w.Now.UTC().Round(0)
			if w.succeeds(cl, p) {
				p.spec.Adopt = 0 // connections that the old path steered are not older than the chain
			}
		}
	}
}

// succeeds reports whether another path of the same chain has steered until now.
func (w *pathfinder) succeeds(cl *cloudlet, p *path) bool {
	return slices.ContainsFunc(cl.paths, func(q *path) bool {
		return !q.present && q.key == p.key && !q.spec.Began.IsZero()
	})
}

// carry decides the fate of a path that is no chain's present one. It goes on
// steering while its successor is not ready or while its chain is impossible;
// it ends with the chain.
func (w *pathfinder) carry(cl *cloudlet, p *path) {
	successor := w.successor(cl, p)
	forgotten := !p.ended() && cl.forgot(p)
	switch {
	case p.ended():
	case forgotten:
		p.end(w.world)
	case p.spec.Began.IsZero():
		p.end(w.world)
	case p.chain == nil || p.chain.off() != "":
		p.end(w.world)
	case len(p.chain.errs) > 0:
		p.steers = true // as it was, rules and all
	case !slices.Contains(p.chain.cloudlets, cl.name):
		p.end(w.world)
	case successor == nil && cl.gateway == nil:
		p.end(w.world)
	case successor == nil || !successor.steers:
		p.steers = true
		p.forward, p.reverse = rulesOf(p.chain, p.id, p.tables, p.spec.Side)
	default:
		p.end(w.world)
	}
	if p.ended() {
		p.forward, p.reverse = nil, nil
		if p.spec.Until.IsZero() {
			p.spec.Until = w.goes(cl, p.spec)
		}
		p.over = forgotten || w.isOver(cl, p)
	}
}

// forgot reports whether all that are heard of have let go of a path, the gateways too: it
// ended, and a node without its agent has missed that.
func (c *cloudlet) forgot(p *path) bool {
	return len(c.edges()) > 0 && !slices.ContainsFunc(c.nodes, func(n *node) bool {
		if n.hasEdge() { // one that was none yet has let go of nothing
			return !n.silent() && (n.newest == nil || n.newest.edge == 0 || n.newest.path(p.id) != nil)
		}
		return !n.away && n.newest.path(p.id) != nil
	})
}

func (p *path) end(w *world) { p.spec.Ended = w.Now.UTC().Round(0) }

func (w *pathfinder) successor(cl *cloudlet, p *path) *path {
	for _, q := range cl.paths {
		if q.present && q.chain == p.chain {
			return q
		}
	}
	return nil
}

// closed reports whether a gateway was told that the path is over.
func closed(cl *cloudlet, p *path) bool {
	return slices.ContainsFunc(cl.edges(), func(g *node) bool {
		return slices.ContainsFunc(g.possible, func(x *index) bool { q := x.path(p.id); return q != nil && q.Closed })
	})
}

// isOver reports whether an ended path is over: no node has flows of it, or nothing
// alive is left on it, or one of its elements was deleted. Scaling to 0 is not deletion.
// The flows of a deleted element go the ordinary way, or by the path that follows; no
// instance will start for which they could wait.
func (w *pathfinder) isOver(cl *cloudlet, p *path) bool {
	if w.kept[p.id] {
		return false
	}
	if !p.spec.Until.IsZero() && w.passed(p.spec.Until) {
		return true
	}
	if closed(cl, p) {
		return true // and stays so when the instances that went are forgotten
	}
	alive := false
	for _, dep := range p.deps {
		list := w.instancesOf(cl, dep)
		here := slices.ContainsFunc(list, func(i *instance) bool { return !i.leaving })
		if !here && !w.wanted(dep, cl) && (len(list) > 0 || !w.declared(dep, cl)) {
			return true
		}
		alive = alive || here
	}
	if !alive {
		return true
	}
	every := true
	for _, n := range cl.nodes {
		if n.silent() || n.newest.path(p.id) == nil {
			continue
		}
		acked := n.acked.path(p.id)
		if acked == nil || acked.Ended.IsZero() || n.st.Report == nil {
			return false // still starts flows, as far as is known
		}
		flows, ok := n.st.Report.Paths[p.id]
		if ok && flows > 0 {
			return false
		}
		every = every && ok
	}
	if every {
		return w.passed(p.spec.Ended.Add(counted))
	}
	// A node does not count, or has not yet.
	return w.passed(p.spec.Ended.Add(time.Duration(onpath.DefaultDrain)))
}
