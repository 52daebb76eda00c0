package scaling

import (
	"fmt"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestGreedyTenant: a tenant with the shortest windows, in as many chains on as many nodes as
// it likes, has nodes asked at most a fifth more often than they are without it; what it is
// told itself is not older than with a window as it is by default.
func TestGreedyTenant(t *testing.T) {
	const nodes, minute = 100, time.Minute
	begin := time.Unix(1_700_000_000, 0).UTC()
	for _, c := range []struct{ chains, nodes, window int }{
		{1, 1, 5}, {1, 4, 5}, {20, 4, 5}, {20, 30, 5}, {40, nodes, 5}, {200, nodes, 5}, {30, nodes, 61}, {7, 3, 20},
	} {
		calls := func(greedy bool) (n int, seldom time.Duration) {
			now := begin
			s := New(Options{Clock: func() time.Time { return now }})
			objects, plans := map[onpath.Key]onpath.Object{}, map[string]*onpath.NodePlan{}
			var names []string
			for i := range nodes {
				names = append(names, fmt.Sprintf("n%d", i))
				plans[names[i]] = &onpath.NodePlan{}
			}
			chain := func(tenant, name string, window time.Duration, at []string) {
				o := &onpath.Chain{Metadata: onpath.Metadata{Tenant: tenant, Name: name, Version: 1}}
				o.Spec.Through = []onpath.Element{{Function: "fw"}}
				o.Spec.Scaling = &onpath.Scaling{Window: onpath.Duration(window)}
				objects[onpath.Key{Kind: onpath.KindChain, Tenant: tenant, Name: name}] = o
				for _, n := range at {
					plans[n].Datapath.Paths = append(plans[n].Datapath.Paths, onpath.Path{Chain: tenant + "/" + name})
				}
			}
			for i := range nodes / 10 {
				chain("acme", fmt.Sprintf("web%d", i), minute, names[10*i:10*i+10])
			}
			for i := range c.chains {
				if greedy {
					window := time.Duration(c.window+i%3) * time.Second
					chain("greedy", fmt.Sprintf("g%d", i), window, names[i%nodes:min(i%nodes+max(c.nodes/c.chains, 1), nodes)])
				}
			}
			s.Note(objects, plans, names)
			last := map[string]time.Time{}
			for ; now.Sub(begin) < 2*minute; now = now.Add(scaleEvery) {
				due, asked := s.dueUsage(now)
				s.usage.asking = false
				n += 2 * len(asked) // its counters, and what its instances use
				for k := range due {
					if at, ok := last[k.String()]; ok && k.Tenant == "greedy" {
						seldom = max(seldom, now.Sub(at))
					}
					last[k.String()] = now
				}
			}
			return n, seldom
		}
		without, _ := calls(false)
		with, seldom := calls(true)
		t.Logf("%d chains on %d nodes: %d calls, %d without the tenant; it is told every %s", c.chains, c.nodes, with, without, seldom)
		if 5*with > 6*without {
			t.Errorf("%d chains with windows of %ds: %d calls of nodes, and %d without them", c.chains, c.window, with, without)
		}
		if seldom > askEvery(time.Duration(onpath.DefaultWindow))+scaleEvery {
			t.Errorf("its chains are asked for every %s", seldom)
		}
	}
}
