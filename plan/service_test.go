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
	s.proved("acme/cdn-fra1", "acme/cdn-ber1")

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
		"name taken":    {func(o *onpath.Service) { o.Spec.Name = "cdn.acme.example" }, "is the name of service cdn already"},
		"no cloudlet":   {func(o *onpath.Service) { o.Spec.Cloudlets = []string{"nowhere"} }, "there is no cloudlet"},
	} {
		t.Run(name, func(t *testing.T) {
			s.now = s.now.Add(time.Second)
			o := aService("acme", "other", "web")
			c.change(o)
			s.apply(o)
			defer s.remove(onpath.KindService, "acme", "other")
			if err := Check(s.snapshot()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	s.set.PublicPools = nil
	if err := Check(s.snapshot()); err == nil || !strings.Contains(err.Error(), "no pool") {
		t.Errorf("without a pool: %v", err)
	}
}
