package base

import (
	"context"
	"slices"
	"sync"

	"github.com/onpath/onpath"
)

// Rounds is where the parts of an agent meet its applier. Parts ask for rounds and wait
// for what they put in force. The applier puts the data path's configuration in force, one
// round at a time; any number of changes meanwhile make one more round.
type Rounds struct {
	wake chan struct{}

	mu    sync.Mutex
	asked uint64 // changes so far
	force bool   // apply even an equal configuration (a device is new)
	named map[onpath.VportID]bool
	turn  turn
	over  chan struct{} // closed and replaced after each round
}

// turn is how far the applier is.
type turn struct {
	done   uint64                  // changes that are in force
	tried  bool                    // a first round is over
	vports map[onpath.VportID]bool // instance vports in force; replaced, never written
}

// NewRounds makes one.
func NewRounds() *Rounds { return &Rounds{wake: make(chan struct{}, 1), over: make(chan struct{})} }

// Kick asks for a round, and gives its number for Await.
func (r *Rounds) Kick(force bool) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	r.force = r.force || force
	Kick(r.wake)
	return r.asked
}

// Await returns when a round of that number or a later one is in force.
func (r *Rounds) Await(ctx context.Context, n uint64) error {
	return r.await(ctx, func(t turn) bool { return t.done >= n })
}

// Sync returns when the state at the time of the call is in force.
func (r *Rounds) Sync(ctx context.Context) error { return r.Await(ctx, r.Kick(false)) }

// AwaitFirst returns after the first attempt, good or bad.
func (r *Rounds) AwaitFirst(ctx context.Context) {
	_ = r.await(ctx, func(t turn) bool { return t.tried })
}

// AwaitIn returns when those of the vports that the plan names are in force.
func (r *Rounds) AwaitIn(ctx context.Context, ids []onpath.VportID) error {
	return r.await(ctx, func(t turn) bool {
		return !slices.ContainsFunc(ids, func(v onpath.VportID) bool { return r.named[v] && !t.vports[v] })
	})
}

// AwaitOut returns when none of the vports is in force.
func (r *Rounds) AwaitOut(ctx context.Context, ids []onpath.VportID) error {
	n := r.Kick(false)
	return r.await(ctx, func(t turn) bool {
		return t.done >= n && !slices.ContainsFunc(ids, func(v onpath.VportID) bool { return t.vports[v] })
	})
}

// await calls ok with mu held.
func (r *Rounds) await(ctx context.Context, ok func(turn) bool) error {
	for {
		r.mu.Lock()
		now, over := ok(r.turn), r.over
		r.mu.Unlock()
		if now {
			return nil
		}
		select {
		case <-over:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// InForce gives the instance vports in force; callers must not write to it.
func (r *Rounds) InForce() map[onpath.VportID]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.turn.vports
}

// Name takes up which instance vports the wanted plan names.
func (r *Rounds) Name(c *onpath.DatapathConfig) {
	named := instanceVports(c)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.named = named
}

// Wake is the applier's: a round is asked for.
func (r *Rounds) Wake() <-chan struct{} { return r.wake }

// Begin is the applier's: it begins a round.
func (r *Rounds) Begin() (n uint64, force bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, force = r.asked, r.force
	r.force = false
	return n, force
}

// Applied is the applier's: a configuration is in force.
func (r *Rounds) Applied(c *onpath.DatapathConfig) {
	vports := instanceVports(c)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turn.vports = vports
}

// End is the applier's: the round n is over. done: what was asked for is in force.
func (r *Rounds) End(n uint64, force, done bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if done {
		r.turn.done = max(r.turn.done, n)
	} else {
		r.force = r.force || force
	}
	r.turn.tried = true
	close(r.over)
	r.over = make(chan struct{})
}

func instanceVports(c *onpath.DatapathConfig) map[onpath.VportID]bool {
	out := map[onpath.VportID]bool{}
	for _, v := range c.Vports {
		if v.Kind != onpath.VportRemote {
			out[v.ID] = true
		}
	}
	return out
}
