package node

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

type wallClock struct{}

func (wallClock) Now() time.Time { return time.Now() }

func (wallClock) Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// alarm closes its channel after d; stop, which may be called again, ends it and
// returns when nothing of it is left.
func alarm(ctx context.Context, c Clock, d time.Duration) (rings <-chan struct{}, stop func()) {
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

// The waits between attempts: the first, the longest, how long an instance must
// have run well for the next failure to count as the first, and which part of a
// run that was not short the wait behind it is at most: what is killed from outside
// now and then is missed no longer than that.
const (
	backoffFirst = 100 * time.Millisecond
	backoffMax   = 30 * time.Second
	backoffReset = 60 * time.Second
	backoffPart  = 10
)

// complaint is what was logged last of something that is tried again and again.
type complaint struct {
	words string
	at    time.Time
}

// complainEvery is the time after which the same complaint is told again.
const complainEvery = time.Minute

// tell reports whether words are to be told now, and takes it that they are.
func (c *complaint) tell(words string, now time.Time) bool {
	if words == c.words && now.Sub(c.at) < complainEvery {
		return false
	}
	c.words, c.at = words, now
	return true
}

// backoff doubles the wait from one failure to the next.
type backoff struct{ next time.Duration }

// after is how long to wait before the next attempt, given how long the last
// one went well.
func (b *backoff) after(good time.Duration) time.Duration {
	if b.next == 0 || good >= backoffReset {
		b.next = backoffFirst
	}
	if good >= shortRun {
		b.next = min(b.next, max(backoffFirst, good/backoffPart))
	}
	d := b.next
	b.next = min(2*b.next, backoffMax)
	return d
}
