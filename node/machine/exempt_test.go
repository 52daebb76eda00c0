package machine

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node/base"
)

// TestExempt: a chain that selects everything of this machine's takes neither its
// tunnels nor its connections to the server, and only an uplink of the machine's own
// traffic needs rules for that.
func TestExempt(t *testing.T) {
	server := netip.MustParseAddrPort("192.0.2.9:6440")
	everything := onpath.Rule{Action: onpath.Action{Kind: onpath.ActionGroup, Group: 64}, Path: 1}
	plan := func(attach onpath.Attach) *onpath.NodePlan {
		p := &onpath.NodePlan{}
		p.Datapath.Underlay = onpath.Underlay{Address: netip.MustParseAddr("192.0.2.1"), Port: 4797}
		p.Datapath.Edge = &onpath.Edge{Vport: 1, Table: 1, Uplinks: []onpath.Uplink{{Name: "own", Device: "eth0", Attach: attach}}}
		p.Datapath.Tables = []onpath.Table{{ID: 1, Rules: []onpath.Rule{everything}}, {ID: 2}}
		return p
	}
	m := &Machine{}
	a := &Exempt{part: &base.Part{Log: slog.New(slog.DiscardHandler)}, machine: m, up: make(chan struct{}), rounds: base.NewRounds()}
	m.seen.Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	m.seen.resolvers = []netip.Addr{netip.MustParseAddr("192.0.2.53")}
	a.SetControl(context.Background(), server.String())
	m.seen.askFrom = onpath.PortRange{First: 32768, Last: 60999}
	registry := netip.MustParseAddrPort("198.51.100.5:5000")
	ends := a.Connects(context.Background(), registry)
	second := a.Connects(context.Background(), registry)
	config := func(p *onpath.NodePlan) *onpath.DatapathConfig {
		c, _ := onpath.Effective(p, &onpath.LocalState{Exempt: a.Rules(p.Datapath.Underlay, m.Current())})
		return c
	}
	own := plan(onpath.AttachHost)
	c := config(own)
	protocol := uint8(unix.IPPROTO_TCP)
	first := func(src, dst string) onpath.ActionKind {
		s, d := netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst)
		for _, r := range c.Tables[0].Rules {
			if len(r.Match.Protocol) > 0 && r.Match.Protocol[0] != protocol {
				continue
			}
			if within(r.Match.Src, s.Addr()) && within(r.Match.Dst, d.Addr()) && holds(r.Match.SrcPorts, s.Port()) && holds(r.Match.DstPorts, d.Port()) {
				return r.Action.Kind
			}
		}
		return ""
	}
	for _, k := range []struct {
		src, dst string
		want     onpath.ActionKind
	}{
		{"192.0.2.1:40000", "192.0.2.9:6440", onpath.ActionExit},
		{"192.0.2.9:6440", "192.0.2.1:40000", onpath.ActionExit},
		{"[2001:db8::1]:40000", "[fd00:ec2::254]:80", onpath.ActionExit},
		{"203.0.113.5:40000", "192.0.2.9:6440", onpath.ActionGroup}, // another's, by way of this machine
		{"192.0.2.9:6440", "203.0.113.5:40000", onpath.ActionGroup}, // what it gets
		{"[2001:db8::5]:40000", "[fd00:ec2::254]:80", onpath.ActionGroup},
		{"198.51.100.7:6440", "192.0.2.1:40000", onpath.ActionGroup}, // the port alone does not help
		{"192.0.2.9:443", "192.0.2.1:40000", onpath.ActionGroup},
		{"192.0.2.2:50000", "192.0.2.1:80", onpath.ActionGroup},
	} {
		if got := first(k.src, k.dst); got != k.want {
			t.Errorf("%s to %s: %q, must be %q", k.src, k.dst, got, k.want)
		}
	}
	for _, k := range []struct {
		protocol uint8
		src, dst string
		want     onpath.ActionKind
	}{
		{6, "192.0.2.1:40000", "198.51.100.5:5000", onpath.ActionExit}, // an image
		{6, "198.51.100.5:5000", "192.0.2.1:40000", onpath.ActionExit},
		{6, "192.0.2.1:40000", "198.51.100.5:80", onpath.ActionGroup},
		{6, "203.0.113.5:40000", "198.51.100.5:5000", onpath.ActionGroup},
		{17, "192.0.2.1:40000", "192.0.2.53:53", onpath.ActionExit}, // a name
		{6, "192.0.2.53:53", "192.0.2.1:40000", onpath.ActionExit},
		{17, "192.0.2.1:40000", "198.51.100.7:53", onpath.ActionGroup},
		{17, "192.0.2.1:40000", "198.51.100.7:123", onpath.ActionExit}, // the time
		{17, "[2001:db8::9]:123", "[2001:db8::1]:40000", onpath.ActionExit},
		{6, "192.0.2.1:40000", "198.51.100.7:123", onpath.ActionGroup},
		{17, "192.0.2.2:50000", "192.0.2.1:4797", onpath.ActionExit}, // a tunnel
		{17, "203.0.113.5:123", "192.0.2.1:123", onpath.ActionExit},  // a time server that asks from its own port
		// The port at which others answer opens no port at which the machine listens.
		{17, "203.0.113.5:123", "192.0.2.1:4500", onpath.ActionGroup},
		{17, "[2001:db8::9]:123", "[2001:db8::1]:500", onpath.ActionGroup},
		{6, "198.51.100.5:5000", "192.0.2.1:22", onpath.ActionGroup},
		{6, "198.51.100.5:5000", "192.0.2.1:2379", onpath.ActionGroup},
		{6, "192.0.2.9:6440", "192.0.2.1:22", onpath.ActionGroup},
		{17, "192.0.2.53:53", "192.0.2.1:500", onpath.ActionGroup},
	} {
		if protocol = k.protocol; first(k.src, k.dst) != k.want {
			t.Errorf("protocol %d, %s to %s: %q, must be %q", k.protocol, k.src, k.dst, first(k.src, k.dst), k.want)
		}
	}
	protocol = unix.IPPROTO_TCP
	leads := func(when string, want onpath.ActionKind) {
		t.Helper()
		c = config(own)
		if got := first(registry.String(), "192.0.2.1:40000"); got != want {
			t.Errorf("%s: %q, must be %q", when, got, want)
		}
	}
	for i := range 2 * mostConnected { // another tenant's image, all over the world
		more := a.Connects(context.Background(), netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 114, byte(i)}), 443))
		defer more()
	}
	leads("others connect, too", onpath.ActionExit)
	ends()
	ends()
	leads("one of two connections is closed", onpath.ActionExit)
	second()
	leads("both are closed", onpath.ActionGroup)
	if n := len(own.Datapath.Tables[0].Rules); n != 1 {
		t.Errorf("the plan itself has %d rules now", n)
	}
	known := m.seen.Addresses
	m.seen.Addresses = nil
	if c := config(own); len(c.Tables[0].Rules) != 1 {
		t.Errorf("a machine whose addresses are not known got %d rules", len(c.Tables[0].Rules))
	}
	if c := config(plan(onpath.AttachRouter)); len(c.Tables[0].Rules) != 1 {
		t.Errorf("a router's uplink got %d rules", len(c.Tables[0].Rules))
	}
	m.seen.Addresses = known
	for _, at := range []string{"192.0.2.1:7443", "[::]:7443", ":7443"} {
		a.SetControl(context.Background(), at)
		c = config(own)
		if there, back := first("203.0.113.5:40000", "192.0.2.1:7443"), first("192.0.2.1:7443", "203.0.113.5:40000"); there != onpath.ActionExit || back != onpath.ActionExit {
			t.Errorf("a server at %s of this machine's: other nodes' connections %q, %q", at, there, back)
		}
		if got := first("203.0.113.5:40000", "203.0.113.9:7443"); got != onpath.ActionGroup {
			t.Errorf("a server at %s of this machine's: to one elsewhere %q", at, got)
		}
	}
	a.SetControl(context.Background(), server.String())
	a.SetControl(context.Background(), "nothing of the kind")
	if len(a.control) != 1 || a.control[0] != server {
		t.Errorf("a name that means nothing made the server %v", a.control)
	}
}

func within(list []netip.Prefix, a netip.Addr) bool {
	for _, p := range list {
		if p.Contains(a) {
			return true
		}
	}
	return len(list) == 0
}

func holds(list []onpath.PortRange, p uint16) bool {
	for _, r := range list {
		if r.First <= p && p <= r.Last {
			return true
		}
	}
	return len(list) == 0
}
