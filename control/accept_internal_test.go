package control

import (
	"fmt"
	"slices"
	"testing"

	"github.com/onpath/onpath"
)

// TestLost: a restored store misses what a node's plan has and it has not, be it a chain, a
// deployment, or one that a chain makes. One that was never restored misses nothing.
func TestLost(t *testing.T) {
	web := &onpath.Chain{TypeMeta: onpath.TypeMeta{APIVersion: onpath.APIVersion, Kind: onpath.KindChain},
		Metadata: onpath.Metadata{Tenant: "a", Name: "web"}, Spec: onpath.ChainSpec{Through: []onpath.Element{{Function: "fw"}}}}
	m := &mirror{objects: map[onpath.Key]onpath.Object{onpath.KeyOf(web): web}}
	plan := func(store string, chains, deployments []string) *onpath.NodePlan {
		p := &onpath.NodePlan{Store: store}
		for _, c := range chains {
			p.Datapath.Paths = append(p.Datapath.Paths, onpath.Path{Chain: "a/" + c})
		}
		for _, d := range deployments {
			p.Instances = append(p.Instances, onpath.InstancePlan{Tenant: "a", Deployment: d})
		}
		return p
	}
	for _, c := range []struct {
		store, from         string
		chains, deployments []string
		want                []string
	}{
		{"s+1", "s", []string{"web"}, []string{"web-fw"}, nil},
		{"s+1", "s", []string{"web", "late"}, []string{"web-fw", "late-fw"}, []string{"chain a/late", "deployment a/late-fw"}},
		{"s+1", "", []string{"late"}, nil, []string{"chain a/late"}},
		{"s", "", []string{"late"}, []string{"late-fw"}, nil}, // an earlier version's, which does not say from which
		{"s+1", "other", []string{"late"}, nil, nil},          // foreign, which is another reason to wait
	} {
		if got := m.lost(plan(c.from, c.chains, c.deployments), c.store); !slices.Equal(got, c.want) {
			t.Errorf("of store %q's plan store %q misses %q, want %q", c.from, c.store, got, c.want)
		}
	}
}

// TestLostIsBounded: of a plan with more than a node can have, only so much is looked at.
func TestLostIsBounded(t *testing.T) {
	m := &mirror{objects: map[onpath.Key]onpath.Object{}}
	p := &onpath.NodePlan{Store: "s"}
	for i := range 20_000 {
		p.Datapath.Paths = append(p.Datapath.Paths, onpath.Path{Chain: fmt.Sprint("a/", i)})
		p.Instances = append(p.Instances, onpath.InstancePlan{Tenant: "a", Deployment: fmt.Sprint(i)})
	}
	if got := len(m.lost(p, "s+1")); got != onpath.MaxPaths+onpath.MaxVports {
		t.Errorf("%d chains and deployments are lost at most, want %d", got, onpath.MaxPaths+onpath.MaxVports)
	}
}
