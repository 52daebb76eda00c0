package plan

import (
	"net/netip"
	"slices"

	"github.com/onpath/onpath"
)

// start is the element number whose tables stand before the first element and,
// reversed, behind the last: elements are numbered below it.
const start = onpath.MaxElements

// compile makes a chain's present path.
func (w *pathfinder) compile(cl *cloudlet, c *chain) *path {
	p := &path{id: c.obj.Status.Path, key: c.key, chain: c, tier: c.tier, present: true}
	p.spec = onpath.Path{
		ID: p.id, Chain: c.key.String(), Tenant: c.key.tenant, Forward: c.obj.Spec.Direction == onpath.DirectionForward,
		Cut: c.obj.Spec.Existing == onpath.ExistingCut, Adopt: onpath.DefaultAdopt,
		Idle: c.obj.Spec.Idle, MaxFlows: w.maxEstablished(c.key.tenant),
	}
	if c.obj.Spec.Adopt != nil {
		p.spec.Adopt = *c.obj.Spec.Adopt
	}
	for i, e := range c.elements {
		p.deps = append(p.deps, e.dep)
		p.spec.Elements = append(p.spec.Elements, e.dep.String())
		p.weights = append(p.weights, e.weights)
		p.spec.Strict = p.spec.Strict || e.none == onpath.NoneDrop && !e.mirror()
		for _, reverse := range []bool{false, true} {
			p.groups = append(p.groups, groupOf(p.id, i, reverse, &e))
		}
	}
	w.findMembers(cl, p)
	w.fill(p)
	p.spec.MTU = w.mtu(cl, p)
	p.spec.Side = c.side(cl)
	p.tables = tablesOf(p.id, c, p.spec.Side)
	p.forward, p.reverse = rulesOf(c, p.id, p.tables, p.spec.Side)
	return p
}

func groupOf(p onpath.PathID, i int, reverse bool, e *element) onpath.Group {
	return onpath.Group{
		ID: onpath.GroupOf(p, i, reverse), Path: p, Reverse: reverse, Mode: e.mode,
		Then: onpath.TableOf(p, i, reverse), Back: onpath.TableOf(p, i, !reverse), Lost: e.lost, None: e.none,
		Together: e.together,
	}
}

// tablesOf are the tables of a path: what comes after each element, in each
// direction, and what comes first.
func tablesOf(p onpath.PathID, c *chain, side string) []onpath.Table {
	var out []onpath.Table
	n := len(c.elements)
	for i := range n {
		forward, reverse := tableOf(p, c, i, false), tableOf(p, c, i, true)
		if c.sealed(side) { // what a half sends on as it came is not let out
			into := &forward
			if side == onpath.PairB {
				into = &reverse
			}
			into.Miss = onpath.Action{Kind: onpath.ActionDrop, Reason: onpath.DropPolicy}
		}
		out = append(out, forward, reverse)
	}
	return append(out, tableOf(p, c, start, false), tableOf(p, c, start, true))
}

// tableOf lists, in order, the elements that a packet meets after element i.
func tableOf(p onpath.PathID, c *chain, i int, reverse bool) onpath.Table {
	t := onpath.Table{ID: onpath.TableOf(p, i, reverse), Miss: endOf(c, reverse)}
	if i == start && t.Miss.Kind == onpath.ActionRoute {
		t.Miss.Kind = onpath.ActionExit // no element selects the packet: it is left alone
	}
	for _, j := range following(i, len(c.elements), reverse) {
		act := onpath.Action{Kind: onpath.ActionGroup, Group: onpath.GroupOf(p, j, reverse)}
		sel := c.elements[j].sel
		if reverse {
			sel = reversed(sel)
		}
		if len(sel) == 0 {
			t.Rules = append(t.Rules, onpath.Rule{Action: act, Path: p, Reverse: reverse})
			break // takes all: nothing behind it is reached from here
		}
		for _, s := range sel {
			if m, ok := matchOf(s); ok {
				t.Rules = append(t.Rules, onpath.Rule{Match: m, Action: act, Path: p, Reverse: reverse})
			}
		}
	}
	return t
}

// following are the elements behind i in a direction; all of them behind start.
func following(i, n int, reverse bool) []int {
	var out []int
	for j := range n {
		if i == start || j > i && !reverse || j < i && reverse {
			out = append(out, j)
		}
	}
	if reverse {
		slices.Reverse(out)
	}
	return out
}

// endOf is what comes after the last element. Behind an operator's chain the
// tenants' chains are looked at; replies that leave by exit: last come back to
// where the flow entered.
func endOf(c *chain, reverse bool) onpath.Action {
	switch {
	case c.obj.Spec.Exit == onpath.ExitNone && !reverse:
		return onpath.Action{Kind: onpath.ActionDrop, Reason: onpath.DropPolicy}
	case c.tier == onpath.TierOperator:
		return onpath.Action{Kind: onpath.ActionTable, Table: onpath.ClassifierTable(onpath.TierTenant)}
	case c.obj.Spec.Exit == onpath.ExitLast && !reverse:
		return onpath.Action{Kind: onpath.ActionRoute}
	}
	return onpath.Action{Kind: onpath.ActionExit}
}

// beginning is the action that starts a path: its first element at once where
// that takes everything, else the table that chooses.
func beginning(p onpath.PathID, tables []onpath.Table, reverse bool) onpath.Action {
	id := onpath.TableOf(p, start, reverse)
	for _, t := range tables {
		if t.ID == id && len(t.Rules) == 1 && isAll(t.Rules[0].Match) {
			return t.Rules[0].Action
		}
	}
	return onpath.Action{Kind: onpath.ActionTable, Table: id}
}

func isAll(m onpath.Match) bool {
	return m.Family == 0 && len(m.Src)+len(m.Dst)+len(m.Protocol)+len(m.SrcPorts)+len(m.DstPorts) == 0
}

// rulesOf are the classifiers' rules of a chain, for one of its paths.
// At the other half of a pair packets come out and none enter: those in clear are dropped,
// or, where they may bypass, left alone.
func rulesOf(c *chain, p onpath.PathID, tables []onpath.Table, side string) (forward, reverse []onpath.Rule) {
	act := func(in string, reverse bool) (onpath.Action, bool) {
		if side == in || side == "" {
			return beginning(p, tables, reverse), true
		}
		return onpath.Action{Kind: onpath.ActionDrop, Reason: onpath.DropPolicy}, c.sealed(side)
	}
	for _, m := range c.forward {
		if a, ok := act(onpath.PairA, false); ok {
			forward = append(forward, onpath.Rule{Match: m, Action: a, Path: p})
		}
	}
	for _, m := range c.reverse {
		if a, ok := act(onpath.PairB, true); ok {
			reverse = append(reverse, onpath.Rule{Match: m, Action: a, Path: p, Reverse: true})
		}
	}
	return forward, reverse
}

// sealed reports whether nothing of the chain's may pass beside its pair at a side.
func (c *chain) sealed(side string) bool {
	return side != "" && slices.ContainsFunc(c.elements, func(e element) bool { return e.none == onpath.NoneDrop })
}

// classifier makes the table of a tier from a node's paths. Within one priority all
// forward rules stand before all reverse rules: where the two ends of a chain
// overlap (any → any), whoever starts the flow is its from end.
// Between tenants plan/ownership decides.
func (w *world) classifier(paths []*path, n *node, tier onpath.Tier) onpath.Table {
	t := onpath.Table{ID: onpath.ClassifierTable(tier), Miss: onpath.Action{Kind: onpath.ActionExit}}
	if tier == onpath.TierOperator {
		t.Miss = onpath.Action{Kind: onpath.ActionTable, Table: onpath.ClassifierTable(onpath.TierTenant)}
	}
	if tier == onpath.TierTenant && severalTenants(paths, tier) {
		t.Rules = w.tenantRules(paths, n)
		return t
	}
	var reverse []onpath.Rule
	var last *path
	for _, p := range paths {
		if p.tier != tier || !p.steers || startsAtInstances(p) {
			continue
		}
		if last != nil && !last.sameRank(p) {
			t.Rules, reverse = append(t.Rules, reverse...), nil
		}
		last = p
		both, f, r := p.rulesAt(n)
		t.Rules = append(append(t.Rules, both...), f...)
		reverse = append(reverse, r...)
	}
	t.Rules = append(t.Rules, reverse...)
	return t
}

func startsAtInstances(p *path) bool {
	return p.chain != nil && p.chain.from.deployment != name{}
}

// emitTable says what becomes of a packet that an instance sends at one of its
// vports without a flow entry. Nil: nothing may be sent so.
//
// A chain's selection holds here too, with addresses exchanged: an element that
// rewrites may have turned virtual into own addresses, and one that originates
// sends from its own address in place of the from end's. What matches nothing is
// routed if Vport.Routes allows it, else dropped.
func emitTable(paths []*path, i *instance, side onpath.VportID) *onpath.Table {
	t := &onpath.Table{ID: onpath.EmitTableOf(side), Miss: onpath.Action{Kind: onpath.ActionDrop, Reason: onpath.DropSpoofed}}
	own := ownPrefixes(i.obj)
	var reverse []onpath.Rule
	var last *path
	for _, p := range paths {
		if last != nil && !last.sameRank(p) {
			t.Rules, reverse = append(t.Rules, reverse...), nil
		}
		last = p
		f, r := emitRules(p, i, side, own)
		t.Rules, reverse = append(t.Rules, f...), append(reverse, r...)
	}
	t.Rules = append(t.Rules, reverse...)
	if len(t.Rules) == 0 {
		return nil
	}
	return t
}

// emitRules are those of one path for what an instance emits at a side.
func emitRules(p *path, i *instance, side onpath.VportID, own []netip.Prefix) (forward, reverse []onpath.Rule) {
	if startsAtInstances(p) && p.steers && p.chain.from.deployment == i.dep {
		forward = startRules(p, own)
	}
	k := slices.Index(p.deps, i.dep)
	switch {
	case k < 0 || p.over:
		return forward, nil
	case !p.present && !p.steers || p.chain == nil || len(p.chain.errs) > 0:
		for _, r := range p.emits[onpath.EmitTableOf(side)] {
			if r.Reverse { // behind those of the path that comes after it
				reverse = append(reverse, r)
			} else {
				forward = append(forward, r)
			}
		}
		return forward, reverse
	case !p.steers || !mayEmit(i, p, k):
		return forward, nil
	}
	f, r := continueRules(p, k, own)
	switch {
	case p.spec.Side == onpath.PairA: // comes out here: what entered at the other half
		return forward, r
	case p.spec.Side == onpath.PairB:
		return append(forward, f...), nil
	case !i.bridged():
		return append(forward, f...), r
	case side == i.obj.Spec.Back:
		return append(forward, f...), nil
	}
	return forward, r
}

func mayEmit(i *instance, p *path, k int) bool {
	mirror := k < len(p.groups)/2 && p.groups[2*k].Mode == onpath.ModeMirror
	return !mirror && (i.fn.Packets == onpath.PacketsRewrite || i.fn.Packets == onpath.PacketsOriginate)
}

// startRules begin a chain whose from end is the instance's deployment.
func startRules(p *path, own []netip.Prefix) []onpath.Rule {
	var out []onpath.Rule
	c := p.chain
	for _, m := range matches(false, own, c.to.any, c.to.destination(), c.obj.Spec.Select) {
		out = append(out, onpath.Rule{Match: m, Action: beginning(p.id, p.tables, false), Path: p.id})
	}
	return out
}

// continueRules continue a chain behind element k. The own address stands for
// the from end as a source only where the chain then still says something: with
// from any, all that the instance sends would run backwards.
func continueRules(p *path, k int, own []netip.Prefix) (forward, reverse []onpath.Rule) {
	c := p.chain
	next := func(reverse bool) onpath.Action {
		return onpath.Action{Kind: onpath.ActionTable, Table: onpath.TableOf(p.id, k, reverse)}
	}
	all := matches(c.from.any, c.from.source(), c.to.any, c.to.destination(), c.obj.Spec.Select)
	if sel, narrower := withoutSources(c); len(own) > 0 && (narrower || !c.from.any) {
		all = append(all, matches(false, own, c.to.any, c.to.destination(), sel)...)
	}
	for _, m := range all {
		forward = append(forward, onpath.Rule{Match: m, Action: next(false), Path: p.id})
	}
	if p.spec.Forward {
		return forward, nil
	}
	src := c.to.destination()
	if !c.from.any {
		src = slices.Concat(src, own)
	}
	for _, m := range matches(c.to.any, src, c.from.any, c.from.destination(), reversed(c.obj.Spec.Select)) {
		reverse = append(reverse, onpath.Rule{Match: m, Action: next(true), Path: p.id, Reverse: true})
	}
	return forward, reverse
}

// withoutSources are the chain's selectors without what they say of sources: an
// own address stands for them. narrower is false if they say nothing.
func withoutSources(c *chain) (sel []onpath.Selector, narrower bool) {
	for _, s := range c.obj.Spec.Select {
		narrower = narrower || len(s.Sources)+len(s.SourcePorts) > 0
		s.Sources, s.SourcePorts = nil, nil
		sel = append(sel, s)
	}
	return sel, narrower
}

// routes reports whether what the instance sends from its own address, and no
// chain selects, is routed.
func routes(f *onpath.FunctionSpec) bool {
	t := f.Traits()
	return t.Addresses == onpath.AddressesPool || t.Addresses != onpath.AddressesNone && t.Outbound == onpath.OutboundNAT
}
