package onpath

import (
	"strings"
	"testing"
)

// TestPairIsChecked: a chain with a pair says where its halves stand, in order, and leaves
// nothing of its traffic beside the pair.
func TestPairIsChecked(t *testing.T) {
	good := func() *Chain {
		return &Chain{TypeMeta: TypeMeta{APIVersion: APIVersion, Kind: KindChain}, Metadata: Metadata{Name: "line", Tenant: "default"}, Spec: ChainSpec{
			From: Endpoints{Prefixes: []Prefix{mustPrefix(t, "192.0.2.0/24")}}, To: Endpoints{Any: true},
			At: At{Cloudlets: []string{"west", "east"}}, Through: []Element{{Function: "ipsec", Pair: true}},
		}}
	}
	c := good()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	if c.Spec.PairSide("west") != PairA || c.Spec.PairSide("east") != PairB || c.Spec.PairSide("north") != "" || *c.Spec.Adopt != 0 {
		t.Errorf("sides are wrong, or what is older goes on in clear: %+v", c.Spec)
	}
	for want, spoil := range map[string]func(*ChainSpec){
		"names 1 cloudlets":      func(s *ChainSpec) { s.At.Cloudlets = s.At.Cloudlets[:1] },
		"names 0 cloudlets":      func(s *ChainSpec) { s.At.Cloudlets = nil },
		"names 3 cloudlets":      func(s *ChainSpec) { s.At.Cloudlets = append(s.At.Cloudlets, "north") },
		"stands here twice":      func(s *ChainSpec) { s.At.Cloudlets[1] = "west" },
		"only one of its chain":  func(s *ChainSpec) { s.Through = append(s.Through, Element{Function: "firewall"}) },
		"a mirror gets copies":   func(s *ChainSpec) { s.Through[0].Mode = ModeMirror },
		"pass beside the pair":   func(s *ChainSpec) { s.Through[0].Select = []Selector{{Protocol: "tcp"}} },
		"belong to one chain":    func(s *ChainSpec) { s.Through[0].Function, s.Through[0].Deployment = "", "ipsec" },
		"as many instances":      func(s *ChainSpec) { s.Through[0].Reservation = "evening" },
		"takes both directions":  func(s *ChainSpec) { s.Direction = DirectionForward },
		"where such flows enter": func(s *ChainSpec) { s.Exit = ExitLast },
		"does not tell which":    func(s *ChainSpec) { s.From = Endpoints{Any: true} },
		"enter at gateways":      func(s *ChainSpec) { s.From = Endpoints{Deployment: "cache"} },
	} {
		c := good()
		spoil(&c.Spec)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
	f := &Function{TypeMeta: TypeMeta{APIVersion: APIVersion, Kind: KindFunction}, Metadata: Metadata{Name: "f", Tenant: "default"}}
	f.Spec.Container = &ContainerSpec{Image: "./x.tar"}
	f.Spec.Overhead = MaxOverhead + 1
	if err := f.Validate(); err == nil || !strings.Contains(err.Error(), "spec.overhead") {
		t.Errorf("overhead: %v", err)
	}
}

func mustPrefix(t *testing.T, s string) Prefix {
	t.Helper()
	p, err := ParsePrefix(s)
	if err != nil {
		t.Fatal(err)
	}
	return Prefix{p}
}
