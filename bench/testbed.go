package bench

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/onpath/onpath/demo"
	"github.com/onpath/onpath/lab"
	"github.com/onpath/onpath/runtime/container"
)

//go:embed testbed/lab.yaml
var testbedLab string

//go:embed testbed/objects.yaml
var testbedObjects string

//go:embed testbed/gateway.yaml
var testbedGateway string

// With a pair of gateways.
var (
	//go:embed testbed/gateways-lab.yaml
	gatewaysLab string
	//go:embed testbed/gateways.yaml
	gatewaysObjects string
)

// testbedDir is where a testbed keeps its state and logs, and copies of the programs that
// run in it, this and an earlier one: containers of the host's files see them there.
const (
	testbedDir      = "/var/lib/onpath-bench-testbed"
	testbedProgram  = testbedDir + "/bin/onpath"
	testbedPrevious = testbedDir + "/bin/onpath-previous"
)

// testbed is a real server and real nodes in an emulated network.
type testbed struct {
	*demo.Testbed
}

var oneGateway = map[string]string{"gw": "10.255.0.1"}

// newTestbed sets one up, or gives lacking.
func (r *Run) newTestbed(ctx context.Context) (*testbed, error) {
	return r.testbedOf(ctx, testbedProgram, testbedLab, testbedGateway, oneGateway)
}

// newPreviousTestbed sets one up in which the earlier program runs.
func (r *Run) newPreviousTestbed(ctx context.Context) (*testbed, error) {
	return r.testbedOf(ctx, testbedPrevious, testbedLab, testbedGateway, oneGateway)
}

// newGatewaysTestbed sets one up with two gateways, gw1 and gw2.
func (r *Run) newGatewaysTestbed(ctx context.Context) (*testbed, error) {
	return r.testbedOf(ctx, testbedProgram, gatewaysLab, gatewaysObjects, map[string]string{"gw1": "10.255.0.1", "gw2": "10.255.0.2"})
}

// testbedOf sets up a testbed of a lab that runs a program, with gateways by underlay
// address.
func (r *Run) testbedOf(ctx context.Context, bin, network, objects string, gateways map[string]string) (*testbed, error) {
	if r.Program == "" {
		return nil, lacking("it runs the onpath program, which was not named")
	}
	for _, p := range container.Probe(ctx) {
		if p.Required && !p.Found {
			return nil, lacking("containers need " + p.Name + ", which is not installed")
		}
	}
	t, err := lab.Parse(strings.NewReader(network), "testbed")
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(testbedDir, 0o755); err != nil {
		return nil, fmt.Errorf("make %s: %w", testbedDir, err)
	}
	if err := copyProgram(r.Program, testbedProgram); err != nil {
		return nil, err
	}
	if bin == testbedPrevious {
		if err := copyProgram(r.Previous, testbedPrevious); err != nil {
			return nil, err
		}
	}
	spec := demo.TestbedSpec{Topology: t, Bin: bin, Dir: testbedDir, HostImage: true, Server: demo.TestbedNode{Host: "server", Address: "10.255.0.10"},
		Progress: func(s string) { r.say("%s", s) }}
	nodes := map[string]string{"n1": "10.255.0.11", "n2": "10.255.0.12"}
	maps.Copy(nodes, gateways)
	for name, address := range nodes {
		spec.Nodes = append(spec.Nodes, demo.TestbedNode{Name: name, Host: name, Address: address, Cloudlet: "pop"})
	}
	s, err := demo.SetUp(ctx, spec)
	if err != nil {
		return nil, err
	}
	st := &testbed{s}
	if err := st.apply(ctx, strings.ReplaceAll(testbedObjects, "PROGRAM", bin)+"---\n"+objects); err != nil {
		return nil, errors.Join(err, st.close(ctx))
	}
	return st, nil
}

func (s *testbed) close(ctx context.Context) error {
	return errors.Join(s.TearDown(context.WithoutCancel(ctx)), os.RemoveAll(testbedDir))
}

// removeTestbed takes away what a crash left.
func removeTestbed(ctx context.Context) error {
	if _, err := os.Stat(testbedDir); err != nil {
		return nil
	}
	return errors.Join(demo.Down(ctx, testbedDir, io.Discard), os.RemoveAll(testbedDir))
}

// apply applies YAML.
func (s *testbed) apply(ctx context.Context, yaml string) error {
	file := filepath.Join(testbedDir, "apply.yaml")
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		return fmt.Errorf("write objects: %w", err)
	}
	return s.Apply(ctx, file)
}

func copyProgram(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("copy the program: %w", err)
	}
	defer in.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return fmt.Errorf("copy the program: %w", err)
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return fmt.Errorf("copy the program: %w", err)
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
