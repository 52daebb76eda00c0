package bench

import (
	"context"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/bench/traffic"
)

//go:embed count_bpfel.o
var countFunction []byte

// The lengths of chains of ebpf functions, and what a further function costs.
var inlineLengths = []int{1, 2, 4, 8}

const (
	metricFunction     = "CPU of a further function"    // from the next shorter chain on
	metricEachFunction = "CPU of each further function" // over all lengths
)

func inlineCase(n int) string {
	if n == 1 {
		return "64B, 1 flow, 1 function"
	}
	return fmt.Sprintf("64B, 1 flow, %d functions", n)
}

func inlineChain() Benchmark {
	return Benchmark{
		Name: "ebpf-chain", rounds: 4, cost: cost{22 * time.Second, 22 * time.Second},
		Question: "64-byte packets through 1, 2, 4 and 8 ebpf functions that count what passes, and through one with many flows",
		Targets: []Target{
			{Text: "1 function: ≥ 2.5 × plain Linux", Case: inlineCase(1), Contestant: "onpath-xdp", Metric: MetricRate, Of: "linux", Min: 2.5},
			{Text: "1 function, 10⁴ flows: ≥ 2.3 × plain Linux", Case: inlineFlowCases[1].name,
				Contestant: "onpath-xdp", Metric: MetricRate, Of: "linux", Min: 2.3},
			{Text: "1 function, 10⁶ flows: ≥ 0.5 of the rate at 10³", Case: inlineFlowCases[2].name,
				Contestant: "onpath-xdp", Metric: metricOfThousand, Min: 0.5},
			{Text: "each further function: ≤ 30 ns, its own work included", Case: inlineCase(inlineLengths[len(inlineLengths)-1]), Contestant: "onpath-xdp", Metric: metricEachFunction, Max: 30},
		},
		run: runInline,
	}
}

// The numbers of flows through one function. Those that are compared with each other have a
// table with room for the most; the others the default one.
var inlineFlowCases = []size{
	{1_000, "64B, 10^3 flows, 1 function"}, {10_000, "64B, 10^4 flows, 1 function"}, {1_000_000, "64B, 10^6 flows, 1 function"},
}

const inlineEntries = 8 << 20

func runInline(ctx context.Context, r *Run) error {
	few, some, many := inlineFlowCases[0], inlineFlowCases[1], inlineFlowCases[2]
	compared, entries := []size{few, many}, inlineEntries
	if r.Quick {
		compared, entries = compared[:1], 0
	}
	return errors.Join(r.inlineFunctions(ctx),
		r.inlineFlows(ctx, []size{some}, linuxRouter(), inlineRouter("onpath-xdp", countFunction, 1, 0, onXDP)),
		r.inlineFlows(ctx, compared, inlineRouter("onpath-xdp", countFunction, 1, entries, onXDP)))
}

// inlineFlows measures one function with more and more flows.
func (r *Run) inlineFlows(ctx context.Context, cases []size, contestants ...router) (err error) {
	lines, err := r.routers(ctx, contestants)
	defer func() { err = errors.Join(err, closeAll(lines)) }()
	if err != nil {
		return err
	}
	for _, c := range lines { // once, as all fit into the table
		if err := c.establishMany(ctx, flowsOf(cases[len(cases)-1].n)); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	for round := range r.Rounds() {
		for _, k := range cases {
			err := backAndForth(ctx, round, lines, func(c built) error {
				r.say("round %d of %d, %s, %s", round+1, r.Rounds(), k.name, c.name)
				t, err := c.inUse(ctx, r.forwardJob(flowsOf(k.n)))
				if err != nil {
					return fmt.Errorf("%s: %w", c.name, err)
				}
				r.sample(k.name, c.name, MetricRate, "packets/s", round, t.rate())
				r.sample(k.name, c.name, MetricCPU, "ns/packet", round, t.cpu())
				return nil
			})
			if err != nil {
				return err
			}
		}
	}
	r.overThousand(cases[0].name, cases)
	return r.profileMissed(ctx, func(kase, contestant string) (func() error, error) {
		i := slices.IndexFunc(lines, func(c built) bool { return c.name == contestant })
		k := slices.IndexFunc(cases, func(k size) bool { return k.name == kase })
		if i < 0 || k < 0 {
			return nil, nil
		}
		return func() error {
			_, err := lines[i].inUse(ctx, r.forwardJob(flowsOf(cases[k].n)))
			return err
		}, nil
	})
}

// inUse is the maximum once a packet of each flow has come: a million flows rest for a
// moment between two trials, and those that have rested for 16 seconds look for their next
// hop anew.
func (l *line) inUse(ctx context.Context, job traffic.Job) (trial, error) {
	before := traffic.Job{Flows: job.Flows, Order: traffic.Sequential, Frames: uint64(job.Flows.Count)}
	if _, err := l.forth.Run(ctx, before); err != nil {
		return trial{}, err
	}
	return l.maximum(ctx, job)
}

func (r *Run) inlineFunctions(ctx context.Context) (err error) {
	list := []router{linuxRouter()}
	cases := map[string]int{} // contestant → functions
	lengths := pick(r, inlineLengths, inlineLengths[:2])
	for _, n := range lengths {
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
		t, err := c.maximum(ctx, r.inlineJob())
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		if c.name != "linux" {
			r.inlineSample(c.name[:len(c.name)-2], cases[c.name], round, t)
			return nil
		}
		for _, n := range lengths {
			r.inlineSample("linux", n, round, t)
		}
		return nil
	})
	r.furtherFunctions()
	if err != nil {
		return err
	}
	return r.profileMissed(ctx, func(kase, contestant string) (func() error, error) {
		i := slices.IndexFunc(lines, func(c built) bool {
			return cases[c.name] > 0 && inlineCase(cases[c.name]) == kase && c.name[:len(c.name)-2] == contestant
		})
		if i < 0 {
			return nil, nil
		}
		return func() error {
			_, err := lines[i].try(ctx, r.inlineJob())
			return err
		}, lines[i].establish(ctx, flowsOf(1))
	})
}

// inlineJob is a trial's traffic.
func (r *Run) inlineJob() traffic.Job {
	return traffic.Job{Flows: flowsOf(1), Time: pick(r, 1500*time.Millisecond, 100*time.Millisecond)}
}

func (r *Run) inlineSample(contestant string, n, round int, t trial) {
	r.sample(inlineCase(n), contestant, MetricRate, "packets/s", round, t.rate())
	r.sample(inlineCase(n), contestant, MetricCPU, "ns/packet", round, t.cpu())
}

// furtherFunctions compares the time of a packet with that in the next shorter
// chain of the same round, and over all lengths: chains of different lengths lie
// elsewhere in memory, which moves single steps by some ten nanoseconds.
func (r *Run) furtherFunctions() {
	for _, name := range []string{"onpath-tc", "onpath-xdp"} {
		r.eachFunction(name)
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

// eachFunction is, for each round, the slope of the line that comes closest to the
// times of a packet in chains of all lengths (least squares).
func (r *Run) eachFunction(name string) {
	last := inlineCase(inlineLengths[len(inlineLengths)-1])
	for round := range r.values[sampleKey{last, name, MetricRate, "packets/s"}] {
		var n, x, y, xx, xy float64
		for _, length := range inlineLengths {
			rate := r.values[sampleKey{inlineCase(length), name, MetricRate, "packets/s"}][round]
			if rate <= 0 {
				continue
			}
			l, t := float64(length), 1e9/rate
			n, x, y, xx, xy = n+1, x+l, y+t, xx+l*l, xy+l*t
		}
		if d := n*xx - x*x; n >= 2 && d > 0 {
			r.sample(last, name, metricEachFunction, "ns", round, (n*xy-x*y)/d)
		}
	}
}

// onpathInline is a chain of n instances of a function that counts.
func onpathInline(name string, n int, fast onpath.Fast) router {
	return inlineRouter(name, countFunction, n, 0, fast)
}

// inlineRouter is a chain of n instances of an ebpf function, with room for so many flow
// entries, 0 being the default.
func inlineRouter(name string, code []byte, n, flows int, fast onpath.Fast) router {
	return onpathRouter(name, flows, fast, inlineYAML(code, n), nil)
}

func inlineYAML(code []byte, n int) string {
	function := fmt.Sprintf("{ebpf: {object: inline, code: %s}}", base64.StdEncoding.EncodeToString(code))
	return object(onpath.KindFunction, "inline", function) + throughEach("inline", n, netServers.String())
}
