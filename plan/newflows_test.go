package plan

import (
	"slices"
	"testing"

	"github.com/onpath/onpath"
)

// TestNewFlows: nodes are told how many flows the tenants that have something on them
// may begin: what Tenant.spec.maxNewFlows says, or the default; nothing where there is
// no limit, which is the operator's default, whose chain takes up everyone's flows.
func TestNewFlows(t *testing.T) {
	s := newSim(t, 3)
	s.site("fra1", 1, 2)
	o, _ := onpath.New(onpath.KindTenant)
	tenant := o.(*onpath.Tenant)
	tenant.Spec.Addresses = prefixes("0.0.0.0/0", "::/0")
	tenant.Metadata.Name = "acme"
	wraps := aChain(onpath.OperatorTenant, "wraps", onpath.Element{Deployment: "guards"})
	wraps.Spec.Tier = onpath.TierOperator
	s.apply(tenant, aFunction("acme", "fw", nil), aDeployment("acme", "walls", "fw", 1), aChain("acme", "web", onpath.Element{Deployment: "walls"}),
		aFunction(onpath.OperatorTenant, "guard", nil), aDeployment(onpath.OperatorTenant, "guards", "guard", 1), wraps)
	s.settle()
	check := func(want ...onpath.TenantLimits) {
		t.Helper()
		told := 0
		for name, state := range s.states {
			d := &state.Acked.Datapath
			if len(d.Paths) == 0 {
				if len(d.Tenants) > 0 {
					t.Errorf("node %s, on which nobody has anything, is told %+v", name, d.Tenants)
				}
				continue
			}
			told++
			if !slices.Equal(d.Tenants, want) {
				t.Errorf("node %s is told %+v, must be told %+v", name, d.Tenants, want)
			}
		}
		if told == 0 {
			t.Error("no node has a path")
		}
	}
	check(onpath.TenantLimits{Name: "acme", MaxNewFlows: 100_000})
	tenant = onpath.Clone(tenant)
	tenant.Spec.MaxNewFlows = 5000
	s.apply(tenant)
	s.settle()
	check(onpath.TenantLimits{Name: "acme", MaxNewFlows: 5000})
	tenant = onpath.Clone(tenant)
	tenant.Spec.MaxNewFlows = -1
	s.apply(tenant)
	s.settle()
	check()
}
