package plan

import (
	"testing"

	"github.com/onpath/onpath"
)

// TestRaisedResources: what running functions ask for is held against what their nodes
// have when it is raised.
func TestRaisedResources(t *testing.T) {
	s := newSim(t, 6)
	s.site("fra1", 1, 1)
	gw := onpath.Clone(s.node("fra1-gw"))
	gw.Spec.Schedulable = new(bool)
	asks := func(memory onpath.Size, probe uint16) *onpath.Function {
		return aFunction("default", "fw", func(f *onpath.FunctionSpec) {
			f.Resources = onpath.Resources{CPU: 100, Memory: memory}
			f.Health = onpath.Health{TCP: 80, Failures: int(probe)}
		})
	}
	s.apply(gw, asks(1<<30, 3), aChain("default", "web", through("fw", 4)))
	s.settle() // the node has 8 GiB
	s.holds(asks(2<<30, 3))
	s.holds(asks(3<<30, 3), "function default/fw: spec.resources", "node fra1-n1", "4Gi of memory")

	// A node that is too full already keeps nobody from changing something else.
	n := onpath.Clone(s.node("fra1-n1"))
	n.Spec.Capacity.Memory = 2 << 30
	s.apply(n)
	s.settle()
	s.holds(asks(1<<30, 5))
	s.holds(asks(1<<29, 3))
}
