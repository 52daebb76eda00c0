package plan

import (
	"fmt"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// endless is a cloudlet with a chain whose flows never end. bounds says when an
// instance that drains must have gone: at the latest with those that drained when
// it began to.
type endless struct {
	*sim
	bounds map[string]time.Time
	paths  map[onpath.PathID]time.Time
}

func newEndless(t *testing.T, nodes int) *endless {
	s := newSim(t, 5)
	s.site("fra1", 1, nodes)
	if nodes > 1 {
		gw := onpath.Clone(s.node("fra1-gw")) // others send to each other, and not through it
		gw.Spec.Schedulable = new(bool)
		s.apply(gw)
	}
	inline := func(f *onpath.FunctionSpec) { f.Container, f.EBPF = nil, &onpath.EBPFSpec{Object: "firewall"} }
	s.apply(aFunction("default", "a", nil), aFunction("default", "b", nil), aFunction("default", "e", inline), aFunction("default", "f", inline))
	s.endless = true
	return &endless{s, map[string]time.Time{}, map[onpath.PathID]time.Time{}}
}

// change gives the chain other elements: "a2" is function a with two instances.
func (s *endless) change(elements ...string) {
	drains := map[byte]time.Duration{'a': 3 * time.Second, 'b': 6 * time.Second, 'e': 9 * time.Second, 'f': time.Second}
	var list []onpath.Element
	for _, e := range elements {
		one := through(e[:1], int(e[1]-'0'))
		one.Drain = onpath.Duration(drains[e[0]])
		list = append(list, one)
	}
	if len(list) == 0 {
		s.remove(onpath.KindChain, "default", "web")
	} else {
		s.apply(aChain("default", "web", list...))
	}
	s.settle()
	s.note()
}

// note notes what has begun to drain, and fails if something ought to have gone.
func (s *endless) note() {
	s.t.Helper()
	var last time.Time
	for _, i := range s.instances("") {
		if i.Spec.Until.After(last) {
			last = i.Spec.Until
		}
	}
	for _, i := range s.instances("") {
		name := i.Metadata.Name
		if i.Spec.Draining.IsZero() {
			delete(s.bounds, name) // it may have returned
			continue
		}
		if s.bounds[name].IsZero() {
			s.bounds[name] = last
		}
		if late := s.now.Sub(s.bounds[name]); late > 2*time.Second {
			s.t.Fatalf("instance %s is still there, %s after its time is up", name, late)
		}
	}
	for n, st := range s.states {
		for _, p := range st.Acked.Datapath.Paths {
			if p.Ended.IsZero() {
				delete(s.paths, p.ID)
			}
			if p.Until.IsZero() {
				continue
			}
			if s.paths[p.ID].IsZero() {
				s.paths[p.ID] = p.Until
			}
			if !s.paths[p.ID].Equal(p.Until) {
				s.t.Fatalf("path %d ends %s later than it ought to", p.ID, p.Until.Sub(s.paths[p.ID]))
			}
			if late := s.now.Sub(p.Until); late > 2*time.Second {
				s.t.Fatalf("%s has path %d %s after its time is up", n, p.ID, late)
			}
		}
	}
}

// empty reports whether all that drained has gone, and all paths that lost elements.
func (s *endless) empty() {
	s.t.Helper()
	for _, i := range s.instances("") {
		if !i.Spec.Draining.IsZero() {
			s.t.Errorf("instance %s drains for ever", i.Metadata.Name)
		}
	}
	there := map[string]bool{}
	for _, i := range s.instances("") {
		there[i.Metadata.Tenant+"/"+i.Spec.Deployment] = true
	}
	for n, st := range s.states {
		for _, p := range st.Acked.Datapath.Paths {
			for _, e := range p.Elements {
				if !there[e] {
					s.t.Errorf("%s has path %d through %s, which is not there", n, p.ID, e)
				}
			}
		}
	}
}

func (s *endless) run(d time.Duration) {
	s.t.Helper()
	for end := s.now.Add(d); s.now.Before(end); {
		s.now = s.now.Add(500 * time.Millisecond)
		s.hear()
		s.settle()
		s.note()
	}
}

// TestUntil: a draining instance goes when its time is up, whatever flows remain,
// whatever else changes meanwhile.
func TestUntil(t *testing.T) {
	for _, nodes := range []int{0, 1, 2, 3} {
		for what, changes := range map[string][][]string{
			"scaled":                 {{"a2"}, {"a4"}, {"a1"}},
			"gains elements, scaled": {{"a2"}, {"e1", "a2", "f1"}, {"e1", "a4", "f1"}, {"e1", "a1", "f1"}},
			"goes":                   {{"a2", "b2"}, {"b2", "a2"}, {}},
			"back and forth":         {{"a4"}, {"b1", "a4"}, {"a4"}, {"b1", "a4"}, {"a2"}, {"b1", "a1"}, {"a1"}, {"b1", "a1"}, {"a1"}},
			"goes and comes":         {{"a4"}, {"e1", "a4"}, {}, {"a4"}, {}, {"a4", "e1"}, {}, {"a4", "e1"}, {"a1", "e1"}},
		} {
			for _, pause := range []time.Duration{time.Second, 4 * time.Second} {
				t.Run(fmt.Sprintf("%s, %d nodes, every %s", what, nodes, pause), func(t *testing.T) {
					s := newEndless(t, nodes)
					for _, c := range changes {
						s.change(c...)
						s.run(pause)
					}
					s.run(20 * time.Second)
					s.empty()
					if nodes == 0 {
						return
					}
					s.drain("fra1-n1", true)
					s.run(20 * time.Second)
					s.empty()
					if c := s.drainedCondition("fra1-n1"); c.Status != onpath.True {
						t.Errorf("the node is not empty: %s", c.Message)
					}
				})
			}
		}
	}
}
