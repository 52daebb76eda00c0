package node

import (
	"bytes"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node/base"
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

// TestSavedPlan: a plan whose lists would be too much many times over is kept with each once; one
// that an older version may have to read is kept whole. Both are the same when they are read.
func TestSavedPlan(t *testing.T) {
	for _, firewalls := range []int{2, 70} {
		d := base.Dir(t.TempDir())
		plan := func() *onpath.NodePlan {
			p := &onpath.NodePlan{Node: "n1"}
			for range firewalls {
				files := map[string]onpath.File{"blocklist": {Content: strings.Repeat("192.0.2.1\n", 1<<20/10+1), Mode: 0o600}}
				p.Instances = append(p.Instances, onpath.InstancePlan{Spec: onpath.FunctionSpec{EBPF: &onpath.EBPFSpec{Files: files}}})
			}
			return p
		}
		if err := savePlan(d, savedPlan{Wanted: plan(), InForce: plan()}); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(planFile(d))
		if err != nil {
			t.Fatal(err)
		}
		if whole := !bytes.Contains(data, []byte("sha256:")); whole != (firewalls == 2) || len(data) > 5<<20 {
			t.Errorf("the plan of %d firewalls is kept whole: %t, in %d bytes", firewalls, whole, len(data))
		}
		got, err := loadPlan(d)
		if err != nil || !reflect.DeepEqual(got.Wanted, plan()) || !reflect.DeepEqual(got.InForce, plan()) {
			t.Errorf("the plan of %d firewalls is another one when it is read: %v", firewalls, err)
		}
	}
}
