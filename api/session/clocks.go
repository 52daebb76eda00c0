package session

import (
	"fmt"
	"time"

	"github.com/onpath/onpath"
)

// clockSlack is how far two clocks may differ before times are translated; it is
// more than messages take. clockWarn is how far before somebody is told.
const (
	clockSlack = 2 * time.Second
	clockWarn  = time.Minute
)

// clocks translates a node's times into the server's, so that events stand in the
// order in which they happened, whatever the node's clock says.
type clocks struct {
	ahead time.Duration // the node's clock against ours; 0 within clockSlack
	told  bool
}

// hear notes what the node's clock said when it sent a message. The difference is
// kept as it is until it changes by more than messages take: else equal reports
// would differ. Agents that do not say it are taken to be right.
func (c *clocks) hear(node, now time.Time) {
	if node.IsZero() {
		return
	}
	ahead := node.Sub(now).Round(time.Second)
	if ahead.Abs() <= clockSlack {
		ahead = 0
	}
	if (ahead - c.ahead).Abs() > clockSlack {
		c.ahead = ahead
	}
}

// warning says once that the clocks are far apart; "" if there is nothing to say.
func (c *clocks) warning() string {
	far := c.ahead.Abs() > clockWarn
	defer func() { c.told = far }()
	if !far || c.told {
		return ""
	}
	word := "ahead of"
	if c.ahead < 0 {
		word = "behind"
	}
	return fmt.Sprintf("its clock is %s %s the server's; times it reports are translated, but certificates need clocks that agree "+
		"within a day: set it (timedatectl set-ntp true)", onpath.Duration(c.ahead.Abs()), word)
}

func (c *clocks) ours(t *time.Time) {
	if !t.IsZero() {
		*t = t.Add(-c.ahead)
	}
}

// report translates all times of a report.
func (c *clocks) report(r *onpath.NodeReport) {
	if c.ahead == 0 {
		return
	}
	c.ours(&r.Started)
	for i := range r.Instances {
		c.ours(&r.Instances[i].Since)
		for j := range r.Instances[i].Lists {
			c.ours(&r.Instances[i].Lists[j].Since)
		}
	}
	for i := range r.Conditions {
		c.ours(&r.Conditions[i].Since)
	}
}
