package plan

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

var (
	virtual = netip.MustParseAddr("203.0.113.10")
	own     = netip.MustParseAddr("198.51.100.10")
	own6    = netip.MustParseAddr("2001:db8::10")
)

// seeds are those of a random test: a few, ONPATH_SEEDS many, or the one in ONPATH_SEED.
func seeds(t *testing.T, n int) []uint64 {
	if s := os.Getenv("ONPATH_SEED"); s != "" {
		v, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return []uint64{v}
	}
	if testing.Short() {
		n = min(n, 10)
	}
	if many, err := strconv.Atoi(os.Getenv("ONPATH_SEEDS")); err == nil {
		n = many
	}
	base := uint64(time.Now().UnixNano())
	var out []uint64
	for i := range n {
		out = append(out, base+uint64(i))
	}
	return out
}

// TestRandomChains: in random worlds under random changes every packet crosses
// the elements that its chains say, in order, in both directions and through
// the same instances; and no plan is ever ahead of what it points at.
func TestRandomChains(t *testing.T) {
	for _, seed := range seeds(t, 8) {
		ok := t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			s := newSim(t, seed)
			s.randomSite()
			s.randomPair()
			s.randomObjects()
			s.settle()
			for range 6 {
				s.walkFlows(t, 60)
				s.proveAll(t)
				s.randomChange()
				s.settle()
				if s.rng.IntN(2) == 0 {
					s.pass(time.Duration(1+s.rng.IntN(40)) * time.Second)
				}
			}
			s.broken = map[string]bool{}
			s.pass(70 * time.Second)
			s.walkFlows(t, 60)
			s.empty(t)
		})
		if !ok {
			t.Fatalf("repeat with ONPATH_SEED=%d", seed)
		}
	}
}

func (s *sim) randomSite() {
	for i := range 4 {
		s.hostless[fmt.Sprintf("fra1-n%d", i+1)] = s.rng.IntN(4) == 0
	}
	s.site("fra1", 1, s.rng.IntN(5))
	if s.rng.IntN(3) == 0 {
		s.site("ams1", 2, 1+s.rng.IntN(2))
	}
}

// randomPair gives half of the worlds a second gateway.
func (s *sim) randomPair() {
	if s.rng.IntN(2) == 0 {
		s.apply(aNode("fra1-gw2", "fra1", 110, true))
		s.connect("fra1-gw2")
	}
}

func (s *sim) randomObjects() {
	h, _ := onpath.New(onpath.KindHosts)
	h.Meta().Name, h.Meta().Tenant = "website", "default"
	h.(*onpath.Hosts).Spec = onpath.HostsSpec{Addresses: prefixes(own.String(), own6.String()), Virtual: prefixes(virtual.String())}
	s.apply(h)
	s.apply(
		aFunction("default", "keep", nil),
		aFunction("default", "dnat", func(f *onpath.FunctionSpec) { f.Packets = onpath.PacketsRewrite }),
		aFunction("default", "bump", func(f *onpath.FunctionSpec) {
			f.Container.Attach, f.Container.Addresses = onpath.Bridged, onpath.AddressesNone
		}),
		aFunction("default", "ids", func(f *onpath.FunctionSpec) { f.Container.Image = "registry.example/ids:1" }),
		aFunction("default", "fn", func(f *onpath.FunctionSpec) { f.Container, f.EBPF = nil, &onpath.EBPFSpec{Object: "monitor"} }),
		aRedirecting("default", "jump"),
		aFunction("operator", "op", nil),
		aFunction("operator", "opids", nil),
	)
	for _, d := range []string{"keep", "dnat", "bump", "fn", "jump"} {
		for i := range 2 {
			s.apply(aDeployment("default", fmt.Sprintf("%s%d", d, i), d, 1+s.rng.IntN(3)))
		}
	}
	s.apply(aDeployment("default", "ids0", "ids", 1))
	for i := range 1 + s.rng.IntN(4) {
		s.try(s.randomChain(fmt.Sprintf("c%d", i)))
	}
	if s.rng.IntN(2) == 0 {
		s.try(s.randomOperatorChain())
	}
}

func (s *sim) randomOperatorChain() *onpath.Chain {
	c := aChain("operator", "guard", through("op", 1+s.rng.IntN(2)))
	c.Spec.Tier = onpath.TierOperator
	c.Spec.To = onpath.Endpoints{Any: true}
	if s.rng.IntN(2) == 0 {
		c.Spec.Select = []onpath.Selector{{Protocol: "tcp"}}
	}
	if s.rng.IntN(3) == 0 {
		e := through("opids", 1)
		e.Mode = onpath.ModeMirror
		c.Spec.Through = slices.Insert(c.Spec.Through, s.rng.IntN(2), e)
	}
	return c
}

func (s *sim) randomChain(name string) *onpath.Chain {
	c := aChain("default", name)
	c.Spec.Priority = s.rng.IntN(3)
	c.Spec.From = []onpath.Endpoints{{Any: true}, {Prefixes: prefixes("10.1.0.0/16")}, {Prefixes: prefixes("10.2.0.0/16", "2001:db8:2::/48")}}[s.rng.IntN(3)]
	c.Spec.To = []onpath.Endpoints{{Hosts: "website"}, {Prefixes: prefixes("198.51.100.20")}, {Any: true}}[s.rng.IntN(3)]
	if s.rng.IntN(2) == 0 {
		c.Spec.Select = []onpath.Selector{s.randomSelector()}
	}
	c.Spec.Through = s.randomElements()
	if s.rng.IntN(3) == 0 {
		c.Spec.Distribution = onpath.DistributionNetwork
	}
	switch s.rng.IntN(8) {
	case 0:
		c.Spec.Direction = onpath.DirectionForward
	case 1:
		c.Spec.Exit, c.Spec.Distribution = onpath.ExitLast, ""
		for i := range c.Spec.Through {
			c.Spec.Through[i].WeightsFrom = nil
		}
	}
	return c
}

func (s *sim) randomSelector() onpath.Selector {
	return []onpath.Selector{
		{Protocol: "tcp", DestinationPorts: []onpath.PortRange{{First: 80, Last: 80}, {First: 8000, Last: 8999}}},
		{Protocol: "udp"},
		{DestinationPorts: []onpath.PortRange{{First: 53, Last: 443}}},
		{Protocol: "icmp"},
	}[s.rng.IntN(4)]
}

func (s *sim) randomElements() []onpath.Element {
	deps := []string{"keep0", "keep1", "dnat0", "dnat1", "bump0", "bump1", "fn0", "fn1", "jump0", "ids0"}
	s.rng.Shuffle(len(deps), func(i, j int) { deps[i], deps[j] = deps[j], deps[i] })
	var out []onpath.Element
	for _, d := range deps[:1+s.rng.IntN(4)] {
		e := onpath.Element{Deployment: onpath.Ref(d)}
		if d == "ids0" {
			e.Mode = onpath.ModeMirror
		}
		if s.rng.IntN(3) == 0 {
			e.Select = []onpath.Selector{s.randomSelector()}
		}
		e.Disabled = s.rng.IntN(8) == 0
		if e.Mode != onpath.ModeMirror && s.rng.IntN(4) == 0 {
			e.None = onpath.NoneBypass
		}
		if e.Mode != onpath.ModeMirror && s.rng.IntN(3) == 0 {
			e.WeightsFrom = s.randomMatrix()
		}
		out = append(out, e)
	}
	if s.rng.IntN(3) == 0 {
		e := through("keep", 1+s.rng.IntN(2))
		out = append(out, e)
	}
	return out
}

// randomMatrix has rows for some nodes, and in these weights for some.
func (s *sim) randomMatrix() map[string]map[string]int {
	nodes := []string{"fra1-gw", "fra1-n1", "fra1-n2", "fra1-n3", "ams1-n1", "nowhere"}
	out := map[string]map[string]int{}
	for _, from := range nodes {
		if s.rng.IntN(2) == 0 {
			continue
		}
		out[from] = map[string]int{}
		for _, to := range nodes {
			if s.rng.IntN(2) == 0 {
				out[from][to] = 1 + s.rng.IntN(onpath.MaxWeight)
			}
		}
	}
	return out
}

func (s *sim) randomChange() {
	chains := objects[*onpath.Chain](s.snapshot())
	var c *onpath.Chain
	if len(chains) > 0 {
		c = onpath.Clone(chains[s.rng.IntN(len(chains))])
	}
	switch n := s.rng.IntN(12); {
	case n == 0:
		d := []string{"keep", "dnat", "bump"}[s.rng.IntN(3)]
		s.try(aDeployment("default", fmt.Sprintf("%s%d", d, s.rng.IntN(2)), d, s.rng.IntN(4)))
	case n == 1:
		nodes := objects[*onpath.Node](s.snapshot())
		o := onpath.Clone(nodes[s.rng.IntN(len(nodes))])
		o.Spec.Drain = !o.Spec.Drain && !o.Gateway()
		s.try(o)
	case n == 2:
		s.try(aFunction("default", "keep", func(f *onpath.FunctionSpec) { f.Container.Env = onpath.Env{"N": fmt.Sprint(s.rng.IntN(1000))} }))
	case n == 3 && c != nil && c.Metadata.Tenant == "default":
		c.Spec.Through = s.randomElements()
		if c.Spec.Exit == onpath.ExitLast {
			for i := range c.Spec.Through {
				c.Spec.Through[i].WeightsFrom = nil
			}
		}
		s.try(c)
	case n == 4 && c != nil:
		c.Spec.Disabled = !c.Spec.Disabled
		s.try(c)
	case n == 5 && c != nil:
		s.remove(onpath.KindChain, c.Metadata.Tenant, c.Metadata.Name)
	case n == 6:
		s.try(s.randomChain(fmt.Sprintf("c%d", s.rng.IntN(5))))
	case n == 7:
		s.try(s.randomOperatorChain())
	case n == 9:
		for _, o := range objects[*onpath.Node](s.snapshot()) {
			if !o.Gateway() && s.rng.IntN(3) == 0 {
				s.remove(onpath.KindNode, "", o.Metadata.Name)
			}
		}
	case n == 10:
		name := []string{"fra1-gw", "fra1-gw2", "fra1-n9"}[s.rng.IntN(3)]
		if s.states["fra1-n9"] == nil {
			name = "fra1-n9"
		}
		s.apply(aNode(name, "fra1", 900+len(name), name != "fra1-n9" && s.rng.IntN(2) == 0))
		s.connect(name)
	case n == 11:
		node := fmt.Sprintf("fra1-n%d", 1+s.rng.IntN(4))
		s.hostless[node] = !s.hostless[node]
		s.hear()
	case n == 8:
		s.broken[fmt.Sprintf("keep%d", s.rng.IntN(2))] = s.rng.IntN(2) == 0
		s.hear()
	}
}

// try applies an object if it is possible, as the API would.
func (s *sim) try(o onpath.Object) {
	s.t.Helper()
	before, after := s.snapshot(), s.snapshot()
	after.Objects = maps.Clone(s.objects)
	k := onpath.KeyOf(o)
	after.Objects[k] = o
	if err := o.Validate(); err != nil {
		s.t.Fatal(err)
	}
	if CheckChange(before, after, []onpath.Key{k}) == nil {
		s.apply(o)
	}
}

// walkFlows sends random packets and their answers, and compares with what the
// chains say.
func (s *sim) walkFlows(t *testing.T, n int) {
	t.Helper()
	m := newModel(s)
	m.change = natted()
	w := newWorld(s.snapshot())
	for range n {
		tu := s.randomTuple()
		for _, st := range s.states {
			if e := st.Acked.Datapath.Edge; e != nil {
				s.walkOne(t, w, m, e.Vport, st.Acked.Node, tu)
			}
		}
	}
}

// natted is what stateful destination NAT does at the instances called dnat.
func natted() func(string, onpath.Tuple) onpath.Tuple {
	type at struct {
		instance string
		tuple    onpath.Tuple
	}
	known := map[at]onpath.Tuple{}
	return func(i string, t onpath.Tuple) onpath.Tuple {
		if !strings.Contains(i, "/dnat") {
			return t
		}
		if out, ok := known[at{i, t}]; ok {
			return out
		}
		out := t
		if t.Dst == virtual {
			out.Dst = own
		}
		known[at{i, t}], known[at{i, out.Reverse()}] = out, t.Reverse()
		return out
	}
}

func (s *sim) walkOne(t *testing.T, w *world, m *model, edge onpath.VportID, gw string, tu onpath.Tuple) {
	t.Helper()
	if _, used := m.entries[place{edge, tu}]; used {
		return
	}
	if why := cmp.Or(w.wrong(m, edge, gw, tu), w.apart(m, edge, tu)); why != "" {
		t.Fatalf("%s%s", why, s.dump())
	}
}

// wrong walks a flow and its answer; it says where they differ from what the
// chains say.
func (w *world) wrong(m *model, edge onpath.VportID, gw string, tu onpath.Tuple) string {
	cloudlet, _, _ := strings.Cut(gw, "-")
	if slices.ContainsFunc(w.chains, func(c *chain) bool {
		return c.obj.Status.Active && slices.Contains(c.cloudlets, cloudlet) && !slices.Contains(c.obj.Status.Cloudlets, cloudlet)
	}) {
		return "" // a path still steers that the chain's text does not show any more
	}
	x := w.expect(cloudlet, tu)
	want, mirrors := x.inline, x.mirrors
	got := m.send(edge, tu)
	where := fmt.Sprintf("%v at %s", tu, gw)
	if x.drop {
		if !strings.HasPrefix(got.end, "drop: no-instance") {
			return fmt.Sprintf("%s: went through %v to %q, want a drop", where, got.through, got.end)
		}
		return ""
	}
	if fmt.Sprint(deployments(got.through)) != fmt.Sprint(want) || fmt.Sprint(deployments(got.mirrors)) != fmt.Sprint(mirrors) {
		return fmt.Sprintf("%s: went through %v (mirrors %v) to %q, want %v (mirrors %v)", where, got.through, got.mirrors, got.end, want, mirrors)
	}
	if got.end == "route" && x.routes {
		return "" // nobody leads its answers back
	}
	if len(want) == 0 {
		if got.end != "kernel" && !(len(mirrors) > 0 && got.end == "kernel") {
			return fmt.Sprintf("%s: ended as %q, want kernel", where, got.end)
		}
		if answer := m.send(edge, tu.Reverse()); len(mirrors) > 0 && !x.oneWay && !copied(answer, x.answered) {
			return fmt.Sprintf("%s: mirrors of its answer are %v, want %v", where, answer.mirrors, x.answered)
		}
		return ""
	}
	if x.oneWay {
		return ""
	}
	// What an instance has rewritten may leave at the other gateway of a pair.
	if got.end != "exit" || got.at != edge && (got.at != m.peers[edge] || got.out == tu) {
		return fmt.Sprintf("%s (edge %d): ended as %q at %d, through %v", where, edge, got.end, got.at, got.through)
	}
	answer := m.send(edge, got.out.Reverse())
	slices.Reverse(answer.through)
	if answer.end != "exit" || fmt.Sprint(answer.through) != fmt.Sprint(got.through) || answer.out != tu.Reverse() {
		return fmt.Sprintf("%s: the answer went through %v to %q as %v, the packet through %v", where, answer.through, answer.end, answer.out, got.through)
	}
	if !copied(answer, x.answered) {
		return fmt.Sprintf("%s: mirrors of its answer are %v, want %v", where, answer.mirrors, x.answered)
	}
	return w.wrongTogether(m, edge, tu, got, where)
}

// copied reports whether an answer met the mirrors that its packet met.
func copied(answer way, mirrors []string) bool {
	met := deployments(answer.mirrors)
	slices.Reverse(met)
	return fmt.Sprint(met) == fmt.Sprint(mirrors)
}

// wrongTogether has the flow's packets and answers come in at the other gateway of a
// pair: they cross the same instances.
func (w *world) wrongTogether(m *model, edge onpath.VportID, tu onpath.Tuple, got way, where string) string {
	other := m.peers[edge]
	if other == 0 || m.home[other] == nil || m.home[other].plan.Datapath.Edge.Table == 0 {
		return ""
	}
	where += " and the other gateway"
	answer := m.send(other, got.out.Reverse())
	slices.Reverse(answer.through)
	if answer.end != "exit" || answer.at != edge && answer.at != other || fmt.Sprint(answer.through) != fmt.Sprint(got.through) || answer.out != tu.Reverse() {
		return fmt.Sprintf("%s: the answer went through %v to %q as %v, the packet through %v", where, answer.through, answer.end, answer.out, got.through)
	}
	if same := m.send(other, tu); same.end != "exit" || fmt.Sprint(same.through) != fmt.Sprint(got.through) {
		return fmt.Sprintf("%s: told of it, it sends the packet through %v to %q, before it went through %v", where, same.through, same.end, got.through)
	}
	return ""
}

// apart says where the gateways of a pair, told nothing, send a flow two ways.
func (w *world) apart(m *model, edge onpath.VportID, tu onpath.Tuple) string {
	other := m.peers[edge]
	if other == 0 || m.home[other] == nil || m.home[other].plan.Datapath.Edge.Table == 0 {
		return ""
	}
	if cloudlet, _, _ := strings.Cut(m.home[edge].plan.Node, "-"); w.expect(cloudlet, tu).oneWay {
		return "" // its answers are other flows
	}
	got, alone := m.untold().send(edge, tu), m.untold().send(other, tu)
	if got.end != alone.end || fmt.Sprint(got.through) != fmt.Sprint(alone.through) {
		return fmt.Sprintf("%v: told nothing, gateway %d sends it through %v to %q, gateway %d through %v to %q", tu, edge, got.through, got.end, other, alone.through, alone.end)
	}
	return ""
}

// untold is the same network before any packet.
func (m *model) untold() *model {
	u := emptyModel()
	u.home, u.peers, u.change = m.home, m.peers, m.change
	return u
}

func (s *sim) randomTuple() onpath.Tuple {
	pick := func(l ...string) netip.Addr { return netip.MustParseAddr(l[s.rng.IntN(len(l))]) }
	t := onpath.Tuple{Protocol: []uint8{6, 17, 1}[s.rng.IntN(3)]}
	t.Src, t.Dst = pick("10.1.0.5", "10.2.0.5", "10.3.0.5"), pick("198.51.100.10", "198.51.100.20", "203.0.113.10", "192.0.2.1")
	if s.rng.IntN(4) == 0 {
		t.Src, t.Dst = pick("2001:db8:2::5", "2001:db8:3::5"), pick("2001:db8::10", "2001:db8::20")
		if t.Protocol == 1 {
			t.Protocol = 58
		}
	}
	t.SrcPort = uint16(1024 + s.rng.IntN(60000))
	t.DstPort = []uint16{80, 8080, 443, 53, 9999}[s.rng.IntN(5)]
	if s.rng.IntN(4) == 0 && t.Dst != virtual {
		t = t.Reverse() // the other end starts the flow
	}
	return t
}

// expectation is what the chains say of a flow.
type expectation struct {
	inline, mirrors []string // deployments that it crosses
	// answered are the mirrors that its answers meet, in the order of the packets:
	// all but those between the operator's last element and a tenant's first.
	answered []string
	trailing int // mirrors behind the last inline element
	drop     bool
	routes   bool // it may leave by the routes of its last element's node
	oneWay   bool // a chain steers no answers
}

// expect says, from the chains alone, which deployments a flow crosses.
func (w *world) expect(cloudlet string, t onpath.Tuple) (x expectation) {
	for _, tier := range []onpath.Tier{onpath.TierOperator, onpath.TierTenant} {
		c, reverse := w.winner(cloudlet, tier, t)
		if c == nil {
			continue
		}
		seen := t
		if reverse {
			seen = t.Reverse()
		}
		elements := slices.Clone(c.elements)
		if reverse {
			slices.Reverse(elements)
		}
		x.oneWay = x.oneWay || c.obj.Spec.Direction == onpath.DirectionForward
		x.routes = c.obj.Spec.Exit == onpath.ExitLast && !reverse
		between := 0
		if tier == onpath.TierTenant {
			between = x.trailing
		}
		first := len(x.inline)
		for _, e := range elements {
			if len(e.sel) > 0 && !selects(e.sel, seen) {
				continue
			}
			ready := w.serving(cloudlet, e.dep)
			switch {
			case e.mirror() && ready:
				x.mirrors, x.answered = append(x.mirrors, e.dep.name), append(x.answered, e.dep.name)
				x.trailing++
			case e.mirror():
			case ready:
				if len(x.inline) == first {
					at := len(x.answered) - x.trailing
					x.answered = slices.Delete(x.answered, at, at+between)
				}
				x.inline, x.trailing = append(x.inline, e.dep.name), 0
			case e.none == onpath.NoneDrop:
				return expectation{drop: true}
			}
		}
	}
	return x
}

// serving reports whether an instance takes new flows of a chain that steers: none
// that drains does.
func (w *world) serving(cloudlet string, dep name) bool {
	for _, i := range w.instances {
		if i.dep == dep && i.ready() && !i.draining() && i.node.c.name == cloudlet {
			return true
		}
	}
	return false
}

func (w *world) winner(cloudlet string, tier onpath.Tier, t onpath.Tuple) (*chain, bool) {
	var best *chain
	reverse := false
	for _, c := range w.chains {
		if c.tier != tier || !slices.Contains(c.obj.Status.Cloudlets, cloudlet) || len(c.errs) > 0 {
			continue
		}
		f := slices.ContainsFunc(c.forward, func(m onpath.Match) bool { return matchesTuple(m, t) })
		r := slices.ContainsFunc(c.reverse, func(m onpath.Match) bool { return matchesTuple(m, t) })
		if !f && !r {
			continue
		}
		if best == nil || c.priority() > best.priority() || c.priority() == best.priority() && reverse && f {
			best, reverse = c, !f
		}
	}
	return best, reverse
}

func selects(list []onpath.Selector, t onpath.Tuple) bool {
	return slices.ContainsFunc(list, func(sel onpath.Selector) bool {
		m, ok := matchOf(sel)
		return ok && matchesTuple(m, t)
	})
}

// deployments strips instances' names.
func deployments(list []string) []string {
	var out []string
	for _, i := range list {
		_, n, _ := strings.Cut(i, "/")
		out = append(out, n[:len(n)-6])
	}
	return out
}

// empty deletes all chains and deployments; nothing must be left.
func (s *sim) empty(t *testing.T) {
	t.Helper()
	for k := range s.objects {
		if k.Kind == onpath.KindChain || k.Kind == onpath.KindDeployment {
			delete(s.objects, k)
		}
	}
	s.settle()
	s.pass(75 * time.Second)
	if l := s.instances(""); len(l) > 0 {
		t.Errorf("%d instances are left, the first %+v", len(l), *l[0])
	}
	for n, st := range s.states {
		d := st.Acked.Datapath
		if len(d.Groups)+len(d.Paths)+len(st.Acked.Instances) > 0 {
			t.Errorf("%s still has %d groups, %d paths, %d instances", n, len(d.Groups), len(d.Paths), len(st.Acked.Instances))
		}
	}
}

// dump shows what matters of the world.
func (s *sim) dump() string {
	var b strings.Builder
	for _, c := range newWorld(s.snapshot()).chains {
		fmt.Fprintf(&b, "\n%s prio %d path %d active %v at %v err %v from %+v to %+v select %+v", c.key, c.priority(), c.obj.Status.Path, c.obj.Status.Active, c.obj.Status.Cloudlets, c.errs, c.obj.Spec.From, c.obj.Spec.To, c.obj.Spec.Select)
		for _, e := range c.elements {
			fmt.Fprintf(&b, "\n   %s %s %+v", e.dep, e.mode, e.sel)
		}
	}
	for _, i := range s.instances("") {
		fmt.Fprintf(&b, "\n%s on %s vport %d %d %s draining %v", i.Metadata.Name, i.Spec.Node, i.Spec.Vport, i.Spec.Back, i.Status.State, !i.Spec.Draining.IsZero())
	}
	return b.String()
}
