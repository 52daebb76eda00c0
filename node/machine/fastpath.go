package machine

import (
	"fmt"

	"github.com/onpath/onpath"
)

// fastPather is a data path that has a fast path at some uplinks.
type fastPather interface {
	Uplinks() (map[string]onpath.UplinkCounters, error)
}

// fastConditions say of each routing uplink whether the fast path is there. It is
// no fault if it is not, unless the operator wants it always.
func (m *Machine) fastConditions(uplinks []onpath.Uplink) []onpath.Condition {
	d, ok := m.part.Datapath.(fastPather)
	if !ok {
		return nil
	}
	is, err := d.Uplinks()
	if err != nil {
		m.part.Log.Warn("cannot ask for the fast path", "err", err)
		return nil
	}
	var out []onpath.Condition
	for _, u := range uplinks {
		now, known := is[u.Name]
		if !known || !needsForwarding(u) || u.Fast == onpath.FastNever {
			continue
		}
		c := onpath.Condition{Type: ConditionFastPath + u.Name, Status: onpath.True, Message: now.Why}
		switch {
		case now.Fast:
		case u.Fast == onpath.FastAlways:
			c.Status, c.Reason = onpath.False, "NoFastPath"
		default:
			c.Status, c.Reason = onpath.Unknown, onpath.ReasonOrdinaryPath
		}
		if !now.Fast {
			c.Message = fmt.Sprintf("uplink %s: steered by tc, not by the faster XDP: %s", u.Name, now.Why)
		}
		out = append(out, c)
	}
	return out
}
