package peers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/wholefile"
	"github.com/onpath/onpath/node/base"
)

// detector is a failure detector: it knows which instances of other nodes take packets, from their nodes'
// data paths themselves. So this node acts on the loss of an instance, a node or
// a link by itself, whether or not a server or the other node's agent lives.
type detector struct {
	part    *base.Part
	applier *base.Rounds

	// renewed: there is another plan.
	renewed chan struct{}

	mu     sync.Mutex
	plan   *onpath.NodePlan // nil: there is none yet
	peers  map[netip.Addr]*liveness
	names  map[netip.Addr]string
	number uint64
	dirty  chan struct{} // something changed that the next agent must know
	rounds uint64
	late   uint64
	losses uint64
}

func newDetector(p *base.Part, r *base.Rounds) *detector {
	return &detector{part: p, applier: r, peers: map[netip.Addr]*liveness{}, names: map[netip.Addr]string{},
		dirty: make(chan struct{}, 1), renewed: make(chan struct{}, 1)}
}

// question is what is asked of one peer in every round.
type question struct {
	peer   onpath.Peer
	vports []onpath.VportID
}

// questions of a plan: about those vports of other nodes among which there is a
// choice.
func questions(p *onpath.NodePlan) []question {
	if p == nil {
		return nil
	}
	chosen := p.Datapath.Choice()
	of := map[string][]onpath.VportID{}
	for _, v := range p.Datapath.Vports {
		if v.Kind == onpath.VportRemote && chosen[v.ID] {
			of[v.Peer] = append(of[v.Peer], v.ID)
		}
	}
	var out []question
	for _, peer := range p.Datapath.Peers {
		vports := of[peer.Node]
		for part := range slices.Chunk(vports, onpath.MaxAsked) {
			out = append(out, question{peer, part})
		}
		if len(vports) == 0 {
			out = append(out, question{peer: peer})
		}
	}
	return out
}

// run asks the data paths of all peers, again and again, until ctx ends.
// It has a thread of its own, ahead of ordinary ones: who asks late, learns late.
func (d *detector) run(ctx context.Context) {
	prober, ok := d.part.Datapath.(onpath.PeerProber)
	if !ok {
		return
	}
	runtime.LockOSThread() // and never let go: the thread ends with its priority
	if err := hurry(); err != nil {
		d.part.Log.Warn("peers are probed at ordinary priority: on a busy machine their loss is noticed later", "err", err)
	}
	var b base.Backoff
	for ctx.Err() == nil {
		err := d.converse(ctx, prober)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			d.part.Log.Warn("peers cannot be probed", "err", err)
		}
		if d.part.Clock.Sleep(ctx, b.After(0)) != nil {
			return
		}
	}
}

// hurry puts this thread ahead of ordinary ones.
func hurry() error {
	const roundRobin = 2  // SCHED_RR
	const resetOnFork = 1 // SCHED_FLAG_RESET_ON_FORK: no child inherits it
	err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: roundRobin, Flags: resetOnFork, Priority: 10}, 0)
	if err == nil {
		return nil
	}
	if nice := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -15); nice != nil {
		return errors.Join(err, nice)
	}
	return nil
}

// converse asks and hears until the underlay address changes or ctx ends.
func (d *detector) converse(ctx context.Context, prober onpath.PeerProber) error {
	var c onpath.PeerConversation
	defer func() {
		if c != nil {
			c.Close()
		}
	}()
	var plan *onpath.NodePlan
	var ask []question
	last := time.Now()
	for ctx.Err() == nil {
		now := d.current()
		if now != plan {
			if d := &now.Datapath; plan != nil && (plan.Datapath.Underlay.Address != d.Underlay.Address || plan.Datapath.Inside != d.Inside) {
				return nil
			}
			plan, ask = now, questions(now)
			d.keep(ask)
		}
		if len(ask) == 0 || !plan.Datapath.Underlay.Address.IsValid() {
			select {
			case <-ctx.Done():
				return nil
			case <-d.renewed:
			}
			last = time.Now()
			continue
		}
		if c == nil {
			var err error
			if c, err = prober.ProbePeers(plan.Datapath.Underlay.Address, plan.Datapath.Inside); err != nil {
				return err
			}
		}
		if err := d.ask(c, ask); err != nil {
			return err
		}
		begin := last
		if err := d.hearUntil(c, begin.Add(askEvery)); err != nil {
			return err
		}
		last = time.Now()
		if d := begin.Add(askEvery); last.Sub(d) < askEvery {
			last = d // keep the beat
		}
		d.tellChanges(d.round(time.Now(), time.Since(begin)))
	}
	return nil
}

// hearUntil takes answers as they come, and at least what is there already.
func (d *detector) hearUntil(c onpath.PeerConversation, until time.Time) error {
	for {
		left := time.Until(until)
		answers, err := c.Replies(left)
		if err != nil {
			return err
		}
		if d.hear(answers) {
			d.applier.Kick(false)
			base.Kick(d.dirty)
		}
		if left <= 0 {
			return nil
		}
	}
}

// keep takes up the peers of a plan and forgets others.
func (d *detector) keep(ask []question) {
	d.mu.Lock()
	defer d.mu.Unlock()
	names, asked := map[netip.Addr]string{}, map[netip.Addr]map[onpath.VportID]bool{}
	for _, q := range ask {
		a := q.peer.Address
		if names[a] = q.peer.Node; asked[a] == nil {
			asked[a] = map[onpath.VportID]bool{}
		}
		for _, v := range q.vports {
			asked[a][v] = true
		}
		if d.peers[a] == nil {
			d.peers[a] = &liveness{}
		}
	}
	d.names = names
	for a, j := range d.peers {
		if names[a] == "" {
			delete(d.peers, a)
		}
		maps.DeleteFunc(j.states, func(v onpath.VportID, _ onpath.VportState) bool { return !asked[a][v] })
		maps.DeleteFunc(j.since, func(v onpath.VportID, _ uint64) bool { return !asked[a][v] })
	}
}

// current is the plan that is followed.
func (d *detector) current() *onpath.NodePlan {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.plan
}

// follow takes up a plan. It takes the plan's word for those vports of other nodes that
// the plan before had closed: their nodes opened them before they said so. Until they are
// asked again, an answer from before would have packets dropped that the gateways
// send from now on.
func (d *detector) follow(now *onpath.NodePlan) {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.plan
	d.plan = now
	base.Kick(d.renewed)
	if before == nil || now == nil {
		return // an agent that starts knows what the one before was told
	}
	closed := map[onpath.VportID]bool{}
	for _, v := range before.Datapath.Vports {
		closed[v.ID] = v.State == onpath.VportClosed
	}
	addr := map[string]netip.Addr{}
	for _, p := range now.Datapath.Peers {
		addr[p.Node] = p.Address
	}
	for _, v := range now.Datapath.Vports {
		if v.Kind != onpath.VportRemote || v.State == onpath.VportClosed || !closed[v.ID] {
			continue
		}
		if j := d.peers[addr[v.Peer]]; j != nil {
			j.opened(v.ID)
			base.Kick(d.dirty)
		}
	}
}

// ask asks each peer all questions about its vports.
func (d *detector) ask(c onpath.PeerConversation, list []question) error {
	d.mu.Lock()
	d.number++
	n := d.number
	for _, j := range d.peers {
		j.asked = n
	}
	d.mu.Unlock()
	for _, q := range list {
		if err := c.Ask(onpath.PeerQuestion{Peer: q.peer, Number: n, Vports: q.vports}); err != nil {
			return err
		}
	}
	return nil
}

// hear reports whether a state is new.
func (d *detector) hear(answers []onpath.PeerReply) (changed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range answers {
		if j := d.peers[a.Peer]; j != nil && j.hear(a) {
			changed = true
		}
	}
	return changed
}

// peerChange is a peer lost, or back.
type peerChange struct {
	name string
	lost bool
}

func (d *detector) round(now time.Time, took time.Duration) (changes []peerChange) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rounds++
	if took > askEvery+lateBy {
		d.late++
	}
	for addr, j := range d.peers {
		if !j.round(now, took) {
			continue
		}
		if j.lost {
			d.losses++
		}
		changes = append(changes, peerChange{d.names[addr], j.lost})
	}
	return changes
}

// tellChanges acts on it: the data path first, then words.
func (d *detector) tellChanges(changes []peerChange) {
	if len(changes) == 0 {
		return
	}
	d.applier.Kick(false)
	base.Kick(d.dirty)
	base.Kick(d.part.ReportDue)
	for _, c := range changes {
		e := onpath.NodeEvent{About: onpath.Key{Kind: onpath.KindNode, Name: c.name}.String()}
		if c.lost {
			e.Reason, e.Warning = "PeerLost", true
			e.Message = fmt.Sprintf("its data path does not answer node %s: flows to its instances go by lost and none", d.part.Node)
		} else {
			e.Reason = "PeerBack"
			e.Message = fmt.Sprintf("its data path answers node %s again: its instances are used", d.part.Node)
		}
		d.part.Go(func(context.Context) { d.part.Tell(e) }) // the log may block, and the next round must not be late
	}
}

// peerStates is what is known of peers, by name.
func (d *detector) peerStates(peers []onpath.Peer) map[string]onpath.PeerState {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[string]onpath.PeerState{}
	for _, p := range peers {
		j := d.peers[p.Address]
		if j == nil {
			continue
		}
		s := onpath.PeerState{Lost: j.lost, Closed: map[onpath.VportID]bool{}}
		for v := range j.states {
			s.Closed[v] = !j.takes(v)
		}
		out[p.Node] = s
	}
	return out
}

// indirect are the names of peers to which VXLAN in clear text is no way, in order.
func (d *detector) indirect() (names []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.plan == nil {
		return nil
	}
	for _, p := range d.plan.Datapath.Peers {
		if j := d.peers[p.Address]; j != nil && !p.Inside && j.indirect() {
			names = append(names, p.Node)
		}
	}
	return names
}

// verdict on a peer: known is false for one that has never answered.
func (d *detector) verdict(peer netip.Addr) (lost, known bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	j := d.peers[peer]
	if j == nil || !j.ever {
		return false, false
	}
	return j.lost, true
}

// savedDetector is StateDir/lost.json: what must not be used by the next agent
// until the peer has said that it may.
type savedDetector struct {
	Lost   []netip.Addr                    `json:"lost,omitempty"`
	Closed map[netip.Addr][]onpath.VportID `json:"closed,omitempty"`
}

// LostFile says which peers are lost.
func LostFile(d base.Dir) string { return d.File("lost.json") }

// save writes it down after each change, until ctx ends.
func (d *detector) save(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.dirty:
		}
		data, err := json.Marshal(d.saved())
		if err == nil {
			err = wholefile.WriteLightly(LostFile(d.part.Dir), data, 0o600)
		}
		if err != nil {
			d.part.Log.Warn("cannot save which peers are lost", "err", err)
		}
	}
}

func (d *detector) saved() (s savedDetector) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s.Closed = map[netip.Addr][]onpath.VportID{}
	for a, j := range d.peers {
		if j.lost {
			s.Lost = append(s.Lost, a)
		}
		for v, st := range j.states {
			if st == onpath.VportClosed {
				s.Closed[a] = append(s.Closed[a], v)
			}
		}
	}
	return s
}

// restore takes up what an earlier agent knew.
func (d *detector) restore() {
	data, err := os.ReadFile(LostFile(d.part.Dir))
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var s savedDetector
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		d.part.Log.Warn("cannot read which peers were lost; they count as reachable until probes say otherwise", "err", err)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	livenessOf := func(p netip.Addr) *liveness {
		if d.peers[p] == nil {
			d.peers[p] = &liveness{}
		}
		return d.peers[p]
	}
	for _, p := range s.Lost {
		j := livenessOf(p)
		j.ever, j.lost, j.need = true, true, backAfter
	}
	for p, list := range s.Closed {
		j := livenessOf(p)
		j.states = map[onpath.VportID]onpath.VportState{}
		for _, v := range list {
			j.states[v] = onpath.VportClosed
		}
	}
}
