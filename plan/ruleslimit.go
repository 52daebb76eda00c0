package plan

import (
	"slices"

	"github.com/onpath/onpath"
)

// checkRules refuses chains with more rules than a data path holds: by
// themselves, and together with those that came before in a cloudlet. So a
// tenant's long chain fails by itself, and not the node on which it would be.
func (w *world) checkRules() {
	inOrder := slices.Clone(w.chains)
	slices.SortStableFunc(inOrder, func(a, b *chain) int {
		x, y := w.changed[onpath.KeyOf(a.obj)], w.changed[onpath.KeyOf(b.obj)]
		switch {
		case x && !y:
			return 1
		case y && !x:
			return -1
		}
		return a.obj.Metadata.Created.Compare(b.obj.Metadata.Created)
	})
	type table struct {
		cloudlet string
		tier     onpath.Tier
	}
	used := map[table]int{}
	for _, c := range inOrder {
		if len(c.errs) > 0 || c.obj.Spec.Disabled {
			continue
		}
		n := plainRules(c.forward) + plainRules(c.reverse)
		if n > onpath.MaxChainRules {
			c.fail(onpath.CodeNoRoom, "spec.select", "use fewer or wider prefixes and port ranges, or several chains",
				"the chain has %d rules (prefixes of from × of to × protocols × port ranges, both directions); at most %d are possible", n, onpath.MaxChainRules)
			continue
		}
		for _, cl := range c.cloudlets {
			if t := (table{cl, c.tier}); used[t]+n > onpath.MaxTableRules {
				c.fail(onpath.CodeNoRoom, "spec.select", "use fewer or wider prefixes and port ranges, or another cloudlet",
					"the chain has %d rules, and cloudlet %s has %d of at most %d already", n, cl, used[t], onpath.MaxTableRules)
				break
			}
		}
		if len(c.errs) > 0 {
			continue
		}
		for _, cl := range c.cloudlets {
			used[table{cl, c.tier}] += n
		}
	}
}

// plainRules counts what a data path makes of matches: one prefix a side, one
// protocol and one range a port each.
func plainRules(list []onpath.Match) int {
	n := 0
	for i := range list {
		n = min(n+list[i].PlainRules(), onpath.MaxTableRules+1)
	}
	return n
}
