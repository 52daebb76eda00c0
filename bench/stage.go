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

//go:embed stage/lab.yaml
var stageLab string

//go:embed stage/objects.yaml
var stageObjects string

//go:embed stage/gateway.yaml
var stageGateway string

// With a pair of gateways.
var (
	//go:embed stage/pair.yaml
	pairLab string
	//go:embed stage/gateways.yaml
	pairGateways string
)

// stageDir is where a stage keeps its state and logs, and copies of the programs that
// run in it, this and an earlier one: containers of the host's files see them there.
const (
	stageDir      = "/var/lib/onpath-bench-stage"
	stageProgram  = stageDir + "/bin/onpath"
	stagePrevious = stageDir + "/bin/onpath-previous"
)

// stage is a real server and real nodes in an emulated network.
type stage struct {
	*demo.Stage
}

var oneGateway = map[string]string{"gw": "10.255.0.1"}

// newStage sets one up, or gives lacking.
func (r *Run) newStage(ctx context.Context) (*stage, error) {
	return r.stageOf(ctx, stageProgram, stageLab, stageGateway, oneGateway)
}

// newPreviousStage sets one up in which the earlier program runs.
func (r *Run) newPreviousStage(ctx context.Context) (*stage, error) {
	return r.stageOf(ctx, stagePrevious, stageLab, stageGateway, oneGateway)
}

// newPairStage sets one up with two gateways, gw1 and gw2.
func (r *Run) newPairStage(ctx context.Context) (*stage, error) {
	return r.stageOf(ctx, stageProgram, pairLab, pairGateways, map[string]string{"gw1": "10.255.0.1", "gw2": "10.255.0.2"})
}

// stageOf sets up a stage of a lab that runs a program, with gateways by underlay
// address.
func (r *Run) stageOf(ctx context.Context, bin, network, objects string, gateways map[string]string) (*stage, error) {
	if r.Program == "" {
		return nil, lacking("it runs the onpath program, which was not named")
	}
	for _, p := range container.Probe(ctx) {
		if p.Required && !p.Found {
			return nil, lacking("containers need " + p.Name + ", which is not installed")
		}
	}
	t, err := lab.Parse(strings.NewReader(network), "stage")
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(stageDir, 0o755); err != nil {
		return nil, fmt.Errorf("make %s: %w", stageDir, err)
	}
	if err := copyProgram(r.Program, stageProgram); err != nil {
		return nil, err
	}
	if bin == stagePrevious {
		if err := copyProgram(r.Previous, stagePrevious); err != nil {
			return nil, err
		}
	}
	spec := demo.StageSpec{Topology: t, Bin: bin, Dir: stageDir, HostImage: true, Server: demo.StageNode{Host: "server", Address: "10.255.0.10"},
		Progress: func(s string) { r.say("%s", s) }}
	nodes := map[string]string{"n1": "10.255.0.11", "n2": "10.255.0.12"}
	maps.Copy(nodes, gateways)
	for name, address := range nodes {
		spec.Nodes = append(spec.Nodes, demo.StageNode{Name: name, Host: name, Address: address, Cloudlet: "pop"})
	}
	s, err := demo.SetUp(ctx, spec)
	if err != nil {
		return nil, err
	}
	st := &stage{s}
	if err := st.apply(ctx, strings.ReplaceAll(stageObjects, "PROGRAM", bin)+"---\n"+objects); err != nil {
		return nil, errors.Join(err, st.close(ctx))
	}
	return st, nil
}

func (s *stage) close(ctx context.Context) error {
	return errors.Join(s.TearDown(context.WithoutCancel(ctx)), os.RemoveAll(stageDir))
}

// removeStage takes away what a crash left.
func removeStage(ctx context.Context) error {
	if _, err := os.Stat(stageDir); err != nil {
		return nil
	}
	return errors.Join(demo.Down(ctx, stageDir, io.Discard), os.RemoveAll(stageDir))
}

// apply applies YAML.
func (s *stage) apply(ctx context.Context, yaml string) error {
	file := filepath.Join(stageDir, "apply.yaml")
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
