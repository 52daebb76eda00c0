package plan

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/onpath/onpath"
)

func aTenant(name string, addresses ...string) *onpath.Tenant {
	o, _ := onpath.New(onpath.KindTenant)
	t := o.(*onpath.Tenant)
	if len(addresses) == 0 {
		addresses = []string{"0.0.0.0/0", "::/0"}
	}
	t.Metadata.Name, t.Spec.Addresses = name, prefixes(addresses...)
	return t
}

func someHosts(tenant, name string, addresses, virtual []string) *onpath.Hosts {
	o, _ := onpath.New(onpath.KindHosts)
	h := o.(*onpath.Hosts)
	h.Metadata.Name, h.Metadata.Tenant = name, tenant
	h.Spec.Addresses, h.Spec.Virtual = prefixes(addresses...), prefixes(virtual...)
	return h
}

// TestTenantAddresses: a tenant with addresses selects what comes from or goes to them
// and nothing else; a refusal says what is not within them, and where it is written.
func TestTenantAddresses(t *testing.T) {
	ends := func(addresses ...string) onpath.Endpoints { return onpath.Endpoints{Prefixes: prefixes(addresses...)} }
	all := onpath.Endpoints{Any: true}
	hosts := func(name string) onpath.Endpoints { return onpath.Endpoints{Hosts: onpath.Ref(name)} }
	chain := func(from, to onpath.Endpoints, change ...func(*onpath.ChainSpec)) onpath.ChainSpec {
		s := onpath.ChainSpec{From: from, To: to, Priority: 5}
		for _, f := range change {
			f(&s)
		}
		return s
	}
	selects := func(list ...onpath.Selector) func(*onpath.ChainSpec) {
		return func(s *onpath.ChainSpec) { s.Select = list }
	}
	forward := func(s *onpath.ChainSpec) { s.Direction = onpath.DirectionForward }
	for name, c := range map[string]struct {
		spec       onpath.ChainSpec
		field, bad string // empty: allowed
	}{
		"any to its own":                      {spec: chain(all, ends("10.2.0.0/24"))},
		"its own to any":                      {spec: chain(ends("10.2.0.7"), all)},
		"its own of both versions to any":     {spec: chain(ends("10.2.0.7", "2001:db8:2::/64"), all)},
		"within prefixes that make up one":    {spec: chain(all, ends("10.2.0.0/23"))},
		"wider than its own":                  {spec: chain(all, ends("10.2.0.0/22")), field: "spec.to", bad: "10.2.0.0/22"},
		"any to another's":                    {spec: chain(all, ends("10.9.0.2")), field: "spec.to", bad: "10.9.0.2"},
		"another's to any":                    {spec: chain(ends("10.9.0.2"), all), field: "spec.from", bad: "10.9.0.2"},
		"any to any":                          {spec: chain(all, all), field: "spec.from", bad: "0.0.0.0/0"},
		"any to another's by Hosts":           {spec: chain(all, hosts("stolen")), field: "spec.to.hosts", bad: "10.9.0.2"},
		"any to its own and another's":        {spec: chain(all, ends("10.2.0.1", "10.9.0.2")), field: "spec.to", bad: "10.9.0.2"},
		"its own to another's":                {spec: chain(ends("10.2.0.1"), ends("10.9.0.2"))},
		"partly its own to another's":         {spec: chain(ends("10.1.0.1", "10.2.0.1"), ends("10.9.0.2")), field: "spec.from", bad: "10.1.0.1"},
		"its own by one version each":         {spec: chain(ends("10.2.0.1", "2001:db8:9::1"), ends("10.9.0.2", "2001:db8:2::1"))},
		"what the other end lacks counts not": {spec: chain(all, ends("10.2.0.1"), selects(onpath.Selector{Sources: prefixes("10.9.0.0/24")}))},
		"any to any, its own selected":        {spec: chain(all, all, selects(onpath.Selector{Sources: prefixes("10.2.0.0/24")}, onpath.Selector{Destinations: prefixes("2001:db8:2::1")}))},
		"one selector of two not its own":     {spec: chain(all, all, selects(onpath.Selector{Sources: prefixes("10.2.0.0/24")}, onpath.Selector{Destinations: prefixes("10.9.0.2")})), field: "spec.select", bad: "10.9.0.2"},
		"an element's select narrows only": {spec: chain(all, ends("10.9.0.2"), func(s *onpath.ChainSpec) {
			s.Through = []onpath.Element{{Deployment: "fwd", Select: []onpath.Selector{{Sources: prefixes("10.2.0.0/24")}}}}
		}), field: "spec.to", bad: "10.9.0.2"},
		"virtual of its own":                 {spec: chain(all, hosts("site"))},
		"virtual of another's":               {spec: chain(all, hosts("dialled")), field: "spec.to.hosts", bad: "203.0.113.99"},
		"virtual at from":                    {spec: chain(hosts("dialled"), ends("192.0.2.1")), field: "spec.from.hosts", bad: "203.0.113.99"},
		"virtual at from, one direction":     {spec: chain(hosts("dialled"), ends("192.0.2.1"), forward)},
		"a node's machine":                   {spec: chain(all, hosts("machine")), field: "spec.to.hosts", bad: "10.255.0.100"},
		"what its own instances begin":       {spec: chain(onpath.Endpoints{Deployment: "fwd2"}, all)},
		"disabled, and not its own":          {spec: chain(all, ends("10.9.0.2"), func(s *onpath.ChainSpec) { s.Disabled = true }), field: "spec.to", bad: "10.9.0.2"},
		"a protocol of its own among others": {spec: chain(ends("10.9.0.0/24"), ends("10.9.1.0/24"), selects(onpath.Selector{Protocol: "udp"})), field: "spec.to", bad: "10.9.1.0/24"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSim(t, 1)
			s.site("fra1", 1, 2)
			machine := someHosts("bob", "machine", nil, nil)
			machine.Spec.Node = "fra1-gw"
			s.apply(aTenant("bob", "10.2.1.0/24", "10.2.0.0/24", "2001:db8:2::/48", "203.0.113.10"), aFunction("bob", "fwd", nil),
				aDeployment("bob", "fwd", "fwd", 1), aDeployment("bob", "fwd2", "fwd", 1), machine, someHosts("bob", "stolen", []string{"10.9.0.2"}, nil),
				someHosts("bob", "site", []string{"10.2.0.5"}, []string{"203.0.113.10"}), someHosts("bob", "dialled", []string{"10.2.0.5"}, []string{"203.0.113.99"}))
			add := aChain("bob", "c", onpath.Element{Deployment: "fwd"})
			through := add.Spec.Through
			if add.Spec = c.spec; add.Spec.Through == nil {
				add.Spec.Through = through
			}
			before := s.snapshot()
			before.Objects = flatCopy(s)
			if err := add.Validate(); err != nil {
				t.Fatal(err)
			}
			s.objects[onpath.KeyOf(add)] = add
			err := CheckChange(before, s.snapshot(), []onpath.Key{onpath.KeyOf(add)})
			if c.bad == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			e := theRefusal(t, err)
			if e.Object != "chain bob/c" || e.Field != c.field || !strings.HasSuffix(e.Message, "and "+c.bad+" is not within") || !strings.Contains(e.Remedy, "spec.addresses of tenant bob") {
				t.Errorf("want %s at %s, got %v", c.bad, c.field, e)
			}
		})
	}
}

func theRefusal(t *testing.T, err error) *onpath.Error {
	t.Helper()
	var list onpath.Errors
	if !errors.As(err, &list) || len(list) != 1 || list[0].Code != onpath.CodeForbidden {
		t.Fatalf("not refused by one error: %v", err)
	}
	return list[0]
}

// TestTenantAddressesNarrowed: addresses are not taken from a tenant whose chains need
// them, nor hosts led out of them; tenants with all addresses and the operator are not
// limited; and where such a chain is stored already, it steers nothing.
func TestTenantAddressesNarrowed(t *testing.T) {
	s := newSim(t, 1)
	s.site("fra1", 1, 2)
	web := aChain("bob", "web", through("fwd", 1))
	web.Spec.To = onpath.Endpoints{Hosts: "site"}
	free := aChain("acme", "web", through("fwd", 1))
	all := aChain("operator", "all", through("fwd", 1))
	all.Spec.To, all.Spec.Priority = onpath.Endpoints{Any: true}, 9
	operator := aTenant("operator", "10.2.0.0/24") // Validate would refuse it
	s.objects[onpath.KeyOf(operator)] = operator
	s.apply(aTenant("acme"), aTenant("bob", "10.2.0.0/24"), web, free, all, someHosts("bob", "site", []string{"10.2.0.5"}, nil),
		aFunction("bob", "fwd", nil), aFunction("acme", "fwd", nil), aFunction("operator", "fwd", nil))
	if err := Check(s.snapshot()); err != nil {
		t.Fatal(err)
	}
	for _, o := range []onpath.Object{
		aTenant("bob", "10.2.0.0/30"),
		someHosts("bob", "site", []string{"10.2.0.5", "10.9.0.2"}, nil),
	} {
		before := s.snapshot()
		after := *before
		after.Objects = flatCopy(s)
		after.Objects[onpath.KeyOf(o)] = o
		e := theRefusal(t, CheckChange(before, &after, []onpath.Key{onpath.KeyOf(o)}))
		if e.Object != "chain bob/web" || e.Field != "spec.to.hosts" {
			t.Errorf("%s: %v", onpath.KeyOf(o), e)
		}
	}
	s.apply(aTenant("bob", "10.3.0.0/16")) // as if nobody had asked
	s.settle()
	c := s.chain("bob", "web")
	at := slices.IndexFunc(c.Status.Conditions, func(c onpath.Condition) bool { return c.Type == "Valid" })
	if got := c.Status.Conditions[at]; c.Status.Active || got.Status != onpath.False || !strings.Contains(got.Message, "10.2.0.5 is not within") {
		t.Errorf("%+v", c.Status)
	}
	if !s.chain("acme", "web").Status.Active || !s.chain("operator", "all").Status.Active {
		t.Error("others' chains are not active")
	}
}

// TestTenantAddressesExact: a chain is refused if and only if it selects a packet of
// which neither end is the tenant's, whatever prefixes these are written with.
func TestTenantAddressesExact(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	base := [2]netip.Addr{netip.MustParseAddr("10.0.0.0"), netip.MustParseAddr("2001:db8::")}
	some := func(most int) (list []netip.Prefix) {
		for range 1 + rng.IntN(most) {
			a := base[rng.IntN(2)]
			for range rng.IntN(8) {
				a = a.Next()
			}
			list = append(list, netip.PrefixFrom(a, a.BitLen()-rng.IntN(4)).Masked())
		}
		return list
	}
	in := func(list []netip.Prefix, a netip.Addr) bool {
		return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	refused := 0
	for range 20_000 {
		from, to, own := tidy(some(3)), tidy(some(3)), some(8)
		want := false
		for _, first := range base {
			for i, a := 0, first; i < 8; i, a = i+1, a.Next() {
				for j, b := 0, first; j < 8; j, b = j+1, b.Next() {
					want = want || in(from, a) && in(to, b) && !in(own, a) && !in(own, b)
				}
			}
		}
		c := &chain{obj: aChain("bob", "c")}
		if got := c.checkMatch(from, to, joined(own)); got != want {
			t.Fatalf("from %v to %v, own %v: refused %t, want %t", from, to, own, got, want)
		}
		if want {
			refused++
		}
	}
	if refused < 1000 || refused > 19_000 {
		t.Errorf("%d of 20000 are refused", refused)
	}
}

// TestTenantWithoutAddresses selects nothing, but for what its instances begin; the
// tenants that an installation begins with select anything.
func TestTenantWithoutAddresses(t *testing.T) {
	for tenant, closed := range map[string]bool{"acme": true, "default": false, "operator": false} {
		s := newSim(t, 1)
		s.site("fra1", 1, 1)
		c := aChain(tenant, "web", through("fwd", 1))
		none := aTenant(tenant)
		none.Spec.Addresses = nil
		s.objects[onpath.KeyOf(none)] = none
		f := aFunction(tenant, "fwd", nil)
		s.objects[onpath.KeyOf(f)], s.objects[onpath.KeyOf(c)] = f, c
		err := Check(s.snapshot())
		if !closed {
			if err != nil {
				t.Errorf("tenant %s: %v", tenant, err)
			}
			continue
		}
		if onpath.CodeOf(err) != onpath.CodeForbidden || !strings.Contains(err.Error(), "nothing: it has no addresses") {
			t.Errorf("tenant %s: %v", tenant, err)
		}
	}
}
