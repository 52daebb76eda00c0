package plan

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// refusal is what the server says to an object, "" if it takes it.
func (s *sim) refusal(o onpath.Object) (onpath.Code, string) {
	s.t.Helper()
	o = onpath.Clone(o)
	if err := o.Validate(); err != nil { // which fills defaults in
		s.t.Fatal(err)
	}
	before, after := s.snapshot(), s.snapshot()
	k := onpath.KeyOf(o)
	after.Objects = maps.Clone(s.objects)
	after.Objects[k] = o
	o.Meta().Created = s.now
	err := CheckChange(before, after, []onpath.Key{k})
	if err == nil {
		return "", ""
	}
	return onpath.CodeOf(err), err.Error()
}

// holds fails unless the object is refused for want of room, in these words, or taken
// if there are none.
func (s *sim) holds(o onpath.Object, words ...string) {
	s.t.Helper()
	code, why := s.refusal(o)
	switch {
	case len(words) == 0 && code != "":
		s.t.Errorf("%s: refused: %s", onpath.KeyOf(o), why)
	case len(words) > 0 && code != onpath.CodeNoCapacity:
		s.t.Errorf("%s: got %s %q, want no room", onpath.KeyOf(o), code, why)
	}
	for _, w := range words {
		if !strings.Contains(why, w) {
			s.t.Errorf("%q does not say %q", why, w)
		}
	}
}

// TestNodeLimits: what a node's data path would refuse, for all tenants of the node, is
// refused when it is applied, to the one who asks for it.
func TestNodeLimits(t *testing.T) {
	t.Run("members", func(t *testing.T) {
		s := newSim(t, 1)
		s.site("fra1", 1, 1)
		s.apply(aFunction("default", "fw", nil))
		s.holds(aChain("default", "web", through("fw", 128)))
		s.holds(aChain("default", "web", through("fw", 129)), "spec.through[0].instances", "129", "128 at most")
		s.holds(aDeployment("default", "fw", "fw", 128))
		s.holds(aDeployment("default", "fw", "fw", 129), "spec.instances", "129", "128 at most")
	})
	t.Run("tables", func(t *testing.T) {
		s := newSim(t, 1)
		s.site("fra1", 1, 1)
		s.apply(aFunction("default", "fw", nil))
		var all []onpath.Element
		for k := range 31 {
			d := fmt.Sprintf("d%d", k)
			s.apply(aDeployment("default", d, "fw", 1))
			all = append(all, onpath.Element{Deployment: onpath.Ref(d)})
		}
		chain := func(i int) *onpath.Chain {
			c := aChain("default", fmt.Sprintf("c%d", i), all...)
			c.Spec.To = onpath.Endpoints{Prefixes: prefixes(fmt.Sprintf("198.51.%d.%d", i/256, i%256))}
			return c
		}
		for i := range 479 { // each with 64 tables
			s.apply(chain(i))
		}
		s.holds(chain(479), "chain default/c479", "cloudlet fra1", "30722 tables of at most 30720")
		s.remove(onpath.KindChain, "default", "c3")
		s.holds(chain(479))
	})
	t.Run("vports", func(t *testing.T) {
		s := newSim(t, 1)
		s.site("fra1", 1, 1)
		s.apply(aFunction("default", "fw", nil))
		placed := func(i int) *onpath.Deployment {
			d := aDeployment("default", fmt.Sprintf("d%d", i), "fw", 128)
			d.Spec.Place.Cloudlets = []string{"fra1"}
			return d
		}
		for i := range 59 {
			s.apply(placed(i))
		}
		s.holds(placed(59), "spec.place", "cloudlet fra1", "7682 vports of at most 7680")
		s.holds(aChain("default", "web", through("fw", 127)), "chain default/web", "vports")
		s.holds(aChain("default", "web", through("fw", 126)))
	})
}

// TestGroupsUnderChange: old and new instances are members of the same groups; together
// they are never more than a data path chooses among. (The plans are held against its
// limits at every step.)
func TestGroupsUnderChange(t *testing.T) {
	// Of a full group one instance after the other is replaced: three will do here.
	for n, left := range map[int]int{70: 0, 128: 125} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			s := newSim(t, 2)
			s.site("fra1", 1, 2)
			small := func(command string) *onpath.Function {
				return aFunction("default", "fw", func(f *onpath.FunctionSpec) {
					f.Container.Command, f.Resources = []string{command}, onpath.Resources{CPU: 10, Memory: 4 << 20}
				})
			}
			e := through("fw", n)
			e.Drain = onpath.Duration(time.Second)
			s.apply(small("old"), aChain("default", "web", e))
			s.settle()
			s.pass(3 * time.Second)
			if s.open() != n {
				t.Fatalf("%d of %d instances get flows", s.open(), n)
			}
			s.apply(small("new"))
			for range 3 * n {
				s.now = s.now.Add(3 * time.Second)
				s.hear()
				s.settle()
				if s.open() < n-1 {
					t.Fatalf("only %d of %d instances get flows", s.open(), n)
				}
				if e := s.chain("default", "web").Status.Elements[0]; e.Ready == n && e.Outdated <= left {
					return
				}
			}
			t.Errorf("not replaced: %+v", s.chain("default", "web").Status.Elements)
		})
	}
}

// TestPathsUnderChange: a new path waits where those that end leave no room for it.
func TestPathsUnderChange(t *testing.T) {
	s := newSim(t, 3)
	s.site("fra1", 1, 1)
	s.settle()
	gw := s.states["fra1-gw"]
	gw.Acked = throughJSON(t, gw.Acked) // no plan that was planned with may change
	d := &gw.Acked.Datapath
	for i := range onpath.MaxPaths - 3 {
		d.Paths = append(d.Paths, onpath.Path{ID: onpath.PathID(100_000 + i), Chain: "default/gone", Tenant: "default", Began: s.now, Ended: s.now, Adopt: 0, Idle: onpath.Idle{}})
	}
	s.apply(aFunction("default", "fw", nil))
	for i := range 5 {
		c := aChain("default", fmt.Sprintf("c%d", i), through("fw", 1))
		c.Spec.To = onpath.Endpoints{Prefixes: prefixes(fmt.Sprintf("198.51.100.%d", i+1))}
		s.apply(c)
	}
	s.think() // they get their ids
	s.think()
	if n := len(s.states["fra1-gw"].Sent); n == 0 {
		t.Fatal("no plan")
	}
	paths := 0
	for _, p := range s.states["fra1-gw"].latest().Datapath.Paths {
		if p.Chain != "default/gone" {
			paths++
		}
	}
	if paths != 3 {
		t.Errorf("%d new paths beside %d that end", paths, onpath.MaxPaths-3)
	}
	cond := s.chain("default", "c4").Status.Conditions
	if m := cond[len(cond)-1].Message; !strings.Contains(m, "4096 paths of at most 4095") {
		t.Errorf("it does not say why: %q", m)
	}
	s.settle()
	for i := range 5 {
		if !s.chain("default", fmt.Sprintf("c%d", i)).Status.Active {
			t.Errorf("chain c%d does not begin when the old paths are gone", i)
		}
	}
}
