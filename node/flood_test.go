package node_test

import (
	"slices"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node/meter"
)

// TestFloodTold: the agent tells that a tenant begins too many flows, and that it is
// over, about the tenant.
func TestFloodTold(t *testing.T) {
	b := newFixture(t)
	clock := newManualClock()
	b.clock = clock
	count := func(n uint64) { b.path.set(func() { b.path.refused = map[string]uint64{"acme": n, "calm": 3} }) }
	count(5)
	r := b.run()
	pass := func() { // one look at what was refused
		b.until("the agent has looked", func() bool { return clock.awaited(2*time.Second) > 0 })
		clock.move(2 * time.Second)
	}
	for range 3 {
		pass()
	}
	heard := func(reason string) bool { return slices.Contains(r.server.reasons(), reason) }
	for n := uint64(10); n < 1000 && !heard(meter.ReasonNewFlowsOver); n += 10 {
		count(n)
		pass()
	}
	for i := 0; i < 1000 && !heard(meter.ReasonNewFlowsWithin); i++ {
		pass()
	}
	var about []string
	for _, e := range r.server.told() {
		if e.Reason == meter.ReasonNewFlowsOver || e.Reason == meter.ReasonNewFlowsWithin {
			about = append(about, e.About)
		}
	}
	acme := onpath.Key{Kind: onpath.KindTenant, Name: "acme"}.String()
	if !slices.Equal(about, []string{acme, acme}) {
		t.Errorf("told about %v, must tell twice about %s", about, acme)
	}
}
