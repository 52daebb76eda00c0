package plan

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/onpath/onpath"
)

// cloned are plans that can be spoilt.
func cloned(t *testing.T, plans map[string]*onpath.NodePlan) map[string]*onpath.NodePlan {
	out := map[string]*onpath.NodePlan{}
	for n, p := range plans {
		out[n] = throughJSON(t, p)
	}
	return out
}

// mutation is one thing wrong in plans.
type mutation struct {
	name string
	// spoil changes something in a node's configuration, chosen by chance; false
	// if there is nothing to change.
	spoil func(s *sim, d *onpath.DatapathConfig, all map[string]*onpath.NodePlan) bool
}

func (s *sim) someTable(d *onpath.DatapathConfig, rules int) *onpath.Table {
	var fit []*onpath.Table
	for i := range d.Tables {
		if len(d.Tables[i].Rules) >= rules {
			fit = append(fit, &d.Tables[i])
		}
	}
	return one(s, fit)
}

func one[T any](s *sim, list []T) (none T) {
	if len(list) == 0 {
		return none
	}
	return list[s.rng.IntN(len(list))]
}

func (s *sim) someGroup(d *onpath.DatapathConfig, members int) *onpath.Group {
	var fit []*onpath.Group
	for i := range d.Groups {
		if len(d.Groups[i].Members) >= members {
			fit = append(fit, &d.Groups[i])
		}
	}
	return one(s, fit)
}

var mutations = []mutation{
	{"drop a rule", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		t := s.someTable(d, 1)
		if t == nil {
			return false
		}
		i := s.rng.IntN(len(t.Rules))
		t.Rules = slices.Delete(t.Rules, i, i+1)
		return true
	}},
	{"swap two rules", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		t := s.someTable(d, 2)
		if t == nil {
			return false
		}
		i, j := s.rng.IntN(len(t.Rules)), s.rng.IntN(len(t.Rules))
		t.Rules[i], t.Rules[j] = t.Rules[j], t.Rules[i]
		return i != j
	}},
	{"wrong then", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		g := s.someGroup(d, 0)
		if g == nil {
			return false
		}
		g.Then = one(s, d.Tables).ID
		return true
	}},
	{"then and back exchanged", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		g := s.someGroup(d, 0)
		if g == nil {
			return false
		}
		g.Then, g.Back = g.Back, g.Then
		return true
	}},
	{"wrong member", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		g := s.someGroup(d, 1)
		if g == nil {
			return false
		}
		g.Members[s.rng.IntN(len(g.Members))].Vport = one(s, d.Vports).ID
		return true
	}},
	{"no members", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		g := s.someGroup(d, 1)
		if g == nil {
			return false
		}
		g.Members = nil
		return true
	}},
	{"members of another group", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		g, h := s.someGroup(d, 1), s.someGroup(d, 1)
		if g == nil || g == h {
			return false
		}
		g.Members = slices.Clone(h.Members)
		return true
	}},
	{"a group is missing", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		if len(d.Groups) == 0 {
			return false
		}
		i := s.rng.IntN(len(d.Groups))
		g := &d.Groups[i]
		g.ID ^= 1 << 20
		return true
	}},
	{"wrong entry", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		if d.Edge == nil {
			return false
		}
		d.Edge.Table = one(s, []onpath.TableID{0, 2})
		return true
	}},
	{"a vport is missing", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		if len(d.Vports) == 0 {
			return false
		}
		i := s.rng.IntN(len(d.Vports))
		d.Vports = slices.Delete(d.Vports, i, i+1)
		return true
	}},
	{"a vport is closed", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		if len(d.Vports) == 0 {
			return false
		}
		v := &d.Vports[s.rng.IntN(len(d.Vports))]
		v.State = onpath.VportClosed
		return true
	}},
	{"a vport of another peer", func(s *sim, d *onpath.DatapathConfig, all map[string]*onpath.NodePlan) bool {
		var remote []*onpath.Vport
		for i := range d.Vports {
			if d.Vports[i].Kind == onpath.VportRemote {
				remote = append(remote, &d.Vports[i])
			}
		}
		v := one(s, remote)
		if v == nil {
			return false
		}
		v.Peer = one(s, sortedKeys(all))
		return v.Peer != d.Node
	}},
	{"a wider match", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		t := s.someTable(d, 1)
		if t == nil {
			return false
		}
		m := &t.Rules[s.rng.IntN(len(t.Rules))].Match
		before := *m
		switch s.rng.IntN(4) {
		case 0:
			m.Src = nil
		case 1:
			m.Dst = nil
		case 2:
			m.Protocol = nil
		default:
			m.SrcPorts, m.DstPorts = nil, nil
		}
		return !reflect.DeepEqual(before, *m)
	}},
	{"a shorter prefix", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		var all []*netip.Prefix
		for i := range d.Tables {
			for k := range d.Tables[i].Rules {
				m := &d.Tables[i].Rules[k].Match
				for _, list := range [][]netip.Prefix{m.Src, m.Dst} {
					for j := range list {
						all = append(all, &list[j])
					}
				}
			}
		}
		p := one(s, all)
		if p == nil {
			return false
		}
		*p = netip.PrefixFrom(p.Addr(), p.Bits()-1-s.rng.IntN(8)).Masked()
		return true
	}},
	{"a narrower match", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		t := s.someTable(d, 1)
		if t == nil {
			return false
		}
		m := &t.Rules[s.rng.IntN(len(t.Rules))].Match
		switch s.rng.IntN(3) {
		case 0:
			m.Protocol = []uint8{6}
		case 1:
			m.Dst = hostPrefix(own)
		default:
			m.DstPorts = []onpath.PortRange{{First: 80, Last: 80}}
		}
		return true
	}},
	{"a miss exits", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		t := s.someTable(d, 0)
		if t == nil {
			return false
		}
		t.Miss = onpath.Action{Kind: onpath.ActionExit}
		return true
	}},
	{"a rule exits", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		t := s.someTable(d, 1)
		if t == nil {
			return false
		}
		t.Rules[s.rng.IntN(len(t.Rules))].Action = onpath.Action{Kind: onpath.ActionExit}
		return true
	}},
	{"a rule routes", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		t := s.someTable(d, 0)
		if t == nil {
			return false
		}
		t.Miss = onpath.Action{Kind: onpath.ActionRoute}
		return true
	}},
	{"the wrong group", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		t, g := s.someTable(d, 1), s.someGroup(d, 0)
		if t == nil || g == nil {
			return false
		}
		t.Rules[s.rng.IntN(len(t.Rules))].Action = onpath.Action{Kind: onpath.ActionGroup, Group: g.ID}
		return true
	}},
	{"bypass for drop", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		g := s.someGroup(d, 0)
		if g == nil {
			return false
		}
		if g.None == onpath.NoneBypass {
			g.None = onpath.NoneDrop
		} else {
			g.None = onpath.NoneBypass
		}
		return true
	}},
	{"mirror for inline", func(s *sim, d *onpath.DatapathConfig, _ map[string]*onpath.NodePlan) bool {
		g := s.someGroup(d, 1)
		if g == nil {
			return false
		}
		if g.Mode == onpath.ModeMirror {
			g.Mode = onpath.ModeInline
		} else {
			g.Mode = onpath.ModeMirror
		}
		return true
	}},
}
