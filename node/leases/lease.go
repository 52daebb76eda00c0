// Package leases has publishers install modules by signalling: it takes part in it, decides
// on requests, fetches modules, and ends leases in time. It follows plans, and is told how
// the engines of the modules are.
package leases

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/wholefile"
	"github.com/onpath/onpath/node/base"
	"github.com/onpath/onpath/node/machine"
	"github.com/onpath/onpath/node/punt"
	"github.com/onpath/onpath/signal/nslp"
)

// Leases are the modules that publishers had installed here by signalling. The node admits
// them by itself, and they end with their time, also while no server is there.
type Leases struct {
	part    *base.Part
	opt     Options
	machine *machine.Machine
	signal  *signaller
	// one is held while a request is decided on and done: the share is of all together.
	one sync.Mutex
	due chan struct{} // the end of some lease is due earlier
	// renewed: other leases are in force.
	renewed chan struct{}
	told    sparing

	mu   sync.Mutex
	plan *onpath.NodePlan // nil: there is none yet
	now  List
	// engines are the modules' engines by vport, as they are for the list of number seen.
	engines map[onpath.VportID]onpath.LeaseStatus
	seen    uint64
	changed chan struct{} // closed and replaced when engines are others
}

// List are the leases in force.
type List struct {
	Leases []onpath.LocalLease // replaced, never written
	Number uint64              // grows with each change
}

// Options are what the operator says of leases.
type Options struct {
	// Blocks are what the wasm runtime offers to modules.
	Blocks []string
	// ModuleSources are the prefixes, beside public addresses, from which modules may be fetched.
	ModuleSources []netip.Prefix
}

// leased are the building blocks that leased modules may have: a publisher has no place where
// notifications could go.
func leased(offered []string) []string {
	return slices.DeleteFunc(slices.Clone(offered), func(b string) bool { return b == "notify/1" })
}

// New makes one.
func New(p *base.Part, m *machine.Machine, punts *punt.Port, o Options) *Leases {
	o.Blocks = leased(o.Blocks)
	l := &Leases{part: p, opt: o, machine: m, due: make(chan struct{}, 1), renewed: make(chan struct{}, 1), changed: make(chan struct{}),
		told: newSparing()}
	l.signal = newSignaller(l, punts)
	return l
}

// Run ends leases in time and takes part in signalling, until ctx ends.
func (l *Leases) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { l.watch(ctx) })
	wg.Go(func() { l.signal.run(ctx) })
}

// Follow takes up a plan.
func (l *Leases) Follow(p *onpath.NodePlan) {
	l.mu.Lock()
	l.plan = p
	l.mu.Unlock()
	base.Kick(l.due)
	base.Kick(l.signal.wanted)
}

// Current are the leases in force.
func (l *Leases) Current() List {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

// Renewals tells that Current gives others.
func (l *Leases) Renewals() <-chan struct{} { return l.renewed }

// SetEngines takes up how the engines are, by vport, for the list of a number.
func (l *Leases) SetEngines(engines map[onpath.VportID]onpath.LeaseStatus, number uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if number == l.seen && maps.Equal(engines, l.engines) {
		return
	}
	l.engines, l.seen = engines, number
	close(l.changed)
	l.changed = make(chan struct{})
}

// sparing bounds how many refusals are told as events: whoever sends requests can cause them.
type sparing struct {
	mu     sync.Mutex
	limit  *rate.Limiter
	unsaid int
}

func newSparing() sparing { return sparing{limit: rate.NewLimiter(refusalsTold, 10*refusalsTold)} }

// refusalsTold is how many refusals a second are told, after a rest ten times as many at once.
const refusalsTold = 10

// may reports whether one more is told, and how many were not since the last.
func (s *sparing) may(now time.Time) (unsaid int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.limit.AllowN(now, 1) {
		s.unsaid++
		return 0, false
	}
	unsaid, s.unsaid = s.unsaid, 0
	return unsaid, true
}

// File is where admitted leases are kept.
func File(d base.Dir) string { return d.File("leases.json") }

// Restore takes up what an earlier agent had admitted.
func (l *Leases) Restore() error {
	b, err := os.ReadFile(File(l.part.Dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var held []onpath.LocalLease
	if err == nil {
		err = json.Unmarshal(b, &held)
	}
	if err != nil {
		return fmt.Errorf("read the leases: %w", err)
	}
	now := l.part.Clock.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	// Number 0 stands for an agent that has taken up none.
	l.now = List{Number: 1, Leases: slices.DeleteFunc(held, func(o onpath.LocalLease) bool { return !now.Before(o.Until) })}
	return nil
}

// ground is what is decided from now.
func (l *Leases) ground() *nslp.Ground {
	m := l.machine.Current()
	l.mu.Lock()
	defer l.mu.Unlock()
	g := &nslp.Ground{Capacity: m.Capacity, Leases: l.now.Leases, Blocks: l.opt.Blocks, Node: l.part.Node}
	if p := l.plan; p != nil {
		g.Plan, g.Datapath = p.Leases, &p.Datapath
	}
	return g
}

// set puts other leases in force, once they are saved.
func (l *Leases) set(held []onpath.LocalLease) error {
	b, err := json.Marshal(held)
	if err == nil {
		err = wholefile.Write(File(l.part.Dir), b, 0o600)
	}
	if err != nil {
		return fmt.Errorf("save the leases: %w", err)
	}
	l.mu.Lock()
	l.now = List{held, l.now.Number + 1}
	l.mu.Unlock()
	base.Kick(l.renewed)
	base.Kick(l.due)
	return nil
}

// tell is the event of a decision.
func (l *Leases) tell(warning bool, reason, format string, args ...any) {
	l.part.Tell(onpath.NodeEvent{About: l.part.About(), Reason: "Lease" + reason, Message: fmt.Sprintf(format, args...), Warning: warning})
}

// refused is the answer to a request that is not done.
func (l *Leases) refused(m *nslp.Message, r *nslp.Refusal) nslp.Entry {
	if unsaid, ok := l.told.may(l.part.Clock.Now()); ok {
		more := ""
		if unsaid > 0 {
			more = fmt.Sprintf(" (%d refusals before were not told)", unsaid)
		}
		l.tell(true, r.Reason, "%s of %s is refused: %s%s", m.Type, cmp.Or(m.Module, "modules"), r.Words, more)
	}
	return nslp.Entry{State: nslp.Refused, Reason: r.Reason, Words: r.Words}
}

// decide does what a request asks for, and answers it.
func (l *Leases) decide(ctx context.Context, q *nslp.Ask) nslp.Entry {
	m := q.Message
	switch m.Type {
	case nslp.Setup:
		return l.setup(ctx, q)
	case nslp.Remove:
		return l.remove(m)
	}
	g := l.ground()
	if g.Plan == nil {
		return nslp.Entry{State: nslp.Refused, Reason: "NoLeases", Words: "the node gives no leases any more"}
	}
	name := "" // of one that may not ask for leases: it learns what the node is
	if p, _, r := g.Publisher(m.Key); r == nil {
		name = p.Tenant
	}
	return g.Report(l.part.Clock.Now(), name, func(o *onpath.LocalLease) string { return string(l.status(o).State) })
}

// setup admits a module, or prolongs its lease.
func (l *Leases) setup(ctx context.Context, q *nslp.Ask) nslp.Entry {
	m, g := q.Message, l.ground()
	g.Flow = q.Key.Flow
	o, r := g.Admit(l.part.Clock.Now(), m)
	if r == nil {
		r = l.fetcher().bring(ctx, m, &o)
	}
	if r != nil {
		return l.refused(m, r)
	}
	began := time.Now()
	again, state, r := l.admit(q, o.Code)
	switch {
	case r != nil:
		return l.refused(m, r)
	case state == nslp.DryRun:
		l.tell(false, "DryRun", "SETUP of %s by %s would be done, if policy did not run dry", m.Module, again.Publisher)
		return nslp.Entry{State: nslp.DryRun}
	}
	status := l.await(ctx, &again)
	l.part.Log.Info("a leased module is in force", "module", again.Module, "state", status.State, "took", time.Since(began))
	l.tell(false, map[string]string{nslp.Installed: "Installed", nslp.Prolonged: "Prolonged"}[state],
		"module %s of publisher %s stays until %s", again.Module, again.Publisher, again.Until.UTC().Format(time.RFC3339))
	left := fmt.Sprintf("%s %s %d", again.Module, status.State, int(again.Until.Sub(l.part.Clock.Now()).Seconds()))
	return nslp.Entry{State: state, Words: status.Message, Modules: []string{left}, Servers: nslp.ServersOf(&again)}
}

// admit puts a lease in force, on which others were decided meanwhile. It does not wait for
// its engine: one that never starts holds up nobody else.
func (l *Leases) admit(q *nslp.Ask, code onpath.ObjectCode) (o onpath.LocalLease, state string, r *nslp.Refusal) {
	l.one.Lock()
	defer l.one.Unlock()
	g := l.ground()
	g.Flow = q.Key.Flow
	if o, r = g.Admit(l.part.Clock.Now(), q.Message); r != nil {
		return o, "", r
	}
	o.Code = code
	if g.Plan.Spec.DryRun {
		return o, nslp.DryRun, nil
	}
	held, state := slices.Clone(g.Leases), nslp.Installed
	if at := g.Find(o.Publisher, o.Module); at < 0 {
		held = append(held, o)
	} else {
		if held[at].SHA256 == o.SHA256 {
			state = nslp.Prolonged
		}
		held[at] = o
	}
	if err := l.set(held); err != nil {
		return o, "", &nslp.Refusal{Reason: "Failed", Words: err.Error()}
	}
	return o, state, nil
}

// installPatience is how long an answer waits for the engine.
const installPatience = 3 * time.Second

// await waits until the module runs.
func (l *Leases) await(ctx context.Context, o *onpath.LocalLease) onpath.LeaseStatus {
	ctx, cancel := context.WithTimeout(ctx, installPatience)
	defer cancel()
	for {
		l.mu.Lock()
		s, changed := l.statusOf(o), l.changed
		l.mu.Unlock()
		if s.State == onpath.InstanceReady {
			return s
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return s
		}
	}
}

// status is how the module of a lease is.
func (l *Leases) status(o *onpath.LocalLease) onpath.LeaseStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.statusOf(o)
}

// statusOf is status. An engine that is ready for an earlier list may not have the module.
// Callers hold mu.
func (l *Leases) statusOf(o *onpath.LocalLease) onpath.LeaseStatus {
	s, ok := l.engines[o.Slot.Vport]
	switch {
	case !ok:
		return onpath.LeaseStatus{State: onpath.InstancePending}
	case s.State == onpath.InstanceReady && l.seen != l.now.Number:
		return onpath.LeaseStatus{State: onpath.InstanceStarting}
	}
	return s
}

// remove ends a publisher's lease.
func (l *Leases) remove(m *nslp.Message) nslp.Entry {
	l.one.Lock()
	defer l.one.Unlock()
	g := l.ground()
	p, _, r := g.Publisher(m.Key)
	if r != nil {
		return l.refused(m, r)
	}
	at := g.Find(p.Tenant, m.Module)
	if at < 0 {
		return nslp.Entry{State: nslp.Absent}
	}
	if err := l.set(slices.Delete(slices.Clone(g.Leases), at, at+1)); err != nil {
		return l.refused(m, &nslp.Refusal{Reason: "Failed", Words: err.Error()})
	}
	l.tell(false, "Removed", "module %s of publisher %s is removed", m.Module, p.Tenant)
	return nslp.Entry{State: nslp.Removed}
}

// prune ends leases whose time is up, and those that a new plan does not allow.
func (l *Leases) prune() error {
	l.one.Lock()
	defer l.one.Unlock()
	g, now := l.ground(), l.part.Clock.Now()
	keep, gone := g.Keep()
	if g.Datapath == nil {
		keep, gone = g.Leases, nil // no plan yet: nothing is known
	}
	var ended []onpath.LocalLease
	keep = slices.DeleteFunc(slices.Clone(keep), func(o onpath.LocalLease) bool {
		up := !now.Before(o.Until)
		if up {
			ended = append(ended, o)
		}
		return up
	})
	if len(keep) == len(g.Leases) {
		return nil
	}
	if err := l.set(keep); err != nil {
		return err
	}
	for _, o := range ended {
		l.tell(false, "Ended", "the time of module %s of publisher %s is up", o.Module, o.Publisher)
	}
	for _, o := range gone {
		l.tell(true, "Withdrawn", "module %s of publisher %s goes: the operator does not allow it any more", o.Module, o.Publisher)
	}
	return nil
}

// leaseRetry is the wait after a lease could not be ended, as on a full disk.
const leaseRetry = 10 * time.Second

// watch ends each lease in time.
func (l *Leases) watch(ctx context.Context) {
	for {
		wait, now := time.Hour, l.part.Clock.Now()
		if err := l.prune(); err != nil {
			l.part.Log.Error("a lease cannot be ended; it is tried again", "err", err)
			wait = leaseRetry
		} else {
			for _, o := range l.ground().Leases {
				wait = min(wait, max(o.Until.Sub(now), time.Millisecond))
			}
		}
		rings, stop := base.Alarm(ctx, l.part.Clock, wait)
		select {
		case <-ctx.Done():
			stop()
			return
		case <-l.due:
		case <-rings:
		}
		stop()
	}
}

// Reports are the leases for the server.
func (l *Leases) Reports() (out []onpath.LeaseReport) {
	for i, held := 0, l.ground().Leases; i < len(held); i++ {
		r := onpath.LeaseReport{Name: held[i].Name, LeaseSpec: held[i].LeaseSpec, LeaseStatus: l.status(&held[i])}
		r.Vport = held[i].Slot.Vport
		out = append(out, r)
	}
	return out
}
