package e2e

import (
	"testing"
	"time"
)

const nearChain = `
apiVersion: onpath/v1alpha1
kind: Deployment
metadata: {name: first}
spec: {function: hop, instances: 3, drain: 1s}
---
apiVersion: onpath/v1alpha1
kind: Deployment
metadata: {name: second}
spec: {function: hop, instances: 3, drain: 1s}
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: near}
spec:
  from: {hosts: client}
  to: {hosts: origin}
  through:
  - {deployment: first, weights: {n1: 8}}
  - deployment: second
    weightsFrom: {n1: {n1: 1000}, n2: {n2: 1000}, n3: {n3: 1000}}
`

// TestWeightsFrom: most flows are sent to one node's instance of the first element, and go
// on, and back, through the same node's of the second, though that shares alike what comes
// from elsewhere.
func TestWeightsFrom(t *testing.T) {
	ctx := need(t, 2*time.Minute)
	apply(ctx, t, nearChain)
	active(ctx, t, "near")
	ready(ctx, t, 6)
	port := udpEcho(t, "10.9.0.2")
	const flows = 600
	openFlows(t, flows, port)()
	list, err := testbed.Instances(ctx)
	if err != nil {
		t.Fatal(err)
	}
	crossed := map[string]map[string]int{"first": {}, "second": {}} // flows by deployment and node
	for _, i := range list {
		if crossed[i.Spec.Deployment] == nil {
			continue // another test's, which goes
		}
		c := countersOf(ctx, t, api(t), i.Spec.Node)
		crossed[i.Spec.Deployment][i.Spec.Node] = int(c.Vports[i.Spec.Vport].Out.Packets) / 2 // there and back
	}
	t.Logf("flows through instances: %v", crossed)
	for _, n := range []string{"n1", "n2", "n3"} {
		a, b := crossed["first"][n], crossed["second"][n]
		if a == 0 || b < a-flows/50 || b > a+flows/50 {
			t.Errorf("%s: %d flows crossed the first element there, %d the second, which must be the same but for two in a hundred", n, a, b)
		}
	}
	if n := crossed["first"]["n1"]; n < flows*8/10*9/10 {
		t.Errorf("%d of %d flows went to n1, whose weight is 8 of 10", n, flows)
	}
}
