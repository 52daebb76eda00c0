package plan

import (
	"net/netip"
	"reflect"
	"slices"

	"github.com/onpath/onpath"
)

// spoils are more things that can be wrong: whatever in a configuration decides
// where packets go.
var spoils = []mutation{
	{"wrong back", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		g := s.someGroup(d, 0)
		if g == nil || len(d.Tables) == 0 {
			return false
		}
		g.Back = one(s, d.Tables).ID
		return true
	}},
	{"members exchanged", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		g, h := s.someGroup(d, 1), s.someGroup(d, 1)
		if g == nil || g == h {
			return false
		}
		g.Members, h.Members = h.Members, g.Members
		return true
	}},
	{"groups exchanged", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		g, h := s.someGroup(d, 0), s.someGroup(d, 0)
		if g == nil || g == h {
			return false
		}
		g.ID, h.ID = h.ID, g.ID
		return true
	}},
	{"tables exchanged", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		t, u := s.someTable(d, 0), s.someTable(d, 0)
		if t == nil || t == u {
			return false
		}
		t.ID, u.ID = u.ID, t.ID
		return true
	}},
	{"a group that runs the other way", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		g := s.someGroup(d, 0)
		if g == nil {
			return false
		}
		g.Reverse = !g.Reverse
		return true
	}},
	{"a rule that runs the other way", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		t := s.someTable(d, 1)
		if t == nil {
			return false
		}
		r := &t.Rules[s.rng.IntN(len(t.Rules))]
		r.Reverse = !r.Reverse
		return true
	}},
	{"a rule of another path", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		t := s.someTable(d, 1)
		if t == nil || len(d.Paths) == 0 {
			return false
		}
		r := &t.Rules[s.rng.IntN(len(t.Rules))]
		before := r.Path
		r.Path = one(s, d.Paths).ID
		return r.Path != before
	}},
	{"a table is missing", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		if len(d.Tables) == 0 {
			return false
		}
		i := s.rng.IntN(len(d.Tables))
		d.Tables = slices.Delete(d.Tables, i, i+1)
		return true
	}},
	{"all tables are missing", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		n := len(d.Tables)
		d.Tables = nil
		return n > 0
	}},
	{"a path is missing", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		if len(d.Paths) == 0 {
			return false
		}
		i := s.rng.IntN(len(d.Paths))
		d.Paths = slices.Delete(d.Paths, i, i+1)
		return true
	}},
	{"a path is closed", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		if len(d.Paths) == 0 {
			return false
		}
		p := &d.Paths[s.rng.IntN(len(d.Paths))]
		p.Closed = !p.Closed
		return true
	}},
	{"a path has ended", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		if len(d.Paths) == 0 {
			return false
		}
		p := &d.Paths[s.rng.IntN(len(d.Paths))]
		if p.Ended.IsZero() {
			p.Ended = s.now
		}
		p.Until = s.now
		return true
	}},
	{"a path goes one way", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		if len(d.Paths) == 0 {
			return false
		}
		p := &d.Paths[s.rng.IntN(len(d.Paths))]
		p.Forward = !p.Forward
		return true
	}},
	{"a peer is missing", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		if len(d.Peers) == 0 {
			return false
		}
		i := s.rng.IntN(len(d.Peers))
		d.Peers = slices.Delete(d.Peers, i, i+1)
		return true
	}},
	{"a peer's secret", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		if len(d.Peers) == 0 {
			return false
		}
		d.Peers[s.rng.IntN(len(d.Peers))].Secret ^= 1
		return true
	}},
	{"a peer's address", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		if len(d.Peers) < 2 {
			return false
		}
		i, j := s.rng.IntN(len(d.Peers)), s.rng.IntN(len(d.Peers))
		d.Peers[i].Address, d.Peers[j].Address = d.Peers[j].Address, d.Peers[i].Address
		return i != j
	}},
	{"a rule in the shade", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		t := s.someTable(d, 1)
		if t == nil {
			return false
		}
		r := t.Rules[s.rng.IntN(len(t.Rules))]
		r.Action = one(s, []onpath.Action{{Kind: onpath.ActionExit}, {Kind: onpath.ActionRoute}, {Kind: onpath.ActionDrop, Reason: onpath.DropPolicy}, t.Miss, one(s, t.Rules).Action})
		before := r.Match
		switch s.rng.IntN(4) {
		case 0:
			r.Match = onpath.Match{}
		case 1:
			r.Match.Protocol = []uint8{17}
		case 2:
			r.Match.DstPorts = []onpath.PortRange{{First: 443, Last: 443}}
		}
		t.Rules = slices.Insert(t.Rules, 0, r)
		return !reflect.DeepEqual(r.Action, t.Rules[1].Action) || !reflect.DeepEqual(before, r.Match)
	}},
	{"a miss drops", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		t := s.someTable(d, 0)
		if t == nil {
			return false
		}
		was := t.Miss.Kind
		t.Miss = onpath.Action{Kind: onpath.ActionDrop, Reason: onpath.DropPolicy}
		return was != onpath.ActionDrop
	}},
	{"a miss goes on", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		t := s.someTable(d, 0)
		if t == nil {
			return false
		}
		t.Miss = onpath.Action{Kind: onpath.ActionTable, Table: one(s, d.Tables).ID}
		return true
	}},
	{"one IP version", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		t := s.someTable(d, 1)
		if t == nil {
			return false
		}
		t.Rules[s.rng.IntN(len(t.Rules))].Match.Family = one(s, []uint8{4, 6})
		return true
	}},
	{"hosts lost from a rule", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		var all []*[]netip.Prefix
		for i := range d.Tables {
			for k := range d.Tables[i].Rules {
				m := &d.Tables[i].Rules[k].Match
				for _, list := range []*[]netip.Prefix{&m.Src, &m.Dst} {
					if len(*list) > 1 {
						all = append(all, list)
					}
				}
			}
		}
		list := one(s, all)
		if list == nil {
			return false
		}
		i := s.rng.IntN(len(*list))
		*list = slices.Delete(*list, i, i+1)
		return true
	}},
	{"hosts lost on a node", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		lost := false
		for i := range d.Tables {
			t := &d.Tables[i]
			n := len(t.Rules)
			t.Rules = slices.DeleteFunc(t.Rules, func(r onpath.Rule) bool {
				return slices.Contains(r.Match.Dst, hostPrefix(own)[0]) || slices.Contains(r.Match.Src, hostPrefix(own)[0])
			})
			lost = lost || len(t.Rules) < n
		}
		return lost
	}},
	{"a vport of another instance", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		return s.changeVports(d, func(v, o *onpath.Vport) bool {
			v.Instance, o.Instance = o.Instance, v.Instance
			return v.Instance != o.Instance
		})
	}},
	{"vports exchanged", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		return s.changeVports(d, func(v, o *onpath.Vport) bool {
			v.ID, o.ID = o.ID, v.ID
			return v.ID != o.ID
		})
	}},
	{"another other side", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		return s.changeVports(d, func(v, o *onpath.Vport) bool {
			was := v.Other
			v.Other = o.ID
			return was != v.Other && !(was == 0 && o == v)
		})
	}},
	{"another entry", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		return s.changeVports(d, func(v, o *onpath.Vport) bool {
			was := v.Entry
			v.Entry = one(s, []onpath.VportID{0, o.ID, 1, 2})
			return was != v.Entry
		})
	}},
	{"another emit table", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		return s.changeVports(d, func(v, o *onpath.Vport) bool {
			was := v.Emit
			v.Emit = one(s, []onpath.TableID{0, o.Emit, 1, 2, one(s, d.Tables).ID})
			return was != v.Emit
		})
	}},
	{"a mirror that is none", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		return s.changeVports(d, func(v, _ *onpath.Vport) bool {
			v.Mirror = !v.Mirror
			return true
		})
	}},
	{"a vport drains", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		if len(d.Vports) == 0 {
			return false
		}
		d.Vports[s.rng.IntN(len(d.Vports))].State = onpath.VportDraining
		return true
	}},
	{"a remote vport in place of a local one", func(s *sim, d *onpath.DatapathConfig, all map[string]*onpath.NodePlan) bool {
		return len(d.Peers) > 0 && s.changeVports(d, func(v, _ *onpath.Vport) bool {
			v.Kind, v.Peer = onpath.VportRemote, one(s, d.Peers).Node
			return true
		})
	}},
	{"a partner forgotten", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		known := false
		for i := range d.Vports {
			known = known || d.Vports[i].Backup != 0
			d.Vports[i].Backup = 0
		}
		return known
	}},
	{"no weight", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		g := s.someGroup(d, 1)
		if g == nil {
			return false
		}
		g.Members[s.rng.IntN(len(g.Members))].Weight = 0
		return true
	}},
}

// changeVports changes one of the vports of instances on a node, with another one in
// view.
func (s *sim) changeVports(d *onpath.DatapathConfig, change func(v, o *onpath.Vport) bool) bool {
	var local []*onpath.Vport
	for i := range d.Vports {
		if d.Vports[i].Kind != onpath.VportRemote {
			local = append(local, &d.Vports[i])
		}
	}
	if len(local) == 0 || len(d.Tables) == 0 {
		return false
	}
	return change(one(s, local), one(s, local))
}
