package control

import (
	"context"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/claims"
	"github.com/onpath/onpath/control/scaling"
)

// mirror holds the objects of the store, events and reservations apart, as far as known here.
type mirror struct {
	objects map[onpath.Key]onpath.Object
	// chains, deployments and claims of them.
	chains      map[onpath.Key]*onpath.Chain
	deployments map[onpath.Key]*onpath.Deployment
	claims      map[onpath.Key]*onpath.PrefixClaim
	waiting     map[onpath.Key]bool // Nodes that are not accepted
	// instances by their deployments.
	instances map[onpath.Key]map[onpath.Key]*onpath.Instance
}

func newMirror() *mirror {
	return &mirror{
		objects: map[onpath.Key]onpath.Object{}, chains: map[onpath.Key]*onpath.Chain{}, deployments: map[onpath.Key]*onpath.Deployment{},
		claims: map[onpath.Key]*onpath.PrefixClaim{}, waiting: map[onpath.Key]bool{},
		instances: map[onpath.Key]map[onpath.Key]*onpath.Instance{},
	}
}

// put takes an object over unless a newer version is there.
func (m *mirror) put(o onpath.Object) bool {
	k := onpath.KeyOf(o)
	if k.Kind == onpath.KindEvent || k.Kind == onpath.KindReservation {
		return false // the event log and the pool keep them
	}
	if old := m.objects[k]; old != nil && old.Meta().Version >= o.Meta().Version {
		return false
	}
	m.forgetInstance(k)
	m.objects[k] = o
	switch o := o.(type) {
	case *onpath.Chain:
		m.chains[k] = o
	case *onpath.Deployment:
		m.deployments[k] = o
	case *onpath.PrefixClaim:
		m.claims[k] = o
	case *onpath.Instance:
		d := ofDeployment(o)
		if m.instances[d] == nil {
			m.instances[d] = map[onpath.Key]*onpath.Instance{}
		}
		m.instances[d][k] = o
	case *onpath.Node:
		if delete(m.waiting, k); !o.Accepted() {
			m.waiting[k] = true
		}
	}
	return true
}

// remove forgets an object deleted at a revision, unless it was made anew.
func (m *mirror) remove(k onpath.Key, revision int64) bool {
	old := m.objects[k]
	if old == nil || old.Meta().Version > revision {
		return false
	}
	m.forgetInstance(k)
	delete(m.objects, k)
	delete(m.chains, k)
	delete(m.deployments, k)
	delete(m.claims, k)
	delete(m.waiting, k)
	return true
}

// forgetInstance takes an instance out of those of its deployment.
func (m *mirror) forgetInstance(k onpath.Key) {
	i, ok := m.objects[k].(*onpath.Instance)
	if !ok {
		return
	}
	d := ofDeployment(i)
	if delete(m.instances[d], k); len(m.instances[d]) == 0 {
		delete(m.instances, d)
	}
}

// ofDeployment names the deployment of an instance.
func ofDeployment(i *onpath.Instance) onpath.Key {
	return onpath.Key{Kind: onpath.KindDeployment, Tenant: i.Metadata.Tenant, Name: i.Spec.Deployment}
}

// merge takes over the list of a kind as of a revision, and reports whether it was news: the
// watch brings it later, and then it is none.
func (m *mirror) merge(kind onpath.Kind, list []onpath.Object, revision int64) (news bool) {
	there := make(map[onpath.Key]bool, len(list))
	for _, o := range list {
		there[onpath.KeyOf(o)] = true
		news = m.put(o) || news
	}
	for k := range m.objects {
		if k.Kind == kind && !there[k] {
			news = m.remove(k, revision) || news
		}
	}
	return news
}

// load reads the whole store; it returns the revision to watch from.
func (c *Controller) load(ctx context.Context) (int64, error) {
	fresh := newMirror()
	var revision int64
	for n, k := range onpath.Kinds() {
		if k == onpath.KindReservation {
			continue // the pool reads them
		}
		list, rev, err := c.o.Store.List(ctx, k, "")
		if err != nil {
			return 0, err
		}
		if n == 0 {
			revision = rev // the oldest: what changes meanwhile is seen twice
		}
		for _, o := range list {
			fresh.put(o)
		}
		if k == onpath.KindEvent {
			c.events.Load(list)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.core.mirror = fresh
	if c.core.started.IsZero() {
		c.core.started = c.o.Clock()
		c.core.held = true
	}
	for _, o := range defaults() {
		c.core.missing[onpath.KeyOf(o)] = o
	}
	return revision, nil
}

// follow keeps the mirror up to date until ctx ends. If the watch breaks, the
// store is read again.
func (c *Controller) follow(ctx context.Context, revision int64) {
	for told := false; ctx.Err() == nil; {
		err := c.watch(ctx, revision)
		if ctx.Err() != nil {
			return
		}
		if !told {
			c.log.Warn("the watch of the store broke; it is read again as soon as it answers", "err", err)
		}
		if c.o.After.Sleep(ctx, 100*time.Millisecond) != nil {
			return
		}
		r, err := c.load(ctx)
		if told = err != nil; !told {
			revision = r
			c.wake.ring()
		}
	}
}

func (c *Controller) watch(ctx context.Context, revision int64) error {
	ch, err := c.o.Store.Watch(ctx, revision, nil)
	if err != nil {
		return err
	}
	for e := range ch {
		if e.Err != nil {
			return e.Err
		}
		if e.Key.Kind == "" {
			continue
		}
		c.mu.Lock()
		news := c.core.changed(e)
		c.mu.Unlock()
		if news {
			c.wake.ring()
		}
	}
	return ctx.Err()
}

// changed takes one change over, and reports whether it was news.
func (c *core) changed(e onpath.StoreEvent) bool {
	if e.Object == nil {
		news := c.mirror.remove(e.Key, e.Revision)
		gone := c.mirror.objects[e.Key] == nil       // here, or by a check that read the store earlier
		if gone && e.Key.Kind == onpath.KindTenant { // the next of its name is somebody else
			c.events.Forget(e.Key.Name)
		}
		if st := c.nodes[e.Key.Name]; gone && e.Key.Kind == onpath.KindNode && st != nil && !st.connected {
			delete(c.nodes, e.Key.Name)
		}
		return news
	}
	old := c.mirror.objects[e.Key]
	if !c.mirror.put(e.Object) {
		return false
	}
	switch was := old.(type) {
	case *onpath.PrefixClaim:
		return claims.News(was, e.Object.(*onpath.PrefixClaim))
	case *onpath.Chain:
		return scaling.News(was, e.Object.(*onpath.Chain))
	}
	return true
}
