package node

import (
	"testing"
	"time"
)

// TestBackoff: waits double while runs are short, up to the longest; behind a run
// that was not short they are at most a tenth of it.
func TestBackoff(t *testing.T) {
	var b backoff
	for i, c := range []struct{ good, want time.Duration }{
		{0, 100 * time.Millisecond},
		{time.Second, 200 * time.Millisecond},
		{time.Second, 400 * time.Millisecond},
		{time.Second, 800 * time.Millisecond},
		{6 * time.Second, 600 * time.Millisecond},
		{0, 1200 * time.Millisecond},
		{30 * time.Second, 2400 * time.Millisecond},
		{30 * time.Second, 3 * time.Second},
		{backoffReset, backoffFirst},
	} {
		if d := b.after(c.good); d != c.want {
			t.Errorf("attempt %d, after %s: %s, want %s", i, c.good, d, c.want)
		}
	}
	for range 20 {
		b.after(0)
	}
	if d := b.after(0); d != backoffMax {
		t.Errorf("the longest wait is %s", d)
	}
}

// How a process ended is told in words, also where nobody knows how.
func TestExitWords(t *testing.T) {
	for code, want := range map[int]string{
		0: "exited with code 0", 3: "exited with code 3", 137: "killed by signal 9 (SIGKILL)", -1: "ended with an unknown exit code",
	} {
		if got := exitWords(code); got != want {
			t.Errorf("%d: %q, want %q", code, got, want)
		}
	}
}

// How long a process ran is told so roughly that one which ends again and again
// has one event with a count.
func TestRanFor(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "within 1s", 999 * time.Millisecond: "within 1s", time.Second: "within 10s", 59 * time.Second: "within 1m",
		time.Minute: "after 1m", 59*time.Minute + 59*time.Second: "after 59m", 50 * time.Hour: "after 50h",
	} {
		if got := ranFor(d); got != want {
			t.Errorf("%s: %q, want %q", d, got, want)
		}
	}
}
