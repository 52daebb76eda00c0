package plan

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/verify"
)

// pairSim has a pair at c1 and c2, in this order, with n instances at each.
func pairSim(t *testing.T, n int, change func(*onpath.Chain)) *sim {
	t.Helper()
	s := newSim(t, 11)
	s.site("c1", 1, 2)
	s.site("c2", 2, 2)
	e := through("crypt", n)
	e.Pair = true
	c := aChain("default", "line", e)
	c.Spec.From = onpath.Endpoints{Prefixes: prefixes("192.0.2.0/24")}
	c.Spec.At.Cloudlets = []string{"c2", "c1"} // not in the order of their names
	if change != nil {
		change(c)
	}
	s.apply(aFunction("default", "crypt", func(f *onpath.FunctionSpec) {
		f.Packets, f.Overhead = onpath.PacketsOriginate, 80
	}), c)
	s.settle()
	return s
}

// planOf is what a node was told of its instance of a deployment that does not drain.
func (s *sim) planOf(i *onpath.Instance) *onpath.InstancePlan {
	s.t.Helper()
	p := indexOf(s.states[i.Spec.Node].Acked).instance(i.Metadata.UID)
	if p == nil {
		s.t.Fatalf("node %s has no instance %s", i.Spec.Node, i.Metadata.Name)
	}
	return p
}

// halves are the instances of a deployment that do not drain, by side and number.
func (s *sim) halves(dep string) map[string]map[int]*onpath.Instance {
	s.t.Helper()
	out := map[string]map[int]*onpath.Instance{onpath.PairA: {}, onpath.PairB: {}}
	for _, i := range s.instances(dep) {
		if i.Spec.Pair == nil || !i.Spec.Draining.IsZero() {
			continue
		}
		if out[i.Spec.Pair.Side][i.Spec.Pair.Number] != nil {
			s.t.Fatalf("two instances are side %s of pair %d", i.Spec.Pair.Side, i.Spec.Pair.Number)
		}
		out[i.Spec.Pair.Side][i.Spec.Pair.Number] = i
	}
	return out
}

// TestPairKnowsItsPartner: each instance is told of the other, by one secret that no other
// pair has, and of the MTU that is left.
func TestPairKnowsItsPartner(t *testing.T) {
	s := pairSim(t, 2, nil)
	h := s.halves("line-crypt")
	if len(h[onpath.PairA]) != 2 || len(h[onpath.PairB]) != 2 {
		t.Fatalf("pairs are %v", h)
	}
	secrets := map[string]bool{}
	for n, a := range h[onpath.PairA] {
		b := h[onpath.PairB][n]
		if !strings.HasPrefix(a.Spec.Node, "c2-") || b == nil || !strings.HasPrefix(b.Spec.Node, "c1-") {
			t.Fatalf("pair %d is %+v and %+v", n, a, b)
		}
		pa, pb := s.planOf(a).Pair, s.planOf(b).Pair
		if pa.Secret != pb.Secret || len(pa.Secret) != 64 || secrets[pa.Secret] || pa.Link != pb.Link {
			t.Errorf("pair %d: %+v and %+v", n, pa, pb)
		}
		secrets[pa.Secret] = true
		if pa.Local != pb.Remote || pa.Remote != pb.Local || pa.MTU != 1450 {
			t.Errorf("pair %d: %+v and %+v", n, pa, pb)
		}
		for k, x := range a.Spec.Addresses {
			if pb.Addresses[k] != x.Addr() {
				t.Errorf("pair %d: the partner of %v is told %v", n, a.Spec.Addresses, pb.Addresses)
			}
		}
	}
	for _, gw := range []string{"c1-gw", "c2-gw"} {
		if p := indexOf(s.states[gw].Acked).path(s.chain("default", "line").Status.Path); p == nil || p.MTU != 1370 || p.Adopt != 0 {
			t.Errorf("at %s the path is %+v", gw, p)
		}
	}
	if c := s.chain("default", "line"); !c.Status.Active || len(c.Status.Cloudlets) != 2 {
		t.Errorf("the chain is %+v", c.Status)
	}
}

// TestPairHalvesTakeOppositeDirections: each gateway lets into the pair what enters at its
// end, drops the rest of the chain's traffic, and what a half sends on as it came.
func TestPairHalvesTakeOppositeDirections(t *testing.T) {
	for _, none := range []onpath.None{onpath.NoneDrop, onpath.NoneBypass} {
		s := pairSim(t, 1, func(c *onpath.Chain) { c.Spec.Through[0].None = none })
		id := s.chain("default", "line").Status.Path
		for gw, front := range map[string]bool{"c2-gw": true, "c1-gw": false} {
			x := indexOf(s.states[gw].Acked)
			has := x.of(id)
			in, other := has.forward, has.reverse
			if !front {
				in, other = other, in
			}
			if len(in) != 1 || in[0].Action.Kind != onpath.ActionGroup || in[0].Reverse == front {
				t.Errorf("%s, none: %s: into the pair go %+v", gw, none, in)
			}
			if none == onpath.NoneDrop && (len(other) != 1 || other[0].Action.Kind != onpath.ActionDrop) || none == onpath.NoneBypass && len(other) > 0 {
				t.Errorf("%s, none: %s: the other way go %+v", gw, none, other)
			}
			kind := map[onpath.None]onpath.ActionKind{onpath.NoneDrop: onpath.ActionDrop, onpath.NoneBypass: onpath.ActionExit}[none]
			if into, out := x.tables[onpath.TableOf(id, 0, !front)], x.tables[onpath.TableOf(id, 0, front)]; into.Miss.Kind != kind || out.Miss.Kind != onpath.ActionExit {
				t.Errorf("%s, none: %s: behind the half %+v, and %+v", gw, none, into.Miss, out.Miss)
			}
		}
		for side, list := range s.halves("line-crypt") {
			i := list[1]
			x := indexOf(s.states[i.Spec.Node].Acked)
			e := x.tables[onpath.EmitTableOf(i.Spec.Vport)]
			if e == nil || len(e.Rules) == 0 || slices.ContainsFunc(e.Rules, func(r onpath.Rule) bool { return r.Reverse != (side == onpath.PairA) }) {
				t.Errorf("side %s may send %+v", side, e)
			}
		}
	}
}

// TestPairServesTogether: with one half down, both gateways hold both closed, also against
// what the other half's own node knows.
func TestPairServesTogether(t *testing.T) {
	s := pairSim(t, 1, nil)
	h := s.halves("line-crypt")
	a, b := h[onpath.PairA][1], h[onpath.PairB][1]
	s.broken["line-crypt"], s.spared[b.Metadata.Name] = true, true
	s.hear()
	s.settle()
	for _, i := range []*onpath.Instance{a, b} {
		p := s.states[i.Spec.Node].Acked
		v := indexOf(p).vports[i.Spec.Vport]
		c, _ := onpath.Effective(p, &onpath.LocalState{Vports: map[onpath.VportID]onpath.LocalVport{i.Spec.Vport: {Wired: true, Open: i == b}}})
		k := slices.IndexFunc(c.Vports, func(v onpath.Vport) bool { return v.ID == i.Spec.Vport })
		if v.State != onpath.VportClosed || c.Vports[k].State != onpath.VportClosed {
			t.Errorf("%s is %s by the plan and %s at its node", i.Metadata.Name, v.State, c.Vports[k].State)
		}
	}
	o := s.objects[onpath.KeyOf(b)].(*onpath.Instance)
	if o.Status.State != onpath.InstanceUnready || o.Status.Reason != onpath.ReasonPartner || !strings.Contains(o.Status.Message, a.Metadata.Name) {
		t.Errorf("the other half is %+v", o.Status)
	}
	if c := s.chain("default", "line"); c.Status.Elements[0].Ready != 0 {
		t.Errorf("ready are %+v", c.Status.Elements)
	}
	s.broken["line-crypt"] = false
	s.hear()
	s.settle()
	if c := s.chain("default", "line"); c.Status.Elements[0].Ready != 2 {
		t.Errorf("ready again are %+v", c.Status.Elements)
	}
}

// TestPairGetsAnotherPartner: when a half is replaced elsewhere the other one stays, is told
// of the new one, and shares another secret with it.
func TestPairGetsAnotherPartner(t *testing.T) {
	s := pairSim(t, 1, nil)
	h := s.halves("line-crypt")
	a, b := h[onpath.PairA][1], h[onpath.PairB][1]
	before := s.planOf(b).Pair
	n := onpath.Clone(s.objects[onpath.Key{Kind: onpath.KindNode, Name: a.Spec.Node}]).(*onpath.Node)
	n.Spec.Drain = true
	s.apply(n)
	s.pass(90e9)
	h = s.halves("line-crypt")
	a2, b2 := h[onpath.PairA][1], h[onpath.PairB][1]
	if a2 == nil || b2 == nil || a2.Metadata.Name == a.Metadata.Name || b2.Metadata.Name != b.Metadata.Name {
		t.Fatalf("the pair is %+v and %+v", a2, b2)
	}
	after := s.planOf(b2).Pair
	if after.Secret == before.Secret || after.Partner != a2.Metadata.Name || after.Secret != s.planOf(a2).Pair.Secret || after.Remote != s.planOf(a2).Pair.Local {
		t.Errorf("before %+v, after %+v", before, after)
	}
	if n := len(s.instances("line-crypt")); n != 2 {
		t.Errorf("%d instances are left", n)
	}
	if c := s.chain("default", "line"); c.Status.Elements[0].Ready != 2 {
		t.Errorf("ready are %+v", c.Status.Elements)
	}
}

// TestPairIsReplacedWhole: a change of the function makes a second pair, which serves before
// the first one goes; fewer instances take away the halves of one pair.
func TestPairIsReplacedWhole(t *testing.T) {
	s := pairSim(t, 2, nil)
	old := s.halves("line-crypt")
	s.apply(aFunction("default", "crypt", func(f *onpath.FunctionSpec) {
		f.Packets, f.Container.Command = onpath.PacketsOriginate, []string{"sleep", "9"}
	}))
	s.pass(60e9)
	now := s.halves("line-crypt")
	for side, list := range now {
		if len(list) != 2 {
			t.Fatalf("side %s is %v", side, list)
		}
		for n, i := range list {
			if o := old[side][n]; o != nil && o.Metadata.Name == i.Metadata.Name {
				t.Errorf("%s is of the old shape", i.Metadata.Name)
			}
		}
	}
	one := 1
	c := onpath.Clone(s.chain("default", "line"))
	c.Spec.Through[0].Instances = &one
	s.apply(c)
	s.pass(60e9)
	left := s.halves("line-crypt")
	if len(left[onpath.PairA]) != 1 || len(left[onpath.PairB]) != 1 {
		t.Fatalf("left are %v", left)
	}
	for n, a := range left[onpath.PairA] {
		if now[onpath.PairA][n].Metadata.Name != a.Metadata.Name || left[onpath.PairB][n] == nil || now[onpath.PairB][n].Metadata.Name != left[onpath.PairB][n].Metadata.Name {
			t.Errorf("pair %d is another one", n)
		}
	}
}

// TestPairFunctionIsRefused: what cannot be a half is refused with the reason.
func TestPairFunctionIsRefused(t *testing.T) {
	for want, change := range map[string]func(*onpath.FunctionSpec){
		"may not begin flows":    func(f *onpath.FunctionSpec) { f.Packets = onpath.PacketsKeep },
		"no address of its own":  func(f *onpath.FunctionSpec) { f.Container.Addresses, f.Packets = onpath.AddressesNone, "originate" },
		"has no address and no":  func(f *onpath.FunctionSpec) { f.Container, f.EBPF = nil, &onpath.EBPFSpec{Object: "firewall"} },
		"no address of its own,": func(f *onpath.FunctionSpec) { f.Container.Attach, f.Packets = onpath.Bridged, "originate" },
	} {
		s := newSim(t, 3)
		s.site("c1", 1, 1)
		s.site("c2", 2, 1)
		e := through("crypt", 1)
		e.Pair = true
		c := aChain("default", "line", e)
		c.Spec.At.Cloudlets = []string{"c1", "c2"}
		s.apply(aFunction("default", "crypt", change), c)
		if err := Check(s.snapshot()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestPairIsProvedInHalves: both halves of a pair are proved, and refuted once one of them
// lets anything of the chain's pass beside it.
func TestPairIsProvedInHalves(t *testing.T) {
	for _, none := range []onpath.None{onpath.NoneDrop, onpath.NoneBypass} {
		s := pairSim(t, 2, func(c *onpath.Chain) { c.Spec.Through[0].None = none })
		p := s.proveAll(t)
		if c := p.Chains[0]; c.Verdict != onpath.VerdictProved || len(c.Segments) != 3 || !strings.Contains(c.Segments[2], "the function's own") {
			t.Fatalf("none: %s: %+v", none, c)
		}
		id := s.chain("default", "line").Status.Path
		exit := onpath.Action{Kind: onpath.ActionExit}
		for what, spoil := range map[string]func(string, *onpath.NodePlan){
			"what enters goes on": func(_ string, p *onpath.NodePlan) {
				rules := tableIn(p, onpath.ClassifierTable(onpath.TierTenant)).Rules
				for i := range rules {
					if rules[i].Action.Kind == onpath.ActionGroup {
						rules[i].Action = exit
					}
				}
			},
			"what came in clear goes on": func(_ string, p *onpath.NodePlan) {
				rules := tableIn(p, onpath.ClassifierTable(onpath.TierTenant)).Rules
				for i := range rules {
					if rules[i].Action.Kind == onpath.ActionDrop {
						rules[i].Action = exit
					}
				}
			},
			"what a half sends on as it came leaves": func(_ string, p *onpath.NodePlan) {
				for _, reverse := range []bool{false, true} {
					tableIn(p, onpath.TableOf(id, 0, reverse)).Miss = exit
				}
			},
		} {
			for _, gw := range []string{"c1-gw", "c2-gw"} {
				if none == onpath.NoneBypass && what != "what enters goes on" {
					continue // may pass
				}
				plans := s.snapshot().InForce()
				bad := throughJSON(t, plans[gw])
				spoil(gw, bad)
				plans[gw] = bad
				if what == "what a half sends on as it came leaves" { // the instance's node decides that
					for n := range plans {
						if strings.HasPrefix(n, gw[:2]) {
							plans[n] = throughJSON(t, plans[n])
							spoil(n, plans[n])
						}
					}
				}
				if p := verify.Check(verify.Input{Objects: s.objects, Plans: plans}); p.Chains[0].Verdict != onpath.VerdictRefuted {
					t.Errorf("none: %s, %s at %s: %+v", none, what, gw, p.Chains[0])
				}
			}
		}
		plans := s.snapshot().InForce()
		node := s.halves("line-crypt")[onpath.PairB][1].Spec.Node
		plans[node] = throughJSON(t, plans[node])
		plans[node].Instances[0].Pair.Secret = "beef"
		if p := verify.Check(verify.Input{Objects: s.objects, Plans: plans}); p.Chains[0].Verdict != onpath.VerdictUnproven || !strings.Contains(p.Chains[0].Reason, "differ") {
			t.Errorf("halves with two secrets: %+v", p.Chains[0])
		}
	}
}

func tableIn(p *onpath.NodePlan, id onpath.TableID) *onpath.Table {
	for i := range p.Datapath.Tables {
		if p.Datapath.Tables[i].ID == id {
			return &p.Datapath.Tables[i]
		}
	}
	return &onpath.Table{}
}

// TestTraceCrossesStretch: a trace goes on at the partner, planned and by live entries, and
// back, and says that the stretch between is the function's.
func TestTraceCrossesStretch(t *testing.T) {
	s := pairSim(t, 1, nil)
	h := s.halves("line-crypt")
	a, b := h[onpath.PairA][1], h[onpath.PairB][1]
	tu := onpath.Tuple{Protocol: 6, Src: netip.MustParseAddr("192.0.2.5"), Dst: netip.MustParseAddr("198.51.100.10"), SrcPort: 4000, DstPort: 80}
	in := TraceInput{Snapshot: s.snapshot(), Request: onpath.TraceRequest{Tuple: tu}}
	kinds := func(list []onpath.TraceHop) (out string) {
		for _, h := range list {
			if out += string(h.Kind); h.Kind != onpath.HopTunnel {
				out += "@" + h.Node[:2]
			}
			out += " "
		}
		return strings.ReplaceAll(out, "tunnel ", "")
	}
	const forward = "edge@c2 element@c2 stretch@c2 element@c1 exit@c1 "
	const back = "edge@c1 element@c1 stretch@c1 element@c2 exit@c2 "
	got := Trace(in)
	if kinds(got.Forward) != forward || kinds(got.Reverse) != back || got.Live {
		t.Errorf("planned: %s| %s", kinds(got.Forward), kinds(got.Reverse))
	}
	edge := func(gw string) onpath.VportID { return indexOf(s.states[gw].Acked).edge }
	path := s.chain("default", "line").Status.Path
	in.Flows = map[string][]onpath.FlowEntry{}
	add := func(node string, v, next onpath.VportID, tu onpath.Tuple, reverse bool) {
		in.Flows[node] = append(in.Flows[node], onpath.FlowEntry{Vport: v, Tuple: tu, Kind: onpath.NextVport, Next: next, Path: path, Reverse: reverse, Packets: 7})
	}
	add("c2-gw", edge("c2-gw"), a.Spec.Vport, tu, false)
	got = Trace(in)
	if h := got.Forward[len(got.Forward)-1]; !h.Ends || !strings.Contains(h.Message, b.Metadata.Name) {
		t.Errorf("nothing came out, and the trace ends with %+v", h)
	}
	add(b.Spec.Node, b.Spec.Vport, edge("c1-gw"), tu, false)
	add("c1-gw", edge("c1-gw"), b.Spec.Vport, tu.Reverse(), true)
	add(a.Spec.Node, a.Spec.Vport, edge("c2-gw"), tu.Reverse(), true)
	got = Trace(in)
	if kinds(got.Forward) != forward || kinds(got.Reverse) != back || !got.Live || len(got.Warnings) > 0 {
		t.Errorf("live: %s| %s %+v", kinds(got.Forward), kinds(got.Reverse), got.Warnings)
	}
}

// TestPairTellsOfItsStretch: of a chain that selects what its pair sends between the nodes a
// change tells, and of none that leaves these packets out.
func TestPairTellsOfItsStretch(t *testing.T) {
	any, all := onpath.Endpoints{Any: true}, onpath.Endpoints{Prefixes: prefixes("0.0.0.0/0")}
	tcp := []onpath.Selector{{Protocol: "tcp"}}
	for what, x := range map[string]struct {
		change func(*onpath.ChainSpec)
		told   bool
	}{
		"all addresses":              {func(c *onpath.ChainSpec) { c.From, c.To = any, all }, true},
		"all addresses, TCP alone":   {func(c *onpath.ChainSpec) { c.From, c.To, c.Select = any, all, tcp }, false},
		"addresses behind the nodes": {func(*onpath.ChainSpec) {}, false},
	} {
		s := pairSim(t, 1, func(c *onpath.Chain) { x.change(&c.Spec) })
		after := s.snapshot()
		before := *after
		before.Objects = maps.Clone(after.Objects)
		delete(before.Objects, onpath.Key{Kind: onpath.KindChain, Tenant: "default", Name: "line"})
		told := slices.ContainsFunc(Notes(&before, after), func(n string) bool {
			return strings.Contains(n, "between the underlay addresses")
		})
		if told != x.told {
			t.Errorf("%s: told %v: %q", what, told, Notes(&before, after))
		}
	}
}
