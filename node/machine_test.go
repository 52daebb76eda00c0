package node_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node"
	"github.com/onpath/onpath/node/machine"
)

func (r *running) condition(name string) onpath.Condition {
	for _, c := range r.Report().Conditions {
		if c.Type == name {
			return c
		}
	}
	return onpath.Condition{}
}

func uplinkPlan(generation uint64, bypass bool, devices ...string) *onpath.NodePlan {
	p := planOf(generation)
	p.Datapath.Edge = &onpath.Edge{Vport: 1}
	for _, d := range devices {
		p.Datapath.Edge.Uplinks = append(p.Datapath.Edge.Uplinks, onpath.Uplink{Name: "up-" + d, Device: d, Attach: onpath.AttachRouter, BypassHostFirewall: bypass})
	}
	return p
}

func TestUplinksAndForwarding(t *testing.T) {
	b := newFixture(t)
	sysctl(t, b.host, "net.ipv4.ip_forward", "0")
	b.spec.Underlay.Address = netip.MustParseAddr("10.255.0.7")
	b.station("a", "cl0", []string{"10.255.0.7/24"}, []string{"10.255.0.8/24"})
	r := b.run()
	if c := r.condition(machine.ConditionUnderlay); c.Status != onpath.True || r.Report().UnderlayMTU != 1500 {
		t.Errorf("underlay: %+v, MTU %d", c, r.Report().UnderlayMTU)
	}
	r.plan(uplinkPlan(1, false, "cl0", "later"))
	b.until("the missing uplink is left out", func() bool { return fmt.Sprint(b.path.uplinks()) == "[up-cl0]" })
	b.until("and told", func() bool { return r.condition(onpath.ConditionUplink+"up-later").Reason == "DeviceMissing" })
	b.until("forwarding is off, and told", func() bool {
		c := r.condition(machine.ConditionForwarding)
		return c.Status == onpath.False && strings.Contains(c.Message, "net.ipv4.ip_forward=1")
	})
	if got := readSysctl(t, b.host, "net.ipv4.ip_forward"); got != "0" {
		t.Error("the agent changed the host's forwarding without being asked to")
	}
	b.until("the plan is acknowledged", func() bool { return r.server.last().Plan == 1 })
	b.station("z", "later", nil, nil)
	b.until("an uplink that comes is attached", func() bool { return fmt.Sprint(b.path.uplinks()) == "[up-cl0 up-later]" })
	r.stop()
	b.edit = func(o *node.Options) { o.SetForwarding = true }
	attempts := 0
	b.path.fail = func(*onpath.DatapathConfig) error {
		attempts++
		if got := readSysctl(t, b.host, "net.ipv4.ip_forward"); got != "0" && attempts <= 2 {
			t.Error("forwarding is on before the chains are in force")
		}
		if attempts == 1 {
			return errors.New("not yet")
		}
		return nil
	}
	b.run()
	b.until("SetForwarding sets it", func() bool { return readSysctl(t, b.host, "net.ipv4.ip_forward") == "1" })
}

// TestAddresses: the report has the machine's own addresses, soon after they change.
func TestAddresses(t *testing.T) {
	b := newFixture(t)
	b.station("a", "cl0", []string{"10.255.0.7/24", "2001:db8::7/64"}, []string{"10.255.0.8/24", "2001:db8::8/64"})
	b.clock = newManualClock() // it would look every 10 s without the kernel's word
	r := b.run()
	has := func(want string) func() bool {
		return func() bool { return fmt.Sprint(r.server.last().Addresses) == want }
	}
	b.until("the addresses are reported", has("[10.255.0.7 2001:db8::7]"))
	h := b.netlink(b.host)
	defer h.Close()
	address(t, h, "cl0", []string{"192.0.2.9/32"})
	b.until("one that comes is reported", has("[10.255.0.7 192.0.2.9 2001:db8::7]"))
}

func TestHostFirewall(t *testing.T) {
	b := newFixture(t)
	b.station("a", "cl0", []string{"10.255.0.7/24"}, []string{"10.255.0.8/24"})
	ns, err := netns.GetFromPath(b.host)
	must(t, err)
	defer ns.Close()
	nft, err := nftables.New(nftables.WithNetNSFd(int(ns)))
	must(t, err)
	r := b.run()
	look := func(generation uint64, bypass bool, want string, reason string) {
		t.Helper()
		r.plan(uplinkPlan(generation, bypass, "cl0"))
		b.until(fmt.Sprintf("uplinks %s, reason %q", want, reason), func() bool {
			return r.server.last().Plan == generation && fmt.Sprint(b.path.uplinks()) == want && r.condition(onpath.ConditionUplink+"up-cl0").Reason == reason
		})
	}
	look(1, false, "[up-cl0]", "")

	table := nft.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "host"})
	drop := nftables.ChainPolicyDrop
	nft.AddChain(&nftables.Chain{Table: table, Name: "fwd", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter, Policy: &drop})
	must(t, nft.Flush())
	look(2, false, "[]", "HostFirewall")
	if c := r.condition(onpath.ConditionUplink + "up-cl0"); !strings.Contains(c.Message, "ip host fwd") || !strings.Contains(c.Message, "bypassHostFirewall") {
		t.Errorf("%q does not say where and what to do", c.Message)
	}
	look(3, true, "[up-cl0]", "")

	nft.DelTable(table)
	table = nft.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "nat"})
	post := nft.AddChain(&nftables.Chain{Table: table, Name: "post", Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
	masquerade := func(device string) {
		nft.AddRule(&nftables.Rule{Table: table, Chain: post, Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: append([]byte(device), make([]byte, 16-len(device))...)},
			&expr.Masq{},
		}})
		must(t, nft.Flush())
	}
	masquerade("docker0")
	look(4, false, "[up-cl0]", "")
	masquerade("cl0")
	look(5, false, "[]", "HostFirewall")
	b.station("z", "cl1", nil, nil)
	r.plan(uplinkPlan(6, false, "cl0", "cl1"))
	b.until("the other uplink is left out too, and told", func() bool {
		return r.server.last().Plan == 6 && fmt.Sprint(b.path.uplinks()) == "[]" && r.condition(onpath.ConditionUplink+"up-cl1").Reason == "OtherUplink"
	})
}

// TestHostFirewallInForce: a rule that translates sources of no chain is no matter. One
// that translates the chain's is told, and where chains are in force the uplink stays, also
// for the next agent.
func TestHostFirewallInForce(t *testing.T) {
	b := newFixture(t)
	b.station("a", "cl0", []string{"10.255.0.7/24"}, []string{"10.255.0.8/24"})
	ns, err := netns.GetFromPath(b.host)
	must(t, err)
	defer ns.Close()
	nft, err := nftables.New(nftables.WithNetNSFd(int(ns)))
	must(t, err)
	table := nft.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "nat"})
	post := nft.AddChain(&nftables.Chain{Table: table, Name: "post", Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
	translate := func(source ...byte) { // as iptables says it
		nft.AddRule(&nftables.Rule{Table: table, Chain: post, Exprs: []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: uint32(len(source))},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: source}, &expr.Masq{},
		}})
		must(t, nft.Flush())
	}
	r := b.run()
	steered := func(generation uint64, reason string) {
		t.Helper()
		p := uplinkPlan(generation, false, "cl0")
		steerAll(p, "192.0.2.0/24")
		r.plan(p)
		b.until(fmt.Sprintf("plan %d is in force, and the uplink's reason is %q", generation, reason), func() bool {
			return r.server.last().Plan == generation && fmt.Sprint(b.path.uplinks()) == "[up-cl0]" &&
				r.condition(onpath.ConditionUplink+"up-cl0").Reason == reason
		})
	}
	translate(172, 17)
	steered(1, "")
	translate(192, 0, 2)
	steered(2, onpath.ReasonPastHostFirewall)
	r.stop()
	r = b.run()
	steered(3, onpath.ReasonPastHostFirewall)
	file := filepath.Join(b.dir, "uplinks.json")
	for i, lose := range []func(){ // an earlier version wrote none
		func() { must(t, os.Remove(file)) }, func() { must(t, os.WriteFile(file, []byte(`{"up-cl0":`), 0o600)) },
	} {
		r.stop()
		lose()
		r = b.run()
		steered(uint64(4+i), onpath.ReasonPastHostFirewall)
	}
}

// TestHostFirewallStaysRefused: an uplink at which chains were never in force is not held by
// the next agent either.
func TestHostFirewallStaysRefused(t *testing.T) {
	b := newFixture(t)
	b.station("a", "cl0", []string{"10.255.0.7/24"}, []string{"10.255.0.8/24"})
	ns, err := netns.GetFromPath(b.host)
	must(t, err)
	defer ns.Close()
	nft, err := nftables.New(nftables.WithNetNSFd(int(ns)))
	must(t, err)
	drop := nftables.ChainPolicyDrop
	nft.AddChain(&nftables.Chain{Table: nft.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "host"}), Name: "fwd",
		Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter, Policy: &drop})
	must(t, nft.Flush())
	for generation := range uint64(2) {
		r := b.run()
		p := uplinkPlan(generation+1, false, "cl0")
		steerAll(p, "192.0.2.0/24")
		r.plan(p)
		b.until("it is refused", func() bool {
			return r.server.last().Plan == generation+1 && fmt.Sprint(b.path.uplinks()) == "[]" &&
				r.condition(onpath.ConditionUplink+"up-cl0").Reason == onpath.ReasonHostFirewall
		})
		r.stop()
	}
}

// steerAll gives a plan one strict chain, of what comes from the prefix.
func steerAll(p *onpath.NodePlan, from string) {
	c := &p.Datapath
	c.Edge.Table = onpath.ClassifierTable(onpath.TierTenant)
	c.Paths = []onpath.Path{{ID: 1, Chain: "default/web", Tenant: "default", Strict: true}}
	c.Tables = []onpath.Table{{ID: c.Edge.Table, Miss: onpath.Action{Kind: onpath.ActionExit}, Rules: []onpath.Rule{{
		Match: onpath.Match{Src: []netip.Prefix{netip.MustParsePrefix(from)}}, Path: 1,
		Action: onpath.Action{Kind: onpath.ActionDrop, Reason: onpath.DropNoInstance},
	}}}}
}

func TestMissingRuntime(t *testing.T) {
	b := newFixture(t)
	b.edit = func(o *node.Options) { o.Runtimes = nil }
	r := b.run()
	if c := r.condition(onpath.ConditionRuntime); c.Status != onpath.False || c.Reason != "Missing" {
		t.Errorf("runtime condition is %+v", c)
	}
	r.plan(planOf(1, routed("web", 16)))
	got := r.untilState("web", onpath.InstanceFailed)
	if !strings.Contains(got.Message, "no runtime for container functions") {
		t.Errorf("message %q does not say why", got.Message)
	}
}

func TestCapacity(t *testing.T) {
	b := newFixture(t)
	b.spec.Capacity.CPU = 1500
	r := b.run()
	got := r.Report()
	if got.Capacity.CPU != 1500 || got.Capacity.Memory < 64<<20 || got.Capacity.Network != 10e9 || got.Kernel == "" || got.Version != "v0.0.0-test" {
		t.Errorf("report %+v", got)
	}
}

// TestDeviceMadeAnew: the whole configuration is put in force again, equal as it
// is, when a device that it is attached to is another one under the same name, and
// when the underlay's address goes or comes back.
func TestDeviceMadeAnew(t *testing.T) {
	b := newFixture(t)
	b.spec.Underlay.Address = netip.MustParseAddr("10.255.0.7")
	b.device("under0", 0)
	b.device("cl0", 0)
	b.device(onpath.TunnelDevice, 0)
	h := b.netlink(b.host)
	defer h.Close()
	address(t, h, "under0", []string{"10.255.0.7/24"})
	b.clock = newManualClock() // it would look every 10 s without the kernel's word
	r := b.run()
	p := uplinkPlan(1, true, "cl0")
	p.Datapath.Underlay.Address = b.spec.Underlay.Address
	r.plan(p)
	b.until("the plan is acknowledged", func() bool { return r.server.last().Plan == 1 })

	remove := func(device string) {
		l, err := h.LinkByName(device)
		must(t, err)
		must(t, h.LinkDel(l))
	}
	addr, err := netlink.ParseAddr("10.255.0.7/24")
	must(t, err)
	for _, step := range []struct {
		what string
		do   func()
	}{
		{"another uplink", func() { remove("cl0"); b.device("cl0", 0) }},
		{"an uplink of the same number", func() { i := b.index("cl0"); remove("cl0"); b.device("cl0", i) }},
		{"another tunnel", func() { remove(onpath.TunnelDevice); b.device(onpath.TunnelDevice, 0) }},
		{"no tunnel", func() { remove(onpath.TunnelDevice) }},
		{"another underlay", func() {
			remove("under0")
			b.device("under0", 0)
			address(t, h, "under0", []string{"10.255.0.7/24"})
		}},
		{"no underlay address", func() {
			l, err := h.LinkByName("under0")
			must(t, err)
			must(t, h.AddrDel(l, addr))
		}},
		{"the underlay address again", func() { address(t, h, "under0", []string{"10.255.0.7/24"}) }},
	} {
		b.settled()
		before := b.path.count()
		step.do()
		b.until(step.what+": it is applied again", func() bool { return b.path.count() > before })
	}
	b.settled()
	before := b.path.count()
	b.device(onpath.TunnelDevice, 0) // as the data path makes it
	b.device("other0", 0)
	time.Sleep(300 * time.Millisecond)
	if n := b.path.count() - before; n != 0 {
		t.Errorf("applied %d times for devices that nothing is to be attached to", n)
	}
}

// settled waits until nothing has been applied for a while.
func (b *fixture) settled() {
	for n := -1; n != b.path.count(); time.Sleep(200 * time.Millisecond) {
		n = b.path.count()
	}
}

// device makes a device in the host, up, with that number (0: any) and an address
// of its own making.
func (b *fixture) device(name string, index int) {
	b.t.Helper()
	h := b.netlink(b.host)
	defer h.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Index = name, index
	must(b.t, h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "to-" + name}))
	l, err := h.LinkByName(name)
	must(b.t, err)
	must(b.t, h.LinkSetUp(l))
}
