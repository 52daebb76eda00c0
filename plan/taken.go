package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/ownership"
)

// whole is the condition of a chain that gets all the traffic that it selects. A chain
// from which no other chain ever took any has none.
const (
	whole       = "Whole"
	reasonTaken = "TakenByOthers"
	// Chains of the tenant itself come before this one and take all of its traffic, or a
	// part of it.
	reasonTakenByOwn = "TakenByOwn"
	reasonExceptions = "Exceptions"

	takenFromThis = "part of its traffic is another tenant's: that tenant has the longer prefix, or has had it for longer; ask the operator"
)

// takers are active chains of other tenants whose title to traffic of this one is better,
// and in words what they take; at most so many.
func (w *teller) takers(c *chain, most int) (out []string) {
	if c.tier != onpath.TierTenant || c.off() != "" {
		return nil
	}
	better := w.better(c)
	if better == 0 || better == 1 && c.titled == 1 {
		return nil
	}
	list := w.chains
	if len(c.cloudlets) == 1 { // as most; others lie elsewhere
		list = w.cloudlets[c.cloudlets[0]].chains
	}
	for _, t := range list {
		if len(out) == most {
			break
		}
		if t.titled == 0 || t.titled > better || t.titled == c.titled || t.tier != c.tier || !t.active {
			continue
		}
		if !c.mayMeet(t) && !c.mayFace(t) || !mayContest(t, c) {
			continue
		}
		if m, ok := w.takes(t, c); ok {
			out = append(out, fmt.Sprintf("chain %s takes %s", t.key, words(m)))
		}
	}
	return out
}

// titled is a tenant's best title to anything.
type titled struct {
	tenant string
	ownership.Rank
}

// findBest puts the tenants with chains into the order of their best titles.
func (w *teller) findBest() {
	place := map[string]int{}
	for _, t := range w.chains {
		if parts := w.partsOf(t.key.tenant); t.tier == onpath.TierTenant && len(parts) > 0 && place[t.key.tenant] == 0 {
			place[t.key.tenant] = 1
			w.best = append(w.best, titled{t.key.tenant, parts[0].Rank})
		}
	}
	slices.SortFunc(w.best, func(a, b titled) int { return a.Rank.Compare(b.Rank) })
	for i, t := range w.best {
		place[t.tenant] = i + 1
	}
	for _, c := range w.chains {
		c.titled = place[c.key.tenant]
	}
}

// better is how many tenants have a better title to anything than the chain has to all of
// its traffic: those first in order.
func (w *teller) better(c *chain) int {
	if w.best == nil {
		w.findBest()
	}
	worst := floor(c.forward, w.partsOf(c.key.tenant))
	n, _ := slices.BinarySearchFunc(w.best, worst, func(t titled, r ownership.Rank) int { return t.Rank.Compare(r) })
	return n
}

// takenStatus tells the chain's tenant that others take traffic of it, and the operator
// who they are: one tenant learns nothing of another's chains. Of chains of its own that
// come before it the tenant learns all.
func (w *teller) takenStatus(c *chain, st *onpath.ChainStatus) {
	if len(c.errs) > 0 {
		return
	}
	was := reasonOf(st.Conditions, whole)
	most := 5
	if was == reasonTaken {
		most = 1 // to know that there is one
	}
	reason, message := w.takenByOwn(c)
	list := w.takers(c, most)
	if len(list) > 0 {
		reason = reasonTaken
		message = strings.TrimSuffix(takenFromThis+"; "+message, "; ")
	}
	if reason == "" {
		if was != "" {
			st.Conditions = w.condition(st.Conditions, whole, true, "Whole", "")
		}
		return
	}
	st.Conditions = w.condition(st.Conditions, whole, false, reason, message)
	if was == reason {
		return
	}
	k := onpath.KeyOf(c.obj)
	w.event(Event{About: k, Reason: reason, Message: message, Warning: reason != reasonExceptions})
	for _, taker := range list {
		w.event(Event{About: k, To: onpath.OperatorTenant, Reason: reasonTaken, Message: taker, Warning: true})
	}
}

// takenByOwn says what active chains of the same tenant that come before the chain take
// of its traffic; "" if they take none.
func (w *teller) takenByOwn(c *chain) (reason, message string) {
	if c.off() != "" {
		return "", ""
	}
	if w.before == nil {
		w.findBefore()
	}
	reason = reasonExceptions
	left := slices.Clone(c.forward)
	var takes []string
	for _, t := range w.before[c] {
		m, ok := takenIn(c, t)
		if !t.active || !ok {
			continue
		}
		if everywhereOf(t, c) {
			left = slices.DeleteFunc(left, func(m onpath.Match) bool { return t.has(m) })
		}
		what := words(m)
		if len(left) == 0 {
			what, reason = "all of its traffic", reasonTakenByOwn
			if len(takes) > 0 {
				what = "the rest of its traffic"
			}
		}
		takes = append(takes, fmt.Sprintf("chain %s (priority %d) comes before this one (%d) and takes %s",
			t.key, t.priority(), c.priority(), what))
		if len(left) == 0 || len(takes) == maxTakers {
			break
		}
	}
	if len(takes) == 0 {
		return "", ""
	}
	return reason, strings.Join(takes, "; ")
}

// maxTakers is how many chains that come before another one are named, at most.
const maxTakers = 5

// takenIn is traffic of a chain that one which comes before it takes.
func takenIn(c, before *chain) (onpath.Match, bool) {
	if m, ok := contest(c, before); ok {
		return m, true
	}
	if !mayContest(c, before) || apart(c, before) {
		return onpath.Match{}, false
	}
	return inCommon(c.forward, before.reverse)
}

// everywhereOf reports whether a chain is in all cloudlets of another one, and an address
// means one host to both.
func everywhereOf(t, c *chain) bool {
	return !apart(t, c) && !slices.ContainsFunc(c.cloudlets, func(n string) bool { return !slices.Contains(t.cloudlets, n) })
}

// has reports whether the chain selects all packets of a match, in either direction.
func (c *chain) has(m onpath.Match) bool {
	inside := func(n onpath.Match) bool { return inside(m, n) }
	return slices.ContainsFunc(c.forward, inside) || slices.ContainsFunc(c.reverse, inside)
}

// findBefore finds the chains of the same tenant and tier that come before each chain and
// whose traffic may meet that of the chain, in the order of precedence.
func (w *teller) findBefore() {
	type group struct {
		tenant string
		tier   onpath.Tier
	}
	w.before = map[*chain][]*chain{}
	for _, cl := range w.inOrder {
		several := map[group]bool{} // those that have several priorities
		lists := map[group][]*chain{}
		for _, c := range cl.chains {
			g := group{c.key.tenant, c.tier}
			list := lists[g]
			several[g] = several[g] || len(list) > 0 && !list[0].sameRank(c)
			lists[g] = append(list, c)
		}
		for g := range several {
			if several[g] {
				w.addBefore(cl.name, lists[g])
			}
		}
	}
	for _, list := range w.before {
		slices.SortFunc(list, func(a, b *chain) int { return a.rank - b.rank })
	}
}

// addBefore is findBefore for the chains of one tenant and tier in a cloudlet.
func (w *teller) addBefore(cloudlet string, list []*chain) {
	for _, c := range list {
		if len(c.reverse) > 0 { // it takes what begins against its direction, too
			list = append(list, &chain{rank: c.rank, cloudlets: c.cloudlets, reach: c.origin, origin: c.reach})
		}
	}
	pairs := addMeeting(nil, cloudlet, list)
	slices.SortFunc(pairs, func(a, b pair) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) })
	for _, p := range slices.Compact(pairs) {
		if first, c := w.chains[p[0]], w.chains[p[1]]; !first.sameRank(c) {
			w.before[c] = append(w.before[c], first)
		}
	}
}
