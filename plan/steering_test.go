package plan

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestGatewayWithoutAgent: a gateway whose agent is dead goes on picking up traffic
// while its data path lives. However long that lasts, nothing goes to which it, or
// a node behind it, sends packets (checkOrder); once the agent is back, the machine
// is dead or its Node is deleted, everything does.
func TestGatewayWithoutAgent(t *testing.T) {
	ways := map[string]struct {
		change func(s *sim)
		left   int // instances, in the end
	}{
		"chain deleted": {func(s *sim) { s.remove(onpath.KindChain, "default", "web") }, 0},
		"element gone": {func(s *sim) {
			s.apply(aChain("default", "web", through("b", 1)))
		}, 1},
		"element changed": {func(s *sim) {
			s.apply(aFunction("default", "a", func(f *onpath.FunctionSpec) { f.Container.Command = []string{"sleep", "2"} }))
		}, 2},
	}
	ends := map[string]func(s *sim){
		"agent back":   func(s *sim) { clear(s.mute) },
		"machine dead": func(s *sim) { s.dead["fra1-gw"] = true },
		"node deleted": func(s *sim) { s.remove(onpath.KindNode, "", "fra1-gw") },
	}
	for what, way := range ways {
		for how, end := range ends {
			for _, mute := range [][]string{{"fra1-gw"}, {"fra1-gw", "fra1-n1"}} {
				t.Run(what+"/"+how+"/"+mute[len(mute)-1], func(t *testing.T) {
					gatewayWithoutAgent(t, mute, way.change, end, way.left)
				})
			}
		}
	}
}

func gatewayWithoutAgent(t *testing.T, mute []string, change, end func(*sim), left int) {
	s := newSim(t, 7)
	s.site("fra1", 1, 3)
	s.apply(aNode("fra1-gw2", "fra1", 190, true))
	s.connect("fra1-gw2")
	s.apply(aFunction("default", "a", nil), aFunction("default", "b", nil), aChain("default", "web", through("a", 1), through("b", 1)))
	s.pass(3 * time.Second)
	before := map[string]bool{}
	for _, i := range s.instances("") {
		before[i.Metadata.Name] = true
	}
	if len(before) != 2 {
		t.Fatalf("there are %d instances", len(before))
	}
	for _, n := range mute {
		s.mute[n] = true
	}
	s.pass(2 * time.Minute) // for long enough to be given up
	change(s)
	s.pass(2 * time.Minute)
	for _, i := range s.instances("") {
		delete(before, i.Metadata.Name)
	}
	for name := range before {
		t.Errorf("instance %s went while fra1-gw may send to it", name)
	}
	plans := s.generations()
	s.pass(30 * time.Second)
	if now := s.generations(); !maps.Equal(now, plans) {
		t.Errorf("nothing changes, and nodes get new plans: at %v, half a minute ago at %v", now, plans)
	}
	end(s)
	for n := range s.mute { // if any, nothing comes by them from now on
		s.past[n] = true
	}
	s.pass(2 * time.Minute)
	clear(s.mute) // what an agent runs goes when it is back
	s.pass(2 * time.Minute)
	if n := len(s.instances("")); n != left {
		t.Errorf("%d instances are left, of %d", n, left)
	}
}

// TestPlansWithoutAgent: while a gateway of a pair is without an agent, and has not ended
// what the others have, nothing is planned anew that has not changed.
func TestPlansWithoutAgent(t *testing.T) {
	for _, mute := range []string{"fra1-gw", "fra1-gw2"} {
		for what, change := range map[string]func(s *sim){
			"chain deleted": func(s *sim) { s.remove(onpath.KindChain, "default", "web") },
			"all deleted": func(s *sim) {
				s.remove(onpath.KindChain, "default", "web")
				s.remove(onpath.KindFunction, "default", "a")
				s.remove(onpath.KindFunction, "default", "b")
			},
			"element gone": func(s *sim) { s.apply(aChain("default", "web", through("b", 1))) },
		} {
			t.Run(what+"/"+mute, func(t *testing.T) {
				s := newSim(t, 7)
				s.site("fra1", 1, 3)
				s.apply(aNode("fra1-gw2", "fra1", 190, true))
				s.connect("fra1-gw2")
				a, b := through("a", 2), through("b", 1)
				a.Drain, b.Drain = onpath.Duration(5*time.Second), onpath.Duration(5*time.Second)
				s.apply(aFunction("default", "a", nil), aFunction("default", "b", nil), aChain("default", "web", a, b))
				s.pass(3 * time.Second)
				s.endless = true
				s.mute[mute] = true
				s.pass(3 * time.Second)
				change(s)
				for range 12 {
					plans := s.generations()
					s.pass(15 * time.Second)
					for name, now := range s.generations() {
						if now > plans[name]+5 {
							t.Errorf("%s got %d plans in 15 s", name, now-plans[name])
						}
					}
				}
			})
		}
	}
}

// generations are those of the nodes' plans.
func (s *sim) generations() map[string]uint64 {
	out := map[string]uint64{}
	for name, st := range s.states {
		if st.Acked != nil {
			out[name] = uint64(st.Acked.Generation)
		}
	}
	return out
}

// TestHostsOfNode: end points that are a node are all addresses of its machine, as it
// reports them, and stay so while it is away.
func TestHostsOfNode(t *testing.T) {
	s := newSim(t, 5)
	s.machines = map[string][]netip.Addr{}
	s.site("fra1", 1, 3)
	h, _ := onpath.New(onpath.KindHosts)
	h.Meta().Name, h.Meta().Tenant = "self", "default"
	h.(*onpath.Hosts).Spec.Node = "fra1-gw"
	c := aChain("default", "web", through("a", 1))
	c.Spec.From, c.Spec.To = onpath.Endpoints{Hosts: "self"}, onpath.Endpoints{Prefixes: prefixes("198.51.100.0/24", "2001:db8:9::/48")}
	s.apply(h, aFunction("default", "a", nil), c)
	s.settle()
	chosen := func(want ...string) {
		t.Helper()
		got := map[string]bool{}
		for _, table := range s.states["fra1-gw"].Acked.Datapath.Tables {
			for _, r := range table.Rules {
				for _, p := range r.Match.Src {
					got[p.String()] = true
				}
			}
		}
		for _, w := range want {
			if !got[w] {
				t.Errorf("no rule is for packets from %s, but for %v", w, slices.Sorted(maps.Keys(got)))
			}
		}
	}
	underlay := netip.PrefixFrom(s.objects[onpath.Key{Kind: onpath.KindNode, Name: "fra1-gw"}].(*onpath.Node).Spec.Underlay.Address, 32).String()
	chosen(underlay)
	s.machines["fra1-gw"] = []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7")}
	s.pass(3 * time.Second)
	chosen(underlay, "192.0.2.7/32", "2001:db8::7/128")
	s.mute["fra1-gw"] = true
	s.pass(time.Minute)
	chosen(underlay, "192.0.2.7/32", "2001:db8::7/128")
}
