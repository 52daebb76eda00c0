package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/manifest"
	"github.com/onpath/onpath/cli/functest"
	"github.com/onpath/onpath/internal/funcbuild"
)

// tested is what a test found.
type tested struct {
	Source string `json:"source"`
	// Targets are those it ran for; Lacking says why it did not run for others.
	Targets []funcbuild.Target          `json:"targets"`
	Lacking map[funcbuild.Target]string `json:"lacking,omitempty"`
	Cases   int                         `json:"cases"`
	Failed  []string                    `json:"failed,omitempty"`
	Random  int                         `json:"random"` // packets
	Seed    uint64                      `json:"seed"`
	Differs string                      `json:"differs,omitempty"`
	Edits   bool                        `json:"edits,omitempty"` // packets
	// Counters are the function's after all packets.
	Counters map[string]uint64 `json:"counters,omitempty"`
}

func newFunctionTest(g *global) *cobra.Command {
	n, seed := 1000, uint64(0)
	c := &cobra.Command{
		Use:   "test DIR|FILE.c",
		Short: "Give a function packets, as wasm and as ebpf, and compare",
		Long: `Compile the C file in a folder, run it by itself as WebAssembly and, as root, as
eBPF in the kernel, and give both the same packets: the cases of test.yaml beside
the source, then random packets of few flows. What becomes of them, what the
function makes of them and its counters must agree. What depends on the kernel's
clock, on random numbers or on a table that is full cannot.`,
		Example: examples("sudo onpath function test ./mine", "sudo onpath function test ./mine --random 100000 --seed 7"),
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := g.checkOutput(); err != nil {
				return err
			}
			if !c.Flags().Changed("seed") {
				seed = rand.Uint64N(1 << 32)
			}
			out, err := testFunction(c, args[0], n, seed)
			if err != nil {
				return err
			}
			if err := g.print(c, out, out.write); err != nil {
				return err
			}
			return out.err()
		},
	}
	c.Flags().IntVar(&n, "random", n, "so many random packets")
	c.Flags().Uint64Var(&seed, "seed", 0, "repeat the random packets of this number (default: others each time)")
	return c
}

func testFunction(c *cobra.Command, dir string, n int, seed uint64) (*tested, error) {
	source, _, err := funcbuild.Source(dir)
	if err != nil {
		return nil, onpath.Errorf(onpath.CodeInvalid, "%w", err)
	}
	var spec functest.Spec
	file := filepath.Join(filepath.Dir(source), "test.yaml")
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		if _, err := manifest.ReadStrict(file, &spec); err != nil {
			return nil, err
		}
	}
	f, err := functest.Open(c.Context(), source, spec.Config, c.ErrOrStderr())
	if errors.Is(err, funcbuild.ErrLacking) {
		return nil, onpath.Errorf(onpath.CodeUnavailable, "%w", err)
	}
	if err != nil {
		return nil, onpath.Errorf(onpath.CodeInvalid, "%w", err)
	}
	defer f.Close()
	t := &tested{Source: filepath.Clean(source), Lacking: f.Lacking, Cases: len(spec.Cases), Seed: seed}
	for _, target := range functest.Targets {
		if f.Runs(target) {
			t.Targets = append(t.Targets, target)
		}
	}
	for i := range spec.Cases {
		if err := f.Check(c.Context(), &spec.Cases[i]); err != nil {
			t.Failed = append(t.Failed, fmt.Sprintf("%s: %v", spec.Cases[i].Name, err))
		}
	}
	if len(t.Failed) > 0 { // what comes next would only say it again
		return t, nil
	}
	if t.Random, err = f.Random(c.Context(), n, seed, spec.Cases); err != nil {
		t.Differs = err.Error()
		return t, c.Context().Err()
	}
	t.Edits = f.Edits
	t.Counters, err = f.Counters(c.Context())
	return t, err
}

func (t *tested) err() error {
	switch {
	case len(t.Failed) > 0:
		return onpath.Errorf(onpath.CodeInvalid, "%s: %d of %d cases are not as wanted", t.Source, len(t.Failed), t.Cases)
	case t.Differs != "":
		return onpath.Errorf(onpath.CodeInvalid, "%s: a random packet shows a fault", t.Source)
	}
	return nil
}

func (t *tested) write(w io.Writer) error {
	for _, target := range functest.Targets {
		if why := t.Lacking[target]; why != "" {
			fmt.Fprintf(w, "%-6s  is not tested: %s\n", target, why)
		}
	}
	fmt.Fprintf(w, "cases   %d of %d as wanted, on %v\n", t.Cases-len(t.Failed), t.Cases, t.Targets)
	for _, why := range t.Failed {
		fmt.Fprintf(w, "  %s\n", why)
	}
	if len(t.Failed) > 0 {
		return nil
	}
	if t.Differs != "" {
		_, err := fmt.Fprintf(w, "random  %s\n", t.Differs)
		return err
	}
	same := "no fault"
	if len(t.Targets) > 1 {
		same = "no difference"
	}
	fmt.Fprintf(w, "random  %d packets of seed %d: %s\n", t.Random, t.Seed, same)
	if t.Edits {
		fmt.Fprintln(w, "edits   packets: set `packets: rewrite` in its Function, or the engine discards the edits")
	}
	for _, name := range slices.Sorted(maps.Keys(t.Counters)) {
		fmt.Fprintf(w, "  %s %d\n", name, t.Counters[name])
	}
	return nil
}
