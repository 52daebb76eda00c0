package control

import "github.com/onpath/onpath/plan"

// PlanBy has plans made in another way.
func (c *Controller) PlanBy(f func(*plan.Snapshot) *plan.Result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.make = f
}

// Sessions is of how many nodes something is known.
func Sessions(c *Controller) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.core.nodes)
}
