package plan

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestChangedBack: a chain that is changed and, within the time to drain, changed back
// goes on with the instances and the path that it had, and so with its flows; later it
// gets others.
func TestChangedBack(t *testing.T) {
	for _, nodes := range []int{0, 1, 3} {
		for after, same := range map[time.Duration]bool{0: true, 2 * time.Second: true, 12 * time.Second: false} {
			t.Run(fmt.Sprintf("%d nodes, after %s", nodes, after), func(t *testing.T) {
				s := newEndless(t, nodes)
				s.change("e1", "a2", "b2")
				path := s.chain("default", "web").Status.Path
				before := s.names()
				s.change("a2")
				s.run(after)
				s.change("e1", "a2", "b2")
				s.run(3 * time.Second)
				if got := s.names(); slices.Equal(got, before) != same {
					t.Errorf("the instances were %v and are %v", before, got)
				}
				if got := s.chain("default", "web").Status.Path; (got == path) != same {
					t.Errorf("the path was %d and is %d", path, got)
				}
				s.run(40 * time.Second)
				s.empty()
				for n, st := range s.states {
					p := indexOf(st.Acked).path(s.chain("default", "web").Status.Path)
					if p == nil || !p.Ended.IsZero() || p.Began.IsZero() {
						t.Errorf("%s has of the chain's path %+v", n, p)
					}
				}
			})
		}
	}
}

// TestScaledBack: an instance too many serves on when it is wanted again; not one of
// another shape, nor on a node that is to be empty.
func TestScaledBack(t *testing.T) {
	s := newEndless(t, 2)
	s.change("a4")
	before := s.names()
	s.change("a1")
	s.change("a4")
	if got := s.names(); !slices.Equal(got, before) {
		t.Errorf("the instances were %v and are %v", before, got)
	}
	s.change("a2")
	s.apply(aFunction("default", "a", func(f *onpath.FunctionSpec) { f.Container.Command = []string{"new"} }))
	s.change("a4")
	s.run(20 * time.Second)
	s.empty()
	for _, name := range s.names() {
		if slices.Contains(before, name) {
			t.Errorf("%s runs what the function was", name)
		}
	}
}

// names are those of the instances that do not drain.
func (s *endless) names() (list []string) {
	for _, i := range s.instances("") {
		if i.Spec.Draining.IsZero() {
			list = append(list, i.Metadata.Name)
		}
	}
	slices.Sort(list)
	return list
}
