package plan

import (
	"cmp"
	"slices"

	"github.com/onpath/onpath"
)

// The matrix of weights. An instance on a node sends what it emits on from there, so a
// node has the rows of its own instances, and of nobody else's.

// weightRows are the rows of a group of a path, whose members are filled in. A row is zero
// exactly where the member's own weight is zero. So rows change shares of flows, and never
// which members get flows.
func (b *builder) weightRows(p *path, g *onpath.Group) (rows []onpath.WeightRow) {
	_, k, reverse := g.ID.Split()
	if len(g.Members) == 0 || k >= len(p.deps) {
		return nil
	}
	var froms []uint32
	var weigh func(from uint32, m onpath.Member) uint32
	switch {
	case p.present && p.chain.distributes(k):
		froms, weigh = b.networkRows(p, k, reverse)
	case p.present:
		froms, weigh = b.declaredRows(p, k, reverse)
	default:
		froms, weigh = b.carriedRows(g)
	}
	for _, from := range froms {
		if b.rows == onpath.MaxWeightRows {
			break // so many only while instances are replaced: the members' own weights will do
		}
		row := onpath.WeightRow{From: from, Weights: make([]uint32, len(g.Members))}
		for j, m := range g.Members {
			if row.Weights[j] = m.Weight; m.Weight > 0 {
				row.Weights[j] = weigh(from, m)
			}
		}
		rows = append(rows, row)
		b.rows++
	}
	slices.SortFunc(rows, func(x, y onpath.WeightRow) int { return cmp.Compare(x.From, y.From) })
	return rows
}

// declaredRows are the instances on this node from which packets come to element k of a
// chain: of elements before, or, reversed, behind; and what its members then weigh.
func (b *builder) declaredRows(p *path, k int, reverse bool) (froms []uint32, weigh func(uint32, onpath.Member) uint32) {
	to, ok := p.chain.elements[k].weightsFrom[b.n.name]
	if !ok {
		return nil, nil
	}
	at := map[uint32]string{} // nodes of members
	for _, i := range b.w.instancesOf(b.n.c, p.deps[k]) {
		at[i.obj.Spec.Key] = i.node.name
	}
	for _, j := range p.chain.sources(k, reverse) {
		for _, i := range b.local {
			if i.dep == p.deps[j] {
				froms = append(froms, i.obj.Spec.Key)
			}
		}
	}
	return froms, func(_ uint32, m onpath.Member) uint32 {
		if v, ok := to[at[m.Key]]; ok {
			return uint32(v)
		}
		return m.Weight
	}
}

// carriedRows are the rows that the node already has of the group, without those of
// instances that are gone. So a path that ends shares its flows as before.
func (b *builder) carriedRows(g *onpath.Group) (froms []uint32, weigh func(uint32, onpath.Member) uint32) {
	if b.n.newest == nil {
		return nil, nil
	}
	had := b.n.newest.groups[g.ID]
	if had == nil {
		return nil, nil
	}
	weights := map[[2]uint32]uint32{}
	for _, r := range had.Weights {
		if !slices.ContainsFunc(b.local, func(i *instance) bool { return i.obj.Spec.Key == r.From }) {
			continue
		}
		froms = append(froms, r.From)
		for j, m := range had.Members {
			weights[[2]uint32{r.From, m.Key}] = r.Weights[j]
		}
	}
	return froms, func(from uint32, m onpath.Member) uint32 {
		return max(weights[[2]uint32{from, m.Key}], 1)
	}
}

// sources are the elements from whose instances packets come to element k in a direction,
// but for those that are skipped by select, and for operators' before. Mirrors and ebpf
// functions are passed in place.
func (c *chain) sources(k int, reverse bool) (list []int) {
	for _, j := range following(k, len(c.elements), !reverse) {
		e := &c.elements[j]
		if !e.mirror() && !e.inline() {
			list = append(list, j)
			if len(e.sel) == 0 {
				break // takes all: nothing comes past it
			}
		}
	}
	return list
}

// weightRows is how many rows the chain's weights come to in a cloudlet at most.
func (c *chain) weightRows() (n int) {
	for k := range c.elements {
		if len(c.elements[k].weightsFrom) == 0 && !c.distributes(k) {
			continue
		}
		for _, reverse := range []bool{false, true} {
			for _, j := range c.sources(k, reverse) {
				if d := c.elements[j].d; d != nil {
					n += min(d.want, onpath.MaxMembers)
				}
			}
		}
	}
	return n
}
