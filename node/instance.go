package node

import (
	"cmp"
	"context"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/node/base"
	"github.com/onpath/onpath/node/punt"
)

// instance is one instance on this machine. The first fields are its own
// goroutine's (supervise.go), the others are guarded by Agent.mu.
type instance struct {
	id      string
	a       *Agent
	changed chan struct{} // the plan for it changed, or its runtime is back
	looked  chan struct{} // closed when its devices have been looked at once
	stop    context.CancelFunc

	rec            record
	backoff        base.Backoff
	endedSoon      bool // the last run ended soon after its start
	wrongNamespace bool // its process is not in its network namespace, which was made anew
	// launched is the process that this agent started, not an adopted one.
	launched onpath.Process
	// kept is what comes while it sleeps, and until it is ready.
	kept *punt.Kept
	wake wake // zero: it did not wake, or is awake
	// creation is what began before it was asked for; nil: nothing.
	creation *creation
	// configured is the FunctionSpec.Told that the process took last.
	configured string

	// Guarded by Agent.mu.

	plan      onpath.InstancePlan
	state     onpath.InstanceState
	why       cause           // of state
	nextTry   onpath.Duration // the wait that goes on before the next start; 0: none
	since     time.Time
	restarts  int
	wired     bool   // its devices exist
	printed   string // the last lines of the run that failed
	wireErr   string // why not
	leaving   bool
	open      bool // its vports may take packets
	asleep    bool // they lead to the agent
	full      onpath.RelayFullness
	successor *onpath.InstancePlan
	proc      onpath.Process // running
	flows     uint64
	counted   bool   // flows is of a count that began when it drained already
	drains    uint64 // how often it has begun to drain
	told      string // onpath.InstanceReport.Config
	refused   string // onpath.InstanceReport.Refused
	sends     sending
	leftOut   string // why part of its log is missing; "" if none is
}

// begin takes up an instance. Callers hold a.mu.
func (a *Agent) begin(id string, p onpath.InstancePlan) {
	ctx, stop := context.WithCancel(a.part.Context())
	in := &instance{
		id: id, a: a, plan: p, stop: stop,
		changed: make(chan struct{}, 1), looked: make(chan struct{}),
		kept:  a.punts.NewKept(p.Tenant),
		state: onpath.InstanceStarting, since: a.part.Clock.Now(),
		rec: record{ID: id, Tenant: p.Tenant, Name: p.Name, Kind: p.Spec.Kind(), Boot: a.boot},
	}
	a.instances[id] = in
	a.part.Go(func(context.Context) {
		defer stop()
		in.live(ctx)
	})
}

// dismiss lets an instance go. Callers hold a.mu.
func (in *instance) dismiss() {
	in.successor = nil
	if !in.leaving {
		in.leaving = true
		in.stop()
	}
}

// update takes up what may change while an instance lives. Callers hold a.mu.
func (in *instance) update(p onpath.InstancePlan) {
	if base.Hash(in.plan) != base.Hash(p) {
		in.drainsFrom(p)
		in.plan = p
		base.Kick(in.changed)
	}
}

// shapeOf is a hash of all that needs a new process when it changes.
func shapeOf(s onpath.FunctionSpec) string { return base.Hash(s.Fixed()) }

// cause is why an instance is as it is. Where an event tells of it, reason is the event's.
type cause struct{ reason, words string }

// becauseOf is a cause that an error gives.
func becauseOf(reason string, err error) cause { return cause{reason, err.Error()} }

// prints notes what is reported as printed last.
func (in *instance) prints(words string) {
	in.a.mu.Lock()
	defer in.a.mu.Unlock()
	in.printed = words
}

// set changes the state as reported. It does not touch the data path.
func (in *instance) set(s onpath.InstanceState, why cause) { in.setTrying(s, why, 0) }

// setTrying is set for an instance that is started again after a while.
func (in *instance) setTrying(s onpath.InstanceState, why cause, next time.Duration) {
	in.a.mu.Lock()
	defer in.a.mu.Unlock()
	if s == onpath.InstanceStarting && in.asleep {
		return // it counts as ready while it sleeps and wakes
	}
	if in.state == s && in.why == why && in.nextTry == onpath.Duration(next) {
		return
	}
	if in.state != s {
		in.since = in.a.part.Clock.Now()
	}
	in.state, in.why, in.nextTry = s, why, onpath.Duration(next)
	base.Kick(in.a.part.ReportDue)
}

// current is the plan for it now.
func (in *instance) current() onpath.InstancePlan {
	in.a.mu.Lock()
	defer in.a.mu.Unlock()
	return in.plan
}

func (in *instance) process(p onpath.Process) {
	in.a.mu.Lock()
	defer in.a.mu.Unlock()
	in.proc = p
}

// persist writes the record, and logs if it cannot: the worst that follows is
// that the next agent takes a ready instance for one not ready.
func (in *instance) persist() {
	if err := saveRecord(in.a.part.Dir, in.rec); err != nil {
		in.a.part.Log.Error("cannot save", "instance", in.id, "err", err)
	}
}

// runtime is the driver for it, or why there is none.
func (in *instance) runtime() (onpath.Runtime, error) {
	plan := in.current()
	kind := plan.Spec.Kind()
	in.a.mu.Lock()
	defer in.a.mu.Unlock()
	d := in.a.drivers[kind]
	switch {
	case d == nil && in.rec.Started: // it may well run on
		return nil, onpath.Errorf(onpath.CodeUnavailable, "the runtime for %s functions, which started it, is not set up any more", kind)
	case d == nil:
		return nil, onpath.Errorf(onpath.CodeUnsupported, "this node has no runtime for %s functions", cmp.Or(kind, "unknown"))
	case d.err != nil:
		return nil, onpath.Errorf(onpath.CodeUnavailable, "the %s runtime does not answer: %w", kind, d.err)
	}
	return d.rt, nil
}

// openNotify lets a container tell its owner something. Without it the instance serves all
// the same.
func (in *instance) openNotify() {
	plan := in.current()
	netns := in.a.part.Dir.NetNS(in.id)
	if plan.Spec.Inline() || isLease(&plan) || !netnsrun.Is(netns) {
		return // a publisher need not be a tenant, whom notifications are for
	}
	if err := in.a.notifier.Open(in.id, netns, plan); err != nil {
		in.a.part.Log.Warn("an instance cannot send notifications", "instance", in.id, "err", err)
	}
}

// isLease reports whether an instance is a publisher's engine, which no server planned.
func isLease(p *onpath.InstancePlan) bool { return p.UID == onpath.LeaseInstance }
