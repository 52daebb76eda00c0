package plan

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

func (s *sim) node(name string) *onpath.Node {
	return s.objects[onpath.Key{Kind: onpath.KindNode, Name: name}].(*onpath.Node)
}

// drain says whether a node is to be drained.
func (s *sim) drain(name string, drain bool) {
	n := onpath.Clone(s.node(name))
	n.Spec.Drain = drain
	s.apply(n)
	s.settle()
}

func (s *sim) drainedCondition(name string) (c onpath.Condition) {
	list := s.node(name).Status.Conditions
	if i := slices.IndexFunc(list, func(c onpath.Condition) bool { return c.Type == onpath.ConditionDrained }); i >= 0 {
		c = list[i]
	}
	return c
}

// TestDrainLast: instances that have nowhere to go stay, all of them, and the node
// says which and why; they go as soon as there is a place for them.
func TestDrainLast(t *testing.T) {
	s := fraWeb(t, 1, 3)
	if c := s.drainedCondition("fra1-n1"); c.Type != "" {
		t.Errorf("before: %+v", c)
	}
	for _, n := range []string{"fra1-gw", "fra1-n1"} {
		s.drain(n, true)
	}
	s.pass(5 * time.Second)
	if s.open() != 3 {
		t.Errorf("%d of 3 instances get flows", s.open())
	}
	var on []string
	for _, i := range s.instances("web-fw") {
		if c := s.drainedCondition(i.Spec.Node); c.Status != onpath.False || c.Reason != onpath.ReasonStuck || !strings.Contains(c.Message, "default/"+i.Metadata.Name) {
			t.Errorf("%s is on %s, which says %+v", i.Metadata.Name, i.Spec.Node, c)
		}
		on = append(on, i.Spec.Node)
	}
	node := on[0]
	if c := s.drainedCondition(node); !strings.Contains(c.Message, "cannot move default/web-fw-") || !strings.Contains(c.Message, ": no node of cloudlet fra1 can run web-fw: ") || !strings.Contains(c.Message, node+" is being drained") {
		t.Errorf("%s says %q", node, c.Message)
	}
	if told := slices.DeleteFunc(slices.Clone(s.events), func(e Event) bool { return e.Reason != onpath.ReasonStuck || e.Node != node }); len(told) != 1 {
		t.Errorf("told %d times: %+v", len(told), told)
	}

	s.drain("fra1-gw", false)
	s.apply(aNode("fra1-n9", "fra1", 9, false))
	s.connect("fra1-n9")
	s.pass(20 * time.Second)
	if c := s.drainedCondition("fra1-n1"); c.Status != onpath.True || c.Message != "no instance is left on it" {
		t.Errorf("at the end %+v", c)
	}
	s.drain("fra1-n1", false)
	if c := s.drainedCondition("fra1-n1"); c.Type != "" {
		t.Errorf("of a node that takes instances again: %+v", c)
	}
}

// TestDrainCounts: while instances leave, the node says how many are left.
func TestDrainCounts(t *testing.T) {
	s := fraWeb(t, 2, 4)
	var seen []string
	n := onpath.Clone(s.node("fra1-n1"))
	n.Spec.Drain = true
	s.apply(n)
	look := func() {
		if m := s.drainedCondition("fra1-n1").Message; m != "" && !slices.Contains(seen, m) {
			seen = append(seen, m)
		}
	}
	s.watch(look)
	for range 50 {
		s.pass(100 * time.Millisecond)
		look()
	}
	if c := s.drainedCondition("fra1-n1"); c.Status != onpath.True {
		t.Errorf("at the end %+v", c)
	}
	if len(seen) < 3 || !strings.HasSuffix(seen[0], " left") || !strings.HasSuffix(seen[len(seen)-2], "left; new flows go elsewhere, and the old ones end") {
		t.Errorf("on the way it said %q", seen)
	}
}
