package plan

import (
	"cmp"
	"fmt"
	"net/netip"
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
	// Chains of other tenants take all of its traffic.
	reasonAllTaken = "AllTakenByOthers"
	// Chains of the tenant itself come before this one and take all of its traffic, or a
	// part of it.
	reasonTakenByOwn = "TakenByOwn"
	reasonExceptions = "Exceptions"

	takenFromThis = " of its traffic is another tenant's: that tenant has the longer prefix, or has had the prefix for longer"
)

// takers are active chains of other tenants whose title to traffic of this one is better,
// and in words what they take; at most so many. All is taken where one of them takes it all.
func (w *teller) takers(c *chain, most int) (out []string, all bool) {
	if c.tier != onpath.TierTenant || c.off() != "" {
		return nil, false
	}
	rights := w.rightsBefore(c)
	if !slices.ContainsFunc(rights, func(r right) bool { return r.tenant != c.key.tenant && r.meets(c) }) {
		return nil, false // as most have none
	}
	looked := 0
	w.rivals.near(w.world, c).meeting(c, func(t *chain) bool {
		if t.key.tenant == c.key.tenant || !c.mayMeet(t) && !c.mayFace(t) || !mayContest(t, c) {
			return true
		}
		if m, ok := w.takes(t, c); ok {
			if words := fmt.Sprintf("chain %s takes %s", t.key, words(m)); len(out) < most && !slices.Contains(out, words) {
				out = append(out, words)
			}
			all = all || takesAll(w.world, t, c)
			looked++
		}
		return len(out) < most || !all && looked < maxLooked
	})
	return out, all
}

// takesAll reports whether a chain gets all traffic of another tenant's.
func takesAll(w *world, t, c *chain) bool {
	theirs, own := w.partsOf(t.key.tenant), w.partsOf(c.key.tenant)
	return everywhereOf(t, c) && !slices.ContainsFunc(c.forward, func(m onpath.Match) bool {
		best := divide(nil, own, onpath.Rule{Match: m}, 0, false)
		return !t.has(m) || len(best) > 0 && floor([]onpath.Match{m}, theirs).Compare(best[0].rank) > 0
	})
}

// right is a tenant's title to the traffic of one prefix.
type right struct {
	ownership.Rank
	tenant string
	at     [2]span // the prefix
}

// rivals are the tenants with chains, and these chains.
type rivals struct {
	rights []right              // the best first
	at     map[string]*spanTree // active chains by cloudlet, of all as "", made when they are first asked for
}

func (w *teller) findRivals() {
	w.rivals = &rivals{at: map[string]*spanTree{}}
	there := map[string]bool{}
	for _, c := range w.chains {
		if c.tier != onpath.TierTenant || there[c.key.tenant] {
			continue
		}
		there[c.key.tenant] = true
		for _, part := range w.partsOf(c.key.tenant) {
			for _, p := range part.Prefixes {
				at := reachOf([]onpath.Match{{Dst: []netip.Prefix{p}}})
				w.rivals.rights = append(w.rivals.rights, right{part.Rank, c.key.tenant, at})
			}
		}
	}
	slices.SortStableFunc(w.rivals.rights, func(a, b right) int { return a.Compare(b.Rank) })
}

// rightsBefore are better than the right of the chain's tenant to all of its traffic.
func (w *teller) rightsBefore(c *chain) []right {
	if w.rivals == nil {
		w.findRivals()
	}
	worst := floor(c.forward, w.partsOf(c.key.tenant))
	n, _ := slices.BinarySearchFunc(w.rivals.rights, worst, func(t right, r ownership.Rank) int { return t.Compare(r) })
	return w.rivals.rights[:n]
}

// near are the active chains of tenants in the chain's cloudlets.
func (r *rivals) near(w *world, c *chain) *spanTree {
	in, list := "", w.chains
	if len(c.cloudlets) == 1 { // as most; others lie elsewhere
		in, list = c.cloudlets[0], w.cloudlets[c.cloudlets[0]].chains
	}
	if r.at[in] == nil {
		r.at[in] = newSpanTree(slices.DeleteFunc(slices.Clone(list), func(t *chain) bool {
			return t.tier != onpath.TierTenant || !t.active
		}))
	}
	return r.at[in]
}

// meets reports whether traffic of the chain may have the title's end in its prefix.
func (r *right) meets(c *chain) bool {
	end := &c.origin
	if r.Destination {
		end = &c.reach
	}
	return r.at[0].meets(&end[0]) || r.at[1].meets(&end[1])
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
	if was == reasonTaken || was == reasonAllTaken {
		most = 1 // to know that there is one
	}
	reason, message := w.takenByOwn(c)
	if c.key.tenant == onpath.OperatorTenant {
		most = 5 // it is told who they are
	}
	list, all := w.takers(c, most)
	if len(list) > 0 {
		var share string
		reason, share = reasonTaken, "part"
		if all {
			reason, share = reasonAllTaken, "all"
		}
		remedy := "; ask the operator"
		if c.key.tenant == onpath.OperatorTenant {
			remedy = ": " + strings.Join(list, ", ") + "; to have it pass both, name both functions in one chain"
		}
		message = strings.TrimSuffix(share+takenFromThis+remedy+"; "+message, "; ")
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

// maxLooked is how many takers are asked whether they take all.
const maxLooked = 64

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
