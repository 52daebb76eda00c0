package calendar

import (
	"math"
	"slices"
)

// vector is ⟨cpu, memory, disk, network⟩ in the units of onpath.Resources.
type vector [4]int64

func (v vector) plus(o vector) vector {
	return vector{v[0] + o[0], v[1] + o[1], v[2] + o[2], v[3] + o[3]}
}

func (v vector) minus(o vector) vector {
	return vector{v[0] - o[0], v[1] - o[1], v[2] - o[2], v[3] - o[3]}
}

func (v vector) within(o vector) bool {
	return v[0] <= o[0] && v[1] <= o[1] && v[2] <= o[2] && v[3] <= o[3]
}

func (v vector) larger(o vector) vector {
	return vector{max(v[0], o[0]), max(v[1], o[1]), max(v[2], o[2]), max(v[3], o[3])}
}

func (v vector) smaller(o vector) vector {
	return vector{min(v[0], o[0]), min(v[1], o[1]), min(v[2], o[2]), min(v[3], o[3])}
}

// exceeds reports whether v is over limit in a part that is wanted at all.
func (v vector) exceeds(limit, wanted vector) bool {
	for i := range v {
		if wanted[i] > 0 && v[i] > limit[i] {
			return true
		}
	}
	return false
}

// timeline is a function from time to a vector: zero before its first point, constant
// between points. Points lie in blocks, in order. What says which blocks matter lies beside
// all of them: a node with 10,000 reservations has 300 blocks in 900 KB, of whose largest
// and smallest values a decision reads one or two lines of memory.
type timeline struct {
	starts []int64    // the first point of each block
	ranges []extremes // of each block
	blocks []*block
}

// blockSize is the number of points at which a block is divided.
const blockSize = 64

// extremes are the largest and smallest values of a block, part by part.
type extremes struct{ most, least vector }

type block struct {
	at    []int64
	value []vector // less add, from its point until the next
	ends  []int32  // how many spans begin or end at the point; 0: the point goes
	add   vector
}

// add adds v to the span [from, until).
func (t *timeline) add(from, until int64, v vector) { t.change(from, until, v, 1) }

// remove takes a span away that add added.
func (t *timeline) remove(from, until int64, v vector) {
	t.change(from, until, vector{}.minus(v), -1)
}

func (t *timeline) change(from, until int64, v vector, ends int32) {
	if from >= until {
		return
	}
	t.touch(from, ends)
	if until < math.MaxInt64 {
		t.touch(until, ends)
	}
	for k := max(t.block(from), 0); k < len(t.blocks) && t.starts[k] < until; k++ {
		t.lift(k, from, until, v)
	}
	t.drop(from)
	if until < math.MaxInt64 {
		t.drop(until)
	}
}

// block is the last one that begins at or before x; -1: none does.
func (t *timeline) block(x int64) int {
	k, found := slices.BinarySearch(t.starts, x)
	if !found {
		k--
	}
	return k
}

// touch counts an end at the point, which is made if there is none.
func (t *timeline) touch(at int64, ends int32) {
	if len(t.blocks) == 0 {
		t.starts, t.ranges, t.blocks = []int64{at}, []extremes{{}}, []*block{{}}
	}
	k := max(t.block(at), 0)
	b := t.blocks[k]
	i, found := slices.BinarySearch(b.at, at)
	if found {
		b.ends[i] += ends
		return
	}
	v := vector{}.minus(b.add) // nothing before the first point
	if i > 0 {
		v = b.value[i-1]
	}
	b.at, b.value, b.ends = slices.Insert(b.at, i, at), slices.Insert(b.value, i, v), slices.Insert(b.ends, i, ends)
	t.starts[k] = b.at[0]
	if len(b.at) >= blockSize {
		half := len(b.at) / 2
		c := &block{at: slices.Clone(b.at[half:]), value: slices.Clone(b.value[half:]), ends: slices.Clone(b.ends[half:]), add: b.add}
		b.at, b.value, b.ends = b.at[:half], b.value[:half], b.ends[:half]
		t.starts, t.blocks = slices.Insert(t.starts, k+1, c.at[0]), slices.Insert(t.blocks, k+1, c)
		t.ranges = slices.Insert(t.ranges, k+1, c.extremes())
	}
	t.ranges[k] = b.extremes()
}

// drop removes a point at which nothing begins or ends any more.
func (t *timeline) drop(at int64) {
	k := t.block(at)
	if k < 0 {
		return
	}
	b := t.blocks[k]
	i, found := slices.BinarySearch(b.at, at)
	if !found || b.ends[i] > 0 {
		return
	}
	b.at, b.value, b.ends = slices.Delete(b.at, i, i+1), slices.Delete(b.value, i, i+1), slices.Delete(b.ends, i, i+1)
	if len(b.at) == 0 {
		t.starts, t.blocks = slices.Delete(t.starts, k, k+1), slices.Delete(t.blocks, k, k+1)
		t.ranges = slices.Delete(t.ranges, k, k+1)
		return
	}
	t.starts[k], t.ranges[k] = b.at[0], b.extremes()
}

// value is the one at an instant.
func (t *timeline) value(x int64) vector {
	k := t.block(x)
	if k < 0 {
		return vector{}
	}
	b := t.blocks[k]
	return b.value[b.holding(x)].plus(b.add)
}

// within calls f for the blocks with the value at from or points in (from, until).
func (t *timeline) within(from, until int64, f func(k int)) {
	k := t.block(from)
	if k >= 0 {
		f(k)
	}
	for k++; k < len(t.starts) && t.starts[k] < until; k++ {
		f(k)
	}
}

// peak is the largest value in [from, until), part by part.
func (t *timeline) peak(from, until int64) (so vector) {
	t.within(from, until, func(k int) {
		b := t.blocks[k]
		i, j := 0, len(b.at)
		if b.at[0] < from {
			i = b.holding(from)
		}
		if b.at[j-1] >= until {
			j, _ = slices.BinarySearch(b.at, until)
		}
		if i == 0 && j == len(b.at) {
			so = so.larger(t.ranges[k].most)
			return
		}
		for _, v := range b.value[i:max(j, i+1)] {
			so = so.larger(v.plus(b.add))
		}
	})
	return so
}

// bound is no less than peak, and found without a look into the blocks.
func (t *timeline) bound(from, until int64) (so vector) {
	t.within(from, until, func(k int) { so = so.larger(t.ranges[k].most) })
	return so
}

// firstOver is the first instant in [from, until) at which the value exceeds limit in a
// part that is wanted, and the value there.
func (t *timeline) firstOver(from, until int64, limit, wanted vector) (int64, vector, bool) {
	if from >= until {
		return 0, vector{}, false
	}
	if v := t.value(from); v.exceeds(limit, wanted) {
		return from, v, true
	}
	return t.first(from, until, func(x extremes) bool { return x.most.exceeds(limit, wanted) })
}

// firstWithin is the first point after an instant at which the value is within limit in
// all parts that are wanted.
func (t *timeline) firstWithin(after int64, limit, wanted vector) (int64, bool) {
	at, _, ok := t.first(after+1, math.MaxInt64, func(x extremes) bool { return !x.least.exceeds(limit, wanted) })
	return at, ok
}

// first is the first point in [from, until) for whose value may holds; a block for whose
// extremes it does not hold is passed over.
func (t *timeline) first(from, until int64, may func(extremes) bool) (int64, vector, bool) {
	for k := max(t.block(from), 0); k < len(t.blocks) && t.starts[k] < until; k++ {
		if !may(t.ranges[k]) {
			continue
		}
		b := t.blocks[k]
		i, j := b.span(from, until)
		for ; i < j; i++ {
			if v := b.value[i].plus(b.add); may(extremes{v, v}) {
				return b.at[i], v, true
			}
		}
	}
	return 0, vector{}, false
}

// each calls f for the points in [from, until), in order.
func (t *timeline) each(from, until int64, f func(int64, vector)) {
	for k := max(t.block(from), 0); k < len(t.blocks) && t.starts[k] < until; k++ {
		b := t.blocks[k]
		for i, j := b.span(from, until); i < j; i++ {
			f(b.at[i], b.value[i].plus(b.add))
		}
	}
}

// lift adds v to a block's points in [from, until).
func (t *timeline) lift(k int, from, until int64, v vector) {
	b := t.blocks[k]
	i, j := b.span(from, until)
	if i == 0 && j == len(b.at) {
		b.add = b.add.plus(v)
		x := &t.ranges[k]
		x.most, x.least = x.most.plus(v), x.least.plus(v)
		return
	}
	for ; i < j; i++ {
		b.value[i] = b.value[i].plus(v)
	}
	t.ranges[k] = b.extremes()
}

// holding is the index of the point whose value holds at x, which is not before the block.
func (b *block) holding(x int64) int {
	i, found := slices.BinarySearch(b.at, x)
	if !found {
		i--
	}
	return i
}

// span are the indexes of the points in [from, until).
func (b *block) span(from, until int64) (i, j int) {
	j = len(b.at)
	if b.at[0] < from {
		i, _ = slices.BinarySearch(b.at, from)
	}
	if b.at[j-1] >= until {
		j, _ = slices.BinarySearch(b.at, until)
	}
	return i, max(i, j)
}

func (b *block) extremes() extremes {
	x := extremes{b.value[0], b.value[0]}
	for _, v := range b.value[1:] {
		x.most, x.least = x.most.larger(v), x.least.smaller(v)
	}
	x.most, x.least = x.most.plus(b.add), x.least.plus(b.add)
	return x
}
