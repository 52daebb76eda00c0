package onpath

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// LocalLease is a lease as its node has it.
type LocalLease struct {
	LeaseSpec
	Name string     `json:"name"`
	Slot LeaseSlot  `json:"slot"`
	Code ObjectCode `json:"code"`
	// MaxFlows is the publisher's.
	MaxFlows int `json:"maxFlows,omitempty"`
}

// WithLeases is a plan with the leases that its node has admitted: an instance for each
// publisher, which runs the publisher's modules in the order of arrival, and rules behind
// those of the plan, which thus win. The peer's servers come with it. The plan is not changed,
// and shares with the result what is the same.
func (p *NodePlan) WithLeases(leases []LocalLease) *NodePlan {
	if p.Leases == nil {
		leases = nil
	}
	if p.Datapath.Edge == nil || len(leases) == 0 && len(p.PeerLeases) == 0 {
		return p
	}
	j := &leaseJoin{plan: *p}
	d := &j.plan.Datapath
	j.plan.Instances = slices.Clone(p.Instances)
	d.Vports, d.Groups, d.Tables, d.Paths = slices.Clone(d.Vports), slices.Clone(d.Groups), slices.Clone(d.Tables), slices.Clone(d.Paths)
	edge := *d.Edge
	edge.NAT = slices.Clone(edge.NAT)
	d.Edge = &edge
	of := map[PathID][]LocalLease{}
	leases = slices.Clone(leases)
	for i := range leases { // a slot may have been given other addresses since
		leases[i].Slot = p.Leases.Now(leases[i].Slot)
	}
	for _, l := range leases {
		of[l.Slot.Path] = append(of[l.Slot.Path], l)
	}
	for _, id := range slices.Sorted(maps.Keys(of)) {
		j.publisher(of[id])
	}
	j.classify(leases)
	j.peer()
	slices.SortFunc(j.plan.Instances, func(x, y InstancePlan) int {
		return cmp.Or(cmp.Compare(x.Tenant, y.Tenant), cmp.Compare(x.Name, y.Name))
	})
	slices.SortFunc(d.Vports, func(x, y Vport) int { return cmp.Compare(x.ID, y.ID) })
	slices.SortFunc(d.Groups, func(x, y Group) int { return cmp.Compare(x.ID, y.ID) })
	slices.SortFunc(d.Tables, func(x, y Table) int { return cmp.Compare(x.ID, y.ID) })
	slices.SortFunc(d.Paths, func(x, y Path) int { return cmp.Compare(x.ID, y.ID) })
	return &j.plan
}

// peer leads what comes for servers of the other gateway there.
func (j *leaseJoin) peer() {
	d := &j.plan.Datapath
	at := slices.IndexFunc(d.Tables, func(t Table) bool { return t.ID == ClassifierTable(TierTenant) })
	for _, s := range j.plan.PeerLeases {
		if !slices.ContainsFunc(d.Peers, func(p Peer) bool { return p.Node == s.Peer }) {
			continue
		}
		d.Vports = append(d.Vports, Vport{ID: s.Vport, Kind: VportRemote, State: VportUp, Peer: s.Peer})
		groups, tables := s.Server()
		d.Groups = append(d.Groups, groups...)
		name := s.Peer + "/" + LeaseInstance
		d.Paths = append(d.Paths, Path{ID: s.Path, Chain: name, Tenant: OperatorTenant, Elements: []string{name},
			MTU: smaller(leaseMTU, s.MTU)})
		for _, a := range s.Serves {
			m := Match{Dst: []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}}
			d.Tables[at].Rules = append(d.Tables[at].Rules, s.ToServer(m))
		}
		d.Tables = append(d.Tables, tables...)
	}
}

// leaseJoin is a plan that leases are put into.
type leaseJoin struct{ plan NodePlan }

// LeaseInstance is the name of the instance of a publisher's leases.
const LeaseInstance = "leases"

// leaseMTU is that of frames to engines, and so of what they are given.
const leaseMTU = 1500

// publisher adds the engine of one, with vport, path, groups and tables.
func (j *leaseJoin) publisher(own []LocalLease) {
	first, d := own[0], &j.plan.Datapath
	slot, name := first.Slot, first.Publisher
	spec := engineOf(own)
	j.plan.Instances = append(j.plan.Instances, InstancePlan{
		Name: LeaseInstance, Tenant: name, Deployment: LeaseInstance, Function: name + "/" + LeaseInstance, UID: LeaseInstance,
		Spec: spec, Vport: slot.Vport, Addresses: slot.Addresses, Serves: slot.Serves, MTU: leaseMTU,
	})
	v := Vport{
		ID: slot.Vport, Kind: VportInstance, State: VportUp, Instance: name + "/" + LeaseInstance, Tenant: name,
		MAC: InstanceMAC(slot.Vport), HostMAC: HostMAC(slot.Vport), Attach: Routed, Packets: spec.Packets, MaxFlows: first.MaxFlows,
		Tells: true, Routes: true, Entry: d.Edge.Vport, Emit: EmitTableOf(slot.Vport),
	}
	for _, a := range slot.Addresses {
		v.Own = append(v.Own, a.Addr())
		if a.Addr().Is4() {
			d.Edge.NAT = append(d.Edge.NAT, netip.PrefixFrom(a.Addr(), a.Addr().BitLen()))
		}
	}
	d.Vports = append(d.Vports, v)
	emit := Table{ID: v.Emit, Miss: Action{Kind: ActionDrop, Reason: DropSpoofed}}
	for i := range own {
		for _, m := range own[i].Served() {
			do := Action{Kind: ActionTable, Table: TableOf(slot.Path, leaseServer, true)}
			emit.Rules = append(emit.Rules, Rule{Match: m.answers(), Action: do, Path: slot.Path, Reverse: true})
		}
	}
	for _, reverse := range []bool{false, true} {
		then := TableOf(slot.Path, 0, reverse)
		d.Groups = append(d.Groups, slot.group(0, reverse, NoneBypass))
		d.Tables = append(d.Tables, Table{ID: then, Miss: Action{Kind: ActionExit}})
		for i := range own {
			if !own[i].ServesOnly {
				emit.Rules = append(emit.Rules, own[i].rule(reverse, Action{Kind: ActionTable, Table: then}))
			}
		}
	}
	if slices.ContainsFunc(own, func(l LocalLease) bool { return len(l.Serves) > 0 }) {
		groups, tables := slot.Server()
		d.Groups, d.Tables = append(d.Groups, groups...), append(d.Tables, tables...)
	}
	d.Tables = append(d.Tables, emit)
	d.Paths = append(d.Paths, Path{
		ID: slot.Path, Chain: name + "/" + LeaseInstance, Tenant: name, MTU: smaller(leaseMTU, slot.MTU),
		Began: first.Since, Adopt: DefaultAdopt,
		Elements: []string{name + "/" + LeaseInstance}, MaxFlows: first.MaxFlows,
	})
}

// leaseServer is the element of a slot's path at which its modules serve. At element 0 they
// stand in the way of packets to others.
const leaseServer = 1

func (s *LeaseSlot) group(element int, reverse bool, none None) Group {
	return Group{
		ID: GroupOf(s.Path, element, reverse), Path: s.Path, Reverse: reverse, Mode: ModeInline,
		Members: []Member{{Vport: s.Vport, Key: uint32(s.Vport), Weight: 1}},
		Then:    TableOf(s.Path, element, reverse), Back: TableOf(s.Path, element, !reverse), Lost: LostRepick, None: none,
	}
}

// Server is the end of the slot's path at its engine: what comes to a server goes no further,
// and what it answers goes back.
func (s *LeaseSlot) Server() ([]Group, []Table) {
	return []Group{s.group(leaseServer, false, NoneDrop), s.group(leaseServer, true, NoneDrop)}, []Table{
		{ID: TableOf(s.Path, leaseServer, false), Miss: Action{Kind: ActionDrop, Reason: DropPolicy}},
		{ID: TableOf(s.Path, leaseServer, true), Miss: Action{Kind: ActionExit}},
	}
}

// ToServer is what begins the slot's path for packets of a match.
func (s *LeaseSlot) ToServer(m Match) Rule {
	return Rule{Match: m, Action: Action{Kind: ActionGroup, Group: GroupOf(s.Path, leaseServer, false)}, Path: s.Path}
}

func smaller(a, b int) int {
	if b == 0 {
		return a
	}
	return min(a, b)
}

func (l *LocalLease) rule(reverse bool, do Action) Rule {
	m := l.Forward()
	if reverse {
		m = l.Reversed()
	}
	return Rule{Match: m, Action: do, Path: l.Slot.Path, Reverse: reverse}
}

// classify puts the leases' rules behind those of all chains.
func (j *leaseJoin) classify(leases []LocalLease) {
	d := &j.plan.Datapath
	tenants := ClassifierTable(TierTenant)
	if d.Edge.Table == 0 {
		d.Edge.Table = tenants
	}
	at := slices.IndexFunc(d.Tables, func(t Table) bool { return t.ID == tenants })
	if at < 0 {
		d.Tables = append(d.Tables, Table{ID: tenants, Miss: Action{Kind: ActionExit}})
		at = len(d.Tables) - 1
	}
	t := &d.Tables[at]
	t.Rules = slices.Clone(t.Rules)
	for i := range leases {
		for _, m := range leases[i].Served() {
			t.Rules = append(t.Rules, leases[i].Slot.ToServer(m))
		}
	}
	for _, reverse := range []bool{false, true} {
		for i := range leases {
			if l := &leases[i]; !l.ServesOnly {
				t.Rules = append(t.Rules, l.rule(reverse, Action{Kind: ActionGroup, Group: GroupOf(l.Slot.Path, 0, reverse)}))
			}
		}
	}
}

// engineOf is the function that runs all modules of a publisher.
func engineOf(own []LocalLease) FunctionSpec {
	w := &WasmSpec{Outbound: OutboundNAT, Disk: LeaseDisk}
	f := Function{Spec: FunctionSpec{Wasm: w, State: StateNone, Packets: PacketsOriginate}}
	for i := range own {
		l := &own[i]
		s := Selector{Protocol: l.Protocol, Destinations: l.To}
		if l.Port != 0 {
			s.DestinationPorts = []PortRange{{First: l.Port, Last: l.Port}}
		}
		if l.ServesOnly { // what comes there goes to the kernel's stack
			s.Destinations = nil
			for _, a := range l.Addresses {
				s.Destinations = append(s.Destinations, Prefix{netip.PrefixFrom(a, a.BitLen())})
			}
		}
		w.Modules = append(w.Modules, WasmModule{
			Name: l.Name, Module: l.URL, Code: l.Code, Select: []Selector{s}, Ports: l.Serves, Config: configOf(l.Properties),
			Fetch: l.Fetch, None: NoneBypass,
		})
		f.Spec.Resources = f.Spec.Resources.Add(l.Resources())
	}
	f.Metadata.Name, f.Metadata.Tenant = LeaseInstance, own[0].Publisher
	_ = f.Validate() // for defaults; what was admitted is valid
	return f.Spec
}

func configOf(properties []string) Env {
	env := Env{}
	for _, p := range properties {
		k, v, _ := strings.Cut(p, "=")
		env[k] = v
	}
	return env
}

// leases reports whether a vport is reserved for leases.
func (p *NodePlan) leases(v VportID) bool {
	return p.Leases != nil && slices.ContainsFunc(p.Leases.Slots, func(s LeaseSlot) bool { return s.Vport == v })
}
