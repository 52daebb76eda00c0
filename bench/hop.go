package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/bench/traffic"
)

// The metrics of hop.
const (
	metricDelay      = "delay, median"
	metricDelay99    = "delay, p99"
	metricAdded      = "added delay, median"
	metricAdded99    = "added delay, p99"
	hopCase          = "64B, 20,000 packets/s"
	hopRate          = 20_000
	hopFullCase      = "64B, as many as one core forwards"
	unitMicroseconds = "µs"
)

func hopBenchmark() Benchmark {
	return Benchmark{
		Name: "hop", rounds: 5, cost: cost{5 * time.Second, 16 * time.Second},
		Question: "what delay does one lightweight service, a namespace wired as a container's, add to plain Linux forwarding, all on one core?",
		Targets: []Target{
			{Text: "≤ 6 µs median", Case: hopCase, Contestant: "onpath-tc", Metric: metricAdded, Max: 6},
			{Text: "≤ 20 µs p99", Case: hopCase, Contestant: "onpath-tc", Metric: metricAdded99, Max: 20},
			{Text: "rate: ≥ 0.8 of the same wired by hand", Case: hopFullCase, Contestant: "onpath-tc",
				Metric: MetricRate, Of: "static", Min: 0.8},
		},
		run: runHop,
	}
}

// byHand is the vport after which the devices of an instance that is wired by hand are named.
const byHand = onpath.VportID(16)

func runHop(ctx context.Context, r *Run) (err error) {
	lines, err := r.routers(ctx, []router{linuxRouter(), staticHop(), onpathHop("onpath-tc", onTC), onpathHop("onpath-xdp", onXDP)})
	defer func() { err = errors.Join(err, closeAll(lines)) }()
	if err != nil {
		return err
	}
	plain := map[int]*traffic.Delays{}
	services := map[string]map[int]*traffic.Delays{}
	err = abba(ctx, r.Rounds(), lines, func(round int, c built) error {
		r.say("round %d of %d, %s", round+1, r.Rounds(), c.name)
		if err := r.hopRate(ctx, round, c); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		d, err := c.delays(ctx, r)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		r.sample(hopCase, c.name, metricDelay, unitMicroseconds, round, micros(d.Quantile(0.5)))
		r.sample(hopCase, c.name, metricDelay99, unitMicroseconds, round, micros(d.Quantile(0.99)))
		if c.name == "linux" {
			plain[round] = d
			return nil
		}
		if services[c.name] == nil {
			services[c.name] = map[int]*traffic.Delays{}
		}
		services[c.name][round] = d
		return nil
	})
	if err != nil {
		return err
	}
	for _, c := range lines {
		for round, d := range services[c.name] {
			r.sample(hopCase, c.name, metricAdded, unitMicroseconds, round, micros(d.Quantile(0.5)-plain[round].Quantile(0.5)))
			r.sample(hopCase, c.name, metricAdded99, unitMicroseconds, round, micros(d.Quantile(0.99)-plain[round].Quantile(0.99)))
		}
	}
	return r.profileMissed(ctx, func(kase, contestant string) (func() error, error) {
		i := slices.IndexFunc(lines, func(c built) bool { return c.name == contestant })
		if i < 0 || kase != hopFullCase {
			return nil, nil
		}
		return func() error {
			_, err := lines[i].try(ctx, r.forwardJob(flowsOf(hopFlows)))
			return err
		}, nil
	})
}

// hopRate measures how many packets of many flows come through.
func (r *Run) hopRate(ctx context.Context, round int, c built) error {
	flows := flowsOf(hopFlows)
	if err := c.establish(ctx, flows); err != nil {
		return err
	}
	t, err := c.maximum(ctx, r.forwardJob(flows))
	if err != nil {
		return err
	}
	r.sample(hopFullCase, c.name, MetricRate, "packets/s", round, t.rate())
	r.sample(hopFullCase, c.name, MetricCPU, "ns/packet", round, t.cpu())
	return nil
}

const hopFlows = 1000

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// delays measures one way, one packet at a time.
func (l *line) delays(ctx context.Context, r *Run) (*traffic.Delays, error) {
	flows := flowsOf(1)
	if err := l.establish(ctx, flows); err != nil {
		return nil, err
	}
	if err := l.far.Reset(); err != nil {
		return nil, err
	}
	job := traffic.Job{Flows: flows, Stamp: true, Time: pick(r, 2*time.Second, 100*time.Millisecond), Rate: hopRate}
	sent, err := l.forth.Run(ctx, job)
	if err != nil {
		return nil, err
	}
	d, err := l.far.Delays()
	if err == nil && float64(d.Count()) < 0.99*float64(sent.Frames) {
		err = fmt.Errorf("of %d packets %d arrived", sent.Frames, d.Count())
	}
	return d, err
}

// staticHop is the same service wired by hand.
func staticHop() router {
	return router{"static", func(_ context.Context, _ *Run, l *line) error {
		if _, err := wireRouted(l.Network, l.router, byHand, true); err != nil {
			return err
		}
		return steerByHand(l.router, onpath.DeviceName(byHand), byHand, devIn, devOut)
	}}
}

// onpathHop is a chain of that service.
func onpathHop(name string, fast onpath.Fast) router {
	return onpathRouter(name, 0, fast, throughHops(1, netServers.String()), nil)
}
