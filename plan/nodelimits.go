package plan

import (
	"fmt"
	"slices"

	"github.com/onpath/onpath"
)

// A node's data path refuses a plan with more than it has room for as a whole. What is
// declared is therefore held against its limits before it is stored, and what is under
// way, which has old and new beside each other, when it is planned. A gateway knows all
// of its cloudlet, so the cloudlet is what is counted.

// footprint is what takes room in a node's data path.
type footprint struct{ paths, vports, tables, cells, rows int }

func (f footprint) add(g footprint) footprint {
	return footprint{f.paths + g.paths, f.vports + g.vports, f.tables + g.tables, f.cells + g.cells, f.rows + g.rows}
}

// over says of what there is too much; the n-th part is left free. "": of nothing.
func (f footprint) over(n int) string {
	for _, l := range []struct {
		what       string
		have, most int
	}{
		{"paths", f.paths, onpath.MaxPaths}, {"vports", f.vports, onpath.MaxVports},
		{"tables", f.tables, onpath.MaxTables}, {"rules in small tables", f.cells, onpath.MaxTableCells},
		{"rows of weights", f.rows, onpath.MaxWeightRows},
	} {
		most := l.most
		if n > 0 {
			most -= l.most / n
		}
		if l.have > most {
			return fmt.Sprintf("%d %s of at most %d", l.have, l.what, most)
		}
	}
	return ""
}

// forChanges is the part of a data path that is left for what a change has beside each
// other: a chain's old path and its new one, old instances and new ones.
const forChanges = 16

// footprint is what the chain's path takes.
func (c *chain) footprint() footprint {
	n := len(c.elements)
	f := footprint{paths: 1, tables: 2 * (n + 1), rows: c.weightRows()}
	for i := range n + 1 {
		at := i
		if i == n {
			at = start
		}
		for _, reverse := range []bool{false, true} {
			rules := 0
			for _, j := range following(at, n, reverse) {
				e := &c.elements[j]
				if len(e.sel) == 0 {
					rules++
					break
				}
				rules += e.selectRules()
			}
			f.cells += inCells(rules)
		}
	}
	return f
}

// inCells is what a table with so many plain rules takes of the small tables' room.
func inCells(rules int) int {
	if rules > onpath.SmallTable {
		return 0
	}
	return rules + 1
}

// footprint is what the deployment's instances take in a cloudlet.
func (d *deployment) footprint() footprint {
	return footprint{vports: min(d.want, onpath.MaxMembers) * d.sides()}
}

// emitting is what the tables take for what the deployment's instances send, as full as
// small ones become, and all of them on one node.
func (d *deployment) emitting() footprint { return emitting(d.footprint().vports) }

func emitting(vports int) footprint {
	return footprint{tables: vports, cells: vports * (onpath.SmallTable + 1)}
}

// sides is how many vports an instance has.
func (d *deployment) sides() int {
	if d.attach() == onpath.Bridged {
		return 2
	}
	return 1
}

// always is what the gateways take, and the tables that each of them has.
var always = footprint{vports: mostGateways, tables: 2, cells: 2 * (onpath.SmallTable + 1)}

// crowding is how full the data paths of cloudlets will be.
type crowding struct {
	w           *world
	used        map[*cloudlet]footprint
	runs, sends map[member]bool // deployments counted already
}

// take counts a chain in, or says what there would be too much of.
func (u *crowding) take(c *chain) (*cloudlet, string) {
	next := map[*cloudlet]footprint{}
	for _, n := range c.cloudlets {
		cl := u.w.cloudlets[n]
		f := u.at(cl).add(c.footprint())
		for i := range c.elements {
			if d := c.elements[i].d; d != nil && !u.runs[member{cl, d.key}] {
				f = f.add(d.footprint())
			}
		}
		for _, s := range c.sendings() {
			if d := u.w.deployments[s.dep]; d != nil && !u.sends[member{cl, s.dep}] {
				f = f.add(d.emitting())
			}
		}
		if over := f.over(forChanges); over != "" {
			return cl, over
		}
		next[cl] = f
	}
	for cl, f := range next {
		u.used[cl] = f
		for i := range c.elements {
			u.runs[member{cl, c.elements[i].dep}] = true
		}
		for _, s := range c.sendings() {
			u.sends[member{cl, s.dep}] = true
		}
	}
	return nil, ""
}

func (u *crowding) at(cl *cloudlet) footprint {
	if f, ok := u.used[cl]; ok {
		return f
	}
	return always
}

// checkNodeLimits refuses deployments and chains for which the data paths of their
// cloudlets have no room beside what came before.
func (w checker) checkNodeLimits() {
	u := &crowding{w.world, map[*cloudlet]footprint{}, map[member]bool{}, map[member]bool{}}
	for _, d := range w.deploymentsInTurn() {
		for _, n := range d.place.Cloudlets {
			cl := w.cloudlets[n]
			if cl == nil {
				continue
			}
			f := u.at(cl).add(d.footprint())
			if over := f.over(forChanges); over != "" {
				d.crowds = fmt.Sprintf("with the deployment, a gateway of cloudlet %s would have %s", n, over)
				break
			}
			u.used[cl], u.runs[member{cl, d.key}] = f, true
		}
	}
	for _, c := range w.inTurn() {
		if len(c.errs) > 0 {
			continue
		}
		if c.checkMembers(); len(c.errs) > 0 {
			continue
		}
		if cl, over := u.take(c); over != "" {
			c.fail(onpath.CodeNoCapacity, "spec.at",
				"run fewer chains or instances in the cloudlet, or write at: {cloudlets: […]} with another one",
				"with the chain, a gateway of cloudlet %s would have %s", cl.name, over)
		}
	}
}

// deploymentsInTurn are those that are objects, as inTurn has chains.
func (w checker) deploymentsInTurn() []*deployment {
	var list []*deployment
	for _, o := range listed[*onpath.Deployment](w.world) {
		list = append(list, w.deployments[nameOf(o)])
	}
	slices.SortStableFunc(list, func(a, b *deployment) int {
		return w.turn(a.obj, b.obj)
	})
	return list
}

const tooMany = "write %d or fewer, or spread the traffic over several chains and deployments"

// checkMembers refuses short forms with more instances than a group has room for.
func (c *chain) checkMembers() {
	for k := range c.elements {
		if d := c.elements[k].d; d != nil && d.owner == c && d.want > onpath.MaxMembers {
			c.fail(onpath.CodeNoCapacity, fmt.Sprintf("spec.through[%d].instances", k), fmt.Sprintf(tooMany, onpath.MaxMembers),
				"%d instances in each cloudlet; a data path chooses among %d at most", d.want, onpath.MaxMembers)
		}
	}
}

// crowded says why a data path has no room for one more instance of a deployment, beside
// those there are of it, old and new; "" if it has.
func (w *rollout) crowded(d *deployment, cl *cloudlet) string {
	if w.fullGroup(d, cl) {
		return fmt.Sprintf("cloudlet %s has %d instances of it, with those that are replaced and those that drain: a data path chooses among no more", cl.name, onpath.MaxMembers)
	}
	f := footprint{vports: always.vports + cl.vports + d.sides()}
	if over := f.over(0); over != "" {
		return fmt.Sprintf("a gateway of cloudlet %s would have %s", cl.name, over)
	}
	return ""
}

// fullGroup reports whether the groups of the deployment's elements have no room for
// another instance.
func (w *rollout) fullGroup(d *deployment, cl *cloudlet) bool {
	n := len(w.instancesOf(cl, d.key))
	for _, m := range cl.nodes {
		n += w.created[placedOn{d.key, m}]
	}
	return n >= onpath.MaxMembers
}

// taken counts what a cloudlet's paths take that its gateways have, or may have: what
// one plan takes away may be there until the plan is in force.
func (w *pathfinder) taken(cl *cloudlet) footprint {
	paths, tables := map[onpath.PathID]bool{}, map[onpath.TableID]int{}
	for _, g := range cl.edges() {
		for _, x := range g.possible {
			if x == nil {
				continue
			}
			for id := range x.paths {
				paths[id] = true
			}
			for id, t := range x.tables {
				if _, ok := tables[id]; ok || isEmit(id) || id <= onpath.ClassifierTable(onpath.TierTenant) {
					continue
				}
				rules := 0
				for k := range t.Rules {
					rules += t.Rules[k].Match.PlainRules()
				}
				tables[id] = inCells(rules)
			}
		}
	}
	f := always.add(footprint{paths: len(paths), tables: len(tables)})
	for _, cells := range tables {
		f.cells += cells
	}
	for _, n := range cl.nodes {
		for _, i := range n.insts {
			if i.fn.Packets == onpath.PacketsRewrite || i.fn.Packets == onpath.PacketsOriginate {
				f = f.add(emitting(i.sides()))
			}
		}
	}
	return f
}

func (i *instance) sides() int {
	if i.bridged() {
		return 2
	}
	return 1
}
