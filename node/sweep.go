package node

import (
	"context"
	"os"

	"github.com/onpath/onpath"
)

// sweep clears away what earlier agents left and no plan names: processes,
// devices, namespaces, records. It runs after the first configuration is in
// force, so that no rule leads there any more.
func (a *Agent) sweep(ctx context.Context) {
	left, err := a.leftovers()
	if err != nil {
		a.log.Error("cannot look for leftovers", "err", err)
		return
	}
	for id, rec := range left {
		if err := a.sweepOne(ctx, id, rec); err != nil {
			a.log.Error("cannot clear away a leftover; the next start tries again", "instance", id, "err", err)
			continue
		}
		a.log.Info("cleared away an instance that no plan names", "instance", id)
	}
}

// leftovers are all ids found anywhere that no instance in memory has.
func (a *Agent) leftovers() (map[string]record, error) {
	out, err := a.state.records()
	if err != nil {
		return nil, err
	}
	devices, err := a.wirer.devices()
	if err != nil {
		return nil, err
	}
	for _, id := range devices {
		if _, ok := out[id]; !ok {
			out[id] = record{ID: id}
		}
	}
	names, err := os.ReadDir(a.state.netnsDir())
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

func (a *Agent) sweepOne(ctx context.Context, id string, rec record) error {
	a.planned.Lock() // no plan may name it again meanwhile
	defer a.planned.Unlock()
	a.mu.Lock()
	_, wanted := a.instances[id]
	p := a.adopted[id]
	var rtErr error
	if d := a.drivers[rec.Kind]; d != nil {
		rtErr = d.err
	} else if rec.Started {
		rtErr = onpath.Errorf(onpath.CodeUnavailable, "the runtime for %s functions, which started it, is not set up any more", rec.Kind)
	}
	if !wanted && rtErr == nil {
		delete(a.adopted, id)
	}
	a.mu.Unlock()
	if wanted {
		return nil
	}
	if rtErr != nil {
		return rtErr // it may still run
	}
	if p != nil {
		if err := p.Stop(ctx, a.opt.StopGrace); err != nil {
			return err
		}
	}
	devices, err := a.wirer.devices()
	if err != nil {
		return err
	}
	for name, owner := range devices {
		if owner != id {
			continue
		}
		if err := a.wirer.deleteDevice(name); err != nil {
			return err
		}
	}
	if err := a.wirer.unwire(id, rec.Vports); err != nil {
		return err
	}
	if err := a.state.removeRecord(id); err != nil {
		return err
	}
	if tenant := rec.Tenant; tenant != "" {
		a.event(onpath.InstancePlan{Tenant: tenant, Name: rec.Name}, false, "Swept", "left by an earlier agent; nothing of it remains on this node")
	}
	return nil
}
