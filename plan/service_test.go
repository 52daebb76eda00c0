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

func aService(tenant, name, deployment string) *onpath.Service {
	o, _ := onpath.New(onpath.KindService)
	s := o.(*onpath.Service)
	s.Metadata.Name, s.Metadata.Tenant = name, tenant
	s.Spec = onpath.ServiceSpec{Deployment: onpath.Ref(deployment), Name: name + ".acme.example",
		Select: []onpath.Selector{{Protocol: "tcp", DestinationPorts: []onpath.PortRange{{First: 80, Last: 80}}}}}
	return s
}

// serving is a sim with two cloudlets, and a deployment for a service.
func serving(t *testing.T) *sim {
	s := newSim(t, 1)
	s.set.PublicPools = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/28"), netip.MustParsePrefix("2001:db8:5::/64")}
	s.site("fra1", 1, 2)
	s.site("ber1", 1, 2)
	acme := aTenant("acme")
	acme.Spec.Addresses, acme.Spec.Zones = nil, []string{"acme.example"}

	d := aDeployment("acme", "web", "web", 1)
	s.apply(acme, aFunction("acme", "web", func(f *onpath.FunctionSpec) { f.State = onpath.StateTerminates }), d)
	return s
}

func (s *sim) service(tenant, name string) *onpath.Service {
	return s.objects[onpath.Key{Kind: onpath.KindService, Tenant: tenant, Name: name}].(*onpath.Service)
}

// TestService: a service gets an address in each cloudlet, a path that ends at its
// instances, which hold the address; verify agrees; where nobody is ready, or heard, it
// does not serve; with it all of it goes.
func TestService(t *testing.T) {
	s := serving(t)
	s.apply(aService("acme", "cdn", "web"))
	if err := Check(s.snapshot()); err != nil {
		t.Fatal(err)
	}
	s.settle()
	st := s.service("acme", "cdn").Status
	if len(st.Cloudlets) != 2 || !st.Cloudlets[0].Serves || !st.Cloudlets[1].Serves || len(st.Cloudlets[0].Addresses) != 2 {
		t.Fatalf("%+v", st)
	}
	if a, b := st.Cloudlets[0].Addresses[0], st.Cloudlets[1].Addresses[0]; a == b {
		t.Fatalf("both cloudlets have %s", a)
	}
	for _, p := range st.Cloudlets {
		held := 0
		for n, plan := range s.snapshot().InForce() {
			for _, i := range plan.Instances {
				if strings.HasPrefix(n, p.Cloudlet) && fmt.Sprint(i.Serves) == fmt.Sprint(p.Addresses) {
					held++
				}
			}
		}
		if held != 1 {
			t.Errorf("%d instances of cloudlet %s hold %v", held, p.Cloudlet, p.Addresses)
		}
	}
	s.proved("acme/"+serviceChain("cdn", "fra1"), "acme/"+serviceChain("cdn", "ber1"))

	s.broken["web"] = true
	s.pass(time.Second)
	if st := s.service("acme", "cdn").Status; st.At("fra1").Serves || st.At("ber1").Ready != 0 {
		t.Errorf("nobody is ready, and it serves: %+v", st)
	}
	delete(s.broken, "web")
	s.pass(time.Second)
	s.dead["fra1-gw"], s.mute["fra1-gw"] = true, true
	s.pass(4 * time.Second)
	if st := s.service("acme", "cdn").Status; st.At("fra1").Serves || !st.At("ber1").Serves {
		t.Errorf("a gateway is silent, and it serves there: %+v", st)
	}
	delete(s.dead, "fra1-gw")
	delete(s.mute, "fra1-gw")

	s.pass(3 * time.Second)
	for _, k := range []struct {
		reason  string
		uplinks []string
		serves  bool
	}{
		{onpath.ReasonDeviceMissing, []string{"core"}, true}, // a spare one, unplugged
		{onpath.ReasonHostFirewall, []string{"core"}, true},
		{onpath.ReasonHostFirewall, []string{"core", "access"}, false},
		{"", nil, true},
	} {
		s.says["fra1-gw"] = nil
		for _, u := range k.uplinks {
			s.says["fra1-gw"] = append(s.says["fra1-gw"],
				onpath.Condition{Type: onpath.ConditionUplink + u, Status: onpath.False, Reason: k.reason, Message: "why"})
		}
		s.pass(3 * time.Second)
		if p := s.service("acme", "cdn").Status.At("fra1"); p.Serves != k.serves {
			t.Errorf("uplinks %v are %q, and it says %+v", k.uplinks, k.reason, p)
		}
	}

	before := s.snapshot()
	s.remove(onpath.KindService, "acme", "cdn")
	if err := CheckChange(before, s.snapshot(), []onpath.Key{{Kind: onpath.KindService, Tenant: "acme", Name: "cdn"}}); err != nil {
		t.Errorf("it cannot be deleted: %v", err)
	}
	s.pass(time.Hour)
	for k := range s.objects {
		if k.Kind == onpath.KindChain || k.Kind == onpath.KindInstance {
			t.Errorf("%s is left", k)
		}
	}
}

// proved has verify prove chains.
func (s *sim) proved(chains ...string) {
	s.t.Helper()
	r := verify.Check(verify.Input{Objects: s.objects, Plans: s.snapshot().InForce()})
	for _, want := range chains {
		found := false
		for _, c := range r.Chains {
			if c.Chain == want {
				found = true
				if c.Verdict != onpath.VerdictProved {
					s.t.Errorf("%+v: %+v", c, c.Counterexample)
				}
			}
		}
		if !found {
			s.t.Errorf("verify says nothing of %s", want)
		}
	}
}

// TestServiceRefused: names and deployments that a service may not have.
func TestServiceRefused(t *testing.T) {
	s := serving(t)
	s.apply(aService("acme", "cdn", "web"), aTenant("bob"), aFunction("acme", "wire", func(f *onpath.FunctionSpec) { f.Container.Attach = onpath.Bridged }),
		aDeployment("acme", "wire", "wire", 1))
	for name, c := range map[string]struct {
		change func(*onpath.Service)
		want   string
	}{
		"no deployment": {func(o *onpath.Service) { o.Spec.Deployment = "nobody" }, "there is no deployment"},
		"bridged":       {func(o *onpath.Service) { o.Spec.Deployment = "wire" }, "bridged"},
		"another zone":  {func(o *onpath.Service) { o.Spec.Name = "cdn.bob.example" }, "no zone of tenant acme"},
		"a part of one": {func(o *onpath.Service) { o.Spec.Name = "cdn.notacme.example" }, "no zone of tenant acme"},
		"name taken":    {func(o *onpath.Service) { o.Spec.Name = "cdn.acme.example" }, "service acme/other: spec.name: cdn.acme.example is the name of service cdn already"},
		"no cloudlet":   {func(o *onpath.Service) { o.Spec.Cloudlets = []string{"nowhere"} }, "there is no cloudlet"},
	} {
		t.Run(name, func(t *testing.T) {
			s.now = s.now.Add(time.Second)
			o := aService("acme", "other", "web")
			c.change(o)
			s.apply(o)
			s.objects[onpath.KeyOf(o)].Meta().Created = time.Time{} // as the server checks what is about to be created
			defer s.remove(onpath.KindService, "acme", "other")
			if err := Check(s.snapshot()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	for domain, allowed := range map[string]bool{"www.acme.example": false, "acme.example": false, "www.other.example": true} {
		s.now = s.now.Add(time.Second)
		o := aService(onpath.DefaultTenant, "www", "web")
		o.Spec.Name = domain
		s.apply(aFunction(onpath.DefaultTenant, "web", func(f *onpath.FunctionSpec) { f.State = onpath.StateTerminates }),
			aDeployment(onpath.DefaultTenant, "web", "web", 1), o)
		if err := Check(s.snapshot()); allowed != (err == nil) || !allowed && !strings.Contains(err.Error(), "no zone of tenant default") {
			t.Errorf("tenant default takes %s: %v", domain, err)
		}
		s.remove(onpath.KindService, onpath.DefaultTenant, "www")
	}
	s.set.PublicPools = nil
	if err := Check(s.snapshot()); err == nil || !strings.Contains(err.Error(), "no pool") {
		t.Errorf("without a pool: %v", err)
	}
}

// TestServicePoolFull: a service that gets no address costs nothing in later plans, and
// takes no number that an instance needs.
func TestServicePoolFull(t *testing.T) {
	s := serving(t)
	s.set.PublicPools = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/30")} // two addresses
	s.apply(aService("acme", "cdn", "web"))
	s.settle()
	s.apply(aService("acme", "other", "web"))
	s.settle()
	if why := s.service("acme", "other").Status.Conditions[0].Message; !strings.Contains(why, "none left") {
		t.Fatalf("it says %q", why)
	}
	for _, ids := range [][]uint64{nil, {7}} {
		sn := s.snapshot()
		sn.IDs.Addresses = ids
		if r := Make(sn); r.Used.Addresses > 0 || r.Short.Addresses > 0 || len(r.Update) > 0 {
			t.Errorf("with numbers %v: used %+v, short of %+v, %d updates", ids, r.Used, r.Short, len(r.Update))
		}
	}

	s.set.PublicPools = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/28")} // there is room again
	more := aDeployment("acme", "more", "web", 1)
	more.Spec.Place.Cloudlets = []string{"ber1", "fra1"}
	s.apply(more)
	sn := s.snapshot()
	sn.IDs.Addresses = sn.IDs.Addresses[:2] // two instances, two addresses of the service
	if r := Make(sn); len(r.Create) != 2 || r.Short.Addresses == 0 {
		t.Errorf("%d instances are made, short of %+v", len(r.Create), r.Short)
	}
	s.settle()
	if p := s.service("acme", "other").Status; !p.At("fra1").Serves || !p.At("ber1").Serves {
		t.Errorf("with room: %+v", p)
	}
}

// TestServicePools: a service keeps its addresses when pools come, and for as long as a
// new pool has none for it.
func TestServicePools(t *testing.T) {
	s := serving(t)
	pools := s.set.PublicPools
	s.set.PublicPools = pools[:1]
	s.apply(aService("acme", "cdn", "web"))
	s.settle()
	first := s.service("acme", "cdn").Status.At("fra1").Addresses
	if len(first) != 1 {
		t.Fatalf("%v", first)
	}
	s.set.PublicPools = pools
	for s.think() {
		if p := s.service("acme", "cdn").Status.At("fra1"); !p.Serves || p.Addresses[0] != first[0] {
			t.Fatalf("a second pool: %+v", p)
		}
	}
	s.settle()
	both := s.service("acme", "cdn").Status.At("fra1")
	if !both.Serves || len(both.Addresses) != 2 || both.Addresses[0] != first[0] {
		t.Fatalf("a second pool: %+v", both)
	}
	chain := s.chain("acme", serviceChain("cdn", "fra1"))
	if n := len(chain.Spec.To.Prefixes); n != 2 {
		t.Errorf("its chain leads to %d addresses", n)
	}
	one := []netip.Prefix{netip.MustParsePrefix("203.0.113.9/32")} // for one of two cloudlets
	s.set.PublicPools = one
	s.settle()
	kept, got := 0, 0
	for _, p := range s.service("acme", "cdn").Status.Cloudlets {
		switch {
		case len(p.Addresses) == 1 && one[0].Contains(p.Addresses[0]):
			got++
		case len(p.Addresses) == 2 && p.Serves:
			kept++
		}
	}
	if kept != 1 || got != 1 {
		t.Errorf("another pool with one address: %+v", s.service("acme", "cdn").Status)
	}
	s.set.PublicPools = pools[:1]
	s.settle()
	if p := s.service("acme", "cdn").Status.At("fra1"); !p.Serves || len(p.Addresses) != 1 || !pools[0].Contains(p.Addresses[0]) {
		t.Errorf("the first pool alone: %+v", p)
	}
}

// TestServiceChains: no two services, nor a user, name one chain.
func TestServiceChains(t *testing.T) {
	if a, b := serviceChain("web", "eu-west"), serviceChain("web-eu", "west"); a == b {
		t.Errorf("both are %s", a)
	}
	long := strings.Repeat("x", 60)
	if a, b := serviceChain(long, "a"), serviceChain(long, "b"); a == b || len(a) > onpath.MaxDeploymentName {
		t.Errorf("%s and %s", a, b)
	}
}

// TestServiceQuota: services ask for no more addresses than their tenant may have, whether
// it has a quota or not.
func TestServiceQuota(t *testing.T) {
	for name, c := range map[string]struct {
		quota *onpath.Quota
		many  int // services in two cloudlets and two pools
		good  bool
	}{
		"no quota":              {nil, onpath.DefaultServiceAddresses / 4, true},
		"more without a quota":  {nil, onpath.DefaultServiceAddresses/4 + 1, false},
		"another quota":         {&onpath.Quota{Chains: 1000}, onpath.DefaultServiceAddresses/4 + 1, false},
		"a quota":               {&onpath.Quota{ServiceAddresses: 8}, 2, true},
		"more than a quota":     {&onpath.Quota{ServiceAddresses: 8}, 3, false},
		"a quota without bound": {&onpath.Quota{ServiceAddresses: -1}, onpath.DefaultServiceAddresses, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := serving(t)
			acme := aTenant("acme")
			acme.Spec.Zones, acme.Spec.Quota = []string{"acme.example"}, c.quota
			s.apply(acme)
			before, after := s.snapshot(), s.snapshot()
			after.Objects = flatCopy(s)
			var changed []onpath.Key
			for i := range c.many {
				o := aService("acme", fmt.Sprintf("cdn%d", i), "web")
				after.Objects[onpath.KeyOf(o)] = o
				changed = append(changed, onpath.KeyOf(o))
			}
			err := CheckChange(before, after, changed)
			if c.good && err != nil || !c.good && (err == nil || !strings.Contains(err.Error(), "spec.quota.serviceAddresses")) {
				t.Errorf("%d services: %v", c.many, err)
			}
		})
	}
	s := serving(t)
	acme := aTenant("acme")
	acme.Spec.Zones, acme.Spec.Quota = []string{"acme.example"}, &onpath.Quota{ServiceAddresses: 2}
	near := aDeployment("acme", "web", "web", 1)
	near.Spec.Place.Cloudlets = []string{"fra1"}
	s.apply(acme, near, aService("acme", "cdn", "web"))
	before, after := s.snapshot(), s.snapshot()
	after.Objects = flatCopy(s)
	wide := aDeployment("acme", "web", "web", 1)
	after.Objects[onpath.KeyOf(wide)] = wide
	if err := CheckChange(before, after, []onpath.Key{onpath.KeyOf(wide)}); err == nil || !strings.Contains(err.Error(), "serviceAddresses") {
		t.Errorf("its deployment runs in more cloudlets: %v", err)
	}
}
