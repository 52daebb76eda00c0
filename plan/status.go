package plan

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/onpath/onpath"
)

// status brings what people are told up to date. Only changes of readiness and
// totals make an update.
func (w *teller) status() {
	for _, i := range w.instances {
		w.instanceStatus(i)
	}
	for _, n := range w.nodeOrder {
		w.nodeStatus(n)
	}
	for _, cl := range w.inOrder {
		w.cloudletStatus(cl)
	}
	for _, k := range sortedNames(w.deployments) {
		w.deploymentStatus(w.deployments[k])
	}
	placed := w.pathsByChain()
	for _, c := range w.chains {
		w.chainStatus(c, placed[c])
	}
}

// condition adds one to a copy of the list, so that the stored object is left
// alone.
func (w *world) condition(list []onpath.Condition, typ string, ok bool, reason, message string) []onpath.Condition {
	return w.conditionUntil(list, typ, ok, reason, message, time.Time{})
}

// conditionUntil adds one that is to change by itself at a time; zero: that is not known.
func (w *world) conditionUntil(list []onpath.Condition, typ string, ok bool, reason, message string, until time.Time) []onpath.Condition {
	message = onpath.ClipText(message)
	st := onpath.False
	if ok {
		st = onpath.True
	}
	next := onpath.Condition{Type: typ, Status: st, Reason: reason, Message: message, Until: until}
	for _, c := range list {
		if next.Since = c.Since; c == next {
			return list
		}
	}
	next.Since = w.Now.UTC().Round(0)
	out := slices.Clone(list)
	onpath.SetCondition(&out, next)
	return out
}

// reasonOf is the reason of a condition, "" without it.
func reasonOf(list []onpath.Condition, typ string) string {
	if i := slices.IndexFunc(list, func(c onpath.Condition) bool { return c.Type == typ }); i >= 0 {
		return list[i].Reason
	}
	return ""
}

func (w *teller) instanceStatus(i *instance) {
	o := current(w.world, i.obj)
	st := o.Status
	switch {
	case i.node != nil && i.node.dead:
		st.State, st.Reason, st.NextTry = onpath.InstanceUnready, "NodeDead", 0
		st.Message = fmt.Sprintf("node %s does not answer, neither the server nor the gateway", i.node.name)
	case i.node != nil && i.node.away:
		if i.report != nil { // it holds again if the machine was thought dead meanwhile
			st.State = i.report.State
		}
		st.Reason, st.NextTry = "NodeAway", 0
		st.Message = fmt.Sprintf("as last heard of: the agent of node %s is away", i.node.name)
	case i.report != nil:
		if st = reported(i.report); st.State == onpath.InstanceReady && i.alone() {
			st.State, st.Reason, st.Message = onpath.InstanceUnready, onpath.ReasonPartner, i.lonely()
		}
	case i.node != nil && i.node.st != nil && st.State != onpath.InstancePending:
		st.State, st.Reason, st.Message, st.NextTry = onpath.InstancePending, "", "", 0
	}
	if st.State != o.Status.State && (i.report == nil || i.node.away) {
		st.Since = w.Now.UTC().Round(0)
	}
	if reflect.DeepEqual(st, o.Status) {
		return
	}
	next := *o
	next.Status = st
	w.update(&next)
	if st.State != o.Status.State && st.Reason != onpath.ReasonProcessEnded {
		words := st.Message
		if i.report != nil && st.NextTry > 0 {
			words = i.report.Message // without the wait, as repeats are counted
		}
		w.event(Event{About: onpath.KeyOf(o), Node: o.Spec.Node, Reason: title(string(st.State)), Cause: st.Reason, Message: words,
			Warning: st.State == onpath.InstanceFailed || st.State == onpath.InstanceUnready})
	}
}

// reported is the status of an instance as its node reports it.
func reported(r *onpath.InstanceReport) onpath.InstanceStatus {
	st := onpath.InstanceStatus{
		State: r.State, Reason: r.Reason, Message: r.Message, Printed: r.Printed, Modules: r.Modules, Lists: r.Lists,
		NextTry: r.NextTry, Restarts: r.Restarts, Since: r.Since.UTC().Round(0),
	}
	if r.NextTry > 0 {
		st.Message += "; next attempt in " + r.NextTry.String()
	}
	if r.Restarts > 0 && r.Reason == onpath.ReasonExited {
		st.Message += fmt.Sprintf("; what it printed: onpath logs --previous %s", r.Name)
	}
	return st
}

func title(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// ownConditions of a Node are the server's; the others are the node's.
var ownConditions = []string{"Ready", "Planned", "Gateway", leases, onpath.ConditionDrained, onpath.ConditionAccepted}

// leases is the condition of a node that reports leases which cannot be.
const leases = "Leases"

// leaseCondition tells of leases that the node reports and that are not believed, and of
// addresses that it lacks.
func leaseCondition(w *teller, n *node, list []onpath.Condition) []onpath.Condition {
	const reason = "NotBelieved"
	switch {
	case n.unbelieved == "" && n.unlent != "":
		return w.condition(list, leases, false, "NoAddress", "not all of leases.servers have addresses: "+n.unlent)
	case n.unbelieved == "":
		return slices.DeleteFunc(slices.Clone(list), func(c onpath.Condition) bool { return c.Type == leases })
	}
	w.tellOnce(list, n.obj, leases, reason, n.unbelieved)
	return w.condition(list, leases, false, reason,
		n.unbelieved+": it is in no list and not in the public log; look who has changed the agent")
}

// withoutOld are a Node's conditions without those that the node has ceased to report,
// of an uplink that was removed above all.
func withoutOld(list []onpath.Condition, r *onpath.NodeReport) []onpath.Condition {
	if len(r.Conditions) == 0 {
		return list // it has not looked yet
	}
	return slices.DeleteFunc(slices.Clone(list), func(c onpath.Condition) bool {
		return !slices.Contains(ownConditions, c.Type) && !strings.HasPrefix(c.Type, onpath.ConditionTunnel) &&
			!slices.ContainsFunc(r.Conditions, func(have onpath.Condition) bool { return have.Type == c.Type })
	})
}

func (w *teller) nodeStatus(n *node) {
	o := current(w.world, n.obj)
	st := o.Status
	st.Used = n.used[true].Add(n.used[false]).Add(n.held)
	ok, reason, message := true, "Reports", "reports every second"
	switch {
	case n.st == nil || n.st.Report == nil:
		ok, reason, message = false, "NeverSeen", "has not connected since the server started; start `onpath node` there"
		if !n.away {
			return
		}
	case n.dead:
		ok, reason, message = false, "Dead", fmt.Sprintf("not heard of for %s, and the gateway does not reach it: its instances get no traffic", onpath.NodeTimeout)
	case n.steers && n.hasEdge():
		ok, reason, message = false, "Away", "its agent is gone, but its data path answers and steers as it was last told: nothing that it may send to is taken away; start `onpath node` there, or run `onpath node off` there and delete the Node"
	case n.away:
		ok, reason, message = false, "Away", fmt.Sprintf("its agent was not heard of for %s; what runs there goes on as long as the machine does, nothing on it can be changed", onpath.NodeTimeout)
	}
	if n.st != nil && n.st.Report != nil {
		r := n.st.Report
		st.Version, st.Kernel, st.Capacity, st.HostImage = r.Version, r.Kernel, n.capacity(), !r.NoHostImage
		st.Addresses, st.Blocks = r.Addresses, slices.Concat(r.Blocks)
		st.Conditions = withoutOld(st.Conditions, r)
		for _, c := range r.Conditions {
			st.Conditions = slices.Clone(st.Conditions)
			onpath.SetCondition(&st.Conditions, c)
		}
		if r.PlanError != "" && ok {
			st.Conditions = w.condition(st.Conditions, "Planned", false, "PlanFailed", r.PlanError)
		} else {
			st.Conditions = w.condition(st.Conditions, "Planned", true, "InForce", "")
		}
	}
	if n.obj.Gateway() && !n.hasEdge() {
		st.Conditions = w.condition(st.Conditions, "Gateway", false, "ThirdGateway", fmt.Sprintf(
			"its uplinks are left alone: cloudlet %s has gateways %s already, and %s", n.c.name, n.c.gatewayNames(), thirdGateway))
	} else if n.obj.Gateway() && !n.host() {
		st.Conditions = w.condition(st.Conditions, "Gateway", true, "InUse", "")
	} else {
		st.Conditions = slices.DeleteFunc(slices.Clone(st.Conditions), func(c onpath.Condition) bool { return c.Type == "Gateway" })
	}
	st.Conditions = tunnelConditions(w.world, n, leaseCondition(w, n, st.Conditions))
	st.Ready = ok
	st.Conditions = w.condition(w.drained(n, st.Conditions), "Ready", ok, reason, message)
	if st.Ready != o.Status.Ready {
		r := "Ready"
		if !ok {
			r = reason
		}
		w.event(Event{About: onpath.KeyOf(o), Node: n.name, Reason: r, Message: message, Warning: !ok})
	} else if was := reasonOf(o.Status.Conditions, "Ready"); !ok && (was == "Dead" && reason == "Away" || was == "Away" && reason == "Dead") {
		if reason == "Away" {
			message = "the gateway reaches the machine again, its agent is still away: what still runs there may go on"
		}
		w.event(Event{About: onpath.KeyOf(o), Node: n.name, Reason: reason, Message: message, Warning: true})
	}
	next := *o
	next.Status = st
	w.update(&next)
}

func (w *teller) cloudletStatus(cl *cloudlet) {
	if cl.obj == nil {
		return
	}
	next := *current(w.world, cl.obj)
	next.Status.Nodes, next.Status.ReadyNodes = len(cl.nodes), 0
	for _, n := range cl.nodes {
		if n.st != nil && !n.away {
			next.Status.ReadyNodes++
		}
	}
	ok, reason, message := true, "HasGateway", ""
	switch {
	case cl.gateway == nil:
		ok, reason = false, onpath.ReasonNoGateway
		message = "no node has an uplink: no traffic can be steered here; name one in a node's spec.uplinks"
	case len(cl.activeGateways) == 0:
		ok, reason = true, "HostsOnly"
		message = fmt.Sprintf("no gateway: chains take the own traffic of %s", count(len(cl.hosts), "machine"))
	case len(cl.gateways) > mostGateways:
		ok, reason, message = true, "ThirdGateway", fmt.Sprintf("gateways %s are used; %s", cl.gatewayNames(), thirdGateway)
	case len(cl.activeGateways) == mostGateways:
		message = "gateways " + cl.gatewayNames()
	default:
		message = "gateway " + cl.gateway.name
	}
	next.Status.Conditions = w.condition(next.Status.Conditions, "Gateway", ok, reason, message)
	w.update(&next)
}

func (w *teller) deploymentStatus(d *deployment) {
	if d.obj == nil {
		return
	}
	now := current(w.world, d.obj)
	next := *now
	next.Status.Desired, next.Status.Ready, next.Status.Outdated = d.want*len(d.in), 0, 0
	next.Status.Observed = d.obj.Metadata.Generation
	if d.function != nil {
		next.Status.FunctionGeneration = d.function.Metadata.Generation
	}
	for _, i := range w.ofDep[d.key] {
		if i.ready() && !i.draining() {
			next.Status.Ready++
			next.Status.Outdated += d.outdated(i)
		}
	}
	ok, reason, message := next.Status.Ready >= next.Status.Desired, "Ready", ""
	switch {
	case d.function == nil:
		ok, reason = false, onpath.ReasonNoFunction
		message = fmt.Sprintf("there is no function %s that tenant %s may use", d.fnName, d.key.tenant)
	case d.res != nil && d.res.why != "":
		ok, reason, message = true, onpath.ReasonNotReserved, d.res.why+": no instances run"
	case len(d.in) == 0:
		ok, reason, message = false, "Unused", "no chain uses it: it has no instances; write place: {cloudlets: […]} to run it all the same"
	case len(d.noCapacity) > 0:
		ok, reason = false, pick(d.unplaceable, onpath.ReasonUnplaceable, "NoCapacity")
		message = strings.Join(d.noCapacity, "; ")
	case !ok:
		reason, message = cmp.Or(w.noImage(d.key), "NotReady"), w.trouble(d.key, "")
	}
	if len(d.noCapacity) > 0 && !ok {
		w.tellOnce(next.Status.Conditions, d.obj, "Ready", reason, message)
	}
	next.Status.Conditions = w.condition(next.Status.Conditions, "Ready", ok, reason, message)
	old := next.Status.Outdated
	message = ""
	refused := w.refused(d)
	switch {
	case refused != "":
		message = refused
	case old > 0:
		message = replacing(old) + inBrackets(cmp.Or(w.trouble(d.key, ""), w.unseen(d.key)))
	}
	next.Status.Conditions = w.condition(next.Status.Conditions, "Current", message == "", currency(old, refused != ""), message)
	if !sameDeployment(&next.Status, &now.Status) {
		w.update(&next)
	}
}

// tellOnce makes a warning of something that the condition does not say yet. It reports
// whether the condition does.
func (w *teller) tellOnce(list []onpath.Condition, o onpath.Object, typ, reason, message string) bool {
	for _, c := range list {
		if c.Type == typ && c.Reason == reason {
			return true
		}
	}
	w.event(Event{About: onpath.KeyOf(o), Reason: reason, Message: message, Warning: true})
	return false
}

// trouble is what the worst of a deployment's instances says; in one cloudlet
// or ("") in all.
func (w *teller) trouble(dep name, cl string) string {
	_, message := w.worst(dep, cl)
	return message
}

// noImage is the reason ReasonImageMissing if that is the worst of a deployment's instances.
func (w *teller) noImage(dep name) string {
	if i, _ := w.worst(dep, ""); i != nil && i.report != nil && !i.node.away && i.report.Reason == onpath.ReasonImageMissing {
		return i.report.Reason
	}
	return ""
}

// worst is the worst of a deployment's instances that are not ready, and what it says.
func (w *teller) worst(dep name, cl string) (of *instance, message string) {
	worst := 0
	for _, i := range w.ofDep[dep] {
		if i.draining() || i.ready() || cl != "" && (i.node == nil || i.node.c.name != cl) {
			continue
		}
		rank, text := 1, "is pending"
		switch {
		case i.node != nil && i.node.away:
			rank, text = 2, fmt.Sprintf("is on node %s, which is away", i.node.name)
		case i.report == nil:
		case i.report.State == onpath.InstanceFailed:
			rank, text = 4, "failed"
		case i.report.State == onpath.InstanceUnready:
			rank, text = 3, "is not ready"
		default:
			text = "is " + string(i.report.State)
		}
		if i.report != nil && i.report.Message != "" && !i.node.away {
			text += ": " + i.report.Message
		}
		if i.report != nil && i.report.Printed != "" && !i.node.away {
			text += ", printed last: " + i.report.Printed
		}
		if rank > worst {
			worst, of, message = rank, i, fmt.Sprintf("instance %s %s", i.key.name, text)
		}
	}
	return of, message
}
