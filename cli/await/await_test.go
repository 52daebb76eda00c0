package await_test

import (
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/await"
)

func TestDone(t *testing.T) {
	two := 2
	spec := onpath.ChainSpec{Through: []onpath.Element{{Function: "fw", Instances: &two}, {Deployment: "ids"}}}
	elements := func(a, b int, message string) []onpath.ElementStatus {
		return []onpath.ElementStatus{{Deployment: "default/web-fw", Ready: a, Desired: 2, Message: message}, {Deployment: "ids", Ready: b, Desired: 1}}
	}
	functions := map[onpath.Key]int64{{Kind: onpath.KindFunction, Tenant: "t", Name: "fw"}: 7}
	noCapacity := []onpath.Condition{{Type: "Placed", Status: onpath.False, Message: "no node has room"}}
	for _, c := range []struct {
		name string
		o    onpath.Object
		done bool
		text string
	}{
		{"a tenant", &onpath.Tenant{}, true, ""},
		{"nothing known yet", &onpath.Chain{Spec: spec}, false, "is planned"},
		{"no room", &onpath.Chain{Spec: spec, Status: onpath.ChainStatus{Conditions: noCapacity}}, false, "no node has room"},
		{"starting", &onpath.Chain{Spec: spec, Status: onpath.ChainStatus{Elements: elements(1, 1, "pulling image")}}, false, "web-fw 1/2 (pulling image) → ids 1/1"},
		{"its reservation has not begun", &onpath.Chain{Spec: spec, Status: onpath.ChainStatus{Elements: elements(0, 0, ""), Conditions: []onpath.Condition{
			{Type: "Active", Status: onpath.False, Reason: "NotReserved", Message: "reservation evening begins later"}}}}, false,
			"web-fw 0/2 → ids 0/1, reservation evening begins later"},
		{"not steered", &onpath.Chain{Spec: spec, Status: onpath.ChainStatus{Elements: elements(2, 1, "")}}, false, "web-fw 2/2 → ids 1/1, rules are set"},
		{"active", &onpath.Chain{Spec: spec, Status: onpath.ChainStatus{Active: true, Cloudlets: []string{"pop"}, Elements: elements(2, 1, "")}}, true, "web-fw 2/2 → ids 1/1"},
		{"the path before the change is", &onpath.Chain{Spec: spec, Status: onpath.ChainStatus{Active: true, Elements: elements(2, 1, "")}}, false, "web-fw 2/2 → ids 1/1, rules are set"},
		{"active with too few", &onpath.Chain{Spec: spec, Status: onpath.ChainStatus{Active: true, Cloudlets: []string{"pop"}, Elements: elements(1, 1, "")}}, false, "web-fw 1/2 → ids 1/1"},
		{"status of before", &onpath.Chain{Spec: spec, Status: onpath.ChainStatus{Active: true, Cloudlets: []string{"pop"}, Elements: []onpath.ElementStatus{{Deployment: "web-fw", Ready: 1, Desired: 1}, {Deployment: "ids", Ready: 1, Desired: 1}}}}, false, "web-fw 1/2 → ids 1/1"},
		{"disabled", &onpath.Chain{Spec: onpath.ChainSpec{Disabled: true}}, true, "disabled"},
		{"not disabled yet", &onpath.Chain{Spec: onpath.ChainSpec{Disabled: true}, Status: onpath.ChainStatus{Active: true}}, false, "leaves the path"},
		{"unused deployment", &onpath.Deployment{Spec: onpath.DeploymentSpec{Instances: &two}}, true, "0/0"},
		{"placed deployment", &onpath.Deployment{Spec: onpath.DeploymentSpec{Instances: &two, Place: onpath.Place{Cloudlets: []string{"a"}}}}, false, "0/2"},
		{"deployment without room", &onpath.Deployment{Status: onpath.DeploymentStatus{Desired: 2, Ready: 1, Conditions: noCapacity}}, false, "1/2 (no node has room)"},
		{"a deployment's spec has changed", &onpath.Deployment{Metadata: onpath.Metadata{Generation: 2}, Status: onpath.DeploymentStatus{Desired: 2, Ready: 2, Observed: 1}}, false, "2/2 from before the change"},
		{"its function has", &onpath.Deployment{Metadata: onpath.Metadata{Tenant: "t"}, Spec: onpath.DeploymentSpec{Function: "fw"}, Status: onpath.DeploymentStatus{Desired: 2, Ready: 2, FunctionGeneration: 6}}, false, "2/2 from before the change"},
		{"it is rolled out", &onpath.Deployment{Metadata: onpath.Metadata{Tenant: "t"}, Spec: onpath.DeploymentSpec{Function: "fw"}, Status: onpath.DeploymentStatus{Desired: 2, Ready: 2, FunctionGeneration: 7}}, true, "2/2"},
		{"the new ones do not start", &onpath.Deployment{Status: onpath.DeploymentStatus{Desired: 2, Ready: 2, Outdated: 1, Conditions: noCapacity}}, false, "2/2, 1 from before the change (no node has room)"},
		{"a chain's spec has changed", &onpath.Chain{Metadata: onpath.Metadata{Generation: 2}, Spec: spec, Status: onpath.ChainStatus{Active: true, Cloudlets: []string{"pop"}, Elements: elements(2, 1, "")}}, false, "is planned"},
		{"its function has", &onpath.Chain{Metadata: onpath.Metadata{Tenant: "t"}, Spec: spec, Status: onpath.ChainStatus{Active: true, Cloudlets: []string{"pop"}, Elements: elements(2, 1, "")}}, false, "web-fw 2/2 from before the change → ids 1/1"},
	} {
		w := await.Wait{Functions: functions}
		if s := w.Look(c.o, time.Time{}); s.Done != c.done || s.Text != c.text {
			t.Errorf("%s: %v %q, want %v %q", c.name, s.Done, s.Text, c.done, c.text)
		}
	}
}
