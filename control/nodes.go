package control

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/events"
	"github.com/onpath/onpath/plan"
	"github.com/onpath/onpath/store"
)

// NodeConnected takes up what a node says first: its plan in force above all.
func (c *Controller) NodeConnected(h onpath.NodeHello) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h.Report.Clip()
	c.core.ids.raise(h.Plan)
	st := c.core.nodes[h.Node]
	if st == nil {
		st = &session{}
		c.core.nodes[h.Node] = st
	}
	old := st.state
	notAfter(&h.Report, old.Report, c.o.Clock())
	st.connected, st.told, st.grant = true, true, h.Grant
	st.connectedAt = c.o.Clock()
	st.state = plan.NodeState{Report: &h.Report, Seen: c.o.Clock(), From: h.Seen, Acked: h.Plan}
	there, known := c.core.mirror.objects[onpath.Key{Kind: onpath.KindNode, Name: h.Node}].(*onpath.Node)
	st.foreign = foreign(h.Plan, c.core.settings.Store, known) &&
		!(known && conditionOf(there.Status.Conditions, onpath.ConditionAccepted).Status == onpath.True)
	c.core.tellLost(&h)
	c.core.missNode(st, &h)
	if h.Plan != nil && sameAgent(old.Report, &h.Report) {
		// It may still be at work on what the session before brought.
		st.state.Sent = slices.DeleteFunc(old.Sent, func(p *onpath.NodePlan) bool { return p.Generation <= h.Plan.Generation })
	}
	if n := len(st.state.Sent); n > 0 && !st.foreign {
		c.o.Hub.Push(h.Node, st.state.Sent[n-1])
	}
	c.log.Debug("node heard", "node", h.Node, "plan", h.Report.Plan, "instances", len(h.Report.Instances))
	c.wake.ring()
}

func sameAgent(a, b *onpath.NodeReport) bool { return a != nil && a.Started.Equal(b.Started) }

// NodeReported takes a report up. One without news for the planner does not make the
// loop plan.
func (c *Controller) NodeReported(r onpath.NodeReport) {
	c.mu.Lock()
	defer c.mu.Unlock()
	st := c.core.nodes[r.Node]
	if st == nil || !st.connected {
		return
	}
	r.Clip()
	notAfter(&r, st.state.Report, c.o.Clock())
	if isWaiting(c.core.mirror, c.core.nodes, r.Node) && c.o.Clock().Sub(st.lookedAt) >= retryNode {
		c.wake.ring()
	}
	wasAway := c.o.Clock().Sub(st.state.Seen) > onpath.NodeTimeout
	st.state.Seen = c.o.Clock()
	c.metering.Reported(&r, st.state.Seen)
	old := st.state.Report
	st.state.Report = &r
	if !wasAway && !plan.News(old, &r) {
		return
	}
	st.acknowledge(r.Plan)
	if r.PlanError != "" {
		c.log.Warn("plan not in force", "node", r.Node, "generation", st.pushed, "err", r.PlanError)
	}
	c.wake.ring()
}

// acknowledge moves the plan of a generation from sent to in force.
func (st *session) acknowledge(generation uint64) {
	for i, p := range st.state.Sent {
		if p.Generation == generation {
			st.state.Acked, st.told = p, false
			st.state.Sent = slices.Clone(st.state.Sent[i+1:])
			return
		}
	}
}

// NodeEvent keeps what a node tells.
func (c *Controller) NodeEvent(node string, e onpath.NodeEvent) {
	if now := c.o.Clock(); e.Time.After(now) { // nobody believes a time from the future
		e.Time = now
	}
	about, ok := parseKey(e.About)
	c.mu.Lock()
	ok = ok && hasToDoWith(c.core.mirror, c.core.nodes[node], node, about)
	c.mu.Unlock()
	if !ok {
		about = onpath.Key{Kind: onpath.KindNode, Name: node}
	}
	c.events.Add(plan.Event{About: about, Node: node, Reason: e.Reason, Message: e.Message, Warning: e.Warning}, e.Time)
}

// Tell keeps an event that the server itself has to tell.
func (c *Controller) Tell(about onpath.Key, reason, message string, warning bool) {
	c.events.Tell(about, reason, message, warning)
}

// NodeGone notes that a node's session ended. The node counts as away only when
// nothing was heard of it for onpath.NodeTimeout: an agent that restarts is no
// dead node.
func (c *Controller) NodeGone(node, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if st := c.core.nodes[node]; st != nil {
		st.connected = false
		if c.core.mirror.objects[onpath.Key{Kind: onpath.KindNode, Name: node}] == nil { // it was refused, or is deleted
			delete(c.core.nodes, node)
		}
	}
	c.wake.ring()
}

// missNode has the Node object made, if there is none, from what the machine's
// own configuration says, and its cloudlet likewise. An object that is there holds,
// whatever the configuration says, and the difference is told.
func (c *core) missNode(st *session, h *onpath.NodeHello) {
	n := newObject(onpath.KindNode, h.Node).(*onpath.Node)
	n.Spec = h.Spec
	if n.Spec.Cloudlet == "" && h.Grant != nil {
		n.Spec.Cloudlet = h.Grant.Cloudlet
	} else if n.Spec.Cloudlet == "" {
		n.Spec.Cloudlet = onpath.DefaultTenant
	}
	err := n.Validate()
	if there, ok := c.mirror.objects[onpath.KeyOf(n)].(*onpath.Node); ok {
		if err == nil {
			tellOverruled(c.events, c.log, &h.Spec, n, there)
		}
		return
	}
	if err != nil {
		tellNode(c.events, n, "BadConfiguration", fmt.Sprintf("the node's own configuration is refused: %v", err))
		return
	}
	c.take(st, n)
}

// notAfter takes times of a report that lie in the future for now, or for what they were
// taken for in the report before: a node whose clock was set back must not have its
// instances look younger than they are for ever.
func notAfter(r, old *onpath.NodeReport, now time.Time) {
	for i := range r.Instances {
		in := &r.Instances[i]
		if !in.Since.After(now) {
			continue
		}
		in.Since = now
		if old == nil {
			continue
		}
		k := slices.IndexFunc(old.Instances, func(o onpath.InstanceReport) bool {
			return o.Tenant == in.Tenant && o.Name == in.Name && o.State == in.State && o.Restarts == in.Restarts
		})
		if k >= 0 && old.Instances[k].Since.Before(now) {
			in.Since = old.Instances[k].Since
		}
	}
	for i := range r.Conditions {
		c := &r.Conditions[i]
		if !c.Since.After(now) {
			continue
		}
		c.Since = now
		if old == nil {
			continue
		}
		if was := conditionOf(old.Conditions, c.Type); was.Status == c.Status && was.Since.Before(now) {
			c.Since = was.Since
		}
	}
}

// checkNode looks at a Node that a machine's own configuration makes as at one that an
// operator applies: two nodes with one underlay address would cut each other off.
func (c *core) checkNode(n *onpath.Node) error {
	before := c.snapshot()
	for k, o := range c.missing { // what has come a moment ago is to be written
		if other, ok := o.(*onpath.Node); ok && !other.Accepted() || k == onpath.KeyOf(n) {
			continue
		}
		if before.Objects[k] == nil {
			before = changedSnapshot(before, []onpath.Change{{Key: k, Object: o}})
		}
	}
	changes := []onpath.Change{{Key: onpath.KeyOf(n), Object: n}}
	cl := newObject(onpath.KindCloudlet, n.Spec.Cloudlet)
	if before.Objects[onpath.KeyOf(cl)] == nil {
		changes = append(changes, onpath.Change{Key: onpath.KeyOf(cl), Object: cl})
	}
	return plan.CheckChange(before, changedSnapshot(before, changes), keysOf(changes[:1]))
}

// hasToDoWith reports whether an event of a node may be about an object: itself, a peer
// or a tenant of its plan, or an instance that is there on it.
func hasToDoWith(m *mirror, st *session, node string, about onpath.Key) bool {
	switch about.Kind {
	case onpath.KindNode:
		return about.Name == node || st.inPlan(func(d *onpath.DatapathConfig) bool {
			return slices.ContainsFunc(d.Peers, func(p onpath.Peer) bool { return p.Node == about.Name })
		})
	case onpath.KindTenant:
		return st.inPlan(func(d *onpath.DatapathConfig) bool {
			return slices.ContainsFunc(d.Tenants, func(t onpath.TenantLimits) bool { return t.Name == about.Name })
		})
	}
	if about.Kind != onpath.KindInstance || store.CheckKey(about) != nil {
		return false
	}
	if i, ok := m.objects[about].(*onpath.Instance); ok {
		return i.Spec.Node == node
	}
	// It was deleted, and is going.
	return st != nil && st.state.Report != nil && slices.ContainsFunc(st.state.Report.Instances, func(r onpath.InstanceReport) bool {
		return r.Tenant == about.Tenant && r.Name == about.Name
	})
}

// inPlan reports whether a plan that the node may follow has something.
func (st *session) inPlan(has func(*onpath.DatapathConfig) bool) bool {
	return st != nil && slices.ContainsFunc(append([]*onpath.NodePlan{st.state.Acked}, st.state.Sent...), func(p *onpath.NodePlan) bool {
		return p != nil && has(&p.Datapath)
	})
}

// tellNode warns about a node's own configuration.
func tellNode(l *events.Log, n *onpath.Node, reason, message string) {
	l.Add(plan.Event{About: onpath.KeyOf(n), Node: n.Metadata.Name, Reason: reason, Message: message, Warning: true}, time.Time{})
}

// tellOverruled says that a Node object holds against the machine's configuration; n is
// made of that, with its defaults.
func tellOverruled(l *events.Log, log *slog.Logger, given *onpath.NodeSpec, n, there *onpath.Node) {
	what := overruled(given, &n.Spec, &there.Spec)
	if what == "" {
		return
	}
	name := n.Metadata.Name
	tellNode(l, n, "ConfigurationOverruled", fmt.Sprintf("the machine's own configuration has %s, "+
		"and the Node object, which is older, holds: change it with apply, or delete it while the node is off", what))
	log.Warn("the Node object holds, not the machine's own configuration", "node", name, "configuration", what, "remedy",
		"onpath get node "+name+" -o yaml, change it, and apply it")
}

// overruled says in what a machine's configuration differs from its Node object, of
// what the configuration names; filled is the configuration with its defaults.
func overruled(given, filled, object *onpath.NodeSpec) string {
	switch {
	case given.Cloudlet != "" && given.Cloudlet != object.Cloudlet:
		return "cloudlet " + given.Cloudlet
	case len(given.Uplinks) > 0 && !slices.Equal(filled.Uplinks, object.Uplinks):
		return "other uplinks"
	case given.Underlay.Address.IsValid() && given.Underlay.Address != object.Underlay.Address:
		return "underlay address " + given.Underlay.Address.String()
	case given.Underlay.MTU != 0 && given.Underlay.MTU != object.Underlay.MTU:
		return fmt.Sprintf("underlay MTU %d", given.Underlay.MTU)
	case given.Underlay.Port != 0 && filled.Underlay.Port != object.Underlay.Port:
		return fmt.Sprintf("tunnel port %d", given.Underlay.Port)
	case given.Underlay.Tunnel != "" && given.Underlay.Tunnel != object.Underlay.Tunnel:
		return "underlay tunnel " + string(given.Underlay.Tunnel)
	}
	return ""
}

// defaults are the objects that every installation has.
func defaults() []onpath.Object {
	return []onpath.Object{newObject(onpath.KindTenant, onpath.DefaultTenant), newObject(onpath.KindTenant, onpath.OperatorTenant)}
}

func newObject(k onpath.Kind, name string) onpath.Object {
	o, err := onpath.New(k)
	if err != nil {
		panic(err) // only with a kind that is none
	}
	o.Meta().Name = name
	_ = o.Validate() // fills defaults in; the nodes' are checked by the caller
	return o
}
