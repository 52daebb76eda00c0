package base

import (
	"testing"
	"time"
)

// TestBackoff: waits double while runs are short, up to the longest; behind a run
// that was not short they are at most a tenth of it.
func TestBackoff(t *testing.T) {
	var b Backoff
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
		if d := b.After(c.good); d != c.want {
			t.Errorf("attempt %d, after %s: %s, want %s", i, c.good, d, c.want)
		}
	}
	for range 20 {
		b.After(0)
	}
	if d := b.After(0); d != backoffMax {
		t.Errorf("the longest wait is %s", d)
	}
}
