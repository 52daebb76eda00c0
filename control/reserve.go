package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/pool"
	"github.com/onpath/onpath/plan"
	"github.com/onpath/onpath/plan/near"
)

// reserving is what the scheduler of reservations asks of a Controller, and is asked by it.
type reserving struct{ *Controller }

// newPool makes the scheduler of reservations.
func (c *Controller) newPool() *pool.Pool {
	return pool.New(pool.Options{
		Store: c.o.Store, Clock: c.o.Clock, Boot: c.o.Boot, Log: c.log, Confirm: reserving{c}.confirmPromise, Changed: c.kick, Tell: c.Tell,
		Tenant: reserving{c}.boundsOf, Archive: c.o.Archive,
		Use: func(k onpath.Key) pool.Use {
			if uses := c.uses.Load(); uses != nil {
				return (*uses)[k]
			}
			return pool.Use{}
		},
	})
}

// Pool is the scheduler of reservations.
func (c *Controller) Pool() *pool.Pool { return c.pool }

// boundsOf is what bounds a tenant's reservations. What is not in the store is no tenant, but
// those that need no object.
func (c reserving) boundsOf(ctx context.Context, tenant string) (b pool.Bounds, err error) {
	o, err := c.o.Store.Get(ctx, onpath.Key{Kind: onpath.KindTenant, Name: tenant})
	if onpath.CodeOf(err) == onpath.CodeNotFound {
		if tenant == onpath.DefaultTenant || tenant == onpath.OperatorTenant {
			return b, nil
		}
		return b, onpath.Errorf(onpath.CodeNotFound, "there is no tenant %s", tenant)
	}
	t, ok := o.(*onpath.Tenant)
	if err != nil || !ok {
		return b, err
	}
	b.UID = t.Metadata.UID
	if t.Spec.Quota == nil || t.Spec.Quota.Capacity == (onpath.Resources{}) {
		return b, nil
	}
	if err := c.freshen(ctx); err != nil {
		return b, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	b.Most, b.Unreserved = t.Spec.Quota.Capacity, plan.Unreserved(c.snapshot(), tenant)
	return b, nil
}

// reserved is the most that the tenants of changes have reserved. It refuses to let tenants
// go that the pool still needs and, but with force, nodes.
func (c reserving) reserved(changes []onpath.Change, force bool) (map[string]onpath.Resources, error) {
	var errs onpath.Errors
	out := map[string]onpath.Resources{}
	for _, ch := range changes {
		var refused *onpath.Error
		switch {
		case ch.Key.Kind.Tenanted():
			out[ch.Key.Tenant] = c.pool.Reserved(ch.Key.Tenant)
		case ch.Object == nil && ch.Key.Kind == onpath.KindNode && !force:
			if e := promisedTo(ch.Key, c.pool.PromisedTo(ch.Key.Name)); e != nil {
				errs = append(errs, e)
			}
		case ch.Key.Kind != onpath.KindTenant || ch.Object != nil:
		case errors.As(c.pool.CheckRemoval(ch.Key.Name), &refused):
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
func (c reserving) confirmPromise(ctx context.Context, node string, r onpath.PromiseRequest) error {
	s, err := c.o.Hub.Call(ctx, node, onpath.OpPromise, r)
	if err != nil {
		return err
	}
	defer s.Close()
	b, err := io.ReadAll(s)
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

// observe tells the pool of nodes and cloudlets, and of what reservations are used for.
// Callers hold mu.
func (c *Controller) observe(r *plan.Result) {
	now, grace := c.o.Clock(), c.o.Settings.Grace
	if grace == 0 {
		grace = plan.DefaultGrace
	}
	var nodes []pool.Node
	cloudlets := map[string]pool.Cloudlet{}
	uses := map[onpath.Key]pool.Use{}
	c.reservedBy = map[onpath.Key]onpath.Key{}
	for _, o := range c.mirror.objects {
		switch o := o.(type) {
		case *onpath.Cloudlet:
			cloudlets[o.Metadata.Name] = pool.Cloudlet{Share: o.Spec.OperatorShare, Location: o.Spec.Location, Prefixes: o.Spec.Prefixes}
		case *onpath.Node:
			nodes = append(nodes, c.observeNode(o, r.Taken[o.Metadata.Name], now, grace))
		case *onpath.Deployment:
			c.noteUse(uses, o.Metadata.Tenant, o.Metadata.Name, o.Spec.Reservation, o.Spec.Function, o.Spec.Drain)
		case *onpath.Chain:
			for _, e := range o.Spec.Through {
				drain := e.Drain
				if drain == 0 {
					drain = onpath.DefaultDrain
				}
				c.noteUse(uses, o.Metadata.Tenant, onpath.ShortDeployment(o.Metadata.Name, e.Function), e.Reservation, e.Function, drain)
			}
		}
	}
	noteWords(c.nodes, r, nodes, now)
	reserving{c}.noteRoundTrips(nodes, cloudlets)
	reserving{c}.noteInstances(uses)
	c.uses.Store(&uses)
	c.pool.Observe(nodes, cloudlets)
	gateways := connectedGateways(c)
	c.names.Note(c.mirror.objects, nearby(cloudlets), gateways)
	c.claims.Note(c.mirror.objects, leasesAt(c.nodes), gateways)
}

// nearby are cloudlets as clients are near them.
func nearby(cloudlets map[string]pool.Cloudlet) near.Map {
	out := make(near.Map, len(cloudlets))
	for name, cl := range cloudlets {
		out[name] = near.Cloudlet{Location: cl.Location, Prefixes: cl.Prefixes, RTT: cl.RTT}
	}
	return out
}

// leasesAt are the tenants of which modules are at nodes, by the nodes' word.
func leasesAt(nodes map[string]*session) map[string][]string {
	at := map[string][]string{}
	for name, st := range nodes {
		if st.state.Report == nil {
			continue
		}
		for i := range st.state.Report.Leases {
			if l := &st.state.Report.Leases[i]; l.Known {
				at[name] = append(at[name], l.Publisher)
			}
		}
	}
	return at
}

func (c *Controller) observeNode(o *onpath.Node, taken onpath.Resources, now time.Time, grace time.Duration) pool.Node {
	n := pool.Node{Name: o.Metadata.Name, Cloudlet: o.Spec.Cloudlet, Declared: o.Spec.Capacity, Taken: taken,
		Drain: o.Spec.Drain, Since: c.started}
	st := c.nodes[n.Name]
	if st == nil {
		n.Capacity = plan.Capacity(o, nil)
		n.Gone, n.NoReport = !c.started.IsZero() && now.Sub(c.started) > grace, true
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
func (c reserving) noteRoundTrips(nodes []pool.Node, cloudlets map[string]pool.Cloudlet) {
	home := make(map[string]string, len(nodes))
	for _, n := range nodes {
		home[n.Name] = n.Cloudlet
	}
	for _, n := range nodes {
		from, known := cloudlets[n.Cloudlet]
		st := c.nodes[n.Name]
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

// noteUse notes what a reservation is used for.
func (c *Controller) noteUse(uses map[onpath.Key]pool.Use, tenant, deployment string, reservation,
	function onpath.Ref, drain onpath.Duration) {
	if reservation == "" {
		return
	}
	t, name := reservation.Resolve(tenant)
	ft, fn := function.Resolve(tenant)
	f, _ := c.mirror.objects[onpath.Key{Kind: onpath.KindFunction, Tenant: ft, Name: fn}].(*onpath.Function)
	k := onpath.Key{Kind: onpath.KindReservation, Tenant: t, Name: name}
	uses[k] = pool.Use{Stateless: f != nil && f.Spec.State == onpath.StateNone, Drain: time.Duration(drain), Nodes: map[string]int{}}
	c.reservedBy[onpath.Key{Kind: onpath.KindDeployment, Tenant: tenant, Name: deployment}] = k
}

// noteInstances notes where the instances of reservations are.
func (c reserving) noteInstances(uses map[onpath.Key]pool.Use) {
	for _, o := range c.mirror.objects {
		i, ok := o.(*onpath.Instance)
		if !ok {
			continue
		}
		if k, ok := c.reservedBy[onpath.Key{Kind: onpath.KindDeployment, Tenant: i.Metadata.Tenant, Name: i.Spec.Deployment}]; ok {
			uses[k].Nodes[i.Spec.Node]++
		}
	}
}
