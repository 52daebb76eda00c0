package control

import (
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/pool"
	"github.com/onpath/onpath/plan"
)

// TestWordsOfPeers: what most of a silent node's peers in its own cloudlet say counts, once
// their agents have had time to ask; one node that lies decides nothing.
func TestWordsOfPeers(t *testing.T) {
	now := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		says        map[string]bool // of each peer: the node's machine does not answer
		peers       []string        // that the server's plan has send to the node
		fresh       []string        // whose agents have just connected
		alive, dead bool
	}{
		"nobody can tell":            {},
		"most say that it is dead":   {says: map[string]bool{"a": true, "b": true, "c": false}, peers: []string{"a", "b", "c"}, dead: true},
		"most say that it is alive":  {says: map[string]bool{"a": true, "b": false, "c": false}, peers: []string{"a", "b", "c"}, alive: true},
		"as many as others":          {says: map[string]bool{"a": true, "b": false}, peers: []string{"a", "b"}},
		"one that is no peer":        {says: map[string]bool{"a": true}},
		"one of another cloudlet":    {says: map[string]bool{"far": true}, peers: []string{"far"}},
		"one that has not asked yet": {says: map[string]bool{"a": false, "b": true}, peers: []string{"a", "b"}, fresh: []string{"a"}, dead: true},
	} {
		t.Run(name, func(t *testing.T) {
			sessions, r := map[string]*session{}, &plan.Result{Plans: map[string]*onpath.NodePlan{}}
			nodes := []pool.Node{{Name: "silent", Cloudlet: "fra", Gone: true}, {Name: "far", Cloudlet: "par"}}
			for _, peer := range []string{"a", "b", "c"} {
				nodes = append(nodes, pool.Node{Name: peer, Cloudlet: "fra"})
			}
			for peer, unreachable := range c.says {
				report := &onpath.NodeReport{}
				if unreachable {
					report.Unreachable = []string{"silent"}
				}
				sessions[peer] = &session{connected: true, connectedAt: now.Add(-time.Hour), state: plan.NodeState{Seen: now, Report: report}}
				r.Plans[peer] = &onpath.NodePlan{}
			}
			for _, peer := range c.peers {
				r.Plans[peer].Datapath.Peers = []onpath.Peer{{Node: "silent"}}
			}
			for _, peer := range c.fresh {
				sessions[peer].connectedAt = now.Add(-time.Second)
			}
			noteWords(sessions, r, nodes, now)
			if n := nodes[0]; n.Alive != c.alive || n.Dead != c.dead {
				t.Errorf("alive %t, dead %t", n.Alive, n.Dead)
			}
		})
	}
}

// TestRuntimeDown: a node whose container runtime does not answer is not sold, one that has
// none is.
func TestRuntimeDown(t *testing.T) {
	now := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	for reason, usable := range map[string]bool{"": true, onpath.ReasonRuntimeMissing: true, onpath.ReasonRuntimeDown: false} {
		report := &onpath.NodeReport{}
		if reason != "" {
			report.Conditions = []onpath.Condition{{Type: onpath.ConditionRuntime, Status: onpath.False, Reason: reason, Message: "it is dead"}}
		}
		st := &session{connected: true, state: plan.NodeState{Seen: now, Report: report}}
		o := &onpath.Node{}
		o.Metadata.Name = "n"
		if n := observeNode(o, st, onpath.Resources{}, time.Time{}, now, time.Minute); n.Usable != usable {
			t.Errorf("%q: usable %t", reason, n.Usable)
		}
	}
}
