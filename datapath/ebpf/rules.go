package ebpf

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"unsafe"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/datapath/ebpf/classifier"
)

// A table's rules are multiplied out to plain ones: one prefix a side, one
// protocol, one range a port. Few of them are a row of cells, more are compiled
// to a forest (package classifier).

// wantedTable is a table on its way to the kernel.
type wantedTable struct {
	id     onpath.TableID
	rules  []classifier.Rule
	miss   classifier.Rule
	strict func(*classifier.Rule) bool
	chain  func(path uint32) string // for messages
	sum    sum
	cells  []classifier.Cell  // of a small table: the miss, then the rules
	forest *classifier.Forest // of a large one, once it is compiled
	// planted: its forest is in the kernel at that slot, and no row points there.
	planted bool
	slot    uint32
}

func (t *wantedTable) large() bool { return len(t.rules) > smallTable }

// plainTable multiplies a table's rules out. Rules of a family that a prefix list
// excludes vanish.
func (k *compiler) plainTable(t *onpath.Table) (*wantedTable, error) {
	w := &wantedTable{id: t.ID, chain: k.chainOf}
	w.miss.Action, w.miss.Arg = action(t.Miss)
	w.strict = func(r *classifier.Rule) bool { return k.st.paths[uint32(r.PathSlot)].Flags&pathStrict != 0 }
	total := 0
	for i := range t.Rules {
		total += t.Rules[i].Match.PlainRules()
		if total > onpath.MaxTableRules {
			return nil, k.tooMany(t)
		}
	}
	w.rules = make([]classifier.Rule, 0, total)
	for i := range t.Rules {
		r := &t.Rules[i]
		from := len(w.rules)
		w.rules = expand(w.rules, &r.Match)
		act, arg := action(r.Action)
		for j := from; j < len(w.rules); j++ {
			p := &w.rules[j]
			p.Order = uint32(j)
			p.Action, p.Arg = act, arg
			p.Path, p.PathSlot = uint32(r.Path), k.pathSlot(r.Path)
			if r.Reverse {
				p.Flags |= classifier.Reverse
			}
		}
	}
	w.seal()
	return w, nil
}

// seal computes the sum, and the cells of a small table.
func (t *wantedTable) seal() {
	cells := make([]classifier.Cell, 0, len(t.rules)+1)
	cells = append(cells, t.miss.Cell())
	var strict []byte
	for i := range t.rules {
		cells = append(cells, t.rules[i].Cell())
		if t.large() { // small ones ask the path
			var b byte
			if t.strict(&t.rules[i]) {
				b = 1
			}
			strict = append(strict, b)
		}
	}
	t.sum = sumOf(cells, strict)
	if !t.large() {
		t.cells = cells
	}
}

// sumOf identifies contents, and the way in which they are compiled.
func sumOf(cells []classifier.Cell, strict []byte) sum {
	h := sha256.New()
	h.Write([]byte(classifier.Version))
	h.Write(unsafe.Slice((*byte)(unsafe.Pointer(&cells[0])), len(cells)*int(unsafe.Sizeof(cells[0]))))
	h.Write(strict)
	return sum(h.Sum(nil))
}

// compile makes the forest.
func (t *wantedTable) compile() error {
	f, err := classifier.Compile(t.rules, t.strict, t.miss)
	var left *classifier.TooComplex
	if errors.As(err, &left) {
		count := map[string]int{}
		for _, i := range left.Rules {
			count[t.chain(t.rules[i].Path)]++
		}
		chain, n := most(count)
		e := onpath.Errorf(onpath.CodeNoCapacity,
			"%s: its rules cross each other in too many ways to be found in %d look-ups (%d of its %d rules in table %d do not fit)",
			chain, classifier.MaxTuples, n, t.of(chain), t.id)
		e.Remedy = "use fewer prefixes and port ranges that overlap without lying in each other, or make a chain of each kind"
		return e
	}
	if err != nil {
		return err
	}
	t.forest = f
	return nil
}

// of counts the rules of a chain.
func (t *wantedTable) of(chain string) int {
	n := 0
	for i := range t.rules {
		if t.chain(t.rules[i].Path) == chain {
			n++
		}
	}
	return n
}

// greatest is the chain with the most rules.
func (t *wantedTable) greatest() string {
	count := map[uint32]int{}
	for i := range t.rules {
		count[t.rules[i].Path]++
	}
	path, _ := most(count)
	return t.chain(path)
}

func most[K cmp.Ordered](count map[K]int) (best K, n int) {
	for k, c := range count {
		if c > n || c == n && k < best {
			best, n = k, c
		}
	}
	return best, n
}

func (k *compiler) chainOf(path uint32) string {
	for i := range k.c.Paths {
		if uint32(k.c.Paths[i].ID) == path {
			return "chain " + k.c.Paths[i].Chain
		}
	}
	return fmt.Sprintf("path %d", path)
}

// tooMany says which chain made a table too long.
func (k *compiler) tooMany(t *onpath.Table) error {
	count := map[uint32]int{}
	total := 0
	for i := range t.Rules {
		n := t.Rules[i].Match.PlainRules()
		count[uint32(t.Rules[i].Path)] += n
		total += n
	}
	path, n := most(count)
	e := onpath.Errorf(onpath.CodeNoCapacity,
		"table %d has %d plain rules (prefixes × protocols × port ranges), at most %d fit; %s has %d of them",
		t.ID, total, onpath.MaxTableRules, k.chainOf(path), n)
	e.Remedy = "use fewer or wider prefixes and port ranges in that chain"
	return e
}

// action gives an action in the programs' numbers.
func action(a onpath.Action) (kind uint8, arg uint32) {
	switch a.Kind {
	case onpath.ActionGroup:
		return actGroup, uint32(a.Group)
	case onpath.ActionTable:
		return actTable, uint32(a.Table)
	case onpath.ActionExit:
		return actExit, 0
	case onpath.ActionDeliver:
		return actExit, uint32(a.Vport)
	case onpath.ActionRoute:
		return actRoute, 0
	case onpath.ActionDrop:
		return actDrop, reasonNumber(a.Reason)
	}
	return 0, 0
}

// expand multiplies a match out.
func expand(out []classifier.Rule, m *onpath.Match) []classifier.Rule {
	if len(m.Src) == 0 && len(m.Dst) == 0 {
		return withPorts(out, classifier.Rule{Family: m.Family}, m)
	}
	for _, f := range []uint8{4, 6} {
		if m.Family == 0 || m.Family == f {
			out = expandFamily(out, m, f)
		}
	}
	return out
}

func expandFamily(out []classifier.Rule, m *onpath.Match, f uint8) []classifier.Rule {
	srcs, ok1 := sides(m.Src, f)
	dsts, ok2 := sides(m.Dst, f)
	if !ok1 || !ok2 {
		return out
	}
	for _, s := range srcs {
		for _, d := range dsts {
			out = withPorts(out, classifier.Rule{Family: f, Src: s.addr, SrcLen: s.bits, Dst: d.addr, DstLen: d.bits}, m)
		}
	}
	return out
}

// side is a prefix in the form of the rules.
type side struct {
	addr [2]uint64
	bits uint8
}

// sides lists the prefixes of one family; no prefix at all means any address,
// none of this family means no match.
func sides(list []netip.Prefix, f uint8) ([]side, bool) {
	if len(list) == 0 {
		return []side{{}}, true
	}
	var out []side
	for _, p := range list {
		if family(p.Addr()) == f {
			out = append(out, side{ruleAddress(p.Masked().Addr()), uint8(p.Bits())})
		}
	}
	return out, len(out) > 0
}

// ruleAddress is an address in the form of the rules: IPv4 fills the upper half
// of the first word.
func ruleAddress(a netip.Addr) [2]uint64 {
	var b [16]byte
	copy(b[:], a.AsSlice())
	return [2]uint64{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

func withPorts(out []classifier.Rule, r classifier.Rule, m *onpath.Match) []classifier.Rule {
	src, dst := onpath.JoinPorts(m.SrcPorts), onpath.JoinPorts(m.DstPorts)
	for _, proto := range orAny(m.Protocol, 0) {
		for _, s := range orAny(src, onpath.PortRange{Last: 65535}) {
			for _, d := range orAny(dst, onpath.PortRange{Last: 65535}) {
				r.Proto = proto
				r.Flags = 0
				if len(m.SrcPorts) > 0 {
					r.Flags |= classifier.SrcPorts
				}
				if len(m.DstPorts) > 0 {
					r.Flags |= classifier.DstPorts
				}
				r.SPortFirst, r.SPortLast = s.First, s.Last
				r.DPortFirst, r.DPortLast = d.First, d.Last
				out = append(out, r)
			}
		}
	}
	return out
}

func orAny[T any](list []T, any T) []T {
	if len(list) == 0 {
		return []T{any}
	}
	return list
}

// ruleSpace hands out runs of the rules array.
type ruleSpace struct {
	used []run // by base
}

type run struct{ base, count uint32 }

// take finds a free run of n rules, first fit.
func (s *ruleSpace) take(n uint32) (uint32, error) {
	var base uint32
	for i, r := range s.used {
		if r.base-base >= n {
			s.used = slices.Insert(s.used, i, run{base, n})
			return base, nil
		}
		base = r.base + r.count
	}
	if maxRules-base < n {
		e := onpath.Errorf(onpath.CodeNoCapacity, "the rules of all small tables need more than %d slots", maxRules)
		e.Remedy = "use fewer or wider prefixes and port ranges in the chains of this node"
		return 0, e
	}
	s.used = append(s.used, run{base, n})
	return base, nil
}

// mark notes a run that is in use already.
func (s *ruleSpace) mark(r run) {
	i, _ := slices.BinarySearchFunc(s.used, r, func(a, b run) int { return int(a.base) - int(b.base) })
	s.used = slices.Insert(s.used, i, r)
}

// free gives runs back.
func (s *ruleSpace) free(gone map[run]bool) {
	if len(gone) > 0 {
		s.used = slices.DeleteFunc(s.used, func(u run) bool { return gone[u] })
	}
}
