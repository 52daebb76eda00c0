package node

import (
	"context"
	"slices"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node/base"
)

// refusal is a plan of the server's that could not be taken. The server does not
// send it again: it is tried until it is taken, or another one.
type refusal struct {
	plan *onpath.NodePlan
	err  error
}

// Plan implements session.Handler.
func (a *Agent) Plan(ctx context.Context, p *onpath.NodePlan) {
	err := a.SetPlan(ctx, p)
	if err == nil || ctx.Err() != nil {
		return
	}
	a.part.Log.Error("the server's plan is not taken", "err", err)
	a.mu.Lock()
	a.refusal = &refusal{plan: p, err: err}
	a.mu.Unlock()
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
		for r := a.refusedPlan(); r != nil; r = a.refusedPlan() {
			if a.part.Clock.Sleep(ctx, b.After(0)) != nil {
				return
			}
			err := a.setPlan(ctx, r.plan, r)
			if err == nil || ctx.Err() != nil {
				continue
			}
			a.mu.Lock()
			if a.refusal == r && err.Error() != r.err.Error() {
				a.part.Log.Error("the server's plan is still not taken", "err", err)
				a.refusal = &refusal{plan: r.plan, err: err}
			}
			a.mu.Unlock()
			base.Kick(a.part.ReportDue)
		}
	}
}

// refusedPlan is the refusal for which another attempt may do: a plan that is wrong
// stays so.
func (a *Agent) refusedPlan() *refusal {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refusal == nil || onpath.CodeOf(a.refusal.err) == onpath.CodeInvalid {
		return nil
	}
	return a.refusal
}

// planProblem is why the newest plan is not in force; "" if it is, or on its way. Callers
// hold mu.
func (a *Agent) planProblem() string {
	if a.refusal != nil {
		return a.refusal.err.Error()
	}
	return a.planErr
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
	a.planned.Lock()
	defer a.planned.Unlock()
	p = clonePlan(p)
	a.mu.Lock()
	if again != nil && a.refusal != again {
		a.mu.Unlock()
		return nil // a newer plan has come
	}
	same := a.plan != nil && base.Hash(a.plan) == base.Hash(p)
	inForce := a.inForce
	if a.plan != nil && p.Generation < a.plan.Generation {
		a.part.Log.Warn("the server's plan is older than the one here", "here", a.plan.Generation, "got", p.Generation)
	}
	if same {
		a.refusal = nil
	}
	a.mu.Unlock()
	if same {
		base.Kick(a.part.ReportDue)
		return nil
	}
	a.instances.Expect(p.Instances)
	if err := savePlan(a.part.Dir, savedPlan{Node: a.opt.Name, Wanted: p, InForce: inForce}); err != nil {
		return err
	}
	a.peers.Follow(p)
	a.mu.Lock()
	a.plan = p
	a.planErr, a.refusal = "", nil
	a.mu.Unlock()
	a.exempt.Follow(p)
	if a.machine.Follow(p) {
		a.machine.Look()
	}
	a.mu.Lock()
	a.reconcile()
	a.mu.Unlock()
	soon := p.Prepare
	if p.Leases != nil { // a publisher's engine is to be there at once
		soon = append(slices.Clip(soon), onpath.FunctionSpec{Wasm: &onpath.WasmSpec{}})
	}
	a.instances.Prepare(soon)
	a.part.Log.Info("new plan", "generation", p.Generation, "instances", len(p.Instances), "vports", len(p.Datapath.Vports))
	a.apply.Kick(false)
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
