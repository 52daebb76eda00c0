package control

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/archive"
	"github.com/onpath/onpath/control/claims"
	"github.com/onpath/onpath/control/events"
	"github.com/onpath/onpath/control/limits"
	"github.com/onpath/onpath/control/metering"
	"github.com/onpath/onpath/control/names"
	"github.com/onpath/onpath/control/pool"
	"github.com/onpath/onpath/control/questions"
	"github.com/onpath/onpath/control/scaling"
	"github.com/onpath/onpath/control/timer"
	"github.com/onpath/onpath/plan"
)

// Hub reaches the nodes. Its sessions tell the Controller what the nodes say by
// NodeConnected, NodeReported, NodeEvent and NodeGone.
type Hub interface {
	// Push gives a node its newest plan and does not wait. A plan not sent yet
	// is replaced by the next.
	Push(node string, p *onpath.NodePlan)
	// Call has a node do an operation; its answer is read from the result.
	Call(ctx context.Context, node string, op onpath.NodeOp, request any) (io.ReadWriteCloser, error)
}

// Options of a Controller.
type Options struct {
	Store onpath.Store
	Hub   Hub
	// Clock is time.Now where nil, After time.After: they pass time together.
	Clock onpath.Clock
	After timer.After
	// Boot is the time since the machine started, suspended or not; nil: the clock is believed.
	Boot func() time.Duration
	Log  *slog.Logger
	// Archive keeps closed days of the ledger; nil: they stay in the store.
	Archive *archive.Folder
	// OnStored has a function called with notifications as they come; nil: none come.
	OnStored func(func([]onpath.Notification))
	// Settings.Secret must be the same at every start. Secrets are the server's own, the newest
	// first; nil: Settings.Secret.
	Settings plan.Settings
	Secrets  func() [][]byte
	// Restored: the store was restored from a backup since the last start.
	Restored bool
	// Wait is how long a started server waits for the nodes it knows before it
	// plans without the missing ones; 0 means DefaultWait.
	Wait time.Duration
	// KeepEvents is how many events stay for each tenant; 0 means 500.
	KeepEvents int
}

// DefaultWait lets nodes come back to a restarted server: they try again within
// two seconds.
const DefaultWait = 3 * time.Second

// coalesce is how long the loop waits for more of the same after a change:
// reports of several nodes, objects of one file.
const coalesce = 2 * time.Millisecond

// Controller is the reconcile loop. Make one with New, connect the sessions to
// it, and Run it.
type Controller struct {
	o      Options
	log    *slog.Logger
	events *events.Log
	wake   bell
	loaded chan struct{} // closed once the mirror is filled

	mu       sync.Mutex
	core     core
	storing  trouble // why the last decisions could not be written
	planning trouble // why the last attempt to plan came to nothing

	questions *questions.Questions
	scaling   *scaling.Scaling
	pool      *pool.Pool
	names     *names.Names
	claims    *claims.Claims
	limits    *limits.Limits
	metering  *metering.Metering
	uses      uses
	make      func(*plan.Snapshot) *plan.Result // plan.Make
}

// session is what is known of a node that has connected.
type session struct {
	state     plan.NodeState
	connected bool
	// connectedAt is when the present session began.
	connectedAt time.Time
	told        bool   // state.Acked is as the node has told it
	pushed      uint64 // generation pushed to the present session
	grant       *onpath.NodeGrant
	// foreign: the plan that it holds is another store's, and nobody has accepted that.
	foreign bool
	// looked is when, and at which version of its Node, it was last asked why it waits.
	lookedAt time.Time
	looked   int64
}

// New makes a controller that does nothing yet.
func New(o Options) *Controller {
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.After == nil {
		o.After = time.After
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Wait == 0 {
		o.Wait = DefaultWait
	}
	if o.KeepEvents == 0 {
		o.KeepEvents = 500
	}
	if o.Secrets == nil {
		o.Secrets = func() [][]byte { return [][]byte{o.Settings.Secret} }
	}
	c := &Controller{
		o: o, log: o.Log, events: events.New(events.Options{Store: o.Store, Clock: o.Clock, After: o.After, Log: o.Log,
			Keep: o.KeepEvents}),
		wake: newBell(), loaded: make(chan struct{}),
		make: new(plan.Planner).Make,
	}
	c.pool, c.names = newPool(&c.o, c.wake, c.events, &c.uses), names.New(o.Hub, o.Clock)
	c.scaling = scaling.New(scaling.Options{Store: o.Store, Hub: o.Hub, Clock: o.Clock, After: o.After, Log: o.Log, Events: c.events})
	c.metering = metering.New(metering.Options{Hub: o.Hub, Bills: c.pool, Clock: o.Clock, Log: o.Log})
	c.claims = claims.New(claims.Options{Store: o.Store, Hub: o.Hub, Clock: o.Clock, After: o.After, Secrets: o.Secrets,
		Events: c.events})
	c.limits = limits.New(limits.Options{Store: o.Store, Clock: o.Clock, After: o.After, Events: c.events, Log: o.Log})
	if o.OnStored != nil {
		o.OnStored(c.limits.Alert)
	}
	c.questions = questions.New(o.Hub)
	c.core = core{clock: o.Clock, settings: o.Settings, secrets: o.Secrets, log: o.Log, events: c.events, scaling: c.scaling, pool: c.pool,
		mirror: newMirror(), nodes: map[string]*session{}, missing: map[onpath.Key]onpath.Object{}}
	return c
}

// Names tells where names of services lead.
func (c *Controller) Names() *names.Names { return c.names }

// PushMetric takes a value that a chain's application reports. at is when it was so; zero: now.
func (c *Controller) PushMetric(ctx context.Context, k onpath.Key, value float64, at time.Time) error {
	return c.scaling.PushMetric(ctx, k, value, at)
}

// Loaded is closed once the store has been read.
func (c *Controller) Loaded() <-chan struct{} { return c.loaded }

// Ready says why the controller does not work; nil if it does.
func (c *Controller) Ready(context.Context) error {
	select {
	case <-c.loaded:
	default:
		return onpath.Errorf(onpath.CodeUnavailable, "the server is still reading its store")
	}
	if err := c.storing.why(); err != nil {
		return onpath.Errorf(onpath.CodeUnavailable, "decisions cannot be written: %w", err)
	}
	if err := c.planning.why(); err != nil {
		return onpath.Errorf(onpath.CodeUnavailable, "nothing can be planned, nodes go on as they are: %w", err)
	}
	return c.pool.Held()
}

// Run plans until ctx ends. It returns an error only if the store cannot be
// read at all.
func (c *Controller) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	revision, err := c.load(ctx)
	if err != nil {
		return err
	}
	store, err := identify(ctx, c.o.Store, c.o.Restored)
	if err != nil {
		return err
	}
	opened, err := openTenants(ctx, c.o.Store, c.log)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.core.settings.Store = store
	for _, ch := range opened {
		c.core.mirror.put(ch.Object)
	}
	c.mu.Unlock()
	for _, ch := range opened {
		c.events.Tell(ch.Key, "AddressesWritten",
			"from now on a tenant without addresses selects nothing; all were written into it: narrow them", true)
	}
	if err := c.pool.Load(ctx); err != nil {
		return err
	}
	close(c.loaded)
	for _, f := range []func(){
		func() { _ = c.pool.Run(ctx) },
		func() { c.pool.Past().Run(ctx) },
		func() { c.follow(ctx, revision) },
		func() { c.awaitNodes(ctx) },
	} {
		wg.Go(f)
	}
	for _, p := range []part{c.events, c.scaling, c.metering, c.claims, c.limits, c.names} {
		wg.Go(func() { p.Run(ctx) })
	}
	c.loop(ctx, &wg)
	return nil
}

// awaitNodes lets planning begin once all known nodes are there, or after Wait.
func (c *Controller) awaitNodes(ctx context.Context) {
	deadline := c.o.After(c.o.Wait)
	for {
		c.mu.Lock()
		missing := awaited(c.core.mirror, c.core.nodes)
		c.mu.Unlock()
		if len(missing) == 0 {
			break
		}
		select {
		case <-ctx.Done():
			return
		case <-deadline:
			c.log.Warn("planning without nodes that have not come back", "nodes", missing)
		case <-c.o.After(5 * time.Millisecond):
			continue
		}
		break
	}
	c.mu.Lock()
	c.core.held = false
	c.mu.Unlock()
	c.wake.ring()
}

// awaited are the nodes of which nothing was heard yet.
func awaited(m *mirror, sessions map[string]*session) (out []string) {
	for k := range m.objects {
		if k.Kind == onpath.KindNode && sessions[k.Name] == nil {
			out = append(out, k.Name)
		}
	}
	return out
}

// loop is the heart: something changed, or a deadline passed → plan, push,
// write.
func (c *Controller) loop(ctx context.Context, wg *sync.WaitGroup) {
	var again, planned time.Time // when time alone changes something; when it was planned last
	for {
		var due <-chan time.Time
		if next := c.next(again, planned); !next.IsZero() {
			due = c.o.After(max(next.Sub(c.o.Clock()), coalesce))
		}
		select {
		case <-ctx.Done():
			return
		case <-due:
			if c.o.Clock().Before(c.next(again, planned)) {
				continue // the node that was silent has reported meanwhile
			}
		case <-c.scaling.Changed():
		case <-c.wake:
			if c.o.After.Sleep(ctx, coalesce) != nil {
				return
			}
			select {
			case <-c.wake:
			default:
			}
		}
		planned = c.o.Clock()
		again = c.step(ctx, wg)
	}
}

// next is when to plan though nothing is heard: at again, or when the next node has been
// silent for too long since it was planned last. It is zero if there is no such time.
func (c *Controller) next(again, planned time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.core.held {
		return time.Time{}
	}
	silence := plan.NextSilence(c.core.snapshot(), planned)
	if again.IsZero() || !silence.IsZero() && silence.Before(again) {
		return silence
	}
	return again
}

// step plans once and pushes; decisions go to the store in the background. It
// returns when time alone will change something, other than by the silence of nodes.
func (c *Controller) step(ctx context.Context, wg *sync.WaitGroup) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.core.held {
		return time.Time{}
	}
	r := c.plan(c.core.snapshot())
	if r == nil {
		return c.o.Clock().Add(retold)
	}
	c.observe(r)
	c.core.push(c.o.Hub, r)
	d := c.core.decisions(r)
	if d.empty() || c.core.writing { // what is written now has the loop plan again
		return r.Again
	}
	c.core.writing = true
	wg.Add(1)
	go func() {
		defer wg.Done()
		c.write(ctx, d)
	}()
	return r.Again
}

// plan has plans made. Should the planner fail on what it is given, it is nil: all
// nodes keep the plans they have, and the next change, or time, may mend it. Callers
// hold mu.
func (c *Controller) plan(s *plan.Snapshot) (r *plan.Result) {
	defer func() {
		e := recover()
		if e == nil {
			c.planning.end()
			return
		}
		r = nil
		err := fmt.Errorf("the planner failed: %v", e)
		if !c.planning.note(err, s.Now) {
			return
		}
		c.log.Error("nothing can be planned, all nodes keep the plans they have; it is tried again with the next change",
			"err", err, "stack", string(debug.Stack()))
		c.events.Add(plan.Event{About: onpath.Key{Kind: onpath.KindTenant, Name: onpath.OperatorTenant}, Reason: "PlannerFailed",
			Warning: true, Message: fmt.Sprintf("nothing new is planned, nodes go on as they are: %v; "+
				"undo the last change, and report this with the server's log", e)}, s.Now)
	}()
	return c.make(s)
}

// GCPercent is for the process in which a Controller runs (debug.SetGCPercent). Plans make
// much garbage at once: with Go's 100, collecting it takes a fifth of a plan's CPU time.
const GCPercent = 200
