// Package instance makes instances what the plan wants: it wires, starts, probes, restarts
// and removes them, and takes up what an earlier agent left. It tells facts, which are
// copies, and asks for rounds of the applier.
package instance

import (
	"context"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/session"
	"github.com/onpath/onpath/internal/userns"
	"github.com/onpath/onpath/node/base"
	"github.com/onpath/onpath/node/machine"
	"github.com/onpath/onpath/node/meter"
	"github.com/onpath/onpath/node/notify"
	"github.com/onpath/onpath/node/punt"
	"github.com/onpath/onpath/node/wiring"
)

// gear is what instances work with. All of its fields are set once.
type gear struct {
	part       *base.Part
	rounds     *base.Rounds
	punts      *punt.Port
	meters     *meter.Meters
	runtimes   *runtimes
	forwarding *wiring.Forwarding
	wirer      wiring.Wirer
	opt        Options
	boot       string
	adopted    adopted
	notifier   *notify.Notifier // opened by Open
}

// adopted are the processes that were found at start, by id, until an instance takes them.
type adopted struct {
	mu sync.Mutex
	of map[string]onpath.Process
}

func (a *adopted) put(id string, p onpath.Process) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.of[id] = p
}

// take gives a process once; nil: there is none.
func (a *adopted) take(id string) onpath.Process {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.of[id]
	delete(a.of, id)
	return p
}

func (a *adopted) ids() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Keys(a.of))
}

// Set is the instances on this machine. It makes them what the plan wants.
type Set struct {
	*gear
	machine *machine.Machine

	mu        sync.Mutex
	known     bool            // there is a plan
	expected  map[string]bool // ids that a plan which is being taken up names
	instances map[string]*instance
	stopped   []stoppedReport
	swept     bool
	sweeping  map[string]chan struct{} // leftovers on their way out, by id
	last      uint64                   // number given
}

// Options are what an agent's options say of instances.
type Options struct {
	Runtimes  map[onpath.FunctionKind]onpath.Runtime
	Open      map[onpath.FunctionKind]func(context.Context) (onpath.Runtime, error)
	Secrets   func(ctx context.Context, tenant, instance string) (map[string][]byte, error)
	StopGrace time.Duration
}

// Parts are what instances work with.
type Parts struct {
	Rounds     *base.Rounds
	Machine    *machine.Machine
	Exempt     *machine.Exempt
	Punts      *punt.Port
	Meters     *meter.Meters
	Forwarding *wiring.Forwarding
}

// New makes an empty set; Open and Want fill it.
func New(p *base.Part, with Parts, o Options) *Set {
	g := &gear{part: p, rounds: with.Rounds, punts: with.Punts, meters: with.Meters, forwarding: with.Forwarding,
		runtimes: newRuntimes(p, with.Exempt, o), opt: o, boot: base.BootID(), adopted: adopted{of: map[string]onpath.Process{}},
		wirer: wiring.Wirer{Node: p.Node, NetNS: p.NetNS, Dir: p.Dir, Log: p.Log,
			Users: sync.OnceValue(func() error { return userns.Possible(string(p.Dir)) })}}
	return &Set{gear: g, machine: with.Machine, instances: map[string]*instance{}, sweeping: map[string]chan struct{}{}}
}

// Open begins to accept notifications, and asks each runtime for what an earlier process of
// ours left running.
func (s *Set) Open(ctx context.Context) (err error) {
	if s.notifier, err = notify.Open(s.part.Node, notify.Dir(s.part.Dir), s.part.Clock.Now, s.part.Log); err != nil {
		return err
	}
	for _, kind := range s.runtimes.kinds(false) {
		s.takeFound(s.runtimes.ask(ctx, kind))
	}
	s.machine.SetRuntime(s.runtimes.condition())
	return nil
}

// Prepare makes images ready of which instances will begin here soon.
func (s *Set) Prepare(specs []onpath.FunctionSpec) { s.runtimes.prepare(specs) }

// Deliver sends notifications to the server.
func (s *Set) Deliver(ctx context.Context, stream io.ReadWriter) error {
	return s.notifier.Deliver(ctx, stream)
}

// Close lets go of what open began.
func (s *Set) Close() {
	if s.notifier != nil {
		s.notifier.Close()
	}
	s.runtimes.close()
}

func (s *Set) takeFound(found map[string]onpath.Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, p := range found {
		if in := s.instances[id]; in != nil && in.st.get().Process != nil { // asked again; it is supervised already
			continue
		}
		l := p.Labels()
		if l[LabelNode] == s.part.Node && l[LabelState] == string(s.part.Dir) {
			s.adopted.put(id, p)
		}
	}
}

// Run asks a runtime that did not answer again. Until it does, its instances stay as the
// records say: no agent, no change. Devices that have gone are made again.
func (s *Set) Run(ctx context.Context) {
	s.part.Go(func(ctx context.Context) {
		for {
			select {
			case <-ctx.Done():
				return
			case id := <-s.machine.Gone():
				s.wake(id)
			}
		}
	})
	for s.part.Clock.Sleep(ctx, time.Second) == nil {
		failed := s.runtimes.kinds(true)
		if len(failed) == 0 {
			return
		}
		for _, kind := range failed {
			s.takeFound(s.runtimes.ask(ctx, kind))
		}
		s.machine.SetRuntime(s.runtimes.condition())
		s.sweepAgain(len(failed))
		s.wakeAll()
		s.machine.LookSoon()
	}
}

// sweepAgain clears away what runtimes that did not answer kept from it, once they do.
func (s *Set) sweepAgain(failed int) {
	s.mu.Lock()
	sweep := s.swept && len(s.runtimes.kinds(true)) < failed // else the first one is still to come
	s.mu.Unlock()
	if sweep {
		s.part.Go(s.sweep)
	}
}

// SweepOnce clears away what no plan names, the first time that it is called.
func (s *Set) SweepOnce() {
	s.mu.Lock()
	first := !s.swept
	s.swept = true
	s.mu.Unlock()
	if first {
		s.part.Go(s.sweep)
	}
}

// wake has an instance look after itself again.
func (s *Set) wake(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if in := s.instances[id]; in != nil && !in.st.get().Leaving {
		base.Kick(in.changed)
	}
}

func (s *Set) wakeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, in := range s.instances {
		base.Kick(in.changed)
	}
}

// Expect keeps the instances of a plan that is being taken up from being swept.
func (s *Set) Expect(list []onpath.InstancePlan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expected = map[string]bool{}
	for _, p := range list {
		s.expected[ID(s.part.Node, p)] = true
	}
}

// Want starts the instances that a plan names, and dismisses all others.
func (s *Set) Want(p *onpath.NodePlan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted := map[string]onpath.InstancePlan{}
	for _, in := range p.Instances {
		wanted[ID(s.part.Node, in)] = in
	}
	s.known, s.expected = true, nil
	for id, in := range s.instances {
		if _, ok := wanted[id]; !ok && in.st.leave() {
			in.stop()
		}
	}
	s.rounds.Name(&p.Datapath) // who waits for a vport in vain leaves already; who begins waits for its own
	for id, plan := range wanted {
		in, ok := s.instances[id]
		switch {
		case !ok:
			s.begin(id, plan)
		case in.st.succeed(plan): // named again while it goes: another one begins behind it
		default:
			s.last++
			if in.st.update(plan, s.last) {
				base.Kick(in.changed)
			}
		}
	}
}

// begin takes up an instance. Callers hold mu.
func (s *Set) begin(id string, p onpath.InstancePlan) {
	ctx, stop := context.WithCancel(s.part.Context())
	s.last++
	in := &instance{
		self: self{id, s.gear, &status{part: s.part}}, stop: stop,
		changed: make(chan struct{}, 1), looked: make(chan struct{}),
		kept: s.punts.NewKept(p.Tenant), sweep: s.sweeping[id],
		rec: Record{ID: id, Tenant: p.Tenant, Name: p.Name, Kind: p.Spec.Kind(), Boot: s.boot},
	}
	in.st.fact = Fact{ID: id, Number: s.last, Drains: s.last, Plan: p, State: onpath.InstanceStarting, Since: s.part.Clock.Now()}
	s.instances[id] = in
	s.part.Go(func(context.Context) {
		defer stop()
		if in.live(ctx) {
			s.forget(in)
		}
	})
}

// stoppedReport is the last word about an instance that is gone.
type stoppedReport struct {
	report onpath.InstanceReport
	until  time.Time
}

// stoppedFor is how long an instance that is gone stays in reports, so that one
// lost report does not matter.
const stoppedFor = 5 * onpath.ReportEvery

// forget takes a stopped instance out, reports it a last time, and begins its
// successor if the plan has named it again meanwhile.
func (s *Set) forget(in *instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in.kept.Empty()
	s.punts.Forget(in.rec.Vports)
	delete(s.instances, in.id)
	in.st.mu.Lock()
	f, successor := in.st.fact, in.st.successor
	in.st.mu.Unlock()
	s.meters.Forget(f.Number)
	if successor != nil {
		s.begin(in.id, *successor)
		return
	}
	now := s.part.Clock.Now()
	if f.Lease() { // no server asked for it
		return
	}
	s.stopped = append(s.stopped, stoppedReport{until: now.Add(stoppedFor), report: onpath.InstanceReport{
		Name: f.Plan.Name, Tenant: f.Plan.Tenant, State: onpath.InstanceStopped, Restarts: f.Restarts, Since: now,
	}})
	base.Kick(s.part.ReportDue)
}

// Gone are the last reports of instances that are gone.
func (s *Set) Gone() (list []onpath.InstanceReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.part.Clock.Now()
	s.stopped = slices.DeleteFunc(s.stopped, func(s stoppedReport) bool { return !now.Before(s.until) })
	for _, x := range s.stopped {
		list = append(list, x.report)
	}
	return list
}

// Facts are how all instances are.
func (s *Set) Facts() []Fact {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Fact, 0, len(s.instances))
	for _, in := range s.instances {
		list = append(list, in.st.get())
	}
	return list
}

// Readings are what is to be metered.
func (s *Set) Readings() (r meter.Readings) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known {
		r.There = map[string]bool{}
	}
	for _, in := range s.instances {
		f := in.st.get()
		if f.Lease() {
			continue // nobody is billed for it, and all publishers' instances have one UID
		}
		if r.There != nil {
			r.There[f.Plan.UID] = true
		}
		r.List = append(r.List, f.reading())
	}
	return r
}

// PIDs are the first processes of all instances.
func (s *Set) PIDs() (list []int) {
	for _, f := range s.Facts() {
		if f.Process != nil && f.Process.Pid() != 0 {
			list = append(list, f.Process.Pid())
		}
	}
	return list
}

// AwaitLooked waits until every instance's devices have been looked at once, so
// that the first configuration takes away no vport that lives.
func (s *Set) AwaitLooked(ctx context.Context) {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.instances))
	s.mu.Unlock()
	for _, in := range all {
		select {
		case <-in.looked:
		case <-ctx.Done():
			return
		}
	}
}

// find looks an instance up by "tenant/name". One that goes is found too, if no
// successor has its name.
func (s *Set) find(name string) (*instance, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var going *instance
	for _, in := range s.instances {
		f := in.st.get()
		switch {
		case f.Name() != name:
		case !f.Leaving:
			return in, nil
		default:
			going = in
		}
	}
	if going == nil {
		return nil, onpath.Errorf(onpath.CodeNotFound, "there is no instance %s on node %s", name, s.part.Node)
	}
	return going, nil
}

// Fact is how one instance is.
func (s *Set) Fact(name string) (Fact, error) {
	in, err := s.find(name)
	if err != nil {
		return Fact{}, err
	}
	return in.st.get(), nil
}

// Exec runs a command in an instance.
func (s *Set) Exec(ctx context.Context, e onpath.ExecRequest, stream io.ReadWriter) error {
	in, err := s.find(e.Instance)
	if err != nil {
		return err
	}
	rt, err := in.runtime()
	if err != nil {
		return err
	}
	return session.ServeExec(ctx, stream, func(ctx context.Context, x session.ExecIO) (int, error) {
		spec := onpath.ExecSpec{Command: e.Command, Stdout: x.Stdout, Stderr: x.Stderr, TTY: e.TTY, Resize: x.Resize}
		if e.Stdin {
			spec.Stdin = x.Stdin
		}
		return rt.Exec(ctx, in.id, spec)
	})
}

// Logs copies what an instance has printed.
func (s *Set) Logs(ctx context.Context, l onpath.LogsRequest, w io.Writer) error {
	in, err := s.find(l.Instance)
	if err != nil {
		return err
	}
	v := l.View(time.Now())
	if l.Previous {
		return logs{in.self}.previousLog(v, w)
	}
	rt, err := in.runtime()
	if err != nil {
		return err
	}
	return rt.Logs(ctx, in.id, v, l.Follow, w)
}
