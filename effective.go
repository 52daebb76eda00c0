package onpath

import (
	"cmp"
	"slices"
)

// LocalState is what a node knows, by itself and later than its plan, of what its data
// path leads to.
type LocalState struct {
	// Vports are those of the node's own instances.
	Vports map[VportID]LocalVport
	// Functions are ready to be linked; those whose vport the plan does not have are left
	// out.
	Functions []InlineFunction
	// Peers are other nodes, by name; of one that is not here the plan's word holds.
	Peers map[string]PeerState
	// RefusedUplinks cannot be used, by name.
	RefusedUplinks map[string]bool
	// UplinkDevices are the devices of uplinks whose plan has another name for them, by
	// name.
	UplinkDevices map[string]string
	// Exempt stand before the rules of the edge, if an uplink carries the machine's own
	// traffic.
	Exempt []Rule
	// Leases are those that the node has admitted.
	Leases []LocalLease
}

// LocalVport is how a vport of this node is.
type LocalVport struct {
	Wired bool // its device exists
	Open  bool // its instance takes packets
	// Asleep: its program does not run; packets start it.
	Asleep bool
	// Full: its instance keeps its flows and should get no new ones.
	Full bool
}

// PeerState is what another node's data path says, or does not.
type PeerState struct {
	Lost   bool // it does not answer
	Closed map[VportID]bool
}

// Effective is the plan's data path as the node can carry it now: without instance vports
// that have no device, which missing names; closed where an instance, or another node's,
// does not take packets; without uplinks that cannot be used; with the node's own leases,
// whose vports are never missing. The plan is not changed, and shares with the result what
// is the same.
func Effective(plan *NodePlan, l *LocalState) (c *DatapathConfig, missing []VportID) {
	plan = plan.WithLeases(l.Leases)
	all := plan.Datapath // slices are replaced below, never written
	choice := all.Choice()
	all.Vports, all.Functions = nil, slices.Clone(all.Functions)
	gone := map[VportID]bool{}
	for _, v := range plan.Datapath.Vports {
		switch v.Kind {
		case VportRemote:
			if p := l.Peers[v.Peer]; choice[v.ID] && (p.Lost || p.Closed[v.ID]) {
				v.State, v.Away = VportClosed, p.Lost
			}
		case VportInstance:
			if !l.Vports[v.ID].Wired {
				gone[v.ID] = true
				if !plan.leases(v.ID) {
					missing = append(missing, v.ID)
				}
				continue
			}
			if !v.Alone {
				v.State = localState(&plan.Datapath, v.State, l.Vports[v.ID])
			}
			v.Asleep = v.Hold > 0 && l.Vports[v.ID].Asleep
		case VportFunction:
			v.State = localState(&plan.Datapath, v.State, l.Vports[v.ID])
			if i := slices.IndexFunc(l.Functions, func(f InlineFunction) bool { return f.Vport == v.ID }); i >= 0 {
				all.Functions = append(all.Functions, l.Functions[i])
			}
		}
		all.Vports = append(all.Vports, v)
	}
	slices.SortFunc(all.Functions, func(x, y InlineFunction) int { return cmp.Compare(x.Vport, y.Vport) })
	all.Groups = withoutMembers(plan.Datapath.Groups, gone)
	if e := plan.Datapath.Edge; e != nil {
		edge := *e
		edge.Uplinks = slices.DeleteFunc(slices.Clone(e.Uplinks), func(u Uplink) bool { return l.RefusedUplinks[u.Name] })
		for i := range edge.Uplinks {
			u := &edge.Uplinks[i]
			u.Device = cmp.Or(l.UplinkDevices[u.Name], u.Device)
		}
		all.Edge = &edge
		all.exempt(l.Exempt)
	}
	return &all, missing
}

// localState is the state of a vport of this node. One that is open where the plan has it
// closed was opened after the plan was made. Other nodes may learn it from the server
// before this one does, and send. Flows of a node without uplinks leave elsewhere, where
// answers to what the instance sends are not taken before the plan has come there: such a
// vport takes what others send, but is not chosen here yet.
func localState(c *DatapathConfig, planned VportState, is LocalVport) VportState {
	switch {
	case !is.Open:
		return VportClosed
	case is.Full:
		return VportDraining
	case planned != VportClosed:
		return planned
	case c.Edge == nil:
		return VportDraining
	}
	return VportUp
}

// Choice are the vports among which there is a choice: members of groups, and edges that
// another stands in for.
func (c *DatapathConfig) Choice() map[VportID]bool {
	choice := map[VportID]bool{}
	for i := range c.Groups {
		for _, m := range c.Groups[i].Members {
			choice[m.Vport] = true
		}
	}
	for i := range c.Vports {
		if v := &c.Vports[i]; v.Backup != 0 {
			choice[v.ID] = true
		}
	}
	return choice
}

// CarriesHost reports whether an uplink carries the machine's own traffic.
func (e *Edge) CarriesHost() bool {
	return e != nil && slices.ContainsFunc(e.Uplinks, func(u Uplink) bool { return u.Attach == AttachHost })
}

// exempt puts rules before those of the edge's table, where they are needed.
func (c *DatapathConfig) exempt(rules []Rule) {
	at := slices.IndexFunc(c.Tables, func(t Table) bool { return t.ID == c.Edge.Table })
	if at < 0 || c.Edge.Table == 0 || len(rules) == 0 || !c.Edge.CarriesHost() {
		return
	}
	c.Tables = slices.Clone(c.Tables)
	t := &c.Tables[at]
	t.Rules = slices.Concat(rules, t.Rules)
}

// withoutMembers is groups less the members whose vport has no device: a driver need not
// know of members that lead nowhere.
func withoutMembers(groups []Group, gone map[VportID]bool) []Group {
	if len(gone) == 0 {
		return groups
	}
	out := slices.Clone(groups)
	for i, g := range out {
		out[i].Members = slices.DeleteFunc(slices.Clone(g.Members), func(m Member) bool { return gone[m.Vport] })
		out[i].Weights = nil
		for _, row := range g.Weights {
			r := WeightRow{From: row.From}
			for j, m := range g.Members {
				if !gone[m.Vport] {
					r.Weights = append(r.Weights, row.Weights[j])
				}
			}
			out[i].Weights = append(out[i].Weights, r)
		}
	}
	return out
}
