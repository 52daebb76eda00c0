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
