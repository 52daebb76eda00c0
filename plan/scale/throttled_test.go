package scale_test

import (
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/scale"
)

// TestThrottled: an element whose instances are kept from running by their limit grows before
// one that uses more processor time on average, and does not shrink while that is so.
func TestThrottled(t *testing.T) {
	spec := &onpath.Scaling{
		Objective: onpath.ObjectiveMax, Improve: onpath.DefaultImprove, Window: onpath.Duration(20 * time.Second),
		Cooldown: onpath.Duration(time.Second), Elements: map[string]onpath.ElementScaling{"busy": {Min: 1, Max: 4, Cost: 1}, "bursts": {Min: 1, Max: 4, Cost: 1}},
	}
	for _, c := range []struct {
		busy, bursts scale.Evidence
		first        string // the first trial
	}{
		{scale.Evidence{Known: true, CPU: 0.85}, scale.Evidence{Known: true, CPU: 0.5, Throttled: 0.3}, "bursts 3 → 4"},
		{scale.Evidence{Known: true, CPU: 0.85}, scale.Evidence{Known: true, CPU: 0.5}, "bursts 3 → 2"},
		{scale.Evidence{Known: true, CPU: 0.4}, scale.Evidence{Known: true, CPU: 0.1, Throttled: 0.3}, "bursts 3 → 4"},
		{scale.Evidence{Known: true, CPU: 0.4}, scale.Evidence{Known: true, CPU: 0.1, Throttled: 0.05}, "bursts 3 → 2"},
	} {
		s, now := scale.New("web", spec, nil), time.Unix(1_700_000_000, 0)
		var tried []string
		for i := range 400 {
			now = now.Add(time.Second)
			s.Series.Add(scale.Sample{At: now, Value: 100 + float64(i%3)})
			v := &scale.View{Now: now}
			for _, e := range []scale.Element{{Name: "busy", Evidence: c.busy}, {Name: "bursts", Evidence: c.bursts}} {
				n := 3
				if w, ok := s.Status.Wanted[e.Name]; ok {
					n = w
				}
				e.ElementScaling, e.Now, e.Ready = spec.Elements[e.Name], n, n
				v.Elements = append(v.Elements, e)
			}
			for _, e := range s.Step(v) {
				if e.Reason == "ScalingTrial" {
					tried = append(tried, e.Message)
				}
			}
		}
		if len(tried) == 0 || !strings.HasPrefix(tried[0], c.first) {
			t.Errorf("%+v, %+v: tried %q, want %q first", c.busy, c.bursts, tried, c.first)
		}
		for _, x := range tried {
			if c.bursts.Throttled > 0.1 && strings.HasPrefix(x, "bursts 3 → 2") {
				t.Errorf("%+v: %s", c.bursts, x)
			}
		}
	}
}

// TestCloudlets: each cloudlet has the number of instances, and each of them costs.
func TestCloudlets(t *testing.T) {
	for budget, want := range map[int]string{7: "", 8: "a 1 → 2: +100 % (100 → 200), kept; costs 4 units/h"} {
		element := onpath.ElementScaling{Min: 1, Max: 2, Cost: 2}
		target := 1000.0
		s := scale.New("web", &onpath.Scaling{
			Objective: onpath.ObjectiveMax, Improve: onpath.DefaultImprove, Window: onpath.Duration(20 * time.Second),
			Cooldown: onpath.Duration(time.Hour), Budget: budget, Target: &target, Elements: map[string]onpath.ElementScaling{"a": element},
		}, nil)
		n, now := 1, time.Unix(1_700_000_000, 0)
		for range 400 {
			now = now.Add(time.Second)
			s.Series.Add(scale.Sample{At: now, Value: 100 * float64(n)})
			s.Step(&scale.View{Now: now, Elements: []scale.Element{{Name: "a", ElementScaling: element, Now: n, Ready: n, Cloudlets: 2}}})
			n = s.Status.Wanted["a"]
		}
		got := ""
		for _, d := range s.Status.Decisions {
			got += d.Text
		}
		if got != want {
			t.Errorf("a budget of %d: %q, want %q", budget, got, want)
		}
	}
}
