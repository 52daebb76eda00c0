package control

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/events"
	"github.com/onpath/onpath/control/pool"
	"github.com/onpath/onpath/control/scaling"
	"github.com/onpath/onpath/plan"
)

// newPool makes the scheduler of reservations.
func newPool(o *Options, wake bell, l *events.Log, used *uses) (p *pool.Pool) {
	p = pool.New(pool.Options{
		Store: o.Store, Clock: o.Clock, Boot: o.Boot, Log: o.Log, Changed: wake.ring, Tell: l.Tell, Use: used.of,
		Archive: o.Archive,
		Confirm: func(ctx context.Context, node string, r onpath.PromiseRequest) error {
			return confirmPromise(ctx, o.Hub, node, r)
		},
		Tenant: func(ctx context.Context, tenant string) (pool.Bounds, error) {
			return boundsOf(ctx, o.Store, plan.Snapshot{Now: o.Clock().UTC(), Settings: o.Settings, Reservations: p.Running()}, tenant)
		},
	})
	return p
}

// uses are what reservations are used for, as of the last step.
type uses struct {
	by atomic.Pointer[map[onpath.Key]pool.Use]
}

func (u *uses) of(reservation onpath.Key) pool.Use {
	if by := u.by.Load(); by != nil {
		return (*by)[reservation]
	}
	return pool.Use{}
}

// Pool is the scheduler of reservations.
func (c *Controller) Pool() *pool.Pool { return c.pool }

// boundsOf is what bounds a tenant's reservations. What is not in the store is no tenant, but
// those that need no object. What the tenant's other instances are counted as follows from the
// stored objects, which are added to s.
func boundsOf(ctx context.Context, store onpath.Store, s plan.Snapshot, tenant string) (b pool.Bounds, err error) {
	o, err := store.Get(ctx, onpath.Key{Kind: onpath.KindTenant, Name: tenant})
	if onpath.CodeOf(err) == onpath.CodeNotFound {
		if tenant == onpath.DefaultTenant || tenant == onpath.OperatorTenant {
			return storeBounds(tenant, onpath.Quota{}), nil
		}
		return b, onpath.Errorf(onpath.CodeNotFound, "there is no tenant %s", tenant)
	}
	t, ok := o.(*onpath.Tenant)
	if err != nil || !ok {
		return b, err
	}
	quota := onpath.Quota{}
	if t.Spec.Quota != nil {
		quota = *t.Spec.Quota
	}
	b = storeBounds(tenant, quota)
	b.UID = t.Metadata.UID
	if t.Spec.Quota == nil || t.Spec.Quota.Capacity == (onpath.Resources{}) {
		return b, nil
	}
	m := newMirror()
	for _, k := range declaredKinds() {
		list, _, err := store.List(ctx, k, "")
		if err != nil {
			return b, err
		}
		for _, o := range list {
			m.put(o)
		}
	}
	s.Objects, s.Wanted = m.objects, scaling.Numbers(m.chains, m.deployments)
	withoutWaiting(&s, waitingNodes(m, nil))
	b.Most, b.Unreserved = t.Spec.Quota.Capacity, plan.Unreserved(&s, tenant)
	return b, nil
}

// storeBounds are the bounds of what reservations take of the store: as many objects and bytes
// as all other objects of the tenant may take.
func storeBounds(tenant string, q onpath.Quota) pool.Bounds {
	if tenant == onpath.OperatorTenant {
		return pool.Bounds{Objects: q.Objects, Bytes: q.Bytes}
	}
	return pool.Bounds{Objects: cmp.Or(q.Objects, onpath.DefaultObjects), Bytes: cmp.Or(q.Bytes, onpath.DefaultBytes)}
}

// reserved is the most that the tenants of changes have reserved. It refuses to let tenants
// go that the pool still needs and, but with force, nodes.
func reserved(p *pool.Pool, changes []onpath.Change, force bool) (map[string]onpath.Resources, error) {
	var errs onpath.Errors
	out := map[string]onpath.Resources{}
	for _, ch := range changes {
		var refused *onpath.Error
		switch {
		case ch.Key.Kind.Tenanted():
			out[ch.Key.Tenant] = p.Reserved(ch.Key.Tenant)
		case ch.Object == nil && ch.Key.Kind == onpath.KindNode && !force:
			if e := promisedTo(ch.Key, p.PromisedTo(ch.Key.Name)); e != nil {
				errs = append(errs, e)
			}
		case ch.Key.Kind != onpath.KindTenant || ch.Object != nil:
		case errors.As(p.CheckRemoval(ch.Key.Name), &refused):
			errs = append(errs, refused)
		}
	}
	return out, errs.Err()
}

// promisedTo refuses to let a node go that is promised to reservations.
func promisedTo(node onpath.Key, list []onpath.Key) *onpath.Error {
	if len(list) == 0 {
		return nil
	}
	var names []string
	for _, k := range list {
		names = append(names, k.Tenant+"/"+k.Name)
	}
	e := onpath.Errorf(onpath.CodeInvalid, "reservations have its room: %s", plan.Enumerate(names))
	e.Object = node.String()
	e.Remedy = fmt.Sprintf("drain it first (onpath drain %s), which moves them as far as others have room; with --force those that "+
		"find none fail, and are credited", node.Name)
	return e
}

// confirmPromise asks a node whether it can keep what it will have promised.
func confirmPromise(ctx context.Context, hub Hub, node string, r onpath.PromiseRequest) error {
	s, err := hub.Call(ctx, node, onpath.OpPromise, r)
	if err != nil {
		return err
	}
	defer s.Close()
	b, err := io.ReadAll(io.LimitReader(s, 1<<16))
	if err != nil {
		return err
	}
	var answer onpath.Promise
	if err := json.Unmarshal(b, &answer); err != nil {
		return err
	}
	if !answer.Kept {
		return onpath.Errorf(onpath.CodeNoCapacity, "node %s: %s", node, answer.Why)
	}
	return nil
}

// observeNode is how a node stands for the pool. started is when this server began.
func observeNode(o *onpath.Node, st *session, taken onpath.Resources, started, now time.Time, grace time.Duration) pool.Node {
	n := pool.Node{Name: o.Metadata.Name, Cloudlet: o.Spec.Cloudlet, Declared: o.Spec.Capacity, Taken: taken,
		Drain: o.Spec.Drain, Since: started}
	if st == nil {
		n.Capacity = plan.Capacity(o, nil)
		n.Gone, n.NoReport = !started.IsZero() && now.Sub(started) > grace, true
		return n
	}
	n.Capacity, n.Since = plan.Capacity(o, &st.state), st.state.Seen
	away := now.Sub(n.Since)
	n.Gone = away > grace
	n.Usable = st.connected && away <= onpath.NodeTimeout && !o.Spec.Drain && (o.Spec.Schedulable == nil || *o.Spec.Schedulable)
	n.Usable = n.Usable && onpath.RuntimeDown(st.state.Report.Conditions) == ""
	if !n.Gone {
		n.Since = time.Time{} // so that what says the same is the same
	}
	return n
}

// noteWords notes what most of the others say of nodes that are gone; where as many say the
// one as the other, a network between them is cut.
func noteWords(sessions map[string]*session, r *plan.Result, nodes []pool.Node, now time.Time) {
	if !slices.ContainsFunc(nodes, func(n pool.Node) bool { return n.Gone }) {
		return
	}
	home := make(map[string]string, len(nodes))
	for _, n := range nodes {
		home[n.Name] = n.Cloudlet
	}
	said := words(sessions, r, home, now)
	for i := range nodes {
		if n := &nodes[i]; n.Gone {
			w := said[n.Name]
			n.Alive, n.Dead = w.alive > w.dead, w.dead > w.alive
		}
	}
}

// word is how many nodes say of another that its machine answers, and that it does not.
type word struct{ alive, dead int }

// wordAfter is how long an agent has been connected before its word on others counts: until
// then it may not have asked them.
const wordAfter = 10 * time.Second

// words is what nodes that are heard of say of others of their own cloudlet to which the
// server's own plan has them send.
func words(sessions map[string]*session, r *plan.Result, home map[string]string, now time.Time) map[string]word {
	said := map[string]word{}
	for name, p := range r.Plans {
		st := sessions[name]
		if st == nil || !st.connected || now.Sub(st.connectedAt) < wordAfter || now.Sub(st.state.Seen) > onpath.NodeTimeout ||
			st.state.Report == nil || p == nil {
			continue
		}
		for i := range p.Datapath.Peers {
			peer := p.Datapath.Peers[i].Node
			if home[peer] != home[name] {
				continue
			}
			w := said[peer]
			if slices.Contains(st.state.Report.Unreachable, peer) {
				w.dead++
			} else {
				w.alive++
			}
			said[peer] = w
		}
	}
	return said
}

// noteRoundTrips notes between which cloudlets nodes have measured round trips.
func noteRoundTrips(sessions map[string]*session, nodes []pool.Node, cloudlets map[string]pool.Cloudlet) {
	home := make(map[string]string, len(nodes))
	for _, n := range nodes {
		home[n.Name] = n.Cloudlet
	}
	for _, n := range nodes {
		from, known := cloudlets[n.Cloudlet]
		st := sessions[n.Name]
		if !known || st == nil || st.state.Report == nil {
			continue
		}
		for _, d := range st.state.Report.Distances {
			to, rtt := home[d.To], time.Duration(d.RTT)
			if to == "" || to == n.Cloudlet || rtt <= 0 {
				continue
			}
			if from.RTT == nil {
				from.RTT = map[string]time.Duration{}
			}
			if was := from.RTT[to]; was == 0 || rtt < was {
				from.RTT[to] = rtt
			}
		}
		cloudlets[n.Cloudlet] = from
	}
}

// useNotes are what reservations are used for.
type useNotes struct {
	objects map[onpath.Key]onpath.Object
	uses    map[onpath.Key]pool.Use
	by      map[onpath.Key]onpath.Key // the reservation of each deployment that has one
}

func newUseNotes(objects map[onpath.Key]onpath.Object) *useNotes {
	return &useNotes{objects: objects, uses: map[onpath.Key]pool.Use{}, by: map[onpath.Key]onpath.Key{}}
}

// note notes the reservation of a deployment.
func (u *useNotes) note(tenant, deployment string, reservation, function onpath.Ref, drain onpath.Duration) {
	if reservation == "" {
		return
	}
	t, name := reservation.Resolve(tenant)
	ft, fn := function.Resolve(tenant)
	f, _ := u.objects[onpath.Key{Kind: onpath.KindFunction, Tenant: ft, Name: fn}].(*onpath.Function)
	k := onpath.Key{Kind: onpath.KindReservation, Tenant: t, Name: name}
	u.uses[k] = pool.Use{Stateless: f != nil && f.Spec.State == onpath.StateNone, Drain: time.Duration(drain), Nodes: map[string]int{}}
	u.by[onpath.Key{Kind: onpath.KindDeployment, Tenant: tenant, Name: deployment}] = k
}

// noteInstances notes where the instances of reservations are.
func (u *useNotes) noteInstances() {
	for _, o := range u.objects {
		i, ok := o.(*onpath.Instance)
		if !ok {
			continue
		}
		if k, ok := u.by[ofDeployment(i)]; ok {
			u.uses[k].Nodes[i.Spec.Node]++
		}
	}
}
