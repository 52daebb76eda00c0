package plan

import (
	"fmt"
	"slices"

	"github.com/onpath/onpath"
)

// whole is the condition of a chain that gets all the traffic that it selects. A chain
// from which no other tenant's ever took any has none.
const (
	whole         = "Whole"
	reasonTaken   = "TakenByOthers"
	takenFromThis = "part of its traffic is taken by a chain of another tenant with a higher priority; ask the operator"
)

// takers are active chains of other tenants that stand before this one and select
// traffic of it, and in words what; at most so many.
func (w *teller) takers(c *chain, most int) (out []string) {
	for _, t := range w.chains { // ordered by tier and priority
		if t.tier != c.tier {
			continue
		}
		if t.priority() <= c.priority() || len(out) == most {
			break
		}
		if t.key.tenant == c.key.tenant || !c.mayMeet(t) && !c.mayFace(t) || !mayContest(t, c) {
			continue
		}
		m, ok := inCommon(t.forward, c.forward)
		if !ok { // what begins against its direction is of a chain, too
			m, ok = inCommon(t.reverse, c.forward)
		}
		if ok && current(w.world, t.obj).Status.Active { // looked up last: few have traffic in common
			out = append(out, fmt.Sprintf("chain %s, priority %d, takes %s", t.key, t.priority(), words(m)))
		}
	}
	return out
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
