package verify

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/onpath/onpath"
)

// promise is what a chain's resources say, in one cloudlet: worked out from the
// resources alone.
type promise struct {
	key       string // tenant/name
	obj       *onpath.Chain
	tier      onpath.Tier
	cloudlet  string
	from, to  end
	steps     []step
	unsettled string // why nothing can be said of it now
	host      string // node of the attached machine that it names, at whose edge its flows enter
	side      string // of its pair that stands here; "": it has none
}

// end is one end of a chain.
type end struct {
	any          bool
	addrs        []netip.Prefix // the end points' own
	dialled      []netip.Prefix // own and virtual: where packets to them may go
	deployment   string         // flows begin at its instances
	unresolvable string
	node         *onpath.Node // whose machine it is
}

// step is an element.
type step struct {
	deployment string
	mirror     bool
	bypass     bool // none: bypass
	together   onpath.Together
	packets    onpath.PacketRights
	redirects  bool             // its function may send packets to later elements
	sel        []onpath.Match   // nil: takes all
	taken      map[bool][]match // sel taken up, by direction
	// into are the vports to which it may be delivered, by direction.
	into map[bool]map[onpath.VportID]bool
	// serves: an instance takes new flows, as far as the resources tell.
	serves bool
}

func (p *promise) forwardOnly() bool { return p.obj.Spec.Direction == onpath.DirectionForward }

func (p *promise) exitLast() bool { return p.obj.Spec.Exit == onpath.ExitLast }

func (p *promise) exitNone() bool { return p.obj.Spec.Exit == onpath.ExitNone }

// resources are the declared objects, looked up.
type resources struct {
	objects   map[onpath.Key]onpath.Object
	chains    []*onpath.Chain
	nodes     []*onpath.Node
	instances map[string][]*onpath.Instance // by tenant/deployment
	byVport   map[onpath.VportID]*onpath.Instance
}

func newResources(objects map[onpath.Key]onpath.Object) *resources {
	r := &resources{objects: objects, instances: map[string][]*onpath.Instance{}, byVport: map[onpath.VportID]*onpath.Instance{}}
	for _, o := range objects {
		switch o := o.(type) {
		case *onpath.Chain:
			r.chains = append(r.chains, o)
		case *onpath.Node:
			r.nodes = append(r.nodes, o)
		case *onpath.Instance:
			k := o.Metadata.Tenant + "/" + o.Spec.Deployment
			r.instances[k] = append(r.instances[k], o)
			r.byVport[o.Spec.Vport] = o
			if o.Spec.Back != 0 {
				r.byVport[o.Spec.Back] = o
			}
		}
	}
	slices.SortFunc(r.chains, func(a, b *onpath.Chain) int { return before(a, b) })
	slices.SortFunc(r.nodes, func(a, b *onpath.Node) int { return cmp.Compare(a.Metadata.Name, b.Metadata.Name) })
	return r
}

// before orders chains by precedence.
func before(a, b *onpath.Chain) int {
	op := func(c *onpath.Chain) int {
		if c.Spec.Tier == onpath.TierOperator {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(op(a), op(b)), cmp.Compare(b.Spec.Priority, a.Spec.Priority),
		cmp.Compare(a.Metadata.Tenant, b.Metadata.Tenant), cmp.Compare(a.Metadata.Name, b.Metadata.Name))
}

func keyOf(o onpath.Object) string { return o.Meta().Tenant + "/" + o.Meta().Name }

// gateways are the nodes of a cloudlet where its traffic is to be steered, and
// those whose uplinks are left alone on purpose.
func (r *resources) gateways(cloudlet string) (used, idle []string) {
	for _, n := range r.nodes {
		if n.Spec.Cloudlet != cloudlet || !n.Gateway() {
			continue
		}
		second := n.Status.Edge == 0 || slices.ContainsFunc(n.Status.Conditions, func(c onpath.Condition) bool {
			return c.Type == "Gateway" && c.Status == onpath.False
		})
		if second {
			idle = append(idle, n.Metadata.Name)
		} else {
			used = append(used, n.Metadata.Name)
		}
	}
	return used, idle
}

// cloudlets are those with nodes, in order.
func (r *resources) cloudlets() []string {
	var out []string
	for _, n := range r.nodes {
		if !slices.Contains(out, n.Spec.Cloudlet) {
			out = append(out, n.Spec.Cloudlet)
		}
	}
	slices.Sort(out)
	return out
}

// standing says whether a chain promises anything in a cloudlet now.
func standing(c *onpath.Chain, cloudlet string) (promises bool, unsettled string) {
	at := c.Spec.At.Cloudlets
	switch {
	case len(at) > 0 && !slices.Contains(at, cloudlet):
		if c.Status.Active {
			return false, "" // it may be leaving: its rules tell
		}
		return false, ""
	case c.Spec.Disabled:
		return false, ""
	case slices.Contains(c.Status.Cloudlets, cloudlet):
		for _, cond := range c.Status.Conditions {
			if cond.Type == "Valid" && cond.Status == onpath.False {
				return true, "it is impossible as it stands (" + cond.Message + "), and traffic is steered as before"
			}
		}
		return true, ""
	case c.Status.Active:
		return true, "it is changing: its traffic goes the way it went before until the new one is ready in cloudlet " + cloudlet
	}
	return false, ""
}

// promises are those of all chains in a cloudlet, in order of precedence.
func (r *resources) promises(cloudlet string) []*promise {
	var out []*promise
	for _, c := range r.chains {
		ok, unsettled := standing(c, cloudlet)
		if !ok {
			continue
		}
		p := &promise{key: keyOf(c), obj: c, tier: cmp.Or(c.Spec.Tier, onpath.TierTenant), cloudlet: cloudlet, unsettled: unsettled,
			side: c.Spec.PairSide(cloudlet)}
		p.from, p.to = r.end(c, c.Spec.From), r.end(c, c.Spec.To)
		for _, e := range []end{p.to, p.from} {
			if e.node != nil && e.node.AttachedHost() {
				p.host = e.node.Metadata.Name
			}
		}
		p.unsettled = cmp.Or(p.unsettled, p.from.unresolvable, p.to.unresolvable)
		for i := range c.Spec.Through {
			s, why := r.step(c, &c.Spec.Through[i], cloudlet)
			p.unsettled = cmp.Or(p.unsettled, why)
			p.steps = append(p.steps, s)
		}
		out = append(out, p)
	}
	return out
}

func (r *resources) end(c *onpath.Chain, e onpath.Endpoints) end {
	switch {
	case e.Any:
		return end{any: true}
	case e.Hosts != "":
		tenant, name := e.Hosts.Resolve(c.Metadata.Tenant)
		h, _ := r.objects[onpath.Key{Kind: onpath.KindHosts, Tenant: tenant, Name: name}].(*onpath.Hosts)
		if h == nil {
			return end{unresolvable: "hosts " + tenant + "/" + name + " do not exist"}
		}
		if h.Spec.Node != "" {
			n, _ := r.objects[onpath.Key{Kind: onpath.KindNode, Name: h.Spec.Node}].(*onpath.Node)
			if n == nil {
				return end{unresolvable: "node " + h.Spec.Node + " of hosts " + tenant + "/" + name + " does not exist"}
			}
			own := ofMachine(n)
			return end{addrs: own, dialled: own, node: n}
		}
		own := bare(h.Spec.Addresses)
		return end{addrs: own, dialled: append(own[:len(own):len(own)], bare(h.Spec.Virtual)...)}
	case e.Deployment != "":
		tenant, name := e.Deployment.Resolve(c.Metadata.Tenant)
		out := end{deployment: tenant + "/" + name}
		for _, i := range r.instances[out.deployment] {
			out.addrs = append(out.addrs, own(i)...)
		}
		out.dialled = out.addrs
		return out
	}
	return end{addrs: bare(e.Prefixes), dialled: bare(e.Prefixes)}
}

// ofMachine are the addresses of a node's machine.
func ofMachine(n *onpath.Node) (out []netip.Prefix) {
	for _, a := range append([]netip.Addr{n.Spec.Underlay.Address}, n.Status.Addresses...) {
		if p := netip.PrefixFrom(a, a.BitLen()); p.IsValid() && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// own are an instance's own addresses.
func own(i *onpath.Instance) (out []netip.Prefix) {
	for _, a := range i.Spec.Addresses {
		out = append(out, netip.PrefixFrom(a.Addr(), a.Addr().BitLen()))
	}
	return out
}

func bare(list []onpath.Prefix) []netip.Prefix {
	out := make([]netip.Prefix, len(list))
	for i, p := range list {
		out[i] = p.Masked()
	}
	return out
}

// step resolves an element in a cloudlet.
func (r *resources) step(c *onpath.Chain, e *onpath.Element, cloudlet string) (step, string) {
	s := step{mirror: e.Mode == onpath.ModeMirror, bypass: e.None == onpath.NoneBypass || e.Mode == onpath.ModeMirror,
		together: cmp.Or(e.Together, onpath.TogetherFlow), into: map[bool]map[onpath.VportID]bool{false: {}, true: {}}}
	function := e.Function
	owner := c.Metadata.Tenant
	if function != "" {
		s.deployment = owner + "/" + onpath.ShortDeployment(c.Metadata.Name, function)
	} else {
		tenant, name := e.Deployment.Resolve(owner)
		s.deployment = tenant + "/" + name
		d, _ := r.objects[onpath.Key{Kind: onpath.KindDeployment, Tenant: tenant, Name: name}].(*onpath.Deployment)
		if d == nil {
			return s, "deployment " + s.deployment + " does not exist"
		}
		function, owner = d.Spec.Function, tenant
	}
	tenant, name := function.Resolve(owner)
	f, _ := r.objects[onpath.Key{Kind: onpath.KindFunction, Tenant: tenant, Name: name}].(*onpath.Function)
	if f == nil {
		return s, "function " + tenant + "/" + name + " does not exist"
	}
	s.packets = cmp.Or(f.Spec.Packets, onpath.PacketsKeep)
	s.redirects = f.Status.Redirects && !s.mirror
	s.sel = matchesOf(e.Selection())
	for _, i := range r.instances[s.deployment] {
		if n, _ := r.objects[onpath.Key{Kind: onpath.KindNode, Name: i.Spec.Node}].(*onpath.Node); n == nil || n.Spec.Cloudlet != cloudlet {
			continue
		}
		s.into[false][i.Spec.Vport] = true
		s.into[true][cmp.Or(i.Spec.Back, i.Spec.Vport)] = true
		weight, given := e.Weights[i.Spec.Node]
		s.serves = s.serves || i.Status.State == onpath.InstanceReady && i.Spec.Draining.IsZero() && (!given || weight > 0)
	}
	return s, ""
}

// matchesOf are selectors as matches, seen forward. None for none; selectors
// that nothing meets are left out, and if nothing is left, the match is of
// nothing.
func matchesOf(list []onpath.Selector) []onpath.Match {
	if len(list) == 0 {
		return nil
	}
	out := []onpath.Match{}
	for _, s := range list {
		m := onpath.Match{Src: bare(s.Sources), Dst: bare(s.Destinations), SrcPorts: s.SourcePorts, DstPorts: s.DestinationPorts}
		switch p := strings.ToLower(string(s.Protocol)); p {
		case "":
		case "tcp":
			m.Protocol = []uint8{6}
		case "udp":
			m.Protocol = []uint8{17}
		case "icmp":
			m.Protocol = []uint8{1, 58}
		default:
			n, err := strconv.Atoi(p)
			if err != nil || n < 0 || n > 255 {
				continue
			}
			m.Protocol = []uint8{uint8(n)}
		}
		out = append(out, m)
	}
	return out
}

// answers are matches as packets of the other direction see them.
func answers(list []onpath.Match) []onpath.Match {
	var out []onpath.Match
	for _, m := range list {
		m.Src, m.Dst, m.SrcPorts, m.DstPorts = m.Dst, m.Src, m.DstPorts, m.SrcPorts
		out = append(out, m)
	}
	return out
}
