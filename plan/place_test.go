package plan

import (
	"testing"
	"time"

	"github.com/onpath/onpath"
)

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

// TestMisplacedServesAgain: an instance that is not where its deployment wants it, and has
// no other place, is not given up because it does not serve for a moment.
func TestMisplacedServesAgain(t *testing.T) {
	s := fraWeb(t, 2, 1)
	c := aChain("default", "web", through("fw", 1))
	c.Spec.Through[0].Place.Nodes = map[string]string{"name": "nowhere"}
	s.apply(c)
	s.pass(10 * time.Second)
	s.broken["web-fw"] = true
	s.pass(5 * time.Second)
	delete(s.broken, "web-fw")
	s.pass(30 * time.Second)
	if n := s.open(); n != 1 {
		t.Errorf("%d instances get flows", n)
	}
}

// TestPlaceChangedWithWeights: an instance moves to a node where it gets flows, though
// another one has room, too.
func TestPlaceChangedWithWeights(t *testing.T) {
	s := newSim(t, 9)
	s.site("fra1", 1, 3)
	gw := onpath.Clone(s.node("fra1-gw"))
	gw.Spec.Schedulable = new(bool)
	s.apply(gw, aFunction("default", "fw", nil))
	for _, name := range []string{"fra1-n2", "fra1-n3"} {
		n := onpath.Clone(s.node(name))
		n.Metadata.Labels = map[string]string{"zone": "b"}
		s.apply(n)
	}
	c := aChain("default", "web", through("fw", 1))
	c.Spec.Through[0].Weights = map[string]int{"fra1-n1": 1, "fra1-n2": 0, "fra1-n3": 1}
	c.Spec.Through[0].Place.Nodes = map[string]string{"name": "fra1-n1"}
	s.apply(c)
	s.pass(time.Minute)
	c = onpath.Clone(c)
	c.Spec.Through[0].Place.Nodes = map[string]string{"zone": "b"}
	s.apply(c)
	s.pass(time.Minute)
	if e := s.chain("default", "web").Status.Elements[0]; e.Ready != 1 || e.Outdated != 0 || e.Nodes[0] != "fra1-n3" {
		t.Errorf("%+v", e)
	}
}

// TestGatewayLast: a gateway takes instances only where no other node of its cloudlet
// may have them: alone, by a label, or when the others are full.
func TestGatewayLast(t *testing.T) {
	on := func(s *sim, node string) (n int) {
		for _, i := range s.instances("") {
			if i.Spec.Node == node {
				n++
			}
		}
		return n
	}
	if s := fraWeb(t, 2, 5); on(s, "fra1-gw") != 0 {
		t.Errorf("the gateway has %d instances beside two other nodes", on(s, "fra1-gw"))
	}
	if s := fraWeb(t, 0, 3); on(s, "fra1-gw") != 3 {
		t.Errorf("alone it has %d of 3 instances", on(s, "fra1-gw"))
	}
	s := fraWeb(t, 2, 1)
	c := aChain("default", "web", through("fw", 1))
	c.Spec.Through[0].Place.Nodes = map[string]string{"name": "fra1-gw"}
	s.apply(c)
	s.pass(time.Minute)
	if on(s, "fra1-gw") != 1 {
		t.Errorf("named, it has %d of 1 instance", on(s, "fra1-gw"))
	}
	s = fraWeb(t, 1, 1)
	s.apply(aFunction("default", "fw", func(f *onpath.FunctionSpec) { f.Resources.CPU = 5000 }))
	s.apply(aChain("default", "web", through("fw", 2)))
	s.pass(time.Minute)
	if on(s, "fra1-gw") != 1 || on(s, "fra1-n1") != 1 {
		t.Errorf("%d are on the gateway and %d on a node with room for one", on(s, "fra1-gw"), on(s, "fra1-n1"))
	}
}
