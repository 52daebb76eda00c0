package plan

import (
	"fmt"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// BenchmarkMake plans for 20 nodes, 50 chains of three elements and 250
// instances when one instance has died: what stands between a death and the
// gateway's new plan.
func BenchmarkMake(b *testing.B) {
	t := &testing.T{}
	s := newSim(t, 1)
	s.site("fra1", 1, 20)
	s.apply(aFunction("default", "fw", func(f *onpath.FunctionSpec) { f.Resources.CPU, f.Resources.Memory = 10, 8<<20 }))
	for i := range 50 {
		c := aChain("default", fmt.Sprintf("c%d", i), onpath.Element{Deployment: onpath.Ref(fmt.Sprintf("a%d", i))}, onpath.Element{Deployment: onpath.Ref(fmt.Sprintf("b%d", i))}, onpath.Element{Deployment: onpath.Ref(fmt.Sprintf("d%d", i))})
		c.Spec.To = onpath.Endpoints{Prefixes: prefixes(fmt.Sprintf("198.51.100.%d", i))}
		s.apply(aDeployment("default", fmt.Sprintf("a%d", i), "fw", 2), aDeployment("default", fmt.Sprintf("b%d", i), "fw", 2), aDeployment("default", fmt.Sprintf("d%d", i), "fw", 1), c)
	}
	for range 200 {
		sn := s.snapshot()
		for i := range uint32(500) {
			sn.IDs.Vports = append(sn.IDs.Vports, onpath.VportID(100000+uint32(len(s.objects))*1000+i))
			sn.IDs.Paths = append(sn.IDs.Paths, onpath.PathID(1000+i))
			sn.IDs.Addresses = append(sn.IDs.Addresses, 1000+uint64(i))
		}
		r := Make(sn)
		if !carryOut(sn, r) {
			break
		}
		for n, p := range r.Plans {
			s.states[n].Acked, s.states[n].Sent = p, nil
			s.report(n)
		}
		s.now = s.now.Add(time.Millisecond)
		s.objects = sn.Objects
	}
	s.broken["a7"] = true
	s.hear()
	sn := s.snapshot()
	if len(s.instances("")) != 250 {
		b.Fatalf("%d instances", len(s.instances("")))
	}
	b.ResetTimer()
	for range b.N {
		Make(sn)
	}
}
