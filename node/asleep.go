package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/packet"
	"github.com/onpath/onpath/node/base"
	"github.com/onpath/onpath/node/wiring"
)

// A sleeping instance has its devices and is made up to its program's beginning. The data path
// hands the agent what is for it, which is kept here; the first packet starts the program, and
// once that is ready the packets are let in, in the order in which they came.

var (
	asleep    = cause{onpath.ReasonAsleep, "sleeps until its first packet"}
	lyingDown = cause{"LyingDown", "no packet comes; its program ends, and the next one is made"}
	waking    = cause{"Waking", "its first packet has come; it starts"}
)

// mostKept bounds what is kept for all sleeping instances of a node, bytes.
const mostKept = 64 << 20

// keptRoom is what is kept for all instances. A tenant may have as much of it as is left free,
// so that there is always some for another one.
type keptRoom struct {
	mu  sync.Mutex
	all int
	of  map[string]int // by tenant
}

// take adds bytes, or takes them away, unless a tenant would have too much.
func (r *keptRoom) take(tenant string, n int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n > 0 && r.of[tenant]+n > mostKept-r.all-n {
		return false
	}
	r.all += n
	if r.of[tenant] += n; r.of[tenant] == 0 {
		delete(r.of, tenant)
	}
	return true
}

// kept is what came for an instance since it fell asleep.
type kept struct {
	come   chan struct{} // something is here
	room   *keptRoom
	tenant string
	lost   func(onpath.VportID) // is told of each packet that the instance will not get

	mu     sync.Mutex
	limit  int // bytes; 0: nothing is kept
	size   int
	frames []keptFrame
	// inlets are open from when the instance is ready: what still comes goes in at once.
	inlets map[onpath.VportID]onpath.Inlet
}

type keptFrame struct {
	vport onpath.VportID
	frame []byte
	about onpath.Tuple
	at    time.Time
}

// first is the packet that came first, in words, and when it came.
func (k *kept) first() (words string, at time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.frames) == 0 {
		return "gone", time.Now()
	}
	t := k.frames[0].about
	from, to := netip.AddrPortFrom(t.Src, t.SrcPort), netip.AddrPortFrom(t.Dst, t.DstPort)
	return fmt.Sprintf("protocol %d, %s to %s", t.Protocol, from, to), k.frames[0].at
}

// wake is how an instance woke: when its first packet came, its program began, it was ready.
type wake struct{ packet, program, ready time.Time }

// tell says how long what came first had to wait for each.
func (w wake) tell(in *instance) {
	if !w.packet.IsZero() {
		in.a.part.Log.Info("instance woke", "instance", in.id, "began", w.program.Sub(w.packet), "ready", w.ready.Sub(w.program),
			"let in", time.Since(w.ready))
	}
}

// begin keeps what comes from now on, up to a limit.
func (k *kept) begin(limit onpath.Size) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.shut()
	k.limit = int(limit)
	if len(k.frames) == 0 {
		select {
		case <-k.come:
		default:
		}
	}
}

// shut closes the inlets. Callers hold mu.
func (k *kept) shut() {
	for _, in := range k.inlets {
		_ = in.Close()
	}
	k.inlets = nil
}

// add keeps a packet, or lets it in if the instance is ready.
func (k *kept) add(p onpath.Punted) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if in := k.inlets[p.Vport]; in != nil {
		if in.Deliver(p.Frame) != nil { // its device may go
			k.lost(p.Vport)
		}
		return
	}
	n := len(p.Frame) + onpath.HeldOverhead
	if k.size+n > k.limit || !k.room.take(k.tenant, n) {
		k.lost(p.Vport)
		return
	}
	k.size += n
	k.frames = append(k.frames, keptFrame{p.Vport, append([]byte(nil), p.Frame...), packet.Parse(p.Packet).Tuple, time.Now()})
	base.Kick(k.come)
}

// letIn delivers all that is kept, and from then on what still comes; then nothing more comes.
func (k *kept) letIn(open func(onpath.VportID) (onpath.Inlet, error), vports []onpath.VportID) error {
	inlets, err := k.deliver(open, vports)
	for _, in := range inlets { // has add called
		err = errors.Join(err, in.Open())
	}
	return err
}

// deliver is letIn but for its end.
func (k *kept) deliver(open func(onpath.VportID) (onpath.Inlet, error), vports []onpath.VportID) (map[onpath.VportID]onpath.Inlet, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.limit == 0 {
		return nil, nil
	}
	k.inlets = map[onpath.VportID]onpath.Inlet{}
	var first error
	for _, v := range vports {
		in, err := open(v)
		if err == nil {
			k.inlets[v] = in
		} else if first == nil {
			first = err
		}
	}
	for _, f := range k.frames {
		in := k.inlets[f.vport]
		if in == nil {
			k.lost(f.vport)
		} else if err := in.Deliver(f.frame); err != nil {
			k.lost(f.vport)
			if first == nil {
				first = err
			}
		}
	}
	k.drop()
	return maps.Clone(k.inlets), first
}

// drop forgets what is kept, and keeps no more. Callers hold mu.
func (k *kept) drop() {
	k.room.take(k.tenant, -k.size)
	k.frames, k.size, k.limit = nil, 0, 0
}

// empty drops all and keeps no more.
func (k *kept) empty() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.shut()
	for _, f := range k.frames {
		k.lost(f.vport)
	}
	k.drop()
}

// sleep has the vports lead to the agent, and waits for the first packet. It reports false if
// something else is to be started, or nothing.
func (in *instance) sleep(ctx context.Context, plan *onpath.InstancePlan) bool {
	in.lieDown(ctx, plan.OnDemand.Hold)
	in.set(onpath.InstanceReady, asleep)
	for {
		select {
		case <-ctx.Done():
			return false
		case <-in.kept.come:
			in.set(onpath.InstanceReady, waking)
			words, at := in.kept.first()
			in.wake = wake{packet: at}
			in.a.part.TellInstance(*plan, false, "Woken", "the first packet came: %s", words)
			return true
		case <-in.changed:
			now := in.current()
			if now.OnDemand == nil || now.Draining || base.Hash(in.runSpec(now)) != base.Hash(in.runSpec(*plan)) {
				return false
			}
			in.wireAgain(ctx, nil, func() {})
			in.lieDown(ctx, now.OnDemand.Hold)
		}
	}
}

// lieDown has what comes for the instance kept; it returns when that is in force.
func (in *instance) lieDown(ctx context.Context, hold onpath.Size) {
	in.kept.begin(hold)
	in.a.punts.keep(wiring.Of(in.id, in.current()).Vports(), &in.kept)
	in.a.mu.Lock()
	in.open, in.asleep = true, true
	in.a.mu.Unlock()
	if in.rec.Ready || !in.rec.Asleep {
		in.rec.Ready, in.rec.Asleep = false, true
		in.persist()
	}
	in.syncApply(ctx)
}

// fallAsleep ends a program that nobody needs. No packet is lost by it: what comes meanwhile
// is kept, and starts the program again.
func (w *supervision) fallAsleep(ctx context.Context, forget func()) {
	in := w.in
	in.lieDown(ctx, w.plan.OnDemand.Hold)
	forget()              // from now on the end of the program closes nothing
	in.a.apply.Kick(true) // and what the kernel has closed until now opens again
	in.set(onpath.InstanceReady, lyingDown)
	in.keepLog(ctx)
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), in.a.opt.StopGrace+startTimeout)
	defer cancel()
	if err := w.p.Stop(stop, in.a.opt.StopGrace); err != nil {
		in.a.part.Log.Error("cannot stop process", "instance", in.id, "err", err)
	}
	in.a.part.TellInstance(w.plan, false, onpath.ReasonAsleep, "no packet came for %s; it sleeps", w.plan.OnDemand.StopAfter)
}

// letIn lets in what was kept. In the moment when the vports lead to the instance again
// little is on its way here: it is let in as it comes.
func (in *instance) letIn() {
	reader, ok := in.a.opt.Datapath.(onpath.PuntReader)
	if !ok {
		return
	}
	if err := in.kept.letIn(reader.Inlet, wiring.Of(in.id, in.current()).Vports()); err != nil {
		in.a.part.Log.Warn("some of what came while an instance slept is lost", "instance", in.id, "err", err)
	}
}

// listen begins to wait for the time without packets after which the instance sleeps: from
// now on, for until it was ready its program could not answer any.
func (w *supervision) listen(ctx context.Context) {
	w.stopQuiet()
	w.quiet, w.stopQuiet = w.in.watchQuiet(ctx)
}

// watchQuiet rings once no packet has been handed to the instance for as long as its plan
// says, if it could be started again, with the count of packets; nil: it never sleeps.
func (in *instance) watchQuiet(ctx context.Context) (<-chan uint64, func()) {
	plan := in.current()
	if _, ok := in.a.opt.Datapath.(onpath.PuntReader); !ok || plan.OnDemand == nil || plan.Spec.Inline() || isLease(&plan) {
		return nil, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	rings, done := make(chan uint64), make(chan struct{})
	after := time.Duration(plan.OnDemand.StopAfter)
	go func() {
		defer close(done)
		last, since := uint64(0), in.a.part.Clock.Now()
		for in.a.part.Clock.Sleep(ctx, after/4) == nil {
			now, ok := in.handedOver(ctx, &plan)
			if at := in.a.part.Clock.Now(); !ok || now != last {
				last, since = now, at
			} else if at.Sub(since) >= after && in.startable(ctx) {
				select {
				case rings <- last:
				case <-ctx.Done():
				}
			}
		}
	}()
	return rings, func() {
		cancel()
		<-done
	}
}

// startable reports whether the server gives the secrets that the next start needs.
func (in *instance) startable(ctx context.Context) bool {
	return in.readSecrets(ctx, &creation{spec: in.runSpec(in.current())}) == nil
}

// handedOver counts the packets that the data path handed to an instance.
func (in *instance) handedOver(ctx context.Context, plan *onpath.InstancePlan) (packets uint64, ok bool) {
	c, err := in.a.opt.Datapath.Counters(ctx)
	if err != nil {
		return 0, false
	}
	for _, v := range wiring.Of(in.id, *plan).Vports() {
		packets += c.Vports[v].Out.Packets
	}
	return packets, true
}
