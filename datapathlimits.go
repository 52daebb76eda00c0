package onpath

import "fmt"

// What a node's data path has room for. A configuration with more is refused whole, and
// the one before stays, so a plan must never have more: all tenants of the node would
// wait for the one that asks for too much. A driver may hold what an Apply takes away
// until that is done: where nearly all of something is used, change it in steps.
const (
	// MaxMembers is the largest number of instances among which one group chooses. Of an
	// element under a rolling update old and new ones are members of the same group, and
	// so are the instances of all nodes of the cloudlet.
	MaxMembers = 128
	// MaxPaths is how many paths a node knows, with those that have ended and drain.
	MaxPaths = 4095
	// MaxVports is how many vports a node knows: its own edge, the interfaces of its
	// instances (a bridged one has two), functions, and those of other nodes to which
	// it sends.
	MaxVports = 8191
	// MaxWeightRows is how many rows the weights of a node's groups have. A driver has room
	// for twice as many: those of old groups go when new ones are there.
	MaxWeightRows = 16384
	// MaxRowWeight is the largest weight in a row: planned rows come to so much in all.
	MaxRowWeight = 65535
	// MaxTables is how many tables a node has: the classifiers, one behind each element
	// of a path for each direction, and emit tables.
	MaxTables = 32767
	// MaxGroups is how many groups a node has, two for each element of a path.
	MaxGroups = 32768
	// MaxTableCells is how many rules the small tables of a node have together: those
	// with at most SmallTable plain rules. A table's Miss is one more.
	MaxTableCells = 65536
	SmallTable    = 16
	// MaxPeers is how many other nodes a node has tunnels to.
	MaxPeers = 1023
	// MaxTenants is how many tenants' paths and instances a node has.
	MaxTenants = 4095
	// MaxOwn is how many addresses of their own the instances of a node have together.
	MaxOwn = 32768
	// MaxNAT is how many prefixes an edge translates.
	MaxNAT = 16
)

// Fits says whether a data path has room for the configuration. The error is the same
// for all drivers.
func (c *DatapathConfig) Fits() error {
	var errs Errors
	refuse := func(field, remedy, format string, args ...any) {
		errs = append(errs, &Error{
			Code: CodeNoCapacity, Object: "data path of node " + c.Node, Field: field, Remedy: remedy,
			Message: fmt.Sprintf(format, args...),
		})
	}
	count := func(field, what string, n, most int) {
		if n > most {
			refuse(field, "run fewer chains or instances on this node", "%d %s; the data path has room for %d", n, what, most)
		}
	}
	vports := len(c.Vports)
	if c.Edge != nil {
		vports++
		if n := len(c.Edge.NAT); n > MaxNAT {
			refuse("edge.nat", "use fewer or wider prefixes", "the edge translates %d prefixes; the data path has room for %d", n, MaxNAT)
		}
	}
	tenants, own := map[string]bool{}, 0
	for i := range c.Paths {
		tenants[c.Paths[i].Tenant] = true
	}
	for i := range c.Vports {
		v := &c.Vports[i]
		if v.Kind != VportRemote {
			tenants[v.Tenant] = true
			own += len(v.Own)
		}
	}
	delete(tenants, "")
	count("paths", "tenants", len(tenants), MaxTenants)
	count("vports", "addresses of instances", own, MaxOwn)
	count("peers", "other nodes", len(c.Peers), MaxPeers)
	count("vports", "vports", vports, MaxVports)
	count("paths", "paths", len(c.Paths), MaxPaths)
	count("groups", "groups", len(c.Groups), MaxGroups)
	rows := 0
	for i := range c.Groups {
		rows += len(c.Groups[i].Weights)
		if g := &c.Groups[i]; len(g.Members) > MaxMembers {
			refuse(index("groups", i)+".members", "use fewer instances in an element, or replace fewer of them at a time",
				"group %d has %d members; the data path has room for %d", g.ID, len(g.Members), MaxMembers)
		}
	}
	count("groups", "rows of weights", rows, MaxWeightRows)
	count("tables", "tables", len(c.Tables), MaxTables)
	cells := 0
	for i := range c.Tables {
		cells += c.Tables[i].cells()
	}
	count("tables", "rules in small tables", cells, MaxTableCells)
	return errs.Err()
}

// cells is what a table takes of MaxTableCells: nothing, if it is large.
func (t *Table) cells() int {
	n := 1
	for i := range t.Rules {
		if n += t.Rules[i].Match.PlainRules(); n > SmallTable+1 {
			return 0
		}
	}
	return n
}
