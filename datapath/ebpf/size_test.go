package ebpf

import "testing"

// TestSizes: tables are sized by the machine.
func TestSizes(t *testing.T) {
	for _, c := range []struct {
		memory uint64
		flows  int
	}{{1 << 30, 1 << 17}, {8 << 30, 1 << 19}, {25_276_502_016, 1 << 21}, {1 << 40, 1 << 24}} {
		if n := flowsFor(c.memory); n != c.flows {
			t.Errorf("with %d bytes of memory there are %d flows, must be %d", c.memory, n, c.flows)
		}
	}
	for _, c := range []struct {
		flows   uint32
		cpus    int
		pending int
	}{{1 << 17, 2, 1 << 14}, {1 << 21, 2, 1 << 17}, {1 << 24, 2, 1 << 17}, {1 << 17, 64, 1 << 15}} {
		if n := pendingFor(c.flows, c.cpus); n != c.pending {
			t.Errorf("beside %d flows, with %d CPUs, %d may begin, must be %d", c.flows, c.cpus, n, c.pending)
		}
	}
}

// TestPendingWithin: however many tenants there are, their tables of flows that begin take
// no more than the table of established ones, but for the smallest that can work.
func TestPendingWithin(t *testing.T) {
	const size, most, least, tenants = 1 << 17, 1 << 21, 1 << 10, 4095
	var taken, last uint32 = 0, size
	for n := range tenants {
		next := pendingWithin(size, taken, most, least)
		if n < 8 && next != size {
			t.Fatalf("tenant %d may have %d flows that begin, must be %d", n, next, size)
		}
		if next > last || next < least {
			t.Fatalf("tenant %d may have %d flows that begin, the one before %d, the fewest are %d", n, next, last, least)
		}
		taken, last = taken+next, next
	}
	if taken > most+tenants*least {
		t.Errorf("%d tenants take %d entries; must be at most %d, and %d each", tenants, taken, most, least)
	}
	if n := pendingWithin(1<<14, 0, 1<<14, 1<<16); n != 1<<14 {
		t.Errorf("what was asked for is 16,384, and becomes %d", n)
	}
}

// TestShrink: idle times are whole up to four fifths of the table, and then less and less.
func TestShrink(t *testing.T) {
	for _, c := range []struct {
		established uint64
		shrink      float64
	}{{0, 1}, {800, 1}, {900, 0.5}, {1000, 1.0 / 16}} {
		if got := shrinkFor(c.established, 1000); got < c.shrink-1e-9 || got > c.shrink+1e-9 {
			t.Errorf("with %d of 1000 entries idle times are multiplied by %v, must be by %v", c.established, got, c.shrink)
		}
	}
}
