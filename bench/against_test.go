package bench

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onpath/onpath"
)

// program is one that answers like onpath bench: with these results, and a line in a log.
func program(t *testing.T, dir, name, log string, rate, cpu float64) string {
	t.Helper()
	res := Results{Records: []Record{
		{Benchmark: "flows", Case: "k", Contestant: "onpath-tc", Metric: MetricRate, Unit: "packets/s", Value: rate},
		{Benchmark: "flows", Case: "k", Contestant: "onpath-tc", Metric: MetricCPU, Unit: "ns/packet", Value: cpu},
		{Benchmark: "flows", Case: "k", Contestant: "linux", Metric: MetricRate, Unit: "packets/s", Value: 1},
		{Benchmark: "flows", Case: "k", Contestant: "onpath-tc", Metric: MetricRoundTrip, Unit: "µs", Value: 1},
	}}
	text, err := json.Marshal(res)
	if err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\n[ $1 = --version ] && { echo onpath %s; exit; }\n[ \"$1 $2 $3 $4\" = 'bench flows --rounds 1' ] || exit 2\necho %s >>%s\ncat >$6 <<'END'\n%s\nEND\n", name, name, log, text)
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestRunAgainst: two programs take turns in ABBA order; one whose rate or CPU time is
// worse by more than two percent is called slower.
func TestRunAgainst(t *testing.T) {
	for _, c := range []struct {
		rate, cpu float64 // of this program; the other's are 100
		slower    int
	}{{100, 100, 0}, {99, 101, 0}, {97, 100, 1}, {100, 103, 1}, {90, 111, 2}, {200, 50, 0}} {
		dir := t.TempDir()
		log := filepath.Join(dir, "log")
		o := Options{Names: []string{"flows"}, Rounds: 4, Images: "i", Program: program(t, dir, "this", log, c.rate, c.cpu), Progress: t.Logf}
		a, err := RunAgainst(t.Context(), o, program(t, dir, "other", log, 100, 100))
		if err != nil {
			t.Fatal(err)
		}
		if len(a.Ratios) != 2 || len(a.Slower()) != c.slower || math.Abs(a.Ratios[0].Median-c.rate/100) > 1e-9 || math.Abs(a.Ratios[1].High-100/c.cpu) > 1e-9 {
			t.Errorf("%+v: %d slower: %+v", c, len(a.Slower()), a.Ratios)
		}
		order, err := os.ReadFile(log)
		if got := strings.Join(strings.Fields(string(order)), " "); err != nil || got != "this other other this this other other this" {
			t.Errorf("the order is %q (%v)", got, err)
		}
	}
}

// TestUpperQuartile: chance that makes single rounds slower is no loss of speed, and one
// that makes single rounds faster hides none.
func TestUpperQuartile(t *testing.T) {
	of := func(values ...float64) (list []*Results) {
		for _, v := range values {
			list = append(list, &Results{Records: []Record{{Benchmark: "b", Case: "k", Contestant: "onpath-tc", Metric: MetricRate, Value: v}}})
		}
		return list
	}
	same := of(100, 100, 100, 100, 100, 100, 100, 100)
	if r := ratios(of(100, 70, 80, 90, 100, 60, 85, 100), same); r[0].Slower() {
		t.Errorf("chance is called slower: %+v", r)
	}
	if r := ratios(of(96, 95, 110, 94, 96, 95, 96, 95), same); !r[0].Slower() {
		t.Errorf("a lucky round hides it: %+v", r)
	}
}

func TestRunAgainstRefuses(t *testing.T) {
	o := Options{Rounds: 1, Program: os.Args[0], Progress: t.Logf}
	for what, names := range map[string][]string{"no name": nil, "no benchmark": {"nosuch"}} {
		o.Names = names
		if _, err := RunAgainst(t.Context(), o, "/bin/false"); onpath.CodeOf(err) != onpath.CodeInvalid {
			t.Errorf("%s: %v", what, err)
		}
	}
	o.Names, o.Program = []string{"flows"}, program(t, t.TempDir(), "this", os.DevNull, 1, 1)
	if _, err := RunAgainst(t.Context(), o, "/bin/false"); onpath.CodeOf(err) != onpath.CodeInvalid || !strings.Contains(err.Error(), "/bin/false") {
		t.Errorf("a program that is none: %v", err)
	}
}
