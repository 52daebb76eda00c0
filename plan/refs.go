package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/onpath/onpath"
)

// resolveElements looks up the chain's elements and fills in the defaults that
// depend on their functions.
func (w *resolver) resolveElements(c *chain) {
	seen := map[name]int{}
	for i := range c.obj.Spec.Through {
		o := &c.obj.Spec.Through[i]
		field := fmt.Sprintf("spec.through[%d]", i)
		e := element{mode: cmp.Or(o.Mode, onpath.ModeInline), disabled: o.Disabled, sel: o.Selection(), weights: o.Weights,
			weightsFrom: o.WeightsFrom, together: o.Together}
		if o.Function != "" {
			e.d = w.shortForm(c, o)
			e.dep = e.d.key
			w.checkShortForm(c, field, e.d)
		} else {
			e.dep = resolve(o.Deployment, c.key.tenant)
			e.d = w.deployments[e.dep]
			w.checkDeployment(c, field, e)
		}
		if first, ok := seen[e.dep]; ok {
			c.fail(onpath.CodeInvalid, field, "make a second deployment for it", "the chain is a loop: deployment %s is spec.through[%d] already", e.dep, first)
		}
		seen[e.dep] = i
		if c.from.deployment == e.dep && e.dep != (name{}) {
			c.fail(onpath.CodeInvalid, field, "leave one of the two out", "the chain is a loop: deployment %s is its spec.from too", e.dep)
		}
		e.lost, e.none = fates(o, e)
		w.checkWeights(c, field, e)
		if e.inline() && e.mirror() {
			c.fail(onpath.CodeUnsupported, field+".mode", "take mode out: an ebpf function that only looks passes every packet on", "an ebpf function gets no copies; it is run on the packets themselves")
		}
		c.elements = append(c.elements, e)
		c.checkRights(field, i)
	}
}

// checkRights refuses an element at which TCP connections end and from which none may
// begin: nothing would leave it. Where the chain ends, its answers are all that leaves.
func (c *chain) checkRights(field string, i int) {
	e := &c.elements[i]
	last := c.obj.Spec.Exit == onpath.ExitNone && i == len(c.obj.Spec.Through)-1
	if e.d == nil || e.d.function == nil || e.mirror() || last {
		return
	}
	if f := e.d.function.Spec; f.State == onpath.StateTerminates && f.Packets == onpath.PacketsKeep {
		c.fail(onpath.CodeInvalid, field, "write packets: originate in the function, or state: flow if it only passes packets on",
			"function %s ends TCP connections (state: terminates) and may not begin any (packets: keep): no connection would get past it",
			e.d.fnName)
	}
}

// checkWeights refuses shares of nodes that do not exist. A node that goes later takes
// its share with it.
func (w *resolver) checkWeights(c *chain, field string, e element) {
	if !w.changed[onpath.KeyOf(c.obj)] {
		return
	}
	known := func(at, node string) {
		if _, ok := w.Objects[onpath.Key{Kind: onpath.KindNode, Name: node}]; !ok {
			c.fail(onpath.CodeNotFound, fmt.Sprintf("%s[%s]", at, node), "write the name of a node, or take it out",
				"there is no node %s", node)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(e.weights)) {
		known(field+".weights", n)
	}
	for _, from := range slices.Sorted(maps.Keys(e.weightsFrom)) {
		known(field+".weightsFrom", from)
		for _, to := range slices.Sorted(maps.Keys(e.weightsFrom[from])) {
			known(fmt.Sprintf("%s.weightsFrom[%s]", field, from), to)
		}
	}
}

// fates are lost and none with their defaults.
func fates(o *onpath.Element, e element) (onpath.Lost, onpath.None) {
	lost, none := onpath.LostRepick, onpath.NoneDrop
	if e.d != nil && e.d.spec.State == onpath.StateTerminates {
		lost = onpath.LostReset
	}
	if e.mirror() {
		return onpath.LostRepick, onpath.NoneBypass
	}
	return cmp.Or(o.Lost, lost), cmp.Or(o.None, none)
}

func (w *resolver) checkShortForm(c *chain, field string, d *deployment) {
	if other := w.deployments[d.key]; other != nil && other.obj != nil {
		c.fail(onpath.CodeExists, field+".function", "write deployment: "+d.key.name+", or rename one of the two", "the short form makes a deployment %s, and there is one already", d.key)
	}
	if w.lacksPool(d) {
		c.fail(onpath.CodeInvalid, field+".function", noPoolRemedy, noPool, d.fnName)
	}
	w.checkFunction(c, field+".function", d)
}

const (
	noPool       = "function %s wants addresses of a pool, and the server has none"
	noPoolRemedy = "write addresses: private, or have the operator give the server a pool"
)

// lacksPool reports whether the deployment's instances want addresses that there are not.
func (w *world) lacksPool(d *deployment) bool {
	return d.function != nil && d.addressing() == onpath.AddressesPool && len(w.set.PublicPools) == 0
}

func (w *resolver) checkDeployment(c *chain, field string, e element) {
	field += ".deployment"
	switch {
	case e.d == nil:
		c.fail(onpath.CodeNotFound, field, "apply it, or correct the name", "there is no deployment %s", e.dep)
	case e.dep.tenant != c.key.tenant:
		c.fail(onpath.CodeForbidden, field, "make a deployment of your own", "deployment %s belongs to another tenant", e.dep)
	default:
		w.checkFunction(c, field, e.d)
	}
}

// checkFunction says why a deployment has no function.
func (w *resolver) checkFunction(c *chain, field string, d *deployment) {
	f, ok := lookUp[*onpath.Function](w.world, onpath.KindFunction, d.fnName)
	prefix := ""
	if d.obj != nil {
		prefix = fmt.Sprintf("deployment %s: ", d.key)
	}
	switch {
	case !ok:
		c.fail(onpath.CodeNotFound, field, w.functionRemedy(d.fnName), "%sthere is no function %s", prefix, d.fnName)
	case !mayUse(f, c.key.tenant):
		c.fail(onpath.CodeForbidden, field, "its owner can write shared: true", "%sfunction %s belongs to another tenant and is not shared", prefix, d.fnName)
	case f.Spec.Kind() == "":
		c.fail(onpath.CodeUnsupported, field, "write container: {…}", "%sfunction %s is of a kind that this version does not run", prefix, d.fnName)
	case d.noSecret != "":
		c.fail(onpath.CodeNotFound, field, secretRemedy, "%sthere is no secret %s", prefix, d.noSecret)
	}
}

// functionRemedy guesses what was meant: a shared function of the operator's,
// or one with nearly the name.
func (w *world) functionRemedy(n name) string {
	op := name{onpath.OperatorTenant, n.name}
	if f, ok := lookUp[*onpath.Function](w, onpath.KindFunction, op); ok && f.Spec.Shared && n != op {
		return "did you mean " + op.String() + "?"
	}
	var names []string
	for _, f := range listed[*onpath.Function](w) {
		if nameOf(f).tenant == n.tenant {
			names = append(names, f.Metadata.Name)
		}
	}
	if near := onpath.Nearest(n.name, names); near != "" {
		return fmt.Sprintf("did you mean %s?", near)
	}
	return "apply it, or correct the name"
}

// checkChains finds what no chain alone can show.
func (w checker) checkChains() {
	w.checkUses()
	w.checkOverlaps()
	w.checkRules()
	w.checkNodeLimits()
}

// checkUses finds deployments that chains use in ways that exclude each other.
func (w checker) checkUses() {
	uses := map[name][]use{}
	owners := map[name]*chain{}
	for _, c := range w.chains {
		for i := range c.elements {
			e := &c.elements[i]
			field := fmt.Sprintf("spec.through[%d]", i)
			if e.d != nil && e.d.owner == c {
				if o := owners[e.dep]; o != nil && o != c {
					c.fail(onpath.CodeExists, field+".function", "rename one of the two chains", "the short form makes a deployment %s, and so does chain %s", e.dep, o.key)
				}
				owners[e.dep] = c
				continue
			}
			for _, u := range uses[e.dep] {
				if u.e.mode != e.mode {
					c.fail(onpath.CodeInvalid, field+".mode", "make a second deployment for it", "chain %s uses deployment %s with mode: %s; one vport cannot be both", u.c.key, e.dep, u.e.mode)
					break
				}
			}
			for _, u := range uses[e.dep] {
				if u.c.tier != c.tier && meet(u.c, c) {
					c.fail(onpath.CodeInvalid, field, "make a second deployment for it", "a loop: packets would pass deployment %s in chain %s and again here", e.dep, u.c.key)
					break
				}
			}
			uses[e.dep] = append(uses[e.dep], use{c, e})
		}
	}
}

// meet reports whether two chains of different tiers select common traffic,
// in either orientation.
func meet(a, b *chain) bool {
	for _, m := range a.forward {
		for _, n := range append(b.forward[:len(b.forward):len(b.forward)], b.reverse...) {
			if _, ok := overlap(m, n); ok {
				return true
			}
		}
	}
	return false
}
