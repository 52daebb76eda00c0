package plan

import (
	"fmt"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/verify"
)

// large is a cloudlet of n nodes and chains with elements of two instances each
// and one at the end, settled.
func large(t *testing.T, n, chains, elements, prefixesEach int) *sim {
	s := newSim(t, 1)
	s.site("fra1", 1, n)
	s.apply(aFunction("default", "fw", func(f *onpath.FunctionSpec) { f.Resources.CPU, f.Resources.Memory = 10, 8<<20 }))
	for i := range chains {
		var through []onpath.Element
		for k := range elements {
			d := fmt.Sprintf("%c%d", 'a'+k, i)
			count := 2
			if k == elements-1 {
				count = 1
			}
			s.apply(aDeployment("default", d, "fw", count))
			through = append(through, onpath.Element{Deployment: onpath.Ref(d)})
		}
		c := aChain("default", fmt.Sprintf("c%d", i), through...)
		var to []string
		for k := range prefixesEach {
			to = append(to, fmt.Sprintf("198.%d.%d.%d", 18+i%2, i, k))
			if prefixesEach > 256 {
				to[k] = fmt.Sprintf("20.%d.%d.0/24", k/128, 2*(k%128))
			}
		}
		c.Spec.To = onpath.Endpoints{Prefixes: prefixes(to...)}
		c.Spec.Select = []onpath.Selector{{Protocol: "tcp", DestinationPorts: []onpath.PortRange{{First: 80, Last: 80}, {First: 8000, Last: 8999}}}}
		s.apply(c)
	}
	for range 200 {
		sn := s.snapshot()
		for i := range uint32(1500) {
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
	return s
}

// BenchmarkMake plans for 20 nodes, 50 chains of three elements and 250
// instances when one instance has died: what stands between a death and the
// gateway's new plan.
func BenchmarkMake(b *testing.B) {
	s := large(&testing.T{}, 20, 50, 3, 1)
	s.broken["a7"] = true
	s.hear()
	sn := s.snapshot()
	if len(s.instances("")) != 250 {
		b.Fatalf("%d instances", len(s.instances("")))
	}
	for b.Loop() {
		Make(sn)
	}
}

// BenchmarkVerify proves a large network, and one chain with many prefixes.
func BenchmarkVerify(b *testing.B) {
	for _, c := range []struct{ nodes, chains, elements, prefixes int }{{20, 100, 5, 3}, {2, 1, 3, 10_000}} {
		b.Run(fmt.Sprintf("%dchains,%delements,%dnodes,%dprefixes", c.chains, c.elements, c.nodes, c.prefixes), func(b *testing.B) {
			s := large(&testing.T{}, c.nodes, c.chains, c.elements, c.prefixes)
			in := verify.Input{Objects: s.objects, Plans: s.snapshot().InForce()}
			p := verify.Check(in)
			if p.Verdict != onpath.VerdictProved {
				b.Fatalf("%s %s", p.Verdict, refutations(p))
			}
			b.ReportAllocs()
			for b.Loop() {
				verify.Check(in)
			}
			b.ReportMetric(float64(p.Classes), "classes")
		})
	}
}
