package ebpf

import (
	"net/netip"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

func benchKey(src, dst string, sport, dport byte) flowKey {
	return flowKey{
		Scope: three[uint32](benchEdge), Src: wide(netip.MustParseAddr(src)), Dst: wide(netip.MustParseAddr(dst)),
		SPort: [2]byte{0, sport}, DPort: [2]byte{0, dport}, Proto: 6,
	}
}

// TestSweep: flows go at their protocol's age, half-open and closed ones sooner,
// both directions together, and translations go with their flows; it does not matter how long
// ago the sweep began.
func TestSweep(t *testing.T) {
	b := newBench(t, 0, stateUp)
	flows := flowTables{b.c.Maps[flowsMap]}
	const now = uint64(100_000 * time.Second)
	round := func() {
		r := &reader{edge: benchEdge, idle: map[uint16]onpath.Idle{7: onpath.Idle{TCP: onpath.Duration(4 * time.Hour)}.OrDefault()}}
		s := newSweep(flows, r, now-uint64(10*time.Minute)) // when the round began
		for done := false; !done; {
			var err error
			if done, err = s.turn(now); err != nil {
				t.Fatal(err)
			}
		}
	}
	seen := func(ago time.Duration) [3]byte { return three(uint32((now - uint64(ago)) / uint64(time.Second))) }
	type entry struct {
		what   string
		v      flowValue
		answer *flowValue
		stays  bool
	}
	live := func(ago time.Duration, flags uint8) flowValue {
		return flowValue{Packets: 5, Seen: seen(ago), Flags: flags}
	}
	for i, e := range []entry{
		{"used an hour ago", live(time.Hour, 0), nil, true},
		{"used three hours ago", live(3*time.Hour, 0), nil, false},
		{"of a chain that waits longer", flowValue{Packets: 5, Seen: seen(3 * time.Hour), Path: 7}, nil, true},
		{"reset a moment ago", live(time.Second, flowRST), nil, true},
		{"reset", live(time.Minute, flowRST), nil, false},
		{"half closed", live(3*time.Minute, flowFIN), ptr(live(3*time.Minute, 0)), true},
		{"half closed for long", live(5*time.Minute, flowFIN), ptr(live(5*time.Minute, 0)), false},
		{"closed", live(3*time.Minute, flowFIN), ptr(live(3*time.Minute, flowFIN)), false},
		{"half open", live(10*time.Minute, 0), &flowValue{Seen: seen(10 * time.Minute)}, false},
		{"alive in the other direction", live(3*time.Hour, 0), ptr(live(time.Minute, 0)), true},
		{"stamped a little ahead", live(-2*time.Second, flowRST), nil, true},
	} {
		k := benchKey("10.1.0.2", "10.9.0.2", byte(i), 80)
		b.put(flowsMap, k, e.v)
		if e.answer != nil {
			b.put(flowsMap, reverseOf(&k), *e.answer)
		}
		round()
		if got := flows.have(k); got != e.stays {
			t.Errorf("after the sweep the flow that is %s exists: %v, must be %v", e.what, got, e.stays)
		}
		if got := flows.have(reverseOf(&k)); got != (e.stays && e.answer != nil) {
			t.Errorf("after the sweep the answers to the flow that is %s exist: %v", e.what, got)
		}
	}
	sweepsTranslations(t, b, flows, now)
}

// TestSweepAsksNothing: as long as a flow rests for less than it may, the entry of its other
// direction is not looked up, which would take a system call.
func TestSweepAsksNothing(t *testing.T) {
	const now = uint64(100_000 * time.Second)
	s := newSweep(nil, &reader{edge: benchEdge}, now)
	for _, c := range []struct {
		proto uint8
		path  uint16
		rests time.Duration
	}{{6, 1, 2 * time.Hour}, {17, 1, 5 * time.Minute}, {17, 0, 30 * time.Second}} {
		k := benchKey("10.1.0.2", "10.9.0.2", 1, 80)
		k.Proto = c.proto
		v := flowValue{Packets: 1, Path: c.path, Seen: three(uint32((now - uint64(c.rests)) / uint64(time.Second)))}
		if gone, _ := s.aged(nil, &k, &v); gone { // without a table to look into
			t.Errorf("an entry of protocol %d that has rested for %v is aged", c.proto, c.rests)
		}
	}
}

func sweepsTranslations(t *testing.T, b *bench, flows flowTables, now uint64) {
	nats := b.c.Maps[natsMap]
	for sport, stays := range map[byte]bool{1: true, 2: false} {
		k := benchKey("100.64.0.9", "10.9.0.2", sport, 80)
		v := natValue{Addr: wide(netip.MustParseAddr("10.0.9.1")), Port: [2]byte{240, sport}, Seen: uint32(now/uint64(time.Second)) - 60}
		b.put(natsMap, k, v)
		b.put(natsMap, repliesTo(&k, &v), natValue{Addr: k.Src, Port: k.SPort, In: 1, Seen: v.Seen})
		if stays {
			b.put(flowsMap, reverseOf(&k), flowValue{Packets: 1})
		}
		if err := sweepNAT(t.Context(), nats, flows, func() uint64 { return now }); err != nil {
			t.Fatal(err)
		}
		for _, k := range []flowKey{k, repliesTo(&k, &v)} {
			if got := nats.Lookup(k, &natValue{}) == nil; got != stays {
				t.Errorf("after the sweep translation %d exists: %v, must be %v", sport, got, stays)
			}
		}
	}
}

// TestSweepReadsAgain: what a packet has met since the sweep read it stays, and so does a
// translation whose port a program has given to another flow meanwhile.
func TestSweepReadsAgain(t *testing.T) {
	b := newBench(t, 0, stateUp)
	m, nats := b.c.Maps[flowsMap], b.c.Maps[natsMap]
	flows := flowTables{m}
	const now = uint64(100_000 * time.Second)
	at := uint32(now / uint64(time.Second))
	k := benchKey("100.64.0.9", "10.9.0.2", 7, 53)
	k.Proto = 17
	read := flowValue{Packets: 1, Seen: three(at - 1000)}
	b.put(flowsMap, k, flowValue{Packets: 2, Seen: three(at)})
	s := newSweep(flows, &reader{edge: benchEdge}, now)
	if err := s.entry(&k, &read); err != nil {
		t.Fatal(err)
	}
	if !flows.have(k) {
		t.Error("the sweep has removed an entry that a packet has met since it was read")
	}

	old, next := benchKey("100.64.0.9", "10.9.0.2", 1, 80), benchKey("100.64.0.9", "10.9.0.2", 2, 80)
	was := natValue{Addr: wide(netip.MustParseAddr("10.0.9.1")), Port: [2]byte{240, 1}, Seen: at - 60}
	is := was
	is.Seen = at
	b.put(natsMap, next, is)
	b.put(natsMap, repliesTo(&next, &is), natValue{Addr: next.Src, Port: next.SPort, In: 1, Seen: at})
	b.put(natsMap, k, is)
	b.put(natsMap, repliesTo(&k, &is), natValue{Addr: k.Src, Port: k.SPort, In: 1, Seen: at})
	if err := m.Delete(k); err != nil {
		t.Fatal(err)
	}
	for _, was := range []struct {
		what string
		k    flowKey
		v    natValue
		left flowKey
	}{
		{"whose port another flow has taken over", old, was, repliesTo(&next, &is)},
		{"that a packet has met", k, was, k}, {"that a packet has met", k, was, repliesTo(&k, &is)},
	} {
		if err := removeTranslation(nats, flows, &was.k, &was.v, now); err != nil {
			t.Fatal(err)
		}
		if err := nats.Lookup(was.left, &natValue{}); err != nil {
			t.Errorf("the sweep has removed a translation %s since it was read: %v", was.what, err)
		}
	}
}

// TestShareShrinks: a tenant whose share is nearly used up has its flows rest for less,
// though the table has capacity; others' rest as long as ever.
func TestShareShrinks(t *testing.T) {
	b := newBench(t, 0, stateUp)
	flows := flowTables{b.c.Maps[flowsMap]}
	const now = uint64(100_000 * time.Second)
	r := &reader{edge: benchEdge, pathTenants: map[uint16]uint32{1: 1, 2: 2}}
	s := newSweep(flows, r, now)
	m := &kernelMaps{quotas: b.c.Maps["quotas"], tenants: b.c.Maps["tenants"]}
	for slot, used := range map[uint32]uint64{1: 950, 2: 100} {
		b.put("tenants", slot, tenantValue{Cap: 1000})
		b.put("quotas", slot, quotaValue{Established: used})
	}
	if err := s.shrinkShares(m, []uint32{1, 2}); err != nil {
		t.Fatal(err)
	}
	for path, stays := range map[uint16]bool{1: false, 2: true} {
		k := benchKey("10.1.0.2", "10.9.0.2", byte(path), 80)
		k.Proto = 17
		v := flowValue{Packets: 5, Path: path, Seen: three(uint32((now - uint64(2*time.Minute)) / uint64(time.Second)))}
		b.put(flowsMap, k, v)
		if err := s.entry(&k, &v); err != nil {
			t.Fatal(err)
		}
		if flows.have(k) != stays {
			t.Errorf("a flow of tenant %d that has rested for two of five minutes stays: %v, must be %v", path, !stays, stays)
		}
	}
}

// TestTranslationsStay: however many there are, none that is in use makes room, and the
// two of one do not part.
func TestTranslationsStay(t *testing.T) {
	b := newBench(t, 0, stateUp)
	nats := b.c.Maps[natsMap]
	k := benchKey("100.64.0.9", "10.9.0.2", 1, 80)
	v := natValue{Addr: wide(netip.MustParseAddr("10.0.9.1")), Port: [2]byte{240, 1}}
	b.put(natsMap, k, v)
	b.put(natsMap, repliesTo(&k, &v), natValue{Addr: k.Src, Port: k.SPort, In: 1})
	full := false
	for n := range nats.MaxEntries() {
		k := benchKey("100.64.0.10", "10.9.0.2", byte(n), byte(n>>8))
		k.Src[12], k.Src[13] = 1, byte(n>>16)
		full = full || nats.Put(k, v) != nil
	}
	for _, k := range []flowKey{k, repliesTo(&k, &v)} {
		if err := nats.Lookup(k, &natValue{}); err != nil {
			t.Errorf("a translation is gone: %v", err)
		}
	}
	if !full {
		t.Errorf("the table of %d entries takes more", nats.MaxEntries())
	}
	spec, err := objectSpec(Options{Flows: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if got := spec.Maps[natsMap].MaxEntries; got != 1<<20 {
		t.Errorf("beside 1,048,576 flow entries there is room for %d of translations", got)
	}
}

func ptr[T any](v T) *T { return &v }

// TestUsedNow: flows that began while a round went on count against the quota at once.
func TestUsedNow(t *testing.T) {
	for _, c := range []struct{ counted, before, now, is quotaValue }{
		{counted: quotaValue{}, before: quotaValue{}, now: quotaValue{Flows: 8, Established: 16}, is: quotaValue{Flows: 8, Established: 16}},
		{counted: quotaValue{Flows: 5, Established: 9}, before: quotaValue{Flows: 8, Established: 20},
			now: quotaValue{Flows: 9, Established: 18}, is: quotaValue{Flows: 6, Established: 9}},
		{counted: quotaValue{Flows: 4, Established: 8}, before: quotaValue{Flows: 4, Established: 8},
			now: quotaValue{Flows: 8, Established: 16}, is: quotaValue{Flows: 8, Established: 8}},
	} {
		if is := usedNow(c.counted, c.before, c.now); is != c.is {
			t.Errorf("counted %+v, used %+v before and %+v now: %+v, must be %+v", c.counted, c.before, c.now, is, c.is)
		}
	}
}

// TestLent: tenants lend each other half of what they leave of a table, and nothing of a
// table that fills.
func TestLent(t *testing.T) {
	const size, tenants = 1 << 20, 4
	for _, c := range []struct{ taken, is uint64 }{{0, size / 10 * 8 / 4}, {size / 2, size / 10 * 3 / 4}, {size / 10 * 9, 0}} {
		if got := lent(size, tenants, c.taken); got+10 < c.is || got > c.is+10 {
			t.Errorf("of a table of %d entries, %d of them taken, a tenant of %d is lent %d, must be %d", size, c.taken, tenants, got, c.is)
		}
	}
}
