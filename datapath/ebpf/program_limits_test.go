package ebpf

import (
	"encoding/binary"
	"math"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath/datapath/ebpf/classifier"
)

// TestProgramClocksWrap: limits that are kept as times hold across the point where these
// times wrap, which at worst would refuse everything until the agent starts again.
func TestProgramClocksWrap(t *testing.T) {
	b := newBench(t, 0, stateUp)
	before := uint64(math.MaxUint64) // shortly before the clock began again at 0
	port := uint16(5000)
	begin := func() int32 {
		port++
		f := segment(2, 0)
		binary.BigEndian.PutUint16(f[34:], port)
		v, _ := b.run(f, 0)
		return v
	}
	at := uint32(benchInstance*rateWays + rateOut)
	limit := rateOf(8_000_000)
	limit.Due = before
	b.put("rates", at, limit)
	if v := begin(); v != verdictRedirect {
		t.Errorf("to a vport with a rate, the verdict is %d, must be %d", v, verdictRedirect)
	}
	limit.Due = uint64(monotonic())<<rateShift + limit.Ahead + 1<<40
	b.put("rates", at, limit)
	if v := begin(); v != verdictShot {
		t.Errorf("above the rate, the verdict is %d, must be %d", v, verdictShot)
	}
	b.put("rates", at, rateValue{})
	b.put("tenants", uint32(0), tenantValue{Cap: 1024, Interval: 1 << 20, Burst: 1 << 24})
	b.put("admissions", uint32(0), admissionValue{Due: before})
	if v := begin(); v != verdictRedirect {
		t.Errorf("of a tenant with a limit of new flows, the verdict is %d, must be %d", v, verdictRedirect)
	}
}

// TestProgramErrorsShared: one sender uses up neither what others of its tenant are told nor
// what other tenants' senders are.
func TestProgramErrorsShared(t *testing.T) {
	b := newBench(t, 1400, stateUp)
	runtime.LockOSThread() // the limits are each CPU's
	var home, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &home); err != nil {
		t.Fatal(err)
	}
	for cpu := range len(home) * 64 {
		if home.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if unix.SchedSetaffinity(0, &home) == nil {
			runtime.UnlockOSThread()
		}
	}()
	b.put("ports", uint32(1), portValue{Vport: benchEdge, Slot: benchEdge, Kind: portUplink, Attach: attachRouter, Addr4: [4]byte{10, 1, 0, 1}})
	for tenant := uint32(1); tenant < 3; tenant++ {
		b.needPending(tenant)
		b.put("tenants", tenant, tenantValue{Cap: 1 << 20})
		b.put("paths", tenant, pathValue{ID: tenant, MTU: 1400, Tenant: tenant})
		g := groupValue{ID: tenant << 6, Path: tenant, PathSlot: uint16(tenant), Then: 9, Back: 9, Count: 1}
		g.Members[0] = memberValue{Vport: benchInstance, Key: 1, Weight: 1, Slot: benchInstance}
		b.put("groups", tenant<<6, g)
	}
	b.table(1, 1, 0, classifier.Rule{Proto: 6, Action: actGroup, Arg: 1 << 6, Path: 1, PathSlot: 1},
		classifier.Rule{Proto: 17, Action: actGroup, Arg: 2 << 6, Path: 2, PathSlot: 2})
	told := func(proto byte, source uint16) bool { // a packet that is too big
		f := segment(16, 1400)
		f[23], f[28], f[29] = proto, byte(source>>8), byte(source)
		v, out := b.run(f, 0)
		return v == verdictRedirect && len(out) > 34 && out[23] == unix.IPPROTO_ICMP
	}
	count := func(n int, source func(i int) uint16) (answered int) {
		for i := range n {
			if told(6, source(i)) {
				answered++
			}
		}
		return answered
	}
	if n := count(200, func(int) uint16 { return 2 }); n < 20 || n > 60 {
		t.Errorf("a sender that goes on is told %d times, must be told some 20 times a second", n)
	}
	if !told(6, 3) {
		t.Error("another sender of the tenant is not told")
	}
	if n := count(2000, func(i int) uint16 { return uint16(i) + 4 }); n < 100 || n > 1900 {
		t.Errorf("of 2000 senders %d are told, must be more than 100 and not all", n)
	}
	if !told(17, 2) {
		t.Error("while one tenant's errors are used up, another's sender is not told")
	}
}
