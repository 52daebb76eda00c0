package base

import (
	"context"
	"time"
)

// Clock is the time as the agent sees it; tests pass their own.
type Clock interface {
	Now() time.Time
	// Sleep returns nil after d, or ctx's error if that ends earlier.
	Sleep(ctx context.Context, d time.Duration) error
}

// WallClock is the machine's clock.
type WallClock struct{}

// Now is the time.
func (WallClock) Now() time.Time { return time.Now() }

// Sleep implements Clock.
func (WallClock) Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// Alarm closes its channel after d. stop, which may be called again, ends it and
// returns when nothing of it is left.
func Alarm(ctx context.Context, c Clock, d time.Duration) (rings <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		if c.Sleep(ctx, d) == nil {
			close(over)
		}
	}()
	return over, func() {
		cancel()
		<-done
	}
}

// The waits between attempts: the first, the longest, and how long something must have
// gone well for the next failure to count as the first. A run below ShortRun is short. The
// wait behind a longer run is at most a tenth of the run: what somebody kills now and then
// is soon back.
const (
	backoffFirst = 100 * time.Millisecond
	backoffMax   = 30 * time.Second
	backoffReset = 60 * time.Second
	backoffPart  = 10

	ShortRun = 5 * time.Second
)

// Backoff doubles the wait from one failure to the next.
type Backoff struct{ next time.Duration }

// After is how long to wait before the next attempt, given how long the last
// one went well.
func (b *Backoff) After(good time.Duration) time.Duration {
	if b.next == 0 || good >= backoffReset {
		b.next = backoffFirst
	}
	if good >= ShortRun {
		b.next = min(b.next, max(backoffFirst, good/backoffPart))
	}
	d := b.next
	b.next = min(2*b.next, backoffMax)
	return d
}

// Complaint is what was logged last of something that is tried again and again.
type Complaint struct {
	words string
	at    time.Time
}

// complainEvery is the time after which the same complaint is told again.
const complainEvery = time.Minute

// Due reports whether words are to be told now, and takes it that they are.
func (c *Complaint) Due(words string, now time.Time) bool {
	if words == c.words && now.Sub(c.at) < complainEvery {
		return false
	}
	c.words, c.at = words, now
	return true
}
