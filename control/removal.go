package control

import (
	"fmt"
	"slices"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan"
)

// checkNodes refuses to delete nodes that are connected, or whose instances are
// counted upon; with force the connected ones alone.
func (c *core) checkNodes(s *plan.Snapshot, changes []onpath.Change, force bool) error {
	var errs onpath.Errors
	for _, ch := range changes {
		n, ok := s.Objects[ch.Key].(*onpath.Node)
		if !ok || ch.Object != nil {
			continue
		}
		st := c.nodes[ch.Key.Name]
		connected := st != nil && st.connected
		if force && !connected {
			continue
		}
		if e := refusal(n, connected, instancesOn(s, ch.Key.Name)); e != nil {
			errs = append(errs, e)
		}
	}
	return errs.Err()
}

// refusal says why a node stays; nil: it may go. Of a machine that is gone for
// good nothing will ever report its instances stopped, so that having been told
// to drain is enough.
func refusal(n *onpath.Node, connected bool, instances []string) *onpath.Error {
	has := ""
	if len(instances) > 0 {
		has = fmt.Sprintf("it has %d instances: %s", len(instances), plan.Enumerate(instances))
		if len(instances) == 1 {
			has = "it has instance " + instances[0]
		}
	}
	var e *onpath.Error
	switch {
	case connected && has != "":
		e = onpath.Errorf(onpath.CodeInvalid, "its agent is connected, and %s", has)
		e.Remedy = fmt.Sprintf("drain it (onpath drain %s), stop its agent, then delete it", n.Metadata.Name)
	case connected:
		e = onpath.Errorf(onpath.CodeInvalid, "its agent is connected")
		e.Remedy = "stop its agent (onpath node off, on the node), then delete it"
	case has != "" && !n.Spec.Drain:
		e = onpath.Errorf(onpath.CodeInvalid, "it is away, but %s", has)
		e.Remedy = fmt.Sprintf("drain it first (onpath drain %s), so that others take over; "+
			"if the machine is gone for good, delete it with --force", n.Metadata.Name)
	default:
		return nil
	}
	e.Object = onpath.KeyOf(n).String()
	return e
}

// instancesOn are the names of a node's instances that do not drain.
func instancesOn(s *plan.Snapshot, node string) (out []string) {
	for k, o := range s.Objects {
		if i, ok := o.(*onpath.Instance); ok && i.Spec.Node == node && i.Spec.Draining.IsZero() {
			out = append(out, k.Tenant+"/"+k.Name)
		}
	}
	slices.Sort(out)
	return out
}
