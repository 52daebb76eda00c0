package cli

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/netip"
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
	var replay replayed
	c := &cobra.Command{
		Use:   "test DIR|FILE.c",
		Short: "Give a function packets, as wasm and as ebpf, and compare",
		Long: `Compile the C file in a folder, run it by itself as WebAssembly and, as root, as
eBPF in the kernel, and give both the same packets: the cases of test.yaml beside
the source, then random packets of few flows. What becomes of them, what the
function makes of them and its counters must agree. What depends on the kernel's
clock, on random numbers or on a table that is full cannot.

With --pcap the packets are those of a capture (pcap or pcapng), in its order and
at its times. Each is printed with its verdict, what the function changed and
what its counters grew by; -o json writes one object a line, the last of them for
the whole. The configuration is that of test.yaml. Packets that the data path
gives to no function are printed with the reason.`,
		Example: examples("sudo onpath function test ./mine", "sudo onpath function test ./mine --random 100000 --seed 7",
			"sudo onpath function test ./mine --pcap web.pcapng --client 10.1.0.0/16 --write out.pcapng"),
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := g.checkOutput(); err != nil {
				return err
			}
			if n < 0 {
				return badUsage("--random %d must be 0 or more", n)
			}
			if replay.file != "" {
				for _, name := range []string{"random", "seed"} {
					if c.Flags().Changed(name) {
						return badUsage("--%s says what random packets are made, and --pcap gives others: leave one of the two out", name)
					}
				}
				return replay.run(c, g, args[0])
			}
			if err := replay.unused(c); err != nil {
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
	c.Flags().StringVar(&replay.file, "pcap", "", "give it the packets of this capture instead, - for standard input")
	c.Flags().StringSliceVar(&replay.clients, "client", nil,
		"with --pcap: prefixes of the clients, whose packets go forward (default: who sends the first packet of a flow)")
	c.Flags().StringVar(&replay.write, "write", "",
		"with --pcap: write the packets as they came out to this pcapng file, - for standard output, with verdicts as comments")
	return c
}

// replayed is how a capture is replayed.
type replayed struct {
	file, write string
	clients     []string
}

// unused refuses what means nothing without a capture.
func (r *replayed) unused(c *cobra.Command) error {
	for _, name := range []string{"client", "write"} {
		if c.Flags().Changed(name) {
			return badUsage("--%s says what to do with a capture: name one with --pcap", name)
		}
	}
	return nil
}

func (r *replayed) prefixes() (list []netip.Prefix, err error) {
	for _, s := range r.clients {
		p, err := netip.ParsePrefix(s)
		if a, e := netip.ParseAddr(s); e == nil {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil {
			return nil, badUsage("--client %s is no prefix; write 10.1.0.0/16 or 2001:db8::/32", s)
		}
		list = append(list, p)
	}
	return list, nil
}

// run gives a function the packets of a capture, and prints what becomes of each.
func (r *replayed) run(c *cobra.Command, g *global, dir string) error {
	if g.output == outYAML {
		return badUsage("--pcap prints as table or json")
	}
	clients, err := r.prefixes()
	if err != nil {
		return err
	}
	in := c.InOrStdin()
	if r.file != "-" {
		f, err := os.Open(r.file)
		if err != nil {
			return onpath.Errorf(onpath.CodeInvalid, "%w", err)
		}
		defer f.Close()
		in = f
		if here, err := f.Stat(); err == nil {
			if there, err := os.Stat(r.write); err == nil && os.SameFile(here, there) {
				return badUsage("--write %s is the capture itself: name another file", r.write)
			}
		}
	}
	capture, err := functest.ReadCapture(r.file, in)
	if err != nil {
		return err
	}
	f, _, err := openFunction(c, dir)
	if err != nil {
		return err
	}
	defer f.Close()
	out, writer := bufio.NewWriter(c.OutOrStdout()), (*functest.Writer)(nil)
	if r.write == "-" {
		out = bufio.NewWriter(c.ErrOrStderr()) // the packets go to standard output
	}
	if r.write != "" {
		if r.write != "-" {
			if err := canWrite("--write", r.write); err != nil {
				return err
			}
		}
		file, err := captureFile(c, r.write)
		if err != nil {
			return err
		}
		defer file.Close()
		writer = functest.NewWriter(file)
	}
	show := func(value any, asText func(io.Writer) error) error {
		if g.output == outJSON {
			return json.NewEncoder(out).Encode(value)
		}
		return asText(out)
	}
	sum, err := f.Replay(c.Context(), capture, clients, func(m *functest.Met) error {
		err := show(m, m.Write)
		if writer != nil {
			err = errors.Join(err, writer.Write(m))
		}
		if r.file == "-" { // who sends it waits to see
			err = errors.Join(err, out.Flush())
		}
		return err
	})
	if writer != nil {
		err = errors.Join(err, writer.Flush())
	}
	if err == nil {
		err = show(sum, sum.Write)
	}
	if err = errors.Join(err, out.Flush()); err == nil && sum.Differ > 0 {
		err = onpath.Errorf(onpath.CodeInvalid, "%s: the targets differ on %d of %d packets", dir, sum.Differ, sum.Packets)
	}
	return err
}

// openFunction compiles and starts the function in a folder, with what its test.yaml says.
func openFunction(c *cobra.Command, dir string) (f *functest.Function, spec functest.Spec, err error) {
	source, _, err := funcbuild.Source(dir)
	if err != nil {
		return nil, spec, onpath.Errorf(onpath.CodeInvalid, "%w", err)
	}
	file := filepath.Join(filepath.Dir(source), "test.yaml")
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		if _, err := manifest.ReadStrict(file, &spec); err != nil {
			return nil, spec, err
		}
	}
	f, err = functest.Open(c.Context(), source, spec.Config, c.ErrOrStderr())
	if errors.Is(err, funcbuild.ErrLacking) {
		return nil, spec, onpath.Errorf(onpath.CodeUnavailable, "%w", err)
	}
	if err != nil {
		return nil, spec, onpath.Errorf(onpath.CodeInvalid, "%w", err)
	}
	return f, spec, nil
}

func testFunction(c *cobra.Command, dir string, n int, seed uint64) (*tested, error) {
	f, spec, err := openFunction(c, dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t := &tested{Source: f.Source, Lacking: f.Lacking, Cases: len(spec.Cases), Seed: seed}
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
