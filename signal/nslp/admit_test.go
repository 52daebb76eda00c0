package nslp

import (
	"bytes"
	"crypto/ed25519"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

func prefix(s string) onpath.Prefix { return onpath.Prefix{Prefix: netip.MustParsePrefix(s)} }

// testGround is a node with room for five leases, one of them of a publisher without an
// account, and a chain that takes SIP over TCP to the publisher.
func testGround() *Ground {
	return &Ground{
		Node: "gw1", Capacity: onpath.Resources{CPU: 10_000, Memory: 64 << 30}, Blocks: []string{"kv/1"},
		Plan: &onpath.LeasePlan{
			LeasesSpec: onpath.LeasesSpec{Share: 0.1, Publishers: onpath.PublisherTenants, Ports: []onpath.PortRange{{First: 5000, Last: 6000}}},
			Slots:      []onpath.LeaseSlot{{Vport: 1, Path: 1}, {Vport: 2, Path: 2}},
			Publishers: []onpath.Publisher{{Tenant: "voice", Keys: []onpath.PublicKey{onpath.PublicKey(key.Public().(ed25519.PublicKey))},
				Addresses: []onpath.Prefix{prefix("10.9.0.0/24")}}},
		},
		Datapath: &onpath.DatapathConfig{
			Tables: []onpath.Table{{ID: 2, Rules: []onpath.Rule{{Path: 7, Action: onpath.Action{Kind: onpath.ActionGroup},
				Match: onpath.Match{Protocol: []uint8{6}, Dst: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")}}}}}},
			Paths: []onpath.Path{{ID: 7, Chain: "other/web"}},
		},
	}
}

func testSetup(name string) *Message {
	return &Message{Type: Setup, Module: name, TTL: time.Minute, URL: "http://10.9.0.2/m.wasm", Hash: HashOf([]byte("m")),
		FilterProtocol: "udp", FilterPort: 5060, FilterTo: []netip.Prefix{netip.MustParsePrefix("10.9.0.2/32")}}
}

// hold takes n leases of a publisher up.
func (g *Ground) hold(n int, publisher string, known bool, slot int) {
	for i := range n {
		g.Leases = append(g.Leases, onpath.LocalLease{Slot: g.Plan.Slots[slot],
			LeaseSpec: onpath.LeaseSpec{Publisher: publisher, Known: known, Module: fmt.Sprint(publisher, i)}})
	}
}

// TestRefused: what does not hold is refused with its reason, and nothing else is.
func TestRefused(t *testing.T) {
	stranger := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, 32))
	name := "key-" + fmt.Sprintf("%x", []byte(stranger.Public().(ed25519.PublicKey))[:8])
	open := func(g *Ground, m *Message) {
		g.Plan.LeasesSpec.Publishers = onpath.PublisherAny
		g.Capacity.CPU = 20_000
		m.Key, m.Password = stranger.Public().(ed25519.PublicKey), "once"
	}
	for what, c := range map[string]struct {
		reason string
		with   func(g *Ground, m *Message)
	}{
		"all is well":                  {"", func(*Ground, *Message) {}},
		"a stranger's key":             {"UnknownPublisher", func(_ *Ground, m *Message) { m.Key = stranger.Public().(ed25519.PublicKey) }},
		"a stranger where any may":     {"", open},
		"a stranger without password":  {"WrongPassword", func(g *Ground, m *Message) { open(g, m); m.Password = "" }},
		"a stranger for a network":     {"FilterOutside", func(g *Ground, m *Message) { open(g, m); m.FilterTo[0] = netip.MustParsePrefix("10.9.0.0/24") }},
		"a stranger for nothing":       {"FilterOutside", func(g *Ground, m *Message) { open(g, m); m.FilterTo = nil }},
		"a second stranger":            {"NoShare", func(g *Ground, m *Message) { g.hold(1, "key-1", false, 1); open(g, m) }},
		"a block that is there":        {"", func(_ *Ground, m *Message) { m.Dependencies = []string{"kv/1"} }},
		"a block that is not":          {"MissingBlock", func(_ *Ground, m *Message) { m.Dependencies = []string{"kv/2"} }},
		"no hash":                      {"NoModule", func(_ *Ground, m *Message) { m.Hash = nil }},
		"no URL":                       {"NoModule", func(_ *Ground, m *Message) { m.URL = "file:///etc/passwd" }},
		"a property without a value":   {"BadProperty", func(_ *Ground, m *Message) { m.Properties = []string{"a"} }},
		"another's address":            {"FilterOutside", func(_ *Ground, m *Message) { m.FilterTo[0] = netip.MustParsePrefix("10.10.0.2/32") }},
		"a wider network":              {"FilterOutside", func(_ *Ground, m *Message) { m.FilterTo[0] = netip.MustParsePrefix("10.9.0.0/16") }},
		"all that it may select":       {"", func(_ *Ground, m *Message) { m.FilterTo = nil }},
		"another port":                 {"FilterOutside", func(_ *Ground, m *Message) { m.FilterPort = 80 }},
		"no port where some may":       {"FilterOutside", func(_ *Ground, m *Message) { m.FilterPort = 0 }},
		"a port of no protocol":        {"FilterOutside", func(_ *Ground, m *Message) { m.FilterProtocol = "" }},
		"what a chain selects":         {"SelectedByChain", func(_ *Ground, m *Message) { m.FilterProtocol = "tcp" }},
		"room for the last":            {"", func(g *Ground, _ *Message) { g.hold(4, "voice", true, 0) }},
		"no room":                      {"NoShare", func(g *Ground, _ *Message) { g.hold(5, "voice", true, 0) }},
		"no room, but for its own":     {"", func(g *Ground, m *Message) { g.hold(5, "voice", true, 0); m.Module = "voice3" }},
		"as many publishers as can be": {"NoShare", func(g *Ground, _ *Message) { g.hold(1, "a", true, 0); g.hold(1, "b", true, 1) }},
	} {
		g, m := testGround(), testSetup("m")
		m.Key = key.Public().(ed25519.PublicKey)
		c.with(g, m)
		l, r := g.Admit(now, m)
		reason := ""
		if r != nil {
			reason = r.Reason
		}
		if reason != c.reason {
			t.Errorf("%s: %v, want reason %q", what, r, c.reason)
		}
		if r == nil && (l.Slot.Path == 0 || len(l.To) == 0 || l.Until != now.Add(time.Minute) || l.Known == (l.Publisher == name)) {
			t.Errorf("%s: %+v", what, l)
		}
	}
}

// TestUntrusted: what is not signed as it should be is refused before anything is kept, and
// goes no further.
func TestUntrusted(t *testing.T) {
	for what, c := range map[string]struct {
		reason string
		with   func(m *Message)
	}{
		"signed":          {"", func(*Message) {}},
		"not signed":      {"Unsigned", func(m *Message) { m.Signature = nil }},
		"a changed field": {"WrongSignature", func(m *Message) { m.TTL = time.Hour }},
		"another key":     {"WrongSignature", func(m *Message) { m.Key = bytes.Repeat([]byte{1}, 32) }},
		"another module":  {"WrongSignature", func(m *Message) { m.ModuleSignature = nil; m.Signature = ed25519.Sign(simKey, m.signed()) }},
		"an old time":     {"OldTime", func(m *Message) { m.Sign(simKey, now.Add(-MaxAge-time.Second), m.Nonce) }},
		"a time to come":  {"OldTime", func(m *Message) { m.Sign(simKey, now.Add(MaxAge+time.Minute), m.Nonce) }},
	} {
		s := newSimulation(t, 1)
		s.loss = 0
		s.routes[0] = s.addresses()[:1]
		s.route, s.alter = 0, c.with
		r, err := s.request(simSetup())
		n := s.nodes[s.routes[0][0]]
		switch {
		case err != nil || len(r.Stack) != 1:
			t.Errorf("%s: %+v, %v", what, r, err)
		case c.reason == "" && (r.Stack[0].State != Installed || len(n.held) != 1):
			t.Errorf("%s: %+v", what, r.Stack[0])
		case c.reason != "" && (r.Stack[0].Reason != c.reason || len(n.held)+len(n.node.sessions)+len(n.node.nonces) != 0):
			t.Errorf("%s: %+v; %d leases, %d sessions", what, r.Stack[0], len(n.held), len(n.node.sessions))
		}
	}
}

// TestReplayed: the same request in another session is refused, in its own it is answered
// again.
func TestReplayed(t *testing.T) {
	s := newSimulation(t, 1)
	s.loss = 0
	s.routes[0], s.route = s.addresses()[:1], 0
	var sent Message
	s.alter = func(m *Message) { sent = *m }
	if r, err := s.request(simSetup()); err != nil || r.Stack[0].State != Installed {
		t.Fatalf("%+v, %v", r, err)
	}
	s.alter = func(m *Message) { *m = sent }
	r, err := s.request(simSetup())
	if err != nil || r.Stack[0].Reason != "Replayed" {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestLeaseNames: among many leases no two have the same name, though publishers choose
// what of it can be read.
func TestLeaseNames(t *testing.T) {
	seen := map[string]string{}
	for i := range 20_000 {
		l := onpath.LeaseSpec{Node: fmt.Sprint("gw", i), Publisher: "voice", Module: "NetMonitor_1.0.0"}
		name := leaseName(&l)
		if other, ok := seen[name]; ok || len(name) > onpath.MaxName {
			t.Fatalf("the lease on %s is called %q, like that on %s", l.Node, name, other)
		}
		seen[name] = l.Node
	}
}

// TestKeep: leases go with what they were given for.
func TestKeep(t *testing.T) {
	for what, c := range map[string]struct {
		kept bool
		with func(g *Ground)
	}{
		"as it was":               {true, func(*Ground) {}},
		"more addresses":          {true, func(g *Ground) { g.Plan.Publishers[0].Addresses[0] = prefix("10.8.0.0/15") }},
		"the tenant may have all": {true, func(g *Ground) { g.Plan.Publishers[0].Addresses = nil }},
		"other addresses":         {false, func(g *Ground) { g.Plan.Publishers[0].Addresses[0] = prefix("10.9.1.0/24") }},
		"narrower addresses":      {false, func(g *Ground) { g.Plan.Publishers[0].Addresses[0] = prefix("10.9.0.128/25") }},
		"no such tenant":          {false, func(g *Ground) { g.Plan.Publishers = nil }},
		"another slot":            {false, func(g *Ground) { g.Plan.Slots = g.Plan.Slots[1:] }},
		"no leases":               {false, func(g *Ground) { g.Plan = nil }},
	} {
		g := testGround()
		g.Leases = []onpath.LocalLease{{Slot: g.Plan.Slots[0], LeaseSpec: onpath.LeaseSpec{
			Publisher: "voice", Known: true, Module: "m", To: []onpath.Prefix{prefix("10.9.0.2/32")}}}}
		c.with(g)
		if keep, gone := g.Keep(); len(keep)+len(gone) != 1 || (len(keep) == 1) != c.kept {
			t.Errorf("%s: kept %v, gone %v", what, keep, gone)
		}
	}
}
