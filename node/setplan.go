package node

import (
	"context"
	"slices"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node/base"
)

// Plan implements session.Handler.
func (a *Agent) Plan(ctx context.Context, p *onpath.NodePlan) {
	err := a.SetPlan(ctx, p)
	if err == nil || ctx.Err() != nil {
		return
	}
	a.part.Log.Error("the server's plan is not taken", "err", err)
	a.plans.refuse(p, err, nil)
	base.Kick(a.part.ReportDue)
	base.Kick(a.retry)
}

// retryPlan tries plans that were refused again.
func (a *Agent) retryPlan(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.retry:
		}
		var b base.Backoff
		for r := a.plans.refused(); r != nil; r = a.plans.refused() {
			if a.part.Clock.Sleep(ctx, b.After(0)) != nil {
				return
			}
			err := a.setPlan(ctx, r.plan, r)
			if err == nil || ctx.Err() != nil {
				continue
			}
			if a.plans.refuse(r.plan, err, r) {
				a.part.Log.Error("the server's plan is still not taken", "err", err)
			}
			base.Kick(a.part.ReportDue)
		}
	}
}

// SetPlan takes the whole desired state. It returns when the plan is saved and
// taken up; the report says when it is in force. A plan equal to the present
// one changes nothing.
func (a *Agent) SetPlan(ctx context.Context, p *onpath.NodePlan) error {
	return a.setPlan(ctx, p, nil)
}

// setPlan is SetPlan; again, if not nil, is the refusal of p, which must still be the
// last word.
func (a *Agent) setPlan(ctx context.Context, p *onpath.NodePlan, again *refusal) error {
	if err := checkPlan(a.opt.Name, p); err != nil {
		return err
	}
	select {
	case <-a.up:
	case <-ctx.Done():
		return ctx.Err()
	}
	if a.part.Context().Err() != nil {
		return onpath.Errorf(onpath.CodeUnavailable, "the agent of node %s is ending", a.opt.Name)
	}
	a.taking.Lock()
	defer a.taking.Unlock()
	p = clonePlan(p)
	if again != nil && !a.plans.stands(again) {
		return nil // a newer plan has come
	}
	here := a.plans.get()
	if here.wanted != nil && p.Generation < here.wanted.Generation {
		a.part.Log.Warn("the server's plan is older than the one here", "here", here.wanted.Generation, "got", p.Generation)
	}
	if here.wanted != nil && base.Hash(here.wanted) == base.Hash(p) {
		a.plans.takeBack()
		base.Kick(a.part.ReportDue)
		return nil
	}
	a.instances.Expect(p.Instances)
	if err := savePlan(a.part.Dir, savedPlan{Node: a.opt.Name, Wanted: p, InForce: here.inForce}); err != nil {
		return err
	}
	a.tunnels.Follow(p)
	a.peers.Follow(p)
	a.plans.want(p)
	a.exempt.Follow(p)
	if a.machine.Follow(p) {
		a.machine.Look()
	}
	a.reconcile()
	soon := p.Prepare
	if p.Leases != nil { // a publisher's engine is to be there at once
		soon = append(slices.Clip(soon), onpath.FunctionSpec{Wasm: &onpath.WasmSpec{}})
	}
	a.instances.Prepare(soon)
	a.part.Log.Info("new plan", "generation", p.Generation, "instances", len(p.Instances), "vports", len(p.Datapath.Vports))
	a.rounds.Kick(false)
	a.leases.Follow(p)
	a.peers.Measure(p)
	base.Kick(a.part.ReportDue)
	return nil
}

func checkPlan(node string, p *onpath.NodePlan) error {
	if p == nil || p.Node != node {
		return onpath.Errorf(onpath.CodeInvalid, "the plan is not for node %s", node)
	}
	seen := map[onpath.VportID]string{}
	for _, in := range p.Instances {
		ids := []onpath.VportID{in.Vport}
		if in.Spec.Traits().Attach == onpath.Bridged {
			ids = append(ids, in.Back)
		}
		for _, v := range ids {
			name := in.Tenant + "/" + in.Name
			if v == 0 || v > onpath.MaxID24 {
				return onpath.Errorf(onpath.CodeInvalid, "plan %d gives instance %s the vport %d, which is none", p.Generation, name, v)
			}
			if other, ok := seen[v]; ok {
				return onpath.Errorf(onpath.CodeInvalid, "plan %d gives vport %d to both %s and %s", p.Generation, v, other, name)
			}
			seen[v] = name
		}
	}
	for _, v := range p.Datapath.Vports {
		if v.Kind != onpath.VportRemote && seen[v.ID] == "" {
			return onpath.Errorf(onpath.CodeInvalid, "plan %d has the instance vport %d, which belongs to none of its instances", p.Generation, v.ID)
		}
	}
	return nil
}
