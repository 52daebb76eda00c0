package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/verify"
)

// machines makes a cloudlet of n attached machines, named vm1 …, and a node without
// uplinks where instances are to run.
func machines(t *testing.T, n int) *sim {
	s := newSim(t, 7)
	s.machines = map[string][]netip.Addr{}
	s.apply(aCloudlet("cloud"))
	for i := range n {
		vm := aNode(fmt.Sprintf("vm%d", i+1), "cloud", i+1, false)
		vm.Spec.Uplinks = []onpath.Uplink{{Name: "own", Device: "eth0", Attach: onpath.AttachHost}}
		s.apply(vm)
		s.machines[vm.Metadata.Name] = []netip.Addr{vm.Spec.Underlay.Address}
		s.connect(vm.Metadata.Name)
	}
	s.apply(aNode("worker", "cloud", 200, false), aFunction("default", "fw", nil))
	s.connect("worker")
	return s
}

// attached is a chain of all that a machine sends and gets.
func attached(vm string, mode onpath.Mode) []onpath.Object {
	h := &onpath.Hosts{TypeMeta: onpath.TypeMeta{APIVersion: onpath.APIVersion, Kind: onpath.KindHosts}, Metadata: onpath.Metadata{Tenant: "default", Name: vm}, Spec: onpath.HostsSpec{Node: vm}}
	c := aChain("default", vm, onpath.Element{Function: "fw", Instances: new(1), Mode: mode,
		Place: onpath.Place{Nodes: map[string]string{"name": "worker"}}})
	c.Spec.From, c.Spec.To = onpath.Endpoints{Any: true}, onpath.Endpoints{Hosts: onpath.Ref(vm)}
	return []onpath.Object{h, c}
}

// takes is the first rule of a node's classifier for a flow.
func (s *sim) takes(node string, tu onpath.Tuple) onpath.Rule {
	x := indexOf(s.states[node].Acked)
	for _, r := range x.tables[onpath.ClassifierTable(onpath.TierTenant)].Rules {
		if fits(r.Match, tu) {
			return r
		}
	}
	return onpath.Rule{}
}

// TestHosts: many machines of one cloudlet are attached; each flow between two is taken up
// at one edge, the chain of that machine, whoever begins it; what goes on behind the
// element leaves at the edge of the machine that it is for; and all of it is proved.
func TestHosts(t *testing.T) {
	for _, mode := range []onpath.Mode{onpath.ModeInline, onpath.ModeMirror} {
		t.Run(string(mode), func(t *testing.T) {
			s := machines(t, 4)
			for _, vm := range []string{"vm1", "vm2", "vm3"} {
				s.apply(attached(vm, mode)...)
			}
			s.settle()
			for _, vm := range []string{"vm1", "vm2", "vm3"} {
				if st := s.chain("default", vm).Status; !st.Active {
					t.Fatalf("chain %s: %+v", vm, st.Conditions)
				}
			}
			if p := s.proveAll(t); p.Verdict != onpath.VerdictProved {
				t.Errorf("%s: %+v", p.Verdict, p)
			}
			s.takenOnce(t, "vm1", "vm2", 1)
			s.takenOnce(t, "vm2", "vm3", 1)
			s.takenOnce(t, "vm3", "vm4", 1)
			s.takenOnce(t, "vm4", "vm4", 0)
			if mode == onpath.ModeInline {
				s.deliveredTo(t, "vm1", "vm2")
				s.deliveredTo(t, "vm2", "vm1")
				s.misdelivered(t)
			}
			for _, vm := range []string{"vm1", "vm2", "vm3"} {
				s.remove(onpath.KindChain, "default", vm)
				s.remove(onpath.KindHosts, "default", vm)
			}
			s.settle()
			s.pass(5 * time.Minute)
			for _, vm := range []string{"vm1", "vm2", "vm3", "vm4", "worker"} {
				if d := s.states[vm].Acked.Datapath; len(d.Paths)+len(d.Groups)+len(d.Vports) > 0 {
					t.Errorf("%s keeps %d paths, %d groups, %d vports", vm, len(d.Paths), len(d.Groups), len(d.Vports))
				}
			}
		})
	}
}

// takenOnce counts at which of two machines' edges a flow and its replies are taken up.
func (s *sim) takenOnce(t *testing.T, a, b string, want int) {
	t.Helper()
	x, y := s.machines[a][0], s.machines[b][0]
	for _, tu := range []onpath.Tuple{{Protocol: 6, Src: x, Dst: y, DstPort: 80}, {Protocol: 6, Src: y, Dst: x, SrcPort: 80}} {
		var at []string
		for _, vm := range []string{a, b} {
			if s.takes(vm, tu).Path != 0 && !slices.Contains(at, vm) {
				at = append(at, vm)
			}
		}
		if len(at) != want {
			t.Errorf("%v → %v is taken up at %v", tu.Src, tu.Dst, at)
		}
	}
}

// deliveredTo wants the worker to let packets from one machine to another leave at the
// other's edge.
func (s *sim) deliveredTo(t *testing.T, from, to string) {
	t.Helper()
	tr := Trace(TraceInput{Snapshot: s.snapshot(), Request: onpath.TraceRequest{Tuple: onpath.Tuple{
		Protocol: 6, Src: s.machines[from][0], Dst: s.machines[to][0], DstPort: 80}}})
	if last := tr.Forward[len(tr.Forward)-1]; last.Kind != onpath.HopExit || last.Node != to {
		t.Errorf("from %s to %s: %+v", from, to, tr.Forward)
	}
}

// TestHostsByPlainChain: a chain that names no machine is taken at every machine's edge, and
// between two at one alone.
func TestHostsByPlainChain(t *testing.T) {
	s := machines(t, 3)
	c := aChain("default", "all", onpath.Element{Function: "fw", Instances: new(1)})
	c.Spec.From, c.Spec.To = onpath.Endpoints{Any: true}, onpath.Endpoints{Any: true}
	s.apply(c)
	s.settle()
	if p := s.proveAll(t); p.Verdict != onpath.VerdictProved {
		t.Errorf("%s: %+v", p.Verdict, p)
	}
	s.takenOnce(t, "vm1", "vm2", 1)
	s.takenOnce(t, "vm3", "vm2", 1)
	out := onpath.Tuple{Protocol: 6, Src: s.machines["vm3"][0], Dst: netip.MustParseAddr("198.51.100.1"), DstPort: 80}
	if s.takes("vm3", out).Path == 0 {
		t.Error("what a machine sends elsewhere is not taken up")
	}
}

// TestEqualAddresses: two attached machines have one address; each one's chain takes what its
// own machine sends and gets with it, no rule at one edge comes from the other, and packets
// for it leave at the edge where they entered.
func TestEqualAddresses(t *testing.T) {
	s := machines(t, 3)
	same := netip.MustParseAddr("10.77.0.5")
	for _, vm := range []string{"vm1", "vm2"} {
		s.machines[vm] = append(s.machines[vm], same)
		s.apply(attached(vm, onpath.ModeInline)...)
	}
	s.settle()
	if p := s.proveAll(t); p.Verdict != onpath.VerdictProved {
		t.Errorf("%s: %+v", p.Verdict, p)
	}
	elsewhere := netip.MustParseAddr("198.51.100.1")
	for _, vm := range []string{"vm1", "vm2"} {
		own := s.chain("default", vm).Status.Path
		for _, tu := range []onpath.Tuple{{Protocol: 6, Src: elsewhere, Dst: same, DstPort: 80}, {Protocol: 6, Src: same, Dst: elsewhere, DstPort: 80}} {
			if r := s.takes(vm, tu); r.Path != own {
				t.Errorf("at %s %v → %v meets %+v, must be taken by its chain", vm, tu.Src, tu.Dst, r)
			}
		}
	}
	for _, table := range s.states["worker"].Acked.Datapath.Tables {
		for _, r := range table.Rules {
			if r.Action.Kind == onpath.ActionDeliver && slices.ContainsFunc(r.Match.Dst, func(p netip.Prefix) bool { return p.Contains(same) }) {
				t.Errorf("the worker gives %v to one of two: %+v", same, r)
			}
		}
	}
	s.takenOnce(t, "vm1", "vm3", 1)
	s.deliveredTo(t, "vm1", "vm2") // the other address of both is one machine's alone
}

// misdelivered wants the proof to find a packet that leaves at another machine's edge.
func (s *sim) misdelivered(t *testing.T) {
	t.Helper()
	plans := s.snapshot().InForce()
	wrong := throughJSON(t, plans["worker"])
	for i := range wrong.Datapath.Tables {
		for j := range wrong.Datapath.Tables[i].Rules {
			if a := &wrong.Datapath.Tables[i].Rules[j].Action; a.Kind == onpath.ActionDeliver {
				a.Vport = s.node("vm4").Status.Edge
			}
		}
	}
	plans["worker"] = wrong
	if p := verify.Check(verify.Input{Objects: s.objects, Plans: plans}); p.Verdict != onpath.VerdictRefuted {
		t.Errorf("packets for others leave at vm4's edge, and the proof says %s", p.Verdict)
	}
}

// TestMachinesNeedsTold: an apply says what goes past a chain that takes a machine's traffic,
// where its instances have images that a node fetches.
func TestMachinesNeedsTold(t *testing.T) {
	for image, want := range map[string]int{onpath.HostImage: 0, "registry.example/fw:1": 1} {
		s := machines(t, 1)
		s.apply(aFunction("default", "fw", func(f *onpath.FunctionSpec) { f.Container.Image = image }))
		before := s.snapshot()
		after := *before
		after.Objects = maps.Clone(before.Objects)
		for _, o := range attached("vm1", onpath.ModeInline) {
			after.Objects[onpath.KeyOf(o)] = o
		}
		if notes := Notes(before, &after); len(notes) != want || want > 0 && !strings.Contains(notes[0], "machine vm1") {
			t.Errorf("image %s: %q", image, notes)
		}
	}
}
