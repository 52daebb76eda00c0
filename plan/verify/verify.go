package verify

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/ownership"
)

// Input is what is held against each other.
type Input struct {
	// Now is when; proofs of claims that have ended by then do not count.
	Now time.Time
	// Objects are the resources, instances included.
	Objects map[onpath.Key]onpath.Object
	// Plans are the nodes' plans, by node.
	Plans map[string]*onpath.NodePlan
	// Chains ("tenant/name") to prove; empty: all, and what no chain selects.
	Chains []string
	// NoReport are the nodes of which it is not known whether their plans are in force
	// now, and why. Nothing that rests on one is proved.
	NoReport map[string]string
	// Unsteered are conditions of nodes (onpath.Unsteered), by node: of uplinks where
	// packets do not meet the rules.
	Unsteered map[string][]onpath.Condition
}

// maxCuts bounds the steps spent on one class of flows, maxAll those on all.
const (
	maxCuts = 200_000
	maxAll  = 20_000_000
)

// checker is one proof under way.
type checker struct {
	in        Input
	space     *space
	res       *resources
	sites     map[string]*site
	never     []match
	quiet     []box
	areas     []*place
	unsettled map[string]string   // chains of which nothing can be said, and why
	noReport  map[string][]string // nodes that cannot be asked, by the chains that rest on them; "": what no chain selects
	results   map[string]*onpath.ChainVerification
	rest      onpath.ChainVerification
	budget    budget
	spent     int
	classes   int
	notes     []string
	titles    *ownership.Table // once several tenants have chains
}

// place is one cloudlet's part.
type place struct {
	cloudlet         string
	promises         []*promise
	operator, tenant []*traffic // entering at its edges, in order of precedence
	emitters         []*emitter
	used, idle       []string // gateways, and hosts
	hosts            []*host  // of used
}

// emitter is a vport of an instance that may send of itself.
type emitter struct {
	at       *site
	vport    *onpath.Vport
	traffics []*traffic
}

// Check proves or refutes. Took is left to the caller.
func Check(in Input) *onpath.Verification {
	c := &checker{in: in, space: newSpace(), res: newResources(in.Objects), sites: map[string]*site{},
		unsettled: map[string]string{}, noReport: map[string][]string{}, results: map[string]*onpath.ChainVerification{}}
	for _, n := range never() {
		c.never = append(c.never, c.space.take(n))
	}
	for node, p := range in.Plans {
		if p != nil {
			c.sites[node] = newSite(node, &p.Datapath, c.space)
		}
	}
	for _, cl := range c.res.cloudlets() {
		c.areas = append(c.areas, c.survey(cl))
	}
	c.begin()
	if err := c.space.divide(); err != nil {
		return c.unable(err)
	}
	for _, m := range c.never {
		c.quiet = append(c.quiet, c.space.boxes(m)...)
	}
	for _, a := range c.areas {
		c.connectGateways(a)
		c.prove(a)
	}
	for _, a := range c.areas {
		c.doubt(a)
	}
	c.joinHalves()
	return c.report()
}

// survey finds what is promised in a cloudlet, and takes up its sets.
func (c *checker) survey(cloudlet string) *place {
	a := &place{cloudlet: cloudlet, promises: c.res.promises(cloudlet)}
	a.used, a.idle = c.res.gateways(cloudlet)
	a.hosts = c.hosts(a.used)
	for _, g := range a.idle {
		c.note("gateway %s of cloudlet %s is not in use: traffic at its uplinks is not steered", g, cloudlet)
	}
	for _, p := range a.promises {
		if p.unsettled != "" {
			c.unsettled[p.key] = p.unsettled
		}
		if len(a.used) == 0 && p.unsettled == "" {
			c.unsettled[p.key] = "cloudlet " + cloudlet + " has no gateway in use"
		}
	}
	for _, p := range a.promises {
		for k := range p.steps {
			c.space.selections(&p.steps[k])
		}
	}
	rank := func(t *traffic) int { return t.p.obj.Spec.Priority }
	a.operator = c.entering(a.promises, onpath.TierOperator, rank)
	a.tenant = c.entering(a.promises, onpath.TierTenant, rank)
	if severalTenants(a.tenant) {
		a.tenant = c.byTitle(a.tenant, len(a.hosts) > 0)
	}
	for _, n := range c.res.nodes {
		if x := c.sites[n.Metadata.Name]; x != nil && n.Spec.Cloudlet == cloudlet {
			a.emitters = append(a.emitters, c.emitters(a, x)...)
		}
	}
	return a
}

// entering are a tier's selections at edges in order of precedence: within one
// priority whoever starts a flow is a from end first.
func (c *checker) entering(list []*promise, tier onpath.Tier, rank func(*traffic) int) (out []*traffic) {
	var late []*traffic
	for _, p := range list {
		if p.tier != tier {
			continue
		}
		f, r := c.space.entering(p)
		if f != nil {
			out = append(out, f)
		}
		switch {
		case r != nil && p.host != "":
			out = append(out, r) // one chain has both directions between two hosts
		case r != nil:
			late = append(late, r)
		}
	}
	return inOrder(out, late, rank)
}

func severalTenants(list []*traffic) bool {
	return slices.ContainsFunc(list, func(t *traffic) bool { return t.p.obj.Metadata.Tenant != list[0].p.obj.Metadata.Tenant })
}

// byTitle parts selections by their tenants' titles, the best first.
func (c *checker) byTitle(list []*traffic, bothWays bool) (out []*traffic) {
	if c.titles == nil {
		c.titles = ownership.New(c.in.Objects, c.in.Now)
	}
	for _, t := range list {
		tenant := t.p.obj.Metadata.Tenant
		if c.in.Objects[onpath.Key{Kind: onpath.KindTenant, Name: tenant}] == nil {
			tenant = onpath.DefaultTenant
		}
		for _, part := range c.space.parted(t, c.titles.Parts(tenant)) {
			if bothWays {
				part.title = part.title.BothWays(tenant)
			}
			out = append(out, part)
		}
	}
	slices.SortStableFunc(out, func(a, b *traffic) int { return a.title.Compare(b.title) })
	return out
}

// inOrder merges forward and reverse selections, each in order, by rank.
func inOrder(forward, reverse []*traffic, rank func(*traffic) int) []*traffic {
	out := slices.Concat(forward, reverse)
	slices.SortStableFunc(out, func(a, b *traffic) int { return cmp.Compare(rank(b), rank(a)) })
	return out
}

// emitters are the vports of a node's instances and what they may send.
func (c *checker) emitters(a *place, x *site) (out []*emitter) {
	for i := range x.config.Vports {
		v := &x.config.Vports[i]
		o := c.res.byVport[v.ID]
		if v.Kind == onpath.VportRemote || o == nil || v.Mirror || o.Spec.Node != x.node {
			continue
		}
		if v.Kind == onpath.VportFunction {
			continue // it sends nothing of itself, and where packets go behind it was decided by what they were before
		}
		mine := end{addrs: own(o)}
		dep := o.Metadata.Tenant + "/" + o.Spec.Deployment
		e := &emitter{at: x, vport: v}
		var forward, reverse []*traffic
		for _, p := range a.promises {
			if p.from.deployment == dep {
				forward = append(forward, c.space.beginning(p, mine))
			}
			k := slices.IndexFunc(p.steps, func(s step) bool { return s.deployment == dep })
			if k < 0 || p.steps[k].mirror || p.steps[k].packets == onpath.PacketsKeep {
				continue
			}
			f, r := c.space.emitted(p, k, mine)
			bridged := o.Spec.Back != 0
			if p.side != onpath.PairA && (!bridged || v.ID == o.Spec.Back) {
				forward = append(forward, f)
			}
			if r != nil && p.side != onpath.PairB && (!bridged || v.ID == o.Spec.Vport) {
				reverse = append(reverse, r)
			}
		}
		e.traffics = inOrder(forward, reverse, func(t *traffic) int {
			if t.p.tier == onpath.TierOperator {
				return t.p.obj.Spec.Priority + 4*onpath.MaxPriority
			}
			return t.p.obj.Spec.Priority
		})
		if len(e.traffics) > 0 || v.Emit != 0 {
			out = append(out, e)
		}
	}
	return out
}

// begin makes a result for every chain.
func (c *checker) begin() {
	for _, o := range c.res.chains {
		r := &onpath.ChainVerification{Chain: keyOf(o), Verdict: onpath.VerdictIdle, Reason: idle(o)}
		c.results[r.Chain] = r
		for _, a := range c.areas {
			for _, p := range a.promises {
				if p.key == r.Chain {
					r.Verdict, r.Reason = onpath.VerdictProved, ""
					r.Scope, r.Segments = scope(p)
					if p.side != "" {
						r.Scope, r.Segments = onpath.ScopeSegments, pairSegments(p)
					}
					r.Redirects = redirects(p)
				}
			}
		}
		switch {
		case r.Verdict == onpath.VerdictIdle && !o.Spec.Disabled:
			c.unsettled[r.Chain] = "it begins just now" // should there be rules of it already
		case c.unsettled[r.Chain] != "":
			r.Verdict, r.Reason = onpath.VerdictUnproven, c.unsettled[r.Chain]
		}
	}
	c.rest.Verdict = onpath.VerdictProved
}

func idle(o *onpath.Chain) string {
	if o.Spec.Disabled {
		return "the chain is disabled"
	}
	for _, cond := range o.Status.Conditions {
		if cond.Type == "Active" && cond.Message != "" {
			return "does not steer yet: " + cond.Message
		}
	}
	return "does not steer yet"
}

// scope says which parts of a chain's way are proved as one.
func scope(p *promise) (onpath.Scope, []string) {
	text, where := "", "entry"
	var out []string
	for _, s := range p.steps {
		name := s.deployment
		if s.mirror {
			name += " (copy)"
		}
		text += " → " + name
		if !s.mirror && s.packets != onpath.PacketsKeep {
			out = append(out, where+text)
			where, text = name, ""
		}
	}
	last := "exit"
	if p.exitLast() {
		last = "last node's routes"
	}
	out = append(out, where+text+" → "+last)
	if len(out) == 1 {
		return onpath.ScopeEndToEnd, out
	}
	return onpath.ScopeSegments, out
}

func (c *checker) note(format string, args ...any) {
	if n := fmt.Sprintf(format, args...); !slices.Contains(c.notes, n) {
		c.notes = append(c.notes, n)
	}
}

// bypasses notes that an element is passed by now, as its chain says.
func (c *checker) bypasses(n wanted, st state) {
	r := c.results[n.p.key]
	text := fmt.Sprintf("element %d (%s) is passed by now (none: bypass): no instance is ready in cloudlet %s", n.k+1,
		n.step().deployment, n.p.cloudlet)
	if st.strict && !n.step().mirror && !slices.Contains(r.Notes, text) {
		r.Notes = append(r.Notes, text)
	}
}

// meant reports whether a class is asked for.
func (c *checker) meant(cl *class) bool {
	if len(c.in.Chains) == 0 {
		return true
	}
	return slices.ContainsFunc(cl.parts, func(t *traffic) bool { return slices.Contains(c.in.Chains, t.p.key) })
}

// settle follows a class and notes the outcome.
func (c *checker) settle(cl *class) {
	rest := len(cl.parts) == 0
	done := !rest
	for _, t := range cl.parts {
		r := c.results[t.p.key]
		r.Classes++
		done = done && r.Verdict != onpath.VerdictProved
	}
	if rest {
		c.rest.Classes++
		done = c.rest.Verdict != onpath.VerdictProved
	}
	c.classes++
	if done {
		return
	}
	c.budget.left = min(maxCuts, maxAll-c.spent)
	before := c.budget.left
	f := c.unsteered(cl)
	if f == nil {
		f = c.follow(cl)
	}
	c.spent += before - max(c.budget.left, 0)
	if f == nil {
		return
	}
	for _, r := range c.blamed(cl, f) {
		c.record(r, cl, f)
	}
}

// blamed are the results that a failure belongs to.
func (c *checker) blamed(cl *class, f *failure) (out []*onpath.ChainVerification) {
	if len(cl.parts) == 0 {
		return []*onpath.ChainVerification{&c.rest}
	}
	if f.on != nil && !f.unknown {
		return []*onpath.ChainVerification{c.results[f.on.key]}
	}
	for _, t := range cl.parts {
		out = append(out, c.results[t.p.key])
	}
	return out
}

func (c *checker) record(r *onpath.ChainVerification, cl *class, f *failure) {
	if f.unknown {
		if r.Verdict == onpath.VerdictProved {
			r.Verdict, r.Reason = onpath.VerdictUnproven, f.message
		}
		return
	}
	if r.Verdict == onpath.VerdictRefuted {
		return
	}
	r.Verdict, r.Reason = onpath.VerdictRefuted, ""
	x := &onpath.Counterexample{Tuple: c.space.tuple(f.set), Entry: cl.start.node, Way: f.way.notes(), At: f.at,
		Message: f.message, About: f.about, Promised: []string{}}
	if cl.emits != 0 {
		x.Instance = c.instanceAt(cl.emits)
	}
	for _, w := range cl.wants {
		x.Promised = append(x.Promised, w.step().deployment)
	}
	for _, t := range cl.parts {
		if t.p.key == r.Chain {
			x.Reverse = t.reverse
		}
	}
	r.Counterexample = x
}

func (c *checker) instanceAt(v onpath.VportID) string {
	if i := c.res.byVport[v]; i != nil {
		return keyOf(i)
	}
	return fmt.Sprintf("vport %d", v)
}

func (c *checker) vportName(x *site, v onpath.VportID) onpath.Note {
	if i := c.res.byVport[v]; i != nil {
		return onpath.Note{Text: "instance " + keyOf(i), About: keyOf(i)}
	}
	return onpath.Note{Text: fmt.Sprintf("vport %d", v)}
}

// named is a chain's, deployment's or instance's name ("tenant/name") in a message.
func named(name string) onpath.Note { return onpath.Note{Text: name, About: name} }

// unable is the report of a proof that cannot be made.
func (c *checker) unable(err error) *onpath.Verification {
	for _, r := range c.results {
		if r.Verdict == onpath.VerdictProved {
			r.Verdict, r.Reason = onpath.VerdictUnproven, err.Error()
		}
	}
	c.rest.Verdict, c.rest.Reason = onpath.VerdictUnproven, err.Error()
	return c.report()
}

// badness orders verdicts.
var badness = map[onpath.Verdict]int{onpath.VerdictIdle: 0, onpath.VerdictProved: 1, onpath.VerdictUnproven: 2, onpath.VerdictRefuted: 3}

func (c *checker) report() *onpath.Verification {
	p := &onpath.Verification{Verdict: onpath.VerdictProved, Classes: c.classes, Notes: c.notes, Chains: []onpath.ChainVerification{}}
	worse := func(v onpath.Verdict) {
		if badness[v] > badness[p.Verdict] {
			p.Verdict = v
		}
	}
	for _, o := range c.res.chains {
		r := c.results[keyOf(o)]
		if len(c.in.Chains) > 0 && !slices.Contains(c.in.Chains, r.Chain) {
			continue
		}
		if r.Verdict == onpath.VerdictProved && r.Classes == 0 { // nothing was followed: nothing is proved
			r.Verdict, r.Scope, r.Segments, r.Redirects = onpath.VerdictIdle, "", nil, nil
			r.Reason = "nothing passes it: all that it selects is other chains', or has no place where it enters"
		}
		p.Chains = append(p.Chains, *r)
		worse(r.Verdict)
		p.NoReport = append(p.NoReport, c.noReport[r.Chain]...)
	}
	for _, r := range c.leases() {
		p.Chains = append(p.Chains, r)
		worse(r.Verdict)
	}
	if len(c.in.Chains) == 0 {
		p.Rest = &c.rest
		worse(c.rest.Verdict)
		p.NoReport = append(p.NoReport, c.noReport[""]...)
	}
	slices.Sort(p.NoReport)
	p.NoReport = slices.Compact(p.NoReport)
	return p
}
