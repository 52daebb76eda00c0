package pool

import (
	"maps"
	"sync"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan"
)

// board is what others look at, and write, while decisions are written.
type board struct {
	mu        sync.Mutex
	running   map[onpath.Key]*plan.Reserved // replaced, not changed
	shown     map[onpath.Key]*plan.Reserved // what running becomes; nil: it stays
	promised  map[string]onpath.Resources
	freed     bool   // less is promised somewhere than the planner was told
	nodes     []Node // seen last, and not taken up yet
	cloudlets map[string]Cloudlet
}

// clear leaves what is read from the store empty.
func (b *board) clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running, b.shown, b.promised = map[onpath.Key]*plan.Reserved{}, nil, map[string]onpath.Resources{}
}

func (b *board) runningNow() map[onpath.Key]*plan.Reserved {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.running
}

func (b *board) promisedNow() map[string]onpath.Resources {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.promised)
}

// notePromised notes the most that a node has promised from now on.
func (b *board) notePromised(node string, r onpath.Resources) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.freed = b.freed || !r.Fits(b.promised[node]) // others may have found no room
	if delete(b.promised, node); r != (onpath.Resources{}) {
		b.promised[node] = r
	}
}

// observe keeps what nodes and cloudlets are until it is taken up.
func (b *board) observe(nodes []Node, cloudlets map[string]Cloudlet) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.nodes, b.cloudlets = nodes, cloudlets
}

// takeObserved is what was observed since it was asked for last; nil: nothing.
func (b *board) takeObserved() (nodes []Node, cloudlets map[string]Cloudlet) {
	b.mu.Lock()
	defer b.mu.Unlock()
	nodes, cloudlets = b.nodes, b.cloudlets
	b.nodes, b.cloudlets = nil, nil
	return nodes, cloudlets
}

// show has the planner see a reservation, or not any more, once it is published.
func (b *board) show(k onpath.Key, r *onpath.Reservation, soon bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	running := b.shown
	if running == nil {
		running = b.running
	}
	old := running[k]
	if soon == (old != nil) && (!soon || old.Reservation == r) {
		return
	}
	if b.shown == nil {
		b.shown = maps.Clone(running)
	}
	delete(b.shown, k)
	if soon {
		b.shown[k] = &plan.Reserved{Reservation: r}
	}
}

// publish has the planner see what was to be shown, and reports whether that is news.
func (b *board) publish() (news bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	news = b.shown != nil || b.freed
	if b.freed = false; b.shown != nil {
		b.running, b.shown = b.shown, nil
	}
	return news
}
