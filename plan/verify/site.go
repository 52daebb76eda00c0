package verify

import (
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
func (x *site) reaches(v onpath.VportID, at *site) bool {
	if x == at {
		return true
	}
	p := x.vports[v]
	return p != nil && p.Kind == onpath.VportRemote && p.Peer == at.node
}

// open reports whether a vport takes new flows.
func (x *site) open(v onpath.VportID) bool {
	p := x.vports[v]
	return p != nil && p.State == onpath.VportUp
}

// chainOf names the chain of a path.
func (x *site) chainOf(id onpath.PathID) string {
	if p := x.paths[id]; p != nil {
		return p.Chain
	}
	return ""
}
