package node

import (
	"errors"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node/leases"
)

// TestPlans: until a plan has been applied the one before stays; a plan that a newer one has
// overtaken changes nothing; what is refused is the problem until a plan is taken.
func TestPlans(t *testing.T) {
	p, one, two := &plans{}, &onpath.NodePlan{Generation: 1}, &onpath.NodePlan{Generation: 2}
	p.want(one)
	if ack, save := p.setApplied(one, true, ""); !ack || !save {
		t.Errorf("the first: acknowledged %t, saved %t", ack, save)
	}
	p.acknowledge(1)
	p.want(two)
	if now := p.get(); now.fallback() != one || now.inForce != one || now.acked != 1 {
		t.Errorf("before the second is applied: %+v", now)
	}
	if ack, _ := p.setApplied(one, true, ""); ack || p.setFailed(one, errors.New("late"), time.Now()) || p.get().problem != "" {
		t.Error("one that is not wanted any more counts")
	}
	if !p.setFailed(two, errors.New("no"), time.Unix(1, 0)) || p.setFailed(two, errors.New("no"), time.Unix(2, 0)) || p.get().problem != "no" {
		t.Error("a failure is not told once")
	}
	if ack, _ := p.setApplied(two, false, "a device is missing"); ack || p.get().fallback() != nil || p.get().inForce != one {
		t.Error("one with vports missing is acknowledged, or the one before comes back")
	}
	if p.refuse(two, errors.New("full"), nil); p.get().problem != "full" {
		t.Errorf("the problem of a refused plan is %q", p.get().problem)
	}
	r := p.refused()
	if r == nil || p.refuse(two, errors.New("full"), r) || !p.refuse(two, errors.New("fuller"), r) || p.stands(r) {
		t.Error("a refusal is news if its words are others")
	}
	if p.refuse(two, onpath.Errorf(onpath.CodeInvalid, "wrong"), nil); p.refused() != nil {
		t.Error("a wrong plan is tried again")
	}
	if p.takeBack(); p.get().problem != "a device is missing" {
		t.Errorf("without the refusal the problem is %q", p.get().problem)
	}
	if p.lease(leases.List{}) || !p.lease(leases.List{Number: 2}) || p.lease(leases.List{Number: 1}) {
		t.Error("older leases count")
	}
}
