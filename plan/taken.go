package plan

import (
	"fmt"
	"slices"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/ownership"
)

// whole is the condition of a chain that gets all the traffic that it selects. A chain
// from which no other tenant's ever took any has none.
const (
	whole         = "Whole"
	reasonTaken   = "TakenByOthers"
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
// who they are: one tenant learns nothing of another's chains.
func (w *teller) takenStatus(c *chain, st *onpath.ChainStatus) {
	if len(c.errs) > 0 {
		return
	}
	i := slices.IndexFunc(st.Conditions, func(c onpath.Condition) bool { return c.Type == whole })
	told := i >= 0 && st.Conditions[i].Status == onpath.False
	most := 5
	if told {
		most = 1 // to know that there is one
	}
	list := w.takers(c, most)
	if len(list) == 0 {
		if i >= 0 {
			st.Conditions = w.condition(st.Conditions, whole, true, "Whole", "")
		}
		return
	}
	st.Conditions = w.condition(st.Conditions, whole, false, reasonTaken, takenFromThis)
	if told {
		return
	}
	k := onpath.KeyOf(c.obj)
	w.event(Event{About: k, Reason: reasonTaken, Message: takenFromThis, Warning: true})
	for _, taker := range list {
		w.event(Event{About: k, To: onpath.OperatorTenant, Reason: reasonTaken, Message: taker, Warning: true})
	}
}
