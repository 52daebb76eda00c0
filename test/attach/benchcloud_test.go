package attach_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/onpath/onpath/demo"
	"github.com/onpath/onpath/lab"
	"github.com/onpath/onpath/measure/trial"
)

// hop forwards what it gets, with the machine's own programs.
const hop = `apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: hop}
spec:
  container: {image: host, command: [sleep, infinity], attach: routed, addresses: none}
  state: none
  packets: keep
  resources: {cpu: 100m, memory: 32Mi}
`

// TestBenchCloud: onpath bench cloud finds what a cloud drops, measures directly and through
// a function, and leaves no chain.
func TestBenchCloud(t *testing.T) {
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set; it takes twenty seconds")
	}
	topology, err := lab.ParseFile("../../examples/lab/cloud-protocols.yaml")
	if err != nil {
		t.Fatal(err)
	}
	topology.Name = fmt.Sprintf("cloud-%d", os.Getpid())
	spec := demo.TestbedSpec{Topology: topology, Server: demo.TestbedNode{Host: "server", Address: "10.21.0.1"}}
	for i, name := range []string{"vm1", "vm2", "vm3"} {
		spec.Nodes = append(spec.Nodes, demo.TestbedNode{Name: name, Host: name, Address: fmt.Sprintf("10.21.0.%d", 11+i),
			Cloudlet: "cloud", AttachHost: name != "vm3"})
	}
	c, ctx := setUp(t, spec, 3*time.Minute)
	file := filepath.Join(t.TempDir(), "hop.yaml")
	if err := os.WriteFile(file, []byte(hop), 0o644); err != nil {
		t.Fatal(err)
	}
	c.must(ctx, "apply", "-f", file)
	var r struct {
		Pairs []struct {
			From, To string
			Packets  []trial.Packet
		}
		Ways []struct {
			Name                string
			TCP, UDP, RoundTrip *struct{ Median float64 }
		}
	}
	if err := json.Unmarshal([]byte(c.must(ctx, "bench", "cloud", "--nodes", "vm1,vm3,vm2", "--function", "hop", "--quick", "-o", "json")), &r); err != nil {
		t.Fatal(err)
	}
	for _, p := range r.Pairs {
		got := trial.Result{Packets: p.Packets}
		if !got.Passes(trial.TCP) || !got.Passes(trial.UDP) || got.Passes(trial.GRE) || got.Passes(trial.Other) || got.Largest() != 1500 {
			t.Errorf("from %s to %s: %+v", p.From, p.To, p.Packets)
		}
	}
	if len(r.Ways) != 2 || r.Ways[0].Name != "direct" || r.Ways[1].Name != "vxlan" {
		t.Fatalf("ways %+v", r.Ways)
	}
	for _, w := range r.Ways {
		if w.TCP == nil || w.UDP == nil || w.RoundTrip == nil {
			t.Errorf("%s: %+v", w.Name, w)
		}
	}
	if out := c.must(ctx, "get", "chains,hosts"); out != "" && out != "no chains, hosts\n" {
		t.Errorf("left: %s", out)
	}
}
