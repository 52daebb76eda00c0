package price

import (
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/calendar"
)

var (
	begin = time.Date(2026, 11, 24, 18, 0, 0, 0, time.UTC)
	list  = &onpath.PriceListSpec{
		Hour:  onpath.UnitPrices{CPU: 40_000, Memory: 10_000, Disk: 100, Network: 20_000},
		Tiers: []onpath.PriceTier{{Above: 25, Percent: 150}, {Above: 50, Percent: 300}},
		Use:   onpath.UsePrices{CPU: 1_000_000, Traffic: 3},
	}
	whole = onpath.Resources{CPU: 8000, Memory: 32 << 30, Disk: 1000 << 30, Network: 10e9}
)

func fee(t *testing.T, s []Segment) onpath.Money {
	t.Helper()
	m, ok := Round(Fee(list, s))
	if !ok {
		t.Fatal("too much")
	}
	return m
}

// TestTables: PacketCloud's Table 2 by hand.
func TestTables(t *testing.T) {
	one := Segments(list, begin, begin.Add(time.Hour), onpath.Resources{CPU: 1000, Memory: 256 << 20, Disk: 200 << 30,
		Network: 1e9}, whole, nil)
	if got := fee(t, one); got != 40_000+2_500+20_000+20_000 {
		t.Errorf("first slot: %s", got)
	}
	// Three cores of eight: two below 25 %, one at half as much again.
	three := Segments(list, begin, begin.Add(30*time.Minute), onpath.Resources{CPU: 3000}, whole, []calendar.Step{{At: begin}})
	if got := fee(t, three); got != (80_000+60_000)/2 {
		t.Errorf("with a tier: %s %v", got, three)
	}
	// What is promised already decides where the amount lies, instant by instant.
	levels := []calendar.Step{{At: begin}, {At: begin.Add(15 * time.Minute), Promised: onpath.Resources{CPU: 4000}}}
	late := Segments(list, begin, begin.Add(time.Hour), onpath.Resources{CPU: 1000}, whole, levels)
	if got := fee(t, late); len(late) != 2 || got != 10_000+3*30_000 {
		t.Errorf("above others: %s %v", got, late)
	}
}

// TestRefund: PacketCloud §3.5.
func TestRefund(t *testing.T) {
	f := big.NewRat(1_000_000, 1)
	paid := begin.Add(-10 * time.Hour)
	for _, c := range []struct {
		before time.Duration
		want   onpath.Money
	}{{10 * time.Hour, 1_000_000}, {5 * time.Hour, 500_000}, {time.Hour, 100_000}, {0, 0}, {-time.Hour, 0},
		{11 * time.Hour, 1_000_000}, {time.Hour / 3, 33_333}} {
		if got, _ := Round(Refund(f, paid, begin, begin.Add(-c.before))); got != c.want {
			t.Errorf("%v before the beginning: %s, want %s", c.before, got, c.want)
		}
	}
}

func TestRound(t *testing.T) {
	for _, c := range []struct {
		n, d int64
		want onpath.Money
	}{{1, 2, 0}, {3, 2, 2}, {5, 2, 2}, {-1, 2, 0}, {-3, 2, -2}, {7, 4, 2}, {5, 4, 1}, {-5, 4, -1}} {
		if got, ok := Round(big.NewRat(c.n, c.d)); !ok || got != c.want {
			t.Errorf("%d/%d is %d, want %d", c.n, c.d, got, c.want)
		}
	}
	if _, ok := Round(new(big.Rat).SetInt(new(big.Int).Lsh(big.NewInt(1), 63))); ok {
		t.Error("2^63 millionths are counted")
	}
	if got, _ := Round(Use(list, 90*time.Minute, 5<<30)); got != 1_500_015 {
		t.Errorf("use: %s", got)
	}
}

// TestCut: what stays and what goes together cost what was paid, whatever is cut.
func TestCut(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	at := func(k int) time.Time { return begin.Add(time.Duration(k) * time.Minute) }
	for range 500 {
		levels := []calendar.Step{{At: begin}}
		for k := 1; k < 60; k += 1 + r.IntN(20) {
			levels = append(levels, calendar.Step{At: at(k), Promised: onpath.Resources{CPU: onpath.CPU(r.IntN(6000))}})
		}
		amount := onpath.Resources{CPU: onpath.CPU(1 + r.IntN(5000)), Memory: onpath.Size(r.IntN(1 << 30))}
		paid := Segments(list, at(0), at(60), amount, whole, levels)
		a, z := at(r.IntN(60)), at(r.IntN(90))
		keep := onpath.Resources{CPU: onpath.CPU(r.IntN(6000)), Memory: onpath.Size(r.IntN(1 << 30))}
		stays, goes := Cut(paid, a, z, keep)
		sum := Fee(list, stays)
		if sum.Add(sum, Fee(list, goes)).Cmp(Fee(list, paid)) != 0 {
			t.Fatalf("cut of %v: %v and %v", paid, stays, goes)
		}
		for _, s := range stays {
			var total onpath.Resources
			for _, x := range s.Tiers {
				total = total.Add(x)
			}
			if !s.From.Before(a) && s.From.Before(z) && !keep.Fits(total) {
				t.Fatalf("%v stays of %v, %v is to be kept from %v to %v", s, paid, keep, a, z)
			}
		}
	}
}
