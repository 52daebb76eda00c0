package bench

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/bench/traffic"
)

//go:embed count_bpfel.o
var countFunction []byte

// The lengths of chains of ebpf functions, and what a further function costs.
var inlineLengths = []int{1, 2, 4, 8}

const metricFunction = "CPU of a further function"

func inlineCase(n int) string {
	if n == 1 {
		return "64B, 1 flow, 1 function"
	}
	return fmt.Sprintf("64B, 1 flow, %d functions", n)
}

func inlineChain() Benchmark {
	b := Benchmark{
		Name: "ebpf-chain", rounds: 6,
		Question: "the same through 1, 2, 4 and 8 ebpf functions that count what passes",
		Targets: []Target{
			{Text: "1 function: ≥ 2.2 × plain Linux", Case: inlineCase(1), Contestant: "onpath-xdp", Metric: MetricRate, Of: "linux", Min: 2.2},
		},
		run: runInline,
	}
	for i, n := range inlineLengths[1:] {
		b.Targets = append(b.Targets, Target{Text: fmt.Sprintf("each function from %d to %d: ≤ 30 ns plus its own work", inlineLengths[i]+1, n),
			Case: inlineCase(n), Contestant: "onpath-xdp", Metric: metricFunction, Max: 30})
	}
	return b
}

func runInline(ctx context.Context, r *Run) (err error) {
	list := []router{linuxRouter()}
	cases := map[string]int{} // contestant → functions
	for _, n := range inlineLengths {
		for _, mode := range []struct {
			name string
			fast onpath.Fast
		}{{"onpath-tc", onTC}, {"onpath-xdp", onXDP}} {
			c := onpathInline(fmt.Sprintf("%s-%d", mode.name, n), n, mode.fast)
			cases[c.name] = n
			list = append(list, c)
		}
	}
	lines, err := r.routers(ctx, list)
	defer func() { err = errors.Join(err, closeAll(lines)) }()
	if err != nil {
		return err
	}
	err = abba(ctx, r.Rounds(), lines, func(round int, c built) error {
		r.say("round %d of %d, %s", round+1, r.Rounds(), c.name)
		if err := c.establish(ctx, flowsOf(1)); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		t, err := c.maximum(ctx, traffic.Job{Flows: flowsOf(1), Time: pick(r, 1500*time.Millisecond, 100*time.Millisecond)})
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		if c.name != "linux" {
			r.inlineSample(c.name[:len(c.name)-2], cases[c.name], round, t)
			return nil
		}
		for _, n := range inlineLengths {
			r.inlineSample("linux", n, round, t)
		}
		return nil
	})
	r.furtherFunctions()
	return err
}

func (r *Run) inlineSample(contestant string, n, round int, t trial) {
	r.sample(inlineCase(n), contestant, MetricRate, "packets/s", round, t.rate())
	r.sample(inlineCase(n), contestant, MetricCPU, "ns/packet", round, t.cpu())
}

// furtherFunctions compares the time of a packet with that in the next shorter
// chain of the same round.
func (r *Run) furtherFunctions() {
	for _, name := range []string{"onpath-tc", "onpath-xdp"} {
		for i, n := range inlineLengths[1:] {
			shorter := inlineLengths[i]
			base := r.values[sampleKey{inlineCase(shorter), name, MetricRate, "packets/s"}]
			for round, rate := range r.values[sampleKey{inlineCase(n), name, MetricRate, "packets/s"}] {
				if base[round] > 0 {
					r.sample(inlineCase(n), name, metricFunction, "ns", round, (1e9/rate-1e9/base[round])/float64(n-shorter))
				}
			}
		}
	}
}

// onpathInline is a chain of n instances of a function that counts.
func onpathInline(name string, n int, fast onpath.Fast) router {
	return onpathRouter(name, 0, fast, func(l *line) (*onpath.DatapathConfig, error) {
		file := filepath.Join(l.Dir(), "count.o")
		if err := os.WriteFile(file, countFunction, 0o600); err != nil {
			return nil, fmt.Errorf("write the function: %w", err)
		}
		l.After(func() error { return os.Remove(file) })
		sum := sha256.Sum256(countFunction)
		var elements []element
		var functions []onpath.InlineFunction
		for i := range n {
			id := onpath.VportID(32 + i)
			elements = append(elements, routedElement(id))
			functions = append(functions, onpath.InlineFunction{Vport: id, Object: file, SHA256: hex.EncodeToString(sum[:]),
				Maps: filepath.Join(pinPath, filepath.Base(l.Dir())+"-functions", fmt.Sprint(id))})
		}
		c := chainConfig(toServers(), elements...)
		c.Functions = functions
		for i := range c.Vports {
			v := &c.Vports[i]
			*v = onpath.Vport{ID: v.ID, Kind: onpath.VportFunction, State: onpath.VportUp, Instance: v.Instance, Tenant: v.Tenant, Packets: onpath.PacketsKeep, Entry: edgeVport}
		}
		return c, nil
	})
}
