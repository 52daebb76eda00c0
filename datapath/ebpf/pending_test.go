package ebpf

import (
	"os"
	"testing"

	"github.com/cilium/ebpf"
)

// TestPendingTables: tenants' tables of flows that begin differ in size, and the program's
// map of them takes all.
func TestPendingTables(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to make maps")
	}
	const size, most, least = 1 << 12, 1 << 14, 1 << 10
	spec, err := objectSpec(Options{Flows: most, Pending: size})
	if err != nil {
		t.Fatal(err)
	}
	of := spec.Maps[pendingMap].Copy()
	of.Pinning = ebpf.PinNone
	outer, err := ebpf.NewMap(of)
	if err != nil {
		t.Fatal(err)
	}
	defer outer.Close()
	p := &pending{outer: outer, spec: of.InnerMap, of: map[uint32]*ebpf.Map{}, most: most, least: least}
	defer p.close()
	var sum uint32
	for slot := range uint32(20) {
		if err := p.need(slot); err != nil {
			t.Fatalf("tenant %d: %v", slot, err)
		}
		sum += p.of[slot].MaxEntries()
	}
	if first, last := p.of[0].MaxEntries(), p.of[19].MaxEntries(); first != size || last != least {
		t.Errorf("the first tenant has %d entries, must have %d; the last one %d, must have %d", first, size, last, least)
	}
	if sum > most+20*least {
		t.Errorf("20 tenants have %d entries", sum)
	}
	if err := p.drop(0); err != nil {
		t.Fatal(err)
	}
}
