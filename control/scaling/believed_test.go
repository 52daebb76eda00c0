package scaling

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/scale"
)

// TestValuesThatAreNotBelieved: absurd, late, early and missing values are refused with
// the reason, which stands until good ones have come for a while.
func TestValuesThatAreNotBelieved(t *testing.T) {
	spec := &onpath.Scaling{Window: onpath.Duration(10 * time.Second)}
	now := time.Unix(1_700_000_000, 0)
	x := &scaled{scaler: scale.New("web", spec, nil), began: now}
	if why := x.stale(now.Add(time.Second), spec); why != "" || !x.awaited(now.Add(time.Second), spec) {
		t.Errorf("at first: %q", why)
	}
	if why := x.stale(now.Add(11*time.Second), spec); !strings.Contains(why, "no value has come") {
		t.Errorf("none at all: %q", why)
	}
	for range 30 {
		now = now.Add(time.Second)
		if why := x.take(100, now, now, 10*time.Second); why != "" {
			t.Fatal(why)
		}
	}
	if why := x.stale(now, spec); why != "" {
		t.Fatalf("good values: %q", why)
	}
	for _, c := range []struct {
		value float64
		at    time.Duration // from now
		why   string
		stops bool
	}{
		{1e300, 0, "absurd", true}, {math.NaN(), 0, "absurd", true}, {math.Inf(-1), 0, "absurd", true},
		{100, time.Minute, "future", true}, {2e6, time.Millisecond, "10000 times", true},
		{100, -time.Minute, "old", false}, {100, -time.Second, "come already", false},
	} {
		if why := x.take(c.value, now.Add(c.at), now, 10*time.Second); !strings.Contains(why, c.why) {
			t.Errorf("%g at %s: %q", c.value, c.at, why)
		}
		if why := x.stale(now, spec); (why != "") != c.stops {
			t.Errorf("%g at %s: scaling stops: %q", c.value, c.at, why)
		}
		for range 20 { // back to normal
			now = now.Add(time.Second)
			x.take(100, now, now, 10*time.Second)
		}
		if why := x.stale(now, spec); why != "" {
			t.Errorf("good values again: %q", why)
		}
	}
	if why := x.stale(now.Add(11*time.Second), spec); !strings.Contains(why, "no value has come for 10s") {
		t.Errorf("none for long: %q", why)
	}
}

// TestLoaded: what instances tell is compared over time, and not across a restart.
func TestLoaded(t *testing.T) {
	a := used{instances: 2, limit: 1000, cpu: time.Second, throttled: time.Second, in: 1000, out: 1000, keeps: true}
	b := a
	b.cpu, b.throttled, b.in, b.out = 1500*time.Millisecond, 1200*time.Millisecond, 2000, 1900
	e := loaded(a, b, time.Second)
	if !e.Known || math.Abs(e.CPU-0.5) > 1e-9 || math.Abs(e.Throttled-0.1) > 1e-9 || math.Abs(e.Dropped-0.1) > 1e-9 {
		t.Errorf("%+v", e)
	}
	if e := loaded(b, a, time.Second); e.Known {
		t.Errorf("one began anew: %+v", e)
	}
}
