package render

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/table"
)

// Group is what the instances of a node or of a chain use and carry together.
type Group struct {
	Name      string  `json:"name"`
	Instances int     `json:"instances"`
	Away      int     `json:"away,omitempty"` // of them, those of which nothing is known
	CPU       float64 `json:"cpu"`            // cores
	Memory    uint64  `json:"memory"`
	// Of a chain, that of its element which is given most: a packet passes several.
	Packets float64 `json:"packetsPerSecond"`
	Bits    float64 `json:"bitsPerSecond"`
	Flows   uint64  `json:"flows"`
	Dropped uint64  `json:"dropped"`
}

func (g *Group) add(r Rate) {
	g.Instances++
	if r.Away {
		g.Away++
		return
	}
	g.CPU += r.CPU
	g.Memory += uint64(r.Usage.Memory)
	g.Dropped += r.Dropped
	g.Packets += r.Packets
	g.Bits += r.Bits
	g.Flows += r.Flows
}

// ByNode sums up what instances use and carry on each node; nodes without instances
// are there, too.
func ByNode(nodes []onpath.Object, list []Rate) []Group {
	all := map[string]*Group{}
	for _, n := range nodes {
		all[n.Meta().Name] = &Group{Name: n.Meta().Name}
	}
	for _, r := range list {
		if all[r.Node] == nil {
			all[r.Node] = &Group{Name: r.Node}
		}
		all[r.Node].add(r)
	}
	return busiest(all)
}

// ByChain sums up what instances use and carry for each chain. One that serves several
// chains counts for each.
func ByChain(chains []onpath.Object, list []Rate) []Group {
	all := map[string]*Group{}
	for _, c := range chains {
		g := &Group{Name: c.Meta().Tenant + "/" + c.Meta().Name}
		elements := map[string]*Group{}
		for _, r := range list {
			if !Belongs(r.Instance, c) {
				continue
			}
			g.add(r)
			element := r.Instance.Metadata.Tenant + "/" + r.Instance.Spec.Deployment
			if elements[element] == nil {
				elements[element] = &Group{}
			}
			elements[element].add(r)
		}
		g.Packets, g.Bits, g.Flows = 0, 0, 0
		for _, e := range elements {
			g.Packets, g.Bits, g.Flows = max(g.Packets, e.Packets), max(g.Bits, e.Bits), max(g.Flows, e.Flows)
		}
		all[g.Name] = g
	}
	return busiest(all)
}

// busiest sorts as Rates does.
func busiest(all map[string]*Group) []Group {
	list := make([]Group, 0, len(all))
	for g := range maps.Values(all) {
		list = append(list, *g)
	}
	slices.SortFunc(list, func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.Bits, a.Bits), cmp.Compare(b.CPU, a.CPU), cmp.Compare(a.Name, b.Name))
	})
	return list
}

// TopGroups is the table of the top command for nodes or chains.
func TopGroups(kind onpath.Kind, list []Group) *table.Table {
	head := "CHAIN"
	if kind == onpath.KindNode {
		head = "NODE"
	}
	t := table.New(head, ">INSTANCES", ">CPU", ">MEMORY", ">PPS", ">BPS", ">FLOWS", ">DROPPED")
	for _, g := range list {
		if g.Away > 0 && g.Away == g.Instances {
			t.Row(shortName(g.Name), strconv.Itoa(g.Instances), "-", "-", "-", "-", "-", "-")
			continue
		}
		t.Row(shortName(g.Name), strconv.Itoa(g.Instances), strconv.FormatFloat(100*g.CPU, 'f', 1, 64)+"%", Bytes(g.Memory),
			Count(g.Packets), Count(g.Bits), strconv.FormatUint(g.Flows, 10), strconv.FormatUint(g.Dropped, 10))
	}
	return t
}
