package pool

import (
	"sync"
	"time"

	"github.com/onpath/onpath"
)

// mostJump is how far the clock may leap against the time since the machine started.
const mostJump = time.Minute

// watch holds the clock against the time since the machine started, which nobody sets. What
// the clock drifts from one look to the next is followed, a leap is not.
type watch struct {
	clock    onpath.Clock
	boot     func() time.Duration // nil: the clock is believed
	mu       sync.Mutex
	wall     time.Time // when they agreed last
	at       time.Duration
	reported bool
}

// agree is nil while the clock can be believed.
func (w *watch) agree() error {
	if w.boot == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now, at := w.clock().Round(0), w.boot()
	if w.wall.IsZero() {
		w.wall, w.at = now, at
	}
	jump := now.Sub(w.wall) - (at - w.at)
	if jump.Abs() <= mostJump {
		w.wall, w.at, w.reported = now, at, false
		return nil
	}
	e := onpath.Errorf(onpath.CodeUnavailable,
		"the clock has leapt by %s, to %s: nothing is charged, begun or ended meanwhile", jump.Round(time.Second), text(now))
	e.Remedy = "set the server's clock right; if it is right now, restart the server"
	return e
}

// news reports whether a leap is to be reported.
func (w *watch) news() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	reported := w.reported
	w.reported = true
	return !reported
}

// Held says why nothing is decided; nil: decisions go on.
func (p *Pool) Held() error { return p.watch.agree() }

// holdsStill reports whether the clock cannot be believed, and tells of that once.
func (p *Pool) holdsStill() bool {
	err := p.Held()
	if err != nil && p.watch.news() {
		p.log.Error("the agenda of reservations waits", "err", err)
		p.o.Tell(onpath.Key{Kind: onpath.KindTenant, Name: onpath.OperatorTenant}, "ClockLeapt", err.Error(), true)
	}
	return err != nil
}
