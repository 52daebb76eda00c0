package verify

import (
	"fmt"
	"slices"
	"strings"

	"github.com/onpath/onpath"
)

// redirects says which elements of a chain may send packets past others, and where
// to.
func redirects(p *promise) (out []string) {
	for k, s := range p.steps {
		if !s.redirects {
			continue
		}
		var to []string
		for _, reverse := range []bool{false, true} {
			var names []string
			for _, j := range beyond(p, k, reverse) {
				names = append(names, fmt.Sprintf("%d (%s)", j+1, p.steps[j].deployment))
			}
			if len(names) == 0 || reverse && p.forwardOnly() {
				continue
			}
			to = append(to, map[bool]string{false: "", true: "against the chain's direction "}[reverse]+strings.Join(names, ", "))
		}
		text := fmt.Sprintf("element %d (%s) may send packets to elements %s", k+1, s.deployment, strings.Join(to, "; "))
		if len(to) == 0 {
			text = fmt.Sprintf("element %d (%s) may send packets to later elements, of which there are none: those are dropped", k+1, s.deployment)
		} else {
			text += ", past those between: each of these ways is proved, too; which packets take them is for its code to say"
		}
		out = append(out, text)
	}
	return out
}

// beyond are the elements of a chain to which a function at element k may send
// packets of a direction.
func beyond(p *promise, k int, reverse bool) (out []int) {
	for j := range p.steps {
		if !reverse && j > k || reverse && j < k {
			out = append(out, j)
		}
	}
	if reverse {
		slices.Reverse(out)
	}
	return out
}

// redirected follows what the function that was crossed last may send to each of the
// later elements of its chain, whether they select it or not.
func (w *walker) redirected(st state, s set, g *onpath.Group, in *onpath.Vport) *failure {
	n := w.cl.wants[st.next-1]
	if !n.step().redirects || in.Kind != onpath.VportFunction || !st.at.onePlace(in.ID) {
		return nil // what it redirects is dropped
	}
	from := st.way
	for _, j := range beyond(n.p, n.k, n.reverse) {
		on := *w
		on.cl = w.cl.from(st.next, wanted{n.p, j, n.reverse})
		if on.cl != w.cl {
			on.seen, on.unselected = map[visit]bool{}, true
		}
		next := st
		next.jumped = true
		next.next = slices.Index(on.cl.wants[st.next:], wanted{n.p, j, n.reverse}) + st.next
		next.way = &hop{onpath.Note{Text: fmt.Sprintf("sent to element %d by the code of %s", j+1, in.Instance), About: in.Instance}, from}
		if f := on.group(next, s, onpath.GroupOf(g.Path, j, n.reverse)); f != nil {
			return f
		}
	}
	return nil
}

// from is a class whose flows go on at an element of a chain, behind the first wants.
// It is the same one if they select that element anyway.
func (cl *class) from(n int, at wanted) *class {
	if slices.Contains(cl.wants[n:], at) {
		return cl
	}
	out := *cl
	behind := func(w wanted) bool {
		return w.p != at.p || !at.reverse && w.k > at.k || at.reverse && w.k < at.k
	}
	i := n
	for i < len(cl.wants) && !behind(cl.wants[i]) {
		i++
	}
	out.wants = slices.Insert(slices.Clone(cl.wants), i, at)
	return &out
}

// onePlace reports whether a function stands at the same place in all its chains:
// else the data path does not know which elements are later.
func (x *site) onePlace(v onpath.VportID) bool {
	at := -1
	for i := range x.config.Groups {
		g := &x.config.Groups[i]
		if !has(g, v) {
			continue
		}
		_, k, _ := g.ID.Split()
		if at >= 0 && at != k {
			return false
		}
		at = k
	}
	return true
}
