package pool

import (
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan"
	"github.com/onpath/onpath/plan/calendar"
	"github.com/onpath/onpath/plan/near"
)

// promises are what nodes and tenants have promised over time, and what is known of nodes and
// cloudlets.
type promises struct {
	cal       *calendar.Calendar
	tenants   *calendar.Calendar // what each tenant has promised, a "node" for each cloudlet
	nodes     map[string]Node
	cloudlets map[string]Cloudlet
	near      near.Map             // of cloudlets
	orders    map[string][]string  // of cloudlets by distance, from one of them
	observed  bool                 // nodes are known
	refused   map[string]time.Time // when nodes did not confirm
	displaced displaced
	relief    relief
}

func newPromises() promises {
	return promises{cal: calendar.New(), tenants: calendar.New(), nodes: map[string]Node{}, cloudlets: map[string]Cloudlet{},
		refused: map[string]time.Time{}, displaced: displaced{}, relief: newRelief()}
}

// clear leaves what is read from the store empty.
func (p *promises) clear() { p.cal, p.tenants = calendar.New(), calendar.New() }

// takeUp takes up what is known of nodes and cloudlets, and names the nodes that are new.
func (p *promises) takeUp(nodes []Node, cloudlets map[string]Cloudlet, now time.Time) (fresh []string) {
	p.cloudlets, p.near, p.orders, p.observed = cloudlets, nil, nil, true
	seen := make(map[string]bool, len(nodes))
	for _, n := range nodes {
		seen[n.Name] = true
		if _, known := p.nodes[n.Name]; !known {
			fresh = append(fresh, n.Name)
		}
		p.nodes[n.Name] = n
		p.setRoom(n, now)
	}
	for name, n := range p.nodes {
		if !seen[name] {
			if n.Usable, n.Gone, n.removed = false, true, true; n.Since.IsZero() {
				n.Since = now
			}
			p.nodes[name] = n
			p.setRoom(n, now)
		}
	}
	return fresh
}

// setRoom has what is known of a node say what may be promised of it.
func (p *promises) setRoom(n Node, now time.Time) {
	room := atLeastNothing(plan.TenantsPart(n.Capacity, p.cloudlets[n.Cloudlet].Share).Sub(n.Taken))
	if was, _, _ := p.cal.Room(n.Name); was != room {
		p.relief.look[n.Name] = true
	}
	at, refused := p.refused[n.Name]
	if refused && now.Sub(at) > refusal {
		delete(p.refused, n.Name)
		refused = false
	}
	p.cal.SetNode(n.Name, n.Cloudlet, room, n.Usable && !refused)
}

// refusal is how long a node that did not confirm is passed over.
const refusal = 5 * time.Second

func atLeastNothing(r onpath.Resources) onpath.Resources {
	return onpath.Resources{CPU: max(r.CPU, 0), Memory: max(r.Memory, 0), Disk: max(r.Disk, 0), Network: max(r.Network, 0)}
}

// refuse passes a node over for a while that did not confirm.
func (p *promises) refuse(node string, now time.Time) {
	if n, ok := p.nodes[node]; ok {
		p.refused[node] = now
		p.setRoom(n, now)
	}
}

// tryRefused has nodes be chosen again that did not confirm a while ago.
func (p *promises) tryRefused(now time.Time) {
	for name := range p.refused {
		p.setRoom(p.nodes[name], now)
	}
}

// requestsOf is what nodes are asked to confirm that promise more by decisions than before.
func (p *promises) requestsOf(held []*decision, now time.Time) map[string]onpath.PromiseRequest {
	asks := map[string]onpath.PromiseRequest{}
	for _, d := range held {
		for _, x := range append([]*decision{d}, d.moved...) {
			for _, name := range x.confirm {
				n := p.nodes[name]
				asks[name] = onpath.PromiseRequest{Promised: p.cal.Peak(name, now, calendar.Forever).Add(n.Taken), Declared: n.Declared}
			}
		}
	}
	return asks
}

func nodesOf(r *onpath.Reservation) []string {
	var out []string
	for _, x := range r.Status.Places {
		out = append(out, x.Node)
		if x.Leaving != "" {
			out = append(out, x.Leaving)
		}
	}
	return unique(out)
}

// reservedBy is the most that a tenant has reserved at an instant from now on, in all cloudlets
// together, part by part.
func (p *promises) reservedBy(tenant string, now time.Time) onpath.Resources {
	return p.tenants.Peak(tenantNode(tenant, ""), now, calendar.Forever)
}

// tenantsTotal is what there is in a cloudlet less the operator's share, by which tenants'
// shares are reckoned.
func (p *promises) tenantsTotal(cloudlet string) (sum onpath.Resources) {
	for _, name := range p.cal.Nodes(cloudlet) {
		n := p.nodes[name]
		sum = sum.Add(plan.TenantsPart(n.Capacity, p.cloudlets[cloudlet].Share))
	}
	return sum
}

// Reserved is the most that a tenant has reserved at an instant from now on.
func (p *Pool) Reserved(tenant string) (most onpath.Resources) {
	p.queue.look(func(s *state) { most = s.promises.reservedBy(tenant, s.clock()) })
	return most
}

// Capacity is what nodes have promised between two times; cloudlet "": all.
func (p *Pool) Capacity(cloudlet string, from, until time.Time) (v onpath.CapacityView, err error) {
	p.queue.look(func(s *state) { v, err = s.promises.describe(cloudlet, from, until, s.clock()) })
	return v, err
}

func (p *promises) describe(cloudlet string, from, until, now time.Time) (onpath.CapacityView, error) {
	if from.IsZero() {
		from = now
	}
	if until.IsZero() {
		until = from.Add(24 * time.Hour)
	}
	v := onpath.CapacityView{From: from, Until: until, Nodes: []onpath.NodeCapacity{}}
	if !from.Before(until) {
		return v, onpath.Errorf(onpath.CodeInvalid, "%s is not before %s", text(from), text(until))
	}
	if _, ok := p.cloudlets[cloudlet]; cloudlet != "" && !ok {
		return v, onpath.Errorf(onpath.CodeNotFound, "there is no cloudlet %s", cloudlet)
	}
	for _, cl := range sortedKeys(p.cloudlets) {
		if cloudlet != "" && cl != cloudlet {
			continue
		}
		for _, name := range p.cal.Nodes(cl) {
			v.Nodes = append(v.Nodes, p.describeNode(name, cl, from, until))
		}
	}
	return v, nil
}

func (p *promises) describeNode(name, cloudlet string, from, until time.Time) onpath.NodeCapacity {
	n := p.nodes[name]
	share := n.Capacity.Sub(plan.TenantsPart(n.Capacity, p.cloudlets[cloudlet].Share)) // as the planner counts it
	c := onpath.NodeCapacity{Node: name, Cloudlet: cloudlet, Usable: n.Usable, Total: n.Capacity, Share: share}
	for _, s := range p.cal.Steps(name, from, until) {
		promised := s.Promised.Add(n.Taken)
		c.Steps = append(c.Steps, onpath.CapacityStep{At: s.At, Promised: promised,
			Free: atLeastNothing(n.Capacity.Sub(share).Sub(promised))})
	}
	return c
}
