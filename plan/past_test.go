package plan

import (
	"maps"
	"testing"

	"github.com/onpath/onpath"
)

// TestWaysPast: a chain says which other ways to its hosts go past it.
func TestWaysPast(t *testing.T) {
	web := []onpath.Selector{{Protocol: "tcp", DestinationPorts: []onpath.PortRange{{First: 443, Last: 443}}}}
	const what = "what the same hosts exchange by "
	for name, tc := range map[string]struct {
		to     []string
		sel    []onpath.Selector
		expect string
	}{
		"a web site by TCP and IPv4": {[]string{"10.9.0.2"}, web, what + "udp/443 (HTTP and QUIC), IPv6 goes past this chain"},
		"by both IP versions":        {[]string{"10.9.0.2", "fd09::2"}, web, what + "udp/443 (HTTP and QUIC) goes past this chain"},
		"everything, by IPv6":        {[]string{"fd09::2"}, nil, what + "IPv4 goes past this chain"},
		"names by UDP": {[]string{"10.9.0.2", "fd09::2"}, []onpath.Selector{{Protocol: "udp", DestinationPorts: []onpath.PortRange{{First: 50, Last: 60}}}},
			what + "tcp/53 (DNS) goes past this chain"},
		"both transports": {[]string{"10.9.0.2", "fd09::2"}, append(web, onpath.Selector{Protocol: "udp", DestinationPorts: web[0].DestinationPorts}), ""},
		"all":             {[]string{"10.9.0.2", "fd09::2"}, nil, ""},
	} {
		s := newSim(t, 1)
		s.site("fra1", 1, 1)
		c := aChain("default", "web", through("fw", 1))
		c.Spec.From, c.Spec.To, c.Spec.Select = onpath.Endpoints{Any: true}, onpath.Endpoints{Prefixes: prefixes(tc.to...)}, tc.sel
		s.apply(aFunction("default", "fw", nil), c)
		s.settle()
		for _, x := range s.chain("default", "web").Status.Conditions {
			if x.Type == "Valid" && (x.Status != onpath.True || x.Message != tc.expect) {
				t.Errorf("%s: %s %q, must be %q", name, x.Status, x.Message, tc.expect)
			}
		}
	}
}

// TestOldFlowsTold: an apply that replaces instances says how long their flows go on.
func TestOldFlowsTold(t *testing.T) {
	s := aWorld(t)
	s.settle()
	before := s.snapshot()
	for name, want := range map[string]int{"fw": 1, "ids": 0} {
		after := changedTo(before, aFunction("default", name, func(f *onpath.FunctionSpec) { f.Container.Env = onpath.Env{"A": "b"} }))
		notes := Notes(before, after)
		if len(notes) != want {
			t.Errorf("function %s: %q", name, notes)
		}
	}
}

// changedTo is a snapshot with an object changed.
func changedTo(s *Snapshot, o onpath.Object) *Snapshot {
	after := *s
	after.Objects = maps.Clone(s.Objects)
	after.Objects[onpath.KeyOf(o)] = o
	return &after
}
