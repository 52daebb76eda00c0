package ebpf

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/onpath/onpath"
)

const (
	laneHop = 5 // the place of the next hop
	lo      = 1 // ifindex; a test run's frames come in there
)

// laneFlow is a flow whose packets the fast path finishes.
type laneFlow struct {
	k     flowKey
	frame []byte
	sent  uint64
}

// laneBench is the fast path with next hops known, and flows of both families.
type laneBench struct {
	*bench
	flows []laneFlow
	now   uint32
}

func newLaneBench(t *testing.T, each int) *laneBench {
	b := &laneBench{bench: newBench(t, 0, stateUp), now: uint32(monotonic()/1e9) & seenMask}
	b.put("hops", uint32(laneHop), hopPlace{Hop: hopValue{Ifindex: lo, MTU: 1500}})
	for i := range each {
		from := []byte{10, 1, byte(i >> 8), byte(i)}
		b.add(netip.AddrFrom4([4]byte(from)), netip.MustParseAddr("10.9.0.2"), 0x0800)
		six := netip.MustParseAddr("2001:db8::").As16()
		copy(six[i%3*4+4:], from) // flows differ in each part of the address
		b.add(netip.AddrFrom16(six), netip.MustParseAddr("2001:db8:9::2"), 0x86dd)
	}
	b.epoch(1)
	return b
}

func (b *laneBench) add(src, dst netip.Addr, kind uint16) {
	frame := binary.BigEndian.AppendUint16(make([]byte, 12), kind)
	if src.Is4() {
		frame = append(frame, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 17, 0, 0)
	} else {
		frame = append(frame, 0x60, 0, 0, 0, 0, 20, 17, 64)
	}
	frame = append(append(frame, src.AsSlice()...), dst.AsSlice()...)
	frame = append(frame, 0, 7, 0, 53, 0, 20, 0, 0)
	k := flowKey{Scope: three[uint32](benchEdge), Proto: 17, Src: wide(src), Dst: wide(dst), SPort: [2]byte{0, 7}, DPort: [2]byte{0, 53}}
	b.flows = append(b.flows, laneFlow{k: k, frame: append(frame, make([]byte, 12)...)})
}

// epoch begins one in which all entries have a next hop.
func (b *laneBench) epoch(n uint32) {
	b.t.Helper()
	for _, f := range b.flows {
		v := flowValue{Kind: nextExit, Flags: flowAtEdge, Path: 1, Seen: three(b.now)}
		if err := b.c.Maps[flowsMap].Lookup(f.k, &v); err == nil {
			v.Packets, v.Bytes = v.packets(), v.bytes()
		}
		v.Packets |= laneHop << 48
		v.Bytes |= uint64(n) << 56
		b.put(flowsMap, f.k, v)
	}
	b.put("uplinks", uint32(lo), uplinkValue{Ifindex: lo, Edge: benchEdge, EdgeSlot: benchEdge, TunnelPort: 4797,
		Fast: fastValue{Epoch: n, Lease: (b.now + 600) & seenMask}})
}

// send has the fast path finish a packet of a flow.
func (b *laneBench) send(i int) {
	b.t.Helper()
	f := &b.flows[i]
	v, err := b.c.Programs[fastProgram].Run(&ebpf.RunOptions{Data: f.frame, DataOut: make([]byte, 256)})
	const redirect = 4
	if err != nil || v != redirect {
		b.t.Fatalf("packet %d of flow %d: verdict %d, error %v", f.sent, i, v, err)
	}
	f.sent++
}

// check compares what is known of each flow with what was sent. It gives the packets
// that lanes hold.
func (b *laneBench) check(lanes *laneReader) (held uint64) {
	b.t.Helper()
	for i := range b.flows {
		f := &b.flows[i]
		var v flowValue
		if err := b.c.Maps[flowsMap].Lookup(f.k, &v); err != nil {
			b.t.Fatal(err)
		}
		e := onpath.FlowEntry{Packets: v.packets(), Bytes: v.bytes()}
		lanes.addTo(&e, &f.k, &v, monotonic())
		length := uint64(40)
		if !narrow(f.k.Src).Is4() {
			length = 60
		}
		if e.Packets != f.sent || e.Bytes != f.sent*length {
			b.t.Fatalf("flow %d, %v: %d packets and %d bytes are known, %d packets of %d bytes were sent", i, tupleOf(&f.k), e.Packets, e.Bytes, f.sent, length)
		}
		held += e.Packets - v.packets()
	}
	return held
}

// TestLanes: flows of both families share lines, take lanes from each other and lose
// them with the epoch, and each packet counts once.
func TestLanes(t *testing.T) {
	const each = 1500
	b := newLaneBench(t, each)
	lanes, err := openLanes(b.c.Maps["lanes"])
	if err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for epoch := range uint32(3) {
		b.epoch(epoch + 1)
		for range 10 * each {
			b.send(random.IntN(2 * each))
		}
		if b.check(lanes) == 0 {
			t.Error("lanes hold nothing: flows have none")
		}
	}
}

// TestLaneMisses: a name that differs in one part alone is another flow's.
func TestLaneMisses(t *testing.T) {
	b := newLaneBench(t, 2)
	for i := range b.flows {
		for range 3 {
			b.send(i)
		}
		f := b.flows[i]
		first, last := 14+12, len(f.frame)-12-4 // addresses and ports
		if !narrow(f.k.Src).Is4() {
			first = 14 + 8
		}
		for at := first; at < last; at++ {
			frame := append([]byte(nil), f.frame...)
			frame[at] ^= 0x10
			const pass = 2
			if v, err := b.c.Programs[fastProgram].Run(&ebpf.RunOptions{Data: frame, DataOut: make([]byte, 256)}); err != nil || v != pass {
				t.Errorf("flow %d, byte %d changed: verdict %d, error %v", i, at, v, err)
			}
		}
	}
}
