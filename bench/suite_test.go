package bench

import (
	"math"
	"os"
	"slices"
	"testing"
	"time"
)

// TestQuick runs the whole suite briefly, and fails if a benchmark or a
// contestant does not work. It evaluates no speed.
func TestQuick(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to make network namespaces and load programs")
	}
	var names []string // all but churn, in make soak
	for _, b := range Benchmarks() {
		if b.Name != "churn" {
			names = append(names, b.Name)
		}
	}
	if os.Getenv("ONPATH_SOAK") == "" {
		names = []string{"container", "flows", "forward", "plan", "pool"}
	}
	o := Options{Names: names, Quick: true, Images: "../bin/images", Program: os.Getenv("ONPATH_BIN"), Progress: t.Logf}
	if previous := o.Program + "-previous"; o.Program != "" {
		if _, err := os.Stat(previous); err == nil {
			o.Previous = previous
		}
	}
	res, err := Execute(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := choose(names)
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Machine.Seconds) != len(whole) {
		t.Errorf("%d benchmarks ran, must be %d", len(res.Machine.Seconds), len(whole))
	}
	for _, rec := range res.Records {
		if math.IsNaN(rec.Value) || rec.Low > rec.Value || rec.Value > rec.High {
			t.Errorf("%+v is no figure", rec)
		}
	}
	for _, want := range []string{"linux", "xdp", "onpath-tc"} {
		if !slices.ContainsFunc(res.Records, func(r Record) bool { return r.Contestant == want && r.Metric == MetricRate && r.Value > 0 }) {
			t.Errorf("%s forwarded nothing", want)
		}
	}
	for _, skip := range res.Machine.Skipped { // to be announced like any test's
		t.Run(skip.Benchmark+"/"+skip.Contestant, func(t *testing.T) { t.Skip(skip.Why) })
	}
	for _, left := range []string{Root, pinPath} {
		if _, err := os.Stat(left); err == nil {
			t.Errorf("%s is still there", left)
		}
	}
}

func TestQuantile(t *testing.T) {
	for _, c := range []struct {
		values []float64
		q      float64
		want   float64
	}{
		{[]float64{5}, 0.25, 5},
		{[]float64{1, 3}, 0.5, 2},
		{[]float64{4, 1, 3, 2}, 0.5, 2.5},
		{[]float64{4, 1, 3, 2, 5}, 0.25, 2},
		{[]float64{1, 2, 3, 4}, 0.75, 3.25},
	} {
		if got := quantile(c.values, c.q); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("quantile %v of %v is %v, must be %v", c.q, c.values, got, c.want)
		}
	}
}

// TestRatio: contestants are paired by round, not by their medians.
func TestRatio(t *testing.T) {
	c := collection{benchmark: "b"}
	for round, v := range [][2]float64{{1, 2}, {10, 10}, {100, 50}} {
		c.add(sampleKey{"k", "ours", "m", "u"}, round, v[0])
		c.add(sampleKey{"k", "theirs", "m", "u"}, round, v[1])
	}
	c.add(sampleKey{"k", "theirs", "m", "u"}, 3, 1) // no round of ours
	for _, rec := range c.records() {
		if rec.Contestant == "ours" && (rec.Ratio["theirs"] != 1 || rec.Value != 10 || rec.Low != 5.5) {
			t.Errorf("the record is %+v", rec)
		}
	}
}

// TestBackwards: every other round runs in reverse order.
func TestBackwards(t *testing.T) {
	var order []string
	err := abba(t.Context(), 3, []string{"a", "b"}, func(_ int, c string) error {
		order = append(order, c)
		return nil
	})
	if err != nil || !slices.Equal(order, []string{"a", "b", "b", "a", "a", "b"}) {
		t.Errorf("the order is %v (%v)", order, err)
	}
}

func TestEvaluate(t *testing.T) {
	r := &Results{Records: []Record{{Benchmark: "b", Case: "k", Contestant: "ours", Metric: "m", Value: 3, Low: 2, High: 4, Ratio: map[string]float64{"linux": 1.5}}}}
	for _, c := range []struct {
		of                string
		min, max          float64
		measured, reached bool
	}{
		{"", 3, 0, true, true}, {"low", 3, 0, true, false}, {"high", 0, 4, true, true}, {"", 0, 2.9, true, false},
		{"linux", 1.5, 0, true, true}, {"xdp", 1, 0, false, false}, {"", 0, 0, true, false},
	} {
		v := Target{Case: "k", Contestant: "ours", Metric: "m", Of: c.of, Min: c.min, Max: c.max}.evaluate("b", r)
		if v.Measured != c.measured || v.Reached != c.reached {
			t.Errorf("of %q, min %v, max %v: %+v", c.of, c.min, c.max, v)
		}
	}
}

// TestEachFunction: the time of a function is the slope over all lengths.
func TestEachFunction(t *testing.T) {
	r := &Run{collection: collection{benchmark: "ebpf-chain"}}
	for _, n := range inlineLengths {
		ns := 400 + 25*float64(n)
		r.sample(inlineCase(n), "onpath-xdp", MetricRate, "packets/s", 0, 1e9/ns)
	}
	r.furtherFunctions()
	last := inlineCase(8)
	for _, metric := range []string{metricFunction, metricEachFunction} {
		if got := r.values[sampleKey{last, "onpath-xdp", metric, "ns"}][0]; math.Abs(got-25) > 1e-6 {
			t.Errorf("%s is %v, must be 25", metric, got)
		}
	}
}

// TestEstimate: the whole suite fits into its time.
func TestEstimate(t *testing.T) {
	whole, err := Estimate(Options{})
	if err != nil || whole > wholeTime-3*time.Minute {
		t.Errorf("the whole suite takes about %v of %v (%v)", whole, wholeTime, err)
	}
	for _, b := range Benchmarks() {
		if b.rounds > 1 && b.estimate(Options{}) <= b.estimate(Options{Rounds: 1}) {
			t.Errorf("%s takes %v, and a round of it nothing", b.Name, b.estimate(Options{}))
		}
	}
	if _, err := Estimate(Options{Names: []string{"nothing"}}); err == nil {
		t.Error("there is an estimate for what is not there")
	}
}
