package paths

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

const ms = time.Millisecond

func random(t *testing.T, rng *rand.Rand, nodes int) *Distances {
	t.Helper()
	d, err := NewDistances(nodes)
	if err != nil {
		t.Fatal(err)
	}
	known := rng.IntN(3) // 0: a full mesh; otherwise some legs are not known
	for a := range nodes {
		for b := a + 1; b < nodes; b++ {
			if known > 0 && rng.IntN(3) == 0 {
				continue
			}
			// Few values, so that equals are common.
			if err := d.Set(a, b, time.Duration(1+rng.IntN(12))*ms); err != nil {
				t.Fatal(err)
			}
		}
	}
	if known == 2 {
		d.Close()
	}
	return d
}

// enumerate calls visit with every path from i to j that meets no node twice.
func enumerate(d *Distances, i, j int, visit func(sum, longest time.Duration, legs int)) {
	met := make([]bool, d.Nodes())
	var walk func(at int, sum, longest time.Duration, legs int)
	walk = func(at int, sum, longest time.Duration, legs int) {
		if at == j {
			visit(sum, longest, legs)
			return
		}
		met[at] = true
		for next := range d.Nodes() {
			if rtt := d.RTT(at, next); rtt > 0 && !met[next] {
				walk(next, sum+rtt, max(longest, rtt), legs+1)
			}
		}
		met[at] = false
	}
	walk(i, 0, 0, 0)
}

func TestBestOfAllPaths(t *testing.T) {
	seed := rand.Uint64()
	graphs := 1000
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for g := range graphs {
		nodes := 2 + rng.IntN(5)
		if g%20 == 0 {
			nodes = 7 + rng.IntN(3)
		}
		d := random(t, rng, nodes)
		f := Compute(d)
		for i := range nodes {
			for j := range nodes {
				if i != j {
					comparePair(t, fmt.Sprintf("graph %d, %d to %d", g, i, j), d, f, i, j)
				}
			}
		}
		if t.Failed() {
			return
		}
	}
}

func comparePair(t *testing.T, name string, d *Distances, f *Front, i, j int) {
	t.Helper()
	var least, fewest [MaxRounds + 1]int64
	found := false
	enumerate(d, i, j, func(sum, longest time.Duration, legs int) {
		for r := 1; r <= MaxRounds; r++ {
			took := int64(sum) + 2*int64(r-1)*int64(longest)
			if !found || took < least[r] || took == least[r] && int64(legs) < fewest[r] {
				least[r], fewest[r] = took, int64(legs)
			}
		}
		found = true
	})
	row := f.Row(i, j)
	if !found {
		if row.ForRounds(1) != nil {
			t.Errorf("%s: a path where there is none", name)
		}
		return
	}
	for r := 1; r <= MaxRounds; r++ {
		p := row.ForRounds(r)
		if p == nil {
			t.Errorf("%s: no path", name)
			return
		}
		checkPath(t, name, d, *p, i, j)
		took := int64(p.Sum) + 2*int64(r-1)*int64(p.Max)
		if took != least[r] || int64(len(p.Nodes)-1) != fewest[r] {
			t.Errorf("%s, %d rounds: %v takes %d with %d legs; the best takes %d with %d",
				name, r, p.Nodes, took, len(p.Nodes)-1, least[r], fewest[r])
		}
	}
}

// checkPath holds a path's sum and longest leg against its nodes.
func checkPath(t *testing.T, name string, d *Distances, p Path, i, j int) {
	t.Helper()
	var sum, longest time.Duration
	for k := range len(p.Nodes) - 1 {
		rtt := d.RTT(p.Nodes[k], p.Nodes[k+1])
		if rtt == 0 {
			t.Errorf("%s: %v uses a leg that is not known", name, p.Nodes)
		}
		sum, longest = sum+rtt, max(longest, rtt)
	}
	if p.Nodes[0] != i || p.Nodes[len(p.Nodes)-1] != j || sum != p.Sum || longest != p.Max {
		t.Errorf("%s: %v has sum %v and longest leg %v, said are %v and %v", name, p.Nodes, sum, longest, p.Sum, p.Max)
	}
}

// TestOptionsAreAFront: the longer a leg a path may have, the shorter the path.
func TestOptionsAreAFront(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 50 {
		d := random(t, rng, 30)
		f := Compute(d)
		for i := range 30 {
			for j := range i {
				for o := range f.Options(i, j) {
					p := f.Path(i, j, o)
					checkPath(t, "front", d, p, i, j)
					back := f.Path(j, i, o)
					slices.Reverse(back.Nodes)
					if !slices.Equal(p.Nodes, back.Nodes) {
						t.Fatalf("%v there, %v back", p.Nodes, back.Nodes)
					}
					if o == 0 {
						continue
					}
					before := f.Path(i, j, o-1)
					if p.Max < before.Max || p.Sum > before.Sum {
						t.Fatalf("option %d: %v after %v", o, p, before)
					}
				}
			}
		}
	}
}

// TestPublishedTransfer: MOSTO's Figure 5 by calculation, for a round trip of 180 ms.
func TestPublishedTransfer(t *testing.T) {
	for _, c := range []struct {
		name string
		legs []time.Duration
		want time.Duration
	}{
		{"direct", []time.Duration{180 * ms}, 1260 * ms},
		{"one relay", []time.Duration{90 * ms, 90 * ms}, 720 * ms},
		{"three relays, one beside the client", []time.Duration{0, 60 * ms, 60 * ms, 60 * ms}, 540 * ms},
	} {
		if got := Time(c.legs, 500_000); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestRounds(t *testing.T) {
	for bytes, want := range map[int64]int{0: 1, 1: 1, 10_000: 1, 14_000: 1, 14_001: 2, 98_000: 3, 100_000: 4, 500_000: 6, 1 << 62: MaxRounds} {
		if got := Rounds(bytes); got != want {
			t.Errorf("%d bytes: %d rounds, want %d", bytes, got, want)
		}
	}
}

func TestBytesOfRounds(t *testing.T) {
	for r := 1; r < MaxRounds; r++ {
		if Rounds(Bytes(r)) != r || Rounds(Bytes(r)+1) != r+1 {
			t.Errorf("%d rounds carry %d bytes, which take %d", r, Bytes(r), Rounds(Bytes(r)))
		}
	}
}

func TestSetRefuses(t *testing.T) {
	d, _ := NewDistances(3)
	for _, err := range []error{
		d.Set(0, 0, ms), d.Set(-1, 1, ms), d.Set(0, 3, ms), d.Set(0, 1, -1), d.Set(0, 1, MaxDistance+1),
	} {
		if err == nil {
			t.Error("a wrong leg was taken")
		}
	}
	if _, err := NewDistances(MaxNodes + 1); err == nil {
		t.Error("too many nodes were taken")
	}
}

// 100 kB fill three windows of a sender to 99 %: as measured, they take three rounds where
// the sender is alone, and four along relays.
func TestTimeOfFullWindows(t *testing.T) {
	for _, c := range []struct {
		legs []time.Duration
		want time.Duration
	}{
		{[]time.Duration{180 * time.Millisecond}, 720 * time.Millisecond},
		{[]time.Duration{60 * time.Millisecond, 60 * time.Millisecond, 60 * time.Millisecond}, 420 * time.Millisecond},
	} {
		if got := Time(c.legs, 100_000); got != c.want {
			t.Errorf("100 kB along %v take %v, want %v", c.legs, got, c.want)
		}
	}
}
