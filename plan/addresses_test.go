package plan

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/onpath/onpath"
)

// TestNoAddresses: an instance that is to have an address is not made without one.
func TestNoAddresses(t *testing.T) {
	public := func(f *onpath.FunctionSpec) { f.Container.Addresses = onpath.AddressesPool }
	s := newSim(t, 8)
	s.site("fra1", 1, 2)
	s.apply(aFunction("default", "fw", public))
	code, why := s.refusal(aChain("default", "web", through("fw", 1)))
	if code != onpath.CodeInvalid || !strings.Contains(why, "spec.through[0].function") || !strings.Contains(why, "the server has none") {
		t.Errorf("without a pool: %s %q", code, why)
	}
	s.set.PublicPools = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/30")} // two addresses
	s.apply(aChain("default", "web", through("fw", 3)))
	s.settle()
	l := s.instances("web-fw")
	for _, i := range l {
		if len(i.Spec.Addresses) == 0 {
			t.Errorf("%s has no address", i.Metadata.Name)
		}
	}
	st := s.chain("default", "web").Status
	if len(l) != 2 || !strings.Contains(st.Elements[0].Message, "192.0.2.0/30 has none left") {
		t.Errorf("%d instances: %+v", len(l), st.Elements)
	}
}
