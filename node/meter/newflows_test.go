package meter

import (
	"strings"
	"testing"
	"time"
)

// TestRefusalsTold: a flood is told once when it begins and once when it is over, not
// each time that it pauses, and with what it was refused.
func TestRefusalsTold(t *testing.T) {
	r := &refusals{count: 7}
	now := time.Unix(1000, 0)
	told := func(count uint64, after time.Duration) string {
		now = now.Add(after)
		e, ok := r.note(count, now)
		if ok == (e.Reason == "") {
			t.Fatalf("an event %+v, told: %v", e, ok)
		}
		if e.Warning != (e.Reason == ReasonNewFlowsOver) {
			t.Errorf("event %s is a warning: %v", e.Reason, e.Warning)
		}
		return strings.TrimSpace(e.Reason + " " + strings.Join(strings.FieldsFunc(e.Message, func(c rune) bool { return c < '0' || c > '9' }), " "))
	}
	for i, step := range []struct {
		count uint64
		after time.Duration
		want  string
	}{
		{7, refusedEvery, ""},
		{17, refusedEvery, ReasonNewFlowsOver},
		{27, refusedEvery, ""},
		{27, refusedCalm - time.Second, ""},
		{37, refusedEvery, ""}, // it only paused
		{37, refusedCalm - time.Second, ""},
		{37, time.Second, ReasonNewFlowsWithin + " 30"},
		{37, time.Hour, ""},
		{38, refusedEvery, ReasonNewFlowsOver},
		{2, refusedEvery, ""}, // another data path, counting anew
		{2, refusedCalm, ReasonNewFlowsWithin + " 0"},
	} {
		if got := told(step.count, step.after); got != step.want {
			t.Errorf("step %d: told %q, must tell %q", i, got, step.want)
		}
	}
}
