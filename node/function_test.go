package node

import (
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestBudget: a function is judged by the samples since the last time, and by
// nothing while it is not measured.
func TestBudget(t *testing.T) {
	var s stopwatch
	for i, step := range []struct {
		samples, time uint64
		over          bool
	}{
		{0, 0, false},
		{4, 40_000, false},   // too few
		{10, 10_000, false},  // 1 µs
		{20, 60_000, true},   // 5 µs
		{20, 60_000, true},   // out of the path: nothing new
		{40, 80_000, false},  // 1 µs again
		{8, 8 * 3000, true},  // begun anew, and slow
		{108, 24_000, false}, // fast
	} {
		err := s.judge(onpath.FunctionCounters{Samples: step.samples, Time: step.time}, 2*time.Microsecond)
		if (err != nil) != step.over {
			t.Errorf("step %d: %v", i, err)
		}
	}
}
