package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/onpath/onpath"
)

// mayPoint reports whether node m may send packets of a path to an instance: if
// the instance's node has acknowledged that it takes them. Of a node that has
// not been heard of, what m was told before holds.
func mayPoint(m *node, i *instance, p onpath.PathID) bool {
	n := i.node
	switch {
	case n == nil:
		return false
	case n == m:
		return true
	case n.c != m.c:
		return false
	case n.st == nil:
		return m.acked.sendsTo(p, i.obj.Spec.Vport) || m.acked.sendsTo(p, i.obj.Spec.Back)
	}
	return n.acked.hasLocal(i.obj.Spec.Vport) && n.acked.path(p) != nil && n.acked.hasPeer(m.name)
}

// mayPointEdge reports whether node m may send packets to a gateway's edge.
func mayPointEdge(m, g *node) bool {
	if g == nil || g.obj.Status.Edge == 0 {
		return false
	}
	if g == m {
		return true
	}
	if g.st == nil {
		return m.newest.hasRemote(g.obj.Status.Edge)
	}
	return g.acked != nil && g.acked.edge == g.obj.Status.Edge && g.acked.hasPeer(m.name)
}

// pointedAt reports whether a node other than the instance's own may still send
// to it: by a plan in force, or by one on its way.
func (w *world) pointedAt(i *instance) bool {
	for _, m := range w.senders(i.node) {
		if m.st == nil {
			if i.node == nil || m.c == i.node.c {
				return true // it may
			}
			continue
		}
		for _, x := range m.possible {
			if x.hasRemote(i.obj.Spec.Vport) || i.bridged() && x.hasRemote(i.obj.Spec.Back) {
				return true
			}
		}
	}
	return false
}

// edgePointedAt reports whether another node may still send to an edge.
func (w *nodeplans) edgePointedAt(n *node, edge onpath.VportID) bool {
	for _, m := range w.senders(n) {
		if m.st == nil && m.c == n.c || slices.ContainsFunc(m.possible, func(x *index) bool { return x.hasRemote(edge) }) {
			return true
		}
	}
	return false
}

// neighbours are the other nodes of n's cloudlet.
func (w *rollout) neighbours(n *node) []*node {
	var out []*node
	for _, m := range n.c.nodes {
		if m != n && !m.silent() {
			out = append(out, m)
		}
	}
	return out
}

// sentPaths are the paths of which another node may still send packets to an instance
// of node n.
func (w *nodeplans) sentPaths(n *node) map[onpath.PathID]bool {
	sent := w.inbound[n]
	if n.newest == nil || !slices.ContainsFunc(n.c.nodes, func(m *node) bool { return m != n && m.st == nil && !m.gone }) {
		return sent
	}
	all := maps.Clone(sent)
	if all == nil {
		all = map[onpath.PathID]bool{}
	}
	for id := range n.newest.paths {
		all[id] = true // a node that has not been heard of may send any that is known here
	}
	return all
}

// entered reports whether packets may still enter a path that is over at a gateway.
// The gateways close it first, and so let go of its flows; what all know of it serves
// the packets that are on their way.
func (w *nodeplans) entered(n *node, p *path) bool {
	if !p.ended() {
		return false
	}
	return slices.ContainsFunc(n.c.edges(), func(g *node) bool {
		if g.silent() {
			return false
		}
		return g.st == nil || slices.ContainsFunc(g.possible, func(x *index) bool {
			q := x.path(p.id)
			return q != nil && !q.Closed
		})
	})
}

// joined reports whether a gateway may steer what its pair steers: from its first
// rule on, or once every node of the paths knows it and it knows their instances.
func (w *nodeplans) joined(n *node) bool {
	other := n.partner()
	if other == nil || n.newest.picksUp() || !other.acked.picksUp() {
		return true // with nobody picking up, both begin together
	}
	for _, p := range n.c.paths {
		if p.ended() || p.spec.Began.IsZero() || p.chain == nil {
			continue
		}
		hosts, need := map[*node]bool{}, []int{}
		for k := range p.deps {
			// By what the path leads through, which its chain may not say any more.
			ready := w.readyInstances(n.c, p, k)
			if len(ready) > 0 {
				need = append(need, k)
			}
			for _, i := range heard(ready, p.id) {
				hosts[i.node] = true
			}
		}
		if w.unacknowledged(n, p, hosts, need) != "" {
			return false
		}
	}
	return true
}

// findInbound notes of each node the paths of which packets may come to it from others.
func (w *nodeplans) findInbound() {
	w.inbound = map[*node]map[onpath.PathID]bool{}
	for _, m := range w.senders(nil) {
		for _, x := range m.possible {
			if x == nil {
				continue
			}
			for s := range x.sends {
				i := w.byVport[s.vport]
				if i == nil || i.node == nil || i.node == m {
					continue
				}
				if w.inbound[i.node] == nil {
					w.inbound[i.node] = map[onpath.PathID]bool{}
				}
				w.inbound[i.node][s.path] = true
			}
		}
	}
}

// leaving reports whether a draining instance may go: no flow leads to it any
// more, its time is up, or it is dead anyway.
func (w *departures) leaving(i *instance) bool {
	if !i.draining() {
		return false
	}
	switch {
	case i.node == nil:
		return true
	case i.node.steers, i.ready() && w.held(i):
		return false // packets come to it as long as a data path lives
	case w.passed(w.until(i)):
		return true
	case i.node.gone:
		return !i.node.c.answers(i.node) // only the agent is gone: its flows have their time
	case i.node.away || i.node.st == nil:
		return false // it may come back with its flows
	}
	if !i.ready() {
		return true
	}
	// The count of flows means something once nobody starts new ones.
	p := i.node.acked.instance(i.obj.Metadata.UID)
	if p == nil || !p.Draining {
		return i.node.st != nil && p == nil && i.planned == nil && !w.pointedAt(i)
	}
	if w.chosen(i) {
		return false
	}
	return i.report.Flows == 0 && !w.pathsDrain(i) && w.passed(i.obj.Spec.Draining.Add(counted))
}

// chosen reports whether a node may still choose a draining instance for new flows,
// by a plan in force or on its way: it does not know that the instance drains, or that
// the last path to it has ended.
func (w *departures) chosen(i *instance) bool {
	begins := w.began(i) // this is asked before it is known which paths there will be
	may := func(m *node, x *index) bool {
		if begins {
			v := x.vports[i.obj.Spec.Vport]
			return m != i.node && v != nil && v.State == onpath.VportUp
		}
		return slices.ContainsFunc(w.endedPaths(i), func(p *endedPath) bool {
			q := x.path(p.ID)
			return q != nil && q.Ended.IsZero()
		})
	}
	return slices.ContainsFunc(i.node.c.nodes, func(m *node) bool {
		return !m.silent() && slices.ContainsFunc(m.possible, func(x *index) bool { return x != nil && may(m, x) })
	})
}

// began reports whether a path through the instance's deployment has not ended by the
// newest plan of a node.
func (w *departures) began(i *instance) bool {
	if w.begun == nil {
		w.begun = map[member]bool{}
		for _, n := range w.nodes {
			if n.newest == nil || n.silent() {
				continue
			}
			for _, p := range n.newest.plan.Datapath.Paths {
				if !p.Ended.IsZero() {
					continue
				}
				for _, d := range p.Elements {
					w.begun[member{n.c, nameIn(d)}] = true
				}
			}
		}
	}
	return w.begun[member{i.node.c, i.dep}]
}

// counted is the time after which a node's counts of flows are of now: nodes count
// with each regular report, less often where that takes long, and say that there are
// none only by counts that began when what is counted drained by their plan in force.
const counted = 2 * onpath.ReportEvery

// inService reports whether an instance can take over for another: it is ready,
// and every node of its cloudlet that steers its deployment's traffic knows it.
func (w *rollout) inService(i *instance) bool {
	if !i.ready() || i.draining() || w.hidden(i) != nil {
		return false
	}
	for _, m := range w.neighbours(i.node) {
		if m.away || m.acked == nil {
			continue
		}
		for id, p := range m.acked.paths {
			if !p.Ended.IsZero() || p.Began.IsZero() || !slices.Contains(p.Elements, i.dep.String()) {
				continue
			}
			if v := m.acked.vports[i.obj.Spec.Vport]; v == nil || v.State != onpath.VportUp || !m.acked.sendsTo(id, i.obj.Spec.Vport) {
				return false
			}
		}
	}
	return true
}

// waits says, in words, what keeps a present path from beginning: an element
// without an instance that was ready, or a node that has not acknowledged its
// part. "" means that nothing does.
func (w *pathfinder) waits(cl *cloudlet, p *path) string {
	g := cl.gateway
	if p.chain.host != nil {
		g = p.chain.host
	}
	switch {
	case g == nil:
		return fmt.Sprintf("cloudlet %s has no gateway: name an uplink on one of its nodes", cl.name)
	case g.st == nil || g.away:
		return fmt.Sprintf("gateway %s of cloudlet %s is away", g.name, cl.name)
	case g.obj.Status.Edge == 0:
		return fmt.Sprintf("gateway %s gets its edge", g.name)
	case !canCarry(p.spec.MTU):
		return fmt.Sprintf("its hops in cloudlet %s carry only %d bytes, and IPv6 needs 1280: raise the MTU of the underlay",
			cl.name, p.spec.MTU)
	}
	hosts := map[*node]bool{}
	var need []int // elements that have a ready instance
	for k := range p.deps {
		if p.chain.elements[k].disabled {
			continue
		}
		ready, why := w.elementReady(cl, p, k)
		if why != "" {
			return why
		}
		if len(ready) > 0 {
			need = append(need, k)
		}
		for _, i := range heard(ready, p.id) {
			hosts[i.node] = true
		}
	}
	for _, g := range cl.entrances(p.chain) {
		if g.st == nil || g.away {
			continue // the other one steers alone
		}
		if why := w.unacknowledged(g, p, hosts, need); why != "" {
			return why
		}
	}
	return ""
}

// readyInstances are those of a path's element that take new flows of it.
func (w *world) readyInstances(cl *cloudlet, p *path, k int) (ready []*instance) {
	for _, i := range p.members[k] {
		if i.ready() && !i.draining() && p.share(k, i) > 0 {
			ready = append(ready, i)
		}
	}
	return ready
}

// heard leaves out the instances on nodes that are away and do not know the path: nobody
// sends its packets there before they do. Where there are no others, these are awaited.
func heard(ready []*instance, p onpath.PathID) []*instance {
	var out []*instance
	for _, i := range ready {
		if !i.node.away && i.node.st != nil || i.node.acked.path(p) != nil {
			out = append(out, i)
		}
	}
	if len(out) == 0 {
		return ready
	}
	return out
}

// elementReady are the ready instances in the cloudlet of an element of a present
// path, and why the path has to wait for one. An element that may be bypassed holds
// nothing up once it has failed.
func (w *pathfinder) elementReady(cl *cloudlet, p *path, k int) (ready []*instance, why string) {
	e := &p.chain.elements[k]
	failed, reason := 0, ""
	all := p.members[k]
	ready, idle := w.readyInstances(cl, p, k), false
	for _, i := range all {
		switch {
		case i.draining():
		case i.ready():
			idle = true // if nothing but its weight keeps new flows from it
		case i.report != nil && (i.report.State == onpath.InstanceFailed || i.report.State == onpath.InstanceUnready):
			failed++
			reason = i.report.Message
		}
	}
	if len(ready) > 0 || e.d.want == 0 || e.none == onpath.NoneBypass && failed > 0 && failed == len(all) {
		return ready, ""
	}
	if idle && e.none == onpath.NoneBypass {
		return ready, "" // flows go past those of weight 0
	}
	why = fmt.Sprintf("waits for an instance of %s to be ready in cloudlet %s", e.dep.name, cl.name)
	if idle {
		why += " that takes new flows: those that are have weight 0"
	}
	if reason != "" {
		why += ": " + strings.TrimSuffix(reason, ".")
	}
	return nil, why
}

// instancesOf are a deployment's instances in a cloudlet, by name.
func (w *world) instancesOf(cl *cloudlet, dep name) []*instance { return w.members[member{cl, dep}] }

// unacknowledged says which node is not yet able to pass on the path's packets
// that enter at a gateway.
func (w *world) unacknowledged(g *node, p *path, hosts map[*node]bool, need []int) string {
	cl := g.c
	for _, n := range cl.nodes {
		if !hosts[n] || n == g {
			continue
		}
		if !n.acked.hasRemote(g.obj.Status.Edge) {
			return fmt.Sprintf("node %s gets the way back to gateway %s", n.name, g.name)
		}
		for _, k := range need {
			if !n.acked.member(onpath.GroupOf(p.id, k, false)) || !n.acked.member(onpath.GroupOf(p.id, k, true)) {
				return fmt.Sprintf("node %s gets its part of the path", n.name)
			}
		}
	}
	for _, k := range need {
		if !slices.ContainsFunc(p.members[k], func(i *instance) bool {
			return i.ready() && !i.draining() && p.share(k, i) > 0 && mayPoint(g, i, p.id)
		}) {
			return fmt.Sprintf("gateway %s gets the way to %s", g.name, p.deps[k].name)
		}
	}
	return ""
}
