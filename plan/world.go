package plan

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/ownership"
)

// name is tenant/name: of a deployment, a chain, an instance.
type name struct{ tenant, name string }

func (n name) String() string { return n.tenant + "/" + n.name }

func (n name) less(o name) int {
	return cmp.Or(cmp.Compare(n.tenant, o.tenant), cmp.Compare(n.name, o.name))
}

// nameIn reads what String wrote.
func nameIn(s string) (n name) {
	n.tenant, n.name, _ = strings.Cut(s, "/")
	return n
}

func nameOf(o onpath.Object) name {
	k := onpath.KeyOf(o)
	return name{k.Tenant, k.Name}
}

func resolve(r onpath.Ref, own string) name {
	t, n := r.Resolve(own)
	return name{t, n}
}

// world is a snapshot with everything looked up and put into order.
type world struct {
	*Snapshot
	set         Settings
	index       func(*onpath.NodePlan) *index
	cloudlets   map[string]*cloudlet
	nodes       map[string]*node
	orphans     map[string]*node // connected, but their Node objects were deleted
	byKind      map[onpath.Kind][]onpath.Object
	lists       map[onpath.Kind]any // []T of each kind, in order; see listed
	alone       bool                // some node's data path may go on without its agent
	deployments map[name]*deployment
	chains      []*chain // in order of precedence
	chainNamed  map[name]*chain
	instances   []*instance
	byVport     map[onpath.VportID]*instance
	members     map[member][]*instance
	ofDep       map[name][]*instance // in all cloudlets
	inOrder     []*cloudlet          // by name
	nodeOrder   []*node              // by name
	beginning   map[member]bool      // likewise: paths that have not ended lead to it
	updates     map[onpath.Key]onpath.Object
	splits      map[hopBetween]*split // made when they are first asked for
	accels      []*accelerator
	services    map[name][]*onpath.Service // by deployment; see servicesOf
	owned       *ownership.Table           // made when it is first asked for
	res         *Result
}

type cloudlet struct {
	name           string
	obj            *onpath.Cloudlet // nil: only nodes speak of it
	nodes          []*node          // by name
	gateway        *node            // the first of the pair that is heard of, without a pair of hosts, or nil
	activeGateways []*node          // those whose uplinks are used, two at most
	gateways       []*node
	hosts          []*node             // whose uplinks carry their machines' own traffic alone, by name
	shared         map[netip.Addr]bool // by several of the hosts
	chains         []*chain            // that lie here, in order of precedence
	paths          []*path
	pathsOf        map[name][]*path // by deployment that they lead through or begin at, in order
	pathByID       map[onpath.PathID]*path
	operators      bool              // there are operators' paths that are not over
	vports         int               // of its instances, with those just created
	crowded        map[*chain]string // why there is no room for a chain's new path
	alone          []*node           // their data paths may go on without their agents
	mixed          bool              // VXLAN may not do for all pairs of its nodes
}

type node struct {
	obj  *onpath.Node
	name string
	c    *cloudlet
	st   *NodeState // nil: not heard of
	// away: unheard of for NodeTimeout; gone: for longer than the grace.
	// dead: away, and the gateway does not reach the machine either.
	away, gone, dead bool
	// steers: gone, but its data path lives and may still send to others.
	steers   bool
	since    time.Time // last sign of life
	acked    *index
	possible []*index // acked and sent
	newest   *index
	reports  map[name]*onpath.InstanceReport // of its instances
	insts    []*instance
	used     map[bool]onpath.Resources // by tenant is the operator; without what reservations hold
	held     onpath.Resources          // by instances of reservations
	// unbelieved is why a lease that it reports is not one.
	unbelieved string
	// unlent is why it has fewer addresses for publishers' servers than its operator says.
	unlent string
	// encrypts: it reaches another one of its cloudlet by WireGuard.
	encrypts bool
}

// member names a deployment's instances in one cloudlet.
type member struct {
	c   *cloudlet
	dep name
}

type deployment struct {
	key      name
	obj      *onpath.Deployment // nil: short form
	function *onpath.Function
	functionOf
	fnName name
	want   int
	place  onpath.Place
	drain  time.Duration
	// in are the cloudlets where it shall run.
	in         map[string]bool
	mirror     bool // gets copies
	used       bool // by a chain
	uses       []use
	owner      *chain
	noCapacity []string // why instances are missing
	// unplaceable: nothing but somebody's doing gives them a place.
	unplaceable bool
	res         *reserved // nil: it has no reservation
	crowds      string    // why data paths have no room for it
	pair        *pairing  // nil: its instances are of no pairs
	// noSecret is a secret that its function names, and its tenant does not have.
	noSecret string
}

type instance struct {
	obj    *onpath.Instance
	key    name
	dep    name
	d      *deployment // nil: nobody declares it any more
	node   *node       // nil: the Node object is gone
	report *onpath.InstanceReport
	// planned is what its node was told last.
	planned *onpath.InstancePlan
	fn      *onpath.FunctionSpec // empty if it is not known
	known   bool                 // fn is known
	leaving bool                 // drained: others let go of it, then its node does
	stuck   string               // why it cannot leave its node, which is to be drained
	partner *instance            // nil: it is of no pair, or has none
}

func (i *instance) bridged() bool { return i.obj.Spec.Back != 0 }

// into is the vport to deliver to in a direction, out where it comes out again.
func (i *instance) into(reverse bool) onpath.VportID {
	if reverse && i.bridged() {
		return i.obj.Spec.Back
	}
	return i.obj.Spec.Vport
}

// ready reports whether the instance serves: a half of a pair does if both do.
func (i *instance) ready() bool { return i.up() && !i.alone() }

// up reports whether the instance serves by itself, as far as is known. A node that is
// away has lost its agent, or we have; its instances and data path go on without
// either, so what was heard last holds, unless the gateway cannot reach the
// machine.
func (i *instance) up() bool {
	switch {
	case i.node == nil || i.node.dead:
		return false
	case i.report != nil:
		return i.report.State == onpath.InstanceReady
	}
	return i.node.st == nil && i.obj.Status.State == onpath.InstanceReady
}

func (i *instance) draining() bool { return !i.obj.Spec.Draining.IsZero() }

// full reports whether it has as many connections as it may have, and new ones pass it by.
func (i *instance) full() bool { return i.report != nil && i.report.Full }

// state is that of its vports. One that drains stays open where no path begins flows
// that might choose it: all that comes then was under way when its paths ended, and a
// flow of which the first packet was has to pass like any other.
func (w *world) state(i *instance) onpath.VportState {
	switch {
	case !i.ready():
		return onpath.VportClosed
	case (i.draining() || i.partner != nil && i.partner.draining()) && w.begins(i):
		return onpath.VportDraining
	}
	return onpath.VportUp
}

// begins reports whether a path through the instance's deployment has not ended.
func (w *world) begins(i *instance) bool {
	w.findBeginning()
	return i.node != nil && w.beginning[member{i.node.c, i.dep}]
}

func (w *world) findBeginning() {
	if w.beginning == nil {
		w.beginning = map[member]bool{}
		for _, c := range w.cloudlets {
			for _, p := range c.paths {
				for _, d := range p.deps {
					if !p.ended() {
						w.beginning[member{c, d}] = true
					}
				}
			}
		}
	}
}

// newWorld looks everything up. Faults of chains are kept with the chains.
func newWorld(s *Snapshot) *world { return worldOf(s, indexOf) }

// worldOf is newWorld with the indexes that a planner has kept.
func worldOf(s *Snapshot, index func(*onpath.NodePlan) *index) *world {
	w := &world{
		Snapshot: s, index: index, set: s.Settings.withDefaults(), res: &Result{Plans: map[string]*onpath.NodePlan{}},
		cloudlets: map[string]*cloudlet{}, nodes: map[string]*node{}, orphans: map[string]*node{}, deployments: map[name]*deployment{},
		updates: map[onpath.Key]onpath.Object{},
	}
	w.addNodes()
	r := &resolver{world: w, asIs: map[*onpath.Function]functionOf{}}
	r.addDeployments()
	r.addChains()
	checker{w}.checkChains()
	r.useDeployments()
	w.addInstances()
	(&departures{world: w}).find()
	return w
}

// objects lists those of one type by tenant and name.
func objects[T onpath.Object](s *Snapshot) []T {
	var out []T
	for _, o := range s.Objects {
		if t, ok := o.(T); ok {
			out = append(out, t)
		}
	}
	sortByName(out)
	return out
}

func sortByName[T onpath.Object](list []T) {
	slices.SortFunc(list, func(a, b T) int {
		x, y := a.Meta(), b.Meta()
		if d := strings.Compare(x.Tenant, y.Tenant); d != 0 {
			return d
		}
		return strings.Compare(x.Name, y.Name)
	})
}

// listed is what objects gives, looked for once in a world: of many objects most are of
// other types, and some lists are asked for with each node.
func listed[T onpath.Object](w *world) []T {
	var none T
	kind := none.ObjectKind()
	if w.lists == nil {
		w.byKind, w.lists = map[onpath.Kind][]onpath.Object{}, map[onpath.Kind]any{}
		for k, o := range w.Objects {
			w.byKind[k.Kind] = append(w.byKind[k.Kind], o)
		}
	}
	if list, ok := w.lists[kind]; ok {
		return list.([]T)
	}
	list := make([]T, 0, len(w.byKind[kind]))
	for _, o := range w.byKind[kind] {
		list = append(list, o.(T))
	}
	sortByName(list)
	w.lists[kind] = list
	return list
}

func lookUp[T onpath.Object](w *world, k onpath.Kind, n name) (T, bool) {
	key := onpath.Key{Kind: k, Name: n.name}
	if k.Tenanted() {
		key.Tenant = n.tenant
	}
	t, ok := w.Objects[key].(T)
	return t, ok
}

func (w *world) addNodes() {
	for _, c := range listed[*onpath.Cloudlet](w) {
		w.cloudlets[c.Metadata.Name] = &cloudlet{name: c.Metadata.Name, obj: c}
	}
	for _, o := range listed[*onpath.Node](w) {
		n := &node{obj: o, name: o.Metadata.Name, st: w.States[o.Metadata.Name], used: map[bool]onpath.Resources{}}
		n.c = w.cloudlets[o.Spec.Cloudlet]
		if n.c == nil {
			n.c = &cloudlet{name: o.Spec.Cloudlet}
			w.cloudlets[n.c.name] = n.c
		}
		n.c.nodes = append(n.c.nodes, n)
		switch {
		case o.AttachedHost():
			n.c.hosts = append(n.c.hosts, n)
		case o.Gateway():
			n.c.gateways = append(n.c.gateways, n)
		}
		w.nodes[n.name] = n
		w.nodeOrder = append(w.nodeOrder, n)
		w.hear(n)
	}
	w.inOrder = slices.SortedFunc(maps.Values(w.cloudlets), func(a, b *cloudlet) int { return cmp.Compare(a.name, b.name) })
	for _, c := range w.cloudlets {
		c.findTunnels()
		c.chooseGateway()
		c.findShared()
		c.findDead()
		c.findSteering()
		c.alone = slices.DeleteFunc(slices.Clone(c.nodes), func(n *node) bool { return !n.alone() })
		w.alone = w.alone || len(c.alone) > 0
	}
	for name, st := range w.States {
		if w.nodes[name] == nil {
			n := &node{name: name, st: st, c: &cloudlet{}}
			w.hear(n)
			w.orphans[name] = n
		}
	}
}

// senders are all nodes that may send to n: who has been heard of, and who
// ought to be there. Nodes away for longer than the grace are past caring for,
// unless their data path is known to go on.
func (w *world) senders(n *node) []*node {
	var out []*node
	for _, set := range []map[string]*node{w.nodes, w.orphans} {
		for _, m := range set {
			if m != n && !m.silent() {
				out = append(out, m)
			}
		}
	}
	return out
}

// mostGateways of a cloudlet tell each other of their flows.
const mostGateways = 2

// chooseGateway takes the gateways that have been ones for longest: a third one
// is refused, and a newcomer must not displace those in use.
func (c *cloudlet) chooseGateway() {
	slices.SortFunc(c.gateways, func(a, b *node) int {
		x, y := a.obj.Status.Edge, b.obj.Status.Edge
		if (x == 0) != (y == 0) {
			return cmp.Compare(y, x) // one that has an edge before one that has none
		}
		return cmp.Or(cmp.Compare(x, y), a.obj.Metadata.Created.Compare(b.obj.Metadata.Created), cmp.Compare(a.name, b.name))
	})
	c.activeGateways = c.gateways[:min(len(c.gateways), mostGateways)]
	first := c.activeGateways
	if len(first) == 0 {
		first = c.hosts
	}
	for _, g := range first {
		if c.gateway == nil || c.gateway.away && !g.away && g.st != nil {
			c.gateway = g
		}
	}
}

// hasEdge reports whether the node's uplinks are used.
func (n *node) hasEdge() bool { return n.host() || slices.Contains(n.c.activeGateways, n) }

// partner is the other gateway of a pair, or nil.
func (n *node) partner() *node {
	if i := slices.Index(n.c.activeGateways, n); i >= 0 && len(n.c.activeGateways) == mostGateways {
		return n.c.activeGateways[1-i]
	}
	return nil
}

// findDead marks the nodes that neither talk to us nor answer the gateway.
func (c *cloudlet) findDead() {
	g := c.gateway
	if g == nil || g.away || g.st == nil || g.st.Report == nil {
		return
	}
	for _, n := range c.nodes {
		n.dead = n.away && slices.Contains(g.st.Report.Unreachable, n.name)
	}
}

// silent reports whether nothing more is expected of the node, and no packets.
func (n *node) silent() bool { return n.gone && !n.steers }

// findSteering marks the nodes whose agents are gone while packets still pass them:
// a gateway's data path that lives goes on picking up what it was last told to, and
// the nodes that it sends to pass that on. Only the machine's death, its agent or
// the operator ends that.
func (c *cloudlet) findSteering() {
	picksUp := func(g *node) bool { return g.st == nil || slices.ContainsFunc(g.possible, (*index).picksUp) }
	if !slices.ContainsFunc(c.edges(), func(g *node) bool { return g.gone && c.answers(g) && picksUp(g) }) {
		return
	}
	for _, n := range c.nodes {
		n.steers = n.gone && c.answers(n)
	}
}

// answers reports whether a node of the cloudlet that is heard of reaches another to which
// it sends: it asks those.
func (c *cloudlet) answers(n *node) bool {
	return slices.ContainsFunc(c.nodes, func(m *node) bool {
		return m != n && !m.away && m.st != nil && m.st.Report != nil && m.acked.sendsToNode(n.name) &&
			!slices.Contains(m.st.Report.Unreachable, n.name)
	})
}

// hear judges how long ago the node was heard of, and indexes its plans.
func (w *world) hear(n *node) {
	n.since = w.Started
	if n.st != nil {
		n.since = n.st.Seen
		n.acked = w.index(n.st.Acked)
		n.possible = append(n.possible, n.acked)
		n.newest = n.acked
		for _, p := range n.st.Sent {
			n.newest = w.index(p)
			n.possible = append(n.possible, n.newest)
		}
		n.reports = reportsOf(n.st.Report)
	}
	n.away = !w.Now.Before(n.since.Add(onpath.NodeTimeout))
	n.gone = n.away && !w.Now.Before(n.since.Add(w.set.Grace))
}

// NextSilence is the first time after another one at which a node will have been silent
// for so long that it counts as away, or as gone; zero: there is none.
func NextSilence(s *Snapshot, after time.Time) (next time.Time) {
	grace := s.Settings.withDefaults().Grace
	note := func(heard time.Time) {
		for _, d := range []time.Duration{onpath.NodeTimeout, grace} {
			if t := heard.Add(d); t.After(after) && (next.IsZero() || t.Before(next)) {
				next = t
			}
		}
	}
	note(s.Started) // of nodes that have not been heard of
	for _, st := range s.States {
		note(st.Seen)
	}
	return next
}

// reportsOf are the instances in a report, by name.
func reportsOf(r *onpath.NodeReport) map[name]*onpath.InstanceReport {
	if r == nil {
		return nil
	}
	out := make(map[name]*onpath.InstanceReport, len(r.Instances))
	for k := range r.Instances {
		i := &r.Instances[k]
		out[name{i.Tenant, i.Name}] = i
	}
	return out
}

// passed reports whether t lies behind, and else has the planner called again
// at t.
func (w *world) passed(t time.Time) bool {
	if !w.Now.Before(t) {
		return true
	}
	if w.res.Again.IsZero() || t.Before(w.res.Again) {
		w.res.Again = t
	}
	return false
}

// past is a time that this server, or the one before it, wrote down. If it lies in the
// future the clock has been set back since, and it is taken for now.
func (w *world) past(t time.Time) time.Time {
	if t.After(w.Now.Add(clockSlack)) {
		return w.Now.UTC().Round(0)
	}
	return t
}

// clockSlack is how far clocks of servers that follow each other may differ.
const clockSlack = 5 * time.Second

// unknown is the function of an instance of which it is not known.
var unknown onpath.FunctionSpec

func (w *world) addInstances() {
	list := listed[*onpath.Instance](w)
	w.instances = make([]*instance, 0, len(list))
	w.byVport = make(map[onpath.VportID]*instance, len(list))
	w.members, w.ofDep = make(map[member][]*instance, len(list)/2), make(map[name][]*instance, len(list)/2)
	for _, o := range list {
		i := &instance{obj: o, key: nameOf(o), node: w.nodes[o.Spec.Node], fn: &unknown}
		i.dep = name{i.key.tenant, o.Spec.Deployment}
		i.d = w.deployments[i.dep]
		w.instances = append(w.instances, i)
		w.ofDep[i.dep] = append(w.ofDep[i.dep], i)
		w.byVport[o.Spec.Vport] = i
		if o.Spec.Back != 0 {
			w.byVport[o.Spec.Back] = i
		}
		if i.node == nil {
			continue
		}
		i.node.insts = append(i.node.insts, i)
		i.node.c.vports += i.sides()
		m := member{i.node.c, i.dep}
		w.members[m] = append(w.members[m], i)
		i.lookUp()
		if i.d != nil && i.d.res != nil {
			i.node.held = i.node.held.Add(i.fn.Resources)
			continue
		}
		op := i.key.tenant == onpath.OperatorTenant
		i.node.used[op] = i.node.used[op].Add(i.fn.Resources)
	}
	findPartners(w)
}

// lookUp finds what its node says of it, and what it runs: an instance of a
// present shape runs what is declared now, any other what its node was told.
func (i *instance) lookUp() {
	i.report = i.node.reports[i.key]
	if p := i.node.newest.instance(i.obj.Metadata.UID); p != nil {
		i.planned = p
	}
	switch {
	case i.d != nil && i.d.function != nil && i.d.shape == i.obj.Spec.Shape:
		i.fn, i.known = &i.d.spec, true
	case i.planned != nil:
		i.fn, i.known = &i.planned.Spec, true
	}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func sortedNames[V any](m map[name]V) []name {
	return slices.SortedFunc(maps.Keys(m), name.less)
}

func (w *world) event(e Event) { w.res.Events = append(w.res.Events, e) }

func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
