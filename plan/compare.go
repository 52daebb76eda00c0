package plan

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/onpath/onpath"
)

// Compare says what a change from before to after would do to instances and
// rules, once every node has followed.
func Compare(before, after *Snapshot) *onpath.Preview {
	a, b := foresee(before), foresee(after)
	p := &onpath.Preview{}
	known := newWorld(before).deployments
	for _, k := range sortedNames(b.instances) {
		i := b.instances[k]
		if _, ok := a.instances[k]; !ok && !i.draining {
			p.Instances = append(p.Instances, onpath.InstancePreview{Action: onpath.PreviewStart, Tenant: k.tenant, Deployment: i.deployment, Node: i.node,
				Reason: whyStart(known, a, b, name{k.tenant, i.deployment})})
		}
	}
	for _, k := range sortedNames(a.instances) {
		was, now := a.instances[k], b.instances[k]
		if was.draining || now.deployment != "" && !now.draining {
			continue
		}
		p.Instances = append(p.Instances, onpath.InstancePreview{Action: onpath.PreviewDrain, Tenant: k.tenant, Deployment: was.deployment, Name: k.name, Node: was.node, Reason: now.reason})
	}
	nodes := map[string]bool{}
	for n := range a.rules {
		nodes[n] = true
	}
	for n := range b.rules {
		nodes[n] = true
	}
	for _, n := range sortedKeys(nodes) {
		r := onpath.RulesPreview{Node: n, Added: less(b.rules[n], a.rules[n]), Removed: less(a.rules[n], b.rules[n])}
		if r.Added+r.Removed > 0 {
			p.Rules = append(p.Rules, r)
		}
	}
	for _, n := range b.notes {
		if !slices.Contains(a.notes, n) {
			p.Notes = append(p.Notes, n)
		}
	}
	p.Notes = append(p.Notes, Notes(before, after)...)
	return p
}

// Notes say in words what is worth knowing of a change that is possible: which
// connections it ends, and which chains lose traffic to others of their tenant.
func Notes(before, after *Snapshot) (out []string) {
	if !instancesMayDiffer(before, after) {
		return nil
	}
	w := newWorld(after)
	return slices.Concat(cuts(before, after), contests(w, before), circles(w, before), ledIn(w, before),
		replacements(w, newWorld(before)))
}

// instancesMayDiffer reports whether a function, deployment or chain is new or another.
func instancesMayDiffer(before, after *Snapshot) bool {
	for k, o := range after.Objects {
		switch k.Kind {
		case onpath.KindFunction, onpath.KindDeployment, onpath.KindChain:
			if before.Objects[k] != o {
				return true
			}
		}
	}
	return false
}

// replacements tells of deployments that get new instances in place of those that run, and how
// long flows stay with the old ones.
func replacements(w, old *world) (out []string) {
	for _, k := range sortedNames(w.deployments) {
		d, was := w.deployments[k], old.deployments[k]
		if was == nil || d.shape == was.shape || len(old.ofDep[k]) == 0 {
			continue
		}
		out = append(out, fmt.Sprintf("deployment %s gets new instances; "+
			"flows that began before, blocked ones too, go on through the old ones for up to %s (drain)", k, onpath.Duration(d.drain)))
	}
	return out
}

// circles tells of new or changed chains that take the traffic of a machine which may run
// their instances, and what goes past them for the machine to start these.
func circles(w *world, before *Snapshot) (out []string) {
	for _, c := range w.chains {
		if c.host == nil || !c.differs(before) {
			continue
		}
		fetches := slices.ContainsFunc(c.elements, func(e element) bool {
			return e.d != nil && e.d.function != nil && !e.d.inline() && !e.d.spec.Traits().HostImage
		})
		if fetches {
			out = append(out, fmt.Sprintf("chain %s takes traffic of machine %s; what the machine needs to start instances goes past it: "+
				"its connections to registries and name servers, and NTP (udp/123)", c.key, c.host.name))
		}
	}
	return out
}

func specDiffers(before onpath.Object, c *onpath.Chain) bool {
	old, _ := before.(*onpath.Chain)
	return old == nil || old != c && !reflect.DeepEqual(old.Spec, c.Spec)
}

// whyStart says why a deployment gets an instance; known are those there were.
func whyStart(known map[name]*deployment, a, b *foreseen, dep name) string {
	running, drains := 0, 0
	for k, i := range a.instances {
		if k.tenant != dep.tenant || i.deployment != dep.name || i.draining {
			continue
		}
		running++
		if now, ok := b.instances[k]; !ok || now.draining {
			drains++
		}
	}
	switch {
	case known[dep] == nil:
		return "the deployment is new"
	case drains > 0:
		return "in place of one that drains"
	case running == 0:
		return "it has no instance"
	}
	return fmt.Sprintf("more than %d are wanted", running)
}

func less(a, b map[string]int) int {
	n := 0
	for k, v := range a {
		n += max(0, v-b[k])
	}
	return n
}

// cuts warns of connections that a change ends.
func cuts(before, after *Snapshot) (out []string) {
	for _, c := range objects[*onpath.Chain](after) {
		old, _ := before.Objects[onpath.KeyOf(c)].(*onpath.Chain)
		if c.Spec.Existing == onpath.ExistingCut && (old == nil || old.Status.Shape == "" || old.Spec.Disabled && !c.Spec.Disabled) {
			out = append(out, fmt.Sprintf("chain %s cuts the TCP connections that exist when it begins", nameOf(c)))
		}
	}
	return out
}

// contests tells of traffic that a new or changed chain and another one of its tenant
// select, which goes to the one with the higher priority: at most ten times.
func contests(w *world, before *Snapshot) (out []string) {
	for _, c := range w.chains {
		c.span()
	}
	for _, c := range w.chains {
		if !c.differs(before) {
			continue
		}
		for _, o := range w.chains {
			if o.key.tenant != c.key.tenant || o.tier != c.tier || o.priority() == c.priority() || !o.mayMeet(c) && !o.mayFace(c) {
				continue
			}
			if o.rank < c.rank && o.differs(before) {
				continue // it was told with o
			}
			first, second := c, o
			if o.rank < c.rank {
				first, second = o, c
			}
			m, ok := takenIn(second, first)
			if !ok {
				continue
			}
			if out = append(out, fmt.Sprintf("chain %s (priority %d) has this before chain %s (%d), which gets none of it: %s",
				first.key, first.priority(), second.key, second.priority(), words(m))); len(out) == 10 {
				return out
			}
		}
	}
	return out
}

// differs reports whether a snapshot has the chain otherwise, or not at all.
func (c *chain) differs(before *Snapshot) bool {
	return specDiffers(before.Objects[onpath.KeyOf(c.obj)], c.obj)
}

// foreseen is how things would stand once all is done.
type foreseen struct {
	instances map[name]seenInstance
	rules     map[string]map[string]int // node → rule in words → how many
	notes     []string
}

type seenInstance struct {
	deployment, node, reason string
	draining                 bool
}

// foresee lets nodes that do at once what they are told run until nothing
// changes any more. Instances that are not ready now are taken to become so.
func foresee(s *Snapshot) *foreseen {
	reasons := map[onpath.Key]string{}
	w := runOn(s, func(r *Result) {
		for _, e := range r.Events {
			if e.Reason == "Draining" {
				reasons[e.About] = e.Message
			}
		}
	})
	f := &foreseen{instances: map[name]seenInstance{}, rules: map[string]map[string]int{}}
	for _, i := range objects[*onpath.Instance](w) {
		f.instances[nameOf(i)] = seenInstance{i.Spec.Deployment, i.Spec.Node, reasons[onpath.KeyOf(i)], !i.Spec.Draining.IsZero()}
	}
	for n, st := range w.States {
		f.rules[n] = rulesIn(st.Acked)
	}
	for _, c := range objects[*onpath.Chain](w) {
		for _, cond := range c.Status.Conditions {
			if cond.Type == "Placed" && cond.Status == onpath.False {
				f.notes = append(f.notes, fmt.Sprintf("chain %s: %s", nameOf(c), cond.Message))
			}
		}
	}
	return f
}

// Foresee is a snapshot of how things would stand once all nodes have done what
// follows from s, and every instance is ready. Draining instances stay: their
// flows are not foreseen.
func Foresee(s *Snapshot) *Snapshot { return runOn(s, func(*Result) {}) }

// runOn plans and carries out until nothing changes any more, and shows every
// result.
func runOn(s *Snapshot, see func(*Result)) *Snapshot {
	w := imagine(s)
	for range 64 {
		r := Make(w)
		see(r)
		if !carryOut(w, r) {
			break
		}
	}
	return w
}

// Latest are the newest plans of the nodes that have been heard of: those under
// way, else those in force.
func (s *Snapshot) Latest() map[string]*onpath.NodePlan {
	out := map[string]*onpath.NodePlan{}
	for n, st := range s.States {
		if p := st.latest(); p != nil {
			out[n] = p
		}
	}
	return out
}

// InForce are the plans that nodes have acknowledged.
func (s *Snapshot) InForce() map[string]*onpath.NodePlan {
	out := map[string]*onpath.NodePlan{}
	for n, st := range s.States {
		if st.Acked != nil {
			out[n] = st.Acked
		}
	}
	return out
}

// imagine copies a snapshot so far that planning may go on with it, with ids in
// plenty that are not the real ones.
func imagine(s *Snapshot) *Snapshot {
	w := *s
	w.Objects = maps.Clone(s.Objects)
	w.States = map[string]*NodeState{}
	for n, st := range s.States {
		w.States[n] = &NodeState{Report: st.Report, Seen: st.Seen, Acked: st.latest()}
		answer(w.States[n], w.Now)
	}
	w.IDs = IDs{}
	for i := range 2048 {
		w.IDs.Vports = append(w.IDs.Vports, onpath.MaxID24-onpath.VportID(i))
		w.IDs.Addresses = append(w.IDs.Addresses, uint64(1<<40+i))
		w.IDs.Paths = append(w.IDs.Paths, onpath.PathID(1<<18-1-i))
	}
	return &w
}

// carryOut does what a result says; it reports whether that was anything but
// the passing of draining instances, whose flows are not foreseen.
func carryOut(w *Snapshot, r *Result) bool {
	for _, o := range r.Create {
		w.Objects[onpath.KeyOf(o)] = o
	}
	for _, o := range r.Own {
		w.Objects[onpath.KeyOf(o)] = o
	}
	for _, o := range r.Update {
		w.Objects[onpath.KeyOf(o)] = o
	}
	for _, k := range r.Delete {
		if k.Kind != onpath.KindInstance {
			delete(w.Objects, k)
		}
	}
	for n, p := range r.Plans {
		w.States[n].Acked = p
		answer(w.States[n], w.Now)
	}
	w.IDs.Vports = w.IDs.Vports[r.Used.Vports:]
	w.IDs.Paths = w.IDs.Paths[r.Used.Paths:]
	w.IDs.Addresses = w.IDs.Addresses[r.Used.Addresses:]
	return len(r.Create)+len(r.Own)+len(r.Update)+len(r.Plans) > 0
}

// answer has a node report what its plan in force says as done, and as having been
// so for long enough for new instances to be relied on.
func answer(st *NodeState, now time.Time) {
	r := *st.Report
	r.Instances, r.Paths = nil, map[onpath.PathID]uint64{}
	if st.Acked != nil {
		r.Plan = st.Acked.Generation
		for _, i := range st.Acked.Instances {
			r.Instances = append(r.Instances, onpath.InstanceReport{Name: i.Name, Tenant: i.Tenant, State: onpath.InstanceReady, Since: now.Add(-2 * staysAgain), Wired: true, Flows: 1})
		}
		for _, p := range st.Acked.Datapath.Paths {
			r.Paths[p.ID] = 0
		}
	}
	st.Report = &r
}

// rulesIn counts the rules that begin or continue chains, in words that do not
// hang on ids.
func rulesIn(p *onpath.NodePlan) map[string]int {
	out := map[string]int{}
	if p == nil {
		return out
	}
	paths := map[onpath.PathID]onpath.Path{}
	for _, q := range p.Datapath.Paths {
		paths[q.ID] = q
	}
	for _, t := range p.Datapath.Tables {
		for _, r := range t.Rules {
			q := paths[r.Path]
			if !q.Ended.IsZero() {
				continue
			}
			where := t.ID & 63
			if t.ID < 3 || isEmit(t.ID) {
				where = min(t.ID, 3)
			}
			out[fmt.Sprintf("%s %v %d %v %s %t %v", q.Chain, q.Elements, where, r.Match, r.Action.Kind, r.Reverse, isEmit(t.ID))]++
		}
	}
	return out
}
