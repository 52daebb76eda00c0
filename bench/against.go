package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// AgainstRounds is the least number of rounds by which two programs are compared.
const AgainstRounds = 10

// AgainstLeast is what the upper quartile of the rounds' ratios must reach.
const AgainstLeast = 0.98

// Against is a comparison of this program with another build of it, as `onpath bench
// --against FILE --json` writes it.
type Against struct {
	This   string       `json:"this"`  // program, and what it calls its version
	Other  string       `json:"other"` // the same of the other one
	Rounds int          `json:"rounds"`
	Ratios []SpeedRatio `json:"ratios"`
}

// SpeedRatio compares one figure of one contestant. A ratio above 1 says that this
// program is faster, whatever the figure is: of CPU times it is the other's over this
// one's.
type SpeedRatio struct {
	Benchmark  string    `json:"benchmark"`
	Case       string    `json:"case"`
	Contestant string    `json:"contestant"`
	Metric     string    `json:"metric"`
	Unit       string    `json:"unit"`
	This       float64   `json:"this"`  // median over the rounds
	Other      float64   `json:"other"` // median over the rounds
	Low        float64   `json:"low"`   // lower quartile of the rounds' ratios
	Median     float64   `json:"median"`
	High       float64   `json:"high"` // upper quartile
	Each       []float64 `json:"each"` // of each round
}

// Slower reports whether this program is slower by more than what chance does.
func (r *SpeedRatio) Slower() bool { return !(r.High >= AgainstLeast) }

// Slower are the figures in which this program is slower.
func (a *Against) Slower() (list []SpeedRatio) {
	for _, r := range a.Ratios {
		if r.Slower() {
			list = append(list, r)
		}
	}
	return list
}

// higher are the metrics of which more is better; of MetricCPU, less is.
var higher = map[string]bool{MetricRate: true, MetricThroughput: true, metricFlowRate: true}

// RunAgainst has this program and another one run the same benchmarks, one round each
// in a process of its own, in ABBA order, so that a machine that becomes slower or
// faster favours neither.
func RunAgainst(ctx context.Context, o Options, other string) (*Against, error) {
	if len(o.Names) == 0 {
		return nil, onpath.Errorf(onpath.CodeInvalid, "which benchmark is to be run against %s? name it: onpath bench flows --against %s", other, other)
	}
	if _, err := choose(o.Names); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "onpath-bench-against-")
	if err != nil {
		return nil, fmt.Errorf("compare two programs: %w", err)
	}
	defer os.RemoveAll(dir)
	a := &Against{Rounds: o.Rounds}
	programs := []string{o.Program, other}
	for i, to := range []*string{&a.This, &a.Other} {
		out, err := exec.CommandContext(ctx, programs[i], "--version").Output()
		if err != nil {
			return nil, onpath.Errorf(onpath.CodeInvalid, "%s is no onpath program: %w", programs[i], err)
		}
		*to = programs[i] + " (" + strings.TrimSpace(string(out)) + ")"
	}
	found := map[string][]*Results{}
	err = abba(ctx, o.Rounds, programs, func(round int, program string) error {
		o.Progress("round %d of %d: %s", round+1, o.Rounds, program)
		res, err := runProgram(ctx, program, filepath.Join(dir, "results.json"), o)
		if err != nil {
			return fmt.Errorf("round %d, %s: %w", round+1, program, err)
		}
		found[program] = append(found[program], res)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if a.Ratios = ratios(found[o.Program], found[other]); len(a.Ratios) == 0 {
		return nil, onpath.Errorf(onpath.CodeInvalid, "the two programs have no rate and no CPU time of onpath's in common in benchmark %s", strings.Join(o.Names, ", "))
	}
	return a, nil
}

// runProgram runs one round of the benchmarks by a program.
func runProgram(ctx context.Context, program, file string, o Options) (*Results, error) {
	args := append([]string{"bench"}, o.Names...)
	args = append(args, "--rounds", "1", "--json", file, "--images", o.Images)
	if o.Quick {
		args = append(args, "--quick")
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGINT) } // it cleans up
	cmd.WaitDelay = 30 * time.Second
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Run(); err != nil {
		return nil, errors.Join(ctx.Err(), fmt.Errorf("%s bench: %w: %s", program, err, lastLine(said.String())))
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return Read(f)
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

// ratios pairs the rounds of two programs, for onpath's contestants.
func ratios(this, other []*Results) (out []SpeedRatio) {
	for _, rec := range this[0].Records {
		if !strings.HasPrefix(rec.Contestant, "onpath") || !higher[rec.Metric] && rec.Metric != MetricCPU {
			continue
		}
		r := SpeedRatio{Benchmark: rec.Benchmark, Case: rec.Case, Contestant: rec.Contestant, Metric: rec.Metric, Unit: rec.Unit}
		var mine, theirs []float64
		for round := range min(len(this), len(other)) {
			a, ok := this[round].Find(rec.Benchmark, rec.Case, rec.Contestant, rec.Metric)
			b, also := other[round].Find(rec.Benchmark, rec.Case, rec.Contestant, rec.Metric)
			if !ok || !also || a.Value <= 0 || b.Value <= 0 {
				continue
			}
			mine, theirs = append(mine, a.Value), append(theirs, b.Value)
			ratio := a.Value / b.Value
			if !higher[rec.Metric] {
				ratio = 1 / ratio
			}
			r.Each = append(r.Each, ratio)
		}
		if len(r.Each) == 0 {
			continue
		}
		r.This, r.Other = median(mine), median(theirs)
		r.Low, r.Median, r.High = quantile(r.Each, 0.25), median(r.Each), quantile(r.Each, 0.75)
		out = append(out, r)
	}
	return out
}
