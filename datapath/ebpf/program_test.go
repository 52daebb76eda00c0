package ebpf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath/datapath/ebpf/classifier"
)

// bench is the uplink program with one chain of one instance, without devices.
type bench struct {
	t     testing.TB
	c     *ebpf.Collection
	inner *ebpf.MapSpec // of tables of pending flows
}

const (
	benchEdge, benchInstance        = 1, 2 // vports, and their slots
	benchGroup               uint32 = 1 << 6
	verdictOK, verdictShot          = -1, 2
	verdictRedirect                 = 7
)

func newBench(t testing.TB, mtu uint32, state uint8) *bench {
	if os.Getuid() != 0 {
		t.Skip("needs root to load programs")
	}
	spec, err := objectSpec(Options{Flows: 1 << 12, Pending: 1 << 10})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range spec.Maps {
		m.Pinning = ebpf.PinNone
	}
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	b := &bench{t: t, c: c, inner: spec.Maps[pendingMap].InnerMap}
	b.needPending(0)
	b.put("tenants", uint32(0), tenantValue{Cap: 1024})
	b.put("vports", uint32(benchEdge), vportValue{ID: benchEdge, Kind: vportEdge, State: stateUp})
	b.put("vports", uint32(benchInstance), vportValue{ID: benchInstance, Kind: vportInstance, State: state, Ifindex: 1, Other: benchInstance})
	b.put("ports", uint32(1), portValue{Vport: benchEdge, Slot: benchEdge, Kind: portUplink, Attach: attachRouter})
	b.put("slots", uint32(benchEdge), uint32(benchEdge))
	b.put("slots", uint32(benchInstance), uint32(benchInstance))
	b.put("paths", uint32(1), pathValue{ID: 1, MTU: mtu})
	g := groupValue{ID: benchGroup, Path: 1, PathSlot: 1, Then: 9, Back: 9, Count: 1}
	g.Members[0] = memberValue{Vport: benchInstance, Key: 1, Weight: 1, Slot: benchInstance}
	b.put("groups", benchGroup, g)
	b.table(1, 1, 0, classifier.Rule{Proto: 6, Action: actGroup, Arg: benchGroup, Path: 1, PathSlot: 1})
	b.table(9, 2, 2)
	b.put("nodes", uint32(0), nodeValue{Edge: benchEdge, EdgeSlot: benchEdge, EdgeTable: 1, TunnelPort: 4797, Routers: [maxRouters]uint32{1}})
	return b
}

// needPending makes a tenant's table of pending flows.
func (b *bench) needPending(tenant uint32) {
	b.t.Helper()
	m, err := ebpf.NewMap(b.inner)
	if err != nil {
		b.t.Fatal(err)
	}
	defer m.Close() // the outer map holds it
	b.put(pendingMap, tenant, m)
}

func (b *bench) put(name string, k, v any) {
	b.t.Helper()
	if err := b.c.Maps[name].Put(k, v); err != nil {
		b.t.Fatalf("%s: %v", name, err)
	}
}

// table puts a small table with the miss exit into a row, and its rules from a
// cell on.
func (b *bench) table(id, row, base uint32, rules ...classifier.Rule) {
	b.t.Helper()
	miss := classifier.Rule{Action: actExit}
	b.put("rules", base, miss.Cell())
	for i := range rules {
		b.put("rules", base+1+uint32(i), rules[i].Cell())
	}
	b.put("tables", row, tableValue{Where: whereUsed | uint64(len(rules))<<whereCount | uint64(base), ID: id})
	b.put("table_ids", id, row)
}

// skb is the part of struct __sk_buff up to what the tests set.
type skb struct {
	Len, PktType, Mark, Queue, Protocol, VlanPresent, VlanTCI, VlanProto, Priority uint32
	IngressIfindex, Ifindex, TCIndex                                               uint32
	CB                                                                             [5]uint32
	Hash, TCClassID, Data, DataEnd, NAPI, Family, RemoteIP4, LocalIP4              uint32
	RemoteIP6, LocalIP6                                                            [4]uint32
	RemotePort, LocalPort, DataMeta                                                uint32
	FlowKeys, Tstamp                                                               uint64
	WireLen, GSOSegs                                                               uint32
	Sk                                                                             uint64
	GSOSize, TstampType                                                            uint32
	Hwtstamp                                                                       uint64
}

func (b *bench) run(frame []byte, gsoSize uint32) (int32, []byte) {
	b.t.Helper()
	ctx := skb{GSOSize: gsoSize}
	out := make([]byte, len(frame)+256)
	opts := &ebpf.RunOptions{Data: frame, DataOut: out, Context: ctx}
	verdict, err := b.c.Programs[program].Run(opts)
	if err != nil {
		b.t.Fatal(err)
	}
	return int32(verdict), opts.DataOut
}

// counted are the counters of a vport.
func (b *bench) counted(slot uint32) (sum vportCounters) {
	b.t.Helper()
	var perCPU []vportCounters
	if err := b.c.Maps["vport_stats"].Lookup(slot, &perCPU); err != nil {
		b.t.Fatal(err)
	}
	for _, c := range perCPU {
		sum.InPackets += c.InPackets
		sum.InBytes += c.InBytes
		sum.OutPackets += c.OutPackets
		sum.OutBytes += c.OutBytes
		for i := range c.Dropped {
			sum.Dropped[i] += c.Dropped[i]
		}
	}
	return sum
}

// counters asserts every counter of a vport.
func (b *bench) counters(slot uint32, want vportCounters) {
	b.t.Helper()
	if got := b.counted(slot); got != want {
		b.t.Errorf("vport %d has counters %+v, must have %+v", slot, got, want)
	}
}

// segment is a frame with a TCP SYN (flags 2) or other segment of n bytes of data.
func segment(flags byte, n int) []byte {
	f := append(make([]byte, 12), 0x08, 0x00)
	ip := []byte{0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 1, 0, 2, 10, 9, 0, 2}
	binary.BigEndian.PutUint16(ip[2:], uint16(40+n))
	binary.BigEndian.PutUint16(ip[10:], ^sum16(ip))
	tcp := []byte{0x10, 0, 0, 80, 0, 0, 0, 7, 0, 0, 0, 9, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0}
	return append(append(append(f, ip...), tcp...), make([]byte, n)...)
}

func TestProgramSegments(t *testing.T) {
	b := newBench(t, 1440, stateUp)
	if v, _ := b.run(segment(2, 0), 0); v != verdictRedirect {
		t.Errorf("the verdict on a SYN is %d, must be %d", v, verdictRedirect)
	}
	// One GSO packet of three segments: 1400, 1400 and 200 bytes of data.
	if v, _ := b.run(segment(16, 3000), 1400); v != verdictRedirect {
		t.Errorf("the verdict on segments that fit is %d, must be %d", v, verdictRedirect)
	}
	bytes := uint64(40 + 3000 + 3*40)
	b.counters(benchEdge, vportCounters{InPackets: 4, InBytes: bytes})
	b.counters(benchInstance, vportCounters{OutPackets: 4, OutBytes: bytes})
	if v, _ := b.run(segment(16, 3000), 1401); v != verdictShot { // no address to answer from
		t.Errorf("the verdict on segments that are too big is %d, must be %d", v, verdictShot)
	}
	want := vportCounters{InPackets: 7, InBytes: 2*bytes - 40}
	want.Dropped[5] = 3 // too-big
	b.counters(benchEdge, want)
	b.counters(benchInstance, vportCounters{OutPackets: 4, OutBytes: bytes})
}

// TestProgramCut: a GSO packet of SCTP says no size, for its segments are of several.
func TestProgramCut(t *testing.T) {
	b := newBench(t, 1440, stateUp)
	b.table(1, 1, 0, classifier.Rule{Proto: unix.IPPROTO_SCTP, Action: actGroup, Arg: benchGroup, Path: 1, PathSlot: 1})
	f := segment(0, 3000)
	f[23], f[24], f[25] = unix.IPPROTO_SCTP, 0, 0
	binary.BigEndian.PutUint16(f[24:], ^sum16(f[14:34]))
	if v, _ := b.run(f, 0xffff); v != verdictRedirect {
		t.Errorf("the verdict on a packet in segments is %d, must be %d", v, verdictRedirect)
	}
	if v, _ := b.run(f, 0); v != verdictShot { // no address to answer from
		t.Errorf("the verdict on a packet that is too big is %d, must be %d", v, verdictShot)
	}
}

// TestProgramReset: the reset's checksum is right as it stands, and is what a
// device makes of it that takes the packet's checksum for a partial one.
func TestProgramReset(t *testing.T) {
	b := newBench(t, 0, stateUp)
	b.put("groups", benchGroup, func() groupValue {
		g := groupValue{ID: benchGroup, Path: 1, PathSlot: 1, Flags: groupReset, Then: 9, Back: 9, Count: 1}
		g.Members[0] = memberValue{Vport: benchInstance, Key: 1, Weight: 1, Slot: benchInstance}
		return g
	}())
	b.run(segment(2, 0), 0)
	b.put("vports", uint32(benchInstance), vportValue{ID: benchInstance, Kind: vportInstance, State: stateClosed, Ifindex: 1, Other: benchInstance})
	v, out := b.run(segment(16, 100), 0)
	if v != verdictRedirect || len(out) != 54 {
		t.Fatalf("the verdict is %d with %d bytes, must be %d with 54", v, len(out), verdictRedirect)
	}
	ip, tcp := out[14:34], out[34:]
	if sum16(ip) != 0xffff {
		t.Errorf("the header's checksum is wrong: %x", ip)
	}
	pseudo := append(append([]byte{}, ip[12:20]...), 0, unix.IPPROTO_TCP, 0, 20)
	if sum16(append(append([]byte{}, pseudo...), tcp...)) != 0xffff {
		t.Errorf("the checksum is wrong: %x", tcp)
	}
	if got, made := binary.BigEndian.Uint16(tcp[16:]), ^sum16(tcp); got != made {
		t.Errorf("a device would write checksum %04x over %04x", made, got)
	}
	if tcp[13] != 4 || binary.BigEndian.Uint32(tcp[4:]) != 9 {
		t.Errorf("the reset has flags %x and sequence number %d, must have 4 and 9", tcp[13], binary.BigEndian.Uint32(tcp[4:]))
	}
	want := vportCounters{InPackets: 2, InBytes: 180}
	want.Dropped[16] = 1 // reset
	b.counters(benchEdge, want)
}

func TestProgramUntouched(t *testing.T) {
	b := newBench(t, 0, stateUp)
	f := segment(2, 0)
	f[23] = 17 // UDP: no rule
	if v, _ := b.run(f, 0); v != verdictOK {
		t.Errorf("the verdict is %d, must be %d", v, verdictOK)
	}
	b.counters(benchEdge, vportCounters{})
	b.counters(benchInstance, vportCounters{})
}

// TestProgramFragmentsAge: the ports of a datagram's first fragment are not those of what
// comes with its number a minute later.
func TestProgramFragmentsAge(t *testing.T) {
	b := newBench(t, 0, stateUp)
	b.table(1, 1, 0, classifier.Rule{Proto: 17, Action: actGroup, Arg: benchGroup, Path: 1, PathSlot: 1})
	piece := func(field uint16) []byte {
		f := segment(0, 12)
		ip := f[14:34]
		ip[9], ip[10], ip[11] = unix.IPPROTO_UDP, 0, 0
		binary.BigEndian.PutUint16(ip[6:], field)
		binary.BigEndian.PutUint16(ip[10:], ^sum16(ip))
		return f
	}
	first, rest := piece(0x2000), piece(4)
	for _, f := range [][]byte{first, rest} {
		if v, _ := b.run(f, 0); v != verdictRedirect {
			t.Fatalf("the verdict on a fragment is %d, must be %d", v, verdictRedirect)
		}
	}
	for _, x := range []struct {
		back uint32 // seconds
		want int32
	}{{50, verdictRedirect}, {11, verdictOK}} {
		var k, v []byte
		m := b.c.Maps["frags"]
		for it := m.Iterate(); it.Next(&k, &v); {
			binary.LittleEndian.PutUint32(v[8:], binary.LittleEndian.Uint32(v[8:])-x.back)
			if err := m.Put(k, v); err != nil {
				t.Fatal(err)
			}
		}
		if v, _ := b.run(rest, 0); v != x.want {
			t.Errorf("%d seconds later the verdict is %d, must be %d", x.back, v, x.want)
		}
	}
}

// TestProgramForgedReset: an end that goes on sending has not reset its connection.
func TestProgramForgedReset(t *testing.T) {
	b := newBench(t, 0, stateUp)
	state := func(change func(*flowValue)) (flags uint8) { // of the pending entry
		found := false
		var m *ebpf.Map
		if err := b.c.Maps[pendingMap].Lookup(uint32(0), &m); err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		var k flowKey
		var v flowValue
		for it := m.Iterate(); it.Next(&k, &v); {
			if unthree(k.Scope) != benchEdge {
				continue
			}
			if change(&v); m.Put(k, v) != nil {
				t.Fatal("the entry cannot be written")
			}
			flags, found = v.Flags&flowRST, true
		}
		if !found {
			t.Fatal("there is no entry")
		}
		return flags
	}
	ago := func(v *flowValue) { v.Seen = three(v.seen() - 2) }
	as := func(*flowValue) {}
	b.run(segment(2, 0), 0)
	for _, x := range []struct {
		name   string
		flags  byte
		before func(*flowValue)
		want   uint8
	}{
		{"a reset", 4, as, flowRST},
		{"data two seconds later", 16, ago, 0},
	} {
		state(x.before)
		b.run(segment(x.flags, 10), 0)
		if got := state(as); got != x.want {
			t.Errorf("after %s the entry says %#x of a reset, must be %#x", x.name, got, x.want)
		}
	}
}

// TestProgramWithinItself: where the underlay is an uplink for the machine's own traffic,
// a tunnel packet that leaves there runs the program in the midst of the packet that it
// carries on, of which it must not touch what is known.
func TestProgramWithinItself(t *testing.T) {
	b := newBench(t, 0, stateUp)
	own, peer := wide(netip.MustParseAddr("10.1.0.2")), wide(netip.MustParseAddr("10.9.0.2"))
	b.put("ports", uint32(1), portValue{Vport: benchEdge, Slot: benchEdge, Kind: portUplink, Attach: attachHost})
	b.put("nodes", uint32(0), nodeValue{
		Edge: benchEdge, EdgeSlot: benchEdge, EdgeTable: 1, TunnelPort: 4797, UnderlayIfindex: 1, HostIfindex: 1, UnderlayFamily: 4,
	})
	b.put("locals", addrKey{own, 4}, uint32(1))
	b.put("peer_addrs", addrKey{peer, 4}, peerRef{Secret: 7, Slot: 1})
	frame := segment(0, 100)
	frame[14+9], frame[34+2], frame[34+3] = unix.IPPROTO_UDP, 4797>>8, 4797&0xff
	frame[14+10], frame[14+11] = 0, 0
	binary.BigEndian.PutUint16(frame[14+10:], ^sum16(frame[14:34]))
	m := b.c.Maps["scratch"]
	var before, after [][]byte
	for range ebpf.MustPossibleCPU() {
		before = append(before, bytes.Repeat([]byte{0}, int(m.ValueSize())))
		before[len(before)-1][100] = 0x5a
	}
	for _, x := range []struct {
		port byte
		same bool
	}{{4797 & 0xff, true}, {80, false}} { // what is no tunnel packet is parsed
		if err := m.Put(uint32(0), before); err != nil {
			t.Fatal(err)
		}
		frame[34+3] = x.port
		if v, _ := b.run(frame, 0); x.same && v != verdictOK {
			t.Errorf("the verdict is %d, must be %d", v, verdictOK)
		}
		if err := m.Lookup(uint32(0), &after); err != nil {
			t.Fatal(err)
		}
		if got := slices.EqualFunc(before, after, bytes.Equal); got != x.same {
			t.Errorf("of a packet to port …%d what is known of another is untouched: %v, must be %v", x.port, got, x.same)
		}
	}
}

// TestProgramForgets: what a packet has left in the memory of its CPU, where the next one
// is worked on, decides nothing about that.
func TestProgramForgets(t *testing.T) {
	b := newBench(t, 0, stateUp)
	spec, err := objectSpec(Options{Flows: 1 << 12})
	if err != nil {
		t.Fatal(err)
	}
	resumes := 0 // by which programs hand a packet over
	for _, f := range spec.Maps["scratch"].Value.(*btf.Struct).Members {
		if f.Name == "resumes" {
			resumes = int(f.Offset.Bytes())
		}
	}
	if resumes == 0 {
		t.Fatal("the memory has no such field")
	}
	b.put("paths", uint32(1), pathValue{ID: 1, Flags: pathCut, AdoptUntil: math.MaxUint64})
	b.table(1, 1, 0, classifier.Rule{Proto: 6, Action: actGroup, Arg: benchGroup, Path: 1, PathSlot: 1},
		classifier.Rule{Proto: 17, Action: actDrop, Arg: 7, Path: 1, PathSlot: 1},
		classifier.Rule{Proto: 132, Action: actExit, Path: 1, PathSlot: 1})
	of := func(proto, flags, source byte) []byte {
		f := segment(flags, 20)
		f[14+9], f[14+12] = proto, source
		return f
	}
	frames := map[string][]byte{
		"begins": of(6, 2, 10), "is cut": of(6, 16, 10), "dropped": of(17, 0, 10), "passes": of(132, 0, 10),
		"of no rule": of(47, 0, 10), "spoofed": of(6, 2, 240),
	}
	port := uint16(5000)
	run := func(name string, left []byte) string {
		copy(left[resumes:], make([]byte, 4))
		b.put("scratch", uint32(0), slices.Repeat([][]byte{left}, ebpf.MustPossibleCPU()))
		for _, slot := range []uint32{benchEdge, benchInstance} {
			b.put("vport_stats", slot, make([]vportCounters, ebpf.MustPossibleCPU()))
		}
		frame := slices.Clone(frames[name])
		port++
		binary.BigEndian.PutUint16(frame[34:], port) // a flow of its own
		v, out := b.run(frame, 0)
		return fmt.Sprintf("verdict %d, %d bytes, edge %v, instance %v", v, len(out), b.counted(benchEdge), b.counted(benchInstance))
	}
	size := int(b.c.Maps["scratch"].ValueSize())
	for name := range frames {
		want := run(name, make([]byte, size))
		for _, of := range [][]byte{{0xff}, {1}, {1, 0, 0, 0}} {
			if got := run(name, bytes.Repeat(of, size/len(of))); got != want {
				t.Errorf("a packet that %s, after one that left %x everywhere: %s\nmust be %s", name, of, got, want)
			}
		}
	}
}
