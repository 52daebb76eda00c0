package scaling

import (
	"maps"
	"slices"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/distribute"
)

// fillsFor is how long an instance counts as new; settlesFor how long after it is ready what
// it gets begins to count: nodes hear of it first.
const (
	fillsFor   = 30 * time.Minute
	settlesFor = time.Second
)

// fillUp finds the instances that fill up: new ones of chains that scale, with fewer packets
// than are their part. Where that has changed, it is planned anew.
func fillUp(c *Scaling, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var filling, filled map[onpath.Key]bool
	mark := func(m *map[onpath.Key]bool, k onpath.Key) {
		if *m == nil {
			*m = map[onpath.Key]bool{}
		}
		(*m)[k] = true
	}
	for _, o := range c.chains {
		if x := o.Spec.Scaling; x == nil || x.Ramp <= 1 {
			continue
		}
		for i := range o.Spec.Through {
			for _, p := range newInstances(c, o, &o.Spec.Through[i], now) {
				k := onpath.KeyOf(p.who)
				if p.behind {
					mark(&filling, k)
				} else if p.known {
					mark(&filled, k)
				}
			}
		}
	}
	c.filled = filled
	if !maps.Equal(filling, c.filling) {
		c.filling = filling
		select {
		case c.changed <- struct{}{}:
		default:
		}
	}
}

// newInstance is an instance that is new, and how it fares.
type newInstance struct {
	who           *onpath.Instance
	known, behind bool
}

// newInstances are an element's new instances in all cloudlets. Callers hold mu.
func newInstances(c *Scaling, o *onpath.Chain, e *onpath.Element, now time.Time) (list []newInstance) {
	in := map[string][]*onpath.Instance{}
	fresh := false
	for _, i := range c.instances[deploymentKey(o, e)] {
		n, ok := c.nodes[i.Spec.Node]
		if ok && i.Spec.Draining.IsZero() && i.Status.State == onpath.InstanceReady {
			in[n.Spec.Cloudlet] = append(in[n.Spec.Cloudlet], i)
			fresh = fresh || isNew(i, now)
		}
	}
	if !fresh {
		return nil
	}
	for _, all := range in {
		list = append(list, c.comparePackets(c.usage.roundsOf(onpath.KeyOf(o)), all, e, time.Duration(o.Spec.Scaling.Window), now)...)
	}
	return list
}

func isNew(i *onpath.Instance, now time.Time) bool {
	age := now.Sub(i.Status.Since)
	return age >= 0 && age < fillsFor
}

// comparePackets compares what the instances of an element in one cloudlet were given.
func (c *Scaling) comparePackets(rounds []round, all []*onpath.Instance, e *onpath.Element, window time.Duration,
	now time.Time) (list []newInstance) {
	first, last := between(rounds, max(window/2, time.Second), func(r *round) bool {
		return !slices.ContainsFunc(all, func(i *onpath.Instance) bool {
			_, there := r.instances[onpath.KeyOf(i)]
			return !there || r.at.Before(i.Status.Since.Add(settlesFor))
		})
	})
	n := len(all)
	shares, live, fresh, was := make([]int64, n), make([]int64, n), make([]bool, n), make([]bool, n)
	for k, i := range all {
		key := onpath.KeyOf(i)
		shares[k] = 1
		if w, ok := e.Weights[i.Spec.Node]; ok {
			shares[k] = int64(w)
		}
		fresh[k], was[k] = isNew(i, now) && !c.filled[key], c.filling[key]
		if first != nil {
			live[k] = int64(last.instances[key] - min(first.instances[key], last.instances[key]))
		}
	}
	behind := distribute.Behind(shares, live, fresh, was)
	lacks := distribute.Behind(shares, live, fresh, slices.Repeat([]bool{true}, n)) // whatever chance explains
	enough := first != nil && slices.Max(live) > 0
	for k, i := range all {
		if !isNew(i, now) {
			continue
		}
		x := newInstance{who: i, behind: behind[k], known: c.filled[onpath.KeyOf(i)]}
		if !enough {
			x.behind = was[k] // nothing is known anew
		} else if !lacks[k] {
			x.known = true // it has its part
		}
		list = append(list, x)
	}
	return list
}

// between are the last round and the one that began so long before, of those that count for
// the caller; nil: there are not two of them.
func between(rounds []round, long time.Duration, counts func(*round) bool) (first, last *round) {
	if len(rounds) < 2 {
		return nil, nil
	}
	last = &rounds[len(rounds)-1]
	if !counts(last) {
		return nil, nil
	}
	for i := len(rounds) - 2; i >= 0 && counts(&rounds[i]); i-- {
		first = &rounds[i]
		if last.at.Sub(first.at) >= long {
			break
		}
	}
	if first == nil {
		return nil, nil
	}
	return first, last
}
