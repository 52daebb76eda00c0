// Package price says what reserved capacity costs, and what is given back of it
// (PacketCloud §3.5, §3.6). Times are parameters; amounts are int64 millionths, what
// lies between them is exact (math/big), and the end of a calculation is rounded once,
// half to even.
package price

import (
	"math/big"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/calendar"
)

// Segment is what is paid for from one time to another.
type Segment = onpath.PaidSegment

// Segments splits an amount for a time into what lies in each tier of the list: above
// levels, which are what the tenant has promised in the cloudlet already, in order, the
// first at from or before; total is what there is in the cloudlet.
func Segments(l *onpath.PriceListSpec, from, until time.Time, amount, total onpath.Resources, levels []calendar.Step) []Segment {
	out := []Segment{}
	add := func(a, z time.Time, base onpath.Resources) {
		tiers := split(l.Tiers, base, amount, total)
		if n := len(out); n > 0 && equal(out[n-1].Tiers, tiers) {
			out[n-1].Until = z
			return
		}
		out = append(out, Segment{From: a, Until: z, Tiers: tiers})
	}
	if len(levels) == 0 || len(l.Tiers) == 0 {
		add(from, until, onpath.Resources{})
		return out
	}
	for i, s := range levels {
		a, z := s.At, until
		if i+1 < len(levels) && levels[i+1].At.Before(until) {
			z = levels[i+1].At
		}
		if a.Before(from) {
			a = from
		}
		if a.Before(z) {
			add(a, z, s.Promised)
		}
	}
	return out
}

func equal(a, b []onpath.Resources) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// split is the part of [base, base+amount) in each tier.
func split(tiers []onpath.PriceTier, base, amount, total onpath.Resources) []onpath.Resources {
	out := make([]onpath.Resources, 0, len(tiers)+1)
	low, top := onpath.Resources{}, base.Add(amount)
	for _, t := range tiers {
		high := share(total, t.Above)
		out = append(out, between(base, top, low, high))
		low = high
	}
	out = append(out, between(base, top, low, top.Add(low)))
	for n := len(out); n > 1 && out[n-1] == (onpath.Resources{}); n-- {
		out = out[:n-1]
	}
	return out
}

// share is a percentage of each part, rounded down.
func share(r onpath.Resources, percent int) onpath.Resources {
	of := func(n int64) int64 { return n/100*int64(percent) + n%100*int64(percent)/100 }
	return onpath.Resources{CPU: onpath.CPU(of(int64(r.CPU))), Memory: onpath.Size(of(int64(r.Memory))),
		Disk: onpath.Size(of(int64(r.Disk))), Network: onpath.Rate(of(int64(r.Network)))}
}

// between is how much of [from, to) lies in [low, high), part by part.
func between(from, to, low, high onpath.Resources) onpath.Resources {
	of := func(a, z, l, h int64) int64 { return max(0, min(z, h)-max(a, l)) }
	return onpath.Resources{
		CPU:     onpath.CPU(of(int64(from.CPU), int64(to.CPU), int64(low.CPU), int64(high.CPU))),
		Memory:  onpath.Size(of(int64(from.Memory), int64(to.Memory), int64(low.Memory), int64(high.Memory))),
		Disk:    onpath.Size(of(int64(from.Disk), int64(to.Disk), int64(low.Disk), int64(high.Disk))),
		Network: onpath.Rate(of(int64(from.Network), int64(to.Network), int64(low.Network), int64(high.Network))),
	}
}

// Units of which prices are, in those of onpath.Resources.
const (
	core = 1000
	gib  = 1 << 30
	gbit = 1_000_000_000
)

// Fee is Σ price × capacity × time over the segments, exactly, in millionths.
func Fee(l *onpath.PriceListSpec, segments []Segment) *big.Rat {
	sum := new(big.Rat)
	for _, s := range segments {
		for i, a := range s.Tiers {
			percent := 100
			if i > 0 {
				percent = l.Tiers[i-1].Percent
			}
			one := new(big.Rat).Add(part(l.Hour.CPU, int64(a.CPU), core), part(l.Hour.Memory, int64(a.Memory), gib))
			one.Add(one, part(l.Hour.Disk, int64(a.Disk), gib)).Add(one, part(l.Hour.Network, int64(a.Network), gbit))
			one.Mul(one, big.NewRat(int64(percent), 100))
			one.Mul(one, fraction(s.Until.Sub(s.From), time.Hour))
			sum.Add(sum, one)
		}
	}
	return sum
}

func part(price onpath.Money, amount, unit int64) *big.Rat {
	n := new(big.Int).Mul(big.NewInt(int64(price)), big.NewInt(amount))
	return new(big.Rat).SetFrac(n, big.NewInt(unit))
}

func fraction(a, b time.Duration) *big.Rat { return big.NewRat(int64(a), int64(b)) }

// Use is what the use of processor time and of bytes costs.
func Use(l *onpath.PriceListSpec, cpu time.Duration, bytes uint64) *big.Rat {
	c := part(l.Use.CPU, int64(cpu), int64(time.Hour))
	n := new(big.Int).Mul(big.NewInt(int64(l.Use.Traffic)), new(big.Int).SetUint64(bytes))
	return c.Add(c, new(big.Rat).SetFrac(n, big.NewInt(gib)))
}

// Round is the nearest whole number of millionths, the even one of two; false if it is
// more than can be counted.
func Round(r *big.Rat) (onpath.Money, bool) {
	q, rest := new(big.Int).DivMod(r.Num(), r.Denom(), new(big.Int)) // rest ≥ 0
	if c := rest.Lsh(rest, 1).Cmp(r.Denom()); c > 0 || c == 0 && q.Bit(0) == 1 {
		q.Add(q, big.NewInt(1))
	}
	return onpath.Money(q.Int64()), q.IsInt64()
}

// Refund is what is given back of a fee for a part that begins at begin, was paid at paid
// and is given up at now: F × (tB − tC) / (tB − tA), nothing once it has begun.
func Refund(fee *big.Rat, paid, begin, now time.Time) *big.Rat {
	switch {
	case !now.Before(begin):
		return new(big.Rat)
	case !now.After(paid):
		return fee
	}
	return new(big.Rat).Mul(fee, fraction(begin.Sub(now), begin.Sub(paid)))
}

// Cut parts segments into what stays if no more than keep is wanted from from to until,
// and what goes: the dearest first.
func Cut(segments []Segment, from, until time.Time, keep onpath.Resources) (stays, goes []Segment) {
	put := func(to *[]Segment, a, z time.Time, tiers []onpath.Resources) {
		for n := len(tiers); n > 1 && tiers[n-1] == (onpath.Resources{}); n-- {
			tiers = tiers[:n-1]
		}
		if a.Before(z) && (len(tiers) > 1 || tiers[0] != (onpath.Resources{})) {
			*to = append(*to, Segment{From: a, Until: z, Tiers: tiers})
		}
	}
	for _, s := range segments {
		a, z := latest(s.From, from), earliest(s.Until, until)
		if !a.Before(z) {
			stays = append(stays, s)
			continue
		}
		put(&stays, s.From, a, s.Tiers)
		var kept, gone []onpath.Resources
		low, none := onpath.Resources{}, onpath.Resources{}
		for _, t := range s.Tiers {
			k := between(low, low.Add(t), none, keep)
			kept, gone = append(kept, k), append(gone, t.Sub(k))
			low = low.Add(t)
		}
		put(&stays, a, z, kept)
		put(&goes, a, z, gone)
		put(&stays, z, s.Until, s.Tiers)
	}
	return stays, goes
}

// Join is the same with segments that follow each other with the same amounts as one.
func Join(segments []Segment) []Segment {
	var out []Segment
	for _, s := range segments {
		if n := len(out); n > 0 && out[n-1].Until.Equal(s.From) && equal(out[n-1].Tiers, s.Tiers) {
			out[n-1].Until = s.Until
			continue
		}
		out = append(out, s)
	}
	return out
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
