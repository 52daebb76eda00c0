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
	if c.tier != onpath.TierTenant || c.off() != "" || !w.outranked(c) {
		return nil
	}
	for _, t := range w.chains {
		if len(out) == most {
			break
		}
		if t.tier != c.tier || t.key.tenant == c.key.tenant || !c.mayMeet(t) && !c.mayFace(t) || !mayContest(t, c) {
			continue
		}
		if !current(w.world, t.obj).Status.Active { // few are not
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

// outranked reports whether some other tenant with chains has a better title to anything
// than the chain has to all of its traffic.
func (w *teller) outranked(c *chain) bool {
	if w.best == nil {
		seen := map[string]bool{}
		for _, t := range w.chains {
			if parts := w.partsOf(t.key.tenant); t.tier == onpath.TierTenant && len(parts) > 0 && !seen[t.key.tenant] {
				seen[t.key.tenant] = true
				w.best = append(w.best, titled{t.key.tenant, parts[0].Rank})
			}
		}
		slices.SortFunc(w.best, func(a, b titled) int { return a.Rank.Compare(b.Rank) })
	}
	i := slices.IndexFunc(w.best, func(t titled) bool { return t.tenant != c.key.tenant })
	return i >= 0 && w.best[i].Rank.Compare(floor(c.forward, w.partsOf(c.key.tenant))) < 0
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
