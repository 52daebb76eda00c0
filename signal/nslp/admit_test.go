package nslp

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/signal/gist"
)

func prefix(s string) onpath.Prefix { return onpath.Prefix{Prefix: netip.MustParsePrefix(s)} }

// testGround is a node with room for five leases, one of them of a publisher without an
// account, and a chain that takes SIP over TCP to the publisher.
func testGround() *Ground {
	return &Ground{
		Node: "gw1", Capacity: onpath.Resources{CPU: 10_000, Memory: 64 << 30}, Blocks: []string{"kv/1"},
		Plan: &onpath.LeasePlan{
			Spec:  onpath.LeasesSpec{Share: 0.1, Publishers: onpath.PublisherTenants, Ports: []onpath.PortRange{{First: 5000, Last: 6000}}},
			Slots: []onpath.LeaseSlot{{Vport: 1, Path: 1}, {Vport: 2, Path: 2}},
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

func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// TestRefused: what does not hold is refused with its reason, and nothing else is.
func TestRefused(t *testing.T) {
	stranger := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, 32))
	name := "key-" + fmt.Sprintf("%x", []byte(stranger.Public().(ed25519.PublicKey))[:8])
	open := func(g *Ground, m *Message) {
		g.Plan.Spec.Publishers = onpath.PublisherAny
		g.Capacity.CPU = 20_000
		m.Key, m.Password = stranger.Public().(ed25519.PublicKey), "once"
	}
	for what, c := range map[string]struct {
		reason string
		with   func(g *Ground, m *Message)
	}{
		"all is well":                 {"", func(*Ground, *Message) {}},
		"a stranger's key":            {"UnknownPublisher", func(_ *Ground, m *Message) { m.Key = stranger.Public().(ed25519.PublicKey) }},
		"a stranger where any may":    {"", open},
		"a stranger without password": {"WrongPassword", func(g *Ground, m *Message) { open(g, m); m.Password = "" }},
		"a stranger for a network":    {"FilterOutside", func(g *Ground, m *Message) { open(g, m); m.FilterTo[0] = netip.MustParsePrefix("10.9.0.0/24") }},
		"a stranger for nothing":      {"FilterOutside", func(g *Ground, m *Message) { open(g, m); m.FilterTo = nil }},
		"a second stranger":           {"NoShare", func(g *Ground, m *Message) { g.hold(1, "key-1", false, 1); open(g, m) }},
		"a block that is there":       {"", func(_ *Ground, m *Message) { m.Dependencies = []string{"kv/1"} }},
		"a block that is not":         {"MissingBlock", func(_ *Ground, m *Message) { m.Dependencies = []string{"kv/2"} }},
		"no hash":                     {"NoModule", func(_ *Ground, m *Message) { m.Hash = nil }},
		"no URL":                      {"NoModule", func(_ *Ground, m *Message) { m.URL = "file:///etc/passwd" }},
		"a property without a value":  {"BadProperty", func(_ *Ground, m *Message) { m.Properties = []string{"a"} }},
		"hosts to fetch from": {"", func(_ *Ground, m *Message) {
			m.Fetch = []string{"a.example", "10.0.0.1:8080", "[2001:db8::1]:80", "2001:db8::2"}
		}},
		"no host to fetch from":   {"BadHost", func(_ *Ground, m *Message) { m.Fetch = []string{"http://a.example/"} }},
		"the value of a property": {"BadHost", func(_ *Ground, m *Message) { m.Fetch = []string{"$origin"} }},
		"too many hosts":          {"BadHost", func(_ *Ground, m *Message) { m.Fetch = slices.Repeat([]string{"a.example"}, 9) }},
		"another's address":       {"FilterOutside", func(_ *Ground, m *Message) { m.FilterTo[0] = netip.MustParsePrefix("10.10.0.2/32") }},
		"a wider network":         {"FilterOutside", func(_ *Ground, m *Message) { m.FilterTo[0] = netip.MustParsePrefix("10.9.0.0/16") }},
		"all that it may select":  {"", func(_ *Ground, m *Message) { m.FilterTo = nil }},
		"another port":            {"FilterOutside", func(_ *Ground, m *Message) { m.FilterPort = 80 }},
		"no port where some may":  {"FilterOutside", func(_ *Ground, m *Message) { m.FilterPort = 0 }},
		"a port of no protocol":   {"FilterOutside", func(_ *Ground, m *Message) { m.FilterProtocol = "" }},
		"what a chain selects":    {"SelectedByChain", func(_ *Ground, m *Message) { m.FilterProtocol = "tcp" }},
		"what a chain takes from others": {"", func(g *Ground, m *Message) {
			g.Datapath.Tables[0].Rules[0].Match = onpath.Match{Dst: []netip.Prefix{netip.MustParsePrefix("10.9.0.3/32")}}
			g.Flow = gist.Toward(simPublisher, simUser)
		}},
		"what a chain takes from the user": {"SelectedByChain", func(g *Ground, m *Message) {
			g.Datapath.Tables[0].Rules[0].Match = onpath.Match{Dst: []netip.Prefix{hostPrefix(simUser)}}
			g.Flow = gist.Toward(simUser, simPublisher)
		}},
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

// TestServer: a module serves only where the operator lends addresses, at ports that are free,
// and is given packets to others only if the request says which.
func TestServer(t *testing.T) {
	serve := func(ports ...uint16) func(*Ground, *Message) {
		return func(_ *Ground, m *Message) {
			for _, p := range ports {
				m.Serve = append(m.Serve, onpath.ServedPort{Protocol: "tcp", Port: p})
			}
		}
	}
	public := netip.MustParseAddr("203.0.113.5")
	for what, c := range map[string]struct {
		reason string
		with   func(g *Ground, m *Message)
		serves string // of the answer
	}{
		"a port":    {"", serve(5080), "m tcp 203.0.113.5:5080"},
		"two ports": {"", serve(5080, 5081), "m tcp 203.0.113.5:5080,m tcp 203.0.113.5:5081"},
		"a block that answers HTTP": {"", func(g *Ground, m *Message) {
			m.Dependencies, g.Plan.Spec.Ports = []string{"http/1"}, nil
		}, "m tcp 203.0.113.5:80"},
		"nothing to serve":          {"", func(_ *Ground, m *Message) { m.FilterProtocol, m.FilterPort = "udp", 5060 }, ""},
		"a port that is not lent":   {"NoServer", serve(80), ""},
		"no addresses":              {"NoServer", func(g *Ground, m *Message) { serve(5080)(g, m); g.Plan.Spec.Servers = 0 }, ""},
		"addresses of others":       {"NoServer", func(g *Ground, m *Message) { serve(5080)(g, m); g.hold(1, "other", true, 1) }, ""},
		"an engine without address": {"NoServer", func(g *Ground, m *Message) { serve(5080)(g, m); g.hold(1, "voice", true, 0) }, ""},
		"a stranger": {"NoServer", func(g *Ground, m *Message) {
			serve(5080)(g, m)
			g.Plan.Spec.Publishers, g.Plan.Publishers, m.Password = onpath.PublisherAny, nil, "once"
		}, ""},
		"another module's port": {"PortTaken", func(g *Ground, m *Message) {
			serve(5080)(g, m)
			g.hold(1, "voice", true, 1)
			g.Leases[0].Serves = m.Serve
		}, ""},
		"its own port": {"", func(g *Ground, m *Message) {
			serve(5080)(g, m)
			g.hold(1, "voice", true, 1)
			g.Leases[0].Serves, g.Leases[0].Module = m.Serve, m.Module
		}, "m tcp 203.0.113.5:5080"},
		"too many ports": {"NoServer", func(g *Ground, m *Message) {
			g.Plan.Spec.Ports = nil
			serve(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17)(g, m)
		}, ""},
		"an address that a chain takes": {"SelectedByChain", func(g *Ground, m *Message) {
			serve(5080)(g, m)
			g.Datapath.Tables[0].Rules[0].Match = onpath.Match{}
		}, ""},
	} {
		g, m := testGround(), testSetup("m")
		g.Blocks = append(g.Blocks, "http/1")
		g.Plan.Spec.Servers, g.Plan.Slots[1].Serves = 1, []netip.Addr{public}
		m.Key, m.FilterTo, m.FilterProtocol, m.FilterPort = key.Public().(ed25519.PublicKey), nil, "", 0
		c.with(g, m)
		l, r := g.Admit(now, m)
		reason := ""
		if r != nil {
			reason = r.Reason
		}
		if reason != c.reason {
			t.Errorf("%s: %v, want reason %q", what, r, c.reason)
			continue
		}
		if got := strings.Join(ServersOf(&l), ","); r == nil && (got != c.serves || l.ServesOnly != (got != "")) {
			t.Errorf("%s: it serves %q, and no packets of others are its: %t", what, got, l.ServesOnly)
		}
		if r != nil || len(l.Serves) == 0 {
			continue
		}
		g.Leases = []onpath.LocalLease{l}
		if keep, _ := g.Keep(); len(keep) != 1 {
			t.Errorf("%s: the plan that it was admitted by does not keep it", what)
		}
		g.Plan.Slots[1].Serves = nil
		if keep, _ := g.Keep(); len(keep) != 0 {
			t.Errorf("%s: it stays when its address goes", what)
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

// TestReplayed: the same request is refused in another session, in its own once what was
// answered is forgotten, and after the node's agent began anew.
func TestReplayed(t *testing.T) {
	for what, c := range map[string]struct {
		reason string
		with   func(s *simulation)
	}{
		"in another session":   {"Replayed", func(s *simulation) { s.session = gist.SessionID{2} }},
		"in its own, later":    {"Replayed", func(s *simulation) { s.until(s.now.Add(memory+time.Second), never) }},
		"after the agent died": {"OldTime", func(s *simulation) { s.now = s.now.Add(time.Second); s.nodes[s.routes[0][0]].boot() }},
	} {
		s := newSimulation(t, 1)
		s.loss, s.session = 0, gist.SessionID{1}
		s.routes[0], s.route = s.addresses()[:1], 0
		var sent Message
		s.alter = func(m *Message) { sent = *m }
		if r, err := s.request(simSetup()); err != nil || r.Stack[0].State != Installed {
			t.Fatalf("%s: %+v, %v", what, r, err)
		}
		s.alter = func(m *Message) { *m = sent }
		c.with(s)
		r, err := s.request(simSetup())
		if err != nil || r.Stack[0].Reason != c.reason {
			t.Errorf("%s: %+v, %v, want reason %q", what, r, err, c.reason)
		}
	}
}

func never() bool { return false }

// TestStrangersLeaveRoom: keys that are no tenant's, of which anybody makes as many as he
// likes, take no more than their part of a node; a tenant is heard beside them.
func TestStrangersLeaveRoom(t *testing.T) {
	s := newSimulation(t, 1)
	n := s.nodes[s.addresses()[0]].node
	stranger := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, 32))
	took := func(key ed25519.PrivateKey, i int) *Refusal {
		m := &Message{Type: Probe, Flow: Flow{simPublisher, simUser}}
		m.Sign(key, now, Nonce{byte(i), byte(i >> 8), byte(i >> 16), 1})
		return n.trust(now, m, gist.Toward(simPublisher, simUser))
	}
	taken := 0
	for taken < maxNonces && took(stranger, taken) == nil {
		taken++
	}
	if r := took(stranger, taken); taken != maxNonces/strangersPart || r == nil || r.Reason != "Busy" {
		t.Errorf("of strangers %d requests were taken, then %v", taken, r)
	}
	if r := took(simKey, taken+1); r != nil {
		t.Errorf("a tenant is refused: %v", r)
	}
	n.Tick(now.Add(time.Hour))
	if len(n.nonces) != 0 || n.strangers != 0 {
		t.Errorf("%d nonces are kept, %d of strangers", len(n.nonces), n.strangers)
	}
	for i := range maxSessions / strangersPart {
		n.sessions[gist.Key{Session: gist.SessionID{byte(i), byte(i >> 8), 1}}] = &session{stranger: true}
	}
	if r := took(stranger, 1); r == nil || r.Reason != "Busy" {
		t.Errorf("a stranger is let in beside %d sessions of strangers: %v", len(n.sessions), r)
	}
	if r := took(simKey, 2); r != nil {
		t.Errorf("a tenant is refused: %v", r)
	}
}

// TestLateAnswer: what was decided of one request is no answer to the next in its session.
func TestLateAnswer(t *testing.T) {
	s := newSimulation(t, 1)
	n := s.nodes[s.addresses()[0]].node
	k := gist.Key{Flow: gist.Toward(simPublisher, simUser), Session: gist.SessionID{1}}
	var asked []*Ask
	for i, m := range []*Message{simSetup(), {Type: Remove, Module: "m"}} {
		m.Flow = Flow{simPublisher, simUser}
		m.Sign(simKey, now, Nonce{byte(i)})
		for _, o := range n.request(now, &gist.Delivery{Key: k, Upstream: true, Hops: 3, Payload: m.Append(nil)}) {
			if o.Ask != nil {
				asked = append(asked, o.Ask)
			}
		}
	}
	if len(asked) != 2 {
		t.Fatalf("%d requests are to be decided on", len(asked))
	}
	n.Answer(now, asked[0], Entry{State: Installed})
	if n.sessions[k].entry != nil {
		t.Errorf("the REMOVE is answered with what became of the SETUP")
	}
	if n.Answer(now, asked[1], Entry{State: Removed}); n.sessions[k].entry == nil {
		t.Error("the REMOVE is not answered")
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
		"another key beside it":   {true, func(g *Ground) { g.Plan.Publishers[0].Keys = append(g.Plan.Publishers[0].Keys, make([]byte, 32)) }},
		"another key":             {false, func(g *Ground) { g.Plan.Publishers[0].Keys[0] = make([]byte, 32) }},
		"a lease without a key":   {true, func(g *Ground) { g.Leases[0].Key = nil; g.Plan.Publishers[0].Keys[0] = make([]byte, 32) }},
		"other ports":             {false, func(g *Ground) { g.Plan.Spec.Ports[0].Last = 5059 }},
		"any port":                {true, func(g *Ground) { g.Plan.Spec.Ports = nil }},
		"too small a share":       {false, func(g *Ground) { g.Plan.Spec.Share = 0.01 }},
		"a machine not looked at": {true, func(g *Ground) { g.Capacity = onpath.Resources{} }},
	} {
		g := testGround()
		g.Leases = []onpath.LocalLease{{Slot: g.Plan.Slots[0], LeaseSpec: onpath.LeaseSpec{
			Publisher: "voice", Known: true, Key: onpath.PublicKey(key.Public().(ed25519.PublicKey)), Module: "m", Port: 5060,
			To: []onpath.Prefix{prefix("10.9.0.2/32")}}}}
		c.with(g)
		if keep, gone := g.Keep(); len(keep)+len(gone) != 1 || (len(keep) == 1) != c.kept {
			t.Errorf("%s: kept %v, gone %v", what, keep, gone)
		}
	}
}

// TestPlanAsJSON: what the operator lends comes to the node whole.
func TestPlanAsJSON(t *testing.T) {
	p := testGround().Plan
	p.Spec.Publishers, p.Spec.DryRun = onpath.PublisherAny, true
	b, err := json.Marshal(p)
	var back onpath.LeasePlan
	if err == nil {
		err = json.Unmarshal(b, &back)
	}
	if err != nil || !reflect.DeepEqual(*p, back) {
		t.Errorf("%v: %s comes as %+v", err, b, back)
	}
}

// TestKeepFirst: where the share becomes too small, those that came last go.
func TestKeepFirst(t *testing.T) {
	g := testGround()
	g.hold(5, "voice", true, 0)
	for i := range g.Leases {
		g.Leases[i].To, g.Leases[i].Port = []onpath.Prefix{prefix("10.9.0.2/32")}, 5060
	}
	g.Plan.Spec.Share = 0.05
	if keep, gone := g.Keep(); len(keep) != 2 || len(gone) != 3 || keep[1].Module != "voice1" {
		t.Errorf("kept %v, gone %v", keep, gone)
	}
}

// TestPlayedElsewhere: a request that somebody has recorded is refused, each time with its
// reason, wherever it does not come as it was signed.
func TestPlayedElsewhere(t *testing.T) {
	other := netip.MustParseAddr("10.1.0.12")
	own := gist.Toward(simPublisher, simUser)
	ported := own
	ported.HasProtocol, ported.Protocol, ported.HasDestinationPort, ported.DestinationPort = true, 17, true, 5060
	wide := own
	wide.SourceBits = 24
	for what, c := range map[string]struct {
		reason string
		flow   gist.MRI
		from   netip.Addr
		hops   uint8
		with   func(n *Node, m *Message) time.Duration // and how much later
	}{
		"as it was signed":           {"", own, simPublisher, 31, nil},
		"from the node before":       {"", own, netip.MustParseAddr("10.20.0.1"), 30, nil},
		"toward another user":        {"WrongFlow", gist.Toward(simPublisher, other), simPublisher, 31, nil},
		"from another publisher":     {"WrongFlow", gist.Toward(other, simUser), other, 31, nil},
		"on the way back":            {"WrongFlow", gist.Toward(simUser, simPublisher), simUser, 31, nil},
		"for one port of the flow":   {"WrongFlow", ported, simPublisher, 31, nil},
		"for a network":              {"WrongFlow", wide, simPublisher, 31, nil},
		"by whom the flow is not of": {"WrongFlow", own, other, 31, nil},
		"with another flow in it": {"WrongSignature", gist.Toward(simPublisher, other), simPublisher, 31,
			func(_ *Node, m *Message) time.Duration { m.Flow.Destination = other; return 0 }},
		"with another port": {"WrongSignature", own, simPublisher, 31, func(_ *Node, m *Message) time.Duration { m.FilterPort = 80; return 0 }},
		"without its flow":  {"OldFormat", own, simPublisher, 31, func(_ *Node, m *Message) time.Duration { m.Flow = Flow{}; m.Sign(simKey, now, m.Nonce); return 0 }},
		"later":             {"OldTime", own, simPublisher, 31, func(*Node, *Message) time.Duration { return MaxAge + time.Second }},
		"twice": {"Replayed", own, simPublisher, 31, func(n *Node, m *Message) time.Duration {
			n.request(now, &gist.Delivery{Key: gist.Key{Flow: own}, Upstream: true, From: simPublisher, Hops: 31, Payload: m.Append(nil)})
			return 0
		}},
	} {
		n := far(t, 1, 0).nodes[netip.MustParseAddr("10.20.0.1")].node
		m := simSetup()
		m.Flow = Flow{simPublisher, simUser}
		m.Sign(simKey, now, Nonce{1})
		var later time.Duration
		if c.with != nil {
			later = c.with(n, m)
		}
		reason := "nothing is asked"
		for _, o := range n.request(now.Add(later), &gist.Delivery{
			Key: gist.Key{Flow: c.flow, Session: gist.SessionID{1}}, Upstream: true, From: c.from, Hops: c.hops, Payload: m.Append(nil)}) {
			if o.Ask != nil && o.Ask.Refused != nil {
				reason = o.Ask.Refused.Reason
			} else if o.Ask != nil {
				reason = ""
			}
		}
		if reason != c.reason {
			t.Errorf("%s: reason %q, want %q", what, reason, c.reason)
		}
	}
}

// TestOtherFormats: a node says so to whoever sends a request of a form that it does not know.
func TestOtherFormats(t *testing.T) {
	for what, change := range map[string]func([]byte) []byte{
		"a later version": func(b []byte) []byte { b[0] = 9; return b },
		"another type":    func(b []byte) []byte { b[1] = 9; return b },
		"a later field":   func(b []byte) []byte { return appendField(b, 999, []byte("what?")) },
	} {
		s := far(t, 1, 0)
		s.payload = change
		r, err := s.request(simSetup())
		if err != nil || len(r.Stack) != 1 || r.Stack[0].Reason != "UnknownFormat" || len(s.nodes[s.routes[0][0]].held) != 0 {
			t.Errorf("%s: %+v, %v", what, r, err)
		}
	}
}

// TestSentBack: what a TRIGGER wraps is signed for the way back.
func TestSentBack(t *testing.T) {
	there := Flow{simPublisher, simUser}
	for reason, f := range map[string]Flow{"": there.Inverted(), "WrongFlow": there} {
		n := far(t, 1, 0).nodes[netip.MustParseAddr("10.20.0.1")].node
		wrapped := simSetup()
		wrapped.Flow = f
		wrapped.Sign(simKey, now, Nonce{1})
		m := &Message{Type: Trigger, Wrapped: wrapped.Append(nil), Flow: there}
		m.Sign(simKey, now, Nonce{2})
		k := gist.Key{Flow: gist.Toward(simPublisher, simUser), Session: gist.SessionID{1}}
		n.request(now, &gist.Delivery{Key: k, Upstream: true, From: simPublisher, Hops: 31, Payload: m.Append(nil)})
		asked := 0
		for _, o := range n.last(now, k, "") {
			if o.Ask != nil {
				asked++
			}
		}
		s := n.sessions[k]
		if got := s.entry; reason == "" && (asked != 1 || got != nil) || reason != "" && (asked != 0 || got == nil || got.Reason != reason) {
			t.Errorf("signed for %s: %d requests are sent back, answer %+v, want reason %q", f, asked, got, reason)
		}
	}
}
