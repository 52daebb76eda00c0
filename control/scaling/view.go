package scaling

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/scale"
)

func keys[K comparable, V any](m map[K]V) iter.Seq[K] { return maps.Keys(m) }

// scaleView is what a chain's scaler decides from.
func (c *Scaling) scaleView(k onpath.Key, o *onpath.Chain, x *scaled, chains map[onpath.Key]*onpath.Chain, now time.Time) *scale.View {
	v := &scale.View{Now: now, Demand: x.demand, Stale: x.stale(now, o.Spec.Scaling), Awaited: x.awaited(now, o.Spec.Scaling)}
	if !o.Status.Active || o.Spec.Disabled {
		v.Held = "the chain steers no traffic"
	}
	for i := range o.Spec.Through {
		e := &o.Spec.Through[i]
		spec, ok := o.Spec.Scaling.Elements[e.Name()]
		if !ok {
			continue
		}
		el := scale.Element{Name: e.Name(), ElementScaling: spec, Now: c.wantedOf(o, e), Cloudlets: cloudletsOf(c, o, e)}
		placed := 0
		el.Ready, placed = c.readyOf(o, e)
		if placed < el.Now && i < len(o.Status.Elements) {
			el.NoCapacity = o.Status.Elements[i].Message
		}
		el.Evidence = evidence(c.usage.roundsOf(k), deploymentKey(o, e), now, time.Duration(o.Spec.Scaling.Window))
		el.Others = c.othersOf(k, o, e, chains)
		boundByOthers(c, &el, k, o, e, chains)
		if el.Ready < el.Now && v.Held == "" {
			v.Held = fmt.Sprintf("%s has %d of %d instances ready", el.Name, el.Ready, el.Now)
		}
		v.Elements = append(v.Elements, el)
	}
	if busy := c.busyWith(k, o); busy != "" && v.Held == "" {
		v.Held = busy
	}
	return v
}

// cloudletsOf are how many cloudlets have instances of an element's deployment.
func cloudletsOf(c *Scaling, o *onpath.Chain, e *onpath.Element) int {
	in := map[string]bool{}
	for _, cl := range o.Status.Cloudlets {
		in[cl] = true
	}
	for _, i := range c.instances[deploymentKey(o, e)] {
		if n := c.nodes[i.Spec.Node]; n != nil && i.Spec.Draining.IsZero() {
			in[n.Spec.Cloudlet] = true
		}
	}
	return len(in)
}

// boundByOthers narrows the bounds of an element to those of all chains that scale its
// deployment, and to what their budgets leave: no chain spends what another one has.
func boundByOthers(c *Scaling, el *scale.Element, k onpath.Key, o *onpath.Chain, e *onpath.Element,
	chains map[onpath.Key]*onpath.Chain,
) {
	d, most := deploymentKey(o, e), el.Max
	for _, other := range c.users[d] {
		x := chains[other]
		for i := range x.Spec.Through {
			theirs := &x.Spec.Through[i]
			spec, ok := x.Spec.Scaling.Elements[theirs.Name()]
			if !ok || other == k || deploymentKey(x, theirs) != d {
				continue
			}
			el.Min, most = max(el.Min, spec.Min), min(most, spec.Max)
			if b := x.Spec.Scaling.Budget; b > 0 {
				most = min(most, el.Now+max(b-costOf(c, x), 0)/(spec.Cost*max(cloudletsOf(c, x, theirs), 1)))
			}
		}
	}
	el.Max = max(el.Min, most)
}

// costOf is what the instances of a chain's elements that scale cost in an hour.
func costOf(c *Scaling, o *onpath.Chain) (sum int) {
	for i := range o.Spec.Through {
		e := &o.Spec.Through[i]
		if spec, ok := o.Spec.Scaling.Elements[e.Name()]; ok {
			sum += spec.Cost * max(cloudletsOf(c, o, e), 1) * c.wantedOf(o, e)
		}
	}
	return sum
}

// wantedOf is the number of instances of an element now, in each cloudlet.
func (c *Scaling) wantedOf(o *onpath.Chain, e *onpath.Element) int {
	number := func(scaled *int, spec *int) int {
		switch {
		case scaled != nil:
			return *scaled
		case spec != nil:
			return *spec
		}
		return 1
	}
	if d := c.deploymentOf(o, e.Name()); d != nil {
		return number(d.Status.Scaled, d.Spec.Instances)
	}
	var wanted *int
	if o.Status.Scaling != nil {
		if n, ok := o.Status.Scaling.Wanted[e.Name()]; ok {
			wanted = &n
		}
	}
	return number(wanted, e.Instances)
}

// readyOf counts an element's instances that take new flows, and those that are placed,
// in the cloudlet of the chain that has the fewest.
func (c *Scaling) readyOf(o *onpath.Chain, e *onpath.Element) (ready, placed int) {
	readyIn, placedIn := map[string]int{}, map[string]int{}
	for _, i := range c.instances[deploymentKey(o, e)] {
		if !i.Spec.Draining.IsZero() {
			continue
		}
		n := c.nodes[i.Spec.Node]
		if n == nil {
			continue
		}
		placedIn[n.Spec.Cloudlet]++
		if i.Status.State == onpath.InstanceReady {
			readyIn[n.Spec.Cloudlet]++
		}
	}
	for n, cl := range o.Status.Cloudlets {
		if n == 0 || readyIn[cl] < ready {
			ready = readyIn[cl]
		}
		if n == 0 || placedIn[cl] < placed {
			placed = placedIn[cl]
		}
	}
	return ready, placed
}

// othersOf are the other chains that scale and use an element's deployment.
func (c *Scaling) othersOf(k onpath.Key, o *onpath.Chain, e *onpath.Element, chains map[onpath.Key]*onpath.Chain) (list []scale.Other) {
	for _, other := range c.users[deploymentKey(o, e)] {
		x := c.scaled[other]
		if other == k || x == nil {
			continue
		}
		spec := chains[other].Spec.Scaling
		list = append(list, scale.Other{
			Name: other.String(), Series: x.scaler.Series, Objective: spec.Objective, Improve: float64(spec.Improve),
		})
	}
	return list
}

// usersOf are the chains that scale deployments, by these, in order. What only one chain can
// have is left out.
func usersOf(chains map[onpath.Key]*onpath.Chain) map[onpath.Key][]onpath.Key {
	users := map[onpath.Key][]onpath.Key{}
	for k, o := range chains {
		for i := range o.Spec.Through {
			e := &o.Spec.Through[i]
			if _, scales := o.Spec.Scaling.Elements[e.Name()]; scales && e.Deployment != "" {
				d := deploymentKey(o, e)
				users[d] = append(users[d], k)
			}
		}
	}
	for d, list := range users {
		slices.SortFunc(list, compareKeys)
		users[d] = slices.Compact(list)
	}
	return users
}

// busyWith says which other chain tries a deployment that this one scales, too; "": none.
func (c *Scaling) busyWith(k onpath.Key, o *onpath.Chain) string {
	mine := c.scaled[k]
	for i := range o.Spec.Through {
		e := &o.Spec.Through[i]
		if _, scales := o.Spec.Scaling.Elements[e.Name()]; !scales {
			continue
		}
		for _, other := range c.users[deploymentKey(o, e)] {
			x := c.scaled[other]
			if other == k || x == nil || x.scaler.Status.Trial == nil && x.scaler.Status.Session == nil {
				continue
			}
			if mine.scaler.Status.Session != nil && x.scaler.Status.Trial == nil && k.String() < other.String() {
				continue // both began: the first by name goes on
			}
			return fmt.Sprintf("%s is on trial for %s", e.Name(), other)
		}
	}
	return ""
}
