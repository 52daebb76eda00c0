package verify

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/onpath/onpath"
)

// leases proves for each publisher with leases that serve: what comes for a server, at
// whichever gateway, is led to the publisher's engine and to nothing else.
func (c *checker) leases() (out []onpath.ChainVerification) {
	held := map[string][]onpath.LocalLease{} // by node
	for _, o := range c.in.Objects {
		l, ok := o.(*onpath.Lease)
		if !ok {
			continue
		}
		one := onpath.LocalLease{LeaseSpec: l.Spec, Name: l.Metadata.Name}
		if p := c.in.Plans[l.Spec.Node]; p != nil && p.Leases != nil {
			i := slices.IndexFunc(p.Leases.Slots, func(s onpath.LeaseSlot) bool { return s.Vport == l.Spec.Vport })
			if i >= 0 {
				one.Slot = p.Leases.Slots[i]
			}
		}
		held[l.Spec.Node] = append(held[l.Spec.Node], one)
	}
	results := map[string]*onpath.ChainVerification{}
	for _, n := range c.res.nodes {
		node := n.Metadata.Name
		for _, l := range held[node] {
			if len(l.Serves) == 0 {
				continue
			}
			name := l.Publisher + "/" + onpath.LeaseInstance
			r := results[name]
			if r == nil {
				r = &onpath.ChainVerification{Chain: name, Verdict: onpath.VerdictProved, Scope: onpath.ScopeEndToEnd,
					Segments: []string{"entry → " + name}}
				results[name] = r
			}
			c.serves(r, &l, n.Spec.Cloudlet, held)
		}
	}
	for _, r := range results {
		if len(c.in.Chains) == 0 || slices.Contains(c.in.Chains, r.Chain) {
			out = append(out, *r)
		}
	}
	slices.SortFunc(out, func(a, b onpath.ChainVerification) int { return cmp.Compare(a.Chain, b.Chain) })
	return out
}

// serves follows what comes for one lease's servers from each gateway in use.
func (c *checker) serves(r *onpath.ChainVerification, l *onpath.LocalLease, cloudlet string, held map[string][]onpath.LocalLease) {
	used, _ := c.res.gateways(cloudlet)
	if len(used) == 0 {
		unproven(r, "cloudlet "+cloudlet+" has no gateway in use")
	}
	if l.Slot.Path == 0 || !slices.Equal(l.Slot.Serves, l.Addresses) {
		unproven(r, fmt.Sprintf("node %s has no plan that lends %v to the publisher", l.Node, l.Addresses))
		return
	}
	for _, g := range used {
		for _, node := range []string{g, l.Node} {
			if why := c.in.NoReport[node]; why != "" {
				unproven(r, fmt.Sprintf("node %s cannot be asked: %s", node, why))
			}
		}
		for _, u := range c.in.Unsteered[g] {
			unproven(r, fmt.Sprintf("gateway %s: %s", g, u.Message))
		}
		p := c.in.Plans[g]
		if p == nil {
			unproven(r, "the plan of gateway "+g+" is not known")
			continue
		}
		joined := p.WithLeases(held[g])
		for _, m := range l.Served() {
			r.Classes++
			if why := ledTo(joined, l, m); why != "" && r.Verdict != onpath.VerdictRefuted {
				r.Verdict, r.Reason = onpath.VerdictRefuted, ""
				r.Counterexample = &onpath.Counterexample{Tuple: tupleTo(&m), Entry: g, Message: why, Promised: []string{r.Chain}}
			}
		}
	}
}

func unproven(r *onpath.ChainVerification, why string) {
	if r.Verdict == onpath.VerdictProved {
		r.Verdict, r.Reason = onpath.VerdictUnproven, why
	}
}

func tupleTo(m *onpath.Match) onpath.Tuple {
	from := netip.MustParseAddr("192.0.2.1")
	if m.Dst[0].Addr().Is6() {
		from = netip.MustParseAddr("2001:db8::1")
	}
	return onpath.Tuple{Protocol: m.Protocol[0], Src: from, SrcPort: 50000, Dst: m.Dst[0].Addr(), DstPort: m.DstPorts[0].First}
}

// ledTo says why not all that comes for a server at a node's edge is led to the engine.
func ledTo(p *onpath.NodePlan, l *onpath.LocalLease, m onpath.Match) string {
	d := &p.Datapath
	if d.Edge == nil {
		return "the gateway has no edge"
	}
	want := l.Slot.ToServer(m).Action
	for id, steps := d.Edge.Table, 0; steps < 4; steps++ {
		t := tableOf(d, id)
		if t == nil {
			return fmt.Sprintf("table %d is missing", id)
		}
		for i := range t.Rules {
			switch r := &t.Rules[i]; {
			case !r.Match.Overlaps(&m):
			case r.Action == want:
				return endsAt(d, l)
			default:
				return fmt.Sprintf("some of it is taken for path %d of chain %q", r.Path, chainIn(d, r.Path))
			}
		}
		if t.Miss.Kind != onpath.ActionTable {
			break
		}
		id = t.Miss.Table
	}
	return "no rule leads to its engine"
}

// endsAt says why what a lease's group is given does not end at its engine.
func endsAt(d *onpath.DatapathConfig, l *onpath.LocalLease) string {
	groups, tables := l.Slot.Server()
	for _, want := range groups {
		i := slices.IndexFunc(d.Groups, func(g onpath.Group) bool { return g.ID == want.ID })
		if i < 0 || !slices.Equal(d.Groups[i].Members, want.Members) || d.Groups[i].None != onpath.NoneDrop {
			return fmt.Sprintf("group %d does not lead to its engine", want.ID)
		}
	}
	for _, want := range tables {
		if t := tableOf(d, want.ID); t == nil || len(t.Rules) > 0 || t.Miss != want.Miss {
			return fmt.Sprintf("table %d, behind its engine, does not end the way", want.ID)
		}
	}
	i := slices.IndexFunc(d.Vports, func(v onpath.Vport) bool { return v.ID == l.Slot.Vport })
	if i < 0 || d.Vports[i].Kind == onpath.VportRemote && d.Vports[i].Peer != l.Node || d.Vports[i].State != onpath.VportUp {
		return fmt.Sprintf("vport %d is not its engine's", l.Slot.Vport)
	}
	return ""
}

func tableOf(d *onpath.DatapathConfig, id onpath.TableID) *onpath.Table {
	for i := range d.Tables {
		if d.Tables[i].ID == id {
			return &d.Tables[i]
		}
	}
	return nil
}

func chainIn(d *onpath.DatapathConfig, id onpath.PathID) string {
	for i := range d.Paths {
		if d.Paths[i].ID == id {
			return d.Paths[i].Chain
		}
	}
	return ""
}
