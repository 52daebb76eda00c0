package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/verify"
)

// pairSite has two gateways and two workers; cordoned gateways run ebpf functions only.
func pairSite(t *testing.T, cordoned bool) *sim {
	s := newSim(t, 7)
	s.site("fra1", 1, 2)
	s.apply(aNode("fra1-gw2", "fra1", 190, true))
	s.connect("fra1-gw2")
	s.cordon(cordoned, "fra1-gw", "fra1-gw2")
	return s
}

func (s *sim) cordon(yes bool, names ...string) {
	for _, name := range names {
		n, run := onpath.Clone(s.node(name)), !yes
		n.Spec.Schedulable = &run
		s.apply(n)
	}
}

// TestChangedBackWithoutAgent: what is changed and changed back while a worker is without
// its agent goes on as it was, and gets flows.
func TestChangedBackWithoutAgent(t *testing.T) {
	another := aChain("default", "web", through("cache", 1))
	for what, change := range map[string]func(s *sim){
		"deleted": func(s *sim) { s.remove(onpath.KindChain, "default", "web") },
		"changed": func(s *sim) { s.apply(another) },
	} {
		for _, away := range []time.Duration{0, 7 * time.Second} {
			t.Run(what+"/"+away.String(), func(t *testing.T) {
				s := fraWeb(t, 2, 2)
				gw := onpath.Clone(s.node("fra1-gw"))
				gw.Spec.Schedulable = new(bool)
				s.apply(gw)
				s.pass(time.Minute) // both are on the workers
				before := s.chain("default", "web").Status.Path
				s.mute["fra1-n1"], s.mute["fra1-n2"] = true, true
				s.pass(away)
				old := onpath.Clone(s.chain("default", "web"))
				change(s)
				s.pass(2 * time.Second)
				s.apply(aChain("default", "web", old.Spec.Through...))
				s.pass(3 * time.Second)
				// A path that has not ended, as nobody could take over, has its successor wait.
				if now := s.chain("default", "web").Status; now.Path != before && what == "deleted" || !now.Active {
					t.Errorf("the path was %d and is %d: %+v", before, now.Path, now.Conditions)
				}
				if n := s.open(); n != 2 {
					t.Errorf("%d of 2 instances get flows", n)
				}
				s.proveAll(t)
				clear(s.mute)
				s.pass(time.Minute)
				if n := s.open(); n != 2 {
					t.Errorf("%d of 2 instances get flows when the agents are back", n)
				}
			})
		}
	}
}

// TestDeletedAndAppliedTooLate: a chain that comes back when nobody of its elements may
// return begins like a new one, and not before there is an instance.
func TestDeletedAndAppliedTooLate(t *testing.T) {
	for _, after := range []time.Duration{2 * time.Second, 8 * time.Second, 100 * time.Second} {
		s := fraWeb(t, 1, 1)
		gw := onpath.Clone(s.node("fra1-gw"))
		gw.Spec.Schedulable = new(bool)
		c := aChain("default", "web", through("fw", 1))
		c.Spec.Through[0].Drain = onpath.Duration(3 * time.Second)
		s.apply(gw, c)
		s.pass(time.Minute)
		s.mute["fra1-n1"] = true
		s.pass(10 * time.Second)
		s.remove(onpath.KindChain, "default", "web")
		s.pass(2 * time.Second)
		if after == 2*time.Second {
			n1 := onpath.Clone(s.node("fra1-n1"))
			n1.Spec.Drain = true // what is there may not return
			s.apply(n1)
		} else {
			s.pass(after - 2*time.Second)
		}
		c.Status = onpath.ChainStatus{}
		s.apply(c)
		s.pass(5 * time.Second)
		if st := s.chain("default", "web").Status; st.Active || s.open() != -1 {
			t.Errorf("after %s it steers, and %d take its flows: %+v", after, s.open(), st.Conditions)
		}
		clear(s.mute)
		n1 := onpath.Clone(s.node("fra1-n1"))
		n1.Spec.Drain = false
		s.apply(n1)
		s.pass(time.Minute)
		if n := s.open(); n != 1 {
			t.Errorf("after %s: with the agent back %d instances get flows", after, n)
		}
	}
}

// TestGatewayFunctionsWithoutAgent: what a gateway's data path sends to, and what it runs
// itself, stays while it goes on without its agent, for its own flows and for those that
// the other one leads there. What is new is used when it knows that.
func TestGatewayFunctionsWithoutAgent(t *testing.T) {
	inline := func(f *onpath.FunctionSpec) { f.Container, f.EBPF = nil, &onpath.EBPFSpec{Object: "firewall"} }
	chains := map[string][]onpath.Element{
		"ae":  {through("a", 2), through("e", 1)},
		"ea":  {through("e", 1), through("a", 2)},
		"aeb": {through("a", 1), through("e", 1), through("b", 1)},
	}
	changes := map[string]func(s *sim, chain []onpath.Element){
		"nothing": func(*sim, []onpath.Element) {},
		"a new": func(s *sim, _ []onpath.Element) {
			s.apply(aFunction("default", "a", func(f *onpath.FunctionSpec) { f.Container.Command = []string{"new"} }))
		},
		"more":  func(s *sim, chain []onpath.Element) { s.apply(aChain("default", "web", sized(chain, 1)...)) },
		"fewer": func(s *sim, chain []onpath.Element) { s.apply(aChain("default", "web", sized(chain, -1)...)) },
	}
	for name, chain := range chains {
		for what, change := range changes {
			for _, mute := range [][]string{{"fra1-gw"}, {"fra1-gw2"}, {"fra1-gw", "fra1-n1"}} {
				for _, cordoned := range []bool{true, false} {
					if !cordoned && what != "nothing" {
						continue
					}
					t.Run(fmt.Sprintf("%s/%s/%s/%v", name, what, strings.Join(mute, ","), cordoned), func(t *testing.T) {
						s := pairSite(t, cordoned)
						s.apply(aFunction("default", "a", nil), aFunction("default", "b", nil), aFunction("default", "e", inline))
						s.apply(aChain("default", "web", chain...))
						s.pass(time.Minute)
						s.proveAll(t)
						for _, n := range mute {
							s.mute[n] = true
						}
						s.pass(8 * time.Second)
						change(s, chain)
						for range 7 { // for far longer than until a node is given up
							s.pass(10 * time.Second)
							s.proveAll(t)
						}
						for _, e := range s.chain("default", "web").Status.Elements {
							if e.Outdated > 0 && !strings.Contains(e.Message, "waits for gateway "+mute[0]) {
								t.Errorf("it does not say why the change waits: %+v", e)
							}
						}
						plans := s.generations()
						s.pass(30 * time.Second)
						if now := s.generations(); !maps.Equal(now, plans) {
							t.Errorf("nodes get new plans: %v, before %v", now, plans)
						}
						clear(s.mute)
						for range 5 {
							s.pass(10 * time.Second)
							s.proveAll(t)
						}
						for _, e := range s.chain("default", "web").Status.Elements {
							if e.Ready != e.Desired || e.Outdated != 0 {
								t.Errorf("with all agents back: %+v", e)
							}
						}
					})
				}
			}
		}
	}
}

// sized has function a with so many instances more, one at least.
func sized(chain []onpath.Element, more int) []onpath.Element {
	chain = slices.Clone(chain)
	for k, e := range chain {
		if e.Function == "a" {
			chain[k] = through("a", max(1, *e.Instances+more))
		}
	}
	return chain
}

// TestServerAnewGatewayWithoutAgent: a server that was started anew has heard nothing of a
// gateway without agent, but those that send to it say that it lives: nothing is taken
// away. Of a gateway that never was there nobody says so.
func TestServerAnewGatewayWithoutAgent(t *testing.T) {
	s := pairSite(t, true)
	s.apply(aFunction("default", "a", nil), aFunction("default", "e", func(f *onpath.FunctionSpec) {
		f.Container, f.EBPF = nil, &onpath.EBPFSpec{Object: "firewall"}
	}), aChain("default", "web", through("a", 2), through("e", 1)))
	s.pass(time.Minute)
	gw := s.states["fra1-gw"]
	s.mute["fra1-gw"] = true
	delete(s.states, "fra1-gw")
	s.past["fra1-gw"] = true // its plan is not known here
	s.started = s.now
	for round := range 48 {
		s.pass(5 * time.Second)
		switch round {
		case 12:
			s.apply(aFunction("default", "a", func(f *onpath.FunctionSpec) { f.Container.Command = []string{"new"} }))
		case 24:
			s.apply(aChain("default", "web", through("a", 1), through("e", 1)))
		case 36:
			s.apply(aChain("default", "web", through("a", 3), through("e", 1)))
		}
		plans := s.snapshot().InForce()
		plans["fra1-gw"] = gw.Acked
		if p := verify.Check(verify.Input{Objects: s.objects, Plans: plans}); p.Verdict == onpath.VerdictRefuted {
			t.Fatalf("refuted: %s%s", refutations(p), s.dump())
		}
	}
	s.states["fra1-gw"] = gw
	clear(s.mute)
	clear(s.past)
	s.pass(time.Minute)
	s.proveAll(t)
	// One that is only declared.
	s.apply(aNode("fra1-gw0", "fra1", 180, true))
	s.remove(onpath.KindNode, "", "fra1-gw")
	delete(s.states, "fra1-gw")
	s.past["fra1-gw"] = true
	s.pass(time.Minute)
	s.remove(onpath.KindChain, "default", "web")
	s.pass(2 * time.Minute)
	if n := len(s.instances("")); n != 0 {
		t.Errorf("%d instances stay for a gateway that nobody has ever seen", n)
	}
}

// TestNeverServedOnSteering: what never served on a gateway that steers without its agent
// is made elsewhere.
func TestNeverServedOnSteering(t *testing.T) {
	s := pairSite(t, false)
	s.apply(aFunction("default", "a", nil), aFunction("default", "b", nil), aChain("default", "other", through("b", 1)))
	s.pass(time.Minute)
	s.cordon(true, "fra1-n1", "fra1-n2", "fra1-gw2")
	s.broken["web-a"] = true
	c := aChain("default", "web", through("a", 1))
	c.Spec.Priority = 5
	s.apply(c)
	s.pass(10 * time.Second)
	if list := s.instances("web-a"); len(list) != 1 || list[0].Spec.Node != "fra1-gw" {
		t.Fatalf("instances: %+v", list)
	}
	s.mute["fra1-gw"] = true
	s.cordon(false, "fra1-n1", "fra1-n2")
	s.pass(time.Minute)
	delete(s.broken, "web-a")
	s.pass(time.Minute)
	if e := s.chain("default", "web").Status.Elements[0]; e.Ready != 1 {
		t.Errorf("nobody serves: %+v", e)
	}
}

// TestChangeWaitsForTheGateway: the only gateway knows one instance, and steers without
// its agent: that one serves on, and its successor's status says what it waits for.
func TestChangeWaitsForTheGateway(t *testing.T) {
	s := fraWeb(t, 1, 1)
	gw := onpath.Clone(s.node("fra1-gw"))
	gw.Spec.Schedulable = new(bool)
	s.apply(gw)
	s.pass(time.Minute)
	s.mute["fra1-gw"] = true
	s.pass(10 * time.Second)
	s.apply(aFunction("default", "fw", func(f *onpath.FunctionSpec) { f.Container.Command = []string{"new"} }))
	for range 24 {
		s.pass(5 * time.Second)
		s.proveAll(t)
		if e := s.chain("default", "web").Status.Elements[0]; e.Outdated != 1 || !strings.Contains(e.Message, "waits for gateway fra1-gw") {
			t.Fatalf("%+v", e)
		}
	}
	clear(s.mute)
	s.pass(time.Minute)
	if e := s.chain("default", "web").Status.Elements[0]; e.Ready != 1 || e.Outdated != 0 {
		t.Errorf("with the agent back: %+v", e)
	}
}

// TestWorkerWithoutAgent: a node without agent leads answers back to those instances of
// the element before that it knows. One that is new gets no flows until it knows it.
func TestWorkerWithoutAgent(t *testing.T) {
	s := newSim(t, 5)
	s.site("fra1", 1, 3)
	s.cordon(true, "fra1-gw")
	s.apply(aFunction("default", "a", nil), aFunction("default", "b", nil), aChain("default", "web", through("a", 1), through("b", 1)))
	s.pass(time.Minute)
	worker := s.instances("web-b")[0].Spec.Node
	s.mute[worker] = true
	s.pass(8 * time.Second)
	s.apply(aChain("default", "web", through("a", 2), through("b", 1)))
	for range 20 { // until it is given up
		s.pass(time.Second)
		s.proveAll(t)
		if n := s.open(); n != 1 {
			t.Fatalf("%d instances get flows, and node %s knows one", n, worker)
		}
		if e := s.chain("default", "web").Status.Elements[0]; !strings.Contains(e.Message, "waits for node "+worker) {
			t.Fatalf("it does not say what it waits for: %+v", e)
		}
	}
	s.pass(time.Minute)
	if n := s.open(); n != 2 {
		t.Errorf("%d of 2 instances get flows after another node has taken over", n)
	}
	clear(s.mute)
	s.pass(time.Minute)
	if n := s.open(); n != 2 {
		t.Errorf("%d of 2 instances get flows when the agent is back", n)
	}
}

// TestWorkerOfTwoElements: a worker without agent that runs two elements of a chain is
// given up: what is made in place of the one does not wait for the other.
func TestWorkerOfTwoElements(t *testing.T) {
	for _, count := range []int{1, 2} {
		s := newSim(t, 5)
		s.site("fra1", 1, count)
		s.cordon(true, "fra1-gw")
		s.apply(aFunction("default", "a", nil), aFunction("default", "b", nil), aChain("default", "web", through("a", count), through("b", count)))
		s.pass(time.Minute)
		for _, i := range s.instances("") {
			if i.Spec.Node == "fra1-gw" {
				t.Fatalf("instance %s is at the gateway", i.Metadata.Name)
			}
		}
		s.apply(aNode("fra1-n9", "fra1", 90, false))
		s.connect("fra1-n9")
		s.pass(10 * time.Second)
		s.mute["fra1-n1"] = true
		s.pass(90 * time.Second)
		s.proveAll(t)
		for _, i := range s.instances("") {
			if i.Spec.Node == "fra1-n1" && i.Spec.Draining.IsZero() {
				t.Errorf("of %d: instance %s still serves at the node that was given up", count, i.Metadata.Name)
			}
		}
		if n := s.open(); n != count {
			t.Errorf("%d of %d instances get flows", n, count)
		}
	}
}
