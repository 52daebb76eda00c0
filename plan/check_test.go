package plan

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/onpath/onpath"
)

// aWorld has all that the refusals below start from, and one good chain.
func aWorld(t *testing.T) *sim {
	s := newSim(t, 1)
	s.site("fra1", 1, 2)
	s.apply(
		aFunction("default", "fw", nil), aFunction("default", "ids", nil),
		aFunction("operator", "shared", func(f *onpath.FunctionSpec) { f.Shared, f.Container.Image = true, "registry.example/shared:1" }),
		aFunction("operator", "private", nil),
		aFunction("default", "noaddr", func(f *onpath.FunctionSpec) { f.Container.Addresses = onpath.AddressesNone }),
		aDeployment("default", "d1", "fw", 1), aDeployment("default", "d2", "fw", 1), aDeployment("default", "quiet", "noaddr", 1),
		aDeployment("operator", "opd", "private", 1), aDeployment("operator", "both", "private", 1),
		aChain("default", "good", through("fw", 1)),
	)
	if err := Check(s.snapshot()); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestRefusals(t *testing.T) {
	hosts := func(tenant, name string, addrs ...string) *onpath.Hosts {
		o, _ := onpath.New(onpath.KindHosts)
		h := o.(*onpath.Hosts)
		h.Metadata.Name, h.Metadata.Tenant, h.Spec.Addresses = name, tenant, prefixes(addrs...)
		return h
	}
	site := func() *onpath.Hosts {
		h := hosts("default", "site", "192.0.2.1")
		h.Spec.Virtual = prefixes("203.0.113.10")
		return h
	}
	dep := func(name string) onpath.Element { return onpath.Element{Deployment: onpath.Ref(name)} }
	chain := func(change func(*onpath.ChainSpec), through ...onpath.Element) []onpath.Object {
		c := aChain("default", "bad", through...)
		c.Spec.To = onpath.Endpoints{Prefixes: prefixes("198.51.100.99")}
		if change != nil {
			change(&c.Spec)
		}
		return []onpath.Object{c}
	}
	terminates := func(p onpath.PacketRights) onpath.Object {
		return aFunction("default", "proxy", func(f *onpath.FunctionSpec) { f.State, f.Packets = onpath.StateTerminates, p })
	}
	operator := func(through ...onpath.Element) *onpath.Chain {
		c := aChain("operator", "guard", through...)
		c.Spec.Tier = onpath.TierOperator
		return c
	}
	mirrored := func(name string) onpath.Element {
		e := dep(name)
		e.Mode = onpath.ModeMirror
		return e
	}
	for name, c := range map[string]struct {
		add   []onpath.Object
		field string
		code  onpath.Code
		say   string
	}{
		"unknown function":             {chain(nil, through("wf", 1)), "spec.through[0].function", onpath.CodeNotFound, "did you mean fw?"},
		"function of the operator":     {chain(nil, through("shared", 1)), "spec.through[0].function", onpath.CodeNotFound, "did you mean operator/shared?"},
		"function not shared":          {chain(nil, through("operator/private", 1)), "spec.through[0].function", onpath.CodeForbidden, "not shared"},
		"unknown deployment":           {chain(nil, through("fw", 1), dep("nope")), "spec.through[1].deployment", onpath.CodeNotFound, "no deployment default/nope"},
		"deployment of another tenant": {chain(nil, dep("operator/opd")), "spec.through[0].deployment", onpath.CodeForbidden, "another tenant"},
		"unknown hosts":                {chain(func(s *onpath.ChainSpec) { s.To = onpath.Endpoints{Hosts: "x"} }, dep("d1")), "spec.to.hosts", onpath.CodeNotFound, "no hosts default/x"},
		"hosts of another tenant":      {append(chain(func(s *onpath.ChainSpec) { s.To = onpath.Endpoints{Hosts: "operator/h"} }, dep("d1")), hosts("operator", "h", "192.0.2.1")), "spec.to.hosts", onpath.CodeForbidden, "another tenant"},
		"weights for an unknown node": {chain(nil, onpath.Element{Deployment: "d1", Weights: map[string]int{"fra1-n1": 1, "fra1-n9": 2}}),
			"spec.through[0].weights[fra1-n9]", onpath.CodeNotFound, "no node fra1-n9"},
		"weights from an unknown node": {chain(nil, onpath.Element{Deployment: "d1",
			WeightsFrom: map[string]map[string]int{"fra1-n1": {"fra1-n2": 1}, "fra1-n8": {"fra1-n1": 1}}}),
			"spec.through[0].weightsFrom[fra1-n8]", onpath.CodeNotFound, "no node fra1-n8"},
		"weights toward an unknown node": {chain(nil, onpath.Element{Deployment: "d1",
			WeightsFrom: map[string]map[string]int{"fra1-n1": {"fra1-n7": 1}}}),
			"spec.through[0].weightsFrom[fra1-n1][fra1-n7]", onpath.CodeNotFound, "no node fra1-n7"},
		"uplink on the underlay's device": {[]onpath.Object{func() onpath.Object {
			n := aNode("fra1-n1", "fra1", 101, false)
			n.Spec.Uplinks = []onpath.Uplink{{Name: "core", Device: "eth9", Attach: onpath.AttachRouter}}
			return n
		}()}, "spec.uplinks[0].device", onpath.CodeInvalid, "tunnels of the node come in by eth9"},
		"unknown cloudlet":                  {chain(func(s *onpath.ChainSpec) { s.At.Cloudlets = []string{"fra2"} }, dep("d1")), "spec.at.cloudlets[0]", onpath.CodeNotFound, "no cloudlet fra2"},
		"to a deployment":                   {chain(func(s *onpath.ChainSpec) { s.To = onpath.Endpoints{Deployment: "d2"} }, dep("d1")), "spec.to.deployment", onpath.CodeUnsupported, "cannot lead to a deployment"},
		"from a deployment without address": {chain(func(s *onpath.ChainSpec) { s.From = onpath.Endpoints{Deployment: "quiet"} }, dep("d1")), "spec.from.deployment", onpath.CodeInvalid, "no address of their own"},
		"IPv4 to IPv6":                      {append(chain(func(s *onpath.ChainSpec) { s.From, s.To = onpath.Endpoints{Hosts: "h4"}, onpath.Endpoints{Hosts: "h6"} }, dep("d1")), hosts("default", "h4", "192.0.2.1"), hosts("default", "h6", "2001:db8::1")), "spec.to", onpath.CodeInvalid, "no IP version in common"},
		"select outside of hosts": {append(chain(func(s *onpath.ChainSpec) {
			s.To = onpath.Endpoints{Hosts: "h4"}
			s.Select = []onpath.Selector{{Destinations: prefixes("192.0.2.9")}}
		}, dep("d1")), hosts("default", "h4", "192.0.2.1")), "spec.select", onpath.CodeInvalid, "no packet"},
		"select of dialled addresses alone": {append(chain(func(s *onpath.ChainSpec) {
			s.To = onpath.Endpoints{Hosts: "site"}
			s.Select = []onpath.Selector{{Destinations: prefixes("203.0.113.10")}}
		}, dep("rewriter")), site(), aFunction("default", "nat", func(f *onpath.FunctionSpec) { f.Packets = onpath.PacketsRewrite }),
			aDeployment("default", "rewriter", "nat", 1)), "spec.select", onpath.CodeInvalid, "dropped"},
		"same traffic": {chain(func(s *onpath.ChainSpec) {
			s.To = onpath.Endpoints{Prefixes: prefixes("198.51.100.0/24")}
			s.Select = []onpath.Selector{{Protocol: "tcp"}}
		}, dep("d1")), "spec.priority", onpath.CodeInvalid, "default/good selects the same traffic with the same priority 0: tcp from any to 198.51.100.10"},
		"short form twice":                  {chain(nil, through("fw", 1), through("fw", 1)), "", onpath.CodeInvalid, "loop"},
		"short form of an existing name":    {append(chain(nil, through("fw", 1)), aDeployment("default", "bad-fw", "fw", 1)), "spec.through[0].function", onpath.CodeExists, "there is one already"},
		"mirror and inline":                 {append(chain(nil, dep("d1")), func() onpath.Object { c := aChain("default", "tap", mirrored("d1")); c.Spec.Priority = 1; return c }()), "spec.through[0].mode", onpath.CodeInvalid, "one vport cannot be both"},
		"both tiers through one deployment": {[]onpath.Object{operator(dep("both")), func() onpath.Object { c := aChain("operator", "own", dep("both")); c.Spec.Priority = 3; return c }()}, "spec.through[0]", onpath.CodeInvalid, "a loop"},
		"operator's chain with exit last":   {[]onpath.Object{func() onpath.Object { c := operator(dep("both")); c.Spec.Exit = onpath.ExitLast; return c }()}, "spec.exit", onpath.CodeInvalid, "tenants' chains"},
		"a proxy that may open no connection": {append(chain(nil, through("fw", 1), through("proxy", 1)), terminates(onpath.PacketsKeep)),
			"spec.through[1]", onpath.CodeInvalid, "write packets: originate"},
		"third gateway": {[]onpath.Object{aNode("fra1-gw2", "fra1", 998, true), aNode("fra1-gw3", "fra1", 999, true)}, "spec.uplinks", onpath.CodeUnsupported, "two can do that, not three"},
		"pair with a bridge": {[]onpath.Object{func() onpath.Object {
			n := aNode("fra1-gw2", "fra1", 998, true)
			n.Spec.Uplinks[0].Attach, n.Spec.Uplinks[1].Attach = onpath.AttachBridge, onpath.AttachBridge
			return n
		}()}, "spec.uplinks[0].attach", onpath.CodeUnsupported, "does not route"},
		"node of an unknown cloudlet":       {[]onpath.Object{aNode("x", "nowhere", 998, false)}, "spec.cloudlet", onpath.CodeNotFound, "no cloudlet nowhere"},
		"two nodes with one address":        {[]onpath.Object{aNode("z", "fra1", 101, false)}, "spec.underlay.address", onpath.CodeInvalid, "fra1-n1 has 10.255.0.101 already"},
		"deployment of an unknown function": {[]onpath.Object{aDeployment("default", "x", "nope", 1)}, "spec.function", onpath.CodeNotFound, "no function default/nope"},
		"unknown tenant":                    {[]onpath.Object{aFunction("acme", "f", nil)}, "metadata.tenant", onpath.CodeNotFound, "no tenant acme"},
		"deployment elsewhere than its chain": {append(chain(nil, dep("far")), func() onpath.Object {
			d := aDeployment("default", "far", "fw", 1)
			d.Spec.Place.Cloudlets = []string{"ams1"}
			return d
		}(), aCloudlet("ams1")), "spec.through[0]", onpath.CodeInvalid, "does not run in cloudlet fra1"},
	} {
		t.Run(name, func(t *testing.T) {
			s := aWorld(t)
			before := s.snapshot()
			before.Objects = flatCopy(s)
			var keys []onpath.Key
			for _, o := range c.add {
				_ = o.Validate() // some of it is refused there already
				s.objects[onpath.KeyOf(o)] = o
				keys = append(keys, onpath.KeyOf(o))
			}
			err := CheckChange(before, s.snapshot(), keys)
			var list onpath.Errors
			if !errors.As(err, &list) {
				t.Fatalf("not refused: %v", err)
			}
			for _, e := range list {
				if e.Code == c.code && strings.Contains(e.Error(), c.say) && (c.field == "" || e.Field == c.field) {
					return
				}
			}
			t.Errorf("want %s at %s with %q, got:\n%v", c.code, c.field, c.say, err)
		})
	}
}

func flatCopy(s *sim) map[onpath.Key]onpath.Object {
	out := map[onpath.Key]onpath.Object{}
	for k, o := range s.objects {
		out[k] = o
	}
	return out
}

// TestAllowed: what is close to a refusal and is none.
func TestAllowed(t *testing.T) {
	s := aWorld(t)
	back := aChain("default", "back", onpath.Element{Deployment: "d1"})
	back.Spec.From, back.Spec.To = onpath.Endpoints{Prefixes: prefixes("198.51.100.10")}, onpath.Endpoints{Any: true}
	other := aChain("default", "other", onpath.Element{Deployment: "d1"}) // shares d1
	other.Spec.Priority = 1
	off := aChain("default", "off", onpath.Element{Deployment: "d2"})
	off.Spec.Disabled = true
	s.apply(back, other, off)
	if err := Check(s.snapshot()); err != nil {
		t.Error(err)
	}
}

// TestOldTroubleIsNotNew: a change is not refused for what was wrong before.
func TestOldTroubleIsNotNew(t *testing.T) {
	s := aWorld(t)
	s.objects[onpath.Key{Kind: onpath.KindChain, Tenant: "default", Name: "old"}] = func() onpath.Object {
		c := aChain("default", "old", through("gone", 1))
		c.Spec.Priority = 7
		return c
	}()
	before := s.snapshot()
	before.Objects = flatCopy(s)
	f := aFunction("default", "new", nil)
	s.apply(f)
	if err := CheckChange(before, s.snapshot(), []onpath.Key{onpath.KeyOf(f)}); err != nil {
		t.Error(err)
	}
	before.Objects = flatCopy(s)
	s.remove(onpath.KindFunction, "default", "fw")
	if err := CheckChange(before, s.snapshot(), []onpath.Key{{Kind: onpath.KindFunction, Tenant: "default", Name: "fw"}}); err == nil || !strings.Contains(err.Error(), "chain default/good") {
		t.Errorf("a function in use may go: %v", err)
	}
}

// TestRemovals: what is in use stays, and the error says who uses it.
func TestRemovals(t *testing.T) {
	s := aWorld(t)
	tenant, _ := onpath.New(onpath.KindTenant)
	tenant.Meta().Name = "acme"
	s.apply(tenant, aFunction("acme", "wall", nil), aDeployment("acme", "walls", "wall", 1), aChain("default", "other", onpath.Element{Deployment: "d2"}))
	for _, c := range []struct {
		key onpath.Key
		say []string
	}{
		{onpath.Key{Kind: onpath.KindFunction, Tenant: "default", Name: "fw"}, []string{"deployment default/d1", "deployment default/d2", "chain default/good"}},
		{onpath.Key{Kind: onpath.KindDeployment, Tenant: "default", Name: "d2"}, []string{"chain default/other"}},
		{onpath.Key{Kind: onpath.KindTenant, Name: "acme"}, []string{"function acme/wall", "deployment acme/walls"}},
		{onpath.Key{Kind: onpath.KindCloudlet, Name: "fra1"}, []string{"node fra1-gw"}},
		{onpath.Key{Kind: onpath.KindDeployment, Tenant: "default", Name: "quiet"}, nil},
	} {
		after := *s.snapshot()
		after.Objects = maps.Clone(after.Objects)
		delete(after.Objects, c.key)
		err := CheckChange(s.snapshot(), &after, []onpath.Key{c.key})
		if c.say == nil {
			if err != nil {
				t.Errorf("%s: %v", c.key, err)
			}
			continue
		}
		var list onpath.Errors
		if !errors.As(err, &list) || len(list) != 1 || list[0].Object != c.key.String() || list[0].Code != onpath.CodeInvalid {
			t.Errorf("%s: %v", c.key, err)
			continue
		}
		for _, say := range c.say {
			if !strings.Contains(list[0].Message, say) {
				t.Errorf("%s: %s, without %s", c.key, list[0].Message, say)
			}
		}
	}
	// Whose tenant hears of others' objects only that they are there.
	theirs := aChain("acme", "theirs", onpath.Element{Function: "operator/shared"})
	s.apply(theirs)
	without := *s.snapshot()
	without.Objects = maps.Clone(without.Objects)
	shared := onpath.Key{Kind: onpath.KindFunction, Tenant: "operator", Name: "shared"}
	delete(without.Objects, shared)
	var list onpath.Errors
	if err := CheckChange(s.snapshot(), &without, []onpath.Key{shared}); !errors.As(err, &list) || !strings.Contains(list[0].Message, "objects of other tenants") ||
		strings.Contains(list[0].Message, "acme") || list[0].Cause == nil || !strings.Contains(list[0].Cause.Error(), "chain acme/theirs") {
		t.Errorf("a shared function: %v", err)
	}
	s.remove(onpath.KindChain, "acme", "theirs")
	// Together with all that is in it, a tenant may go.
	after := *s.snapshot()
	after.Objects = maps.Clone(after.Objects)
	var keys []onpath.Key
	for k := range after.Objects {
		if k.Tenant == "acme" || k.Name == "acme" {
			keys = append(keys, k)
			delete(after.Objects, k)
		}
	}
	if err := CheckChange(s.snapshot(), &after, keys); err != nil || len(keys) != 3 {
		t.Errorf("a tenant with all its objects: %v", err)
	}
}

// TestEndsConnections: what ends connections and begins none may stand where a chain ends,
// and get copies; what may begin some may stand anywhere.
func TestEndsConnections(t *testing.T) {
	for name, change := range map[string]func(c *onpath.ChainSpec, f *onpath.FunctionSpec){
		"at the end":     func(c *onpath.ChainSpec, _ *onpath.FunctionSpec) { c.Exit = onpath.ExitNone },
		"as a mirror":    func(c *onpath.ChainSpec, _ *onpath.FunctionSpec) { c.Through[1].Mode = onpath.ModeMirror },
		"may begin some": func(_ *onpath.ChainSpec, f *onpath.FunctionSpec) { f.Packets = onpath.PacketsOriginate },
	} {
		s := aWorld(t)
		c := aChain("default", "more", through("fw", 1), through("proxy", 1))
		c.Spec.Priority = 1
		s.apply(aFunction("default", "proxy", func(f *onpath.FunctionSpec) { f.State = onpath.StateTerminates; change(&c.Spec, f) }), c)
		if err := Check(s.snapshot()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSendsWhatItMayNot: a chain says so of its instances, until it is over.
func TestSendsWhatItMayNot(t *testing.T) {
	s := aWorld(t)
	s.settle()
	is := func() string { return reasonOf(s.chain("default", "good").Status.Conditions, allowed) }
	if is() != "" {
		t.Errorf("without any, it has the condition: %s", is())
	}
	i := s.instances("good-fw")[0]
	report := func(reason string) {
		list := s.states[i.Spec.Node].Report.Instances
		for k := range list {
			if list[k].Name == i.Metadata.Name {
				list[k].Reason = reason
			}
		}
		for s.think() {
		}
	}
	if report(onpath.ReasonSpoofed); is() != onpath.ReasonSpoofed {
		t.Errorf("the condition is %q", is())
	}
	if report(""); is() != "Allowed" {
		t.Errorf("once it is over, the condition is %q", is())
	}
}
