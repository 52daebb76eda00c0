package control

import (
	"context"
	"maps"
	"reflect"
	"slices"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan"
)

// Check says what is impossible about changes, given everything else: nil, or
// an onpath.Errors. Of possible ones it says in words what is worth knowing. The changed objects must have been validated. With force
// nodes that are away go (the changes must be nothing else): what refers to one
// stays, and says in its status what it lacks.
func (c *Controller) Check(ctx context.Context, changes []onpath.Change, force bool) ([]string, error) {
	if err := c.relist(ctx, declaredKinds()); err != nil {
		return nil, err
	}
	held, err := reserved(c.pool, changes, force)
	if err != nil {
		return nil, err
	}
	for _, ch := range changes {
		if list, ok := ch.Object.(*onpath.PriceList); ok {
			if err := c.pool.CheckCurrency(ctx, list); err != nil {
				return nil, err
			}
		}
	}
	notes := c.oversold(changes)
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.core.snapshot()
	before.Reserved = held
	if err := c.core.checkNodes(before, changes, force); err != nil || force {
		return nil, err
	}
	after := changedSnapshot(before, changes)
	if err := plan.CheckChange(before, after, keysOf(changes)); err != nil {
		return nil, err
	}
	return append(plan.Notes(before, after), notes...), nil
}

// oversold says which nodes would have less than they have promised to reservations.
func (c *Controller) oversold(changes []onpath.Change) []string {
	c.mu.Lock()
	capacities, shares := roomsChanged(c.core.nodes, changes)
	c.mu.Unlock()
	return c.pool.Oversells(capacities, shares)
}

// roomsChanged are the capacities of nodes, and the operator's shares of cloudlets, that changes
// write.
func roomsChanged(nodes map[string]*session, changes []onpath.Change) (capacities map[string]onpath.Resources, shares map[string]int) {
	capacities, shares = map[string]onpath.Resources{}, map[string]int{}
	for _, ch := range changes {
		switch o := ch.Object.(type) {
		case *onpath.Node:
			var st *plan.NodeState
			if s := nodes[o.Metadata.Name]; s != nil {
				st = &s.state
			}
			capacities[o.Metadata.Name] = plan.Capacity(o, st)
		case *onpath.Cloudlet:
			shares[o.Metadata.Name] = o.Spec.OperatorShare
		}
	}
	return capacities, shares
}

// Preview says what changes would do to instances and rules.
func (c *Controller) Preview(ctx context.Context, changes []onpath.Change) (*onpath.Preview, error) {
	if err := c.relist(ctx, declaredKinds()); err != nil {
		return nil, err
	}
	held, err := reserved(c.pool, changes, true)
	if err != nil {
		return nil, err
	}
	before := c.world().Snapshot
	before.Reserved = held
	after := changedSnapshot(before, changes)
	if err := plan.CheckChange(before, after, keysOf(changes)); err != nil {
		return nil, err
	}
	p := plan.Compare(before, after)
	p.Notes = append(p.Notes, c.oversold(changes)...)
	return p, nil
}

// changedSnapshot is s with the changes made.
func changedSnapshot(s *plan.Snapshot, changes []onpath.Change) *plan.Snapshot {
	after := *s
	after.Objects = maps.Clone(s.Objects)
	for _, ch := range changes {
		if ch.Object == nil {
			delete(after.Objects, ch.Key)
			continue
		}
		o := onpath.Clone(ch.Object)
		keep(s.Objects[ch.Key], o)
		after.Objects[ch.Key] = o
	}
	return &after
}

// keep gives next the parts that are the server's, from what is stored.
func keep(old, next onpath.Object) {
	if old == nil {
		return
	}
	m, was := next.Meta(), old.Meta()
	m.UID, m.Created, m.Generation = was.UID, was.Created, was.Generation
	a, b := reflect.ValueOf(next).Elem().FieldByName("Status"), reflect.ValueOf(old).Elem().FieldByName("Status")
	if a.IsValid() && b.IsValid() {
		a.Set(b)
	}
}

func keysOf(changes []onpath.Change) []onpath.Key {
	var out []onpath.Key
	for _, ch := range changes {
		out = append(out, ch.Key)
	}
	return out
}

// declaredKinds are the kinds of what users declare, reservations apart. A check reads these from
// the store: the watch may be a moment behind, and what was written just before must not be missed.
func declaredKinds() []onpath.Kind {
	return slices.DeleteFunc(onpath.Kinds(), func(k onpath.Kind) bool { return k.ReadOnly() || k == onpath.KindReservation })
}

// relist reads objects of some kinds from the store, one kind after the other.
func (c *Controller) relist(ctx context.Context, kinds []onpath.Kind) error {
	for _, k := range kinds {
		list, revision, err := c.o.Store.List(ctx, k, "")
		if err != nil {
			return err
		}
		c.mu.Lock()
		news := c.core.mirror.merge(k, list, revision)
		c.mu.Unlock()
		if news {
			c.wake.ring()
		}
	}
	return nil
}
