package plan

import (
	"testing"

	"github.com/onpath/onpath"
)

// TestSecondGatewayJoinsWhileChainChanges: what a second gateway has to know before it
// steers is what the path in force leads through, whatever its chain has come to say.
func TestSecondGatewayJoinsWhileChainChanges(t *testing.T) {
	for what, next := range map[string][]onpath.Element{
		"shorter":        {through("ids", 1)},
		"others":         {through("ids", 1), through("cache", 1)},
		"longer":         {through("ids", 1), through("fw", 2), through("cache", 1)},
		"other order":    {through("cache", 1), through("ids", 1), through("fw", 2)},
		"one that fails": {through("ids", 1), through("fw", 2)},
	} {
		t.Run(what, func(t *testing.T) { secondGatewayJoins(t, next) })
	}
}

func secondGatewayJoins(t *testing.T, next []onpath.Element) {
	s := newSim(t, 3)
	s.site("fra1", 1, 3)
	s.apply(aFunction("default", "fw", nil), aFunction("default", "ids", nil), aFunction("default", "cache", nil))
	s.apply(aChain("default", "web", through("fw", 2), through("cache", 1)))
	s.settle()
	old := s.chain("default", "web").Status.Path

	s.broken["web-ids"] = true
	s.apply(aChain("default", "web", next...))
	s.settle()
	s.apply(aNode("fra1-gw2", "fra1", 190, true))
	s.connect("fra1-gw2")
	for _, i := range s.instances("web-fw") {
		s.mute[i.Spec.Node] = true // it does not know the second gateway
	}
	look := func() {
		t.Helper()
		x := indexOf(s.states["fra1-gw2"].Acked)
		for k := range 2 {
			if x.picksUp() && !x.member(onpath.GroupOf(old, k, false)) {
				t.Fatalf("the second gateway steers before it knows an instance of element %d of the path in force", k)
			}
		}
	}
	s.watch(look)
	if indexOf(s.states["fra1-gw2"].Acked).picksUp() {
		t.Error("the second gateway steers before the nodes of the path in force know it")
	}
	clear(s.mute)
	s.hear()
	s.watch(look)
	if x := indexOf(s.states["fra1-gw2"].Acked); !x.picksUp() || x.path(old) == nil || !x.path(old).Ended.IsZero() {
		t.Error("the second gateway does not steer by the path in force")
	}
}
