package plan

import (
	"cmp"
	"slices"

	"github.com/onpath/onpath"
)

// The matrix of weights. An instance on a node sends what it emits on from there, so a
// node has the rows of its own instances, and of nobody else's.

// weightRows are the rows of a group of element k, for those instances on this node from
// which packets come to it: of elements before, or, reversed, behind. No row gives anything
// to a member of weight 0, nor nothing to one that has more, so whoever is served by a
// row would be served without it.
func (b *builder) weightRows(p *path, k int, reverse bool, members []onpath.Member) (rows []onpath.WeightRow) {
	if p.weightsFrom == nil || k >= len(p.deps) || len(p.weightsFrom[k]) == 0 || len(members) == 0 {
		return nil
	}
	to, ok := p.weightsFrom[k][b.n.name]
	if !ok {
		return nil
	}
	at := map[uint32]string{} // nodes of members
	for _, i := range b.w.instancesOf(b.n.c, p.deps[k]) {
		at[i.obj.Spec.Key] = i.node.name
	}
	weights := make([]uint32, len(members))
	for j, m := range members {
		weights[j] = m.Weight
		if v, ok := to[at[m.Key]]; ok && m.Weight > 0 {
			weights[j] = uint32(v)
		}
	}
	for _, j := range sources(k, len(p.deps), reverse) {
		if p.chain.elements[j].mirror() {
			continue
		}
		for _, i := range b.local {
			if i.dep != p.deps[j] || b.rows == onpath.MaxWeightRows {
				continue // so many only while instances are replaced: the members' own weights will do
			}
			rows = append(rows, onpath.WeightRow{From: i.obj.Spec.Key, Weights: weights})
			b.rows++
		}
	}
	slices.SortFunc(rows, func(x, y onpath.WeightRow) int { return cmp.Compare(x.From, y.From) })
	return rows
}

// sources are the elements that packets may come from to element k in a direction.
func sources(k, n int, reverse bool) []int {
	return following(k, n, !reverse)
}

// weightRows is how many rows the chain's weights come to in a cloudlet.
func (c *chain) weightRows() (n int) {
	for k := range c.elements {
		if len(c.elements[k].weightsFrom) == 0 {
			continue
		}
		for j := range c.elements {
			if e := &c.elements[j]; j != k && !e.mirror() && e.d != nil {
				n += min(e.d.want, onpath.MaxMembers)
			}
		}
	}
	return n
}
