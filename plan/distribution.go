package plan

import (
	"cmp"
	"math/big"
	"slices"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/distribute"
)

// Flows between neighbouring elements are split by rack where a chain says
// distribution: network and nobody wrote weightsFrom (Stratos §4.2).

// hopBetween names the flows from one element of a path to a later one, in a cloudlet.
type hopBetween struct {
	c        *cloudlet
	path     onpath.PathID
	from, to int
}

// split is how the flows between two elements are split: by the keys of the instances
// they come from, the weights of those that they go to.
type split struct{ forward, reverse map[uint32]map[uint32]uint32 }

// distributes reports whether the flows to element k are split by rack.
func (c *chain) distributes(k int) bool {
	e := &c.elements[k]
	return c.obj.Spec.Distribution == onpath.DistributionNetwork && len(e.weightsFrom) == 0 && !e.mirror() && !e.inline() &&
		e.together.Apart()
}

// networkRows are the instances on this node from which packets come to element k, and
// what its members weigh for each.
func (b *builder) networkRows(p *path, k int, reverse bool) (froms []uint32, weigh func(uint32, onpath.Member) uint32) {
	rows := map[uint32]map[uint32]uint32{}
	for _, j := range p.chain.sources(k, reverse) {
		to := b.w.split(b.n.c, p, min(j, k), max(j, k))
		for _, i := range b.local {
			if i.dep != p.deps[j] {
				continue
			}
			key, row := i.obj.Spec.Key, to.forward
			if reverse {
				row = to.reverse
			}
			if row[key] != nil {
				froms, rows[key] = append(froms, key), row[key]
			}
		}
	}
	return froms, func(from uint32, m onpath.Member) uint32 { return max(rows[from][m.Key], 1) }
}

// split solves for two elements, once for all nodes of the cloudlet.
func (w *world) split(cl *cloudlet, p *path, from, to int) *split {
	at := hopBetween{cl, p.id, from, to}
	if s := w.splits[at]; s != nil {
		return s
	}
	sends, senders := w.distributed(cl, p, from)
	takes, takers := w.distributed(cl, p, to)
	pair := distribute.Between(sends, takes, nil)
	s := &split{forward: rowsOf(senders, sends, takers, pair.Forward), reverse: rowsOf(takers, takes, senders, pair.Reverse)}
	if w.splits == nil {
		w.splits = map[hopBetween]*split{}
	}
	w.splits[at] = s
	return s
}

// rowsOf are rows by key; instances of a rack share theirs.
func rowsOf(from []*instance, racks []distribute.Instance, to []*instance, row func(int) []uint32) map[uint32]map[uint32]uint32 {
	rows, byRack := map[uint32]map[uint32]uint32{}, map[string]map[uint32]uint32{}
	for i, x := range from {
		r, ok := byRack[racks[i].Rack]
		if !ok {
			if weights := row(i); weights != nil {
				r = map[uint32]uint32{}
				for j, y := range to {
					r[y.obj.Spec.Key] = weights[j]
				}
			}
			byRack[racks[i].Rack] = r
		}
		if r != nil {
			rows[x.obj.Spec.Key] = r
		}
	}
	return rows
}

// distributed are the instances of an element that take new flows, with their shares.
func (w *world) distributed(cl *cloudlet, p *path, k int) (list []distribute.Instance, who []*instance) {
	for _, i := range w.instancesOf(cl, p.deps[k]) {
		if share := p.weight(k, i, nil); i.ready() && !i.draining() && share > 0 {
			who = append(who, i)
		}
	}
	slices.SortFunc(who, func(a, b *instance) int { return cmp.Compare(a.obj.Spec.Key, b.obj.Spec.Key) })
	for _, i := range who {
		list = append(list, distribute.Instance{Rack: i.node.rack(), Share: int64(p.weight(k, i, nil))})
	}
	return list, who
}

// rack is where the node is; one without the label is by itself.
func (n *node) rack() string {
	if r := n.obj.Metadata.Labels[onpath.LabelRack]; r != "" {
		return r
	}
	return "node/" + n.name
}

// crossings compares nodes by the flows that would go from rack to rack with one more
// instance of the deployment there, of all chains that are distributed so (Stratos §5.2).
func (w *rollout) crossings(d *deployment, cl *cloudlet, fit []*node) func(a, b *node) int {
	uses := slices.DeleteFunc(slices.Clone(d.uses), func(u use) bool {
		return u.c.obj.Spec.Distribution != onpath.DistributionNetwork || !slices.Contains(u.c.cloudlets, cl.name)
	})
	if len(uses) == 0 {
		return func(_, _ *node) int { return 0 }
	}
	costs := map[string]*big.Rat{}
	for _, n := range fit {
		if costs[n.rack()] != nil {
			continue
		}
		sum := new(big.Rat)
		for _, u := range uses {
			sum.Add(sum, w.crossing(u, cl, n.rack()))
		}
		costs[n.rack()] = sum
	}
	return func(a, b *node) int { return costs[a.rack()].Cmp(costs[b.rack()]) }
}

// crossing is the part of a chain's flows that would go from rack to rack before and
// behind an element, with one more instance of the element.
func (w *rollout) crossing(u use, cl *cloudlet, rack string) *big.Rat {
	k := slices.IndexFunc(u.c.elements, func(e element) bool { return e.d == u.e.d })
	near := func(list []int) []distribute.Instance {
		if len(list) == 0 {
			return nil
		}
		return w.standing(u.c, cl, list[0])
	}
	return distribute.Place(near(u.c.sources(k, false)), w.standing(u.c, cl, k), near(u.c.sources(k, true)), rack, 1, 1, nil)
}

// standing are an element's instances, ready or not, with those just created.
func (w *rollout) standing(c *chain, cl *cloudlet, k int) (list []distribute.Instance) {
	e := &c.elements[k]
	for _, n := range cl.nodes {
		have := w.created[placedOn{e.dep, n}]
		for _, i := range n.insts {
			if i.dep == e.dep && !i.draining() {
				have++
			}
		}
		share := 1
		if v, ok := e.weights[n.name]; ok {
			share = v
		}
		for range have {
			list = append(list, distribute.Instance{Rack: n.rack(), Share: int64(share)})
		}
	}
	return list
}
