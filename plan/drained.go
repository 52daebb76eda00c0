package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/onpath/onpath"
)

// The most instances that a condition names.
const mostStuck = 8

// cannotMove notes why instances stay on nodes that are to be drained.
func (w *rollout) cannotMove(list []*instance, why string) {
	for _, i := range list {
		if i.node != nil && !i.node.gone && i.node.obj.Spec.Drain && current(w.world, i.obj).Spec.Draining.IsZero() {
			i.stuck = why
		}
	}
}

// drained says how far a node is that is to be drained, and what cannot move.
func (w *teller) drained(n *node, list []onpath.Condition) []onpath.Condition {
	if !n.obj.Spec.Drain {
		return slices.DeleteFunc(slices.Clone(list), func(c onpath.Condition) bool { return c.Type == onpath.ConditionDrained })
	}
	left, finishing := 0, 0
	var whys []string
	stuck := map[string][]string{} // by reason
	for _, i := range n.insts {
		if slices.Contains(w.res.Delete, onpath.KeyOf(i.obj)) {
			continue
		}
		left++
		if !current(w.world, i.obj).Spec.Draining.IsZero() {
			finishing++
		}
		if i.stuck == "" {
			continue
		}
		if stuck[i.stuck] == nil {
			whys = append(whys, i.stuck)
		}
		stuck[i.stuck] = append(stuck[i.stuck], i.key.String())
		left--
	}
	slices.Sort(whys)
	for k, why := range whys {
		names := stuck[why]
		slices.Sort(names)
		whys[k] = fmt.Sprintf("cannot move %s: %s", strings.Join(shorten(names, mostStuck), ", "), why)
	}
	switch {
	case len(whys) > 0:
		if left > 0 {
			whys = append(whys, count(left, "more instance")+" on the way")
		}
		w.tellStuck(n, list)
		return w.condition(list, onpath.ConditionDrained, false, onpath.ReasonStuck, strings.Join(whys, "; "))
	case left > 0 && left == finishing:
		return w.condition(list, onpath.ConditionDrained, false, "Finishing", count(left, "instance")+" left; new flows go elsewhere, and the old ones end")
	case left > 0:
		return w.condition(list, onpath.ConditionDrained, false, "Draining", count(left, "instance")+" left")
	}
	return w.condition(list, onpath.ConditionDrained, true, "Empty", "no instance is left on it")
}

// tellStuck leaves an event the first time.
func (w *teller) tellStuck(n *node, list []onpath.Condition) {
	if !slices.ContainsFunc(list, func(c onpath.Condition) bool {
		return c.Type == onpath.ConditionDrained && c.Reason == onpath.ReasonStuck
	}) {
		w.event(Event{About: onpath.KeyOf(n.obj), Node: n.name, Reason: onpath.ReasonStuck, Warning: true, Message: "cannot be drained: some of its instances have nowhere to go; onpath describe node " + n.name + " names them"})
	}
}
