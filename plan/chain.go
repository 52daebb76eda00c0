package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/onpath/onpath"
)

// chain is a chain with its references resolved. Its errors are why it is
// impossible; such a chain changes nothing and keeps what it has.
type chain struct {
	obj       *onpath.Chain
	key       name
	tier      onpath.Tier
	from, to  ends
	host      *node // at whose edge its flows enter, where it names a machine
	elements  []element
	cloudlets []string
	errs      onpath.Errors
	unproved  *onpath.Error // what it selects is not the tenant's, or not any more
	shape     string
	active    bool // by its status, with the updates so far
	// forward and reverse select the chain's packets, seen from whoever starts
	// the flow at its from end and at its to end.
	forward, reverse []onpath.Match
	reach, origin    [2]span   // of forward: destinations, sources
	rank             int       // place in the order of precedence
	sends            []sending // once they are counted
	counted          bool
}

type element struct {
	dep  name
	d    *deployment
	mode onpath.Mode
	lost onpath.Lost
	none onpath.None
	// disabled: sel matches nothing, and nothing waits for its instances.
	disabled bool
	sel      []onpath.Selector
	weights  map[string]int
	together onpath.Together
	// weightsFrom are weights by the node that flows come from.
	weightsFrom map[string]map[string]int
}

func (e *element) mirror() bool { return e.mode == onpath.ModeMirror }

// inline reports whether the element is an ebpf function.
func (e *element) inline() bool { return e.d != nil && e.d.inline() }

func (c *chain) priority() int { return c.obj.Spec.Priority }

// sameRank reports whether neither of two chains of one tenant stands before the other.
func (c *chain) sameRank(o *chain) bool {
	return c.tier == o.tier && c.priority() == o.priority() && c.key.tenant == o.key.tenant
}

func (c *chain) fail(code onpath.Code, field, remedy, format string, args ...any) {
	e := onpath.Errorf(code, format, args...)
	e.Object, e.Field, e.Remedy = onpath.KeyOf(c.obj).String(), field, remedy
	c.errs = append(c.errs, e)
}

// addChains resolves all chains and orders them by precedence.
func (w *resolver) addChains() {
	w.chainNamed = map[name]*chain{}
	for _, o := range listed[*onpath.Chain](w.world) {
		if w.ownerless(o) {
			continue
		}
		c := w.newChain(o)
		w.chains = append(w.chains, c)
		w.chainNamed[c.key] = c
	}
	slices.SortStableFunc(w.chains, func(a, b *chain) int {
		if a.tier != b.tier {
			return cmp.Compare(a.tier, b.tier) // operator before tenant
		}
		return cmp.Or(cmp.Compare(b.priority(), a.priority()), a.key.less(b.key))
	})
	for i, c := range w.chains {
		c.rank = i
		for _, n := range slices.Compact(slices.Clone(c.cloudlets)) {
			cl := w.cloudlets[n]
			cl.chains = append(cl.chains, c)
		}
	}
}

// useDeployments has the elements of possible chains run where the chains are.
func (w *resolver) useDeployments() {
	for _, c := range w.chains {
		if len(c.errs) > 0 {
			continue
		}
		for i := range c.elements {
			w.use(c, &c.elements[i])
		}
	}
}

// use has the element's deployment run where the chain is.
func (w *resolver) use(c *chain, e *element) {
	e.d.used = true
	e.d.uses = append(e.d.uses, use{c, e})
	e.d.mirror = e.d.mirror || e.mirror()
	if e.d.owner != nil {
		w.deployments[e.dep] = e.d
	}
	if len(e.d.place.Cloudlets) > 0 && e.d.obj != nil {
		return // addDeployments did
	}
	for _, n := range c.cloudlets {
		e.d.in[n] = true
	}
}

func (w *resolver) newChain(o *onpath.Chain) *chain {
	c := &chain{obj: o, key: nameOf(o), active: o.Status.Active, tier: cmp.Or(o.Spec.Tier, onpath.TierTenant)}
	if c.tier == onpath.TierOperator && c.key.tenant != onpath.OperatorTenant {
		c.fail(onpath.CodeForbidden, "spec.tier", "write tier: tenant", "only tenant %s has chains of tier operator", onpath.OperatorTenant)
	}
	if c.tier == onpath.TierOperator && (o.Spec.Exit == onpath.ExitLast || o.Spec.Exit == onpath.ExitNone) {
		c.fail(onpath.CodeInvalid, "spec.exit", "write exit: entry, or tier: tenant",
			"packets leaving at the last element of an operator's chain would miss the tenants' chains")
	}
	c.from = w.ends(c, "spec.from", o.Spec.From)
	c.to = w.ends(c, "spec.to", o.Spec.To)
	w.resolveElements(c)
	c.checkRuns()
	w.locate(c)
	w.checkHost(c)
	c.checkPair()
	c.withinReserved()
	c.selectTraffic()
	w.checkAddresses(c)
	c.shape = c.shapeOf()
	return c
}

func (w *resolver) ends(c *chain, field string, e onpath.Endpoints) ends {
	switch {
	case e.Hosts != "":
		return w.hostsEnd(c, field+".hosts", resolve(e.Hosts, c.key.tenant))
	case e.Deployment != "":
		return w.deploymentEnd(c, field, resolve(e.Deployment, c.key.tenant))
	case e.Any:
		return ends{any: true}
	}
	return ends{addrs: plain(e.Prefixes)}
}

func (w *resolver) hostsEnd(c *chain, field string, n name) ends {
	h, ok := lookUp[*onpath.Hosts](w.world, onpath.KindHosts, n)
	switch {
	case !ok:
		c.fail(onpath.CodeNotFound, field, "apply it, or correct the name", "there are no hosts %s", n)
		return ends{}
	case n.tenant != c.key.tenant && c.key.tenant != onpath.OperatorTenant:
		c.fail(onpath.CodeForbidden, field, "describe the end points in a Hosts of your own", "hosts %s belong to another tenant", n)
		return ends{}
	case h.Spec.Node == "":
		return ends{addrs: plain(h.Spec.Addresses), virtual: plain(h.Spec.Virtual)}
	}
	node := w.nodes[h.Spec.Node]
	if node == nil {
		c.fail(onpath.CodeNotFound, field, "correct spec.node there, or have the node join", "hosts %s are node %s, which does not exist", n, h.Spec.Node)
		return ends{}
	}
	c.nameHost(node)
	return ends{addrs: node.prefixes()}
}

// addresses are those of the node's machine: what it reports, or has last reported,
// and the one that its object says it has.
func (n *node) addresses() []netip.Addr {
	all := n.obj.Status.Addresses
	if n.st != nil && n.st.Report != nil {
		all = n.st.Report.Addresses
	}
	if a := n.obj.Spec.Underlay.Address; a.IsValid() && !slices.Contains(all, a) {
		all = append(slices.Clone(all), a)
	}
	return all
}

// deploymentEnd resolves an end that is a deployment's instances, by the own
// addresses that they have.
func (w *resolver) deploymentEnd(c *chain, field string, n name) ends {
	if field == "spec.to" {
		c.fail(onpath.CodeUnsupported, field+".deployment", "write hosts or prefixes", "a chain cannot lead to a deployment in this version")
		return ends{}
	}
	d := w.deployments[n]
	switch {
	case d == nil:
		c.fail(onpath.CodeNotFound, field+".deployment", "apply it, or correct the name", "there is no deployment %s", n)
		return ends{}
	case n.tenant != c.key.tenant:
		c.fail(onpath.CodeForbidden, field+".deployment", "name a deployment of the chain's own tenant",
			"deployment %s belongs to another tenant", n)
	case d.function != nil && d.addressing() == onpath.AddressesNone:
		c.fail(onpath.CodeInvalid, field+".deployment", "write addresses: private in its function", "the instances of deployment %s have no address of their own", n)
	}
	e := ends{deployment: n}
	for _, i := range w.declaredInstances(n) {
		e.addrs = append(e.addrs, ownPrefixes(i)...)
	}
	return e
}

// declaredInstances are the objects of a deployment's instances, by name.
func (w *resolver) declaredInstances(dep name) []*onpath.Instance {
	if w.objectsOf == nil {
		w.objectsOf = map[name][]*onpath.Instance{}
		for _, i := range listed[*onpath.Instance](w.world) {
			n := name{i.Metadata.Tenant, i.Spec.Deployment}
			w.objectsOf[n] = append(w.objectsOf[n], i)
		}
	}
	return w.objectsOf[dep]
}

func ownPrefixes(i *onpath.Instance) []netip.Prefix {
	var out []netip.Prefix
	for _, a := range i.Spec.Addresses {
		out = append(out, netip.PrefixFrom(a.Addr(), a.Addr().BitLen()))
	}
	return out
}

// selectTraffic works out the matches and refuses a chain that has none.
func (c *chain) selectTraffic() {
	s := c.obj.Spec.Select
	c.forward = matches(c.from.any, c.from.source(), c.to.any, c.to.destination(), s)
	if c.obj.Spec.Direction != onpath.DirectionForward && c.from.deployment == (name{}) && c.obj.Spec.Exit != onpath.ExitNone {
		c.reverse = matches(c.to.any, c.to.source(), c.from.any, c.from.destination(), reversed(s))
	}
	c.checkDialled()
	if len(c.forward) > 0 || len(c.errs) > 0 || c.from.deployment != (name{}) {
		return
	}
	if families(c.from.addrs)&families(c.to.destination()) == 0 && !c.from.any && !c.to.any {
		c.fail(onpath.CodeInvalid, "spec.to", "write addresses of one IP version on both sides, or of both",
			"spec.from and spec.to have no IP version in common: no packet goes from one to the other")
		return
	}
	c.fail(onpath.CodeInvalid, "spec.select", "write a part of what lies between from and to", "no packet from spec.from to spec.to matches it")
}

// checkDialled refuses a selection of dialled addresses alone where a container
// rewrites them: what comes out of it, and the answers, would be outside of it.
func (c *chain) checkDialled() {
	meets := func(list []netip.Prefix) func(onpath.Match) bool {
		return func(m onpath.Match) bool { _, ok := commonPrefixes(m.Dst, list); return ok }
	}
	rewrites := func(e element) bool {
		return e.d != nil && !e.inline() && !e.mirror() && e.d.spec.Packets == onpath.PacketsRewrite
	}
	if len(c.to.virtual) > 0 && len(c.to.addrs) > 0 && slices.ContainsFunc(c.elements, rewrites) &&
		slices.ContainsFunc(c.forward, meets(c.to.virtual)) && !slices.ContainsFunc(c.forward, meets(c.to.addrs)) {
		c.fail(onpath.CodeInvalid, "spec.select", "leave destinations out, or name the servers' own addresses, too",
			"it selects the addresses that clients dial, and not those to which an element rewrites them: what comes out of it would be dropped")
	}
}

// locate finds the cloudlets.
func (w *resolver) locate(c *chain) {
	at := c.obj.Spec.At.Cloudlets
	if len(at) == 0 && c.host != nil {
		at = []string{c.host.c.name}
	}
	if len(at) == 0 {
		for n, cl := range w.cloudlets {
			if cl.gateway != nil {
				c.cloudlets = append(c.cloudlets, n)
			}
		}
		slices.Sort(c.cloudlets)
		if len(c.cloudlets) == 0 {
			// Nodes may join at any time: this is no fault of the chain.
			return
		}
	}
	for i, n := range at {
		field := fmt.Sprintf("spec.at.cloudlets[%d]", i)
		if w.cloudlets[n] == nil {
			c.fail(onpath.CodeNotFound, field, "apply it, or correct the name", "there is no cloudlet %s", n)
			continue
		}
		c.cloudlets = append(c.cloudlets, n)
	}
	slices.Sort(c.cloudlets)
	for _, n := range c.cloudlets {
		w.checkUplinks(c, w.cloudlets[n])
	}
	w.checkPlaces(c)
}

func (w *resolver) checkUplinks(c *chain, cl *cloudlet) {
	for _, g := range cl.activeGateways {
		checkUplinksOf(c, g)
	}
}

func checkUplinksOf(c *chain, g *node) {
	copies := !slices.ContainsFunc(g.obj.Spec.Uplinks, func(u onpath.Uplink) bool { return u.Attach != onpath.AttachTap })
	for i, e := range c.elements {
		if copies && !e.mirror() {
			c.fail(onpath.CodeInvalid, fmt.Sprintf("spec.through[%d].mode", i), "write mode: mirror, or attach the uplink in another way",
				"gateway %s of cloudlet %s only taps its uplinks: it sees copies, and nothing goes back", g.name, g.c.name)
		}
	}
}

// parts reports whether what stands before an element and what stands behind it are
// never of one flow entry: packets always stop there.
func (e *element) parts() bool {
	return !e.mirror() && !e.inline() && e.none != onpath.NoneBypass && len(e.sel) == 0
}

// checkRuns refuses more ebpf functions in a row, and more mirrors, than one flow
// entry names. Mirrors and ebpf functions do not part each other's rows.
func (c *chain) checkRuns() {
	run, mirrors := 0, 0
	for i := range c.elements {
		e := &c.elements[i]
		switch {
		case e.mirror():
			mirrors++
		case e.inline():
			run++
		case e.parts():
			run, mirrors = 0, 0
		}
		if mirrors > onpath.MaxMirrors {
			c.fail(onpath.CodeUnsupported, fmt.Sprintf("spec.through[%d]", i), "put a container that takes all the chain's traffic, without none: bypass, between them, or leave some out",
				"the chain has more than %d mirrors in a row", onpath.MaxMirrors)
			return
		}
		if run > onpath.MaxInline {
			c.fail(onpath.CodeUnsupported, fmt.Sprintf("spec.through[%d]", i), "join some of them into one, or leave some out",
				"the chain has more than %d ebpf functions in a row", onpath.MaxInline)
			return
		}
	}
}

// checkPlaces refuses a deployment that is kept out of one of the chain's
// cloudlets: each does the whole chain by itself.
func (w *resolver) checkPlaces(c *chain) {
	for i, e := range c.elements {
		if e.d == nil || len(e.d.place.Cloudlets) == 0 {
			continue
		}
		for _, n := range c.cloudlets {
			if !slices.Contains(e.d.place.Cloudlets, n) {
				c.fail(onpath.CodeInvalid, fmt.Sprintf("spec.through[%d]", i), "write at: {cloudlets: […]} in the chain, or add the cloudlet to the deployment's place",
					"deployment %s does not run in cloudlet %s, where the chain is", e.dep, n)
				break
			}
		}
	}
}

// shapeOf is a hash of what a path stands for: what must change at all elements
// at once. Weights, lost, none and the selection of traffic are not in it.
func (c *chain) shapeOf() string {
	type step struct {
		Deployment string
		Mode       onpath.Mode
		Select     []onpath.Selector
	}
	var steps []step
	for _, e := range c.elements {
		steps = append(steps, step{e.dep.String(), e.mode, e.sel})
	}
	return hash(struct {
		Tier      onpath.Tier
		Direction bool
		Steps     []step
		Pair      []string `json:",omitempty"`
	}{c.tier, c.obj.Spec.Direction == onpath.DirectionForward, steps, c.pairSides()})
}
