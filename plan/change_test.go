package plan

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// watch plans and acknowledges like settle, and looks at the world after each
// acknowledgement.
func (s *sim) watch(look func()) {
	s.t.Helper()
	for range 300 {
		busy := s.think()
		for _, n := range s.waiting() {
			if s.rng.IntN(2) == 0 {
				s.ack(n, len(s.states[n].Sent)-1)
				look()
			}
			busy = true // an acknowledgement may make something possible
		}
		if !busy {
			return
		}
	}
	s.t.Fatal("does not settle")
}

// open counts the members of a chain's first element that the gateway gives new
// flows.
func (s *sim) open() int {
	x := indexOf(s.states["fra1-gw"].Acked)
	for _, t := range x.plan.Datapath.Tables {
		if t.ID != 2 || len(t.Rules) == 0 {
			continue
		}
		n := 0
		for _, m := range x.groups[t.Rules[0].Action.Group].Members {
			if x.vports[m.Vport].State == onpath.VportUp {
				n++
			}
		}
		return n
	}
	return -1
}

func fraWeb(t *testing.T, nodes, instances int) *sim {
	s := newSim(t, 11)
	s.site("fra1", 1, nodes)
	s.apply(aFunction("default", "fw", nil), aFunction("default", "cache", nil), aChain("default", "web", through("fw", instances)))
	s.settle()
	if s.open() != instances {
		t.Fatalf("%d of %d instances get flows", s.open(), instances)
	}
	return s
}

// TestNewBeforeOld: while a function changes, or a node is drained, there is
// always an instance for new flows, and all are replaced in the end.
func TestNewBeforeOld(t *testing.T) {
	for name, change := range map[string]func(*sim){
		"function changes": func(s *sim) {
			s.apply(aFunction("default", "fw", func(f *onpath.FunctionSpec) { f.Container.Command = []string{"new"} }))
		},
		"node is drained": func(s *sim) {
			n := onpath.Clone(s.objects[onpath.Key{Kind: onpath.KindNode, Name: "fra1-n1"}].(*onpath.Node))
			n.Spec.Drain = true
			s.apply(n)
		},
	} {
		for _, count := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s, %d", name, count), func(t *testing.T) {
				s := fraWeb(t, 2, count)
				before := s.instances("web-fw")
				change(s)
				s.watch(func() {
					if s.open() < count {
						t.Fatalf("only %d of %d instances get new flows", s.open(), count)
					}
				})
				s.pass(5 * time.Second)
				after := s.instances("web-fw")
				if len(after) != count {
					t.Fatalf("%d instances", len(after))
				}
				for _, i := range after {
					kept := slices.ContainsFunc(before, func(o *onpath.Instance) bool { return o.Metadata.Name == i.Metadata.Name })
					if i.Spec.Node == "fra1-n1" && name == "node is drained" || kept && name == "function changes" {
						t.Errorf("%s is still on %s", i.Metadata.Name, i.Spec.Node)
					}
				}
			})
		}
	}
}

// TestProven: what a new instance replaces goes when the new one has been ready for
// a while, and for a longer one if it has ended before.
func TestProven(t *testing.T) {
	for _, c := range []struct {
		restarts int
		long     time.Duration
	}{{0, time.Second}, {2, 10 * time.Second}} {
		t.Run(fmt.Sprintf("ended %d times", c.restarts), func(t *testing.T) {
			s := fraWeb(t, 2, 1)
			old := s.instances("web-fw")[0].Metadata.Name
			draining := func() bool {
				i := slices.IndexFunc(s.instances("web-fw"), func(i *onpath.Instance) bool { return i.Metadata.Name == old })
				return i < 0 || !s.instances("web-fw")[i].Spec.Draining.IsZero()
			}
			s.broken["web-fw"], s.spared[old] = true, true
			s.apply(aFunction("default", "fw", func(f *onpath.FunctionSpec) { f.Container.Command = []string{"new"} }))
			s.pass(20 * time.Second)
			for _, i := range s.instances("web-fw") {
				s.restarts[i.Metadata.Name] = c.restarts
			}
			s.broken["web-fw"] = false
			s.hear()
			s.settle()
			began := s.now
			for !draining() {
				if s.now.Sub(began) > time.Minute {
					t.Fatal("the old instance stays for ever")
				}
				s.pass(time.Second)
			}
			if took := s.now.Sub(began); took < c.long || took > c.long+2*time.Second {
				t.Errorf("the old instance began to drain after %s; the new one was to be ready for %s", took, c.long)
			}
		})
	}
}

// TestNoHaste: when a server comes back, what runs on nodes that were not heard of
// yet does not make room for anything.
func TestNoHaste(t *testing.T) {
	s := fraWeb(t, 1, 2)
	s.apply(aFunction("default", "fw", func(f *onpath.FunctionSpec) { f.Container.Command = []string{"new"} }))
	clear(s.states)
	s.settle()
	for _, i := range s.instances("web-fw") {
		if !i.Spec.Draining.IsZero() {
			t.Errorf("%s drains", i.Metadata.Name)
		}
	}
}

// TestLittleIsReplaced: changes that need no new instance replace none, and
// those that change nothing push nothing.
func TestLittleIsReplaced(t *testing.T) {
	s := fraWeb(t, 3, 3)
	names := func() (out []string) {
		for _, i := range s.instances("web-fw") {
			out = append(out, i.Metadata.Name)
		}
		return out
	}
	path := s.chain("default", "web").Status.Path
	s.apply(aFunction("default", "fw", func(f *onpath.FunctionSpec) { f.Health.TCP = 80 }))
	s.pass(2 * time.Minute)
	before := names()
	s.apply(aFunction("default", "fw", func(f *onpath.FunctionSpec) {
		f.Resources.Network = 50_000_000
		f.Resources.CPU, f.Health = 200, onpath.Health{TCP: 80, Failures: 7, Every: onpath.Duration(3 * time.Second)}
	}))
	c := aChain("default", "web", through("fw", 4))
	c.Spec.Select = []onpath.Selector{{Protocol: "tcp"}}
	c.Spec.Through[0].Weights = map[string]int{"fra1-n1": 3}
	c.Spec.Through[0].Lost = onpath.LostReset
	s.apply(c)
	s.settle()
	for _, n := range before {
		if !slices.Contains(names(), n) {
			t.Errorf("%s was replaced", n)
		}
	}
	for _, v := range s.states["fra1-n1"].Acked.Datapath.Vports {
		if v.Kind == onpath.VportInstance && (v.RateIn != 50_000_000 || v.RateOut != v.RateIn) {
			t.Errorf("vport %d is limited to %d and %d bit/s", v.ID, v.RateIn, v.RateOut)
		}
	}
	if p := s.chain("default", "web").Status.Path; p != path {
		t.Errorf("path %d became %d", path, p)
	}
	s.apply(c)
	if s.think() {
		t.Error("something came of no change")
	}
}

// TestChangeThatDoesNotStart: what serves stays, and chain and deployment say
// that it is from before the change, and why.
func TestChangeThatDoesNotStart(t *testing.T) {
	for what, change := range map[string]func(*onpath.FunctionSpec){
		"environment": func(f *onpath.FunctionSpec) { f.Container.Env = map[string]string{"A": "b"} },
		"probe":       func(f *onpath.FunctionSpec) { f.Health.Exec = []string{"nosuch"} },
	} {
		t.Run(what, func(t *testing.T) { changeThatDoesNotStart(t, change) })
	}
}

func changeThatDoesNotStart(t *testing.T, change func(*onpath.FunctionSpec)) {
	s := fraWeb(t, 2, 2)
	s.broken["web-fw"] = true
	for _, i := range s.instances("web-fw") {
		s.spared[i.Metadata.Name] = true
	}
	f := aFunction("default", "fw", change)
	f.Metadata.Generation = 2
	s.apply(f)
	s.settle()
	c := s.chain("default", "web")
	e := c.Status.Elements[0]
	if e.Ready != 2 || e.Outdated != 2 || e.FunctionGeneration != 2 || c.Status.Observed != c.Metadata.Generation {
		t.Fatalf("%+v", c.Status)
	}
	if !strings.Contains(e.Message, "exit code 1") {
		t.Errorf("it does not say why: %+v", e)
	}
	if i := slices.IndexFunc(c.Status.Conditions, func(c onpath.Condition) bool { return c.Type == "Current" }); c.Status.Conditions[i].Status != onpath.False {
		t.Errorf("%+v", c.Status.Conditions[i])
	}
	s.now = s.now.Add(time.Minute)
	s.broken["web-fw"] = false
	s.hear()
	s.settle()
	s.pass(5 * time.Second)
	if e := s.chain("default", "web").Status.Elements[0]; e.Ready != 2 || e.Outdated != 0 || e.Message != "" {
		t.Errorf("when it starts: %+v", e)
	}
}

// TestThroughChanges: the old path steers until the new one is ready, keeps its
// flows' tables until they are gone, and the new one begins anew.
func TestThroughChanges(t *testing.T) {
	s := fraWeb(t, 2, 1)
	old := s.chain("default", "web").Status.Path
	s.broken["web-cache"] = true
	s.apply(aChain("default", "web", through("fw", 1), through("cache", 1)))
	s.settle()
	st := s.chain("default", "web").Status
	if !st.Active || st.Path == old || len(st.Cloudlets) > 0 || s.open() != 1 {
		t.Fatalf("while the new path is not ready: %+v, %d open", st, s.open())
	}
	if m := st.Conditions[len(st.Conditions)-1].Message; !strings.Contains(m, "web-cache") || !strings.Contains(m, "exit code 1") {
		t.Errorf("it does not say why: %+v", st.Conditions)
	}
	s.now = s.now.Add(time.Minute)
	s.broken["web-cache"] = false
	s.hear()
	s.settle()
	x := indexOf(s.states["fra1-gw"].Acked)
	now := s.chain("default", "web").Status
	switch {
	case len(now.Cloudlets) != 1:
		t.Fatalf("the new path does not steer: %+v", now)
	case x.path(old) == nil || x.path(old).Ended.IsZero():
		t.Error("the old path is gone at once, or does not end")
	case !x.path(now.Path).Began.Equal(s.now) && x.path(now.Path).Began.Before(s.now.Add(-time.Second)):
		t.Errorf("the new path began %v", x.path(now.Path).Began)
	}
	s.pass(5 * time.Second)
	if x := indexOf(s.states["fra1-gw"].Acked); x.path(old) != nil {
		t.Error("the old path stays without flows")
	}
}

// TestDraining: an instance with flows stays until its time is up, one without
// goes earlier.
func TestDraining(t *testing.T) {
	s := fraWeb(t, 3, 2)
	for _, i := range s.instances("web-fw") {
		s.busy[i.Metadata.Name] = true
	}
	s.apply(aChain("default", "web", through("fw", 1)))
	s.settle()
	s.pass(20 * time.Second)
	if n := len(s.instances("web-fw")); n != 2 {
		t.Fatalf("%d instances, though one still has flows", n)
	}
	s.pass(15 * time.Second)
	if n := len(s.instances("web-fw")); n != 1 {
		t.Fatalf("%d instances after its time", n)
	}
}

// TestDeadInstance: its vport is closed in the very next plan, the chain stays
// active, and the gateway's plan needs nothing from the store.
func TestDeadInstance(t *testing.T) {
	s := fraWeb(t, 2, 1)
	s.broken["web-fw"] = true
	s.hear()
	r := Make(s.snapshot())
	p := r.Plans["fra1-gw"]
	if p == nil || len(r.Create) > 0 {
		t.Fatalf("no plan for the gateway, or something created: %+v", r.Create)
	}
	if x := indexOf(p); x.vports[s.instances("web-fw")[0].Spec.Vport].State != onpath.VportClosed {
		t.Error("the vport is not closed")
	}
	s.settle()
	if !s.chain("default", "web").Status.Active {
		t.Error("the chain gave up")
	}
	if len(indexOf(s.states["fra1-gw"].Acked).tables[2].Rules) == 0 {
		t.Error("its rules are gone")
	}
}

// TestBypassDoesNotWait: an element that may be bypassed and has failed does not
// hold the chain up; one that must not be does.
func TestBypassDoesNotWait(t *testing.T) {
	for none, want := range map[onpath.None]bool{onpath.NoneBypass: true, onpath.NoneDrop: false} {
		s := newSim(t, 4)
		s.site("fra1", 1, 2)
		s.broken["web-cache"] = true
		c := aChain("default", "web", through("fw", 1), through("cache", 1))
		c.Spec.Through[1].None = none
		s.apply(aFunction("default", "fw", nil), aFunction("default", "cache", nil), c)
		s.settle()
		if got := s.chain("default", "web").Status.Active; got != want {
			t.Errorf("none: %s: active %v", none, got)
		}
	}
}

func TestMTU(t *testing.T) {
	for name, c := range map[string]struct {
		gw, n1 int // MTU of the underlay
		v6     bool
		local  bool // the instance runs on the gateway
		want   int
		active bool
	}{
		"ethernet":                   {1500, 1500, false, false, 1450, true},
		"jumbo":                      {9000, 9000, false, false, 8950, true},
		"the smaller side counts":    {9000, 1600, false, false, 1550, true},
		"IPv6 underlay":              {1500, 1500, true, false, 1430, true},
		"no tunnel, no loss":         {1500, 1500, false, true, 1500, true},
		"too small for IPv6":         {1500, 1320, false, false, 1270, false},
		"a small underlay, not used": {1300, 1300, false, true, 1500, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSim(t, 5)
			gw, n1 := aNode("fra1-gw", "fra1", 1, true), aNode("fra1-n1", "fra1", 2, false)
			gw.Spec.Underlay.MTU, n1.Spec.Underlay.MTU = c.gw, c.n1
			if c.v6 {
				gw.Spec.Underlay.Address, n1.Spec.Underlay.Address = netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
			}
			no := false
			if c.local {
				n1.Spec.Schedulable = &no
			}
			s.apply(aCloudlet("fra1"), gw, n1, aFunction("default", "fw", nil), aChain("default", "web", through("fw", 1)))
			s.connect("fra1-gw")
			s.connect("fra1-n1")
			s.settle()
			st := s.chain("default", "web").Status
			if st.Active != c.active {
				t.Fatalf("active %v: %+v", st.Active, st.Conditions)
			}
			if p := indexOf(s.states["fra1-gw"].Acked).path(st.Path); p == nil || p.MTU != c.want {
				t.Errorf("path %+v, want MTU %d", p, c.want)
			}
			if !c.active && !strings.Contains(st.Conditions[len(st.Conditions)-1].Message, "1270") {
				t.Errorf("it does not say why: %+v", st.Conditions)
			}
		})
	}
}

func TestPlacement(t *testing.T) {
	big := func(f *onpath.FunctionSpec) { f.Resources.CPU = 5000 }
	t.Run("no room", func(t *testing.T) {
		s := newSim(t, 6)
		s.site("fra1", 1, 1)
		s.apply(aFunction("default", "fw", big), aFunction("default", "small", nil), aChain("default", "web", through("fw", 3)), aChain("default", "other", through("small", 1)))
		o := s.chain("default", "other")
		o.Spec.To = onpath.Endpoints{Prefixes: prefixes("192.0.2.1")}
		s.settle()
		if n := len(s.instances("web-fw")); n != 2 {
			t.Errorf("%d instances on two nodes", n)
		}
		m := s.chain("default", "web").Status.Elements[0].Message
		for _, want := range []string{"no node of cloudlet fra1 has room for 5 CPU", "fra1-gw lacks 2 of CPU", "fra1-n1 lacks 2"} {
			if !strings.Contains(m, want) {
				t.Errorf("%q does not say %q", m, want)
			}
		}
		if !s.chain("default", "other").Status.Active {
			t.Error("another chain is held up")
		}
	})
	t.Run("what lacks is rounded", func(t *testing.T) {
		s := newSim(t, 6)
		s.site("fra1", 1, 0)
		s.apply(aFunction("default", "fw", func(f *onpath.FunctionSpec) {
			f.Resources = onpath.Resources{CPU: 1000, Memory: 1<<40 + 5<<10}
		}), aChain("default", "web", through("fw", 1)))
		s.settle()
		if m := s.chain("default", "web").Status.Elements[0].Message; !strings.HasSuffix(m, "fra1-gw lacks 0.992Ti of memory") {
			t.Errorf("%q", m)
		}
	})
	t.Run("image: host is not permitted", func(t *testing.T) {
		s := newSim(t, 6)
		s.hostless["fra1-n1"] = true
		s.site("fra1", 1, 2)
		gw := aNode("fra1-gw", "fra1", 100, true)
		gw.Spec.Schedulable = new(bool)
		s.apply(gw, aFunction("default", "fw", nil), aChain("default", "web", through("fw", 3)))
		s.settle()
		for _, i := range s.instances("web-fw") {
			if i.Spec.Node != "fra1-n2" {
				t.Errorf("%s is on %s", i.Metadata.Name, i.Spec.Node)
			}
		}
		if n := len(s.instances("web-fw")); n != 3 {
			t.Errorf("%d instances", n)
		}
		// A node that does not permit it any more keeps what runs there.
		s.hostless["fra1-n2"] = true
		s.hear()
		s.apply(aChain("default", "web", through("fw", 4)))
		s.settle()
		if n := len(s.instances("web-fw")); n != 3 {
			t.Errorf("%d instances, of which 3 were placed when it was permitted", n)
		}
		m := s.chain("default", "web").Status.Elements[0].Message
		if want := "fra1-n1 does not permit image: host"; !strings.Contains(m, want) {
			t.Errorf("%q does not say %q", m, want)
		}
		if n := s.objects[onpath.Key{Kind: onpath.KindNode, Name: "fra1-n2"}].(*onpath.Node); n.Status.HostImage {
			t.Error("the node's status says that it is permitted")
		}
	})
	t.Run("the operator's share", func(t *testing.T) {
		s := newSim(t, 6)
		s.site("fra1", 1, 0)
		c := aCloudlet("fra1")
		c.Spec.OperatorShare = 50
		s.apply(c, aFunction("default", "fw", big), aChain("default", "web", through("fw", 1)))
		s.settle()
		if n := len(s.instances("web-fw")); n != 0 {
			t.Error("a tenant uses the operator's share")
		}
		op := aChain("operator", "guard", through("fw", 1))
		op.Spec.Tier = onpath.TierOperator
		s.apply(aFunction("operator", "fw", big), op)
		s.settle()
		if n := len(s.instances("guard-fw")); n != 1 {
			t.Errorf("the operator has no use of its share: %+v", s.chain("operator", "guard").Status)
		}
	})
	t.Run("labels and spread", func(t *testing.T) {
		s := newSim(t, 6)
		s.site("fra1", 1, 4)
		for _, n := range []string{"fra1-n2", "fra1-n3"} {
			o := onpath.Clone(s.objects[onpath.Key{Kind: onpath.KindNode, Name: n}].(*onpath.Node))
			o.Metadata.Labels = map[string]string{"rack": "r7"}
			s.apply(o)
		}
		e := through("fw", 4)
		e.Place.Nodes = map[string]string{"rack": "r7"}
		s.apply(aFunction("default", "fw", nil), aChain("default", "web", e))
		s.settle()
		on := map[string]int{}
		for _, i := range s.instances("web-fw") {
			on[i.Spec.Node]++
		}
		if on["fra1-n2"] != 2 || on["fra1-n3"] != 2 {
			t.Errorf("placed on %v", on)
		}
	})
}

// TestPairOfGateways: a second gateway steers what the first steers, once all know
// it; each stands in for the other, and a third is left alone.
func TestPairOfGateways(t *testing.T) {
	s := fraWeb(t, 2, 1)
	s.site("ams1", 2, 1)
	s.apply(aNode("fra1-a", "fra1", 190, true)) // before the other by name
	s.connect("fra1-a")
	s.settle()
	first, second := s.states["fra1-gw"].Acked.Datapath, s.states["fra1-a"].Acked.Datapath
	if first.Edge == nil || second.Edge == nil || first.Edge.Table == 0 || second.Edge.Table == 0 {
		t.Fatalf("edges are %+v and %+v", first.Edge, second.Edge)
	}
	for _, id := range []onpath.TableID{1, 2} {
		of := func(c onpath.DatapathConfig) onpath.Table {
			i := slices.IndexFunc(c.Tables, func(t onpath.Table) bool { return t.ID == id })
			return c.Tables[i]
		}
		if !reflect.DeepEqual(of(first), of(second)) {
			t.Errorf("the gateways' tables %d differ", id)
		}
	}
	for name, st := range s.states {
		if strings.HasPrefix(name, "ams1-") {
			continue // of another cloudlet: below
		}
		for _, pair := range [][2]onpath.VportID{{first.Edge.Vport, second.Edge.Vport}, {second.Edge.Vport, first.Edge.Vport}} {
			c := st.Acked.Datapath
			if c.Edge != nil && c.Edge.Vport == pair[0] {
				continue
			}
			i := slices.IndexFunc(c.Vports, func(v onpath.Vport) bool { return v.ID == pair[0] })
			if i < 0 || c.Vports[i].Backup != pair[1] {
				t.Errorf("node %s does not know that edge %d stands in for %d", name, pair[1], pair[0])
			}
		}
	}
	for _, v := range s.states["ams1-gw"].Acked.Datapath.Vports {
		if v.Backup != 0 {
			t.Errorf("the gateway of another cloudlet is of the pair: %+v", v)
		}
	}
	s.apply(aNode("fra1-b", "fra1", 191, true))
	s.connect("fra1-b")
	s.settle()
	if s.states["fra1-b"].Acked.Datapath.Edge != nil {
		t.Error("a third gateway is in use")
	}
	n := s.objects[onpath.Key{Kind: onpath.KindNode, Name: "fra1-b"}].(*onpath.Node)
	if !slices.ContainsFunc(n.Status.Conditions, func(c onpath.Condition) bool { return c.Reason == "ThirdGateway" }) {
		t.Errorf("nobody says so: %+v", n.Status.Conditions)
	}
	if !s.chain("default", "web").Status.Active {
		t.Error("the chain is not steered any more")
	}
}

// TestFromDeployment: what the instances of one deployment start goes through a
// chain of its own.
func TestFromDeployment(t *testing.T) {
	s := newSim(t, 7)
	s.site("fra1", 1, 2)
	vpn := aDeployment("default", "vpn", "vpn", 1)
	vpn.Spec.Place.Cloudlets = []string{"fra1"}
	c := aChain("default", "out", through("fw", 1))
	c.Spec.From, c.Spec.To = onpath.Endpoints{Deployment: "vpn"}, onpath.Endpoints{Any: true}
	s.apply(aFunction("default", "fw", nil), aFunction("default", "vpn", func(f *onpath.FunctionSpec) { f.Container.Outbound = onpath.OutboundNAT }), vpn, c)
	s.settle()
	if !s.chain("default", "out").Status.Active {
		t.Fatalf("not active: %+v", s.chain("default", "out").Status)
	}
	i := s.instances("vpn")[0]
	m := newModel(s)
	tu := onpath.Tuple{Protocol: 17, Src: i.Spec.Addresses[0].Addr(), Dst: netip.MustParseAddr("192.0.2.53"), SrcPort: 4000, DstPort: 53}
	var w way
	h, end := m.decide(m.home[i.Spec.Vport], i.Spec.Vport, tu, &w)
	if end != "" || !strings.HasPrefix(m.instanceOf(h.to), "default/out-fw") || h.entry == 0 {
		t.Errorf("goes to %q (%q), entry %d", m.instanceOf(h.to), end, h.entry)
	}
	tu.Src = netip.MustParseAddr("10.1.0.5")
	if _, end := m.decide(m.home[i.Spec.Vport], i.Spec.Vport, tu, &w); !strings.Contains(end, "spoofed") {
		t.Errorf("a forged source: %q", end)
	}
}

// TestExitLast: packets leave at the last element's node, answers come back to
// where the flow entered, and what no element selects is left alone.
func TestExitLast(t *testing.T) {
	s := newSim(t, 8)
	s.site("fra1", 1, 2)
	c := aChain("default", "web", through("fw", 1))
	c.Spec.Exit = onpath.ExitLast
	c.Spec.Through[0].Select = []onpath.Selector{{Protocol: "tcp"}}
	s.apply(aFunction("default", "fw", nil), c)
	s.settle()
	edge := s.states["fra1-gw"].Acked.Datapath.Edge.Vport
	tu := onpath.Tuple{Protocol: 6, Src: netip.MustParseAddr("10.1.0.5"), Dst: netip.MustParseAddr("198.51.100.10"), SrcPort: 4000, DstPort: 80}
	if w := newModel(s).send(edge, tu); w.end != "route" || len(w.through) != 1 {
		t.Errorf("tcp: %+v", w)
	}
	if w := newModel(s).send(edge, tu.Reverse()); w.end != "exit" || len(w.through) != 1 {
		t.Errorf("from the other end: %+v", w)
	}
	tu.Protocol = 17
	if w := newModel(s).send(edge, tu); w.end != "kernel" {
		t.Errorf("udp: %+v", w)
	}
}

// TestDisabledElement: flows pass a disabled element by, whose instances go on.
func TestDisabledElement(t *testing.T) {
	s := newSim(t, 8)
	s.site("fra1", 1, 2)
	c := aChain("default", "web", through("fw", 1), through("ids", 2))
	s.apply(aFunction("default", "fw", nil), aFunction("default", "ids", nil), c)
	s.settle()
	edge := s.states["fra1-gw"].Acked.Datapath.Edge.Vport
	tu := onpath.Tuple{Protocol: 6, Src: netip.MustParseAddr("10.1.0.5"), Dst: netip.MustParseAddr("198.51.100.10"), SrcPort: 4000, DstPort: 80}
	for _, disabled := range []bool{false, true, false} {
		c.Spec.Through[1].Disabled = disabled
		s.apply(c)
		s.settle()
		want := 2
		if disabled {
			want = 1
		}
		for _, tuple := range []onpath.Tuple{tu, tu.Reverse()} {
			if w := newModel(s).send(edge, tuple); len(w.through) != want {
				t.Errorf("disabled %t: %v crosses %v, must cross %d instances", disabled, tuple, w.through, want)
			}
		}
		if n := len(s.instances("web-fw")) + len(s.instances("web-ids")); n != 3 {
			t.Errorf("disabled %t: there are %d instances, must be 3", disabled, n)
		}
	}
}

// TestProxy: what a proxy starts from its own address goes on behind it, what it
// starts elsewhere is routed, and its answers come back to it.
func TestProxy(t *testing.T) {
	s := newSim(t, 9)
	s.site("fra1", 1, 2)
	c := aChain("default", "web", through("cache", 1), through("fw", 1))
	c.Spec.Select = []onpath.Selector{{Protocol: "tcp", DestinationPorts: []onpath.PortRange{{First: 80, Last: 80}}}}
	s.apply(aFunction("default", "fw", nil), aFunction("default", "cache", func(f *onpath.FunctionSpec) {
		f.Packets, f.State, f.Container.Outbound = onpath.PacketsOriginate, onpath.StateTerminates, onpath.OutboundNAT
	}), c)
	s.settle()
	m := newModel(s)
	i := s.instances("web-cache")[0].Spec
	x := m.home[i.Vport]
	tu := onpath.Tuple{Protocol: 6, Src: i.Addresses[0].Addr(), Dst: netip.MustParseAddr("198.51.100.10"), SrcPort: 5000, DstPort: 80}
	var w way
	if h, end := m.decide(x, i.Vport, tu, &w); end != "" || !strings.HasPrefix(m.instanceOf(h.to), "default/web-fw") {
		t.Errorf("its connection goes to %q %q", m.instanceOf(h.to), end)
	}
	tu.Src = netip.MustParseAddr("10.1.0.5") // with the client's address
	if h, end := m.decide(x, i.Vport, tu, &w); end != "" || !strings.HasPrefix(m.instanceOf(h.to), "default/web-fw") {
		t.Errorf("its connection as the client goes to %q %q", m.instanceOf(h.to), end)
	}
	edge := s.states["fra1-gw"].Acked.Datapath.Edge.Vport
	dns := onpath.Tuple{Protocol: 17, Src: i.Addresses[0].Addr(), Dst: netip.MustParseAddr("192.0.2.53"), SrcPort: 5000, DstPort: 53}
	if h, end := m.decide(x, i.Vport, dns, &w); end != "" || h.to != edge {
		t.Errorf("its name look-up goes to %d %q", h.to, end)
	}
	dns.Src = netip.MustParseAddr("203.0.113.99")
	if _, end := m.decide(x, i.Vport, dns, &w); !strings.Contains(end, "spoofed") {
		t.Errorf("a forged packet: %q", end)
	}
	g := indexOf(s.states["fra1-gw"].Acked)
	for _, grp := range g.groups {
		if _, k, _ := grp.ID.Split(); k == 0 && grp.Lost != onpath.LostReset || k == 1 && grp.Lost != onpath.LostRepick {
			t.Errorf("element %d has lost: %s", k, grp.Lost)
		}
	}
	if len(g.plan.Datapath.Edge.NAT) != 2 {
		t.Errorf("private sources are not translated: %v", g.plan.Datapath.Edge.NAT)
	}
}
