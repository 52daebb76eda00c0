package trial

import (
	"context"
	"time"
)

// stopwatch tells how long something took, by the machine's clock: what is measured here is
// the real network.
type stopwatch struct{ began time.Time }

func begin() stopwatch { return stopwatch{time.Now()} }

func (s stopwatch) took() time.Duration { return time.Since(s.began) }

// at is the moment some time after the beginning, for deadlines of connections.
func (s stopwatch) at(d time.Duration) time.Time { return s.began.Add(d) }

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
