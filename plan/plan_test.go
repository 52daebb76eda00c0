package plan

import (
	"testing"
	"time"

	"github.com/onpath/onpath"
)

func TestOneChain(t *testing.T) {
	s := newSim(t, 1)
	s.site("fra1", 1, 3)
	s.apply(aFunction("default", "fw", nil), aFunction("default", "ids", nil), aFunction("default", "cache", nil))
	s.apply(aChain("default", "web", through("fw", 2), through("ids", 1), through("cache", 1)))
	s.settle()
	c := s.chain("default", "web")
	if !c.Status.Active || len(c.Status.Elements) != 3 || c.Status.Elements[0].Ready != 2 {
		t.Fatalf("status: %+v", c.Status)
	}
	if n := len(s.instances("")); n != 4 {
		t.Fatalf("%d instances", n)
	}
	for _, i := range s.instances("") {
		if i.Spec.Node == "fra1-gw" {
			t.Errorf("%s is on the gateway though compute nodes have room", i.Metadata.Name)
		}
	}
	s.remove(onpath.KindChain, "default", "web")
	s.settle()
	s.pass(40 * time.Second)
	if n := len(s.instances("")); n != 0 {
		t.Fatalf("%d instances are left", n)
	}
	for name, st := range s.states {
		d := st.Acked.Datapath
		if len(d.Groups)+len(d.Paths) > 0 || d.Edge != nil && d.Edge.Table != 0 {
			t.Errorf("%s still has %d groups, %d paths, edge %+v", name, len(d.Groups), len(d.Paths), d.Edge)
		}
	}
}
