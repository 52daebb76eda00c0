package ebpf

import "time"

// A generation is what decides which elements a flow passes, from one change of it to the next:
// the rules, and whether an element that is passed by without instances has one. Flow
// entries hold its number, so that a SYN tells whether what decided them is still in force
// (bpf/lib/pack.h, is_stale). There are few numbers: one is used again only when the time of an
// entry tells it from those in which the number was in use before.
const (
	generations  = 63
	leastOfRound = 3 * time.Second // of all numbers
)

// beginGeneration begins another generation if something has changed, or none is in force yet.
// What is decided from now on is decided by the whole configuration. round is when numbers
// began again.
func (m *kernelMaps) beginGeneration(changed bool, round *time.Time) error {
	n := m.nodes.now[0]
	if n.Generation != 0 && !changed {
		return nil
	}
	if n.Generation = n.Generation%generations + 1; n.Generation == 1 {
		time.Sleep(time.Until(round.Add(leastOfRound)))
		*round = time.Now()
	}
	// A second less: the clock of the programs is behind by a tick.
	n.Since = uint32(monotonic()/uint64(time.Second)-1) & seenMask
	return m.nodes.put(0, n)
}

// opensBypassed reports whether an instance opens of an element that is passed by where it has none.
func (m *kernelMaps) opensBypassed(want *state) bool {
	for _, g := range want.groups {
		if g.Flags&groupBypass == 0 {
			continue
		}
		for _, x := range g.Members[:g.Count] {
			was, is := m.vports.now[uint32(x.Slot)], want.vports[uint32(x.Slot)]
			if is.State != stateClosed && (was.State == stateClosed || was.ID != is.ID) {
				return true
			}
		}
	}
	return false
}
