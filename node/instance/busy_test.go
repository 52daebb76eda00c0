package instance

import (
	"context"
	"testing"
	"time"
)

func TestCPUTimes(t *testing.T) {
	before := parseCPUTimes("cpu  100 20 30 4000 50 6 7 8 90 10\n")
	if want := (cpuTimes{idle: 4050, all: 4221}); before != want {
		t.Fatalf("the times are %+v, must be %+v", before, want)
	}
	for _, k := range []struct {
		line string
		busy bool
	}{
		{"cpu  195 20 30 4005 50 6 7 8 90 10\n", true},
		{"cpu  180 20 30 4020 50 6 7 8 90 10\n", false},
		{"cpu  100 20 30 4000 50 6 7 8 90 10\n", false}, // no time has passed
		{"cpu  something else\n", false},
		{"", false},
	} {
		if got := parseCPUTimes(k.line).busySince(before); got != k.busy {
			t.Errorf("after %q the CPUs count as busy: %v, must be %v", k.line, got, k.busy)
		}
	}
	if parseCPUTimes("cpu  195 20 30 4005 50 6 7 8 90 10\n").busySince(cpuTimes{}) {
		t.Error("times that could not be read count as busy")
	}
	if readCPUTimes().all == 0 {
		t.Error("/proc/stat cannot be read")
	}
}

// TestLateProbes: a probe gets more time while all CPUs are busy, and not for ever.
func TestLateProbes(t *testing.T) {
	const limit = 5 * time.Millisecond
	var now cpuTimes
	times := func(busy bool) func() cpuTimes {
		return func() cpuTimes {
			now.all += 100
			if !busy {
				now.idle += 50
			}
			return now
		}
	}
	for _, k := range []struct {
		busy  bool
		least time.Duration
	}{{false, limit}, {true, latePatience * limit}} {
		began := time.Now()
		ctx, stop := patiently(t.Context(), limit, times(k.busy))
		<-ctx.Done()
		if took := time.Since(began); took < k.least || context.Cause(ctx) != errLate {
			t.Errorf("busy %v: it ended after %s with %v, must not before %s", k.busy, took, context.Cause(ctx), k.least)
		}
		stop()
	}
	ctx, stop := patiently(t.Context(), time.Hour, times(true))
	stop()
	if context.Cause(ctx) == errLate {
		t.Error("a probe that has ended counts as late")
	}
}
