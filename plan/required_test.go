package plan

import (
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestReservationsRequired: where reservations are required no instance of a tenant is made
// without one, and they are not required where such run.
func TestReservationsRequired(t *testing.T) {
	s := newSim(t, 7)
	s.site("fra1", 1, 1)
	cloudlet := func(share int) *onpath.Cloudlet {
		c := onpath.Clone(s.objects[onpath.Key{Kind: onpath.KindCloudlet, Name: "fra1"}].(*onpath.Cloudlet))
		c.Spec.Reservations, c.Spec.OperatorShare = onpath.ReservationsRequired, share
		return c
	}
	small := func(f *onpath.FunctionSpec) { f.Resources = onpath.Resources{CPU: 100, Memory: 64 << 20} }
	placed := func(tenant, name, function string, n int) *onpath.Deployment {
		d := aDeployment(tenant, name, function, n)
		d.Spec.Place.Cloudlets = []string{"fra1"}
		return d
	}
	s.apply(aFunction("default", "fw", small), placed("default", "web", "fw", 1))
	s.settle()
	if code, why := s.refusal(cloudlet(10)); code != onpath.CodeInvalid || !strings.Contains(why, "instances run here without a reservation: default/web-") {
		t.Errorf("got %s %q", code, why)
	}
	s.apply(placed("default", "web", "fw", 0))
	s.pass(5 * time.Minute)
	if code, why := s.refusal(cloudlet(10)); code != "" {
		t.Fatalf("refused: %s", why)
	}
	s.apply(cloudlet(10), placed("default", "web", "fw", 1), aFunction("operator", "fw", small), placed("operator", "ids", "fw", 30))
	s.settle()
	if n := len(s.instances("web")); n != 0 {
		t.Errorf("%d instances of a tenant run without a reservation", n)
	}
	d := s.objects[onpath.Key{Kind: onpath.KindDeployment, Tenant: "default", Name: "web"}].(*onpath.Deployment)
	if why := condition(d.Status.Conditions, "Ready"); !strings.Contains(why.Message, "takes instances of reservations only") {
		t.Errorf("the deployment says %+v", d.Status.Conditions)
	}
	if n := len(s.instances("ids")); n != 16 { // a tenth of 8 cores on two machines
		t.Errorf("the operator has %d instances", n)
	}
}

func condition(list []onpath.Condition, kind string) onpath.Condition {
	for _, c := range list {
		if c.Type == kind {
			return c
		}
	}
	return onpath.Condition{}
}

// TestPrepare: before a reservation begins its nodes make the function's image ready, and
// run nothing yet.
func TestPrepare(t *testing.T) {
	s := newSim(t, 8)
	s.site("fra1", 1, 1)
	d := aDeployment("default", "web", "fw", 1)
	d.Spec.Reservation = "evening"
	o, _ := onpath.New(onpath.KindReservation)
	r := o.(*onpath.Reservation)
	r.Metadata.Name, r.Metadata.Tenant = "evening", "default"
	r.Status = onpath.ReservationStatus{State: onpath.ReservationConfirmed, Cloudlet: "fra1", Places: []onpath.ReservedPlace{{Node: "fra1-n1"}},
		Slots: []onpath.ReservationSlot{{From: s.now.Add(30 * time.Second), Until: s.now.Add(time.Hour), Capacity: onpath.Resources{CPU: 100}}}}
	s.reservations = map[onpath.Key]*Reserved{onpath.KeyOf(r): {Reservation: r}}
	s.apply(aFunction("default", "fw", nil), d, aChain("default", "web", onpath.Element{Deployment: "web"}))
	s.settle()
	if p := s.states["fra1-n1"].Acked; p == nil || len(p.Prepare) != 1 || p.Prepare[0].Container == nil || len(p.Instances) != 0 {
		t.Fatalf("before it begins the plan is %+v", p)
	}
	s.pass(time.Minute)
	if p := s.states["fra1-n1"].Acked; len(p.Prepare) != 0 || len(p.Instances) != 1 {
		t.Errorf("when it has begun there are %d to prepare, and %d instances", len(p.Prepare), len(p.Instances))
	}
}
