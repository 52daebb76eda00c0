// Package report shows the results of `onpath bench`: as text, as Markdown with
// pictures, and as one page of HTML that needs nothing else.
package report

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/onpath/onpath/bench"
	"github.com/onpath/onpath/cli/table"
)

// Text prints the results as tables, one for each benchmark, and the verdicts.
func Text(w io.Writer, r *bench.Results) error {
	for _, s := range sections(r) {
		fmt.Fprintf(w, "%s: %s\n", s.name, s.question)
		t := table.New("CASE", "METRIC", "CONTESTANT", ">MEDIAN", ">LOW", ">HIGH", "UNIT", "OF OTHERS")
		for _, rec := range s.records {
			f := scaleOf(rec)
			t.Row(rec.Case, rec.Metric, rec.Contestant, f.format(rec.Value), f.format(rec.Low), f.format(rec.High), f.unit, ratios(rec))
		}
		if err := t.Write(w); err != nil {
			return err
		}
		for _, sk := range s.skipped {
			fmt.Fprintf(w, "skipped %s: %s\n", sk.Contestant, sk.Why)
		}
		for _, p := range s.profiles {
			fmt.Fprintf(w, "time of %s, %s:", p.Contestant, p.Case)
			for _, x := range p.Shares {
				fmt.Fprintf(w, " %s %s;", percent(x.Share), x.Function)
			}
			fmt.Fprintln(w)
		}
		for _, v := range s.verdicts {
			fmt.Fprintf(w, "%s, %s, %s: %s\n", v.Target.Contestant, v.Target.Text, v.Target.Metric, v)
		}
		fmt.Fprintln(w)
	}
	if r.Machine.Quick {
		fmt.Fprintln(w, "A quick run shows that everything works; its figures mean nothing.")
	}
	return nil
}

// section is one benchmark's part of a report.
type section struct {
	name, question string
	seconds        float64
	records        []bench.Record
	skipped        []bench.Skip
	verdicts       []bench.Verdict
	profiles       []bench.Profile
}

// sections are the benchmarks that ran, in the order of the suite.
func sections(r *bench.Results) (list []section) {
	verdicts := bench.Evaluate(r)
	for _, b := range bench.Benchmarks() {
		seconds, ran := r.Machine.Seconds[b.Name]
		if !ran {
			continue
		}
		s := section{name: b.Name, question: b.Question, seconds: seconds}
		for _, rec := range r.Records {
			if rec.Benchmark == b.Name {
				s.records = append(s.records, rec)
			}
		}
		for _, sk := range r.Machine.Skipped {
			if sk.Benchmark == b.Name {
				s.skipped = append(s.skipped, sk)
			}
		}
		for _, v := range verdicts {
			if v.Benchmark == b.Name {
				s.verdicts = append(s.verdicts, v)
			}
		}
		for _, p := range r.Machine.Profiles {
			if p.Benchmark == b.Name {
				s.profiles = append(s.profiles, p)
			}
		}
		list = append(list, s)
	}
	return list
}

// baselines are the contestants with which others are compared, the first first.
var baselines = []string{"linux", "xdp", "tc", "static", "nfqueue", "ovs", "ovs-hash", "vxlan"}

func ratios(r bench.Record) string {
	var parts []string
	for _, b := range baselines {
		if v, ok := r.Ratio[b]; ok {
			parts = append(parts, fmt.Sprintf("%.2f %s", v, b))
		}
	}
	return strings.Join(parts, ", ")
}

// percent is a share of one.
func percent(v float64) string { return strconv.FormatFloat(100*v, 'f', 1, 64) + " %" }

// scale turns figures into short ones.
type scale struct {
	by   float64
	unit string
}

func (s scale) format(v float64) string {
	v /= s.by
	switch a := math.Abs(v); {
	case math.IsNaN(v):
		return "–"
	case a == 0 || a >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case a >= 1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	case a >= 0.1:
		return strconv.FormatFloat(v, 'f', 3, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// scaleOf depends on the unit alone, so that figures of one unit compare.
func scaleOf(r bench.Record) scale {
	switch r.Unit {
	case "packets/s":
		return scale{1e3, "kpps"}
	case "flows/s":
		return scale{1e3, "thousand flows/s"}
	case "bit/s":
		return scale{1e9, "Gbit/s"}
	}
	return scale{1, r.Unit}
}
