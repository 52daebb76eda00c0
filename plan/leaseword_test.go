package plan

import (
	"net/netip"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestLeasesThatCannotBe: a node's word makes no lease in the name of a tenant whose key it
// does not show, for addresses that are not the publisher's, or by another node's name. The
// node says so in a condition.
func TestLeasesThatCannotBe(t *testing.T) {
	s := newSim(t, 3)
	s.site("fra1", 1, 0)
	s.site("ams1", 2, 0)
	key := onpath.PublicKey(make([]byte, 32))
	tenant := aTenant("voice", "203.0.113.0/24")
	tenant.Spec.Keys = []onpath.PublicKey{key}
	s.apply(tenant)
	for _, n := range []string{"fra1-gw", "ams1-gw"} {
		o := onpath.Clone(s.objects[onpath.Key{Kind: onpath.KindNode, Name: n}].(*onpath.Node))
		o.Spec.Leases = &onpath.LeasesSpec{Publishers: onpath.PublisherAny}
		s.apply(o)
	}
	s.settle()
	s.leases = map[string][]onpath.LeaseReport{}
	reports := func(node string, list ...onpath.LeaseReport) {
		s.leases[node] = list
		s.report(node)
		s.settle()
	}
	to := func(p string) []onpath.Prefix { return []onpath.Prefix{{Prefix: netip.MustParsePrefix(p)}} }
	lease := func(name, publisher string, known bool, k onpath.PublicKey, to []onpath.Prefix) onpath.LeaseReport {
		return onpath.LeaseReport{Name: name, LeaseSpec: onpath.LeaseSpec{Publisher: publisher, Known: known, Key: k, Module: "m", To: to,
			Since: s.now, Until: s.now.Add(time.Hour)}}
	}
	other := onpath.PublicKey(append(make([]byte, 31), 1))
	for name, c := range map[string]struct {
		report onpath.LeaseReport
		is     bool
	}{
		"a tenant's":              {lease("a-1", "voice", true, key, to("203.0.113.7/32")), true},
		"anybody's":               {lease("a-1", "key-0102030405060708", false, other, to("192.0.2.1/32")), true},
		"with a stranger's key":   {lease("a-1", "voice", true, other, to("203.0.113.7/32")), false},
		"of others' addresses":    {lease("a-1", "voice", true, key, to("198.51.100.0/24")), false},
		"by a tenant's name":      {lease("a-1", "voice", false, other, to("192.0.2.1/32")), false},
		"of more than one proves": {lease("a-1", "key-0102030405060708", false, other, to("0.0.0.0/0")), false},
		"with a long text":        {lease(string(make([]byte, maxLeaseText+1)), "voice", true, key, to("203.0.113.7/32")), false},
	} {
		reports("fra1-gw", c.report)
		if n := len(objects[*onpath.Lease](s.snapshot())); (n == 1) != c.is {
			t.Errorf("%s: %d leases", name, n)
		}
		got := condition(s.objects[onpath.Key{Kind: onpath.KindNode, Name: "fra1-gw"}].(*onpath.Node).Status.Conditions, "Leases")
		if (got.Status == onpath.False) == c.is {
			t.Errorf("%s: the node says %+v", name, got)
		}
		reports("fra1-gw")
	}
	reports("fra1-gw", lease("a-1", "voice", true, key, to("203.0.113.7/32")))
	reports("ams1-gw", lease("a-1", "voice", true, key, to("203.0.113.9/32")))
	list := objects[*onpath.Lease](s.snapshot())
	if len(list) != 1 || list[0].Spec.Node != "fra1-gw" || list[0].Spec.To[0].String() != "203.0.113.7" {
		t.Errorf("another node takes the name: %d, %+v", len(list), list[0].Spec)
	}
}
