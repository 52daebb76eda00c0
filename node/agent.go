package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/session"
	"github.com/onpath/onpath/node/base"
	"github.com/onpath/onpath/node/fault"
	"github.com/onpath/onpath/node/instance"
	"github.com/onpath/onpath/node/leases"
	"github.com/onpath/onpath/node/machine"
	"github.com/onpath/onpath/node/meter"
	"github.com/onpath/onpath/node/peers"
	"github.com/onpath/onpath/node/punt"
	"github.com/onpath/onpath/node/tunnel"
	"github.com/onpath/onpath/node/wiring"
)

// Session is the way to the server (session.Session is one). Report and Event
// return at once; the session keeps the newest report, and what events it can,
// while the server is away.
type Session interface {
	Report(onpath.NodeReport)
	Event(onpath.NodeEvent)
	// Done is closed when the session has ended and calls no method of the
	// agent any more.
	Done() <-chan struct{}
}

// Handler is what a session asks.
type Handler interface {
	session.Handler
	Hello() onpath.NodeHello
	SetControl(ctx context.Context, server string)
}

// Options is what an agent needs.
type Options struct {
	Name string
	Spec onpath.NodeSpec
	// StateDir holds the plan, the records of instances and their namespaces.
	// One agent per folder.
	StateDir string
	// Runtimes by kind of function; instances of a missing one fail.
	Runtimes map[onpath.FunctionKind]onpath.Runtime
	// Open opens runtimes that are not in Runtimes, again and again until it
	// succeeds: a containerd that is away when the agent starts is not one that
	// is missing. The agent closes what it opened.
	Open     map[onpath.FunctionKind]func(context.Context) (onpath.Runtime, error)
	Datapath onpath.Datapath
	// Dial begins the session, with h as its handler, once the saved plan is
	// in force; the session ends with ctx. Nil: the agent works by its saved
	// plan and what SetPlan is told.
	Dial    func(ctx context.Context, h Handler) Session
	Version string
	Log     *slog.Logger // default: none
	Clock   base.Clock   // default: the wall clock
	// NetNS is the path of the network namespace of underlay and uplinks;
	// default: the process's own.
	NetNS string
	// SetForwarding lets the agent turn IP forwarding on where a routing
	// uplink needs it; else it only says so.
	SetForwarding bool
	// HostImage tells the server that the container runtime permits functions
	// with image: host.
	HostImage bool
	// Blocks are what the wasm runtime offers to modules; nil: nothing is said of it.
	Blocks []string
	// ModuleSources are the prefixes, beside public addresses, from which modules of leases
	// may be fetched, and that publishers without an account may prove to be theirs.
	ModuleSources []netip.Prefix
	// Secrets asks the server for those of an instance here, by file; nil: there are none.
	Secrets func(ctx context.Context, tenant, instance string) (map[string][]byte, error)
	// FaultKeeper is a command that, given the file of a fault as its last
	// argument, calls fault.Keep: it ends a fault if no agent does. Empty: faults
	// end when an agent runs.
	FaultKeeper []string
	// Held says that who runs the agent holds StateDir (Hold).
	Held bool
	// StopGrace is how long an instance may take to end after SIGTERM; default 5s.
	StopGrace time.Duration
}

// Agent is one running agent. Its methods are safe for concurrent use.
type Agent struct {
	part      *base.Part
	plans     *plans
	opt       Options
	peers     *peers.Peers
	tunnels   *tunnel.Tunnels
	instances *instance.Set
	meters    *meter.Meters
	flows     *meter.Flows
	machine   *machine.Machine
	exempt    *machine.Exempt
	faults    *fault.Faults
	leases    *leases.Leases
	punts     *punt.Port

	started time.Time
	up      chan struct{} // closed when start-up has put the saved plan in force

	rounds  *base.Rounds
	apply   *applier
	count   chan struct{} // a count of flows is
	retry   chan struct{} // a plan was refused
	taking  sync.Mutex    // serialises SetPlan
	joining sync.Mutex    // serialises reconcile
	telling sync.Mutex    // serialises tellEngines: what is newer is told later
	trying  sync.Mutex    // held by the trial that runs

	session atomic.Pointer[Session] // once there is one
}

// New makes an agent; Run starts it.
func New(o Options) (*Agent, error) {
	switch {
	case o.Name == "":
		return nil, onpath.Errorf(onpath.CodeInvalid, "the node has no name")
	case o.StateDir == "":
		return nil, onpath.Errorf(onpath.CodeInvalid, "node %s has no state folder", o.Name)
	case o.Datapath == nil:
		return nil, onpath.Errorf(onpath.CodeInvalid, "node %s has no data path", o.Name)
	}
	dir, err := filepath.Abs(o.StateDir)
	if err != nil {
		return nil, fmt.Errorf("find the state folder: %w", err)
	}
	o.StateDir = dir
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = base.WallClock{}
	}
	if o.StopGrace == 0 {
		o.StopGrace = 5 * time.Second
	}
	a := &Agent{
		part: &base.Part{Node: o.Name, NetNS: o.NetNS, Datapath: o.Datapath, Log: o.Log, Clock: o.Clock,
			Dir: base.Dir(dir), Events: &base.Events{}, ReportDue: make(chan struct{}, 1)},
		opt:     o,
		started: o.Clock.Now(), up: make(chan struct{}),
		count: make(chan struct{}, 1), retry: make(chan struct{}, 1),
	}
	a.meters, a.flows = meter.New(a.part), meter.NewFlows(a.part)
	a.rounds, a.plans = base.NewRounds(), &plans{}
	forwarding := &wiring.Forwarding{Dir: a.part.Dir}
	a.peers, a.tunnels = peers.New(a.part, a.rounds), tunnel.New(a.part, a.rounds)
	a.machine = machine.New(a.part, a.rounds, machine.Options{Spec: o.Spec, SetForwarding: o.SetForwarding})
	a.exempt = machine.NewExempt(a.part, a.rounds, a.machine, a.up)
	a.punts = punt.New()
	a.leases = leases.New(a.part, a.machine, a.punts, leases.Options{Blocks: o.Blocks, ModuleSources: o.ModuleSources})
	a.instances = instance.New(a.part, instance.Parts{Rounds: a.rounds, Machine: a.machine, Exempt: a.exempt, Punts: a.punts,
		Meters:     a.meters,
		Forwarding: forwarding},
		instance.Options{Runtimes: o.Runtimes, Open: o.Open, Secrets: o.Secrets, StopGrace: o.StopGrace})
	a.faults = fault.New(a.part, o.FaultKeeper, a.instances)
	a.apply = &applier{part: a.part, rounds: a.rounds, plans: a.plans, instances: a.instances, meters: a.meters, machine: a.machine,
		exempt: a.exempt, peers: a.peers, forwarding: forwarding, took: newApplyTime()}
	return a, nil
}

// Up is closed once the saved plan, if any, is in force again. The session
// begins after it, so that the first report tells the truth.
func (a *Agent) Up() <-chan struct{} { return a.up }

// Run works until ctx ends; then it leaves data path and instances as they are.
func (a *Agent) Run(ctx context.Context) error {
	if err := a.part.Dir.Init(); err != nil {
		return err
	}
	if !a.opt.Held {
		unlock, err := a.part.Dir.Lock()
		if err != nil {
			return err
		}
		defer unlock()
	}
	saved, err := loadPlan(a.part.Dir)
	if err != nil {
		// Nothing is touched until a server says what is wanted.
		a.part.Log.Error("the saved plan is unusable; waiting for the server's", "err", err)
	}
	if saved != nil && saved.Node != a.opt.Name {
		return &onpath.Error{
			Code:    onpath.CodeConflict,
			Message: fmt.Sprintf("the state folder %s is that of node %s, not %s", a.opt.StateDir, saved.Node, a.opt.Name),
			Remedy:  "take the old node off this machine first (onpath node off), or use another folder",
		}
	}
	if err := a.meters.Load(); err != nil {
		a.part.Log.Error("what instances have used so far cannot be read; it is metered anew", "err", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		a.part.Wait()
		a.instances.Close()
	}()
	a.part.Begin(ctx)
	if err := a.leases.Restore(); err != nil {
		a.part.Log.Error("leases end now, for what is known of them cannot be read", "err", err)
	}
	a.plans.lease(a.leases.Current())
	if err := a.instances.Open(ctx); err != nil {
		return err
	}
	if err := a.tunnels.Open(); err != nil {
		a.part.Log.Error("the node can have no tunnels by WireGuard", "err", err)
	}
	if saved != nil {
		a.plans.restore(saved)
		a.tunnels.Follow(saved.Wanted)
		a.machine.Restore(a.plans.get().inForce)
		a.machine.Follow(saved.Wanted)
		a.exempt.Follow(saved.Wanted)
		a.leases.Follow(saved.Wanted)
		a.peers.Restore()
		a.peers.Follow(saved.Wanted)
		a.peers.Measure(saved.Wanted)
	}
	a.machine.Look() // knows the saved plan's uplinks before the first configuration
	a.reconcile()
	a.part.Go(a.machine.Watch)
	a.part.Go(a.peers.Run)
	a.part.Go(a.tunnels.Run)
	a.part.Go(func(ctx context.Context) { meter.WatchNewFlows(ctx, a.part) })
	a.part.Go(a.instances.Run)
	a.part.Go(a.retryPlan)
	a.part.Go(a.countLoop)
	a.part.Go(a.meterLoop)
	a.part.Go(a.leases.Run)
	a.part.Go(func(ctx context.Context) {
		each(ctx, a.leases.Renewals(), func(struct{}) { a.takeLeases() })
	})
	a.part.Go(func(ctx context.Context) { a.punts.Run(ctx, a.opt.Datapath) })
	a.faults.Resume()
	a.part.Go(a.reportLoop)
	a.instances.AwaitLooked(ctx)
	a.part.Go(a.apply.run)
	a.rounds.Kick(true)
	a.rounds.AwaitFirst(ctx)
	close(a.up)
	a.part.Log.Info("agent is up", "state", a.opt.StateDir)
	if a.opt.Dial != nil {
		a.connect(ctx)
	}
	<-ctx.Done()
	return nil
}

// connect begins the session and hands it the events that came before it.
func (a *Agent) connect(ctx context.Context) {
	s := a.opt.Dial(ctx, a)
	a.part.Events.Begin(s)
	a.session.Store(&s)
	base.Kick(a.part.ReportDue)
	a.part.Go(func(context.Context) { <-s.Done() })
}

// reconcile starts what the plan and the leases name, and dismisses what they do not.
func (a *Agent) reconcile() {
	a.joining.Lock()
	defer a.joining.Unlock()
	if p := a.plans.get().joined(); p != nil {
		a.instances.Want(p)
	}
}

// Health is an error while the agent does not do its work: not up yet, or a
// plan that cannot be put in force.
func (a *Agent) Health() error {
	select {
	case <-a.up:
	default:
		return errors.New("the agent is starting")
	}
	if why := a.plans.get().problem; why != "" {
		return fmt.Errorf("the plan is not in force: %s", why)
	}
	return nil
}

// takeLeases takes up other leases, if they are others.
func (a *Agent) takeLeases() {
	if a.plans.lease(a.leases.Current()) {
		a.reconcile()
		a.rounds.Kick(false)
		base.Kick(a.part.ReportDue)
	}
}

// tellEngines tells leases how their engines are.
func (a *Agent) tellEngines() {
	a.telling.Lock()
	defer a.telling.Unlock()
	a.takeLeases()
	number := a.plans.get().leased.Number
	engines := map[onpath.VportID]onpath.LeaseStatus{}
	for _, f := range a.instances.Facts() {
		if f.Leaving || !f.Lease() {
			continue
		}
		s := onpath.LeaseStatus{State: f.State, Message: f.Why.Words}
		if f.State == onpath.InstanceReady && f.Told != f.Plan.Spec.Told() {
			s = onpath.LeaseStatus{State: onpath.InstanceStarting, Message: f.Refused}
		}
		engines[f.Plan.Vport] = s
	}
	a.leases.SetEngines(engines, number)
}

// each calls fn with each value of a channel, until ctx ends.
func each[T any](ctx context.Context, ch <-chan T, fn func(T)) {
	for {
		select {
		case <-ctx.Done():
			return
		case v := <-ch:
			fn(v)
		}
	}
}

// SetControl says where the server is, host:port, or at which port of this machine it
// listens. Whoever connects calls it before each connection: names may come to mean other
// addresses, and the machine may have got others. It returns when no chain can take the
// connection any more, or when that takes too long.
func (a *Agent) SetControl(ctx context.Context, server string) { a.exempt.SetControl(ctx, server) }
