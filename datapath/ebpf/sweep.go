package ebpf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/flowcount"
)

// The sweep reads all entries again and again, a part at a time: at most
// sweepPart batches each sweepTick, some 130,000 entries a second, and as long as the table
// has capacity no longer than sweepTurn, which is a few per cent of one CPU. A round begins
// sweepEvery after the one before began, or when that is done; it counts them, so that
// readers of counters need not. Entries are aged by a process only; while there is none,
// nothing established goes, and pending ones make room for each other.
const (
	sweepTick = 250 * time.Millisecond
	sweepPart = 32
	sweepTurn = 10 * time.Millisecond
)

// sweepEvery is a variable for tests, which have entries aged when they say.
var sweepEvery = 5 * time.Second

func (d *Driver) sweepLoop(ctx context.Context, nats, affinities *ebpf.Map) {
	tick := time.NewTicker(sweepTick)
	defer tick.Stop()
	var s *sweep
	var began time.Time // the first round is at once
	for {
		select {
		case <-ctx.Done():
			s.close()
			return
		case <-tick.C:
		}
		var err error
		if s == nil && time.Since(began) >= sweepEvery {
			if s, err = d.newSweep(monotonic()); s != nil {
				began = time.Now()
			}
		}
		if s != nil {
			var done bool
			if done, err = s.turn(monotonic()); err == nil && done {
				err = errors.Join(d.recount(s), sweepNAT(ctx, nats, s.tables, monotonic), s.affinities.end(ctx, affinities, monotonic()))
			}
			if done || err != nil {
				s.close()
				s = nil
			}
		}
		if err != nil && ctx.Err() == nil {
			d.opts.Log.Warn("flow entries could not be aged", "error", err)
		}
	}
}

// sweep is one round over all entries.
type sweep struct {
	tables  flowTables
	r       *reader
	now     uint64             // ns, monotonic
	shrink  float64            // what idle times are multiplied by: less in a table that fills
	shrinks map[uint32]float64 // the same in the share of a tenant, by the tenant's slot
	at      int                // the table being read
	cursor  *ebpf.MapBatchCursor
	keys    []flowKey
	values  []flowValue
	entries map[uint32]uint64 // established, by the tenant's slot
	caused  map[uint32]uint64
	used    map[uint32]quotaValue // what tenants used of their quotas as the round began
	slots   []uint32              // tenants of the tables of pending flows, in their order
	count   flowCount

	affinities *affinityRound

	prefilter *prefilter // whose cells this round sets; nil: they are set
}

// flowCount is what a round over all entries has counted.
type flowCount struct {
	flows, established uint64 // entries

	pending map[uint32]uint64        // by the tenant's slot
	at      map[uint32]*flowcount.At // by the vport's id
}

// newSweep begins a round; nil before the first configuration, which tells how
// long entries live.
func (d *Driver) newSweep(now uint64) (*sweep, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == nil || d.coll == nil {
		return nil, nil
	}
	return d.sweepOf(d.state.idle, now)
}

// sweepOf begins a round by the idle times of paths. d.mu is held.
func (d *Driver) sweepOf(idle map[uint16]onpath.Idle, now uint64) (*sweep, error) {
	t, slots, err := d.cloneTablesOf()
	if err != nil {
		return nil, err
	}
	s := newSweep(t, newReader(d.maps, idle), now)
	s.slots = slots
	s.count = flowCount{pending: map[uint32]uint64{}, at: map[uint32]*flowcount.At{}}
	for _, v := range d.maps.vports.now {
		s.count.at[v.ID] = new(flowcount.At)
	}
	if d.state != nil && !d.maps.prefilter.isDone() {
		s.prefilter = d.maps.prefilter
	}
	s.shrink = shrinkFor(d.counted.established, uint64(t[0].MaxEntries()))
	err = s.shrinkShares(d.maps, slots)
	if err == nil {
		s.affinities, err = newAffinityRound(d.maps.groups.now, d.coll.Maps[affinitiesMap])
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// shrinkShares has the flows of a tenant rest for less where its share fills: above that,
// flows that speak are not established, and their entries make room for each other.
func (s *sweep) shrinkShares(m *kernelMaps, slots []uint32) error {
	s.shrinks, s.used = map[uint32]float64{}, map[uint32]quotaValue{}
	for _, slot := range slots {
		var used quotaValue
		var limits tenantValue
		if err := errors.Join(m.quotas.Lookup(slot, &used), m.tenants.Lookup(slot, &limits)); err != nil {
			return fmt.Errorf("read what a tenant uses of its quota: %w", err)
		}
		s.used[slot] = used
		if limits.Cap != 0 {
			s.shrinks[slot] = min(s.shrink, shrinkFor(used.Established, limits.Cap))
		}
	}
	return nil
}

// shrinkOf is what the idle times of an entry of the table at hand are multiplied by.
func (s *sweep) shrinkOf(k *flowKey, v *flowValue) float64 {
	if s.at == 0 {
		if x, ok := s.shrinks[s.r.tenant(k, v)]; ok {
			return x
		}
	}
	return s.shrink
}

func newSweep(t flowTables, r *reader, now uint64) *sweep {
	return &sweep{
		tables: t, r: r, now: now, shrink: 1, cursor: new(ebpf.MapBatchCursor),
		keys: make([]flowKey, batch), values: make([]flowValue, batch),
		entries: map[uint32]uint64{}, caused: map[uint32]uint64{},
	}
}

func (s *sweep) close() {
	if s != nil {
		s.tables.close()
	}
}

// turn reads as much as one tick may; true when all entries were seen. A round over a large
// table takes minutes: entries are aged by the time at which they are read.
func (s *sweep) turn(now uint64) (done bool, err error) {
	s.now = now
	began := time.Now()
	for range sweepPart {
		if done, err = s.part(1); done || err != nil || s.shrink == 1 && time.Since(began) > sweepTurn {
			break
		}
	}
	return done, err
}

// part reads up to n batches; true when all entries were seen.
func (s *sweep) part(n int) (bool, error) {
	for range n {
		if s.at == len(s.tables) {
			return true, nil
		}
		got, err := s.tables[s.at].BatchLookup(s.cursor, s.keys, s.values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return false, fmt.Errorf("read flow entries: %w", err)
		}
		for i := range got {
			if err := s.entry(&s.keys[i], &s.values[i]); err != nil {
				return false, err
			}
		}
		if err != nil {
			s.at++
			s.cursor = new(ebpf.MapBatchCursor)
		}
	}
	return s.at == len(s.tables), nil
}

// entry removes an entry that was not used for too long, with the other
// direction's, or counts it.
func (s *sweep) entry(k *flowKey, v *flowValue) error {
	m := s.tables[s.at]
	if s.prefilter != nil && s.at == 0 && unthree(k.Scope) == s.r.edge {
		s.prefilter.addEntry(k)
	}
	if gone, mate := s.aged(m, k, v); gone {
		if goesOn, err := usedSince(m, k, v); goesOn || err != nil {
			s.tally(k, v)
			return err
		}
		return errors.Join(removeAged(m, *k), removeAged(m, mate))
	}
	s.tally(k, v)
	return nil
}

// usedSince tells whether a packet has met an entry since it was read with many others: a
// port of a question is used again, and the answer would find no entry.
func usedSince(m *ebpf.Map, k *flowKey, v *flowValue) (bool, error) {
	var now flowValue
	if err := m.Lookup(k, &now); err != nil {
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return false, nil
		}
		return false, fmt.Errorf("read aged flow entry: %w", err)
	}
	return now.Seen != v.Seen || now.packets() != v.packets(), nil
}

// tally counts an entry of the table at hand.
func (s *sweep) tally(k *flowKey, v *flowValue) {
	s.count.flows++
	s.r.count(s.count.at, k, v)
	if s.at > 0 {
		if s.at <= len(s.slots) {
			s.count.pending[s.slots[s.at-1]]++
		}
		return
	}
	s.affinities.meet(s.r, k, v)
	slot := s.r.tenant(k, v)
	s.entries[slot]++
	if v.Flags&flowEmitted != 0 {
		s.caused[slot]++
	}
}

func removeAged(m *ebpf.Map, k flowKey) error {
	if err := m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("remove aged flow entry: %w", err)
	}
	return nil
}

// aged reports whether a flow has rested for too long, with the key of the reverse entry.
// The reverse entry is read only once this entry is past its own limit. So a round over
// flows that rest costs no further look-up. What the reverse entry alone says counts when
// the round comes to that entry.
func (s *sweep) aged(m *ebpf.Map, k *flowKey, v *flowValue) (bool, flowKey) {
	times, shrink, rests := s.r.times(v), s.shrinkOf(k, v), idle(v.seen(), s.now)
	asks, ends := v.path() == 0 && k.Proto == 17, v.Flags&(flowFIN|flowRST) != 0
	limit := s.limit(times, shrink, k.Proto, v.packets() == 0, ends, ends, v.Flags&flowRST != 0)
	var other flowValue
	if asks {
		limit = min(limit, afterQuestion(k, v, &other))
	}
	if rests <= limit {
		return false, flowKey{}
	}
	mate := s.r.mate(k, v)
	alone := m.Lookup(mate, &other) != nil
	oneWay := !alone && (v.packets() == 0) != (other.packets() == 0)
	flags, both := v.Flags, v.Flags
	if !alone {
		flags, both = v.Flags|other.Flags, v.Flags&other.Flags
		rests = min(rests, idle(other.seen(), s.now))
	}
	closed := flags&flowRST != 0 || both&flowFIN != 0
	limit = s.limit(times, shrink, k.Proto, oneWay, flags&flowFIN != 0, closed, flags&flowRST != 0)
	if asks {
		limit = min(limit, afterQuestion(k, v, &other))
	}
	return rests > limit, mate
}

// afterQuestion is how long an instance's own flow of UDP stays at most that may be a
// question. It is established at once, unlike others' flows, and holds a port where it is
// translated (RFC 4787 REQ-5 leaves the time for well-known ports open).
func afterQuestion(k *flowKey, v, other *flowValue) time.Duration {
	const dns = 53
	switch {
	case binary.BigEndian.Uint16(k.SPort[:]) == dns || binary.BigEndian.Uint16(k.DPort[:]) == dns:
		return 10 * time.Second
	case v.packets() <= 1 && other.packets() <= 1:
		return 30 * time.Second
	}
	return time.Duration(onpath.MaxIdle)
}

// afterReset is how long a connection stays after a RST: if its ends go on meanwhile, that
// was somebody else's.
const afterReset = 2 * time.Second

// limit is how long a flow may rest in this round.
func (s *sweep) limit(t onpath.Idle, shrink float64, protocol uint8, oneWay, closing, closed, reset bool) time.Duration {
	l := time.Duration(float64(t.For(protocol, oneWay, closing, closed)) * shrink)
	if reset {
		l = min(l, afterReset)
	}
	return max(l, time.Second)
}

// Above pressed of a table, or of a tenant's share of it, idle times shrink, down to a
// sixteenth in a full one: a flow that rests makes room for one that speaks.
const (
	pressed     = 0.8
	shrinkLeast = 1.0 / 16
)

func shrinkFor(established, size uint64) float64 {
	full := float64(established) / float64(size)
	return min(1, max(shrinkLeast, (1-full)/(1-pressed)))
}

// recount keeps what a round has counted, corrects what tenants use of their quotas, which
// the programs hardly lower, and lends anew what they leave.
func (d *Driver) recount(s *sweep) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil || d.succession.waits() { // the entries are in the tables of an older version
		return nil
	}
	if s.prefilter != nil {
		s.prefilter.done()
	}
	for _, n := range s.entries {
		s.count.established += n
	}
	d.counted = s.count
	for slot := range d.pending.of {
		var now quotaValue
		if err := d.maps.quotas.Lookup(slot, &now); err != nil {
			return fmt.Errorf("read what a tenant uses of its quota: %w", err)
		}
		counted := quotaValue{Flows: s.caused[slot], Established: s.entries[slot]}
		if err := d.maps.quotas.Put(slot, usedNow(counted, s.used[slot], now)); err != nil {
			return fmt.Errorf("write what a tenant uses of its quota: %w", err)
		}
	}
	if d.state == nil {
		return nil
	}
	return d.putTenants(d.state.tenants)
}

// usedNow is what a tenant uses of its quota after a round that counted so many entries, and
// may have passed the keys of flows before they began. Of those that instances cause by
// themselves it is the most that can be, which they may not exceed by forging; of the others
// the least, which takes nothing from tenants with many new flows.
func usedNow(counted, before, now quotaValue) quotaValue {
	counted.Flows = min(now.Flows, counted.Flows+now.Flows-min(now.Flows, before.Flows))
	counted.Established = max(counted.Established, now.Established-min(now.Established, before.Established))
	return counted
}

// times are the idle times of an entry's path.
func (r *reader) times(v *flowValue) onpath.Idle {
	if i, ok := r.idle[v.path()]; ok {
		return i
	}
	return onpath.DefaultIdle
}

// mate is the key of the other direction at the same place: at a bridged instance,
// at its other side; for what functions of this node stand between other nodes'
// vports, at the one behind them.
func (r *reader) mate(k *flowKey, v *flowValue) flowKey {
	m, scope := reverseOf(k), unthree(k.Scope)
	switch other := r.others[scope]; {
	case scope == r.edge:
	case other != 0:
		m.Scope = three(other)
	case v.kind() == nextExit:
		m.Scope = three(r.edge)
	case v.kind() == nextVport:
		m.Scope = v.Next
	}
	return m
}

// tenant is the slot of the tenant to whom an established entry counts, as the programs
// count it (holder).
func (r *reader) tenant(k *flowKey, v *flowValue) uint32 {
	if scope := unthree(k.Scope); r.others[scope] != 0 {
		return r.tenants[scope]
	}
	if v.path() != 0 {
		return r.pathTenants[v.path()]
	}
	return r.tenants[unthree(v.Next)]
}
