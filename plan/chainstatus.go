package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/onpath/onpath"
)

// chainStatus says whether the chain's traffic is steered, and where what is
// missing.
func (w *teller) chainStatus(c *chain, paths []placedPath) {
	now := current(w.world, c.obj)
	next := *now
	st := &next.Status
	old := c.obj.Status
	var waits []string
	st.Active = false
	var at, unsteered []string
	for _, p := range paths {
		switch {
		case p.path == nil:
			waits = append(waits, p.c.crowded[c])
			continue
		case p.ended():
			continue
		}
		if p.present && !p.steers {
			waits = append(waits, p.waits)
		}
		if !p.steers {
			continue
		}
		unsteered = append(unsteered, w.unsteered(p.c, p.path)...)
		present := p.present && st.Path == p.id
		why := w.notInForce(p.c, p.path)
		if present && slices.Contains(old.Cloudlets, p.c.name) {
			why = "" // it was: after the server's restart, nodes are heard of by and by
		}
		if why != "" {
			waits = append(waits, why)
		} else if present {
			at = append(at, p.c.name)
		}
		// Between a path and its successor, one of them is in force.
		st.Active = st.Active || old.Active || why == ""
	}
	if len(c.errs) == 0 {
		st.Cloudlets = at
		st.Observed = c.obj.Metadata.Generation
		st.Elements = w.elementStatus(c)
	}
	st.Active = st.Active && len(unsteered) == 0
	w.chainConditions(c, st, waits, unsteered)
	c.active = st.Active
	w.takenStatus(c, st)
	w.chainEvents(c, old, *st)
	if !sameChain(st, &now.Status) {
		w.update(&next)
	}
}

// notInForce says which node is still to acknowledge that a path of the cloudlet begins
// there, "" if none is: before that, a new connection may pass the chain by. Nodes that
// are away are not waited for, unless all are.
func (w *teller) notInForce(cl *cloudlet, p *path) string {
	heard := false
	for _, n := range w.beginners(cl, p) {
		if n.st == nil || n.away {
			continue
		}
		if q := n.acked.path(p.id); q == nil || q.Began.IsZero() || !q.Ended.IsZero() {
			return fmt.Sprintf("node %s is told to steer its traffic", n.name)
		}
		heard = true
	}
	if !heard {
		return fmt.Sprintf("no gateway of cloudlet %s is heard of", cl.name)
	}
	return ""
}

// unsteered says at which uplinks nodes do not steer what the path is for.
func (w *teller) unsteered(cl *cloudlet, p *path) (out []string) {
	if startsAtInstances(p) {
		return nil
	}
	for _, n := range w.beginners(cl, p) {
		if n.st == nil || n.st.Report == nil {
			continue
		}
		for _, c := range onpath.Unsteered(n.st.Report.Conditions) {
			out = append(out, fmt.Sprintf("uplink %s of node %s is not steered (%s): see that node's condition %s",
				strings.TrimPrefix(c.Type, onpath.ConditionUplink), n.name, c.Reason, c.Type))
		}
	}
	return out
}

// beginners are the nodes at which flows enter a path.
func (w *teller) beginners(cl *cloudlet, p *path) []*node {
	if !startsAtInstances(p) {
		return cl.entrances(p.chain)
	}
	var out []*node
	for _, i := range w.instancesOf(cl, p.chain.from.deployment) {
		if i.node != nil && !i.draining() {
			out = append(out, i.node)
		}
	}
	return out
}

// placedPath is a path of a chain in a cloudlet; without a path, the cloudlet has no room
// for it.
type placedPath struct {
	*path
	c *cloudlet
}

// pathsByChain are the paths of each chain, by cloudlet.
func (w *teller) pathsByChain() map[*chain][]placedPath {
	out := make(map[*chain][]placedPath, len(w.chains))
	for _, cl := range w.inOrder {
		for c := range cl.crowded {
			out[c] = append(out[c], placedPath{nil, cl})
		}
		for _, p := range cl.paths {
			if p.chain != nil {
				out[p.chain] = append(out[p.chain], placedPath{p, cl})
			}
		}
	}
	return out
}

func (w *teller) elementStatus(c *chain) []onpath.ElementStatus {
	var out []onpath.ElementStatus
	for i := range c.elements {
		e := &c.elements[i]
		s := onpath.ElementStatus{Deployment: e.dep.name, Desired: e.d.want * len(c.cloudlets)}
		if e.d.function != nil {
			s.FunctionGeneration = e.d.function.Metadata.Generation
		}
		for _, cl := range c.cloudlets {
			for _, i := range w.instancesOf(w.cloudlets[cl], e.dep) {
				if i.ready() && !i.draining() {
					s.Ready++
					s.Outdated += e.d.outdated(i)
					s.Nodes = append(s.Nodes, i.node.name)
				}
			}
		}
		switch {
		case len(e.d.noCapacity) > 0:
			s.Message = strings.Join(e.d.noCapacity, "; ")
		case s.Ready < s.Desired || s.Outdated > 0:
			s.Message = cmp.Or(w.trouble(e.dep, ""), w.refused(e.d), w.unseen(e.dep))
		default: // all are there, and not all get flows
			s.Message = w.unseen(e.dep)
		}
		s.Message = onpath.ClipText(s.Message)
		out = append(out, s)
	}
	return out
}

func (w *teller) chainConditions(c *chain, st *onpath.ChainStatus, waits, unsteered []string) {
	if len(c.errs) > 0 {
		st.Conditions = w.condition(st.Conditions, "Valid", false, onpath.ReasonImpossible,
			c.errs[0].Message+remedy(c.errs[0])+unchanged(st))
		st.Conditions = w.condition(st.Conditions, "Active", st.Active, onpath.ReasonImpossible, c.errs[0].Message)
		return
	}
	if e := c.unproved; e != nil {
		st.Conditions = w.condition(st.Conditions, "Valid", false, onpath.ReasonNotOwned, e.Message+remedy(e))
	} else {
		st.Conditions = w.condition(st.Conditions, "Valid", true, "Possible", c.past())
	}
	var lacks, unready, outdated []string
	refused, noRoom, notReady := false, "NoCapacity", "NotReady"
	for i, e := range st.Elements {
		if d := c.elements[i].d; len(d.noCapacity) > 0 {
			lacks = append(lacks, e.Message)
			noRoom = pick(d.unplaceable, onpath.ReasonUnplaceable, noRoom)
		}
		if e.Ready < e.Desired {
			notReady = cmp.Or(w.noImage(c.elements[i].dep), notReady)
			unready = append(unready, fmt.Sprintf("%s: %d of %d ready%s", e.Deployment, e.Ready, e.Desired, inBrackets(e.Message)))
		}
		switch why := w.refused(c.elements[i].d); {
		case why != "":
			refused, outdated = true, append(outdated, e.Deployment+": "+why)
		case e.Outdated > 0:
			outdated = append(outdated, fmt.Sprintf("%s: %s%s", e.Deployment, replacing(e.Outdated), inBrackets(e.Message)))
		}
	}
	placed := len(lacks) == 0
	st.Conditions = w.condition(st.Conditions, "Placed", placed, pick(placed, "Placed", noRoom), strings.Join(slices.Compact(lacks), "; "))
	ready := len(unready) == 0
	st.Conditions = w.condition(st.Conditions, "Ready", ready, pick(ready, "Ready", notReady), strings.Join(unready, "; "))
	st.Conditions = w.condition(st.Conditions, "Current", len(outdated) == 0, currency(len(outdated), refused), strings.Join(outdated, "; "))
	st.Conditions = w.sendsAllowed(c, st.Conditions)
	st.Conditions = scalingCondition(w, c.obj, st.Conditions)
	reason, message := "Steering", ""
	var until time.Time
	switch {
	case c.obj.Spec.Disabled:
		reason, message = "Disabled", c.off()
	case c.unproved != nil:
		reason, message = onpath.ReasonNotOwned, c.off()
	case c.off() != "":
		reason, message, until = onpath.ReasonNotReserved, c.off(), c.begins()
	case len(c.cloudlets) == 0 && w.notAccepted("") != "":
		reason, message = onpath.ReasonNotAccepted, "no cloudlet has a gateway: "+w.notAccepted("")
	case len(c.cloudlets) == 0:
		reason, message = onpath.ReasonNoGateway, "no cloudlet has a gateway: name an uplink in a node's spec.uplinks"
	case len(unsteered) > 0:
		reason, message = onpath.ReasonUnsteered, strings.Join(slices.Compact(unsteered), "; ")
	case len(waits) > 0:
		reason, message = pick(st.Active, "Steering", "Waiting"), strings.Join(slices.Compact(waits), "; ")
	case !st.Active:
		reason, message = "Waiting", "gets its path"
	}
	st.Conditions = w.conditionUntil(st.Conditions, "Active", st.Active, reason, message, until)
}

// allowed is the condition of a chain whose instances send what their functions may send.
// A chain of which all always did has none.
const allowed = "Allowed"

// sendsAllowed tells of instances of the chain that send what is dropped as spoofed.
func (w *teller) sendsAllowed(c *chain, list []onpath.Condition) []onpath.Condition {
	for _, e := range c.elements {
		for _, i := range w.ofDep[e.dep] {
			if i.report != nil && i.report.Reason == onpath.ReasonSpoofed && !i.draining() {
				message := fmt.Sprintf("instance %s of %s: %s", i.key.name, e.dep.name, i.report.Message)
				return w.condition(list, allowed, false, onpath.ReasonSpoofed, message)
			}
		}
	}
	if reasonOf(list, allowed) == "" {
		return list
	}
	return w.condition(list, allowed, true, "Allowed", "")
}

// scalingGoes is the condition of a chain that scales: false while the metric is not believed.
const scalingGoes = "Scaling"

// scalingCondition tells of a metric that the scaling of the chain does not go by.
func scalingCondition(w *teller, o *onpath.Chain, list []onpath.Condition) []onpath.Condition {
	s := o.Status.Scaling
	switch {
	case o.Spec.Scaling == nil && reasonOf(list, scalingGoes) == "", o.Spec.Scaling != nil && s == nil:
		return list
	case o.Spec.Scaling == nil:
		return slices.DeleteFunc(slices.Clone(list), func(c onpath.Condition) bool { return c.Type == scalingGoes })
	case s.Phase == onpath.ScalingStopped:
		return w.condition(list, scalingGoes, false, onpath.ReasonNoMetric, s.Message)
	case s.Doubt != "":
		return w.condition(list, scalingGoes, false, onpath.ReasonSameMetric, s.Doubt)
	}
	return w.condition(list, scalingGoes, true, "Scaling", "")
}

// outdated is 1 for an instance that is not what the deployment now says.
func (d *deployment) outdated(i *instance) int {
	if d.function == nil || d.suits(i) && d.told(i) {
		return 0
	}
	return 1
}

// told reports whether an instance runs by the configuration that the deployment
// now says. One that its agent has not told anything keeps what it was started with.
func (d *deployment) told(i *instance) bool {
	if i.report == nil || i.report.Config == "" {
		return true
	}
	told := d.spec.Told()
	return told == "" || i.report.Config == told && i.report.Refused == ""
}

// refused says, in words, that an instance did not take the configuration that
// its deployment now says.
func (w *teller) refused(d *deployment) string {
	told := d.spec.Told()
	if told == "" || d.function == nil {
		return ""
	}
	first := ""
	var of name
	for _, i := range w.ofDep[d.key] {
		if i.draining() || i.report == nil || i.report.Refused == "" || i.report.Config != told {
			continue
		}
		if first == "" || i.key.name < of.name {
			of = i.key
			first = fmt.Sprintf("instance %s refuses its configuration or part of it, and keeps what it had: %s", of.name, i.report.Refused)
		}
	}
	return first
}

// currency is the reason of the condition Current.
func currency(outdated int, refused bool) string {
	switch {
	case refused:
		return onpath.ReasonConfigRefused
	case outdated > 0:
		return "Replacing"
	}
	return "Current"
}

func replacing(n int) string {
	if n == 1 {
		return "1 instance from before a change is to be replaced"
	}
	return fmt.Sprintf("%d instances from before a change are to be replaced", n)
}

func remedy(e *onpath.Error) string {
	if e.Remedy == "" {
		return ""
	}
	return "; " + e.Remedy
}

func unchanged(st *onpath.ChainStatus) string {
	if st.Active {
		return " (until then traffic is steered as before)"
	}
	return ""
}

func inBrackets(s string) string {
	if s == "" {
		return ""
	}
	return " (" + s + ")"
}

func pick(b bool, yes, no string) string {
	if b {
		return yes
	}
	return no
}

func (w *teller) chainEvents(c *chain, old, st onpath.ChainStatus) {
	k := onpath.KeyOf(c.obj)
	switch {
	case st.Active && !old.Active:
		w.event(Event{About: k, Reason: "Active", Message: "traffic is steered through " + strings.Join(stringsOf(c), " → ")})
	case !st.Active && old.Active:
		w.event(Event{About: k, Reason: "Inactive", Message: "its traffic is not steered any more"})
	case st.Active && st.Path == old.Path && len(st.Cloudlets) > 0 && len(old.Cloudlets) == 0:
		w.event(Event{About: k, Reason: "Changed", Message: "new flows go through " + strings.Join(stringsOf(c), " → ")})
	}
	if len(c.errs) > 0 {
		told := w.tellOnce(old.Conditions, c.obj, "Valid", "Impossible", c.errs[0].Message)
		if cause := c.errs[0].Cause; cause != nil && !told {
			w.event(Event{About: k, To: onpath.OperatorTenant, Reason: "Impossible", Message: cause.Error(), Warning: true})
		}
	}
	for _, cond := range st.Conditions {
		if cond.Type == "Placed" && cond.Status == onpath.False {
			w.tellOnce(old.Conditions, c.obj, "Placed", cond.Reason, cond.Message)
		}
	}
}

func stringsOf(c *chain) []string {
	var out []string
	for _, e := range c.elements {
		out = append(out, e.dep.name)
	}
	return out
}
