package plan

import (
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
