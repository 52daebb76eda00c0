// Package scaling has the numbers of the instances of chains follow what their applications say.
package scaling

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/bits"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/events"
	"github.com/onpath/onpath/control/timer"
	"github.com/onpath/onpath/plan"
	"github.com/onpath/onpath/plan/scale"
)

// Hub reaches the nodes.
type Hub interface {
	Call(ctx context.Context, node string, op onpath.NodeOp, request any) (io.ReadWriteCloser, error)
}

// Options of a Scaling.
type Options struct {
	Store  onpath.Store
	Hub    Hub
	Clock  onpath.Clock
	After  timer.After
	Log    *slog.Logger
	Events *events.Log
}

// Scaling runs a scaler for each chain that asks for one. What they decide is in the chains'
// status, and so survives this server; values are not. Make one with New.
type Scaling struct {
	o       Options
	usage   usage
	changed chan struct{}

	mu          sync.Mutex
	noted       bool // it is known how things stand
	chains      map[onpath.Key]*onpath.Chain
	deployments map[onpath.Key]*onpath.Deployment
	instances   map[onpath.Key]map[onpath.Key]*onpath.Instance // by deployment, those of chains that scale
	nodes       map[string]*onpath.Node
	tenants     map[string]*onpath.Tenant
	plans       map[string]*onpath.NodePlan // in force, of nodes that are heard of
	connected   map[string]bool
	scaled      map[onpath.Key]*scaled
	users       map[onpath.Key][]onpath.Key // the chains that scale a deployment; made for each step
	// filling are the instances that fill up; filled are new ones that have once had their part
	// of the packets.
	filling, filled map[onpath.Key]bool
}

// New makes a Scaling that knows nothing yet.
func New(o Options) *Scaling {
	return &Scaling{o: o, changed: make(chan struct{}, 1), scaled: map[onpath.Key]*scaled{}}
}

// Changed tells that Filling says something new.
func (c *Scaling) Changed() <-chan struct{} { return c.changed }

// Filling are the instances that fill up.
func (c *Scaling) Filling() map[onpath.Key]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.filling
}

// Note takes up how things stand: the objects, the plans that nodes have in force, and which
// nodes are connected.
func (c *Scaling) Note(objects map[onpath.Key]onpath.Object, plans map[string]*onpath.NodePlan, connected []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	chains, deployments := c.chains, c.deployments
	c.chains, c.deployments = map[onpath.Key]*onpath.Chain{}, map[onpath.Key]*onpath.Deployment{}
	c.instances = map[onpath.Key]map[onpath.Key]*onpath.Instance{}
	c.nodes, c.tenants = map[string]*onpath.Node{}, map[string]*onpath.Tenant{}
	c.plans, c.connected, c.noted = plans, map[string]bool{}, true
	for _, n := range connected {
		c.connected[n] = true
	}
	for k, o := range objects {
		switch o := o.(type) {
		case *onpath.Chain:
			c.chains[k] = newer(chains[k], o)
		case *onpath.Deployment:
			c.deployments[k] = newer(deployments[k], o)
		case *onpath.Node:
			c.nodes[k.Name] = o
		case *onpath.Tenant:
			c.tenants[k.Name] = o
		}
	}
	for _, o := range c.scalingChains() {
		for i := range o.Spec.Through {
			c.instances[deploymentKey(o, &o.Spec.Through[i])] = map[onpath.Key]*onpath.Instance{}
		}
	}
	if len(c.instances) == 0 {
		return
	}
	for k, o := range objects {
		i, ok := o.(*onpath.Instance)
		if !ok {
			continue
		}
		if of := c.instances[onpath.Key{Kind: onpath.KindDeployment, Tenant: i.Metadata.Tenant, Name: i.Spec.Deployment}]; of != nil {
			of[k] = i
		}
	}
}

// newer is the newer one of two versions of an object: one may have been written here a
// moment ago.
func newer[T interface {
	onpath.Object
	comparable
}](had, o T) T {
	var none T
	if had == none || had.Meta().UID != o.Meta().UID || had.Meta().Version < o.Meta().Version {
		return o
	}
	return had
}

// scaled is a chain with its scaler.
type scaled struct {
	scaler *scale.Scaler
	demand *scale.Series
	due    time.Time // for the next step
	asked  time.Time // when its metric was last asked for
	asking bool
	// bad is why the last value could not be believed, since when; good is the number of
	// values that could be since then.
	bad   string
	badAt time.Time
	good  int
	began time.Time
	last  time.Time // of the last value that could be believed, by this server's clock
	// seen are the numbers of deployments that are objects, as they were read last: another
	// one is another chain's decision.
	seen map[string]int
}

// newScaled has a chain's scaling go on from its status. A metric that could not be believed
// by the server before must show itself again.
func newScaled(k onpath.Key, o *onpath.Chain, now time.Time) *scaled {
	x := &scaled{
		scaler: scale.New(k.String(), o.Spec.Scaling, o.Status.Scaling), demand: &scale.Series{}, began: now, seen: map[string]int{},
	}
	if s := o.Status.Scaling; s != nil && s.Phase == onpath.ScalingStopped {
		x.bad, x.badAt = s.Message, now
	}
	return x
}

// scaleEvery is how often the scalers are looked after.
const scaleEvery = 50 * time.Millisecond

// goodValues is how many values in a row are believed again after one that was not.
const goodValues = 5

// maxAhead is how far a value's time may lie before this server's clock.
const maxAhead = 5 * time.Second

// Run looks after the scalers until ctx ends.
func (c *Scaling) Run(ctx context.Context) {
	for {
		every := scaleEvery
		c.mu.Lock()
		if len(c.scalingChains()) == 0 {
			every = time.Second
		}
		c.mu.Unlock()
		if c.o.After.Sleep(ctx, every) != nil {
			return
		}
		c.measure(ctx)
		for _, w := range c.scaleStep(ctx) {
			c.writeScaling(ctx, w)
		}
	}
}

// scaleWrite is a decision on its way to the store.
type scaleWrite struct {
	changes []onpath.Change
	events  []plan.Event
}

// scaleStep has every scaler that is due decide.
func (c *Scaling) scaleStep(ctx context.Context) (writes []scaleWrite) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.noted {
		return nil
	}
	now := c.o.Clock().UTC()
	chains := c.scalingChains()
	c.users = usersOf(chains)
	for k := range c.scaled {
		if chains[k] == nil {
			delete(c.scaled, k)
		}
	}
	for _, k := range slices.SortedFunc(keys(chains), compareKeys) {
		o := chains[k]
		x := c.scaled[k]
		if x == nil {
			x = newScaled(k, o, now)
			c.scaled[k] = x
		}
		if now.Before(x.due) {
			continue
		}
		x.due = now.Add(min(max(time.Duration(o.Spec.Scaling.Window)/16, scaleEvery), 5*time.Second))
		if was := x.scaler.Spec; was.Metric != o.Spec.Scaling.Metric || was.Objective != o.Spec.Scaling.Objective {
			x.scaler.Series = &scale.Series{}
			x.disbelieve(now, "the metric is another one now")
		}
		x.scaler.Spec = o.Spec.Scaling
		c.askMetric(ctx, k, o, x, now)
		if w, ok := c.scaleChain(k, o, x, chains, now); ok {
			writes = append(writes, w)
		}
	}
	return append(writes, c.unscaled()...)
}

// scalingChains are the chains that scale.
func (c *Scaling) scalingChains() map[onpath.Key]*onpath.Chain {
	list := map[onpath.Key]*onpath.Chain{}
	for k, o := range c.chains {
		if o.Spec.Scaling != nil {
			list[k] = o
		}
	}
	return list
}

// scaleChain has one chain's scaler decide; ok: there is something to write.
func (c *Scaling) scaleChain(k onpath.Key, o *onpath.Chain, x *scaled, chains map[onpath.Key]*onpath.Chain, now time.Time) (
	w scaleWrite, ok bool,
) {
	v := c.scaleView(k, o, x, chains, now)
	for i := range v.Elements { // what another chain has decided of a deployment of both holds
		e := &v.Elements[i]
		if c.deploymentOf(o, e.Name) == nil {
			continue
		}
		was, read := x.seen[e.Name]
		x.seen[e.Name] = e.Now
		if x.scaler.Status.Wanted != nil && x.scaler.Status.Trial == nil && (read && was != e.Now || !read && len(e.Others) > 0) {
			x.scaler.Status.Wanted[e.Name] = e.Now
		}
	}
	for _, e := range x.scaler.Step(v) {
		w.events = append(w.events, plan.Event{About: k, Reason: e.Reason, Message: e.Message, Warning: e.Warning})
	}
	next := onpath.Clone(o)
	status := x.scaler.Status
	next.Status.Scaling = &status
	if !sameScaling(o.Status.Scaling, next.Status.Scaling) {
		w.changes = append(w.changes, onpath.Change{Key: k, Object: onpath.Clone(next), Version: o.Metadata.Version})
	}
	for i := range v.Elements {
		if d := c.deploymentOf(o, v.Elements[i].Name); d != nil {
			if n := status.Wanted[v.Elements[i].Name]; d.Status.Scaled == nil || *d.Status.Scaled != n {
				d = onpath.Clone(d)
				d.Status.Scaled = &n
				w.changes = append(w.changes, onpath.Change{Key: onpath.KeyOf(d), Object: d, Version: d.Metadata.Version})
			}
		}
	}
	return w, len(w.changes)+len(w.events) > 0
}

// sameScaling reports whether two states are alike but for what the next server finds
// out for itself.
func sameScaling(a, b *onpath.ScalingStatus) bool {
	if a == nil || b == nil {
		return a == b
	}
	essence := func(s onpath.ScalingStatus) onpath.ScalingStatus {
		s.Reference = onpath.MetricStats{N: bits.Len(uint(s.Reference.N))} // twice as many are worth writing
		s.Demand = onpath.MetricStats{N: bits.Len(uint(s.Demand.N))}
		if s.Trial != nil {
			t := *s.Trial
			t.Ready, t.Look = time.Time{}, 0
			s.Trial = &t
		}
		return s
	}
	return reflect.DeepEqual(essence(*a), essence(*b))
}

// News reports whether a chain says something else that is planned by: what its scaler
// remembers, as its trials and their values, is not.
func News(old, next *onpath.Chain) bool {
	essence := func(o *onpath.Chain) *onpath.Chain {
		c := *o
		c.Metadata.Version = 0
		if s := o.Status.Scaling; s != nil {
			c.Status.Scaling = &onpath.ScalingStatus{Wanted: s.Wanted, Doubt: s.Doubt}
			if s.Phase == onpath.ScalingStopped {
				c.Status.Scaling.Phase, c.Status.Scaling.Message = s.Phase, s.Message
			}
		}
		return &c
	}
	return !reflect.DeepEqual(essence(old), essence(next))
}

// unscaled takes away what is left of scaling that is not asked for any more.
func (c *Scaling) unscaled() (writes []scaleWrite) {
	wanted := map[onpath.Key]bool{}
	for k, o := range c.chains {
		if o.Spec.Scaling == nil && o.Status.Scaling != nil {
			next := onpath.Clone(o)
			next.Status.Scaling = nil
			writes = append(writes, scaleWrite{changes: []onpath.Change{{Key: k, Object: next, Version: o.Metadata.Version}}})
		}
		if o.Spec.Scaling == nil {
			continue
		}
		for name := range o.Spec.Scaling.Elements {
			if d := c.deploymentOf(o, name); d != nil {
				wanted[onpath.KeyOf(d)] = true
			}
		}
	}
	for k, d := range c.deployments {
		if d.Status.Scaled != nil && !wanted[k] {
			next := onpath.Clone(d)
			next.Status.Scaled = nil
			writes = append(writes, scaleWrite{changes: []onpath.Change{{Key: k, Object: next, Version: d.Metadata.Version}}})
		}
	}
	return writes
}

// writeScaling carries a decision to the store, and tells it. One that was overtaken by
// another's write is made again from what that says.
func (c *Scaling) writeScaling(ctx context.Context, w scaleWrite) {
	if len(w.changes) > 0 {
		_, err := c.o.Store.Write(ctx, onpath.Batch{Changes: w.changes})
		if err != nil {
			if ctx.Err() == nil && onpath.CodeOf(err) != onpath.CodeConflict {
				c.o.Log.Warn("decisions about numbers of instances cannot be written; it is tried on", "err", err)
			}
			return
		}
		c.took(w.changes)
	}
	for _, e := range w.events {
		c.o.Events.Add(e, c.o.Clock())
		c.o.Log.Info("scaling", "chain", e.About.String(), "reason", e.Reason, "message", e.Message)
	}
}

// took keeps what was written until it comes back.
func (c *Scaling) took(changes []onpath.Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ch := range changes {
		switch o := ch.Object.(type) {
		case *onpath.Chain:
			if c.chains[ch.Key] != nil {
				c.chains[ch.Key] = newer(c.chains[ch.Key], o)
			}
		case *onpath.Deployment:
			if c.deployments[ch.Key] != nil {
				c.deployments[ch.Key] = newer(c.deployments[ch.Key], o)
			}
		}
	}
}

// deploymentOf is the deployment that an element of a chain names; nil: the chain's own.
func (c *Scaling) deploymentOf(o *onpath.Chain, element string) *onpath.Deployment {
	e := o.ElementNamed(element)
	if e == nil || e.Deployment == "" {
		return nil
	}
	return c.deployments[deploymentKey(o, e)]
}

// deploymentKey names an element's deployment, be it an object or the chain's own.
func deploymentKey(o *onpath.Chain, e *onpath.Element) onpath.Key {
	if e.Deployment != "" {
		tenant, name := e.Deployment.Resolve(o.Metadata.Tenant)
		return onpath.Key{Kind: onpath.KindDeployment, Tenant: tenant, Name: name}
	}
	return onpath.Key{Kind: onpath.KindDeployment, Tenant: o.Metadata.Tenant, Name: onpath.ShortDeployment(o.Metadata.Name, e.Function)}
}

// Numbers are the numbers of instances that hold instead of those in specifications.
func Numbers(chains map[onpath.Key]*onpath.Chain, deployments map[onpath.Key]*onpath.Deployment) map[onpath.Key]int {
	var out map[onpath.Key]int
	set := func(k onpath.Key, n int) {
		if out == nil {
			out = map[onpath.Key]int{}
		}
		out[k] = n
	}
	for k, d := range deployments {
		if d.Status.Scaled != nil {
			set(k, *d.Status.Scaled)
		}
	}
	for _, o := range chains {
		if o.Spec.Scaling == nil || o.Status.Scaling == nil {
			continue
		}
		for i := range o.Spec.Through {
			e := &o.Spec.Through[i]
			n, ok := o.Status.Scaling.Wanted[e.Name()]
			if _, asked := o.Spec.Scaling.Elements[e.Name()]; ok && asked && e.Function != "" {
				set(deploymentKey(o, e), n)
			}
		}
	}
	return out
}

// PushMetric takes a value that a chain's application reports. at is when it was so;
// zero: now.
func (c *Scaling) PushMetric(_ context.Context, k onpath.Key, value float64, at time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, x := c.chains[k], c.scaled[k]
	switch {
	case o == nil:
		return onpath.Errorf(onpath.CodeNotFound, "there is no %s", k)
	case o.Spec.Scaling == nil:
		return metricError(k, "write spec.scaling in it", "it does not scale, and needs no values")
	case o.Spec.Scaling.Metric.Source != onpath.MetricPushed:
		return metricError(k, "write metric: pushed in its spec.scaling", "%s takes its values from elsewhere (metric: %s)",
			k, o.Spec.Scaling.Metric.Source)
	}
	if x == nil {
		return onpath.Errorf(onpath.CodeUnavailable, "the scaling of %s has not begun; try again in a moment", k)
	}
	now := c.o.Clock().UTC()
	if at.IsZero() {
		at = now
	}
	if why := x.take(value, at, now, time.Duration(o.Spec.Scaling.Window)); why != "" {
		return metricError(k, "report what the application measures, at the time when it does", "%s", why)
	}
	return nil
}

func metricError(k onpath.Key, remedy, format string, args ...any) error {
	e := onpath.Errorf(onpath.CodeInvalid, format, args...)
	e.Object, e.Remedy = k.String(), remedy
	return e
}

// take adds a value, or says why it is not believed.
func (x *scaled) take(value float64, at, now time.Time, window time.Duration) string {
	last, any := x.scaler.Series.Last()
	switch {
	case math.IsNaN(value) || math.Abs(value) > onpath.MaxMetric:
		return x.disbelieve(now, fmt.Sprintf("the value %g is absurd", value))
	case at.After(now.Add(maxAhead)):
		return x.disbelieve(now, fmt.Sprintf("the value is from the future, %s ahead of this server's clock",
			onpath.Duration(at.Sub(now).Round(time.Millisecond))))
	case now.Sub(at) > max(window, time.Second):
		return fmt.Sprintf("the value is %s old, and later ones than a window of %s say nothing",
			onpath.Duration(now.Sub(at).Round(time.Millisecond)), onpath.Duration(window))
	case any && !at.After(last.At):
		return "a value of that time or a later one has come already"
	case x.explodes(value, now):
		return x.disbelieve(now, fmt.Sprintf("the value %g is more than %d times the largest before", value, explosion))
	}
	x.good++
	x.last = now
	x.scaler.Series.Add(scale.Sample{At: at.UTC(), Value: value})
	return ""
}

// explosion is by how much a value may exceed all before it.
const explosion = 10000

func (x *scaled) explodes(value float64, now time.Time) bool {
	most, n := x.scaler.Largest(now)
	return n >= 20 && most > 0 && math.Abs(value) > explosion*most
}

func (x *scaled) disbelieve(now time.Time, why string) string {
	x.bad, x.badAt, x.good = why, now, 0
	return why
}

// stale is why the metric cannot be believed now.
func (x *scaled) stale(now time.Time, spec *onpath.Scaling) string {
	if x.bad != "" && (x.good >= goodValues && now.Sub(x.badAt) > time.Duration(spec.Window)) {
		x.bad = ""
	}
	patience := patienceOf(spec)
	switch {
	case x.bad != "":
		return x.bad
	case x.awaited(now, spec):
		return ""
	case x.last.IsZero():
		return "no value has come" + how(spec)
	case now.Sub(x.last) > patience:
		return fmt.Sprintf("no value has come for %s%s", onpath.Duration(patience), how(spec))
	}
	return ""
}

// patienceOf is how long a value may be in coming.
func patienceOf(spec *onpath.Scaling) time.Duration {
	p := max(time.Duration(spec.Window), 2*time.Second)
	switch spec.Metric.Source {
	case onpath.MetricPackets, onpath.MetricBytes, onpath.MetricNewFlows, onpath.MetricDropped:
		return max(p, 2*askEvery(time.Duration(onpath.DefaultWindow))) // nodes may be asked as seldom as that
	}
	return p
}

// awaited reports whether no value has come because this server, or the chain's scaling,
// has only just begun.
func (x *scaled) awaited(now time.Time, spec *onpath.Scaling) bool {
	return x.bad == "" && x.last.IsZero() && now.Sub(x.began) < patienceOf(spec)
}

func how(spec *onpath.Scaling) string {
	if spec.Metric.Source == onpath.MetricPushed {
		return " (report it with onpath metric CHAIN VALUE)"
	}
	return ""
}

func compareKeys(a, b onpath.Key) int { return strings.Compare(a.String(), b.String()) }
