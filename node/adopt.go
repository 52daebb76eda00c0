package node

import (
	"context"
	"slices"
	"time"

	"github.com/onpath/onpath"
)

// adoptAll asks each runtime for what an earlier process of ours left running.
func (a *Agent) adoptAll(ctx context.Context) {
	for kind, rt := range a.opt.Runtimes {
		a.adopt(ctx, kind, rt)
	}
}

const adoptTimeout = 15 * time.Second

func (a *Agent) adopt(ctx context.Context, kind string, rt onpath.Runtime) {
	ctx, cancel := context.WithTimeout(ctx, adoptTimeout)
	defer cancel()
	found, err := rt.Adopt(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.runtimes[kind] = err
	if err != nil {
		a.log.Error("the runtime does not answer", "runtime", kind, "err", err)
		return
	}
	for id, p := range found {
		l := p.Labels()
		if l[LabelNode] == a.opt.Name && l[LabelState] == a.opt.StateDir {
			a.adopted[id] = p
		}
	}
}

// retryRuntimes asks a runtime that did not answer again. Until it does, its
// instances stay as the records say: no agent, no change.
func (a *Agent) retryRuntimes(ctx context.Context) {
	for a.clock.Sleep(ctx, time.Second) == nil {
		a.mu.Lock()
		var failed []string
		for kind, err := range a.runtimes {
			if err != nil {
				failed = append(failed, kind)
			}
		}
		a.mu.Unlock()
		if len(failed) == 0 {
			return
		}
		slices.Sort(failed)
		for _, kind := range failed {
			a.adopt(ctx, kind, a.opt.Runtimes[kind])
		}
		a.wakeAll()
		kick(a.inspect)
	}
}

func (a *Agent) wakeAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, in := range a.instances {
		kick(in.changed)
	}
}
