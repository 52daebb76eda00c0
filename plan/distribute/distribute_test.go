package distribute_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/onpath/onpath/plan/distribute"
)

func seeded(t *testing.T) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 22))
}

// proved checks the certificate: who believes no solver can check this.
func proved(p distribute.Problem, s *distribute.Solution) error {
	supply, demand := make([]int64, len(p.Supply)), make([]int64, len(p.Demand))
	var cost, bound int64
	for i, row := range s.Flow {
		for j, f := range row {
			if f < 0 || s.U[i]+s.V[j] > p.Cost[i][j] {
				return fmt.Errorf("from %d to %d: flow %d, prices %d + %d, cost %d", i, j, f, s.U[i], s.V[j], p.Cost[i][j])
			}
			supply[i], demand[j], cost = supply[i]+f, demand[j]+f, cost+f*p.Cost[i][j]
		}
	}
	for i, x := range p.Supply {
		if bound += x * s.U[i]; supply[i] != x {
			return fmt.Errorf("%d of supply %d sends %d", x, i, supply[i])
		}
	}
	for j, x := range p.Demand {
		if bound += x * s.V[j]; demand[j] != x {
			return fmt.Errorf("demand %d of %d gets %d", j, x, demand[j])
		}
	}
	if cost != bound || cost != s.Cost {
		return fmt.Errorf("it costs %d, says %d, and the prices prove %d", cost, s.Cost, bound)
	}
	return nil
}

// problem is a random one: racks or any costs; equal shares, or any.
func problem(rng *rand.Rand, n, m int) (p distribute.Problem) {
	racks, most := 1+rng.IntN(8), 1+rng.Int64N(1000)
	plain, even := rng.IntN(2) == 0, rng.IntN(2) == 0
	at := func(k int) []int {
		list := make([]int, k)
		for i := range list {
			list[i] = rng.IntN(racks)
		}
		return list
	}
	from, to := at(n), at(m)
	share := func() int64 {
		if even {
			return 1
		}
		return rng.Int64N(1001)
	}
	var a, b int64
	for range n {
		p.Supply = append(p.Supply, share())
		a += p.Supply[len(p.Supply)-1]
	}
	for range m {
		p.Demand = append(p.Demand, share())
		b += p.Demand[len(p.Demand)-1]
	}
	for i := range n {
		p.Supply[i] *= b
		p.Cost = append(p.Cost, make([]int64, m))
		for j := range m {
			if !plain {
				p.Cost[i][j] = rng.Int64N(most)
			} else if from[i] != to[j] {
				p.Cost[i][j] = 1
			}
		}
	}
	for j := range m {
		p.Demand[j] *= a
	}
	return p
}

// TestSolutionsAreOptimal: 10,000 problems of up to 128 × 128 in a soak, some of them here.
func TestSolutionsAreOptimal(t *testing.T) {
	rng, count := seeded(t), 300
	if os.Getenv("ONPATH_SOAK") != "" {
		count = 10000
	}
	for k := range count {
		n, m := 1+rng.IntN(128), 1+rng.IntN(128)
		if k%8 != 0 {
			n, m = 1+rng.IntN(24), 1+rng.IntN(24)
		}
		if count > 300 && k%8 == 1 || k == 0 {
			n, m = 128, 128
		}
		p := problem(rng, n, m)
		if err := proved(p, p.Solve()); err != nil {
			t.Fatalf("problem %d, %d × %d: %v\n%+v", k, n, m, err, p)
		}
	}
}

// TestCertificateNotices: a solution that is not optimal does not pass.
func TestCertificateNotices(t *testing.T) {
	p := distribute.Problem{Supply: []int64{2, 1}, Demand: []int64{1, 2}, Cost: [][]int64{{0, 3}, {2, 1}}}
	s := p.Solve()
	if err := proved(p, s); err != nil {
		t.Fatal(err)
	}
	s.Flow = [][]int64{{0, 2}, {1, 0}}
	if proved(p, s) == nil {
		t.Error("a worse solution passes")
	}
}

// TestCostsAsHiGHS: the paper's linear programme for whole chains, both directions in one,
// costs the same (testdata/highs.py).
func TestCostsAsHiGHS(t *testing.T) {
	var problems []struct {
		Elements [][]int
		Cost     [][]int64
		HiGHS    float64
	}
	text, err := os.ReadFile("testdata/highs.json")
	if err == nil {
		err = json.Unmarshal(text, &problems)
	}
	if err != nil || len(problems) != 200 {
		t.Fatalf("%d problems: %v", len(problems), err)
	}
	for k, p := range problems {
		var costs distribute.Costs
		if p.Cost != nil {
			costs = func(a, b string) int64 { return p.Cost[a[0]-'a'][b[0]-'a'] }
		}
		sum := new(big.Rat)
		for r := range p.Elements[1:] {
			sum.Add(sum, distribute.Between(instances(p.Elements[r]), instances(p.Elements[r+1]), costs).Cost())
		}
		if cost, _ := sum.Float64(); math.Abs(2*cost-p.HiGHS) > 1e-9*max(1, p.HiGHS) {
			t.Errorf("problem %d: %v; HiGHS: %v", k, 2*cost, p.HiGHS)
		}
	}
}

func instances(racks []int) (list []distribute.Instance) {
	for _, r := range racks {
		list = append(list, distribute.Instance{Rack: string(rune('a' + r)), Share: 1})
	}
	return list
}

// TestFigure7: two IPS in one rack and one in the other, two RE in each: a sixth of the
// flows crosses, of uniform's half, and each RE has a quarter.
func TestFigure7(t *testing.T) {
	p := distribute.Between(instances([]int{0, 0, 1}), instances([]int{0, 0, 1, 1}), nil)
	if p.Cost().Cmp(big.NewRat(1, 6)) != 0 {
		t.Errorf("%v of the flows cross", p.Cost())
	}
	checkShares(t, p, 3, []int64{1, 1, 1, 1})
	if got := fmt.Sprint(p.Forward(2)); got != "[1 1 32768 32767]" && got != "[1 1 32767 32768]" {
		t.Errorf("the IPS by itself in its rack: %s", got)
	}
}

// checkShares: with the rows in force, each instance of the second element gets its share.
func checkShares(t *testing.T, p *distribute.Pair, n int, shares []int64) {
	t.Helper()
	var all int64
	for _, s := range shares {
		all += s
	}
	got := make([]float64, len(shares))
	for i := range n {
		var sum float64
		for _, w := range p.Forward(i) {
			sum += float64(w)
		}
		for j, w := range p.Forward(i) {
			got[j] += float64(w) / sum / float64(n)
		}
	}
	for j, s := range shares {
		if want := float64(s) / float64(all); math.Abs(got[j]-want) > 0.003 {
			t.Errorf("instance %d gets %.4f of the flows instead of %.4f", j, got[j], want)
		}
	}
}

func TestRows(t *testing.T) {
	rng := seeded(t)
	for range 200 {
		racks := 1 + rng.IntN(6)
		var from, to []distribute.Instance
		var shares []int64
		n, m := 1+rng.IntN(12), 1+rng.IntN(64)
		for range n {
			from = append(from, distribute.Instance{Rack: fmt.Sprint(rng.IntN(racks)), Share: 1})
		}
		for range m {
			to = append(to, distribute.Instance{Rack: fmt.Sprint(rng.IntN(racks)), Share: 1 + rng.Int64N(1000)})
			shares = append(shares, to[len(to)-1].Share)
		}
		p := distribute.Between(from, to, nil)
		checkShares(t, p, n, shares)
		for i := range n {
			for j, w := range p.Forward(i) {
				if w < 1 || w > distribute.MaxWeight {
					t.Fatalf("row %d has weight %d for instance %d", i, w, j)
				}
			}
		}
		// What goes from i to j comes back from j to i.
		var back float64
		for j := range m {
			row := p.Reverse(j)
			back += float64(row[0]) / sum(row) * float64(shares[j]) / float64(total(shares))
		}
		if want := 1 / float64(n); math.Abs(back-want) > 0.003 {
			t.Fatalf("%v of the flows come back to an instance that sends %v", back, want)
		}
	}
}

func sum(row []uint32) (s float64) {
	for _, w := range row {
		s += float64(w)
	}
	return s
}

func total(list []int64) (s int64) {
	for _, x := range list {
		s += x
	}
	return s
}

// TestNobodyWithoutShare: an instance of weight 0 gets nothing and sends nothing.
func TestNobodyWithoutShare(t *testing.T) {
	from := []distribute.Instance{{Rack: "a", Share: 1}, {Rack: "b"}}
	to := []distribute.Instance{{Rack: "b", Share: 3}, {Rack: "a"}, {Rack: "c", Share: 1}}
	p := distribute.Between(from, to, nil)
	if row := p.Forward(0); row[1] != 0 || row[0] < 2*row[2] {
		t.Errorf("row %v", row)
	}
	if p.Forward(1) != nil || p.Reverse(1) != nil {
		t.Error("who has no share has a row")
	}
	if p := distribute.Between(from, nil, nil); p.Forward(0) != nil || p.Cost().Sign() != 0 {
		t.Error("nobody to send to, and a row")
	}
}

// TestRamp: flows come to a new instance faster than its share, until it has it, and
// never all of them.
func TestRamp(t *testing.T) {
	rng := seeded(t)
	for range 200 {
		n := 2 + rng.IntN(8)
		shares, live := make([]int64, n), make([]int64, n)
		fresh, behind := make([]bool, n), make([]bool, n)
		fresh[0] = true
		for i := range shares {
			shares[i] = 1
			if i > 0 {
				live[i] = 1000
			}
		}
		steps := 0
		for ; steps < 400; steps++ {
			behind = distribute.Behind(shares, live, fresh, behind)
			now := distribute.Raised(shares, behind, 2, distribute.MaxWeight)
			part := float64(now[0]) / float64(total(now))
			if most := min(2/float64(n), 0.95) + 1e-9; part > most || part < 1/float64(n)-1e-9 {
				t.Fatalf("of %d: %.3f of the new flows at %d live ones of %d", n, part, live[0], total(live))
			}
			if part < 1.5/float64(n) && n > 2 || n == 2 && part < 0.6 {
				break // it has nine tenths of its part
			}
			for i := range live { // a hundredth of the flows ends, as many begin
				live[i] = live[i]*99/100 + 10*int64(n-1)*now[i]/total(now)
			}
		}
		if steps == 400 || 100*live[0]*int64(n) < 88*total(live) {
			t.Fatalf("of %d: %d flows after %d steps", n, live[0], steps)
		}
		if n > 2 && steps > 90 {
			t.Errorf("of %d: %d steps; at its share alone it were 230", n, steps)
		}
	}
}

// FuzzSolve: the solver ends, and proves what it says.
func FuzzSolve(f *testing.F) {
	f.Add(uint64(1), 3, 4)
	f.Fuzz(func(t *testing.T, seed uint64, n, m int) {
		p := problem(rand.New(rand.NewPCG(seed, 1)), 1+abs(n)%20, 1+abs(m)%20)
		if err := proved(p, p.Solve()); err != nil {
			t.Fatal(err)
		}
	})
}

func abs(n int) int { return int(uint32(n) >> 1) }

// TestBehind: chance does not make an instance one that fills up, nor what is not new; and who
// fills up does until it has nine tenths of its part.
func TestBehind(t *testing.T) {
	yes, no := []bool{true, false}, []bool{false, false}
	for _, c := range []struct {
		live       []int64
		fresh, was []bool
		want       bool
	}{
		{[]int64{0, 1000}, yes, no, true},
		{[]int64{0, 1000}, no, no, false},
		{[]int64{40, 60}, yes, no, false}, // of 50, with a deviation of 7
		{[]int64{40, 60}, yes, yes, true},
		{[]int64{450, 550}, yes, yes, false},
		{[]int64{0, 0}, yes, yes, false},
		{[]int64{0, 8}, yes, no, false},
	} {
		if got := distribute.Behind([]int64{1, 1}, c.live, c.fresh, c.was); got[0] != c.want || got[1] {
			t.Errorf("%v, new %v, was %v: %v", c.live, c.fresh, c.was, got)
		}
	}
}

// TestRaised: whatever the shares, who is behind gets up to so many times its share, the others
// a tenth of theirs at least, nobody more than the limit, and only shares of 0 nothing.
func TestRaised(t *testing.T) {
	rng := seeded(t)
	for range 2000 {
		n, most := 1+rng.IntN(128), 1+rng.Int64N(10)
		shares, behind := make([]int64, n), make([]bool, n)
		for i := range shares {
			shares[i], behind[i] = rng.Int64N(1001), rng.IntN(3) == 0
		}
		const limit = distribute.MaxWeight
		got := distribute.Raised(shares, behind, most, limit)
		for i, x := range got {
			if (x == 0) != (shares[i] == 0) || x < 0 || x > limit {
				t.Fatalf("share %d gets %d of %v, behind %v", shares[i], x, shares, behind)
			}
			was, is := float64(shares[i])/float64(total(shares)), float64(x)/float64(total(got))
			if shares[i] < 50 || is >= 0.09*was && is <= 1.05*float64(most)*was+0.001 || !behind[i] && is <= 1.05*was {
				continue
			}
			t.Fatalf("with a ramp of %d share %d gets %.5f in place of %.5f", most, shares[i], is, was)
		}
	}
}
