package instance

import (
	"context"
	"sync"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/node/base"
	"github.com/onpath/onpath/node/meter"
	"github.com/onpath/onpath/node/punt"
	"github.com/onpath/onpath/node/wiring"
)

// self is what all parts of an instance know of it.
type self struct {
	id string
	s  *gear
	st *status
}

// instance is one instance on this machine. All of it but its status is its own goroutine's.
type instance struct {
	self
	changed chan struct{} // the plan for it changed, or its runtime is back
	looked  chan struct{} // closed when its devices have been looked at once
	stop    context.CancelFunc
	sweep   <-chan struct{} // closed when nothing of an earlier agent's is left; nil: nothing is

	rec            Record
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
}

// Fact is how an instance is.
type Fact struct {
	ID      string
	Number  uint64 // no two instances have one
	Plan    onpath.InstancePlan
	State   onpath.InstanceState
	Why     Cause           // of State
	NextTry onpath.Duration // the wait that goes on before the next start; 0: none
	Since   time.Time
	// Process runs; nil: none does.
	Process  onpath.Process
	Restarts int
	Wired    bool   // its devices exist
	WireErr  string // why not
	Printed  string // the last lines of the run that failed
	Leaving  bool
	Replaced bool // while it goes, the plan has named it again
	Open     bool // its vports may take packets
	Asleep   bool // they lead to the agent
	Full     onpath.RelayFullness
	Drains   uint64 // another one each time that it begins to drain
	Told     string // onpath.InstanceReport.Config
	Refused  string // onpath.InstanceReport.Refused
	LeftOut  string // why part of its log is missing; "" if none is
}

// Vports are those of the instance.
func (f *Fact) Vports() []onpath.VportID { return wiring.Of(f.ID, f.Plan).Vports() }

// Name is tenant/name.
func (f *Fact) Name() string { return f.Plan.Tenant + "/" + f.Plan.Name }

// Lease reports whether it is a publisher's engine, which no server planned.
func (f *Fact) Lease() bool { return isLease(&f.Plan) }

// reading is what is to be metered of it.
func (f *Fact) reading() meter.Instance {
	return meter.Instance{Number: f.Number, Plan: f.Plan, Process: f.Process, Vports: f.Vports()}
}

// FullCause is why a full relay takes no connections.
func (f *Fact) FullCause() Cause { return Cause{ReasonRelayFull, fullWords[f.Full]} }

// Inline is what the data path must link for the instance, if it is ready for that.
func (f *Fact) Inline() (onpath.InlineFunction, bool) {
	p, ok := f.Process.(onpath.Inline)
	if !ok || ended(f.Process) {
		return onpath.InlineFunction{}, false
	}
	i := p.Inline()
	i.Vport = f.Plan.Vport
	return i, true
}

// Cause is why an instance is as it is. Where an event tells of it, Reason is the event's.
type Cause struct{ Reason, Words string }

// becauseOf is a cause that an error gives.
func becauseOf(reason string, err error) Cause { return Cause{reason, err.Error()} }

// status is an instance's fact, which all may ask for.
type status struct {
	part *base.Part

	mu        sync.Mutex
	fact      Fact
	started   bool // the runtime has something of it
	successor *onpath.InstancePlan
}

// get is the fact now.
func (st *status) get() Fact {
	st.mu.Lock()
	defer st.mu.Unlock()
	f := st.fact
	f.Replaced = st.successor != nil
	return f
}

// change changes the fact.
func (st *status) change(do func(*Fact)) {
	st.mu.Lock()
	defer st.mu.Unlock()
	do(&st.fact)
}

// wiring says whether the devices exist, and what the last attempt to make them lacked.
func (st *status) wiring() (wired bool, lacks string) {
	f := st.get()
	return f.Wired, f.WireErr
}

// set changes the state as reported. It does not touch the data path.
func (st *status) set(s onpath.InstanceState, why Cause) { st.setTrying(s, why, 0) }

// setTrying is set for an instance that is started again after a while.
func (st *status) setTrying(s onpath.InstanceState, why Cause, next time.Duration) {
	st.mu.Lock()
	defer st.mu.Unlock()
	f := &st.fact
	if s == onpath.InstanceStarting && f.Asleep {
		return // it counts as ready while it sleeps and wakes
	}
	if f.State == s && f.Why == why && f.NextTry == onpath.Duration(next) {
		return
	}
	if f.State != s {
		f.Since = st.part.Clock.Now()
	}
	f.State, f.Why, f.NextTry = s, why, onpath.Duration(next)
	base.Kick(st.part.ReportDue)
}

// tellOf has reports say what a function was told last, and whether it took that.
func (st *status) tellOf(told string, err error) {
	refused := ""
	if err != nil {
		refused = err.Error()
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.fact.Told != told || st.fact.Refused != refused {
		st.fact.Told, st.fact.Refused = told, refused
		base.Kick(st.part.ReportDue)
	}
}

// setLeftOut changes what is told of the log, and says whether it did.
func (st *status) setLeftOut(words string) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.fact.LeftOut == words {
		return false
	}
	st.fact.LeftOut = words
	base.Kick(st.part.ReportDue)
	return true
}

// update takes up what may change while an instance lives, and reports whether it is other.
func (st *status) update(p onpath.InstancePlan, drains uint64) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if base.Hash(st.fact.Plan) == base.Hash(p) {
		return false
	}
	if p.Draining && !st.fact.Plan.Draining {
		st.fact.Drains = drains
	}
	st.fact.Plan = p
	return true
}

// leave has the instance go; it reports whether it was to stay until now.
func (st *status) leave() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	was := st.fact.Leaving
	st.successor, st.fact.Leaving = nil, true
	return !was
}

// succeed has another instance of the same id begin behind one that goes; false if it stays.
func (st *status) succeed(p onpath.InstancePlan) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if !st.fact.Leaving {
		return false
	}
	st.successor = &p
	return true
}

// shapeOf is a hash of all that needs a new process when it changes.
func shapeOf(s onpath.FunctionSpec) string { return base.Hash(s.Fixed()) }

// current is the plan for it now.
func (in self) current() onpath.InstancePlan {
	in.st.mu.Lock()
	defer in.st.mu.Unlock()
	return in.st.fact.Plan
}

// process notes which process runs; nil: none does.
func (in self) process(p onpath.Process) { in.st.change(func(f *Fact) { f.Process = p }) }

// persist writes the record, and logs if it cannot: the worst that follows is
// that the next agent takes a ready instance for one not ready.
func (in *instance) persist() {
	if err := saveRecord(in.s.part.Dir, in.rec); err != nil {
		in.s.part.Log.Error("cannot save", "instance", in.id, "err", err)
	}
}

// runtime is the driver for it, or why there is none.
func (in self) runtime() (onpath.Runtime, error) {
	in.st.mu.Lock()
	kind, started := in.st.fact.Plan.Spec.Kind(), in.st.started
	in.st.mu.Unlock()
	return in.s.runtimes.of(kind, started)
}

// openNotify lets a container tell its owner something. Without it the instance serves all
// the same.
func (in inside) openNotify() {
	plan := in.current()
	netns := in.s.part.Dir.NetNS(in.id)
	if plan.Spec.Inline() || isLease(&plan) || !netnsrun.Is(netns) {
		return // a publisher need not be a tenant, whom notifications are for
	}
	if err := in.s.notifier.Open(in.id, netns, plan); err != nil {
		in.s.part.Log.Warn("an instance cannot send notifications", "instance", in.id, "err", err)
	}
}

// isLease reports whether an instance is a publisher's engine, which no server planned.
func isLease(p *onpath.InstancePlan) bool { return p.UID == onpath.LeaseInstance }
