package datapathtest

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/onpath/onpath"
)

// layout is what the exam wants of the network: chains over instances on nodes.
// It is turned into configurations by the letter of onpath.DatapathConfig, every
// table and group on every node.
type layout struct {
	chains    []*chain // in order of precedence within their tier
	instances []*instance
	nat       []netip.Prefix // Edge.NAT
	tunnelMTU int            // Peer.MTU; default the underlay's
	limits    []onpath.TenantLimits
	// leave is what the edge leaves to the kernel, whatever chains select.
	leave []onpath.Match
	// pair: the gateway and the side node are the two gateways of a cloudlet.
	pair bool
	// dead is the gateway of the pair that others find gone.
	dead string
	// restored: the plan was kept on disk.
	restored bool
}

type chain struct {
	path     onpath.PathID
	tenant   string      // default exam
	maxFlows int         // of the tenant, established
	tier     onpath.Tier // default tenant
	match    onpath.Match
	elements []*element
	exitLast bool
	// delivers is what leaves at the side node's edge, behind the last element.
	delivers []netip.Prefix
	forward  bool
	strict   bool
	mtu      int
	began    time.Time
	adopt    time.Duration
	left     time.Duration // of adopt, by the server's clock; default by this one
	cut      bool
	ended    bool // no classifier starts it; its flows go on
	closed   bool // nor does anything enter it at the edge
}

type element struct {
	instances []*instance
	mode      onpath.Mode // default inline
	lost      onpath.Lost // default repick
	none      onpath.None // default drop
	// match is the element's own select, forward; nil: everything.
	match    *onpath.Match
	together onpath.Together
	// rows are the weights by where flows come from, forward.
	rows []onpath.WeightRow
}

type instance struct {
	name      string
	tenant    string // default exam
	node      string
	vport     onpath.VportID // forward side
	back      onpath.VportID // bridged: the other side
	key       uint32
	weight    uint32
	state     onpath.VportState
	packets   onpath.PacketRights
	own       []netip.Addr
	routes    bool
	mirror    bool
	tells     onpath.PathID // it is told by frames that packets are on this path; 0: it is not
	away      bool          // its node does not answer, as other nodes see it
	maxFlows  int
	rateIn    uint64 // bit/s
	rateOut   uint64
	hold      onpath.Size // it may sleep
	asleep    bool
	emits     []emission
	inline    *onpath.InlineFunction // an ebpf function
	withdrawn bool                   // named in no group and no vport any more
}

// emission is one rule of what an instance may emit without an entry: it goes
// on behind element of path, forward if it matches and reverse if it matches
// turned round.
type emission struct {
	path    onpath.PathID
	element int
	match   onpath.Match
}

// start is the element number of the tables that choose the first element where
// elements have selects of their own.
const start = onpath.MaxElements

func (i *instance) otherSide() onpath.VportID { return cmp.Or(i.back, i.vport) }

// repliesTo is the match of the replies.
func repliesTo(m onpath.Match) onpath.Match {
	m.Src, m.Dst = m.Dst, m.Src
	m.SrcPorts, m.DstPorts = m.DstPorts, m.SrcPorts
	return m
}

func oriented(m onpath.Match, reverse bool) onpath.Match {
	if reverse {
		return repliesTo(m)
	}
	return m
}

// tables gives the classifiers, the tables of all chains, and the emit tables.
func (l *layout) tables(emitters func(*instance) bool) []onpath.Table {
	var out []onpath.Table
	for _, tier := range []onpath.Tier{onpath.TierOperator, onpath.TierTenant} {
		t := onpath.Table{ID: onpath.ClassifierTable(tier), Miss: onpath.Action{Kind: onpath.ActionExit}}
		if tier == onpath.TierOperator {
			t.Miss = onpath.Action{Kind: onpath.ActionTable, Table: onpath.ClassifierTable(onpath.TierTenant)}
			for _, m := range l.leave {
				t.Rules = append(t.Rules, onpath.Rule{Match: m, Action: onpath.Action{Kind: onpath.ActionExit}})
			}
		}
		for _, c := range l.chains {
			if c.tierOf() == tier && !c.ended {
				t.Rules = append(t.Rules, c.classify()...)
			}
		}
		out = append(out, t)
	}
	for _, c := range l.chains {
		out = append(out, c.tables()...)
	}
	for _, i := range l.instances {
		if len(i.emits) > 0 && !i.withdrawn && emitters(i) {
			out = append(out, l.emitTables(i)...)
		}
	}
	slices.SortFunc(out, func(a, b onpath.Table) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

func (c *chain) tierOf() onpath.Tier { return cmp.Or(c.tier, onpath.TierTenant) }

func (c *chain) classify() []onpath.Rule {
	var rules []onpath.Rule
	for _, reverse := range []bool{false, true} {
		if reverse && c.forward {
			break
		}
		first := 0
		if reverse {
			first = len(c.elements) - 1
		}
		a := onpath.Action{Kind: onpath.ActionTable, Table: onpath.TableOf(c.path, start, reverse)}
		if c.elements[first].match == nil {
			a = onpath.Action{Kind: onpath.ActionGroup, Group: onpath.GroupOf(c.path, first, reverse)}
		}
		rules = append(rules, onpath.Rule{Match: oriented(c.match, reverse), Action: a, Path: c.path, Reverse: reverse})
	}
	return rules
}

func (c *chain) tables() []onpath.Table {
	var out []onpath.Table
	for _, reverse := range []bool{false, true} {
		out = append(out, c.tableAfter(start, reverse))
		for i := range c.elements {
			out = append(out, c.tableAfter(i, reverse))
		}
	}
	return out
}

// tableAfter is the table behind element i: the next elements, in order, that
// select the packet, and what happens if none does.
func (c *chain) tableAfter(i int, reverse bool) onpath.Table {
	t := onpath.Table{ID: onpath.TableOf(c.path, i, reverse), Miss: c.end()}
	for _, j := range c.behind(i, reverse) {
		r := onpath.Rule{
			Action:  onpath.Action{Kind: onpath.ActionGroup, Group: onpath.GroupOf(c.path, j, reverse)},
			Path:    c.path,
			Reverse: reverse,
		}
		if m := c.elements[j].match; m != nil {
			r.Match = oriented(*m, reverse)
		}
		t.Rules = append(t.Rules, r)
		if c.elements[j].match == nil {
			return t
		}
	}
	if i != start && len(c.delivers) > 0 {
		t.Rules = append(t.Rules, onpath.Rule{
			Match:  onpath.Match{Dst: c.delivers},
			Action: onpath.Action{Kind: onpath.ActionDeliver, Vport: sideVport},
		})
	}
	return t
}

// behind lists the elements that come after i in a direction.
func (c *chain) behind(i int, reverse bool) []int {
	var js []int
	for j := range c.elements {
		if i == start || (j > i && !reverse) || (j < i && reverse) {
			js = append(js, j)
		}
	}
	if reverse {
		slices.Reverse(js)
	}
	return js
}

func (c *chain) end() onpath.Action {
	switch {
	case c.tierOf() == onpath.TierOperator:
		return onpath.Action{Kind: onpath.ActionTable, Table: onpath.ClassifierTable(onpath.TierTenant)}
	case c.exitLast:
		return onpath.Action{Kind: onpath.ActionRoute}
	}
	return onpath.Action{Kind: onpath.ActionExit}
}

func (c *chain) groups() []onpath.Group {
	var out []onpath.Group
	for i, e := range c.elements {
		for _, reverse := range []bool{false, true} {
			if reverse && c.forward {
				continue
			}
			out = append(out, e.group(c.path, i, reverse))
		}
	}
	return out
}

func (e *element) group(p onpath.PathID, i int, reverse bool) onpath.Group {
	g := onpath.Group{
		ID: onpath.GroupOf(p, i, reverse), Path: p, Reverse: reverse,
		Mode: cmp.Or(e.mode, onpath.ModeInline),
		Then: onpath.TableOf(p, i, reverse), Back: onpath.TableOf(p, i, !reverse),
		Lost: cmp.Or(e.lost, onpath.LostRepick), None: cmp.Or(e.none, onpath.NoneDrop), Together: e.together,
	}
	if !reverse {
		g.Weights = e.rows
	}
	for _, in := range e.instances {
		if in.withdrawn {
			continue
		}
		m := onpath.Member{Vport: in.vport, Key: in.key, Weight: in.weight}
		if reverse {
			m.Vport = in.otherSide()
		}
		g.Members = append(g.Members, m)
	}
	return g
}

// oneWay reports whether only the forward direction of a path is steered.
func (l *layout) oneWay(p onpath.PathID) bool {
	return slices.ContainsFunc(l.chains, func(c *chain) bool { return c.path == p && c.forward })
}

// emitTables gives one table for each side of the instance, the same rules.
func (l *layout) emitTables(i *instance) []onpath.Table {
	t := onpath.Table{ID: onpath.EmitTableOf(i.vport), Miss: onpath.Action{Kind: onpath.ActionExit}}
	for _, e := range i.emits {
		for _, reverse := range []bool{false, true} {
			if reverse && l.oneWay(e.path) {
				break
			}
			t.Rules = append(t.Rules, onpath.Rule{
				Match:  oriented(e.match, reverse),
				Action: onpath.Action{Kind: onpath.ActionTable, Table: onpath.TableOf(e.path, e.element, reverse)},
				Path:   e.path, Reverse: reverse,
			})
		}
	}
	if i.back == 0 {
		return []onpath.Table{t}
	}
	o := t
	o.ID = onpath.EmitTableOf(i.back)
	return []onpath.Table{t, o}
}

func (l *layout) paths(now time.Time) []onpath.Path {
	var out []onpath.Path
	for _, c := range l.chains {
		p := onpath.Path{
			ID: c.path, Chain: "exam/chain", Tenant: cmp.Or(c.tenant, "exam"), MaxFlows: c.maxFlows, MTU: c.mtu, Began: c.began,
			Adopt: onpath.Duration(c.adopt), Cut: c.cut, Closed: c.closed, Strict: c.strict, Forward: c.forward,
		}
		if !c.began.IsZero() {
			p.AdoptFor = onpath.Duration(max(0, cmp.Or(c.left, c.began.Add(c.adopt).Sub(now))))
		}
		if c.ended {
			p.Ended = time.Unix(1, 0)
		}
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b onpath.Path) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// vports describes i as node sees it.
func (i *instance) vports(node string) []onpath.Vport {
	if i.node != node {
		v := onpath.Vport{ID: i.vport, Kind: onpath.VportRemote, State: i.state, Peer: i.node, Away: i.away}
		if i.back == 0 {
			return []onpath.Vport{v}
		}
		o := v
		o.ID = i.back
		return []onpath.Vport{v, o}
	}
	if i.inline != nil {
		return []onpath.Vport{{ID: i.vport, Kind: onpath.VportFunction, State: i.state, Instance: "exam/" + i.name, Tenant: cmp.Or(i.tenant, "exam")}}
	}
	v := onpath.Vport{
		ID: i.vport, Kind: onpath.VportInstance, State: i.state,
		Instance: "exam/" + i.name, Tenant: cmp.Or(i.tenant, "exam"), Other: i.vport,
		MAC: onpath.InstanceMAC(i.vport), HostMAC: onpath.HostMAC(i.vport),
		Attach: onpath.Routed, Packets: cmp.Or(i.packets, onpath.PacketsKeep),
		Own: i.own, Routes: i.routes, Entry: edgeVport, Mirror: i.mirror, Tells: i.tells != 0, MaxFlows: i.maxFlows,
		RateIn: i.rateIn, RateOut: i.rateOut, Hold: i.hold, Asleep: i.asleep,
	}
	if len(i.emits) > 0 {
		v.Emit = onpath.EmitTableOf(i.vport)
	}
	if i.back == 0 {
		return []onpath.Vport{v}
	}
	v.Attach, v.Other = onpath.Bridged, i.back
	o := v
	o.ID, o.Other, o.MAC, o.HostMAC = i.back, i.vport, onpath.InstanceMAC(i.back), onpath.HostMAC(i.back)
	if o.Emit != 0 {
		o.Emit = onpath.EmitTableOf(i.back)
	}
	return []onpath.Vport{v, o}
}
