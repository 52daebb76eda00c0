package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onpath/onpath/bench/traffic"
)

// The numbers of flows of forward, and how its cases are called.
var forwardCases = []struct {
	flows int
	name  string
}{{1, "64B, 1 flow"}, {1_000, "64B, 10^3 flows"}, {10_000, "64B, 10^4 flows"}, {1_000_000, "64B, 10^6 flows"}}

// metricOfThousand is a rate over that of a thousand flows in the same round.
const metricOfThousand = "rate over 10^3 flows"

func forward() Benchmark {
	return Benchmark{
		Name: "forward", rounds: 6,
		Question: "64-byte packets of established flows through a router, no function: what can one core forward?",
		Targets: []Target{
			{Text: "1 flow: ≥ 0.88 of bare XDP", Case: "64B, 1 flow", Contestant: "onpath-xdp", Metric: MetricRate, Of: "xdp", Min: 0.88},
			{Text: "1 flow: ≥ 2.5 × plain Linux", Case: "64B, 1 flow", Contestant: "onpath-xdp", Metric: MetricRate, Of: "linux", Min: 2.5},
			{Text: "10⁴ flows: ≥ 0.75 of bare XDP", Case: "64B, 10^4 flows", Contestant: "onpath-xdp", Metric: MetricRate, Of: "xdp", Min: 0.75},
			{Text: "10⁶ flows: ≥ 0.6 of the rate at 10³", Case: "64B, 10^6 flows", Contestant: "onpath-xdp", Metric: metricOfThousand, Min: 0.6},
		},
		run: runForward,
	}
}

// forwardEntries has room for a million flows, both directions, and as much
// again: a full table forgets.
const forwardEntries = 4 << 20

func runForward(ctx context.Context, r *Run) (err error) {
	entries := pick(r, forwardEntries, 1<<17)
	lines, err := r.routers(ctx, []router{
		linuxRouter(), xdpRouter(), tcRouter(), queueRouter(),
		onpathRouter("onpath-tc", entries, onTC, throughConfig),
		onpathRouter("onpath-xdp", entries, onXDP, throughConfig),
	})
	defer func() { err = errors.Join(err, closeAll(lines)) }()
	if err != nil {
		return err
	}
	cases := forwardCases
	if r.Quick {
		cases = cases[:2]
	}
	for round := range r.Rounds() { // all cases in each round: they are compared too
		for _, k := range cases {
			err := backAndForth(ctx, round, lines, func(c built) error {
				if c.name == "nfqueue" && (k.flows > 1 || round > 1) {
					return nil // its rate is searched, which takes long, and does not depend on flows
				}
				r.say("round %d of %d, %s, %s", round+1, r.Rounds(), k.name, c.name)
				return r.forwardTrial(ctx, k.name, k.flows, round, c)
			})
			if err != nil {
				return err
			}
		}
	}
	r.overThousand(cases[1].name)
	return nil
}

// forwardTrial establishes the flows of a case and measures one contestant.
func (r *Run) forwardTrial(ctx context.Context, kase string, flows, round int, c built) error {
	if err := c.establish(ctx, flowsOf(flows)); err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	t, err := c.maximum(ctx, traffic.Job{Flows: flowsOf(flows), Order: traffic.Random, Time: pick(r, 1500*time.Millisecond, 200*time.Millisecond)})
	if err != nil {
		return fmt.Errorf("%s, %s: %w", c.name, kase, err)
	}
	r.sample(kase, c.name, MetricRate, "packets/s", round, t.rate())
	r.sample(kase, c.name, MetricCPU, "ns/packet", round, t.cpu())
	return nil
}

// overThousand puts each rate in relation to the contestant's own at a thousand
// flows, round by round.
func (r *Run) overThousand(base string) {
	for _, k := range append([]sampleKey(nil), r.order...) {
		if k.metric != MetricRate || k.kase == base {
			continue
		}
		thousand := r.values[sampleKey{base, k.contestant, k.metric, k.unit}]
		for round, v := range r.values[k] {
			if thousand[round] > 0 {
				r.sample(k.kase, k.contestant, metricOfThousand, "ratio", round, v/thousand[round])
			}
		}
	}
}
