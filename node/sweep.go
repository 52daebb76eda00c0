package node

import (
	"context"
	"os"

	"github.com/onpath/onpath"
)

// sweep clears away what earlier agents left and no plan names: processes,
// devices, namespaces, records. It runs after the first configuration is in
// force, so that no rule leads there any more, and when a runtime that was away
// is back. Several may run: each id is one's.
func (a *Agent) sweep(ctx context.Context) {
	left, err := a.leftovers()
	if err != nil {
		a.part.Log.Error("cannot look for leftovers", "err", err)
		return
	}
	for id, rec := range left {
		swept, err := a.sweepOne(ctx, id, rec)
		if err != nil {
			a.part.Log.Error("cannot clear away a leftover; tried again when the agent or the runtime starts", "instance", id, "err", err)
			continue
		}
		if !swept {
			continue
		}
		a.part.Log.Info("cleared away an instance that no plan names", "instance", id)
	}
}

// leftovers are all ids found anywhere that no instance in memory has.
func (a *Agent) leftovers() (map[string]record, error) {
	out, err := loadRecords(a.part.Dir)
	if err != nil {
		return nil, err
	}
	devices, err := a.wirer.Devices()
	if err != nil {
		return nil, err
	}
	for _, id := range devices {
		if _, ok := out[id]; !ok {
			out[id] = record{ID: id}
		}
	}
	names, err := os.ReadDir(a.part.Dir.Namespaces())
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		if _, ok := out[n.Name()]; !ok {
			out[n.Name()] = record{ID: n.Name()}
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for id := range a.adopted {
		if _, ok := out[id]; !ok {
			out[id] = record{ID: id}
		}
	}
	for id := range a.instances {
		delete(out, id)
	}
	return out, nil
}

// sweepOne reports whether the leftover is gone, by it. No lock is held while it
// goes: an instance of the same id that a plan names meanwhile waits for the end.
func (a *Agent) sweepOne(ctx context.Context, id string, rec record) (bool, error) {
	p, done, err := a.beginSweep(id, rec)
	if err != nil || done == nil {
		return false, err
	}
	defer done()
	if p != nil {
		stop, cancel := context.WithTimeout(ctx, a.opt.StopGrace+startTimeout)
		defer cancel()
		if err := p.Stop(stop, a.opt.StopGrace); err != nil {
			a.mu.Lock()
			a.adopted[id] = p
			a.mu.Unlock()
			return false, err
		}
	}
	return true, a.removeLeft(id, rec)
}

// beginSweep takes an id that nobody wants, with the process that it may have, until
// done is called. done is nil if there is nothing to be done.
func (a *Agent) beginSweep(id string, rec record) (p onpath.Process, done func(), err error) {
	a.planned.Lock() // a plan that is being taken up may name it
	defer a.planned.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.instances[id] != nil || a.sweeping[id] != nil {
		return nil, nil, nil
	}
	if d := a.drivers[rec.Kind]; d != nil {
		err = d.err
	} else if rec.Started {
		err = onpath.Errorf(onpath.CodeUnavailable, "the runtime for %s functions, which started it, is not set up any more", rec.Kind)
	}
	if err != nil {
		return nil, nil, err // it may still run
	}
	p = a.adopted[id]
	delete(a.adopted, id)
	over := make(chan struct{})
	a.sweeping[id] = over
	return p, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.sweeping, id)
		close(over)
	}, nil
}

// awaitSweep waits until no leftover of the instance's id is being cleared away;
// false if the agent ends before.
func (in *instance) awaitSweep() bool {
	in.a.mu.Lock()
	over := in.a.sweeping[in.id]
	in.a.mu.Unlock()
	if over == nil {
		return true
	}
	in.set(onpath.InstanceStarting, cause{"AwaitingSweep", "waiting until what an earlier agent left of it is gone"})
	select {
	case <-over:
		return true
	case <-in.a.part.Context().Done():
		return false
	}
}

// removeLeft removes all of an id but its process.
func (a *Agent) removeLeft(id string, rec record) error {
	devices, err := a.wirer.Devices()
	if err != nil {
		return err
	}
	for name, owner := range devices {
		if owner != id {
			continue
		}
		if err := a.wirer.DeleteDevice(name); err != nil {
			return err
		}
	}
	if err := a.wirer.Unwire(id, rec.Vports); err != nil {
		return err
	}
	if err := removeRecord(a.part.Dir, id); err != nil {
		return err
	}
	if tenant := rec.Tenant; tenant != "" {
		a.part.TellInstance(onpath.InstancePlan{Tenant: tenant, Name: rec.Name}, false, "Swept", "left by an earlier agent; nothing of it remains on this node")
	}
	return nil
}
