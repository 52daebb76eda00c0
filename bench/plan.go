package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath/bench/fleet"
	"github.com/onpath/onpath/control"
	"github.com/onpath/onpath/plan"
)

const (
	planWhole   = "whole plan, one instance has failed"
	planFailure = "report of a failed instance, until the gateway has its new plan"
	planNothing = "report without news"
	planCounts  = "report of fewer flows of a draining instance"

	metricTime    = "time"
	metricCPUTime = "CPU time"
)

// planSize is the fleet that is planned for; a quick run takes a small one.
var planSize = fleet.Size{Cloudlets: 20, Nodes: 50, Chains: 500}

func planBenchmark() Benchmark {
	return Benchmark{
		Name: "plan", rounds: 5, cost: cost{15 * time.Second, 2 * time.Second},
		Question: fmt.Sprintf("%v, no machine behind them: what does the server compute?", planSize),
		Targets: []Target{
			{Text: "whole plan ≤ 500 ms", Case: planWhole, Contestant: "onpath", Metric: metricTime, Max: 500,
				Why: "Every plan is made whole. A third of the CPU time goes into the plans of all nodes, which all CPUs share and of which hardly any changes, " +
					"30 % into looking up and checking what is declared, a seventh into statuses, a tenth into collecting garbage. " +
					"Less takes planning for those cloudlets alone that a change touches."},
			{Text: "report without news ≤ 1 ms", Case: planNothing, Contestant: "onpath", Metric: metricCPUTime, Max: 1},
			{Text: "report of fewer flows of a draining instance ≤ 1 ms", Case: planCounts, Contestant: "onpath", Metric: metricCPUTime, Max: 1},
		},
		run: runPlan,
	}
}

func runPlan(ctx context.Context, r *Run) (err error) {
	size := pick(r, planSize, fleet.Size{Cloudlets: 2, Nodes: 5, Chains: 20})
	r.say("%v", size)
	defer debug.SetGCPercent(debug.SetGCPercent(control.GCPercent)) // as in a server
	f, err := fleet.New(size, time.Now())
	if err != nil {
		return err
	}
	p := new(plan.Planner)
	p.Make(f.Snapshot()) // as a server has, before something fails
	for round := range r.Rounds() {
		r.say("plan, round %d of %d", round+1, r.Rounds())
		s := f.FailedSnapshot()
		if err := r.timed(planWhole, round, func() (int, error) { p.Make(s); return 1, ctx.Err() }); err != nil {
			return err
		}
	}
	if err := f.RemoveChain(0, 0); err != nil {
		return err
	}
	s, err := fleet.Serve(ctx, f)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := s.ReportFailure(); err != nil { // the loop has planned for the first time
		return err
	}
	for round := range r.Rounds() {
		r.say("reports, round %d of %d", round+1, r.Rounds())
		if err := r.reports(ctx, s, round); err != nil {
			return err
		}
	}
	return nil
}

// reports has the nodes of a fleet report, and waits each time until the server has done
// what follows.
func (r *Run) reports(ctx context.Context, s *fleet.Server, round int) error {
	return errors.Join(
		s.Rest(ctx),
		r.timed(planFailure, round, func() (int, error) { return 2, s.ReportFailure() }),
		s.Rest(ctx),
		r.timed(planNothing, round, func() (int, error) { return s.ReportNothing(), s.Rest(ctx) }),
		r.timed(planCounts, round, func() (int, error) {
			const reports = 100
			for k := range reports {
				if err := s.ReportCounts(uint64((round*reports+k)%(fleet.Flows-1) + 1)); err != nil {
					return 0, err
				}
			}
			return reports, s.Rest(ctx)
		}),
	)
}

// timed notes how long fn takes for each of the things that it says it did, and the CPU
// time of the process meanwhile.
func (r *Run) timed(kase string, round int, fn func() (int, error)) error {
	runtime.GC() // of what was there before
	start, cpu := time.Now(), processTime()
	n, err := fn()
	if err != nil {
		return err
	}
	took, used := time.Since(start), processTime()-cpu
	for metric, d := range map[string]time.Duration{metricTime: took, metricCPUTime: used} {
		r.sample(kase, "onpath", metric, unitMillis, round, float64(d.Microseconds())/1e3/float64(n))
	}
	return nil
}

// processTime is what this process has used, of all its threads.
func processTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
