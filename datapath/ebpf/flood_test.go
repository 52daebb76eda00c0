package ebpf

import (
	"encoding/binary"
	"testing"

	"github.com/onpath/onpath/datapath/ebpf/classifier"
)

// floodCap is what each tenant may have established in these tests.
const floodCap = 480

// floodBench has two tenants, 1 and 2, each with a path of its own for both
// directions: of TCP port 80 and UDP port 53, and of TCP port 443.
func floodBench(t *testing.T) *bench {
	b := newBench(t, 0, stateUp)
	rules := []classifier.Rule{}
	for path, service := range map[uint16][]struct {
		proto uint8
		port  uint16
	}{1: {{6, 80}, {17, 53}}, 2: {{6, 443}}} {
		tenant := uint32(path)
		b.put("paths", uint32(path), pathValue{ID: uint32(path), Tenant: tenant})
		b.put("tenants", tenant, tenantValue{Cap: floodCap})
		b.needPending(tenant)
		for _, reverse := range []uint16{0, 1} {
			id := uint32(path)<<6 | uint32(reverse)
			g := groupValue{ID: id, Path: uint32(path), PathSlot: path, Flags: groupReverse * reverse, Then: 9, Back: 9, Count: 1}
			g.Members[0] = memberValue{Vport: benchInstance, Key: 1, Weight: 1, Slot: benchInstance}
			b.put("groups", id, g)
			for _, s := range service {
				r := classifier.Rule{Proto: s.proto, Action: actGroup, Arg: id, Path: uint32(path), PathSlot: path}
				if reverse == 0 {
					r.Flags, r.DPortFirst, r.DPortLast = classifier.DstPorts, s.port, s.port
				} else {
					r.Flags, r.SPortFirst, r.SPortLast = classifier.SrcPorts|classifier.Reverse, s.port, s.port
				}
				rules = append(rules, r)
			}
		}
	}
	b.table(1, 1, 64, rules...)
	return b
}

// between is a frame of client n, to a port or turned round from it.
func between(n uint32, proto uint8, port uint16, flags byte, answer bool) []byte {
	f := segment(flags, 0)
	f[23] = proto
	ends := [2][]byte{{11, byte(n >> 16), byte(n >> 8), byte(n)}, {10, 9, 0, 2}}
	ports := [2]uint16{4096, port}
	if answer {
		ends[0], ends[1], ports[0], ports[1] = ends[1], ends[0], ports[1], ports[0]
	}
	copy(f[26:], ends[0])
	copy(f[30:], ends[1])
	binary.BigEndian.PutUint16(f[34:], ports[0])
	binary.BigEndian.PutUint16(f[36:], ports[1])
	if proto == 17 {
		binary.BigEndian.PutUint16(f[38:], 20)
	}
	binary.BigEndian.PutUint16(f[24:], 0)
	binary.BigEndian.PutUint16(f[24:], ^sum16(f[14:34]))
	return f
}

func (b *bench) pass(frames ...[]byte) {
	b.t.Helper()
	for _, f := range frames {
		if v, _ := b.run(f, 0); v != verdictRedirect {
			b.t.Fatalf("the verdict is %d, must be %d", v, verdictRedirect)
		}
	}
}

// connect takes client n through a handshake.
func (b *bench) connect(n uint32, port uint16) {
	b.t.Helper()
	b.pass(between(n, 6, port, 0x02, false), between(n, 6, port, 0x12, true), between(n, 6, port, 0x10, false))
}

// entries counts the established entries at the edge, and finds the one of a
// client's packets.
func (b *bench) entries(n uint32, port uint16) (total int, of *flowValue) {
	b.t.Helper()
	err := eachFlow(b.t.Context(), b.c.Maps[flowsMap], func(k *flowKey, v *flowValue) bool {
		if unthree(k.Scope) != benchEdge {
			return true
		}
		total++
		if binary.BigEndian.Uint32(k.Src[12:]) == 11<<24|n && binary.BigEndian.Uint16(k.DPort[:]) == port {
			of = new(*v)
		}
		return true
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return total, of
}

// TestFlood: new connections, however many, evict no established one, neither of
// their own tenant nor of another; those lose no packet and are counted on the
// entries that they had.
func TestFlood(t *testing.T) {
	t.Parallel()
	b := floodBench(t)
	const connections, flood = 60, 300_000
	for n := range uint32(connections) {
		b.connect(n, 80)
		b.connect(n, 443)
	}
	b.pass(between(1<<20, 6, 443, 0x02, false)) // a handshake that takes its time
	if total, _ := b.entries(0, 80); total != 4*connections {
		t.Fatalf("%d connections have %d entries at the edge, must have %d", 2*connections, total, 4*connections)
	}
	for n := range uint32(flood) {
		b.pass(between(1<<16+n, 6, 80, 0x02, false))
		if n%16 == 0 { // servers answer SYNs, and floods repeat themselves
			b.pass(between(1<<16+n, 6, 80, 0x12, true), between(1<<16+n, 6, 80, 0x02, false))
		}
		if n%1000 == 0 {
			c := n / 1000 % connections
			b.pass(between(c, 6, 80, 0x10, false), between(c, 6, 443, 0x10, true))
		}
	}
	if total, _ := b.entries(0, 80); total != 4*connections {
		t.Errorf("after the flood there are %d established entries, must be %d as before", total, 4*connections)
	}
	for n := range uint32(connections) {
		_, v := b.entries(n, 80)
		if v == nil {
			t.Fatalf("the flood evicted connection %d of its own tenant", n)
		}
		if want := uint64(2 + flood/1000/connections); v.packets() != want {
			t.Errorf("connection %d has %d packets, must have %d", n, v.packets(), want)
		}
		if _, v := b.entries(n, 443); v == nil {
			t.Fatalf("the flood evicted connection %d of the other tenant", n)
		}
	}
	b.pass(between(1<<20, 6, 443, 0x12, true), between(1<<20, 6, 443, 0x10, false))
	if _, v := b.entries(1<<20, 443); v == nil || v.packets() != 2 {
		t.Errorf("the flood disturbed a handshake of the other tenant: %+v", v)
	}
	b.connect(1<<21, 80)
	if _, v := b.entries(1<<21, 80); v == nil {
		t.Error("after the flood its tenant can establish nothing")
	}
}

// TestFloodOfDatagrams: questions, also such with an answer, take no room of flows that
// live, nor do flows of one direction before they have lasted.
func TestFloodOfDatagrams(t *testing.T) {
	b := floodBench(t)
	for n := range uint32(5000) {
		b.pass(between(n, 17, 53, 0, false))
		if n%2 == 0 {
			b.pass(between(n, 17, 53, 0, true))
		}
	}
	var h quotaValue
	if err := b.c.Maps["quotas"].Lookup(uint32(1), &h); err != nil {
		t.Fatal(err)
	}
	if h.Established != 0 {
		t.Errorf("a flood of questions holds %d entries, must hold none", h.Established)
	}
	b.pass(between(4998, 17, 53, 0, false))
	if total, v := b.entries(4998, 53); total != 2 || v == nil {
		t.Errorf("a flow with a packet behind the first of each direction has %d entries", total)
	}
}

// TestForgedHandshake: an acknowledgement that its sender has guessed establishes nothing.
func TestForgedHandshake(t *testing.T) {
	b := floodBench(t)
	for n := range uint32(1000) {
		b.pass(between(n, 6, 80, 0x02, false))
		b.pass(between(n, 6, 80, 0x12, true)) // begins an entry: the instance gives nothing back
		b.pass(acknowledges(between(n, 6, 80, 0x10, false), 0x80000000+n))
	}
	if total, _ := b.entries(0, 80); total != 0 {
		t.Errorf("%d entries of forged connections are established", total)
	}
	b.connect(7, 80)
	if _, v := b.entries(7, 80); v == nil {
		t.Error("a connection with a real handshake is not established")
	}
}

// TestOneWayEstablished: where there was no room at first, a flow of one direction
// that lives is established later.
func TestOneWayEstablished(t *testing.T) {
	b := floodBench(t)
	b.put("quotas", uint32(1), quotaValue{Established: floodCap})
	for range 3 {
		b.pass(between(7, 17, 53, 0, false))
	}
	if _, v := b.entries(7, 53); v != nil {
		t.Fatal("it was established without room")
	}
	b.put("quotas", uint32(1), quotaValue{})
	for range oneWayMany {
		b.pass(between(7, 17, 53, 0, false))
	}
	if _, v := b.entries(7, 53); v == nil || v.packets() < oneWayMany {
		t.Errorf("after %d packets of one direction the entry is %+v", oneWayMany+3, v)
	}
}

// acknowledges has a frame acknowledge another number.
func acknowledges(frame []byte, ack uint32) []byte {
	binary.BigEndian.PutUint32(frame[42:], ack)
	return frame
}
