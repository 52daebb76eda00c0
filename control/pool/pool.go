// Package pool is the scheduler of PacketCloud §3.4 to §3.6: it admits, changes, moves
// and ends reservations, and charges for them. What nodes have promised is in a
// plan/calendar, what is paid in a control/ledger; each decision is one transaction of
// the store. The planner is told of the reservations that run or soon will.
//
// Begin to read in apply.go, with a demand (demand.go) and its terms: what follows from it alone.
// A queue (queue.go) owns the state (state.go), and has one function at a time look at it or
// decide. What it decides by are promises (promises.go, places.go), rows (rows.go, agenda.go) and
// accounting (accounting.go, pay.go, use.go); an admission (admission.go, quota.go, change.go,
// move.go, outage.go, due.go) decides by them alone. A decision (decision.go) is held in the
// calendar until it is written. What others look at meanwhile is on the board (board.go), what is
// over long since in the Past.
package pool

import (
	"context"
	"log/slog"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/archive"
	"github.com/onpath/onpath/plan"
)

// Options of a Pool.
type Options struct {
	Store onpath.Store
	// Confirm asks a node whether it can keep what it will have promised.
	Confirm func(ctx context.Context, node string, r onpath.PromiseRequest) error
	// Clock is time.Now where nil.
	Clock onpath.Clock
	// Boot is the time since the machine started, suspended or not, by which leaps of the clock
	// are found; nil: the clock is believed.
	Boot func() time.Duration
	Log  *slog.Logger
	// Changed is called when Running says something new; it must not call back.
	Changed func()
	// Tell keeps an event; it must not call back.
	Tell func(about onpath.Key, reason, message string, warning bool)
	// Tenant says what bounds a tenant's reservations; nil: nothing. CodeNotFound: there is none.
	Tenant func(ctx context.Context, name string) (Bounds, error)
	// Archive keeps the days that are closed; nil: they stay in the store.
	Archive *archive.Folder
	// Use says what a reservation is used for, so that moves disrupt least; nil: unknown.
	Use func(reservation onpath.Key) Use
}

// Use is the deployment that a reservation gives its instances.
type Use struct {
	Stateless bool           // its function keeps no state
	Drain     time.Duration  // how long its flows may take to end
	Flows     uint64         // of its instances now
	Nodes     map[string]int // its instances by node, those that drain included
}

// Soon is how long before its beginning a reservation is told to the planner: images are
// fetched meanwhile.
const Soon = time.Minute

// Pool is the scheduler. Make one with New, Load it, tell it of nodes by Observe, and Run
// it.
type Pool struct {
	o     Options
	log   *slog.Logger
	queue *queue
	board *board
	watch *watch
	wake  chan struct{}
	past  *Past

	read      *postingReader
	priceList *priceReader
}

// prices is a price list and its version; nil: all is free.
type prices struct {
	spec    *onpath.PriceListSpec
	version int64
}

// Node is what the pool is told of a node.
type Node struct {
	Name, Cloudlet string
	Capacity       onpath.Resources // declared, else measured
	Declared       onpath.Resources
	// Taken is what instances outside of reservations hold.
	Taken  onpath.Resources
	Usable bool
	// Drain: the operator wants it empty.
	Drain bool
	// Gone: not heard of for so long that its instances may be replaced elsewhere; Since is
	// when it was last heard of.
	Gone  bool
	Since time.Time
	// Alive and Dead are the word of nodes that are heard of: the machine answers them, or
	// does not. Neither: nobody can tell.
	Alive, Dead bool
	// NoReport: it was never heard of since the server began.
	NoReport bool
	// removed: the operator deleted the Node.
	removed bool
}

// Cloudlet is what the pool is told of a cloudlet.
type Cloudlet struct {
	Share    int // the operator's, in percent
	Location onpath.Location
	Prefixes []onpath.Prefix
	// RTT are measured round trips to other cloudlets: of any two nodes, the least.
	RTT map[string]time.Duration
}

// entry is a reservation as it is stored.
type entry struct {
	key      onpath.Key
	obj      *onpath.Reservation // not changed in place
	payments []payment
	due      time.Time
	index    int // in the agenda; -1: not there
}

// payment is what was paid for a part of a slot, and not given back since.
type payment struct {
	At       time.Time            `json:"at"`
	Begin    time.Time            `json:"begin"`
	Prices   int64                `json:"prices"`
	Segments []onpath.PaidSegment `json:"segments"`
}

// New makes a pool that knows nothing yet.
func New(o Options) *Pool {
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Changed == nil {
		o.Changed = func() {}
	}
	if o.Tell == nil {
		o.Tell = func(onpath.Key, string, string, bool) {}
	}
	p := &Pool{o: o, log: o.Log, board: &board{}, wake: make(chan struct{}, 1),
		read: &postingReader{store: o.Store}, priceList: &priceReader{store: o.Store}}
	p.watch = &watch{clock: o.Clock, boot: o.Boot}
	_ = p.watch.agree()
	p.queue = &queue{store: o.Store, read: p.read, priceList: p.priceList, board: p.board, changed: o.Changed, wake: p.wake}
	p.queue.state = state{promises: newPromises(), accounting: accounting{log: o.Log, owners: owners{removed: map[string]string{}}},
		use: o.Use, clock: func() time.Time { return o.Clock().UTC().Round(0) }, broken: true}
	p.queue.clear()
	p.past = &Past{queue: p.queue, watch: p.watch, log: o.Log, tell: o.Tell, read: p.read, folder: o.Archive}
	p.read.past = p.past
	return p
}

// Past is the days that are closed.
func (p *Pool) Past() *Past { return p.past }

// Running are the reservations that run or soon will, by key, for the planner. The map
// and what it holds are not changed any more.
func (p *Pool) Running() map[onpath.Key]*plan.Reserved { return p.board.runningNow() }

// Promised is the most that each node has promised from now on, for whoever places
// instances outside of reservations.
func (p *Pool) Promised() map[string]onpath.Resources { return p.board.promisedNow() }

// Exists reports whether a reservation is stored.
func (p *Pool) Exists(k onpath.Key) bool { return p.queue.exists(k) }

// Observe tells of all nodes and cloudlets as they are now. It does not wait for
// decisions that are being written.
func (p *Pool) Observe(nodes []Node, cloudlets map[string]Cloudlet) {
	p.board.observe(nodes, cloudlets)
	p.queue.poke()
}
