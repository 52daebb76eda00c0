package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/onpath/onpath/bench/testnet"
	"github.com/onpath/onpath/bench/traffic"
)

// The numbers of flows of forward, and how its cases are called.
var forwardCases = []size{{1, "64B, 1 flow"}, {1_000, "64B, 10^3 flows"}, {10_000, "64B, 10^4 flows"}, {1_000_000, "64B, 10^6 flows"}}

const (
	// metricOfThousand is a rate over that of a thousand flows in the same round.
	metricOfThousand = "rate over 10^3 flows"
	forwardStream    = "TCP, one stream"
)

func forward() Benchmark {
	return Benchmark{
		Name: "forward", rounds: 4, cost: cost{15 * time.Second, 66 * time.Second},
		Question: "packets that no chain selects, of 64 bytes or of a TCP stream, through a router that is a gateway: what does onpath take from them?",
		Targets: []Target{
			{Text: "TCP: ≥ 0.97 of plain Linux", Case: forwardStream, Contestant: "onpath-tc",
				Metric: MetricThroughput, Of: "linux", Min: 0.97},
			{Text: "10⁴ flows: ≥ 0.85 of plain Linux", Case: "64B, 10^4 flows", Contestant: "onpath-tc", Metric: MetricRate, Of: "linux", Min: 0.85},
		},
		run: runForward,
	}
}

func runForward(ctx context.Context, r *Run) error {
	err := r.streams(ctx, forwardStream, streamsEach*r.Rounds(), siteMaker{"linux", forwardPlainly}, siteMaker{"onpath-tc", passOthers})
	return errors.Join(err, r.forwardFrames(ctx))
}

// streamsEach is how many rounds of streams are to one of frames: they differ more.
const streamsEach = 2

func forwardPlainly(_ context.Context, _ *Run, t *site) error {
	return testnet.Set(t.gateway, "ipv4/ip_forward=1")
}

// passOthers is the same at a gateway with a chain for other traffic.
func passOthers(ctx context.Context, r *Run, t *site) error {
	_, err := t.steer(ctx, r, otherTraffic)
	return err
}

func (r *Run) forwardFrames(ctx context.Context) (err error) {
	lines, err := r.routers(ctx, []router{
		linuxRouter(), xdpRouter(), tcRouter(), queueRouter(), ovsRouter("ovs", ovsForward),
		onpathRouter("onpath-tc", 0, onTC, otherTraffic, nil),
		onpathRouter("onpath-xdp", 0, onXDP, otherTraffic, nil),
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
				if searched(c.name) && (k.n > searchedFlows[c.name] || round >= searchedRounds) {
					return nil
				}
				r.say("round %d of %d, %s, %s", round+1, r.Rounds(), k.name, c.name)
				return r.forwardTrial(ctx, k.name, k.n, round, c)
			})
			if err != nil {
				return err
			}
		}
	}
	r.overThousand(cases[1].name, cases)
	return r.profileMissed(ctx, func(kase, contestant string) (func() error, error) {
		i := slices.IndexFunc(lines, func(c built) bool { return c.name == contestant })
		k := slices.IndexFunc(forwardCases, func(k size) bool { return k.name == kase })
		if i < 0 || k < 0 {
			return nil, nil
		}
		flows := flowsOf(forwardCases[k].n)
		return func() error {
			_, err := lines[i].try(ctx, r.forwardJob(flows))
			return err
		}, lines[i].establish(ctx, flows)
	})
}

// forwardJob is a trial's traffic.
func (r *Run) forwardJob(flows traffic.Flows) traffic.Job {
	return traffic.Job{Flows: flows, Order: traffic.Random, Time: pick(r, 1500*time.Millisecond, 100*time.Millisecond)}
}

// Those in user space are offered less and less until they lose nothing, which
// takes many trials: not in all rounds, and nfqueue, which does the same whatever
// the number of flows, with one flow alone.
const searchedRounds = 3

// searchedFlows are those contestants, and the most flows that each is tried with.
var searchedFlows = map[string]int{"nfqueue": 1, "ovs": 10_000, "ovs-hash": 10_000}

func searched(contestant string) bool { return searchedFlows[contestant] > 0 }

// forwardTrial establishes the flows of a case and measures one contestant.
func (r *Run) forwardTrial(ctx context.Context, kase string, flows, round int, c built) error {
	if err := c.establish(ctx, flowsOf(flows)); err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	t, err := c.maximum(ctx, r.forwardJob(flowsOf(flows)))
	if err != nil {
		return fmt.Errorf("%s, %s: %w", c.name, kase, err)
	}
	r.sample(kase, c.name, MetricRate, "packets/s", round, t.rate())
	r.sample(kase, c.name, MetricCPU, "ns/packet", round, t.cpu())
	return nil
}

// overThousand puts the rates of cases in relation to the contestant's own at a thousand
// flows, round by round.
func (r *Run) overThousand(base string, cases []size) {
	for _, k := range append([]sampleKey(nil), r.order...) {
		if k.metric != MetricRate || k.kase == base || !slices.ContainsFunc(cases, func(c size) bool { return c.name == k.kase }) {
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
