package classifier

import (
	"math/bits"
	"slices"
)

// How tuples are chosen. A slot of up to crowd rules is a matter for a small
// tree; a tuple is worth a look-up if it takes an eighth of the rules left. When
// none does, the last rounds take whatever there is, with trees of any size.
const (
	crowd       = 64
	worth       = 8
	lastRounds  = 8
	lengths     = 8 // candidates a side
	fewPending  = 256
	slotsPerKey = 2
	extraCopies = 4096 // of a tuple's rules, beside CopiesPerRule
)

// lens are the prefix lengths that a tuple keeps.
type lens struct{ src, dst int }

// candidate is a tuple with the number of rules that fit in.
type candidate struct {
	lens
	fits int
}

// tuple makes one hash table of pending rules, and gives those that are left.
func (b *builder) tuple(pending []int32, round int, six bool) (Cell, []int32) {
	list := b.candidates(pending)
	if round < MaxTuples-lastRounds && len(pending) > fewPending {
		best, score := lens{}, 0
		for _, c := range list {
			if c.fits <= score {
				break // in order of fits
			}
			if s := b.score(pending, c, six); s > score {
				best, score = c.lens, s
			}
		}
		if score >= len(pending)/worth {
			return b.fill(pending, best, crowd, six)
		}
	}
	// The finest that takes at least half; the last round takes all.
	best, need := candidate{}, max(len(pending)/2, min(len(pending), MaxLeaf))
	if round == MaxTuples-1 {
		need = len(pending)
	}
	for _, c := range list {
		if c.fits >= need && c.src+c.dst >= best.src+best.dst {
			best = c
		}
	}
	return b.fill(pending, best.lens, 0, six)
}

// candidates are the tuples to choose from, those first into which most rules
// fit: (0, 0) is one.
func (b *builder) candidates(pending []int32) []candidate {
	var hist [129][129]int
	for _, i := range pending {
		hist[b.rules[i].SrcLen][b.rules[i].DstLen]++
	}
	var src, dst [129]int
	for s := range hist {
		for d, n := range hist[s] {
			src[s] += n
			dst[d] += n
		}
	}
	// hist[s][d] becomes the number of rules at least that long.
	for s := 128; s >= 0; s-- {
		row := 0
		for d := 128; d >= 0; d-- {
			row += hist[s][d]
			hist[s][d] = row
			if s < 128 {
				hist[s][d] += hist[s+1][d]
			}
		}
	}
	var out []candidate
	for _, s := range quantiles(&src, len(pending)) {
		for _, d := range quantiles(&dst, len(pending)) {
			out = append(out, candidate{lens{s, d}, hist[s][d]})
		}
	}
	slices.SortStableFunc(out, func(x, y candidate) int { return y.fits - x.fits })
	return out
}

// quantiles are at most lengths+1 lengths, 0 among them, that part rules evenly.
func quantiles(hist *[129]int, n int) []int {
	out := []int{0}
	seen, next := 0, 0
	for l, c := range hist {
		if c == 0 {
			continue
		}
		if seen >= next {
			if l != 0 {
				out = append(out, l)
			}
			next = seen + max(n/lengths, 1)
		}
		seen += c
	}
	return out
}

// score is the worth of a tuple: the rules that it takes, less for those in
// slots with many.
func (b *builder) score(pending []int32, c candidate, six bool) int {
	size := slotsFor(c.fits)
	if cap(b.counts) < size {
		b.counts = make([]uint32, size)
	}
	counts := b.counts[:size]
	clear(counts)
	masks := masksOf(c.src, c.dst)
	for _, i := range pending {
		if r := &b.rules[i]; int(r.SrcLen) >= c.src && int(r.DstLen) >= c.dst {
			counts[uint32(hash(&b.words[i], &masks, six, 0))&uint32(size-1)]++
		}
	}
	tenths := 0
	for _, n := range counts {
		switch {
		case n <= 4:
			tenths += 10 * int(n)
		case n <= 16:
			tenths += 9 * int(n)
		case n <= crowd:
			tenths += 7 * int(n)
		}
	}
	return tenths / 10
}

// slotsFor is a power of two, whole cells of eight.
func slotsFor(keys int) int {
	return max(8, 1<<bits.Len(uint(keys*slotsPerKey-1)))
}

// fill makes the tuple. Slots with more than most rules are not taken (0: any).
func (b *builder) fill(pending []int32, l lens, most int, six bool) (Cell, []int32) {
	masks := masksOf(l.src, l.dst)
	var taken, rest []int32
	for _, i := range pending {
		if r := &b.rules[i]; int(r.SrcLen) >= l.src && int(r.DstLen) >= l.dst {
			taken = append(taken, i)
		} else {
			rest = append(rest, i)
		}
	}
	if most > 0 {
		groups := b.group(taken, &masks, six, slotsFor(len(taken)))
		taken = taken[:0]
		for _, g := range groups {
			if len(g.rules) > most {
				rest = append(rest, g.rules...)
			} else {
				taken = append(taken, g.rules...)
			}
		}
		slices.Sort(taken)
	}
	var t Cell
	if len(taken) == 0 {
		slices.Sort(rest)
		return t, rest
	}
	copy(t[tupleMasks:], masks[:])
	rest = append(rest, b.slots(&t, taken, &masks, six)...)
	slices.Sort(rest)
	return t, slices.Compact(rest)
}

// slots writes the slots of a tuple and what is behind them, and gives the rules
// that were too wide for its trees.
func (b *builder) slots(t *Cell, taken []int32, masks *[8]uint32, six bool) (spilt []int32) {
	size := slotsFor(len(taken))
	groups := b.group(taken, masks, six, size)
	base := len(b.forest.Cells)
	b.forest.Cells = append(b.forest.Cells, make([]Cell, size/8)...)
	t[tupleBase], t[tupleSlots], t[tupleBest] = uint32(base), uint32(size-1), ^uint32(0)
	for _, g := range groups {
		ref, left := b.tree(g.rules, (CopiesPerRule-1)*len(g.rules)+extraCopies*len(g.rules)/len(taken))
		spilt = append(spilt, left...)
		c := &b.forest.Cells[base+g.slot/8]
		c[2*(g.slot%8)], c[2*(g.slot%8)+1] = ref, g.tag
		t[tupleBest] = min(t[tupleBest], b.rules[g.rules[0]].Order)
	}
	return spilt
}

// group is what shares a slot; tag is 0 if the addresses are not all the same.
type group struct {
	slot  int
	tag   uint32
	rules []int32 // in order
}

func (b *builder) group(taken []int32, masks *[8]uint32, six bool, size int) []group {
	type entry struct {
		slot uint32
		tag  uint32
		rule int32
	}
	entries := make([]entry, len(taken))
	for k, i := range taken {
		h := hash(&b.words[i], masks, six, 0)
		entries[k] = entry{uint32(h) & uint32(size-1), tagOf(h), i}
	}
	slices.SortFunc(entries, func(x, y entry) int {
		if x.slot != y.slot {
			return int(x.slot) - int(y.slot)
		}
		return int(x.rule) - int(y.rule)
	})
	flat := make([]int32, len(entries))
	var out []group
	for i := 0; i < len(entries); {
		g := group{slot: int(entries[i].slot), tag: entries[i].tag}
		j := i
		for ; j < len(entries) && entries[j].slot == entries[i].slot; j++ {
			flat[j] = entries[j].rule
			if entries[j].tag != g.tag {
				g.tag = 0
			}
		}
		g.rules = flat[i:j:j]
		out = append(out, g)
		i = j
	}
	return out
}
