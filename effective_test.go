package onpath_test

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/onpath/onpath"
)

// TestEffective: what a node knows wins over its plan, vport by vport.
func TestEffective(t *testing.T) {
	plan := &onpath.NodePlan{Datapath: onpath.DatapathConfig{
		Peers: []onpath.Peer{{Node: "silent"}, {Node: "busy"}, {Node: "new"}},
		Vports: []onpath.Vport{
			{ID: 1, Kind: onpath.VportInstance, State: onpath.VportUp},
			{ID: 2, Kind: onpath.VportInstance, State: onpath.VportUp},
			{ID: 3, Kind: onpath.VportInstance, State: onpath.VportDraining},
			{ID: 4, Kind: onpath.VportInstance, State: onpath.VportClosed},
			{ID: 5, Kind: onpath.VportFunction, State: onpath.VportUp},
			{ID: 6, Kind: onpath.VportRemote, Peer: "silent", State: onpath.VportUp},
			{ID: 7, Kind: onpath.VportRemote, Peer: "busy", State: onpath.VportUp},
			{ID: 8, Kind: onpath.VportRemote, Peer: "busy", State: onpath.VportUp},
			{ID: 9, Kind: onpath.VportRemote, Peer: "new", State: onpath.VportUp},
			{ID: 10, Kind: onpath.VportRemote, Peer: "silent", State: onpath.VportUp}, // no choice
			{ID: 11, Kind: onpath.VportInstance, State: onpath.VportUp},
			{ID: 12, Kind: onpath.VportInstance, State: onpath.VportUp},
		},
		Groups: []onpath.Group{{Members: []onpath.Member{{Vport: 2}, {Vport: 6}, {Vport: 7}, {Vport: 8}, {Vport: 9}}}},
	}}
	local := &onpath.LocalState{
		Vports: map[onpath.VportID]onpath.LocalVport{
			1: {Wired: true}, 2: {Open: true}, 3: {Wired: true, Open: true}, 4: {Wired: true, Open: true}, 5: {Open: true},
			11: {Wired: true, Open: true, Full: true}, 12: {Wired: true, Full: true},
		},
		Functions: []onpath.InlineFunction{{Vport: 77}, {Vport: 5}},
		Peers:     map[string]onpath.PeerState{"silent": {Lost: true}, "busy": {Closed: map[onpath.VportID]bool{8: true}}},
	}
	before, _ := json.Marshal(plan)
	c, missing := onpath.Effective(plan, local)
	if after, _ := json.Marshal(plan); string(after) != string(before) {
		t.Errorf("the plan was changed:\n%s\n%s", before, after)
	}
	want := map[onpath.VportID]onpath.VportState{
		1: onpath.VportClosed, 3: onpath.VportDraining, 4: onpath.VportDraining, 5: onpath.VportUp,
		6: onpath.VportClosed, 7: onpath.VportUp, 8: onpath.VportClosed, 9: onpath.VportUp, 10: onpath.VportUp,
		11: onpath.VportDraining, 12: onpath.VportClosed,
	}
	got, away := map[onpath.VportID]onpath.VportState{}, map[onpath.VportID]bool{}
	for _, v := range c.Vports {
		got[v.ID], away[v.ID] = v.State, v.Away
	}
	if !reflect.DeepEqual(got, want) || !away[6] || away[8] {
		t.Errorf("vports are %v (away %v), must be %v", got, away, want)
	}
	if !reflect.DeepEqual(missing, []onpath.VportID{2}) || len(c.Groups[0].Members) != 4 {
		t.Errorf("missing are %v, members %v", missing, c.Groups[0].Members)
	}
	if len(c.Functions) != 1 || c.Functions[0].Vport != 5 {
		t.Errorf("functions are %v", c.Functions)
	}
	plan.Datapath.Edge = &onpath.Edge{Vport: 1, Uplinks: []onpath.Uplink{{Name: "a"}, {Name: "b"}}}
	local.RefusedUplinks = map[string]bool{"a": true}
	c, _ = onpath.Effective(plan, local)
	if len(c.Edge.Uplinks) != 1 || c.Edge.Uplinks[0].Name != "b" || c.Vports[2].State != onpath.VportUp {
		t.Errorf("uplinks are %v; at a node with uplinks an instance that opened is %s", c.Edge.Uplinks, c.Vports[2].State)
	}
}

// TestEffectiveRows: members that lead nowhere are left out of the rows of weights, too.
func TestEffectiveRows(t *testing.T) {
	plan := &onpath.NodePlan{Datapath: onpath.DatapathConfig{
		Vports: []onpath.Vport{{ID: 8, Kind: onpath.VportInstance}},
		Groups: []onpath.Group{{
			Members: []onpath.Member{{Vport: 7, Key: 70, Weight: 1}, {Vport: 8, Key: 80, Weight: 2}, {Vport: 9, Key: 90, Weight: 3}},
			Weights: []onpath.WeightRow{{From: 1, Weights: []uint32{10, 20, 30}}, {From: 2, Weights: []uint32{11, 21, 31}}},
		}},
	}}
	c, _ := onpath.Effective(plan, &onpath.LocalState{})
	got, want := c.Groups[0], []onpath.WeightRow{{From: 1, Weights: []uint32{10, 30}}, {From: 2, Weights: []uint32{11, 31}}}
	if len(got.Members) != 2 || !reflect.DeepEqual(got.Weights, want) {
		t.Errorf("members %v and rows %v, want rows %v", got.Members, got.Weights, want)
	}
	if g := plan.Datapath.Groups[0]; len(g.Members) != 3 || len(g.Weights[0].Weights) != 3 {
		t.Errorf("the plan itself was changed: %+v", g)
	}
}
