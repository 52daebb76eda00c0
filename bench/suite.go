package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/bench/testnet"
	"github.com/onpath/onpath/bench/traffic"
	"github.com/onpath/onpath/internal/filelock"
)

// Options of a run.
type Options struct {
	// Names of the benchmarks to run; none: all, but those that take too long for that.
	Names []string
	// Quick runs everything once and briefly, as a smoke test: figures of it
	// mean nothing.
	Quick bool
	// Churn is how long each case of churn lasts; 0: as long as it needs.
	Churn time.Duration
	// Rounds overrides each benchmark's own number.
	Rounds int
	// Images is the folder with the images of functions, as `make images` makes it.
	Images string
	// Program is the onpath program that benchmarks start as server and nodes.
	Program string
	// Version of that program, for the report.
	Version string
	// Previous is an earlier build of the program, to be upgraded from; "": there is none.
	Previous string
	// Graphs is a folder with networks, as Rocketfuel's maps of PoPs; "": there is none.
	Graphs string
	// Progress gets one line for each step.
	Progress func(format string, args ...any)
	Log      *slog.Logger
}

// Benchmark asks one question.
type Benchmark struct {
	Name     string
	Question string
	Targets  []Target
	rounds   int // of the whole suite
	cost     cost
	byName   bool // the whole suite has no time for it
	run      func(context.Context, *Run) error
}

// Benchmarks are all there are, in the order in which they run.
func Benchmarks() []Benchmark {
	return []Benchmark{
		forward(), inlineChain(), containerBenchmark(), hopBenchmark(), remote(), flowsBenchmark(), rulesBenchmark(),
		planBenchmark(), poolBenchmark(), attachBenchmark(), setup(), failover(), mostoBenchmark(), relayBenchmark(), netserv(), churn(),
	}
}

// Root is where networks are while a suite runs.
const Root = "/run/onpath-bench"

// pinPath is where the data paths under test pin their maps; nobody else's are.
const pinPath = "/sys/fs/bpf/onpath-bench"

// Execute runs the suite. Results are given also when a benchmark failed: of
// what ran.
func Execute(ctx context.Context, o Options) (*Results, error) {
	list, err := choose(o.Names)
	if err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, &onpath.Error{Code: onpath.CodeForbidden, Message: "measuring makes network namespaces and loads eBPF programs", Remedy: "run it as root: sudo onpath bench"}
	}
	if o.Previous != "" {
		if _, err := os.Stat(o.Previous); err != nil {
			return nil, &onpath.Error{Code: onpath.CodeNotFound, Message: fmt.Sprintf("there is no earlier program to upgrade from: %v", err), Remedy: "build one with scripts/previous FILE, or leave --previous out"}
		}
	}
	if o.Progress == nil {
		o.Progress = func(string, ...any) {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	release, err := alone(ctx, o.Log)
	if err != nil {
		return nil, err
	}
	defer release()
	if about, err := Estimate(o); err == nil {
		o.Progress("%d benchmarks, which take about %.0f minutes", len(list), about.Minutes())
	}
	res := &Results{Machine: describe(o)}
	var errs []error
	for _, b := range list {
		start := time.Now()
		r := &Run{Options: o, targets: b.Targets, rounds: b.rounds, collection: collection{benchmark: b.Name}, machine: &res.Machine, cpu: traffic.LastCPU()}
		err := b.run(ctx, r)
		res.Records = append(res.Records, r.records()...)
		res.Machine.Seconds[b.Name] = time.Since(start).Seconds()
		if err != nil {
			errs = append(errs, fmt.Errorf("benchmark %s: %w", b.Name, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return res, errors.Join(errs...)
}

func choose(names []string) (list []Benchmark, err error) {
	all := Benchmarks()
	if len(names) == 0 {
		return slices.DeleteFunc(all, func(b Benchmark) bool { return b.byName }), nil
	}
	var known []string
	for _, b := range all {
		known = append(known, b.Name)
	}
	for _, n := range names {
		i := slices.Index(known, n)
		if i < 0 {
			e := onpath.Errorf(onpath.CodeInvalid, "there is no benchmark %q", n)
			e.Remedy = "there are " + strings.Join(known, ", ")
			if w := onpath.Nearest(n, known); w != "" {
				e.Remedy = "did you mean " + w + "? " + e.Remedy
			}
			return nil, e
		}
		list = append(list, all[i])
	}
	return list, nil
}

// alone makes sure that no other suite runs, and removes what a crash left.
func alone(ctx context.Context, log *slog.Logger) (release func(), err error) {
	unlock, err := filelock.Try(Root + ".lock")
	var held *filelock.Held
	if errors.As(err, &held) {
		return nil, &onpath.Error{Code: onpath.CodeConflict, Message: fmt.Sprintf("another onpath bench runs on this machine (process %d)", held.PID), Remedy: "wait for it: two at once measure each other", Cause: err}
	}
	if err != nil {
		return nil, err
	}
	clear := func(ctx context.Context) error {
		return errors.Join(removeTestbed(ctx), removeContainers(ctx, log), testnet.Sweep(Root), os.RemoveAll(pinPath))
	}
	if err := clear(ctx); err != nil {
		unlock()
		return nil, fmt.Errorf("remove what an earlier run left: %w", err)
	}
	return func() {
		_ = clear(context.WithoutCancel(ctx))
		unlock()
	}, nil
}

// Run is one benchmark at work.
type Run struct {
	Options
	collection
	machine  *Machine
	targets  []Target
	rounds   int
	cpu      int // that forwards
	networks int
}

// Rounds is how often each contestant is measured.
func (r *Run) Rounds() int {
	switch {
	case r.Options.Rounds > 0:
		return r.Options.Rounds
	case r.Quick:
		return 1
	}
	return r.rounds
}

// pick is what a quick run takes, or a whole one.
func pick[T any](r *Run, whole, quick T) T {
	if r.Quick {
		return quick
	}
	return whole
}

// sample notes what a contestant did in a round.
func (r *Run) sample(kase, contestant, metric, unit string, round int, v float64) {
	r.add(sampleKey{kase, contestant, metric, unit}, round, v)
}

// say tells progress.
func (r *Run) say(format string, args ...any) {
	r.Progress("%s: %s", r.benchmark, fmt.Sprintf(format, args...))
}

// skip notes that a contestant does not take part, and why.
func (r *Run) skip(contestant, why string) {
	this := Skip{Benchmark: r.benchmark, Contestant: contestant, Why: why}
	if slices.Contains(r.machine.Skipped, this) {
		return
	}
	r.machine.Skipped = append(r.machine.Skipped, this)
	r.say("%s does not take part: %s", contestant, why)
}

// testnet makes a testnet for one contestant.
func (r *Run) testnet(name string) (*testnet.Network, error) {
	r.networks++
	return testnet.New(Root, fmt.Sprintf("%s-%s-%d", r.benchmark, name, r.networks))
}

// lacking is what a contestant says that cannot take part on this machine.
type lacking string

func (l lacking) Error() string { return string(l) }

// abba calls fn for each round and contestant: every other round runs backwards,
// so that a machine that becomes slower or faster favours no one.
func abba[T any](ctx context.Context, rounds int, contestants []T, fn func(round int, c T) error) error {
	for round := range rounds {
		if err := backAndForth(ctx, round, contestants, func(c T) error { return fn(round, c) }); err != nil {
			return err
		}
	}
	return nil
}

// backAndForth is one round of abba.
func backAndForth[T any](ctx context.Context, round int, contestants []T, fn func(T) error) error {
	for i := range contestants {
		if round%2 == 1 {
			i = len(contestants) - 1 - i
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := fn(contestants[i]); err != nil {
			return err
		}
	}
	return nil
}
