package ebpf

import (
	"encoding/binary"
	"math"
	"testing"
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
