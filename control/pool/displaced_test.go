package pool

import (
	"fmt"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// crowded has reservation grown of tenant acme share a node of 32 cores with so many of 1 core
// of another tenant: each core that it grows by has one of them move.
func crowded(t *testing.T, tenant string, neighbours int) (f *fixture, grow func(cores int) error) {
	f = setUp(t)
	for _, name := range []string{"fra-1", "fra-2"} {
		n := f.nodes[name]
		n.Capacity.CPU = 40_000
		f.nodes[name] = n
	}
	f.observe()
	size := 32 - neighbours
	grown := f.of("acme", "grown", 0, 9*time.Hour, cores(float64(size)))
	grown.Spec.Cloudlet = "fra"
	f.must(grown)
	for i := range neighbours {
		r := f.of(tenant, fmt.Sprintf("n%d", i), 0, 9*time.Hour, cores(1))
		r.Spec.Cloudlet = "fra"
		f.must(r)
		f.use[onpath.KeyOf(r)] = Use{Stateless: true}
	}
	f.pass(time.Minute)
	return f, func(n int) error {
		r := copyOf(grown)
		r.Spec.Capacity = cores(float64(size + n))
		_, err := f.apply(r)
		if err == nil {
			size += n
			f.pass(time.Minute)
		}
		return err
	}
}

// moves counts the reservations of a tenant that have left a node.
func (f *fixture) moves(tenant string) (n int) {
	for k, e := range f.queue.state.rows.entries {
		if k.Tenant == tenant && e.obj.Status.Places[0].Node != "fra-1" {
			n++
		}
	}
	return n
}

// TestGrowthDisplacesFew: a tenant whose reservation grows on and on has a bounded number of
// other tenants' instances move within an hour. What is refused moves nobody.
func TestGrowthDisplacesFew(t *testing.T) {
	f, grow := crowded(t, "neighbour", 12)
	f.refused(grow(11), onpath.CodeNoCapacity, "10 running instances of others move at most within 1h0m0s", "tenant acme")
	if n := f.moves("neighbour"); n != 0 {
		t.Errorf("%d have moved for what was declined", n)
	}
	first := f.now
	for i := range mostDisplaced {
		if err := grow(1); err != nil {
			t.Fatalf("growth %d: %v", i+1, err)
		}
	}
	f.refused(grow(1), onpath.CodeNoCapacity, "declined", "ask again from "+text(first.Add(displacedWithin))+" on")
	if n := f.moves("neighbour"); n != mostDisplaced {
		t.Errorf("%d have moved", n)
	}
	f.now = first.Add(displacedWithin)
	f.Tick(t.Context())
	if err := grow(1); err != nil {
		t.Errorf("an hour after the first one: %v", err)
	}
}

// TestDisplacedCounted: what a quote would move does not count, nor what moves of the tenant's
// own.
func TestDisplacedCounted(t *testing.T) {
	f, grow := crowded(t, "neighbour", 12)
	quoted := f.of("acme", "grown", 0, 9*time.Hour, cores(30))
	quoted.Spec.Cloudlet = "fra"
	for range 3 {
		if _, err := f.Apply(t.Context(), []*onpath.Reservation{f.checked(quoted)}, nil, true); err != nil {
			t.Fatal(err)
		}
	}
	if err := grow(10); err != nil {
		t.Error(err)
	}
	f, grow = crowded(t, "acme", 12)
	if err := grow(12); err != nil {
		t.Error(err)
	}
}
