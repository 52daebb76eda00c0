package scaling

import (
	"fmt"
	"slices"
	"testing"

	"github.com/onpath/onpath"
)

// TestServingNodes: of a thousand nodes only those are asked that have instances or paths of
// chains that scale.
func TestServingNodes(t *testing.T) {
	chain := &onpath.Chain{Metadata: onpath.Metadata{Tenant: "acme", Name: "web"}}
	chain.Spec.Through = []onpath.Element{{Function: "fw"}}
	c := &Scaling{plans: map[string]*onpath.NodePlan{}, connected: map[string]bool{}}
	for i := range 1000 {
		p := &onpath.NodePlan{Instances: []onpath.InstancePlan{{Tenant: "acme", Name: "x", Deployment: "another"}}}
		switch i {
		case 3:
			p.Instances = append(p.Instances, onpath.InstancePlan{Tenant: "acme", Deployment: onpath.ShortDeployment("web", "fw")})
		case 5:
			p.Datapath.Paths = []onpath.Path{{Chain: "acme/web"}}
		case 7:
			p.Datapath.Paths = []onpath.Path{{Chain: "acme/other"}}
		}
		name := fmt.Sprintf("n%d", i)
		c.plans[name], c.connected[name] = p, true
	}
	names := c.servingNodes(map[onpath.Key]*onpath.Chain{{Kind: onpath.KindChain, Tenant: "acme", Name: "web"}: chain})
	if slices.Sort(names); !slices.Equal(names, []string{"n3", "n5"}) {
		t.Errorf("%d nodes are asked: %.20v", len(names), names)
	}
}
