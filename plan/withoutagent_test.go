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
		"more": func(s *sim, chain []onpath.Element) {
			more := slices.Clone(chain)
			for k, e := range more {
				if e.Function == "a" {
					more[k] = through("a", *e.Instances+1)
				}
			}
			s.apply(aChain("default", "web", more...))
		},
	}
	for name, chain := range chains {
		for what, change := range changes {
			for _, mute := range [][]string{{"fra1-gw"}, {"fra1-gw2"}, {"fra1-gw", "fra1-n1"}} {
				for _, cordoned := range []bool{true, false} {
					if !cordoned && what != "nothing" {
						continue
					}
					t.Run(fmt.Sprintf("%s/%s/%s/%v", name, what, strings.Join(mute, ","), cordoned), func(t *testing.T) {
						s := newSim(t, 7)
						s.site("fra1", 1, 2)
						s.apply(aNode("fra1-gw2", "fra1", 190, true))
						s.connect("fra1-gw2")
						for _, g := range []string{"fra1-gw", "fra1-gw2"} {
							n := onpath.Clone(s.node(g))
							run := !cordoned
							n.Spec.Schedulable = &run
							s.apply(n)
						}
						s.apply(aFunction("default", "a", nil), aFunction("default", "b", nil), aFunction("default", "e", inline))
						s.apply(aChain("default", "web", chain...))
						s.pass(time.Minute)
						s.proveAll(t)
						for _, n := range mute {
							s.mute[n] = true
						}
						s.pass(8 * time.Second)
						change(s, chain)
						for range 14 { // for far longer than until a node is given up
							s.pass(5 * time.Second)
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
						for range 10 {
							s.pass(5 * time.Second)
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

// TestServerAnewGatewayWithoutAgent: a server that was started anew has heard nothing of a
// gateway without agent, but those that send to it say that it lives: nothing is taken
// away. Of a gateway that never was there nobody says so.
func TestServerAnewGatewayWithoutAgent(t *testing.T) {
	s := newSim(t, 7)
	s.site("fra1", 1, 2)
	s.apply(aNode("fra1-gw2", "fra1", 190, true))
	s.connect("fra1-gw2")
	for _, g := range []string{"fra1-gw", "fra1-gw2"} {
		n := onpath.Clone(s.node(g))
		n.Spec.Schedulable = new(bool)
		s.apply(n)
	}
	s.apply(aFunction("default", "a", nil), aFunction("default", "e", func(f *onpath.FunctionSpec) {
		f.Container, f.EBPF = nil, &onpath.EBPFSpec{Object: "firewall"}
	}), aChain("default", "web", through("a", 2), through("e", 1)))
	s.pass(time.Minute)
	gw := s.states["fra1-gw"]
	s.mute["fra1-gw"] = true
	delete(s.states, "fra1-gw")
	s.past["fra1-gw"] = true // its plan is not known here
	for range 24 {
		s.pass(5 * time.Second)
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

// TestPlaceChanged: instances move to where their deployment now wants them, when there
// are others to take over, and its status says that they have yet to.
func TestPlaceChanged(t *testing.T) {
	s := fraWeb(t, 2, 1)
	at := func(node string) {
		t.Helper()
		for _, i := range s.instances("") {
			if i.Spec.Draining.IsZero() && i.Spec.Node != node {
				t.Errorf("%s is on %s, not %s", i.Metadata.Name, i.Spec.Node, node)
			}
		}
	}
	place := func(node string) {
		c := aChain("default", "web", through("fw", 1))
		c.Spec.Through[0].Place.Nodes = map[string]string{"name": node}
		s.apply(c)
	}
	for _, node := range []string{"fra1-n1", "fra1-n2"} {
		place(node)
		for range 60 {
			s.pass(time.Second)
			if n := s.open(); n < 1 {
				t.Fatal("nobody gets flows")
			}
		}
		at(node)
	}
	place("nowhere")
	s.pass(time.Minute)
	at("fra1-n2")
	e := s.chain("default", "web").Status.Elements[0]
	if e.Ready != 1 || e.Outdated != 1 || e.Message == "" {
		t.Errorf("it is where nobody wants it: %+v", e)
	}
}
