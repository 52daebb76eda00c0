package ebpf

import (
	"net/netip"
	"testing"
	"time"
)

func benchKey(src, dst string, sport, dport byte) flowKey {
	return flowKey{
		Scope: three[uint32](benchEdge), Src: wide(netip.MustParseAddr(src)), Dst: wide(netip.MustParseAddr(dst)),
		SPort: [2]byte{0, sport}, DPort: [2]byte{0, dport}, Proto: 6,
	}
}

// TestSweep: entries go at their protocol's age, half-open and closed ones sooner,
// and translations go with their flows.
func TestSweep(t *testing.T) {
	b := newBench(t, 0, stateUp)
	d := &Driver{coll: b.c}
	flows, nats := b.c.Maps[flowsMap], b.c.Maps["nats"]
	const now = uint64(100_000 * time.Second)
	seen := func(ago time.Duration) [3]byte { return three(uint32((now - uint64(ago)) / uint64(time.Second))) }
	type entry struct {
		sport byte
		v     flowValue
		stays bool
	}
	for _, e := range []entry{
		{1, flowValue{Packets: 5, Seen: seen(time.Hour)}, true},
		{2, flowValue{Packets: 5, Seen: seen(3 * time.Hour)}, false},
		{3, flowValue{Packets: 5, Seen: seen(time.Minute), Flags: flowRST}, false},
		{4, flowValue{Packets: 5, Seen: seen(time.Minute), Flags: flowFIN}, true},
		{5, flowValue{Packets: 5, Seen: seen(3 * time.Minute), Flags: flowFIN}, false},
		{6, flowValue{Packets: 0, Seen: seen(10 * time.Minute)}, false},
	} {
		k := benchKey("10.1.0.2", "10.9.0.2", e.sport, 80)
		b.put(flowsMap, k, e.v)
		if err := d.sweep(t.Context(), flows, now); err != nil {
			t.Fatal(err)
		}
		if got := exists(flows, k); got != e.stays {
			t.Errorf("after the sweep entry %d exists: %v, must be %v", e.sport, got, e.stays)
		}
	}

	for sport, stays := range map[byte]bool{1: true, 2: false} {
		k := benchKey("100.64.0.9", "10.9.0.2", sport, 80)
		v := natValue{Addr: wide(netip.MustParseAddr("10.0.9.1")), Port: [2]byte{240, sport}, Seen: unthree(seen(time.Minute))}
		b.put("nats", k, v)
		b.put("nats", answersTo(&k, &v), natValue{Addr: k.Src, Port: k.SPort, In: 1, Seen: v.Seen})
		if stays {
			b.put(flowsMap, reverseOf(&k), flowValue{Packets: 1, Seen: seen(0)})
		}
		if err := sweepNAT(t.Context(), nats, flows, now); err != nil {
			t.Fatal(err)
		}
		for _, k := range []flowKey{k, answersTo(&k, &v)} {
			if got := nats.Lookup(k, &natValue{}) == nil; got != stays {
				t.Errorf("after the sweep translation %d exists: %v, must be %v", sport, got, stays)
			}
		}
	}
}
