package control

import (
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan"
)

// TestPlannedSecrets: a node that says itself which plan it follows gets by it no secrets of
// instances that are not placed there, nor any that no function names.
func TestPlannedSecrets(t *testing.T) {
	spec := func(keys ...onpath.SecretKey) (s onpath.FunctionSpec) {
		s.Container = &onpath.ContainerSpec{Image: "host", Secrets: map[string]onpath.SecretKey{}}
		for _, k := range keys {
			s.Container.Secrets[string(k)[3:]] = k
		}
		return s
	}
	c := &Controller{core: core{mirror: newMirror(), nodes: map[string]*session{}}}
	f := &onpath.Function{Metadata: onpath.Metadata{Tenant: "acme", Name: "web"}, Spec: spec("db/password")}
	in := &onpath.Instance{Metadata: onpath.Metadata{Tenant: "acme", Name: "web-1"}, Spec: onpath.InstanceSpec{Deployment: "web", Node: "n1"}}
	c.core.mirror.put(f)
	c.core.mirror.put(in)
	said := &onpath.NodePlan{Instances: []onpath.InstancePlan{{Tenant: "acme", Name: "web-1", Spec: spec("db/password", "db/root")}}}
	for node, want := range map[string]int{"n1": 1, "n2": 0} {
		c.core.nodes[node] = &session{told: true, state: plan.NodeState{Acked: said}}
		got := c.PlannedSecrets(node, "acme", "web-1")
		if len(got) != want || want == 1 && got["password"] != "db/password" {
			t.Errorf("%s gets %v", node, got)
		}
	}
	c.core.nodes["n1"].told = false
	if got := c.PlannedSecrets("n1", "acme", "web-1"); len(got) != 2 {
		t.Errorf("by a plan that the server sent: %v", got)
	}
	c.core.nodes["n1"].state = plan.NodeState{Sent: []*onpath.NodePlan{said}}
	if got := c.PlannedSecrets("n1", "acme", "web-1"); len(got) != 2 {
		t.Errorf("by the server's own plan: %v", got)
	}
}
