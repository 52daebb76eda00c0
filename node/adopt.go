package node

import (
	"context"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node/base"
)

// driver is the runtime of one kind, as far as it is there.
type driver struct {
	rt     onpath.Runtime // nil: could not be opened
	opened bool           // by us, and so ours to close
	err    error          // why it cannot be used now
}

// adoptAll asks each runtime for what an earlier process of ours left running.
func (a *Agent) adoptAll(ctx context.Context) {
	for kind, rt := range a.opt.Runtimes {
		a.drivers[kind] = &driver{rt: rt}
	}
	for kind := range a.opt.Open {
		if a.drivers[kind] == nil {
			a.drivers[kind] = &driver{}
		}
	}
	for kind, d := range a.drivers {
		a.adopt(ctx, kind, d.rt)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.machine.SetRuntime(a.runtimeCondition())
}

const adoptTimeout = 15 * time.Second

// adopt opens the runtime if it is not (rt is nil), and asks what runs.
func (a *Agent) adopt(ctx context.Context, kind onpath.FunctionKind, rt onpath.Runtime) {
	ctx, cancel := context.WithTimeout(ctx, adoptTimeout)
	defer cancel()
	opened := rt == nil
	var found map[string]onpath.Process
	var err error
	if opened {
		if rt, err = a.opt.Open[kind](ctx); err != nil {
			rt, opened = nil, false
		}
		if c, ok := rt.(onpath.Connecting); ok && opened {
			c.BeforeConnect(a.exempt.Connects)
		}
	}
	if err == nil {
		found, err = rt.Adopt(ctx)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	d := a.drivers[kind]
	if d.err == nil || err == nil || d.err.Error() != err.Error() { // say it once
		if err != nil {
			a.part.Log.Error("the runtime does not answer", "runtime", kind, "err", err)
		}
	}
	d.rt, d.err, d.opened = rt, err, d.opened || opened
	a.machine.SetRuntime(a.runtimeCondition())
	for id, p := range found {
		if in := a.instances[id]; in != nil && in.proc != nil { // asked again; it is supervised already
			continue
		}
		l := p.Labels()
		if l[LabelNode] == a.opt.Name && l[LabelState] == a.opt.StateDir {
			a.adopted[id] = p
		}
	}
}

// closeRuntimes lets go of those that the agent opened.
func (a *Agent) closeRuntimes() {
	for kind, d := range a.drivers {
		if d.opened && d.rt != nil {
			if err := d.rt.Close(); err != nil {
				a.part.Log.Warn("cannot close the runtime", "runtime", kind, "err", err)
			}
		}
	}
}

// retryRuntimes asks a runtime that did not answer again. Until it does, its
// instances stay as the records say: no agent, no change.
func (a *Agent) retryRuntimes(ctx context.Context) {
	for a.part.Clock.Sleep(ctx, time.Second) == nil {
		failed := map[onpath.FunctionKind]onpath.Runtime{}
		a.mu.Lock()
		for kind, d := range a.drivers {
			if d.err != nil {
				failed[kind] = d.rt
			}
		}
		a.mu.Unlock()
		if len(failed) == 0 {
			return
		}
		for kind, rt := range failed {
			a.adopt(ctx, kind, rt)
		}
		a.sweepAgain(failed)
		a.wakeAll()
		a.machine.LookSoon()
	}
}

// sweepAgain clears away what runtimes that did not answer kept from it, once they do.
func (a *Agent) sweepAgain(failed map[onpath.FunctionKind]onpath.Runtime) {
	a.mu.Lock()
	back := false
	for kind := range failed {
		back = back || a.drivers[kind].err == nil
	}
	sweep := back && a.swept // else the first one is still to come
	a.mu.Unlock()
	if sweep {
		a.part.Go(a.sweep)
	}
}

// wake has an instance look after itself again.
func (a *Agent) wake(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if in := a.instances[id]; in != nil && !in.leaving {
		base.Kick(in.changed)
	}
}

func (a *Agent) wakeAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, in := range a.instances {
		base.Kick(in.changed)
	}
}
