package relay

import (
	"math"
	"testing"
	"time"
)

func fixed(n int) func(int) int { return func(int) int { return n } }

func TestLineRate(t *testing.T) {
	l := newLine(Shape{Rate: 8_000_000, Queue: 10_000}) // 1 byte a µs
	// Twelve frames of 1000 bytes at once: one is being sent, ten wait, and the
	// queue is looked at before a frame joins it, so that one more fits.
	var last int64
	for i := range 14 {
		parts := l.admit(0, 1, fixed(1000), nil)
		if i < 11 {
			if len(parts) != 1 || parts[0].depart != int64(i+1)*1e6 {
				t.Fatalf("frame %d: %+v", i, parts)
			}
			last = parts[0].depart
		} else if len(parts) != 0 {
			t.Fatalf("frame %d was taken into a full queue: %+v", i, parts)
		}
	}
	if want := (Counters{Packets: 11, Bytes: 11_000, Full: 3}); l.Counters != want {
		t.Errorf("counters %+v", l.Counters)
	}
	// After a pause the line is free again and has saved nothing up.
	parts := l.admit(last+5e6, 1, fixed(500), nil)
	if len(parts) != 1 || parts[0].depart != last+5e6+5e5 {
		t.Errorf("after a pause: %+v", parts)
	}
}

func TestLineUnlimited(t *testing.T) {
	l := newLine(Shape{Delay: time.Millisecond})
	for range 1000 {
		parts := l.admit(5, 1, fixed(1500), nil)
		if len(parts) != 1 || l.departure(parts[0].depart) != 1_000_005 {
			t.Fatalf("%+v", parts)
		}
	}
}

// TestLineCutsLongFrames: at a low rate an uncut frame leaves in pieces of a
// millisecond, as its segments would.
func TestLineCutsLongFrames(t *testing.T) {
	l := newLine(Shape{Rate: 100e6, Queue: 1 << 20})
	parts := l.admit(0, 40, fixed(1500), nil) // 120 µs each
	next := 0
	for i, p := range parts {
		if p.first != next || p.end <= p.first || p.end-p.first > 10 {
			t.Fatalf("part %d: %+v", i, p)
		}
		if want := int64(p.end) * 120_000; p.depart != want {
			t.Errorf("part %d leaves at %d, its last segment is sent at %d", i, p.depart, want)
		}
		next = p.end
	}
	if next != 40 || len(parts) < 4 || l.Packets != 40 {
		t.Errorf("%d segments in %d parts, counted %d", next, len(parts), l.Packets)
	}
	fast := newLine(Shape{Rate: 10e9, Queue: 1 << 20})
	if parts := fast.admit(0, 40, fixed(1500), nil); len(parts) != 1 {
		t.Errorf("at 10 Gbit/s a frame of 48 µs is cut into %d", len(parts))
	}
}

func TestLineLoss(t *testing.T) {
	const n, p = 200_000, 0.03
	l := newLine(Shape{Loss: p, Seed: 1})
	covered := 0
	for range n / 40 {
		previous := 0
		for _, part := range l.admit(0, 40, fixed(1500), nil) {
			if part.first < previous || part.end <= part.first {
				t.Fatalf("parts out of order: %+v", part)
			}
			previous = part.end + 1 // at least one lost segment between parts
			covered += part.end - part.first
		}
	}
	if uint64(covered) != l.Packets || l.Packets+l.Lost != n {
		t.Errorf("%d segments left, counters %+v", covered, l.Counters)
	}
	if got, sigma := float64(l.Lost)/n, math.Sqrt(p*(1-p)/n); math.Abs(got-p) > 5*sigma {
		t.Errorf("lost %.4f, want %.4f ± %.4f", got, p, 5*sigma)
	}
	again := newLine(Shape{Loss: p, Seed: 1})
	for range n / 40 {
		again.admit(0, 40, fixed(1500), nil)
	}
	if again.Lost != l.Lost {
		t.Error("the same seed lost other segments")
	}
}

func TestLineJitterKeepsOrder(t *testing.T) {
	l := newLine(Shape{Delay: 10 * time.Millisecond, Jitter: 5 * time.Millisecond, Seed: 2})
	var previous, low, high int64 = 0, math.MaxInt64, 0
	for i := range int64(10_000) {
		sent := i * 10_000_000 // far enough apart that order does not press
		at := l.departure(sent)
		if at < previous {
			t.Fatal("a frame overtook another")
		}
		previous = at
		low, high = min(low, at-sent), max(high, at-sent)
	}
	if low < 5e6 || low > 51e5 || high > 15e6 || high < 149e5 {
		t.Errorf("delays from %d to %d ns", low, high)
	}
}

func TestFIFO(t *testing.T) {
	f := newFIFO(1 << 20)
	next, expect := byte(0), byte(0)
	for round := range 5000 {
		for range round % 7 {
			b := f.space(maxGSOSize)
			if b == nil {
				t.Fatal("full")
			}
			n := 14 + int(next)*17
			for i := range n {
				b[i] = next
			}
			f.push(n, int64(round))
			next++
		}
		for k := min(f.n, (round+3)%7); k > 0; k-- {
			e := f.at(0)
			if len(e.frame) != 14+int(expect)*17 || e.frame[0] != expect || e.frame[len(e.frame)-1] != expect {
				t.Fatalf("round %d: frame %d is damaged", round, expect)
			}
			f.drop(1)
			expect++
		}
	}
	f.drop(f.n)
	if f.chunks > 1 {
		t.Errorf("an empty fifo holds %d chunks", f.chunks)
	}
	for f.space(maxGSOSize) != nil {
		f.push(maxGSOSize, 0)
		if f.n > 100 {
			t.Fatal("takes without limit")
		}
	}
	f.drop(f.n)
	if f.space(100) == nil {
		t.Error("an emptied fifo takes nothing")
	}
}

// TestPausedBetweenClocks: a thread that does not run between two clocks takes no frame for
// older than it is.
func TestPausedBetweenClocks(t *testing.T) {
	const ahead, reading = int64(1e18), 30              // ns
	for name, pauses := range map[string]map[int]int64{ // before which reading, ns
		"none":               {},
		"before the other":   {1: 3e6},
		"behind the other":   {2: 3e6},
		"at each comparison": {2: 3e6, 5: 5e6, 8: 2e6, 11: 4e6},
	} {
		var at int64 = 1e9
		readings := 0
		read := func(from int64) func() int64 {
			return func() int64 {
				at += reading + pauses[readings]
				readings++
				return at + from
			}
		}
		now, got := compare(read(0), read(ahead))
		if now != at || got > ahead || got < ahead-soon && len(pauses) < 4 {
			t.Errorf("pause %s: the real-time clock is %d ns too far ahead", name, got-ahead)
		}
	}
}
