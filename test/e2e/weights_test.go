package e2e

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/onpath/onpath/internal/netnsrun"
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
	before := crossedNear(ctx, t)
	// Until the gateway knows that all instances are ready, it sends to those that it knows.
	err := testbed.WaitFor(ctx, "all six instances take flows", time.Minute, func() (bool, error) {
		err := netnsrun.Do(testbed.Lab.NetNS("client"), func() error { return askOnce(port) })
		before = crossedNear(ctx, t)
		return len(before["first"]) == 3 && len(before["second"]) == 3, err
	})
	if err != nil {
		t.Fatal(err)
	}
	openFlows(t, flows, port)()
	crossed := crossedNear(ctx, t)
	for deployment, byNode := range crossed {
		for node := range byNode {
			byNode[node] = (byNode[node] - before[deployment][node]) / 4 // two questions of each, two answers
		}
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

// crossedNear counts the packets that left the instances of the chain near, by deployment
// and node, without those that none left.
func crossedNear(ctx context.Context, t *testing.T) map[string]map[string]int {
	t.Helper()
	list, err := testbed.Instances(ctx)
	if err != nil {
		t.Fatal(err)
	}
	crossed := map[string]map[string]int{"first": {}, "second": {}}
	for _, i := range list {
		if crossed[i.Spec.Deployment] == nil {
			continue // another test's, which goes
		}
		if n := countersOf(ctx, t, api(t), i.Spec.Node).Vports[i.Spec.Vport].Out.Packets; n > 0 {
			crossed[i.Spec.Deployment][i.Spec.Node] = int(n)
		}
	}
	return crossed
}

// askOnce asks from a port that the kernel chooses: a flow of its own.
func askOnce(port int) error {
	c, err := net.DialUDP("udp", nil, &net.UDPAddr{IP: net.IPv4(10, 9, 0, 2), Port: port})
	if err != nil {
		return err
	}
	defer c.Close()
	return ask(c, time.Minute)
}
