package instance

import (
	"context"
	"os"

	"github.com/onpath/onpath"
)

// sweep clears away what earlier agents left and no plan names: processes,
// devices, namespaces, records. It runs after the first configuration is in
// force, so that no rule leads there any more, and when a runtime that was away
// is back. Several may run: each id is one's.
func (s *Set) sweep(ctx context.Context) {
	left, err := s.leftovers()
	if err != nil {
		s.part.Log.Error("cannot look for leftovers", "err", err)
		return
	}
	for id, rec := range left {
		swept, err := s.sweepOne(ctx, id, rec)
		if err != nil {
			s.part.Log.Error("cannot clear away a leftover; tried again when the agent or the runtime starts", "instance", id, "err", err)
			continue
		}
		if !swept {
			continue
		}
		s.part.Log.Info("cleared away an instance that no plan names", "instance", id)
	}
}

// leftovers are all ids found anywhere that no instance in memory has.
func (s *Set) leftovers() (map[string]Record, error) {
	out, err := Records(s.part.Dir)
	if err != nil {
		return nil, err
	}
	devices, err := s.wirer.Devices()
	if err != nil {
		return nil, err
	}
	for _, id := range devices {
		if _, ok := out[id]; !ok {
			out[id] = Record{ID: id}
		}
	}
	names, err := os.ReadDir(s.part.Dir.Namespaces())
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		if _, ok := out[n.Name()]; !ok {
			out[n.Name()] = Record{ID: n.Name()}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range s.adopted.ids() {
		if _, ok := out[id]; !ok {
			out[id] = Record{ID: id}
		}
	}
	for id := range s.instances {
		delete(out, id)
	}
	return out, nil
}

// sweepOne reports whether the leftover is gone, by it. No lock is held while it
// goes: an instance of the same id that a plan names meanwhile waits for the end.
func (s *Set) sweepOne(ctx context.Context, id string, rec Record) (bool, error) {
	p, done, err := s.beginSweep(id, rec)
	if err != nil || done == nil {
		return false, err
	}
	defer done()
	if p != nil {
		stop, cancel := context.WithTimeout(ctx, s.opt.StopGrace+startTimeout)
		defer cancel()
		if err := p.Stop(stop, s.opt.StopGrace); err != nil {
			s.adopted.put(id, p)
			return false, err
		}
	}
	return true, s.removeLeft(id, rec)
}

// beginSweep takes an id that nobody wants, with the process that it may have, until
// done is called. done is nil if there is nothing to be done.
func (s *Set) beginSweep(id string, rec Record) (p onpath.Process, done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.instances[id] != nil || s.sweeping[id] != nil || s.expected[id] {
		return nil, nil, nil
	}
	if err := s.runtimes.down(rec.Kind, rec.Started); err != nil {
		return nil, nil, err // it may still run
	}
	p = s.adopted.take(id)
	over := make(chan struct{})
	s.sweeping[id] = over
	return p, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.sweeping, id)
		close(over)
	}, nil
}

// awaitSweep waits until no leftover of the instance's id is being cleared away;
// false if the agent ends before.
func (in *instance) awaitSweep() bool {
	if in.sweep == nil {
		return true
	}
	in.st.set(onpath.InstanceStarting, Cause{"AwaitingSweep", "waiting until what an earlier agent left of it is gone"})
	select {
	case <-in.sweep:
		return true
	case <-in.s.part.Context().Done():
		return false
	}
}

// removeLeft removes all of an id but its process.
func (s *Set) removeLeft(id string, rec Record) error {
	devices, err := s.wirer.Devices()
	if err != nil {
		return err
	}
	for name, owner := range devices {
		if owner != id {
			continue
		}
		if err := s.wirer.DeleteDevice(name); err != nil {
			return err
		}
	}
	if err := s.wirer.Unwire(id, rec.Vports); err != nil {
		return err
	}
	if err := removeRecord(s.part.Dir, id); err != nil {
		return err
	}
	if tenant := rec.Tenant; tenant != "" {
		s.part.TellInstance(onpath.InstancePlan{Tenant: tenant, Name: rec.Name}, false, "Swept",
			"left by an earlier agent; nothing of it remains on this node")
	}
	return nil
}
