package classifier

import (
	"fmt"
	"slices"
)

// Forest is a compiled table.
type Forest struct {
	Cells []Cell
	// Tuples is how many hash tables each view has.
	Tuples [8]int
	// Copies is how many rules stand in leaves, of all views together.
	Copies int
}

// TooComplex is the error for rules that cannot be held within the bounds.
type TooComplex struct {
	// Rules are the places (Order) of some that had to be left over.
	Rules []uint32
}

func (e *TooComplex) Error() string {
	return fmt.Sprintf("%d rules cross each other in too many ways to be found in %d look-ups", len(e.Rules), MaxTuples)
}

// builder makes one forest.
type builder struct {
	rules  []Rule // of the view being built
	forest *Forest
	// scratch of the choice of tuples
	counts []uint32
	words  [][8]uint32
}

// Compile makes the forest of a table's rules, which stand in order of Order.
// strict tells those of strict paths; miss is what to do when no rule matches.
func Compile(rules []Rule, strict func(*Rule) bool, miss Rule) (*Forest, error) {
	f := &Forest{Cells: make([]Cell, firstCell, firstCell+len(rules)*2)}
	f.Cells[missCell] = miss.Cell()
	for _, six := range []bool{false, true} {
		if err := compileFamily(f, ofFamily(rules, six), six, strict); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// compileFamily builds the views of one IP version; equal ones are built once.
func compileFamily(f *Forest, rules []Rule, six bool, strict func(*Rule) bool) error {
	first := ViewAll
	if six {
		first = Views6
	}
	if err := f.build(first, rules, six); err != nil {
		return err
	}
	wildcards := []func(*Rule){withoutPorts}
	if six {
		wildcards = append(wildcards, withoutProtocol)
	}
	built, same := first, rules
	for i, wildcard := range wildcards {
		all := seenBy(rules, wildcard)
		v := first + 1 + View(2*i)
		if err := f.buildLike(v, all, built, same, six); err != nil {
			return err
		}
		built, same = v, all
		some := seenBy(filter(rules, strict), wildcard)
		if err := f.buildLike(v+1, some, v, all, six); err != nil {
			return err
		}
	}
	return nil
}

// buildLike builds a view, or points at another one that has the same rules.
func (f *Forest) buildLike(v View, rules []Rule, other View, same []Rule, six bool) error {
	if slices.Equal(rules, same) {
		f.Cells[rootCell][2*v], f.Cells[rootCell][2*v+1] = f.Cells[rootCell][2*other], f.Cells[rootCell][2*other+1]
		f.Tuples[v] = f.Tuples[other]
		return nil
	}
	return f.build(v, rules, six)
}

func ofFamily(rules []Rule, six bool) []Rule {
	want := uint8(4)
	if six {
		want = 6
	}
	return filter(rules, func(r *Rule) bool { return r.Family == 0 || r.Family == want })
}

func filter(rules []Rule, keep func(*Rule) bool) []Rule {
	var out []Rule
	for i := range rules {
		if keep(&rules[i]) {
			out = append(out, rules[i])
		}
	}
	return out
}

func withoutPorts(r *Rule) {
	r.Flags &^= SrcPorts | DstPorts
	r.SPortFirst, r.SPortLast, r.DPortFirst, r.DPortLast = 0, 65535, 0, 65535
}

func withoutProtocol(r *Rule) {
	withoutPorts(r)
	r.Proto = 0
}

// seenBy are the rules as a packet meets them that lacks something. Of equal
// ones the first decides.
func seenBy(rules []Rule, wildcard func(*Rule)) []Rule {
	out := slices.Clone(rules)
	for i := range out {
		wildcard(&out[i])
	}
	return distinct(out)
}

// distinct drops rules whose match stands in an earlier one.
func distinct(rules []Rule) []Rule {
	type match struct {
		src, dst [2]uint64
		ports    [4]uint16
		lens     [2]uint8
		rest     [3]uint8
	}
	seen := make(map[match]bool, len(rules))
	out := rules[:0:0]
	for i := range rules {
		r := &rules[i]
		m := match{r.Src, r.Dst, [4]uint16{r.SPortFirst, r.SPortLast, r.DPortFirst, r.DPortLast},
			[2]uint8{r.SrcLen, r.DstLen}, [3]uint8{r.Family, r.Proto, r.Flags & (SrcPorts | DstPorts)}}
		if !seen[m] {
			seen[m] = true
			out = append(out, *r)
		}
	}
	return out
}

// build makes the tuples of one view.
func (f *Forest) build(v View, rules []Rule, six bool) error {
	if len(rules) == 0 {
		return nil
	}
	b := &builder{rules: distinct(rules), forest: f}
	b.words = make([][8]uint32, len(b.rules))
	pending := make([]int32, len(b.rules))
	for i := range b.rules {
		b.words[i] = b.rules[i].words()
		pending[i] = int32(i)
	}
	var tuples []Cell
	for round := 0; len(pending) > 0 && round < MaxTuples; round++ {
		var t Cell
		t, pending = b.tuple(pending, round, six)
		if t[tupleBase] != 0 {
			tuples = append(tuples, t)
		}
	}
	if len(pending) > 0 {
		e := &TooComplex{}
		for _, i := range pending {
			e.Rules = append(e.Rules, b.rules[i].Order)
		}
		return e
	}
	slices.SortFunc(tuples, func(x, y Cell) int { return int(int64(x[tupleBest]) - int64(y[tupleBest])) })
	f.Cells[rootCell][2*v], f.Cells[rootCell][2*v+1] = uint32(len(f.Cells)), uint32(len(tuples))
	f.Cells = append(f.Cells, tuples...)
	f.Tuples[v] = len(tuples)
	return nil
}

// run writes a leaf.
func (b *builder) run(rules []int32) uint32 {
	at := uint32(len(b.forest.Cells))
	for _, i := range rules {
		b.forest.Cells = append(b.forest.Cells, b.rules[i].Cell())
	}
	b.forest.Copies += len(rules)
	return leafRef(at, len(rules))
}
