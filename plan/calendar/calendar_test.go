package calendar

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

var seed = flag.Uint64("calendar.seed", 0, "repeat a run")

// brute is a calendar that looks at every instant by itself.
type brute struct {
	room     map[string]onpath.Resources
	usable   map[string]bool
	cloudlet map[string]string
	booked   []Booking
}

const horizon = 40 // instants of a second, within which what is booked begins

func instant(k int) time.Time { return time.Unix(int64(1000+k), 0).UTC() }

func (b *brute) promised(name string, t time.Time) (sum onpath.Resources) {
	for _, k := range b.booked {
		for _, s := range k.Slots {
			if k.Node == name && !t.Before(s.From) && t.Before(s.Until) {
				sum = sum.Add(s.Capacity)
			}
		}
	}
	return sum
}

// worst is how full the node would be; false if the slots do not fit.
func (b *brute) worst(name string, slots []Slot) (worst float64, ok bool) {
	room := b.room[name]
	for _, s := range slots {
		for t := s.From; t.Before(s.Until) && !t.After(instant(6*horizon)); t = t.Add(time.Second) {
			sum := b.promised(name, t).Add(s.Capacity)
			x, y, w := amounts(sum), amounts(room), amounts(s.Capacity)
			for i := range x {
				if w[i] > y[i] || w[i] > 0 && x[i] > y[i] {
					return 0, false
				}
				if y[i] > 0 {
					worst = max(worst, float64(x[i])/float64(y[i]))
				}
			}
		}
	}
	return worst, true
}

func (b *brute) place(cloudlet string, slots []Slot, n int, apart bool) (chosen []string) {
	held := len(b.booked)
	defer func() { b.booked = b.booked[:held] }()
	for range n {
		best, most := "", -1.0
		for _, name := range sortedNames(b.room) {
			if b.cloudlet[name] != cloudlet || !b.usable[name] || apart && slices.Contains(chosen, name) {
				continue
			}
			if w, ok := b.worst(name, slots); ok && w > most {
				best, most = name, w
			}
		}
		if best == "" {
			return nil
		}
		chosen = append(chosen, best)
		b.booked = append(b.booked, Booking{best, slots})
	}
	return chosen
}

func (b *brute) earliest(cloudlets []string, slots []Slot, n int, apart bool) (time.Duration, bool) {
	for d := range 3 * horizon {
		for _, cl := range cloudlets {
			if b.place(cl, postponed(slots, time.Duration(d)*time.Second), n, apart) != nil {
				return time.Duration(d) * time.Second, true
			}
		}
	}
	return 0, false
}

func postponed(slots []Slot, d time.Duration) (out []Slot) {
	for _, s := range slots {
		if s.Until != Forever {
			s.Until = s.Until.Add(d)
		}
		out = append(out, Slot{s.From.Add(d), s.Until, s.Capacity})
	}
	return out
}

func sortedNames(m map[string]onpath.Resources) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

func randomSlots(r *rand.Rand) []Slot {
	at := r.IntN(horizon - 2)
	var out []Slot
	for range 1 + r.IntN(3) {
		end := at + 1 + r.IntN(8)
		s := Slot{instant(at), instant(end), onpath.Resources{
			CPU: onpath.CPU(r.IntN(4) * 500), Memory: onpath.Size(r.IntN(4) << 20), Network: onpath.Rate(r.IntN(3) * 1e6)}}
		if r.IntN(15) == 0 {
			s.Until = Forever
		}
		out = append(out, s)
		if s.Until == Forever {
			break
		}
		at = end
	}
	return out
}

// TestBruteForce: what the calendar says equals what looking at each instant says.
func TestBruteForce(t *testing.T) {
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	t.Logf("repeat with -args -calendar.seed %d", *seed)
	r := rand.New(rand.NewPCG(*seed, 1))
	for range 40 {
		c, b := New(), &brute{map[string]onpath.Resources{}, map[string]bool{}, map[string]string{}, nil}
		for i := range 1 + r.IntN(6) {
			name, cl := fmt.Sprintf("n%d", i), fmt.Sprintf("c%d", r.IntN(2))
			room := onpath.Resources{CPU: onpath.CPU(1000 + r.IntN(3)*1000), Memory: 8 << 20, Network: onpath.Rate(r.IntN(3) * 2e6)}
			usable := r.IntN(8) > 0
			b.room[name], b.usable[name], b.cloudlet[name] = room, usable, cl
			c.SetNode(name, cl, room, usable)
		}
		for range 60 {
			step(t, r, c, b)
		}
		for len(b.booked) > 0 {
			c.Free(b.booked[0])
			b.booked = b.booked[1:]
		}
		for name, n := range c.nodes {
			if len(n.time.blocks) > 0 {
				t.Fatalf("%s keeps points with nothing booked", name)
			}
		}
	}
}

func step(t *testing.T, r *rand.Rand, c *Calendar, b *brute) {
	t.Helper()
	slots, n, apart := randomSlots(r), 1+r.IntN(3), r.IntN(2) == 0
	cl := fmt.Sprintf("c%d", r.IntN(2))
	chosen, want := c.Place(cl, slots, n, apart), b.place(cl, slots, n, apart)
	if !slices.Equal(chosen, want) {
		t.Fatalf("Place(%s, %v, %d, %v) is %v, want %v", cl, slots, n, apart, chosen, want)
	}
	for _, name := range chosen {
		k := Booking{name, slots}
		c.Book(k)
		b.booked = append(b.booked, k)
	}
	if chosen == nil {
		both := []string{"c0", "c1"}
		later, ok := c.Earliest(both, slots, n, apart)
		wantLater, wantOK := b.earliest(both, slots, n, apart)
		if ok != wantOK || ok && later != wantLater {
			t.Fatalf("Earliest(%v, %d, %v) is %v %v, want %v %v", slots, n, apart, later, ok, wantLater, wantOK)
		}
	}
	if len(b.booked) > 0 && r.IntN(3) == 0 {
		i := r.IntN(len(b.booked))
		c.Free(b.booked[i])
		b.booked = slices.Delete(b.booked, i, i+1)
	}
	for name := range b.room {
		from, until := instant(r.IntN(horizon)), instant(r.IntN(2*horizon))
		peak := b.promised(name, from)
		for x := from; x.Before(until); x = x.Add(time.Second) {
			peak = amounts(peak).larger(amounts(b.promised(name, x))).resources()
		}
		if got := c.Peak(name, from, until); got != peak {
			t.Fatalf("Peak(%s, %v, %v) is %v, want %v", name, from, until, got, peak)
		}
		for _, s := range c.Steps(name, from, until) {
			if s.At.Before(until) && s.Promised != b.promised(name, s.At) {
				t.Fatalf("%s at %v has promised %v, Steps says %v", name, s.At, b.promised(name, s.At), s.Promised)
			}
		}
	}
}

// TestBlocks: many points, so that blocks are divided and go.
func TestBlocks(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	var line timeline
	type span struct{ from, until int64 }
	var spans []span
	for k := range 4000 {
		s := span{r.Int64N(1e6), 0}
		s.until = s.from + 1 + r.Int64N(1e5)
		line.add(s.from, s.until, vector{1, 2})
		spans = append(spans, s)
		if k%3 == 0 {
			i := r.IntN(len(spans))
			line.remove(spans[i].from, spans[i].until, vector{1, 2})
			spans = slices.Delete(spans, i, i+1)
		}
		if k%100 > 0 {
			continue
		}
		x, sum := r.Int64N(1e6), int64(0)
		for _, s := range spans {
			if s.from <= x && x < s.until {
				sum++
			}
		}
		if v := line.value(x); v != (vector{sum, 2 * sum}) {
			t.Fatalf("at %d %v, want %d", x, v, sum)
		}
		end := x + 1 + r.Int64N(3e5)
		most := sum
		for _, a := range spans { // values rise only where a span begins
			if n := int64(0); x < a.from && a.from < end {
				for _, s := range spans {
					if s.from <= a.from && a.from < s.until {
						n++
					}
				}
				most = max(most, n)
			}
		}
		if v, b := line.peak(x, end), line.bound(x, end); v != (vector{most, 2 * most}) || b.smaller(v) != v {
			t.Fatalf("from %d until %d at most %v, within %v; want %d", x, end, v, b, most)
		}
	}
	if len(line.blocks) < 10 {
		t.Fatalf("%d blocks", len(line.blocks))
	}
	for _, s := range spans {
		line.remove(s.from, s.until, vector{1, 2})
	}
	if len(line.blocks)+len(line.starts) > 0 {
		t.Fatalf("%d blocks are left of nothing", len(line.blocks))
	}
}

// BenchmarkPlace: what a decision costs with more and more reservations on a node.
func BenchmarkPlace(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c, r := New(), rand.New(rand.NewPCG(1, 2))
			for i := range 20 {
				c.SetNode(fmt.Sprintf("n%02d", i), "c", onpath.Resources{CPU: 64_000_000, Memory: 1 << 40, Network: 1e12}, true)
			}
			for range n * 20 {
				from := time.Unix(r.Int64N(1e7), 0)
				c.Book(Booking{fmt.Sprintf("n%02d", r.IntN(20)), []Slot{{from,
					from.Add(time.Duration(1+r.IntN(86400)) * time.Second), onpath.Resources{CPU: 1000, Memory: 1 << 20}}}})
			}
			for b.Loop() {
				from := time.Unix(r.Int64N(1e7), 0)
				c.Place("c", []Slot{{from, from.Add(time.Hour), onpath.Resources{CPU: 1000, Memory: 1 << 20}}}, 1, false)
			}
		})
	}
}
