package bench

import (
	"fmt"
	"math"
)

// Target is what a contestant is to reach. Exactly one of Min and Max is set.
type Target struct {
	Text       string // as the issue of the day says it, for people
	Case       string
	Contestant string
	Metric     string
	// Of takes a figure of the record: "" the median, "low" or "high" a quartile,
	// else the ratio to that contestant.
	Of  string
	Min float64
	Max float64
	// Why says, for people, where the time goes if it is missed.
	Why string
}

// Verdict is what became of a target.
type Verdict struct {
	Benchmark string
	Target    Target
	Measured  bool
	Got       float64
	Reached   bool
	Record    Record  // that was evaluated
	Baseline  *Record // nil: it was not compared with another contestant
}

// String is the figure and what was asked of it.
func (v Verdict) String() string {
	want := fmt.Sprintf("≥ %g", v.Target.Min)
	if v.Target.Min == 0 {
		want = fmt.Sprintf("≤ %g", v.Target.Max)
	}
	switch {
	case !v.Measured:
		return want + ", not measured"
	case v.Reached:
		return fmt.Sprintf("%s, is %.3g: reached", want, v.Got)
	}
	return fmt.Sprintf("%s, is %.3g: MISSED", want, v.Got)
}

// Evaluate compares results with all targets. Results of a quick run are not
// evaluated.
func Evaluate(r *Results) (list []Verdict) {
	if r.Machine.Quick {
		return nil
	}
	for _, b := range Benchmarks() {
		if _, ran := r.Machine.Seconds[b.Name]; !ran {
			continue
		}
		for _, t := range b.Targets {
			list = append(list, t.evaluate(b.Name, r))
		}
	}
	return list
}

func (t Target) evaluate(benchmark string, r *Results) Verdict {
	v := Verdict{Benchmark: benchmark, Target: t}
	rec, ok := r.Find(benchmark, t.Case, t.Contestant, t.Metric)
	if !ok {
		return v
	}
	v.Record = rec
	switch t.Of {
	case "":
		v.Got = rec.Value
	case "low":
		v.Got = rec.Low
	case "high":
		v.Got = rec.High
	default:
		if v.Got, ok = rec.Ratio[t.Of]; !ok {
			return v
		}
		if base, ok := r.Find(benchmark, t.Case, t.Of, t.Metric); ok {
			v.Baseline = &base
		}
	}
	v.Measured = !math.IsNaN(v.Got)
	if t.Min != 0 {
		v.Reached = v.Got >= t.Min
	} else {
		v.Reached = v.Got <= t.Max
	}
	return v
}
