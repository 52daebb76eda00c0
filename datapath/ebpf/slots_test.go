package ebpf

import (
	"testing"

	"github.com/onpath/onpath"
)

// TestFirstSlot: a vport stands where the programs look first (first_slot in bpf/lib/packet.h),
// unless another does, and never in slot 0.
func TestFirstSlot(t *testing.T) {
	s := recoverSlots(&kernelMaps{
		vports: &kmap[uint32, vportValue]{now: map[uint32]vportValue{17: {ID: 5}}}, functions: &kmap[uint32, functionValue]{},
		paths: &kmap[uint32, pathValue]{}, peers: &kmap[uint32, peerValue]{},
	})
	seen := map[uint32]onpath.VportID{}
	for _, c := range []struct {
		id    onpath.VportID
		first bool
	}{{5, false}, {16, true}, {17, false}, {maxVports, false}, {maxVports + 16, false}, {2*maxVports + 40, true}, {maxVports - 1, true}} {
		slot, _, err := s.vports.take(c.id)
		if err != nil {
			t.Fatal(err)
		}
		if other, taken := seen[slot]; taken || slot == 0 {
			t.Errorf("vport %d: slot %d, which is of %d", c.id, slot, other)
		}
		if seen[slot] = c.id; (slot == uint32(c.id)%maxVports) != c.first {
			t.Errorf("vport %d: slot %d; where programs look first: %v, must be %v", c.id, slot, !c.first, c.first)
		}
	}
	if slot := s.vports.of[5]; slot != 17 {
		t.Errorf("vport 5 has moved to slot %d", slot)
	}
}
