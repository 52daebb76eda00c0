package control_test

import (
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestReservationsOfTenants: a tenant with a live reservation stays, and reservations and
// instances outside of them count together against its quota of capacity.
func TestReservationsOfTenants(t *testing.T) {
	s := threeNodes(t)
	acme := object[*onpath.Tenant](onpath.KindTenant, "", "acme")
	acme.Spec.Quota = &onpath.Quota{Capacity: onpath.Resources{CPU: 1000}}
	s.apply(acme)
	for _, name := range []string{"n1", "n2"} {
		n := s.node(name)
		n.Spec.Capacity = onpath.Resources{CPU: 8000, Memory: 8 << 30}
		s.apply(n)
	}
	r := object[*onpath.Reservation](onpath.KindReservation, "acme", "r")
	r.Spec.Capacity, r.Spec.Until = onpath.Resources{CPU: 700}, s.now().Add(time.Hour)
	if err := r.Validate(); err != nil {
		t.Fatal(err)
	}
	pool := s.c.Pool()
	wants := func(err error, word string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%v; want %q", err, word)
		}
	}
	apply := func(r *onpath.Reservation) (err error) {
		_, err = pool.Apply(t.Context(), []*onpath.Reservation{r}, nil, false)
		return err
	}
	s.until("it is admitted", func() bool { return apply(r) == nil })
	f := function("fw")
	f.Metadata.Tenant, f.Spec.Resources.CPU = "acme", 200
	s.apply(f)
	c := web(2)
	c.Metadata.Tenant = "acme"
	check := func(o onpath.Object) error {
		_, err := s.c.Check(t.Context(), s.changes(o), false)
		return err
	}
	wants(check(c), "spec.quota.capacity.cpu")
	one := 1
	c.Spec.Through[0].Instances = &one
	if err := check(c); err != nil && strings.Contains(err.Error(), "quota") {
		t.Error(err)
	}
	more := object[*onpath.Reservation](onpath.KindReservation, "acme", "more")
	more.Spec = r.Spec
	wants(apply(more), "capacity.cpu")
	ghost := object[*onpath.Reservation](onpath.KindReservation, "ghost", "r")
	ghost.Spec = r.Spec
	wants(apply(ghost), "there is no tenant ghost")
	_, err := s.c.Check(t.Context(), []onpath.Change{{Key: onpath.KeyOf(acme)}}, false)
	wants(err, "it still has reservation acme/r")
	q, err := pool.Apply(t.Context(), []*onpath.Reservation{r}, nil, true) // as it is
	if err != nil {
		t.Fatal(err)
	}
	node := onpath.Key{Kind: onpath.KindNode, Name: q[0].Places[0].Node}
	_, err = s.c.Check(t.Context(), []onpath.Change{{Key: node}}, false)
	wants(err, "reservations have its room: acme/r; drain it first (onpath drain "+node.Name+")")
	less := s.node(node.Name)
	less.Spec.Capacity = onpath.Resources{CPU: 100, Memory: 8 << 30}
	notes, err := s.c.Check(t.Context(), s.changes(less), false)
	if err != nil || !strings.Contains(strings.Join(notes, " "), "node "+node.Name+" has promised more to reservations than it would have") {
		t.Errorf("less capacity than promised: %q %v", notes, err)
	}
	if p, err := s.c.Preview(t.Context(), s.changes(less)); err != nil || !strings.Contains(strings.Join(p.Notes, " "), "has promised more") {
		t.Errorf("a preview of less capacity than promised: %+v %v", p, err)
	}
	s.until("it moves off its node, which is drained", func() bool {
		n := s.node(node.Name)
		n.Spec.Drain = true
		s.apply(n)
		return len(pool.PromisedTo(node.Name)) == 0
	})
}
