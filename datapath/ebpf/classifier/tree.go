package classifier

import (
	"cmp"
	"slices"
)

// box is a range in every field; nodes are cut out of boxes.
type box struct{ lo, hi [fields]uint32 }

// box is where a rule matches. A protocol of 0 stands for all.
func (r *Rule) box() box {
	var x box
	w := r.words()
	for i := range 4 {
		x.lo[fieldSrc+i], x.hi[fieldSrc+i] = w[i], w[i]|^maskWord(int(r.SrcLen)-32*i)
		x.lo[fieldDst+i], x.hi[fieldDst+i] = w[4+i], w[4+i]|^maskWord(int(r.DstLen)-32*i)
	}
	if r.Family != 6 { // what IPv4 leaves zero
		for i := 1; i < 4 && r.Family == 4; i++ {
			x.hi[fieldSrc+i], x.hi[fieldDst+i] = 0, 0
		}
	}
	x.hi[fieldSPort], x.hi[fieldDPort], x.hi[fieldProto] = 65535, 65535, 255
	if r.Flags&SrcPorts != 0 {
		x.lo[fieldSPort], x.hi[fieldSPort] = uint32(r.SPortFirst), uint32(r.SPortLast)
	}
	if r.Flags&DstPorts != 0 {
		x.lo[fieldDPort], x.hi[fieldDPort] = uint32(r.DPortFirst), uint32(r.DPortLast)
	}
	if r.Proto != 0 {
		x.lo[fieldProto], x.hi[fieldProto] = uint32(r.Proto), uint32(r.Proto)
	}
	return x
}

// covers reports whether all packets in b match the rule of box x. Ports say
// nothing of packets that have none.
func (x *box) covers(b *box, ports bool) bool {
	for f := range fields {
		if x.lo[f] > b.lo[f] || x.hi[f] < b.hi[f] {
			return false
		}
	}
	return !ports || b.lo[fieldProto] == b.hi[fieldProto] && hasPorts(b.lo[fieldProto])
}

// piece is a rule in a tree, with the part of its box inside the node's.
type piece struct {
	rule int32
	box  box
}

// grower makes one tree.
type grower struct {
	*builder
	spilt map[int32]bool // rules that have left it
}

// tries is how often a tree is made anew without those that left it.
const tries = 4

// tree makes what stands behind a slot: a leaf, or a tree of nodes in which so
// many rules may be copied. Rules that it does not hold everywhere come back; it
// holds at least MaxLeaf of them.
func (b *builder) tree(rules []int32, spare int) (ref uint32, spilt []int32) {
	if len(rules) <= MaxLeaf {
		return b.run(rules), nil
	}
	at, copies := len(b.forest.Cells), b.forest.Copies
	undo := func() { b.forest.Cells, b.forest.Copies = b.forest.Cells[:at], copies }
	kept := rules
	for range tries {
		g := &grower{builder: b, spilt: map[int32]bool{}}
		ref = g.grow(b.pieces(kept), 0, spare)
		if len(g.spilt) == 0 {
			return ref, spilt
		}
		undo()
		var rest []int32
		for _, r := range kept {
			if g.spilt[r] {
				spilt = append(spilt, r)
			} else {
				rest = append(rest, r)
			}
		}
		if kept = rest; len(kept) < MaxLeaf {
			break
		}
	}
	if len(kept) < MaxLeaf {
		return b.run(rules[:MaxLeaf]), rules[MaxLeaf:]
	}
	return b.run(kept[:MaxLeaf]), append(spilt, kept[MaxLeaf:]...)
}

func (b *builder) pieces(rules []int32) []piece {
	out := make([]piece, len(rules))
	for i, r := range rules {
		out[i] = piece{r, b.rules[r].box()}
	}
	return out
}

// grow makes the node of pieces, which stand in order; spare is how many copies
// may be made below.
func (g *grower) grow(pieces []piece, depth, spare int) uint32 {
	pieces = g.shadowless(slices.DeleteFunc(pieces, func(p piece) bool { return g.spilt[p.rule] }))
	if len(pieces) == 0 {
		return 0
	}
	if len(pieces) <= MaxLeaf || depth == MaxDepth {
		return g.leaf(pieces)
	}
	f, keys := cutOf(pieces)
	kept, wide, left := narrowest(pieces, f, keys, spare)
	if len(kept) <= MaxLeaf {
		return g.leaf(pieces)
	}
	for _, p := range wide {
		g.spilt[p.rule] = true
	}
	pieces, spare = kept, left
	kids := part(pieces, f, keys)
	total := 0
	for _, k := range kids {
		total += len(k)
	}
	at := uint32(len(g.forest.Cells))
	g.forest.Cells = append(g.forest.Cells, Cell{})
	n := Cell{nodeField: uint32(f)}
	for i := range fanout - 1 {
		n[nodeKeys+i] = ^uint32(0)
		if i < len(keys) {
			n[nodeKeys+i] = keys[i]
		}
	}
	for i, k := range kids {
		n[nodeKids+i] = g.grow(k, depth+1, spare*len(k)/max(total, 1))
	}
	g.forest.Cells[at] = n
	return at
}

// leaf holds the first MaxLeaf pieces.
func (g *grower) leaf(pieces []piece) uint32 {
	if len(pieces) > MaxLeaf {
		for _, p := range pieces[MaxLeaf:] {
			g.spilt[p.rule] = true
		}
		pieces = pieces[:MaxLeaf]
	}
	rules := make([]int32, len(pieces))
	for i, p := range pieces {
		rules[i] = p.rule
	}
	return g.run(rules)
}

// shadowless drops what stands behind a rule that takes everything where any of
// the pieces match.
func (g *grower) shadowless(pieces []piece) []piece {
	if len(pieces) < 2 {
		return pieces
	}
	all := bounds(pieces)
	for i := range pieces {
		r := &g.rules[pieces[i].rule]
		if pieces[i].box.covers(&all, r.Flags&(SrcPorts|DstPorts) != 0) {
			return pieces[:i+1]
		}
	}
	return pieces
}

func bounds(pieces []piece) box {
	all := pieces[0].box
	for i := range pieces[1:] {
		p := &pieces[1+i].box
		for f := range fields {
			all.lo[f] = min(all.lo[f], p.lo[f])
			all.hi[f] = max(all.hi[f], p.hi[f])
		}
	}
	return all
}

// sample is how many pieces a cut is judged by.
const sample = 512

// cutOf finds the field and the last values of the children but the last, by
// which the fewest rules are expected in a child.
func cutOf(pieces []piece) (field int, keys []uint32) {
	some := pieces
	if len(pieces) > sample {
		some = make([]piece, 0, sample)
		for i := range sample {
			some = append(some, pieces[i*len(pieces)/sample])
		}
	}
	all := bounds(some)
	best := -1
	for f := range fields {
		k := cuts(some, f, &all)
		if len(k) == 0 {
			continue
		}
		if c := cost(some, f, k); best < 0 || c < best {
			field, keys, best = f, k, c
		}
	}
	return field, keys
}

// cuts are at most seven values of a field at which ranges end, spread evenly
// over the ends.
func cuts(pieces []piece, f int, all *box) []uint32 {
	if all.lo[f] == all.hi[f] {
		return nil
	}
	ends := make([]uint32, 0, 2*len(pieces))
	for i := range pieces {
		if lo := pieces[i].box.lo[f]; lo > all.lo[f] {
			ends = append(ends, lo-1)
		}
		if hi := pieces[i].box.hi[f]; hi < all.hi[f] {
			ends = append(ends, hi)
		}
	}
	slices.Sort(ends)
	if distinct := slices.Compact(slices.Clone(ends)); len(distinct) < fanout {
		return distinct
	}
	var out []uint32
	for i := 1; i < fanout; i++ {
		if e := ends[i*len(ends)/fanout]; len(out) == 0 || out[len(out)-1] != e {
			out = append(out, e)
		}
	}
	return out
}

// cost is the sum of squares of the children's sizes: children twice as big are
// met twice as often, and cost twice as much.
func cost(pieces []piece, f int, keys []uint32) int {
	var sizes [fanout]int
	for i := range pieces {
		first, last := span(&pieces[i].box, f, keys)
		for c := first; c <= last; c++ {
			sizes[c]++
		}
	}
	sum := 0
	for _, n := range sizes {
		sum += n * n
	}
	return sum
}

// span are the first and last child of a piece.
func span(x *box, f int, keys []uint32) (first, last int) {
	for _, k := range keys {
		if x.lo[f] > k {
			first++
		}
		if x.hi[f] > k {
			last++
		}
	}
	return first, last
}

// narrowest parts off the widest pieces, until the copies that the cut makes of
// those kept are within half of what may be spent; left is what is left of that.
func narrowest(pieces []piece, f int, keys []uint32, spare int) (kept, wide []piece, left int) {
	widths := make([]int, len(pieces))
	copies := 0
	for i := range pieces {
		first, last := span(&pieces[i].box, f, keys)
		widths[i] = last - first
		copies += last - first
	}
	if copies <= spare/2 {
		return pieces, nil, spare - copies
	}
	byWidth := make([]int, len(pieces))
	for i := range byWidth {
		byWidth[i] = i
	}
	slices.SortStableFunc(byWidth, func(x, y int) int { return cmp.Compare(widths[y], widths[x]) })
	out := make([]bool, len(pieces))
	for _, i := range byWidth {
		if copies <= spare/2 || widths[i] == 0 {
			break
		}
		copies -= widths[i]
		out[i] = true
	}
	for i := range pieces {
		if out[i] {
			wide = append(wide, pieces[i])
		} else {
			kept = append(kept, pieces[i])
		}
	}
	return kept, wide, spare - copies
}

// part gives each child its pieces.
func part(pieces []piece, f int, keys []uint32) [][]piece {
	kids := make([][]piece, len(keys)+1)
	for i := range pieces {
		first, last := span(&pieces[i].box, f, keys)
		for c := first; c <= last; c++ {
			p := pieces[i]
			if c > 0 {
				p.box.lo[f] = max(p.box.lo[f], keys[c-1]+1)
			}
			if c < len(keys) {
				p.box.hi[f] = min(p.box.hi[f], keys[c])
			}
			kids[c] = append(kids[c], p)
		}
	}
	return kids
}
