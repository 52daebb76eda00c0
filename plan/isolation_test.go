package plan

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/onpath/onpath"
)

// TestCapabilities: a cloudlet gives tenants' instances the capabilities that the operator
// allows there, and the operator's own any.
func TestCapabilities(t *testing.T) {
	for name, c := range map[string]struct {
		tenant string
		allow  *onpath.Isolation
		runs   bool
	}{
		"nothing said":        {"bob", nil, true},
		"none allowed":        {"bob", &onpath.Isolation{}, false},
		"another one allowed": {"bob", &onpath.Isolation{Capabilities: []string{"NET_RAW"}}, false},
		"allowed":             {"bob", &onpath.Isolation{Capabilities: []string{"NET_ADMIN"}}, true},
		"the operator's":      {"operator", &onpath.Isolation{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSim(t, 1)
			s.site("fra1", 1, 2)
			cl := onpath.Clone(s.objects[onpath.Key{Kind: onpath.KindCloudlet, Name: "fra1"}].(*onpath.Cloudlet))
			cl.Spec.Isolation = c.allow
			s.apply(cl, aTenant("bob"), aFunction(c.tenant, "fw", func(f *onpath.FunctionSpec) { f.Container.Caps = []string{"net_admin"} }),
				aChain(c.tenant, "web", through("fw", 1)))
			s.settle()
			st := s.chain(c.tenant, "web").Status
			if st.Active != c.runs || !c.runs && !strings.Contains(st.Elements[0].Message, "the capability NET_ADMIN") {
				t.Errorf("%+v", st)
			}
		})
	}
}

// TestUserNamespace: which containers get users of their own.
func TestUserNamespace(t *testing.T) {
	for name, c := range map[string]struct {
		tenant, image string
		isolation     *onpath.Isolation
		want          onpath.UserNamespaceRule
	}{
		"a tenant's":          {"bob", "registry.example/fw:1", nil, onpath.UserNamespacesPossible},
		"with isolation":      {"bob", "registry.example/fw:1", &onpath.Isolation{}, onpath.UserNamespacesPossible},
		"required":            {"bob", "registry.example/fw:1", &onpath.Isolation{UserNamespaces: onpath.UserNamespacesRequired}, onpath.UserNamespacesRequired},
		"never":               {"bob", "registry.example/fw:1", &onpath.Isolation{UserNamespaces: onpath.UserNamespacesNever}, ""},
		"the operator's":      {"operator", "registry.example/fw:1", &onpath.Isolation{UserNamespaces: onpath.UserNamespacesRequired}, ""},
		"default's":           {"default", "registry.example/fw:1", nil, ""},
		"the machine's files": {"bob", onpath.HostImage, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSim(t, 1)
			s.site("fra1", 1, 2)
			cl := onpath.Clone(s.objects[onpath.Key{Kind: onpath.KindCloudlet, Name: "fra1"}].(*onpath.Cloudlet))
			cl.Spec.Isolation = c.isolation
			s.apply(cl, aTenant("bob"), aFunction(c.tenant, "fw", func(f *onpath.FunctionSpec) { f.Container.Image = c.image }),
				aChain(c.tenant, "web", through("fw", 1)))
			s.settle()
			n := 0
			for _, st := range s.states {
				for _, i := range st.Acked.Instances {
					if n++; i.UserNamespace != c.want {
						t.Errorf("%s has %q, want %q", i.Name, i.UserNamespace, c.want)
					}
				}
			}
			if n == 0 {
				t.Error("no instance is planned")
			}
		})
	}
}

// TestAbilities: nodes whose agents are too old to know secrets, services or user namespaces
// get no instances that need them, and any others.
func TestAbilities(t *testing.T) {
	required := aCloudlet("fra1")
	required.Spec.Isolation = &onpath.Isolation{UserNamespaces: onpath.UserNamespacesRequired}
	for name, c := range map[string]struct {
		change func(*onpath.FunctionSpec)
		more   onpath.Object
		says   string
	}{
		"nothing": {nil, nil, ""},
		"secrets": {func(f *onpath.FunctionSpec) {
			f.Container.Secrets = map[string]onpath.SecretKey{"word": "db/word"}
		}, nil, "knows no secrets"},
		"services": {func(f *onpath.FunctionSpec) { f.State = onpath.StateTerminates },
			aService("acme", "web", "web"), "knows no addresses of services"},
		"users": {func(f *onpath.FunctionSpec) { f.Container.Image = "registry.example/web:1" }, required, "knows no user namespaces"},
	} {
		for _, old := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%t", name, old), func(t *testing.T) {
				s := newSim(t, 1)
				s.set.PublicPools = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/28")}
				s.old["fra1-gw"], s.old["fra1-n1"] = old, old
				s.site("fra1", 1, 1)
				o, _ := onpath.New(onpath.KindSecret)
				secret := o.(*onpath.Secret)
				secret.Metadata.Tenant, secret.Metadata.Name, secret.Spec.Sealed = "acme", "db", map[string]string{"word": "x"}
				tenant := aTenant("acme")
				tenant.Spec.Zones = []string{"acme.example"}
				d := aDeployment("acme", "web", "web", 1)
				d.Spec.Place.Cloudlets = []string{"fra1"}
				s.apply(tenant, secret, aFunction("acme", "web", c.change), d)
				if c.more != nil {
					s.apply(c.more)
				}
				s.settle()
				want := 1
				if old && c.says != "" {
					want = 0
				}
				d = s.objects[onpath.Key{Kind: onpath.KindDeployment, Tenant: "acme", Name: "web"}].(*onpath.Deployment)
				if said := fmt.Sprint(d.Status.Conditions); len(s.instances("web")) != want || want == 0 && !strings.Contains(said, c.says) {
					t.Errorf("%d instances, %s", len(s.instances("web")), said)
				}
			})
		}
	}
}
