package plan

import (
	"fmt"
	"net/netip"
	"strings"
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

// BenchmarkMakeChainEnds plans for the same network after all its chains were deleted,
// while their flows drain.
func BenchmarkMakeChainEnds(b *testing.B) {
	s := large(&testing.T{}, 20, 50, 3, 1)
	for _, i := range s.instances("") {
		s.busy[i.Metadata.Name] = true
	}
	for i := range 50 {
		s.remove(onpath.KindChain, "default", fmt.Sprintf("c%d", i))
		for k := range 3 {
			s.remove(onpath.KindDeployment, "default", fmt.Sprintf("%c%d", 'a'+k, i))
		}
	}
	s.settle()
	s.hear()
	sn := s.snapshot()
	if n := len(indexOf(s.states["fra1-gw"].Acked).paths); n != 50 || len(s.instances("")) != 250 {
		b.Fatalf("%d paths and %d instances", n, len(s.instances("")))
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

// BenchmarkMakeManyRules plans for chains with 10⁵ prefixes together: what a
// change of anything costs beside them.
func BenchmarkMakeManyRules(b *testing.B) {
	s := newSim(&testing.T{}, 1)
	s.site("fra1", 1, 2)
	s.apply(aFunction("default", "fw", func(f *onpath.FunctionSpec) { f.Resources.CPU, f.Resources.Memory = 10, 8<<20 }), aDeployment("default", "d", "fw", 2))
	s.apply(longChains(20, 5000)...)
	sn := s.snapshot()
	for i := range uint32(500) {
		sn.IDs.Vports = append(sn.IDs.Vports, onpath.VportID(100000+i))
		sn.IDs.Paths = append(sn.IDs.Paths, onpath.PathID(1000+i))
		sn.IDs.Addresses = append(sn.IDs.Addresses, 1000+uint64(i))
	}
	for b.Loop() {
		Make(sn)
	}
}

// longChains have so many prefixes each, in blocks of their own.
func longChains(chains, each int) (list []onpath.Object) {
	for i := range chains {
		c := aChain("default", fmt.Sprintf("c%d", i), onpath.Element{Deployment: "d"})
		var to []onpath.Prefix
		for j := range each {
			a := netip.AddrFrom4([4]byte{20 + byte(i), byte(j >> 8), byte(j), 0})
			to = append(to, onpath.Prefix{Prefix: netip.PrefixFrom(a, 24)})
		}
		c.Spec.To = onpath.Endpoints{Prefixes: to}
		list = append(list, c)
	}
	return list
}

// TestRulesLimit: a chain with too many rules is refused by itself, and the one
// that is one too many in its cloudlet.
func TestRulesLimit(t *testing.T) {
	s := newSim(t, 1)
	s.site("fra1", 1, 1)
	s.apply(aFunction("default", "fw", nil), aDeployment("default", "d", "fw", 1))
	list := longChains(2, 10)
	many := list[0].(*onpath.Chain)
	var ports []onpath.PortRange
	for i := range uint16(250) {
		ports = append(ports, onpath.PortRange{First: 100 * i, Last: 100*i + 1})
	}
	many.Spec.Select = []onpath.Selector{{Protocol: "tcp", SourcePorts: ports, DestinationPorts: ports}}
	s.apply(list...)
	err := Check(s.snapshot())
	if err == nil || !strings.Contains(err.Error(), "rules (prefixes") || strings.Contains(err.Error(), "c1") {
		t.Errorf("of a chain with a million rules it says %v", err)
	}
	many.Spec.Select[0].SourcePorts = ports[:20] // 100,000 rules, both directions
	more := onpath.Clone(many)
	more.Metadata.Name, more.Spec.To = "c2", onpath.Endpoints{Prefixes: prefixes("20.100.0.0/24", "20.101.0.0/24", "20.102.0.0/24", "20.103.0.0/24", "20.104.0.0/24", "20.105.0.0/24", "20.106.0.0/24", "20.107.0.0/24", "20.108.0.0/24", "20.109.0.0/24")}
	last := onpath.Clone(more)
	last.Metadata.Name = "c3"
	for i := range last.Spec.To.Prefixes {
		last.Spec.To.Prefixes[i].Prefix = netip.PrefixFrom(netip.AddrFrom4([4]byte{40, byte(i), 0, 0}), 24)
	}
	s.apply(many, more)
	if err := Check(s.snapshot()); err != nil {
		t.Errorf("200,000 rules: %v", err)
	}
	s.now = s.now.Add(time.Hour)
	s.apply(last)
	err = Check(s.snapshot())
	if err == nil || !strings.Contains(err.Error(), "cloudlet fra1 has 20") || !strings.Contains(err.Error(), "c3") || strings.Contains(err.Error(), "c2") {
		t.Errorf("of 300,000 rules in a cloudlet it says %v", err)
	}
}
