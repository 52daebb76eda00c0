package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/onpath/onpath"
)

// checkRules refuses chains with more rules than a data path holds: by
// themselves, and together with those that came before in a cloudlet. So a
// tenant's long chain fails by itself, and not the node on which it would be.
func (w checker) checkRules() {
	type table struct {
		cloudlet string
		tier     onpath.Tier
		emits    name // of a deployment's instances, with the tier empty
	}
	used := map[table]int{}
	for _, c := range w.inTurn() {
		if len(c.errs) > 0 || c.off() != "" {
			continue
		}
		n := w.ruleCount(c)
		if n > onpath.MaxTableRules {
			c.fail(onpath.CodeNoCapacity, "spec.select", "use fewer or wider prefixes and port ranges, or several chains",
				"the chain has %d rules (prefixes of from × of to × protocols × port ranges, both directions); at most %d are possible",
				n, onpath.MaxTableRules)
			continue
		}
		if c.checkElementRules(); len(c.errs) > 0 {
			continue
		}
		emits := c.sendings()
		for _, cl := range c.cloudlets {
			if t := (table{cloudlet: cl, tier: c.tier}); used[t]+n > onpath.MaxTableRules {
				c.fail(onpath.CodeNoCapacity, "spec.select", "use fewer or wider prefixes and port ranges, or another cloudlet",
					"the chain has %d rules, and cloudlet %s has %d of at most %d already", n, cl, used[t], onpath.MaxTableRules)
				break
			}
			if k := slices.IndexFunc(emits, func(e sending) bool { return used[table{cloudlet: cl, emits: e.dep}]+e.rules > onpath.MaxTableRules }); k >= 0 {
				e := emits[k]
				c.fail(onpath.CodeNoCapacity, e.field, "use fewer or wider prefixes and port ranges, or a deployment for each chain",
					"what instances of deployment %s send is held against %d rules for this chain, and against %d for others in cloudlet %s; at most %d are possible",
					e.dep, e.rules, used[table{cloudlet: cl, emits: e.dep}], cl, onpath.MaxTableRules)
				break
			}
		}
		if len(c.errs) > 0 {
			continue
		}
		for _, cl := range c.cloudlets {
			used[table{cloudlet: cl, tier: c.tier}] += n
			for _, e := range emits {
				used[table{cloudlet: cl, emits: e.dep}] += e.rules
			}
		}
	}
}

// inTurn are the chains in the order in which they get what there is: what is being
// changed comes after what is there, the younger after the older.
func (w checker) inTurn() []*chain {
	list := slices.Clone(w.chains)
	slices.SortStableFunc(list, func(a, b *chain) int {
		return w.turn(a.obj, b.obj)
	})
	return list
}

// turn compares two objects by when they get what there is.
func (w checker) turn(a, b onpath.Object) int {
	if len(w.changed) > 0 {
		if d := boolCompare(w.changed[onpath.KeyOf(a)], w.changed[onpath.KeyOf(b)]); d != 0 {
			return d
		}
	}
	return a.Meta().Created.Compare(b.Meta().Created)
}

// checkElementRules refuses elements that select by more rules than there is room for:
// each table before them in the chain has all of them, in both directions.
func (c *chain) checkElementRules() {
	own := make([]int, len(c.elements))
	most := 0
	for k := range c.elements {
		if own[k] = c.elements[k].selectRules(); own[k] > own[most] {
			most = k
		}
	}
	total := 0
	for i := range len(own) + 1 {
		at := i
		if i == len(own) {
			at = start
		}
		for _, reverse := range []bool{false, true} {
			for _, j := range following(at, len(own), reverse) {
				if total += own[j]; len(c.elements[j].sel) == 0 {
					break
				}
			}
		}
	}
	if total > onpath.MaxChainRules {
		c.fail(onpath.CodeNoCapacity, fmt.Sprintf("spec.through[%d].select", most),
			"use fewer or wider prefixes and port ranges, or several chains",
			"the elements of the chain select by more than %d rules (sources × destinations × protocols × port ranges, once for each place before the element, both directions), this one by most of them",
			onpath.MaxChainRules)
	}
}

// selectRules counts the plain rules by which the element is chosen; 0: it takes all.
func (e *element) selectRules() int {
	n := 0
	for _, s := range e.sel {
		if m, ok := matchOf(s); ok {
			n = min(n+m.PlainRules(), onpath.MaxTableRules+1)
		}
	}
	return n
}

// sending is how many plain rules a chain adds to the emit tables of a deployment's
// instances.
type sending struct {
	dep   name
	field string
	rules int
}

// somebody stands for the own addresses of an instance.
var somebody = []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("2001:db8::1/128")}

// sendings lists what the chain adds to emit tables.
func (c *chain) sendings() []sending {
	if !c.counted {
		c.sends, c.counted = c.countSendings(), true
	}
	return c.sends
}

func (c *chain) countSendings() (list []sending) {
	p := &path{chain: c, spec: onpath.Path{Forward: c.obj.Spec.Direction == onpath.DirectionForward}}
	if from := c.from.deployment; from != (name{}) {
		list = append(list, sending{from, "spec.from.deployment", emitted(startRules(p, somebody))})
	}
	continued := -1 // the same for each element
	for k := range c.elements {
		e := &c.elements[k]
		if e.mirror() || e.d == nil || e.d.spec.Packets != onpath.PacketsRewrite && e.d.spec.Packets != onpath.PacketsOriginate {
			continue
		}
		if continued < 0 {
			forward, reverse := continueRules(p, k, somebody)
			continued = emitted(forward) + emitted(reverse)
		}
		list = append(list, sending{e.dep, fmt.Sprintf("spec.through[%d]", k), continued})
	}
	return list
}

func emitted(list []onpath.Rule) int {
	n := 0
	for i := range list {
		n = min(n+list[i].Match.PlainRules(), onpath.MaxTableRules+1)
	}
	return n
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
