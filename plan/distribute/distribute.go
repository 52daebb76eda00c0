// Package distribute splits the flows of a chain among the instances of each element so
// that as few as possible go from one rack to another (Stratos §4.2), and says in which
// rack a new instance costs least (§5.2).
//
// The paper has one linear programme for the whole chain. As every instance must get its
// share, whatever the instances before it do, the programme falls apart into one
// transportation problem for each pair of neighbouring elements, and the fractions of the
// reverse direction follow from the forward ones: what goes from i to j comes back from j
// to i. So each pair is solved by itself, exactly, in integers.
//
// Costs depend on racks only, so instances of one rack are taken together, and share what
// the rack gets by their shares: among all optimal solutions that is the one which spreads
// flows most evenly.
package distribute

import (
	"cmp"
	"math"
	"math/big"
	"slices"

	"github.com/onpath/onpath"
)

// Instance is an instance as the distribution sees it.
type Instance struct {
	Rack string
	// Share of the element's flows, in any unit; instances with 0 get none.
	Share int64
}

// MaxWeight is the largest weight in a row, and the sum that rows are scaled to.
const MaxWeight = onpath.MaxRowWeight

// Costs say what a flow costs from one rack to another, ≥ 0; nil: 1, and 0 within a rack.
// They must be the same both ways.
type Costs func(from, to string) int64

func (c Costs) of(a, b string) int64 {
	switch {
	case c != nil:
		return c(a, b)
	case a == b:
		return 0
	}
	return 1
}

// Pair is how the flows between two neighbouring elements are split. The instances of a
// rack have the same row.
type Pair struct {
	from, to    []Instance
	fromR, toR  racks
	flow        [][]int64 // between racks
	cost, total int64
}

// racks are the racks of some instances, in order, and what their shares come to.
type racks struct {
	names  []string
	shares []int64
	total  int64
}

func racksOf(list []Instance) (r racks) {
	for _, i := range list {
		if i.Share > 0 && !slices.Contains(r.names, i.Rack) {
			r.names = append(r.names, i.Rack)
		}
	}
	slices.Sort(r.names)
	r.shares = make([]int64, len(r.names))
	for _, i := range list {
		if i.Share > 0 {
			r.shares[r.index(i.Rack)] += i.Share
			r.total += i.Share
		}
	}
	return r
}

func (r *racks) index(name string) int {
	k, ok := slices.BinarySearch(r.names, name)
	if !ok {
		return -1
	}
	return k
}

// Between solves for two neighbouring elements.
func Between(from, to []Instance, costs Costs) *Pair {
	p := &Pair{from: from, to: to, fromR: racksOf(from), toR: racksOf(to)}
	problem := Problem{Cost: make([][]int64, len(p.fromR.names))}
	for i, a := range p.fromR.names {
		problem.Supply = append(problem.Supply, p.fromR.shares[i]*p.toR.total)
		for _, b := range p.toR.names {
			problem.Cost[i] = append(problem.Cost[i], costs.of(a, b))
		}
	}
	for _, s := range p.toR.shares {
		problem.Demand = append(problem.Demand, s*p.fromR.total)
	}
	s := problem.Solve()
	p.flow, p.cost, p.total = s.Flow, s.Cost, p.fromR.total*p.toR.total
	return p
}

// Cost is what the flows cost on average; with costs of 0 and 1 it is the part of them
// that goes from one rack to another.
func (p *Pair) Cost() *big.Rat {
	if p.total == 0 {
		return new(big.Rat)
	}
	return big.NewRat(p.cost, p.total)
}

// Forward is the row of weights that instance i of the first element has for the
// instances of the second; nil where i gets no flows.
func (p *Pair) Forward(i int) []uint32 {
	k := p.fromR.index(p.from[i].Rack)
	if k < 0 {
		return nil
	}
	return p.row(p.to, &p.toR, func(l int) int64 { return p.flow[k][l] })
}

// Reverse is the row that instance j of the second element has for those of the first,
// for flows that begin at the other end.
func (p *Pair) Reverse(j int) []uint32 {
	l := p.toR.index(p.to[j].Rack)
	if l < 0 {
		return nil
	}
	return p.row(p.from, &p.fromR, func(k int) int64 { return p.flow[k][l] })
}

// row splits what goes to each rack by the shares of the instances there. It comes to
// MaxWeight, but for those that would get nothing: they get 1, so that a flow finds
// somebody if all others are gone.
func (p *Pair) row(to []Instance, r *racks, flow func(int) int64) []uint32 {
	var all int64
	for l := range r.names {
		all += flow(l)
	}
	if all == 0 {
		return nil
	}
	weights, rest := make([]uint32, len(to)), make([]rounding, 0, len(to))
	left := int64(MaxWeight)
	for j, x := range to {
		if x.Share <= 0 {
			continue
		}
		l := r.index(x.Rack)
		exact := big.NewInt(flow(l))
		exact.Mul(exact, big.NewInt(x.Share*MaxWeight))
		part, mod := exact.DivMod(exact, new(big.Int).Mul(big.NewInt(all), big.NewInt(r.shares[l])), new(big.Int))
		weights[j] = uint32(part.Int64())
		left -= part.Int64()
		rest = append(rest, rounding{j, new(big.Rat).SetFrac(mod, big.NewInt(r.shares[l]))})
	}
	slices.SortStableFunc(rest, func(a, b rounding) int { return b.rest.Cmp(a.rest) })
	for k := range left {
		weights[rest[k].at]++
	}
	for j, x := range to {
		if x.Share > 0 {
			weights[j] = max(weights[j], 1)
		}
	}
	return weights
}

// rounding is what is left of a weight that was rounded down.
type rounding struct {
	at   int
	rest *big.Rat
}

// Behind says who of those that are new has less than nine tenths of its part of what is live:
// flows, or packets (Stratos §4.2, last paragraph, and footnote 5). Who was not behind is only
// if chance, with three standard deviations, does not explain it.
func Behind(shares, live []int64, fresh, was []bool) []bool {
	var all, flows int64
	for i, s := range shares {
		all += s
		flows += max(live[i], 0)
	}
	out := make([]bool, len(shares))
	for i, s := range shares {
		if !fresh[i] || s <= 0 || flows <= 0 {
			continue
		}
		part := float64(flows) * float64(s) / float64(all)
		least := 0.9 * part
		if !was[i] {
			least -= 3 * math.Sqrt(part)
		}
		out[i] = float64(live[i]) < least
	}
	return out
}

// Raised are shares of new flows that bring those which are behind to their part of the live
// ones: they get up to most times their shares, and the others what is left, at least a tenth
// of theirs. None is above limit, and none below 1 but those that have 0.
func Raised(shares []int64, behind []bool, most, limit int64) []int64 {
	var all, short int64
	for i, s := range shares {
		if all += s; behind[i] {
			short += s
		}
	}
	if short == 0 || short == all {
		return shares
	}
	// In units of 1 / (10 · the others' shares): what those behind get, and the others.
	others := all - short
	gain := min((most-1)*short*10, 9*others) // the others keep a tenth of 10 · others
	out := make([]int64, len(shares))
	for i, s := range shares {
		if behind[i] {
			out[i] = s * others * (10*short + gain)
		} else {
			out[i] = s * short * (10*others - gain)
		}
	}
	return within(reduced(out), limit)
}

// within scales down to a limit.
func within(list []int64, limit int64) []int64 {
	most := slices.Max(list)
	if most <= limit {
		return list
	}
	for i, x := range list {
		if x > 0 {
			list[i] = max(int64(float64(x)/float64(most)*float64(limit)), 1)
		}
	}
	return list
}

// reduced divides by what all have in common.
func reduced(list []int64) []int64 {
	var common int64
	for _, x := range list {
		for x != 0 {
			common, x = x, common%x
		}
	}
	for i := range list {
		list[i] /= cmp.Or(common, 1)
	}
	return list
}
