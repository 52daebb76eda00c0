package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/verify"
)

// TestLeasedServers: the first slots of a node that lends to servers have addresses of the
// public pools, which nobody else has. What comes for a server goes to its engine from either
// gateway of a pair: trace shows it and verify proves it, unless a chain takes it. The
// addresses go when the operator lends no more.
func TestLeasedServers(t *testing.T) {
	s := newSim(t, 5)
	s.set.PublicPools = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/29"), netip.MustParsePrefix("2001:db8:5::/64")}
	s.site("fra1", 1, 0)
	s.apply(aNode("fra1-gw2", "fra1", 110, true))
	s.connect("fra1-gw2")
	voice := aTenant("voice", "203.0.113.0/24")
	voice.Spec.Keys = []onpath.PublicKey{make([]byte, 32)}
	s.apply(voice)
	lend := func(n int) {
		for _, node := range []string{"fra1-gw", "fra1-gw2"} {
			o := onpath.Clone(s.objects[onpath.Key{Kind: onpath.KindNode, Name: node}].(*onpath.Node))
			o.Spec.Leases = &onpath.LeasesSpec{Servers: n}
			s.apply(o)
		}
		s.settle()
	}
	slots := func(node string) []onpath.LeaseSlot {
		return s.objects[onpath.Key{Kind: onpath.KindNode, Name: node}].(*onpath.Node).Status.Leases
	}
	lend(2)
	seen := map[netip.Addr]bool{}
	for _, node := range []string{"fra1-gw", "fra1-gw2"} {
		for i, slot := range slots(node) {
			if want := map[bool]int{true: 2}[i < 2]; len(slot.Serves) != want {
				t.Errorf("slot %d of %s has addresses %v", i, node, slot.Serves)
			}
			for _, a := range slot.Serves {
				if seen[a] {
					t.Errorf("%s stands in two slots", a)
				}
				seen[a] = true
			}
		}
	}
	slot := slots("fra1-gw")[0]
	s.leases = map[string][]onpath.LeaseReport{"fra1-gw": {{Name: "web-1", LeaseStatus: onpath.LeaseStatus{State: onpath.InstanceReady},
		LeaseSpec: onpath.LeaseSpec{Publisher: "voice", Known: true, Key: voice.Spec.Keys[0], Module: "web", Vport: slot.Vport, ServesOnly: true,
			Serves: []onpath.ServedPort{{Protocol: "tcp", Port: 80}}, Addresses: slot.Serves, Since: s.now, Until: s.now.Add(time.Hour)}}}}
	s.report("fra1-gw")
	s.settle()
	verdict := func() *onpath.ChainVerification {
		r := verify.Check(verify.Input{Now: s.now, Objects: s.objects, Plans: s.snapshot().InForce()})
		i := slices.IndexFunc(r.Chains, func(c onpath.ChainVerification) bool { return c.Chain == "voice/leases" })
		if i < 0 {
			t.Fatalf("verify says nothing of the servers: %+v", r.Chains)
		}
		return &r.Chains[i]
	}
	if v := verdict(); v.Verdict != onpath.VerdictProved || v.Classes != 4 {
		t.Fatalf("%+v %+v", v, v.Counterexample)
	}
	for _, gateway := range []string{"fra1-gw", "fra1-gw2"} {
		tr := Trace(TraceInput{Snapshot: s.snapshot(), Request: onpath.TraceRequest{Gateway: gateway, Tuple: onpath.Tuple{
			Protocol: 6, Src: netip.MustParseAddr("192.0.2.7"), SrcPort: 1000, Dst: slot.Serves[0], DstPort: 80}}})
		var way []string
		for _, h := range tr.Forward {
			way = append(way, string(h.Kind))
		}
		want := map[string]string{"fra1-gw": "edge element", "fra1-gw2": "edge tunnel element"}[gateway]
		if strings.Join(way, " ") != want || !strings.Contains(tr.Forward[len(way)-1].Message, "web until") {
			t.Errorf("from %s: %v, want %s", gateway, tr.Forward, want)
		}
	}
	if p := s.snapshot().InForce()["fra1-gw2"].WithLeases(nil); p.Datapath.Validate() != nil {
		t.Errorf("the plan of the other gateway: %v", p.Datapath.Validate())
	}

	all := aChain(onpath.DefaultTenant, "all", onpath.Element{Function: "fw"})
	all.Spec.From, all.Spec.To = onpath.Endpoints{Any: true}, onpath.Endpoints{Any: true}
	s.apply(aFunction(onpath.DefaultTenant, "fw", nil), all)
	s.pass(time.Second)
	if v := verdict(); v.Verdict != onpath.VerdictRefuted || !strings.Contains(fmt.Sprint(v.Counterexample.Message), "default/all") {
		t.Errorf("a chain takes all, and verify says %+v %+v", v, v.Counterexample)
	}
	lend(0)
	for _, slot := range slots("fra1-gw") {
		if len(slot.Serves) > 0 {
			t.Errorf("the operator lends no addresses, and %v is a slot's", slot.Serves)
		}
	}
	if p := s.snapshot().InForce()["fra1-gw2"]; len(p.PeerLeases) > 0 {
		t.Errorf("the other gateway leads to %+v", p.PeerLeases)
	}
}
