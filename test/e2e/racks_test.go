package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/api/wire"
)

const racksChain = `
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: racks}
spec:
  from: {hosts: client}
  to: {hosts: origin}
  distribution: DISTRIBUTION
  through:
  - {deployment: first}
  - {deployment: second}
---
apiVersion: onpath/v1alpha1
kind: Deployment
metadata: {name: first}
spec: {function: hop, instances: 3, drain: 1s, place: {nodes: {figure: "7"}}}
---
apiVersion: onpath/v1alpha1
kind: Deployment
metadata: {name: second}
spec: {function: hop, instances: 4, drain: 1s, place: {nodes: {figure: "7"}}}
`

// TestRacks is Stratos' Figure 7 with 20,000 flows: three instances before four in two racks.
// Between racks there is a third of what a uniform split sends; every instance has its share;
// when one is killed that its rack prefers, every flow finds another, and verify agrees.
func TestRacks(t *testing.T) {
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set; it opens 40,000 flows (demo scale shows it with 10,000)")
	}
	ctx := need(t, 8*time.Minute)
	inRacks(ctx, t)
	port := udpEcho(t, "10.9.0.2")
	const flows = 20000
	crossing := map[string]float64{}
	for _, distribution := range []string{"uniform", "network"} {
		t.Run(distribution, func(t *testing.T) {
			apply(ctx, t, strings.Replace(racksChain, "DISTRIBUTION", distribution, 1))
			active(ctx, t, "racks")
			ready(ctx, t, 7)
			time.Sleep(time.Second) // the gateway hears of the last ones
			openFlows(t, flows, port)()
			nodes, shares, crossed := split(ctx, t, port)
			total, least, most := 0, flows, 0
			for _, n := range shares {
				total, least, most = total+n, min(least, n), max(most, n)
			}
			crossing[distribution] = float64(crossed) / float64(max(total, 1))
			t.Logf("%s: %.1f %% of %d flows go from rack to rack; %d to %d flows of an instance", distribution, 100*crossing[distribution], total, least, most)
			if total < flows*95/100 || len(shares) != 4 || least*4 < total*95/100 || most*4 > total*105/100 {
				t.Errorf("of %d flows, instances have %v", total, shares)
			}
			if distribution == "network" {
				killPreferred(ctx, t, nodes, port)
			}
		})
	}
	if crossing["network"] > 0.36*crossing["uniform"] {
		t.Errorf("network sends %.2f of what uniform sends between racks, more than 0.36", crossing["network"]/crossing["uniform"])
	}
	t.Logf("network sends %.3f of what uniform sends between racks", crossing["network"]/crossing["uniform"])
}

// inRacks labels two nodes with racks for as long as the test lasts.
func inRacks(ctx context.Context, t *testing.T) {
	t.Helper()
	text, err := os.ReadFile("testdata/nodes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	labelled := string(text)
	for node, rack := range map[string]string{"n1": "a", "n2": "b"} {
		labelled = strings.Replace(labelled, fmt.Sprintf("{name: %s}", node), fmt.Sprintf("{name: %s, labels: {figure: \"7\", rack: %s}}", node, rack), 1)
	}
	file := filepath.Join(t.TempDir(), "nodes.yaml")
	if err := os.WriteFile(file, []byte(labelled), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := testbed.Apply(context.Background(), "testdata/nodes.yaml"); err != nil {
			t.Error(err)
		}
	})
	if err := testbed.Apply(ctx, file); err != nil {
		t.Fatal(err)
	}
}

// split reads from flow entries how flows go on from first to second: to which vports, and how
// many of them to the other node. nodes are those of all instances.
func split(ctx context.Context, t *testing.T, port int) (nodes map[onpath.VportID]string, shares map[onpath.VportID]int, crossed int) {
	t.Helper()
	list, err := testbed.Instances(ctx)
	if err != nil {
		t.Fatal(err)
	}
	nodes, shares = map[onpath.VportID]string{}, map[onpath.VportID]int{}
	deployments := map[onpath.VportID]string{}
	for _, i := range list {
		nodes[i.Spec.Vport], deployments[i.Spec.Vport] = i.Spec.Node, i.Spec.Deployment
	}
	seen := map[onpath.Tuple]bool{}
	for _, node := range []string{"n1", "n2"} {
		err := api(t).Flows(ctx, client.FlowsOf{Node: node}, func(f wire.Flow) bool {
			e := f.Entry
			if e.Reverse || int(e.Tuple.DstPort) != port || deployments[e.Vport] != "first" || deployments[e.Next] != "second" || seen[e.Tuple] {
				return true
			}
			seen[e.Tuple] = true
			shares[e.Next]++
			if nodes[e.Vport] != nodes[e.Next] {
				crossed++
			}
			return true
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return nodes, shares, crossed
}

// killPreferred kills an instance of second, and has old and new flows ask until each has an
// answer.
func killPreferred(ctx context.Context, t *testing.T, nodes map[onpath.VportID]string, port int) {
	t.Helper()
	list, err := testbed.Instances(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range list {
		if i.Spec.Deployment == "second" {
			killInstance(ctx, t, i)
			t.Logf("%s on %s was killed", i.Metadata.Name, nodes[i.Spec.Vport])
			break
		}
	}
	again, lost := 0, 0
	for k := range 3000 { // 2,000 of before, and 1,000 new ones
		source := 20000 + k
		if k >= 2000 {
			source = 45000 + k
		}
		var c *net.UDPConn
		in(t, "client", func() (err error) {
			c, err = net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP("10.1.0.2"), Port: source}, &net.UDPAddr{IP: net.ParseIP("10.9.0.2"), Port: port})
			return err
		})
		answered := ask(c, 500*time.Millisecond) == nil
		if !answered {
			again++
			answered = ask(c, 2*time.Second) == nil
		}
		if !answered {
			lost++
		}
		c.Close()
	}
	t.Logf("3,000 flows asked while it was away: %d a second time", again)
	if lost > 0 {
		t.Errorf("%d of 3,000 flows had no instance", lost)
	}
	ready(ctx, t, 7)
	err = testbed.WaitFor(ctx, "verify proves the rules in force", time.Minute, func() (bool, error) {
		out, err := testbed.Onpath(ctx, "verify", "--live")
		if err != nil {
			t.Logf("not yet: %s", out)
		}
		return err == nil, nil
	})
	if err != nil {
		t.Error(err)
	}
}
