package fake

import (
	"context"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/onpath/onpath"
)

// Node is one machine's data path; it implements onpath.Datapath.
type Node struct {
	net     *Network
	name    string
	options Options

	broadcasts []netip.Addr

	// What Apply gave, indexed.
	applied  bool
	underlay netip.Addr
	port     uint16
	peers    map[string]onpath.Peer
	secrets  map[netip.Addr]uint32
	edge     *onpath.Edge
	vports   map[onpath.VportID]*onpath.Vport
	devices  map[string]onpath.VportID
	tables   map[onpath.TableID]*onpath.Table
	groups   map[onpath.GroupID]*onpath.Group
	member   map[membership]onpath.GroupID
	keys     map[onpath.VportID]uint32 // of the instances
	paths    map[onpath.PathID]*onpath.Path
	// adoptUntil is when chains cease to be young.
	adoptUntil map[onpath.PathID]time.Time
	inline     map[onpath.VportID]onpath.InlineFunction
	gateways   [2]onpath.VportID // the edges of a pair of gateways
	// generation counts the changes of what decides which elements a flow passes.
	generation int

	// What packets left behind.
	flows     map[flowKey]*flow // established
	shares    map[string]*share // of tenants
	due       map[way]time.Time // when what has passed would have passed at its rate
	fragments map[fragmentKey]fragment
	nat       natTable
	together  map[affinity]*noted
	stations  map[end]station // of a bridge
	bridged   *bridged        // the frame being worked on; nil: it came in elsewhere
	counters  onpath.Counters
	watches   map[onpath.Tuple]*watched
	stranger  onpath.VportID // that the packet being worked on comes from by its word alone
	current   onpath.Tuple   // of the packet being worked on; zero: none that is of a flow
	sweepAt   int
	forwarded uint64
	dropped   uint64
	piece     piece // of the packet being worked on

	taps map[*tap]struct{}
	punt puntPort
}

var _ onpath.Datapath = (*Node)(nil)

// membership finds the group through which an instance's side belongs to a path.
type membership struct {
	vport   onpath.VportID
	path    onpath.PathID
	reverse bool
}

// forget makes the node as it is without any data path.
func (n *Node) forget() {
	if n.net.underlay[n.underlay] == n {
		delete(n.net.underlay, n.underlay)
	}
	n.applied, n.underlay, n.edge = false, netip.Addr{}, nil
	n.flows, n.shares, n.due = map[flowKey]*flow{}, map[string]*share{}, map[way]time.Time{}
	n.index(&onpath.DatapathConfig{})
	n.fragments = map[fragmentKey]fragment{}
	n.nat, n.stations, n.together = newNATTable(), map[end]station{}, map[affinity]*noted{}
	n.counters = onpath.Counters{
		Vports: map[onpath.VportID]onpath.VportCounters{},
		Paths:  map[onpath.PathID]onpath.PathCounters{},

		Functions: map[onpath.VportID]onpath.FunctionCounters{},
	}
	n.sweepAt = sweepFirst
}

// Apply implements onpath.Datapath.
func (n *Node) Apply(ctx context.Context, c *onpath.DatapathConfig) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := c.Validate(); err != nil {
		return err
	}
	if err := c.Fits(); err != nil {
		return err
	}
	n.net.mu.Lock()
	defer n.net.release()
	underlay := c.Underlay.Address
	if n.net.missing[n.name] || !underlay.IsValid() {
		underlay, c = netip.Addr{}, c.WithoutPeers(func(onpath.Peer) bool { return true })
	}
	if other := n.net.underlay[underlay]; other != nil && other != n {
		return onpath.Errorf(onpath.CodeInvalid, "underlay address %s belongs to node %s", c.Underlay.Address, other.name)
	}
	if n.net.underlay[n.underlay] == n {
		delete(n.net.underlay, n.underlay)
	}
	n.applied, n.underlay = true, underlay
	if n.underlay.IsValid() {
		n.net.underlay[n.underlay] = n
	}
	lost, old, was, vports := n.lostMembers(c), n.tables, n.edge, n.vports
	took := taking(n)
	n.index(c)
	if opensBypassed(n, took) || n.generation == 0 || !reflect.DeepEqual(old, n.tables) {
		n.generation++
	}
	n.resetWaiting(lost)
	if n.reclassifies(old, was) {
		n.settle()
	}
	n.purge(vports)
	return nil
}

// taking are the vports that take packets.
func taking(n *Node) map[onpath.VportID]bool {
	took := map[onpath.VportID]bool{}
	for id := range n.vports {
		took[id] = n.takes(id)
	}
	return took
}

// opensBypassed reports whether an instance opens, which did not take packets, of an element that
// is passed by where it has none.
func opensBypassed(n *Node, took map[onpath.VportID]bool) bool {
	for _, g := range n.groups {
		opens := func(m onpath.Member) bool { return n.takes(m.Vport) && !took[m.Vport] }
		if (g.None == onpath.NoneBypass || g.Mode == onpath.ModeMirror) && slices.ContainsFunc(g.Members, opens) {
			return true
		}
	}
	return false
}

// reclassifies tells whether packets at the edge are classified by other rules than
// before.
func (n *Node) reclassifies(tables map[onpath.TableID]*onpath.Table, edge *onpath.Edge) bool {
	if edge == nil || n.edge == nil || edge.Vport != n.edge.Vport {
		return false
	}
	for _, tier := range []onpath.Tier{onpath.TierOperator, onpath.TierTenant} {
		if id := onpath.ClassifierTable(tier); !reflect.DeepEqual(tables[id], n.tables[id]) {
			return true
		}
	}
	return edge.Table != n.edge.Table
}

// index takes a copy of the configuration apart.
func (n *Node) index(c *onpath.DatapathConfig) {
	n.port = c.Underlay.Port
	if n.port == 0 {
		n.port = onpath.DefaultTunnelPort
	}
	n.peers, n.secrets = map[string]onpath.Peer{}, map[netip.Addr]uint32{}
	for _, p := range c.Peers {
		n.peers[p.Node], n.secrets[p.Address] = p, p.Secret
	}
	n.punt.wanted = c.Punt
	n.edge = nil
	if c.Edge != nil {
		e := *c.Edge
		e.Uplinks, e.NAT = slices.Clone(e.Uplinks), slices.Clone(e.NAT)
		n.edge = &e
	}
	n.inline = map[onpath.VportID]onpath.InlineFunction{}
	for _, f := range c.Functions {
		n.inline[f.Vport] = f
	}
	n.gateways = [2]onpath.VportID{}
	n.vports, n.devices = map[onpath.VportID]*onpath.Vport{}, map[string]onpath.VportID{}
	for _, v := range c.Vports {
		v.Own = slices.Clone(v.Own)
		if v.Other == 0 {
			v.Other = v.ID
		}
		n.vports[v.ID] = &v
		if v.Backup != 0 {
			n.gateways = [2]onpath.VportID{v.ID, v.Backup}
		}
		if v.Kind == onpath.VportInstance {
			n.devices[onpath.DeviceName(v.ID)] = v.ID
		}
	}
	n.indexTables(c)
	n.shareOut(c)
}

func (n *Node) indexTables(c *onpath.DatapathConfig) {
	n.tables = map[onpath.TableID]*onpath.Table{}
	for _, t := range c.Tables {
		t.Rules = cloneRules(t.Rules)
		n.tables[t.ID] = &t
	}
	n.groups, n.member = map[onpath.GroupID]*onpath.Group{}, map[membership]onpath.GroupID{}
	n.keys = map[onpath.VportID]uint32{}
	for _, g := range c.Groups {
		g.Members = slices.Clone(g.Members)
		n.groups[g.ID] = &g
		for _, m := range g.Members {
			n.keys[m.Vport] = m.Key
			k := membership{m.Vport, g.Path, g.Reverse}
			if old := n.member[k]; old == 0 || g.ID < old {
				n.member[k] = g.ID
			}
		}
	}
	n.paths = map[onpath.PathID]*onpath.Path{}
	ends := map[onpath.PathID]time.Time{}
	for _, p := range c.Paths {
		n.paths[p.ID] = &p
		ends[p.ID] = n.adoptionEnd(&p, c.Restored)
	}
	n.adoptUntil = ends
}

// adoptionEnd is when a chain ceases to be young; one that is under way is never put off.
func (n *Node) adoptionEnd(p *onpath.Path, restored bool) time.Time {
	old := n.adoptUntil[p.ID]
	switch {
	case p.Began.IsZero():
		return time.Time{}
	case restored:
		return old
	case p.AdoptFor <= 0:
		return time.Time{}
	}
	until := n.now().Add(time.Duration(p.AdoptFor))
	if !old.IsZero() && old.Before(until) {
		return old
	}
	return until
}

func cloneRules(rules []onpath.Rule) []onpath.Rule {
	rules = slices.Clone(rules)
	for i := range rules {
		m := &rules[i].Match
		m.Src, m.Dst = slices.Clone(m.Src), slices.Clone(m.Dst)
		m.Protocol = slices.Clone(m.Protocol)
		m.SrcPorts, m.DstPorts = slices.Clone(m.SrcPorts), slices.Clone(m.DstPorts)
	}
	return rules
}

// Counters implements onpath.Datapath.
func (n *Node) Counters(ctx context.Context) (*onpath.Counters, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	n.net.mu.Lock()
	defer n.net.mu.Unlock()
	n.sweep()
	c := n.counters
	c.Tenants = n.held()
	c.Vports = make(map[onpath.VportID]onpath.VportCounters, len(n.counters.Vports))
	for id, v := range n.counters.Vports {
		dropped := make(map[onpath.DropReason]uint64, len(v.Dropped))
		for r, x := range v.Dropped {
			dropped[r] = x
		}
		v.Dropped = dropped
		c.Vports[id] = v
	}
	c.Flows = 0
	for id, at := range n.flowsAt(&c.Flows) {
		if v, ok := c.Vports[id]; ok || n.vports[id] != nil {
			v.Flows = at.Flows()
			c.Vports[id] = v
		}
	}
	c.Paths = make(map[onpath.PathID]onpath.PathCounters, len(n.counters.Paths))
	for id, p := range n.counters.Paths {
		c.Paths[id] = p
	}
	c.Functions = map[onpath.VportID]onpath.FunctionCounters{}
	for id, v := range n.vports {
		if v.Kind == onpath.VportFunction {
			x := n.counters.Functions[id]
			x.Reasons = maps.Clone(x.Reasons)
			x.Linked = n.inline[id].Object != ""
			c.Functions[id] = x
		}
	}
	return &c, nil
}

// Name is the node's.
func (n *Node) Name() string { return n.name }

// Underlay is its address on the underlay, once a configuration gave it one.
func (n *Node) Underlay() netip.Addr { return n.underlay }

// Flows implements onpath.Datapath.
func (n *Node) Flows(ctx context.Context, f onpath.FlowFilter, yield func(onpath.FlowEntry) bool) error {
	n.net.mu.Lock()
	n.sweep()
	var found []onpath.FlowEntry
	now := n.net.clock()
	n.each(func(k flowKey, e *flow) {
		if x := e.describe(k, now); f.Matches(x) {
			found = append(found, x)
		}
	})
	n.net.mu.Unlock()
	for _, e := range found {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !yield(e) {
			return nil
		}
	}
	return nil
}

// Close implements onpath.Datapath: there is nothing to let go of.
func (n *Node) Close() error { return nil }

// Remove implements onpath.Datapath.
func (n *Node) Remove(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	n.net.mu.Lock()
	defer n.net.mu.Unlock()
	n.forget()
	return nil
}

func (n *Node) now() time.Time { return n.net.clock() }

// edgeVport is 0 on nodes without an edge.
func (n *Node) edgeVport() onpath.VportID {
	if n.edge == nil {
		return 0
	}
	return n.edge.Vport
}

// takes reports whether a vport can be given packets of running flows.
func (n *Node) takes(id onpath.VportID) bool {
	if id == n.edgeVport() {
		return id != 0
	}
	v := n.vports[id]
	return v != nil && v.State != onpath.VportClosed
}

// local gives an instance's vport on this node.
func (n *Node) local(id onpath.VportID) *onpath.Vport {
	if v := n.vports[id]; v != nil && v.Kind == onpath.VportInstance {
		return v
	}
	return nil
}

func (n *Node) countIn(id onpath.VportID, bytes int) {
	c := n.counters.Vports[id]
	n.add(&c.In, bytes)
	n.counters.Vports[id] = c
	n.watched(id, func(v *onpath.VportCounters) { n.add(&v.In, bytes) })
}

func (n *Node) countOut(id onpath.VportID, bytes int) {
	c := n.counters.Vports[id]
	n.add(&c.Out, bytes)
	n.counters.Vports[id] = c
	n.watched(id, func(v *onpath.VportCounters) { n.add(&v.Out, bytes) })
}

func (n *Node) countDrop(id onpath.VportID, why onpath.DropReason) {
	if id == n.stranger {
		id = 0
	}
	c := n.counters.Vports[id]
	if c.Dropped == nil {
		c.Dropped = map[onpath.DropReason]uint64{}
	}
	c.Dropped[why] += n.pieces()
	n.dropped++
	n.counters.Vports[id] = c
	n.watched(id, func(v *onpath.VportCounters) {
		if v.Dropped == nil {
			v.Dropped = map[onpath.DropReason]uint64{}
		}
		v.Dropped[why] += n.pieces()
	})
}

func (n *Node) countSteered(id onpath.PathID, bytes int) {
	c := n.counters.Paths[id]
	n.add(&c.Steered, bytes)
	n.counters.Paths[id] = c
}

// countBegun counts a flow that begins in a chain at the edge; not one whose entry led
// nowhere: it goes on.
func (n *Node) countBegun(w *work, id onpath.PathID) {
	if w.anew {
		return
	}
	c := n.counters.Paths[id]
	c.Begun++
	n.counters.Paths[id] = c
}

func (n *Node) countPassed(id onpath.PathID, bytes int) {
	c := n.counters.Paths[id]
	n.add(&c.Passed, bytes)
	n.counters.Paths[id] = c
}
