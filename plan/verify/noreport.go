package verify

import (
	"fmt"
	"maps"
	"slices"

	"github.com/onpath/onpath"
)

// doubt takes back the proof of what rests on nodes that cannot be asked. It comes
// last, for what is refuted by what they had stays refuted: they most likely have it.
func (c *checker) doubt(a *place) {
	for _, node := range slices.Sorted(maps.Keys(c.in.NoReport)) {
		gateway := slices.Contains(a.used, node)
		text := fmt.Sprintf("it crosses node %s, of which it is not known what it has in force: %s", node, c.in.NoReport[node])
		if gateway {
			text = fmt.Sprintf("of what comes in at gateway %s nothing is known: %s", node, c.in.NoReport[node])
		}
		for _, p := range a.promises {
			if gateway || c.res.runs(p, node) {
				c.rests(c.results[p.key], node, text)
			}
		}
		if gateway || slices.ContainsFunc(a.emitters, func(e *emitter) bool { return e.at.node == node }) {
			c.rests(&c.rest, node, text)
		}
	}
}

// rests notes that a result is not proved, as a node cannot be asked.
func (c *checker) rests(r *onpath.ChainVerification, node, why string) {
	if r.Verdict == onpath.VerdictProved {
		r.Verdict, r.Reason = onpath.VerdictUnproven, why
	}
	c.noReport[r.Chain] = append(c.noReport[r.Chain], node)
}

// runs reports whether a node has instances of a promise, closing ones included:
// live flows may lead there still.
func (r *resources) runs(p *promise, node string) bool {
	here := func(deployment string) bool {
		return slices.ContainsFunc(r.instances[deployment], func(i *onpath.Instance) bool { return i.Spec.Node == node })
	}
	return here(p.from.deployment) || slices.ContainsFunc(p.steps, func(s step) bool { return here(s.deployment) })
}
