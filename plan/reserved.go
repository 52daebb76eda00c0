package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/onpath/onpath"
)

// Reserved is a reservation that runs or soon will.
type Reserved struct {
	Reservation *onpath.Reservation
}

// TenantsPart is what tenants may use of a capacity of which the operator keeps a share,
// in percent.
func TenantsPart(r onpath.Resources, share int) onpath.Resources { return tenantsPart(r, share) }

// reserved is what a deployment has of its reservation now.
type reserved struct {
	key      name
	why      string    // why it does not run; "": it does
	begins   time.Time // if it is yet to begin, and is known to soon
	cloudlet string
	places   map[string]int // instances by node
	soon     []string       // nodes where instances will begin soon
	n        int
	size     onpath.Resources     // of an instance
	leaving  map[string]time.Time // when instances that move are gone, by the node that they leave
	end      time.Time            // when the instances are to be gone; zero: never
}

// reserve takes up what a deployment's reservation says now: number, nodes and size of
// its instances. Where it does not run the deployment has none.
func (d *deployment) reserve(w *world, ref onpath.Ref) {
	if ref == "" {
		return
	}
	r := &reserved{key: resolve(ref, d.key.tenant), places: map[string]int{}, leaving: map[string]time.Time{}}
	d.res, d.want = r, 0
	o := w.Reservations[onpath.Key{Kind: onpath.KindReservation, Tenant: r.key.tenant, Name: r.key.name}]
	switch {
	case r.key.tenant != d.key.tenant:
		r.why = fmt.Sprintf("reservation %s belongs to another tenant", r.key)
	case o == nil:
		r.why = fmt.Sprintf("reservation %s does not run now", r.key.name)
	default:
		d.reservedNow(w, &o.Reservation.Status)
	}
}

func (d *deployment) reservedNow(w *world, st *onpath.ReservationStatus) {
	r := d.res
	r.cloudlet, r.end = st.Cloudlet, st.End()
	if slot := st.At(w.Now); slot != nil {
		r.size = slot.Capacity // also of instances that drain
	}
	if !w.passed(st.Begin()) {
		r.begins = st.Begin().UTC().Round(0)
		r.why = fmt.Sprintf("reservation %s begins at %s", r.key.name, st.Begin().Format(time.RFC3339))
		for _, p := range st.Places {
			r.soon = append(r.soon, p.Node)
		}
		return
	}
	if !r.end.IsZero() && w.passed(drainFrom(st, d.drain)) {
		r.why = fmt.Sprintf("reservation %s ends at %s", r.key.name, r.end.Format(time.RFC3339))
		return
	}
	slot := st.At(w.Now)
	if slot == nil {
		r.why = fmt.Sprintf("reservation %s does not run now", r.key.name)
		return
	}
	if !slot.Until.IsZero() {
		w.passed(slot.Until) // the next one has another size
	}
	for _, p := range st.Places {
		if p.Leaving != "" {
			r.leaving[p.Leaving] = p.LeavingUntil
		}
		r.places[p.Node]++
		r.n++
	}
	d.want = r.n
}

// drainFrom is from when a reservation's instances get no new flows: the time they take
// to drain before its end, but not in the first half of it.
func drainFrom(st *onpath.ReservationStatus, drain time.Duration) time.Time {
	end := st.End()
	return end.Add(-min(drain, end.Sub(st.Begin())/2))
}

// runs reports whether the deployment has a reservation that runs.
func (d *deployment) runs() bool { return d.res != nil && d.res.why == "" }

// toPrepare are the functions of which instances will begin soon, by node.
func (w *world) toPrepare() map[string][]onpath.FunctionSpec {
	out := map[string][]onpath.FunctionSpec{}
	for _, d := range w.deployments {
		if d.res == nil || d.function == nil || d.inline() {
			continue
		}
		for _, node := range unique(d.res.soon) {
			out[node] = append(out[node], d.spec)
		}
	}
	for _, list := range out {
		slices.SortFunc(list, func(a, b onpath.FunctionSpec) int { return strings.Compare(a.Shape(""), b.Shape("")) })
	}
	return out
}

// unique are words without those that stand twice.
func unique(words []string) []string {
	words = slices.Sorted(slices.Values(words))
	return slices.Compact(words)
}

// sized gives instances the size of the reservation.
func (d *deployment) sized() {
	if d.res != nil && d.res.size != (onpath.Resources{}) {
		d.spec.Resources = d.res.size
	}
}

// unpromised reports whether an instance has to go from its node though no other may
// serve yet: nothing is promised there any more, or will be when it has drained.
func (d *deployment) unpromised(w *world, n *node) bool {
	if !d.runs() || d.res.places[n.name] > 0 {
		return false
	}
	until, leaves := d.res.leaving[n.name]
	return !leaves || w.passed(until.Add(-d.drain))
}

// off is why a chain is out of traffic on purpose; "": it is not.
func (c *chain) off() string {
	if c.obj.Spec.Disabled {
		return "the chain is disabled"
	}
	if c.unproved != nil {
		return c.unproved.Message
	}
	for _, e := range c.elements {
		if e.d == nil || e.d.res == nil {
			continue
		}
		if e.d.res.why != "" {
			return e.d.res.why
		}
		if !slices.Contains(c.cloudlets, e.d.res.cloudlet) {
			return fmt.Sprintf("reservation %s is in cloudlet %s, where the chain is not", e.d.res.key.name, e.d.res.cloudlet)
		}
	}
	return ""
}

// begins is when the reservation begins for which the chain is out of traffic; zero: that is
// not why, or it is not known.
func (c *chain) begins() time.Time {
	for _, e := range c.elements {
		if e.d != nil && e.d.res != nil && e.d.res.why != "" {
			return e.d.res.begins
		}
	}
	return time.Time{}
}

// withinReserved leaves a chain in the cloudlet where the reservations of its elements
// are.
func (c *chain) withinReserved() {
	for _, e := range c.elements {
		if e.d != nil && e.d.runs() && slices.Contains(c.cloudlets, e.d.res.cloudlet) {
			c.cloudlets = []string{e.d.res.cloudlet}
		}
	}
}

// unreserved says why a node is no place of the deployment's reservation, or has as many
// instances as it says already.
func (d *deployment) unreserved(w *rollout, n *node) string {
	if d.res == nil {
		return ""
	}
	switch places := d.res.places[n.name]; {
	case places == 0:
		return "is not reserved"
	case w.siblings(d, n) >= places:
		return "has as many as reserved"
	}
	return ""
}

// overReserved parts the instances that are more than a node's places from the others:
// the newest go.
func (d *deployment) overReserved(good []*instance) (stay, over []*instance) {
	if d.res == nil {
		return good, nil
	}
	left := map[string]int{}
	for node, n := range d.res.places {
		left[node] = n
	}
	slices.SortFunc(good, func(a, b *instance) int { return int(a.obj.Spec.Key) - int(b.obj.Spec.Key) })
	for _, i := range good {
		if left[i.node.name] == 0 {
			over = append(over, i)
			continue
		}
		left[i.node.name]--
		stay = append(stay, i)
	}
	return stay, over
}

// outsideReservations is what instances outside of reservations hold of what tenants may use: the
// operator's only count as far as they are more than its share.
func outsideReservations(w *world) map[string]onpath.Resources {
	out := map[string]onpath.Resources{}
	for name, n := range w.nodes {
		r := n.used[false]
		if more := n.used[true]; more != (onpath.Resources{}) {
			share := 0
			if n.c.obj != nil {
				share = n.c.obj.Spec.OperatorShare
			}
			c := n.capacity()
			more = more.Sub(c.Sub(tenantsPart(c, share)))
			r = r.Add(onpath.Resources{CPU: max(more.CPU, 0), Memory: max(more.Memory, 0), Disk: max(more.Disk, 0),
				Network: max(more.Network, 0)})
		}
		if r != (onpath.Resources{}) {
			out[name] = r
		}
	}
	return out
}

// Capacity is what instances may use of a node in all: what its object declares, else
// what it reported, less what leases may have; a part that is zero is not known.
func Capacity(o *onpath.Node, st *NodeState) onpath.Resources {
	n := &node{obj: o, st: st}
	c, lent := n.capacity(), n.lent()
	if lent.CPU > 0 {
		c.CPU = max(1, c.CPU-lent.CPU)
	}
	if lent.Memory > 0 {
		c.Memory = max(1, c.Memory-lent.Memory)
	}
	return c
}
