package verify

import (
	"fmt"
	"slices"

	"github.com/onpath/onpath"
)

// site is one node's configuration, indexed.
type site struct {
	node   string
	config *onpath.DatapathConfig
	edge   onpath.VportID
	vports map[onpath.VportID]*onpath.Vport
	groups map[onpath.GroupID]*onpath.Group
	tables map[onpath.TableID]*table
	peers  map[string]*onpath.Peer
	paths  map[onpath.PathID]*onpath.Path
}

type table struct {
	onpath.Table
	matches []match // of the rules
	boxes   [][]box // of the rules; once the space is divided and they are asked for
}

// newSite indexes a configuration and takes up the sets in its rules.
func newSite(node string, c *onpath.DatapathConfig, s *space) *site {
	x := &site{
		node: node, config: c, vports: map[onpath.VportID]*onpath.Vport{}, groups: map[onpath.GroupID]*onpath.Group{},
		tables: map[onpath.TableID]*table{}, peers: map[string]*onpath.Peer{}, paths: map[onpath.PathID]*onpath.Path{},
	}
	if c.Edge != nil {
		x.edge = c.Edge.Vport
	}
	for i := range c.Vports {
		x.vports[c.Vports[i].ID] = &c.Vports[i]
	}
	for i := range c.Groups {
		x.groups[c.Groups[i].ID] = &c.Groups[i]
	}
	for i := range c.Peers {
		x.peers[c.Peers[i].Node] = &c.Peers[i]
	}
	for i := range c.Paths {
		x.paths[c.Paths[i].ID] = &c.Paths[i]
	}
	for _, t := range c.Tables {
		n := &table{Table: t}
		for _, r := range t.Rules {
			n.matches = append(n.matches, s.take(r.Match))
		}
		x.tables[t.ID] = n
	}
	return x
}

// rule is the products of the i-th rule.
func (t *table) rule(s *space, i int) []box {
	if t.boxes == nil {
		t.boxes = make([][]box, len(t.matches))
	}
	if t.boxes[i] == nil {
		t.boxes[i] = s.boxes(t.matches[i])
		if t.boxes[i] == nil {
			t.boxes[i] = []box{}
		}
	}
	return t.boxes[i]
}

// local is an instance's vport on this node.
func (x *site) local(v onpath.VportID) *onpath.Vport {
	if p := x.vports[v]; p != nil && p.Kind != onpath.VportRemote {
		return p
	}
	return nil
}

// out is the vport where packets delivered to v come out again.
func (x *site) out(v *onpath.Vport) onpath.VportID {
	if v.Other != 0 {
		return v.Other
	}
	return v.ID
}

// reaches reports whether packets can be sent to a vport of node at from here.
func (x *site) reaches(v onpath.VportID, at *site) bool { return x.unreachable(v, at) == "" }

// unreachable says why packets cannot be sent to a vport of node at from here.
func (x *site) unreachable(v onpath.VportID, at *site) string {
	if x == at && v == x.edge {
		return ""
	}
	p := x.vports[v]
	switch {
	case p == nil || x != at && (p.Kind != onpath.VportRemote || p.Peer != at.node):
		return fmt.Sprintf("node %s does not know vport %d of node %s", x.node, v, at.node)
	case p.State == onpath.VportClosed:
		return fmt.Sprintf("node %s holds vport %d of node %s closed", x.node, v, at.node)
	}
	if there := at.local(v); v != at.edge && (there == nil || there.State == onpath.VportClosed) {
		return fmt.Sprintf("vport %d is away or closed at node %s", v, at.node)
	}
	if x == at {
		return ""
	}
	return x.tunnel(at)
}

// tunnel says why packets do not get from here to another node.
func (x *site) tunnel(to *site) string {
	mine, its := x.peers[to.node], to.peers[x.node]
	switch {
	case mine == nil:
		return fmt.Sprintf("is dropped: node %s does not know how to reach node %s", x.node, to.node)
	case its == nil:
		return fmt.Sprintf("is dropped at node %s, which does not know node %s (tunnel-source)", to.node, x.node)
	case mine.Secret != its.Secret:
		return fmt.Sprintf("is dropped at node %s: its secret and that of node %s differ (tunnel-secret)", to.node, x.node)
	case mine.Inside != its.Inside:
		return fmt.Sprintf("is dropped: one of the nodes %s and %s uses WireGuard, the other VXLAN alone", x.node, to.node)
	case mine.Inside && mine.Address != to.config.Inside:
		return fmt.Sprintf("is lost: node %s looks for node %s at %s, inside WireGuard", x.node, to.node, mine.Address)
	case !mine.Inside && to.config.Underlay.Address.IsValid() && mine.Address != to.config.Underlay.Address:
		return fmt.Sprintf("is lost: node %s looks for node %s at %s", x.node, to.node, mine.Address)
	}
	return ""
}

// has reports whether a vport is among a group's members.
func has(g *onpath.Group, v onpath.VportID) bool {
	return slices.ContainsFunc(g.Members, func(m onpath.Member) bool { return m.Vport == v })
}

// contextOf is the group by which packets that an instance emits at a vport are taken
// to have come, by the path and direction that its rules give them; 0: none.
func (x *site) contextOf(out onpath.VportID, path onpath.PathID, reverse bool) onpath.GroupID {
	into := out
	for id, v := range x.vports {
		if v.Kind != onpath.VportRemote && v.Other == out {
			into = id
		}
	}
	for i := range x.config.Groups {
		g := &x.config.Groups[i]
		if g.Path == path && g.Reverse == reverse && has(g, into) {
			return g.ID
		}
	}
	return 0
}

// open reports whether a vport takes new flows.
func (x *site) open(v onpath.VportID) bool {
	p := x.vports[v]
	return p != nil && p.State == onpath.VportUp
}

// takes reports whether a member of a group gets new flows.
func (x *site) takes(m onpath.Member) bool { return x.open(m.Vport) && m.Weight > 0 }

// skips reports whether packets go past an inline group, which has nobody.
func (x *site) skips(g *onpath.Group) bool {
	return g.Mode != onpath.ModeMirror && g.None == onpath.NoneBypass && !slices.ContainsFunc(g.Members, x.takes)
}

// chainOf names the chain of a path.
func (x *site) chainOf(id onpath.PathID) string {
	if p := x.paths[id]; p != nil {
		return p.Chain
	}
	return ""
}
