// Package pool is the scheduler of PacketCloud §3.4 to §3.6: it admits, changes, moves
// and ends reservations, and charges for them. What nodes have promised is in a
// plan/calendar, what is paid in a control/ledger; each decision is one transaction of
// the store. The planner is told of the reservations that run or soon will.
package pool

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/ledger"
	"github.com/onpath/onpath/plan"
	"github.com/onpath/onpath/plan/calendar"
	"github.com/onpath/onpath/plan/near"
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
	o   Options
	log *slog.Logger

	read      postingReader
	priceList priceReader

	mu        sync.Mutex
	cal       *calendar.Calendar
	tenants   *calendar.Calendar // what each tenant has promised, a "node" for each cloudlet
	nodes     map[string]Node
	cloudlets map[string]Cloudlet
	near      near.Map            // of cloudlets
	orders    map[string][]string // of cloudlets by distance, from one of them
	entries   map[onpath.Key]*entry
	agenda    agenda
	leaving   map[onpath.Key]bool // reservations with instances that move
	displaced displaced
	relief    relief
	lost      map[onpath.Key]bool     // reservations with instances of which nothing is known
	observed  bool                    // nodes are known
	entering  map[string]bool         // references of money that is being entered
	refused   map[string]time.Time    // when nodes did not confirm
	accounts  map[string]*ledger.Book // by owners.account; without postings that are not written
	owners    owners
	watch     watch
	bumped    map[string]int64  // versions of the nodes' records
	billed    map[string]billed // how far instances' meters are paid for, by UID
	prices    prices
	lists     map[int64]*onpath.PriceListSpec // price lists by version
	kept      map[int64]bool                  // versions of those that are in the ledger
	broken    bool                            // what was written last is not known: everything is read again
	loads     int                             // how often everything was read: decisions of before are void
	wake      chan struct{}

	// queue are the groups that wait; while writing, the first of them is being written.
	queue   []*group
	writing bool
	pending map[onpath.Key]*group     // by the reservations that they change
	spent   map[string]onpath.Account // accounts as they will be once the groups are written
	settled []settling
	shown   map[onpath.Key]*plan.Reserved // what view.running becomes; nil: it stays

	// view is what others look at while decisions are written.
	view struct {
		sync.Mutex
		running   map[onpath.Key]*plan.Reserved // replaced, not changed
		promised  map[string]onpath.Resources
		freed     bool   // less is promised somewhere than the planner was told
		nodes     []Node // seen last, and not taken up yet
		cloudlets map[string]Cloudlet
	}
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

// copyOf is a copy whose status may be changed; the rest is not changed in place.
func copyOf(r *onpath.Reservation) *onpath.Reservation {
	c := *r
	st := &c.Status
	st.Steps, st.Places = slices.Clone(st.Steps), slices.Clone(st.Places)
	st.Slots, st.Notes = slices.Clone(st.Slots), slices.Clone(st.Notes)
	return &c
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
	p := &Pool{o: o, log: o.Log, read: postingReader{o.Store}, priceList: priceReader{store: o.Store},
		refused: map[string]time.Time{}, displaced: displaced{}, relief: newRelief(),
		owners: owners{removed: map[string]string{}}, nodes: map[string]Node{},
		cloudlets: map[string]Cloudlet{}, wake: make(chan struct{}, 1), broken: true}
	p.watch.boot = o.Boot
	_ = p.watch.agree(o.Clock())
	p.forget()
	return p
}

// forget leaves what is read from the store empty.
func (p *Pool) forget() {
	p.cal, p.tenants = calendar.New(), calendar.New()
	p.entries, p.agenda, p.leaving = map[onpath.Key]*entry{}, nil, map[onpath.Key]bool{}
	p.lost, p.entering, p.owners.former = map[onpath.Key]bool{}, map[string]bool{}, map[string][]time.Time{}
	p.accounts, p.bumped = map[string]*ledger.Book{}, map[string]int64{}
	p.lists, p.kept = map[int64]*onpath.PriceListSpec{noList: {}}, map[int64]bool{}
	p.pending, p.spent, p.shown = map[onpath.Key]*group{}, map[string]onpath.Account{}, nil
	p.loads++
	p.prices, p.billed = prices{}, map[string]billed{}
	p.view.Lock()
	defer p.view.Unlock()
	p.view.running, p.view.promised = map[onpath.Key]*plan.Reserved{}, map[string]onpath.Resources{}
}

// Running are the reservations that run or soon will, by key, for the planner. The map
// and what it holds are not changed any more.
func (p *Pool) Running() map[onpath.Key]*plan.Reserved {
	p.view.Lock()
	defer p.view.Unlock()
	return p.view.running
}

// Promised is the most that each node has promised from now on, for whoever places
// instances outside of reservations.
func (p *Pool) Promised() map[string]onpath.Resources {
	p.view.Lock()
	defer p.view.Unlock()
	return maps.Clone(p.view.promised)
}

// promise notes the most that nodes have promised from now on.
func (p *Pool) promise(nodes []string) {
	now := p.o.Clock()
	p.view.Lock()
	defer p.view.Unlock()
	for _, name := range nodes {
		r, had := p.cal.Peak(name, now, calendar.Forever), p.view.promised[name]
		p.view.freed = p.view.freed || !r.Fits(had) // others may have found no room
		if r != (onpath.Resources{}) {
			p.view.promised[name] = r
		} else {
			delete(p.view.promised, name)
		}
	}
}

// Exists reports whether a reservation is stored.
func (p *Pool) Exists(k onpath.Key) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.entries[k] != nil
}

// Observe tells of all nodes and cloudlets as they are now. It does not wait for
// decisions that are being written.
func (p *Pool) Observe(nodes []Node, cloudlets map[string]Cloudlet) {
	p.view.Lock()
	defer p.view.Unlock()
	p.view.nodes, p.view.cloudlets = nodes, cloudlets
	p.poke()
}

// takeUp takes up what was observed. Callers hold mu.
func (p *Pool) takeUp() {
	p.view.Lock()
	nodes, cloudlets := p.view.nodes, p.view.cloudlets
	p.view.nodes, p.view.cloudlets = nil, nil
	p.view.Unlock()
	if cloudlets == nil {
		return
	}
	p.cloudlets, p.near, p.orders, p.observed = cloudlets, nil, nil, true
	seen := make(map[string]bool, len(nodes))
	var fresh []string
	for _, n := range nodes {
		seen[n.Name] = true
		_, known := p.nodes[n.Name]
		p.nodes[n.Name] = n
		p.setNode(n)
		if !known {
			fresh = append(fresh, n.Name)
		}
	}
	p.promise(fresh)
	for name, n := range p.nodes {
		if !seen[name] {
			if n.Usable, n.Gone, n.removed = false, true, true; n.Since.IsZero() {
				n.Since = p.clock()
			}
			p.nodes[name] = n
			p.setNode(n)
		}
	}
}

func (p *Pool) setNode(n Node) {
	room := atLeastNothing(n.Capacity.Sub(shareOf(n.Capacity, p.cloudlets[n.Cloudlet].Share)).Sub(n.Taken))
	if was, _, _ := p.cal.Room(n.Name); was != room {
		p.relief.look[n.Name] = true
	}
	at, refused := p.refused[n.Name]
	if refused && p.clock().Sub(at) > refusal {
		delete(p.refused, n.Name)
		refused = false
	}
	p.cal.SetNode(n.Name, n.Cloudlet, room, n.Usable && !refused)
}

// refusal is how long a node that did not confirm is passed over.
const refusal = 5 * time.Second

// shareOf is the operator's share of a node, as the planner counts it.
func shareOf(capacity onpath.Resources, percent int) onpath.Resources {
	return capacity.Sub(plan.TenantsPart(capacity, percent))
}

func atLeastNothing(r onpath.Resources) onpath.Resources {
	return onpath.Resources{CPU: max(r.CPU, 0), Memory: max(r.Memory, 0), Disk: max(r.Disk, 0), Network: max(r.Network, 0)}
}

// poke has Run look at what is due.
func (p *Pool) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// total is what there is in a cloudlet less the operator's share, by which tenants'
// shares are reckoned.
func (p *Pool) total(cloudlet string) (sum onpath.Resources) {
	for _, name := range p.cal.Nodes(cloudlet) {
		n := p.nodes[name]
		sum = sum.Add(n.Capacity.Sub(shareOf(n.Capacity, p.cloudlets[cloudlet].Share)))
	}
	return sum
}

// clock is the time as it is written.
func (p *Pool) clock() time.Time { return p.o.Clock().UTC().Round(0) }
