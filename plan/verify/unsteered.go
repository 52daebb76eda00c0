package verify

import (
	"fmt"
	"strings"

	"github.com/onpath/onpath"
)

// unsteered is the failure of flows that enter a chain at an edge with an uplink where
// packets do not meet the rules.
func (c *checker) unsteered(cl *class) *failure {
	if len(cl.parts) == 0 || cl.emits != 0 {
		return nil
	}
	given := c.in.Unsteered[cl.start.node]
	if len(given) == 0 {
		return nil
	}
	b := c.space.some(cl.set, &c.budget)
	if b == nil {
		return nil
	}
	up := strings.TrimPrefix(given[0].Type, onpath.ConditionUplink)
	return &failure{set: b, at: cl.start.node, way: (&hop{Note: onpath.Note{Text: "gateway " + cl.start.node}}),
		message: fmt.Sprintf("is not steered if it comes in at uplink %s (%s): see that node's condition %s",
			up, given[0].Reason, given[0].Type)}
}
