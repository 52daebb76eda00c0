package plan

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/tunnel"
)

// make plans for all nodes that have been heard of.
func (w *nodeplans) make(workers int) {
	w.prepare = w.toPrepare()
	w.findInbound()
	w.eachCloudlet(workers, func(w *nodeplans, cl *cloudlet) {
		for _, n := range cl.nodes {
			if n.st != nil {
				w.planNode(n)
			}
		}
	})
	for _, name := range sortedKeys(w.orphans) {
		w.planOrphan(w.orphans[name])
	}
}

// planNode makes the node's plan, and puts it into the result if it differs
// from the newest that the node has.
func (w *nodeplans) planNode(n *node) {
	b := &w.builder
	b.begin(w, n)
	p := b.plan()
	var generation uint64
	if last := n.newest; last != nil {
		if same(p, last.plan) {
			return
		}
		generation = last.plan.Generation
	}
	if n.st.Report != nil {
		generation = max(generation, n.st.Report.Plan)
	}
	p.Generation, p.Datapath.Generation = generation+1, generation+1
	w.res.Plans[n.name] = p
	b.lists = lists{} // the plan has them now
}

// planOrphan has a node stop everything whose Node object was deleted: first it
// sends nothing to others any more, then, when no other node may send to it, it
// runs nothing any more. Two such nodes would otherwise wait for each other.
func (w *nodeplans) planOrphan(n *node) {
	x := n.newest
	if x == nil {
		return
	}
	p := &onpath.NodePlan{Node: n.name, Store: w.set.Store,
		Datapath: onpath.DatapathConfig{Node: n.name, Underlay: x.plan.Datapath.Underlay}}
	if slices.ContainsFunc(w.senders(n), func(m *node) bool { return slices.ContainsFunc(m.possible, x.pointedAtBy) }) {
		p = withoutRemotes(x)
	}
	if !same(p, x.plan) {
		p.Generation = x.plan.Generation + 1
		p.Datapath.Generation = p.Generation
		w.res.Plans[n.name] = p
	}
}

// withoutRemotes is a plan that sends nothing to other nodes.
func withoutRemotes(x *index) *onpath.NodePlan {
	p := *x.plan
	d := &p.Datapath
	d.Vports, d.Groups = nil, nil
	for _, v := range x.plan.Datapath.Vports {
		if v.Kind == onpath.VportRemote {
			continue
		}
		if v.Entry != x.edge {
			v.Entry = 0
		}
		d.Vports = append(d.Vports, v)
	}
	for _, g := range x.plan.Datapath.Groups {
		g.Weights = nil // they are one for each member
		g.Members = slices.DeleteFunc(slices.Clone(g.Members), func(m onpath.Member) bool { return x.remote[m.Vport] })
		if len(g.Members) == 0 {
			g.Members = nil
		}
		d.Groups = append(d.Groups, g)
	}
	return &p
}

// builder makes one node's plan after the other.
type builder struct {
	w      *nodeplans
	n      *node
	local  []*instance
	paths  []*path
	chosen map[*path]bool          // these paths
	known  map[onpath.VportID]bool // what vports has
	rows   int                     // of weights
	lists
}

// lists are what a plan is made of. Most plans turn out to be what their nodes have, and
// leave the lists to the next.
type lists struct {
	instances []onpath.InstancePlan
	vports    []onpath.Vport
	groups    []onpath.Group
	members   []onpath.Member // of all groups
	tables    []onpath.Table
	specs     []onpath.Path
	peerList  []onpath.Peer
}

func (b *builder) begin(w *nodeplans, n *node) {
	if b.known == nil {
		b.known, b.chosen = map[onpath.VportID]bool{}, map[*path]bool{}
	}
	clear(b.known)
	clear(b.chosen)
	b.w, b.n, b.rows = w, n, 0
	b.local, b.paths = b.local[:0], b.paths[:0]
	l := &b.lists
	l.instances, l.vports, l.groups, l.members = l.instances[:0], l.vports[:0], l.groups[:0], l.members[:0]
	l.tables, l.specs, l.peerList = l.tables[:0], l.specs[:0], l.peerList[:0]
}

// orNone is a list as a plan has it: nil without anything in it.
func orNone[T any](list []T) []T {
	if len(list) == 0 {
		return nil
	}
	return list
}

func (b *builder) plan() *onpath.NodePlan {
	b.chooseInstances()
	b.choosePaths()
	p := &onpath.NodePlan{Node: b.n.name, Store: b.w.set.Store}
	for _, i := range b.local {
		b.instances = append(b.instances, b.instance(i))
		b.addLocal(i)
	}
	p.Instances, p.Prepare = orNone(b.instances), b.w.prepare[b.n.name]
	b.addEdge()
	b.reserve()
	for _, q := range b.paths {
		b.addGroups(q)
		b.tables = append(b.tables, b.delivering(q)...)
	}
	b.addClassifiers()
	d := &p.Datapath
	d.Node, d.Underlay, d.Peers, d.Edge = b.n.name, b.n.obj.Spec.Underlay, b.peers(), b.edge()
	if slices.ContainsFunc(d.Peers, func(p onpath.Peer) bool { return p.Inside }) {
		d.Inside = tunnel.Inside(b.n.name)
	}
	d.Vports = orNone(b.vports)
	slices.SortFunc(d.Vports, func(x, y onpath.Vport) int { return cmp.Compare(x.ID, y.ID) })
	d.Tables, d.Groups = orNone(b.tables), orNone(b.groups)
	slices.SortFunc(d.Tables, func(x, y onpath.Table) int { return cmp.Compare(x.ID, y.ID) })
	slices.SortFunc(d.Groups, func(x, y onpath.Group) int { return cmp.Compare(x.ID, y.ID) })
	for _, q := range b.paths {
		spec := q.spec
		spec.Closed = q.over && b.n.hasEdge()
		if spec.AdoptFor = 0; !spec.Began.IsZero() {
			left := onpath.Duration(spec.Began.Sub(b.w.Now)) + spec.Adopt
			spec.AdoptFor = max(0, min(left, spec.Adopt))
		}
		b.specs = append(b.specs, spec)
	}
	d.Paths = orNone(b.specs)
	slices.SortFunc(d.Paths, func(x, y onpath.Path) int { return cmp.Compare(x.ID, y.ID) })
	d.Tenants = b.w.limits(d)
	p.Measure = measure(b.w.world, b.n)
	p.Leases, d.Punt = b.leases()
	p.PeerLeases = b.peerLeases()
	return p
}

// reserve makes room for what the paths bring.
func (b *builder) reserve() {
	groups, tables := 0, 2
	for _, q := range b.paths {
		groups += len(q.groups)
		tables += len(q.tables)
	}
	b.groups = slices.Grow(b.groups, groups)
	b.tables = slices.Grow(b.tables, tables)
	if x := b.n.newest; x != nil {
		b.vports = slices.Grow(b.vports, len(x.plan.Datapath.Vports))
	}
}

// chooseInstances takes the node's instances but those that leave and to which
// nobody sends any more.
func (b *builder) chooseInstances() {
	for _, i := range b.n.insts {
		if !i.known || i.leaving && !b.w.pointedAt(i) || i.half() && i.partner == nil && i.planned == nil {
			continue
		}
		b.local = append(b.local, i)
	}
	slices.SortFunc(b.local, func(x, y *instance) int { return x.key.less(y.key) })
}

// choosePaths takes the paths that packets can be on at this node: all at
// gateways; those of the instances here; and what others still send here. Where
// an operator's chain leads into those of tenants, each node with instances of
// either gets all: tenants' chains begin behind the operator's last element,
// and answers go from their elements back into it.
func (b *builder) choosePaths() {
	cl := b.n.c
	all := b.n.hasEdge()
	chosen := b.chosen
	for _, i := range b.local {
		for _, p := range cl.pathsOf[i.dep] {
			all = all || cl.operators
			chosen[p] = !p.over
		}
	}
	for id := range b.w.sentPaths(b.n) {
		if p := cl.pathByID[id]; p != nil {
			chosen[p] = true
		}
	}
	if all {
		for _, p := range cl.paths {
			if !p.over || chosen[p] {
				chosen[p] = true
				b.paths = append(b.paths, p)
			}
		}
		return
	}
	for p, ok := range chosen {
		if ok {
			b.paths = append(b.paths, p)
		}
	}
	slices.SortFunc(b.paths, func(x, y *path) int { return cmp.Compare(x.rank, y.rank) })
}

// starts reports whether the path's flows begin at the instance.
func (p *path) starts(i *instance) bool {
	return startsAtInstances(p) && p.chain.from.deployment == i.dep
}

func (b *builder) instance(i *instance) onpath.InstancePlan {
	s := &i.obj.Spec
	p := onpath.InstancePlan{
		Name: i.key.name, Tenant: i.key.tenant, Deployment: s.Deployment, UID: i.obj.Metadata.UID, Spec: *i.fn,
		Vport: s.Vport, Back: s.Back, Addresses: s.Addresses, MTU: b.n.interfaceMTU(i.fn), Draining: i.draining(),
	}
	for _, q := range b.n.c.pathsOf[i.dep] {
		if b.chosen[q] && slices.Contains(q.deps, i.dep) {
			p.Idle = p.Idle.Longest(q.spec.Idle.OrDefault())
		}
	}
	p.Serves, p.OnDemand, p.UserNamespace = b.serves(i), i.onDemand(), b.n.userNamespace(i)
	relays(b.w.world, b.n, i, &p)
	p.Pair = pairPlan(b.w.world, i)
	switch {
	case i.d != nil:
		p.Function = i.d.fnName.String()
		if i.d.res != nil {
			p.Reservation = i.d.res.key.name
		}
	case i.planned != nil:
		p.Function, p.Reservation = i.planned.Function, i.planned.Reservation
	}
	return p
}

// onDemand says whether the instance sleeps when nobody needs it: as its deployment says, or
// its node was told last.
func (i *instance) onDemand() *onpath.OnDemand {
	switch {
	case i.inline():
		return nil
	case i.d != nil && i.d.obj != nil:
		return i.d.obj.Spec.OnDemand
	case i.d == nil && i.planned != nil:
		return i.planned.OnDemand
	}
	return nil
}

// addLocal adds the vports of an instance on this node.
func (b *builder) addLocal(i *instance) {
	s := &i.obj.Spec
	if i.inline() {
		b.add(onpath.Vport{ID: s.Vport, Kind: onpath.VportFunction, State: b.w.state(i), Instance: i.key.String(), Tenant: i.key.tenant})
		return
	}
	v := onpath.Vport{
		ID: s.Vport, Kind: onpath.VportInstance, State: b.w.state(i), Instance: i.key.String(), Tenant: i.key.tenant,
		MAC: onpath.InstanceMAC(s.Vport), HostMAC: onpath.HostMAC(s.Vport), Attach: onpath.Routed,
		Packets: cmp.Or(i.fn.Packets, onpath.PacketsKeep), MaxFlows: b.w.maxFlows(i.key.tenant), Mirror: b.mirror(i),
		Tells: i.fn.Traits().WholeFrames, Alone: i.alone(),
	}
	v.RateIn = onpath.RateLimit(i.fn.Resources.Network)
	v.RateOut = v.RateIn
	if o := i.onDemand(); o != nil {
		v.Hold = o.Hold
	}
	for _, a := range s.Addresses {
		v.Own = append(v.Own, a.Addr())
	}
	v.Routes = routes(i.fn) && len(v.Own) > 0
	v.Entry = b.wayOut()
	if i.bridged() {
		v.Attach, v.Other = onpath.Bridged, s.Back
		back := v
		back.ID, back.Other = s.Back, s.Vport
		back.MAC, back.HostMAC = onpath.InstanceMAC(s.Back), onpath.HostMAC(s.Back)
		b.addEmit(i, &back)
	}
	b.addEmit(i, &v)
}

func (b *builder) addEmit(i *instance, v *onpath.Vport) {
	if t := emitTable(b.paths, i, v.ID); t != nil {
		v.Emit = t.ID
		b.tables = append(b.tables, *t)
	}
	b.add(*v)
}

// add adds a vport, if the node has it not yet.
func (b *builder) add(v onpath.Vport) {
	if !b.known[v.ID] {
		b.known[v.ID] = true
		b.vports = append(b.vports, v)
	}
}

// mirror reports whether the instance gets copies only.
func (b *builder) mirror(i *instance) bool {
	if i.d != nil && i.d.used {
		return i.d.mirror
	}
	v := b.n.newest
	return v != nil && v.local[i.obj.Spec.Vport] != nil && v.local[i.obj.Spec.Vport].Mirror
}

// maxFlows caps what a tenant's instances cause by themselves.
func (w *world) maxFlows(tenant string) int {
	return cmp.Or(w.maxEstablished(tenant), onpath.DefaultMaxFlows)
}

// maxEstablished caps the established entries of a tenant; 0: by its share of the table.
func (w *world) maxEstablished(tenant string) int {
	t, ok := lookUp[*onpath.Tenant](w, onpath.KindTenant, name{"", tenant})
	if !ok {
		return 0
	}
	return t.Spec.MaxFlows
}

// limits are those of the tenants that have something on a node.
func (w *nodeplans) limits(d *onpath.DatapathConfig) (list []onpath.TenantLimits) {
	here := map[string]bool{}
	for _, p := range d.Paths {
		here[p.Tenant] = true
	}
	for _, v := range d.Vports {
		if v.Kind != onpath.VportRemote && v.Tenant != "" {
			here[v.Tenant] = true
		}
	}
	for _, tenant := range slices.Sorted(maps.Keys(here)) {
		if n := w.maxNewFlows(tenant); n > 0 {
			list = append(list, onpath.TenantLimits{Name: tenant, MaxNewFlows: n})
		}
	}
	return list
}

func (w *nodeplans) maxNewFlows(tenant string) int {
	if t, ok := lookUp[*onpath.Tenant](w.world, onpath.KindTenant, name{"", tenant}); ok && t.Spec.MaxNewFlows != 0 {
		return t.Spec.MaxNewFlows
	}
	return onpath.DefaultMaxNewFlows(tenant)
}

// wayOut is the edge at which flows leave that begin at this node's instances.
func (b *builder) wayOut() onpath.VportID {
	switch {
	case b.n.host():
		return b.n.obj.Status.Edge
	case len(b.n.c.activeGateways) == 0 && len(b.n.c.hosts) > 1:
		return 0 // none of the machines is a gateway for others
	}
	for _, g := range append([]*node{b.n.c.gateway}, b.n.c.activeGateways...) {
		if g != nil && mayPointEdge(b.n, g) {
			return g.obj.Status.Edge
		}
	}
	return 0
}

// addEdge adds the ways back to the gateways. Of a pair each stands in for the
// other.
func (b *builder) addEdge() {
	for _, g := range b.n.c.edges() {
		if g == b.n || g.host() && len(b.local) == 0 || !mayPointEdge(b.n, g) {
			continue
		}
		id := g.obj.Status.Edge
		v := onpath.Vport{ID: id, Kind: onpath.VportRemote, State: onpath.VportUp, Peer: g.name}
		if o := g.partner(); o != nil && mayPointEdge(b.n, o) {
			v.Backup = o.obj.Status.Edge
		}
		b.add(v)
	}
}

// addGroups fills the path's groups with the instances that this node may send
// to, and makes these known.
func (b *builder) addGroups(p *path) {
	for _, g := range p.groups {
		_, k, reverse := g.ID.Split()
		old, first := g.Members, len(b.members)
		if k < len(p.deps) {
			for _, i := range p.members[k] {
				if b.isMember(p, i) {
					b.members = append(b.members, onpath.Member{Vport: i.into(reverse), Key: i.obj.Spec.Key, Weight: p.weight(k, i, old)})
					b.addRemote(i, i.into(reverse))
				}
			}
		}
		g.Members = orNone(b.members[first:len(b.members):len(b.members)])
		slices.SortFunc(g.Members, func(x, y onpath.Member) int { return cmp.Compare(x.Key, y.Key) })
		g.Weights = b.weightRows(p, &g)
		b.groups = append(b.groups, g)
	}
}

func (b *builder) isMember(p *path, i *instance) bool {
	if b.w.outOfSight(p, i) && !b.n.newest.sendsTo(p.id, i.obj.Spec.Vport) {
		return false
	}
	if i.node == b.n {
		return slices.Contains(b.local, i)
	}
	if (i.leaving || p.over) && !b.leadsOn(p, i) {
		return false
	}
	return mayPoint(b.n, i, p.id)
}

// leadsOn reports whether a member of a path that is over is kept for packets that
// may still enter it. While a path goes on, others take the place of those that leave.
func (b *builder) leadsOn(p *path, i *instance) bool {
	x := b.n.newest
	return p.over && (x.sendsTo(p.id, i.obj.Spec.Vport) || x.sendsTo(p.id, i.obj.Spec.Back)) && b.w.entered(b.n, p)
}

// weight is the instance's share of new flows at element k.
func (p *path) weight(k int, i *instance, old []onpath.Member) uint32 {
	if k < len(p.filling) {
		if v, ok := p.filling[k][i.obj.Spec.Key]; ok {
			return v
		}
	}
	if p.weights != nil {
		if v, ok := p.weights[k][i.node.name]; ok {
			return uint32(v)
		}
		return 1
	}
	for _, m := range old {
		if m.Key == i.obj.Spec.Key {
			return m.Weight
		}
	}
	return 1
}

// shares reports whether an instance takes new flows of the path.
func (p *path) shares(i *instance) bool {
	for k, dep := range p.deps {
		if dep == i.dep && p.share(k, i) > 0 {
			return true
		}
	}
	return false
}

// share is the weight by what the path's groups say.
func (p *path) share(k int, i *instance) uint32 {
	for _, g := range p.groups {
		if g.ID == onpath.GroupOf(p.id, k, false) {
			return p.weight(k, i, g.Members)
		}
	}
	return 1
}

func (b *builder) addRemote(i *instance, v onpath.VportID) {
	if i.node == b.n || b.known[v] {
		return
	}
	state := b.w.state(i)
	if state == onpath.VportUp && i.full() { // its own node knows it by itself, and sooner
		state = onpath.VportDraining
	}
	b.add(onpath.Vport{ID: v, Kind: onpath.VportRemote, State: state, Peer: i.node.name})
}

// addClassifiers adds the tiers' tables where packets may come to be
// classified: at gateways, and behind an operator's chain.
func (b *builder) addClassifiers() {
	operator := slices.ContainsFunc(b.paths, func(p *path) bool { return p.tier == onpath.TierOperator })
	if b.n.hasEdge() {
		b.tables = append(b.tables, b.w.classifier(b.paths, b.n, onpath.TierOperator), b.w.classifier(b.paths, b.n, onpath.TierTenant))
	} else if operator {
		b.tables = append(b.tables, b.w.classifier(b.paths, b.n, onpath.TierTenant))
	}
}

// edge describes the uplinks of a gateway in use. Without any rule nothing is
// looked at. A node that is the gateway no more lets flows leave as long as
// others may send it any.
func (b *builder) edge() *onpath.Edge {
	if !b.n.hasEdge() {
		if x := b.n.newest; x != nil && x.edge != 0 && b.w.edgePointedAt(b.n, x.edge) {
			e := *x.plan.Datapath.Edge
			e.Table = 0
			return &e
		}
		return nil
	}
	if b.n.obj.Status.Edge == 0 {
		return nil
	}
	e := &onpath.Edge{Vport: b.n.obj.Status.Edge, Uplinks: b.n.obj.Spec.Uplinks}
	for _, t := range b.tables {
		if isClassifier(t.ID) && len(t.Rules) > 0 && b.w.joined(b.n) {
			e.Table = onpath.ClassifierTable(onpath.TierOperator)
		}
	}
	e.NAT = b.w.translated(b.n.c)
	return e
}

// translated are the private pools, if an instance of the cloudlet has an
// address of them.
func (w *nodeplans) translated(cl *cloudlet) []netip.Prefix {
	var out []netip.Prefix
	for _, pool := range w.set.PrivatePools {
		for _, n := range cl.nodes {
			if slices.ContainsFunc(n.insts, func(i *instance) bool {
				return slices.ContainsFunc(i.obj.Spec.Addresses, func(a netip.Prefix) bool { return pool.Contains(a.Addr()) })
			}) {
				out = append(out, pool)
				break
			}
		}
	}
	return out
}

// peers are the other nodes of the cloudlet, and those that were and may still
// send.
func (b *builder) peers() []onpath.Peer {
	out := b.peerList
	if b.n.newest != nil {
		for _, p := range b.n.newest.plan.Datapath.Peers {
			if m := b.w.nodes[p.Node]; (m == nil || m.c != b.n.c) && b.w.sends(p.Node, b.n.name) {
				out = append(out, p)
			}
		}
	}
	for _, m := range b.n.c.nodes {
		if m == b.n || !m.obj.Spec.Underlay.Address.IsValid() || !speak(b.n, m) {
			continue
		}
		out = append(out, b.peer(m))
	}
	slices.SortFunc(out, func(x, y onpath.Peer) int { return cmp.Compare(x.Node, y.Node) })
	b.peerList = out
	return orNone(out)
}

// sends reports whether a node that has left the cloudlet may still send to
// another.
func (w *nodeplans) sends(from, to string) bool {
	n := w.nodes[from]
	if n == nil {
		n = w.orphans[from]
	}
	return n != nil && !n.silent() && slices.ContainsFunc(n.possible, func(x *index) bool {
		return x != nil && slices.ContainsFunc(x.plan.Datapath.Vports, func(v onpath.Vport) bool { return v.Peer == to })
	})
}

// secret is what two nodes share. One that they have already is kept: both
// cannot change it in the same instant.
func (w *nodeplans) secret(a, b *node) uint32 {
	if a.name > b.name {
		a, b = b, a
	}
	for _, pair := range [][2]*node{{a, b}, {b, a}} {
		if x := pair[0].newest; x != nil && x.secrets[pair[1].name] != 0 {
			return x.secrets[pair[1].name]
		}
	}
	mac := hmac.New(sha256.New, w.set.Secret)
	mac.Write([]byte(a.name + "\x00" + b.name))
	return max(binary.BigEndian.Uint32(mac.Sum(nil))>>8, 1)
}
