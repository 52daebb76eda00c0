package ebpf_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/datapath/datapathtest"
	"github.com/onpath/onpath/datapath/ebpf"
	"github.com/onpath/onpath/internal/netnsrun"
)

// crossing is a gateway between two uplinks with the fast path, and a chain for all
// traffic, through an ebpf function that lets it pass.
type crossing struct {
	*harness
	dp   onpath.Datapath
	cfg  *onpath.DatapathConfig
	seen uint64 // carried so far
}

func newCrossing(t *testing.T, fast onpath.Fast) *crossing {
	h := newHarness(t)
	c := &crossing{harness: h}
	var ups []datapathtest.UplinkSpec
	for i, behind := range []string{"10.1.0.0/16", "10.9.0.0/16"} {
		net := fmt.Sprintf("10.0.%d.", i+1)
		ups = append(ups, datapathtest.UplinkSpec{
			Device: fmt.Sprintf("up%d", i), MTU: 1500,
			Addresses: []netip.Prefix{netip.MustParsePrefix(net + "1/24")},
			Gateways:  []netip.Addr{netip.MustParseAddr(net + "254")},
			Behind:    []netip.Prefix{netip.MustParsePrefix(behind)},
		})
	}
	c.dp = h.AddNode(datapathtest.NodeSpec{
		Name: "gw", Underlay: netip.MustParsePrefix("10.255.0.1/24"), UnderlayMTU: 1600, Uplinks: ups,
	})
	c.cfg = &onpath.DatapathConfig{
		Node: "gw", Generation: 1,
		Underlay: onpath.Underlay{Address: netip.MustParseAddr("10.255.0.1"), MTU: 1600},
		Edge: &onpath.Edge{Vport: 1, Table: 2, Uplinks: []onpath.Uplink{
			{Name: "up0", Device: "up0", Attach: onpath.AttachRouter, Fast: fast},
			{Name: "up1", Device: "up1", Attach: onpath.AttachRouter, Fast: fast},
		}},
		Tables: []onpath.Table{{ID: 2, Miss: onpath.Action{Kind: onpath.ActionExit}, Rules: []onpath.Rule{
			{Match: onpath.Match{Dst: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")}}, Path: 1},
			{Match: onpath.Match{Src: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")}}, Path: 1, Reverse: true},
		}}},
		Paths: []onpath.Path{{ID: 1, Chain: "t/all", Tenant: "t"}},
	}
	c.through(c.Function("gw", 31))
	return c
}

func (c *crossing) apply() {
	c.t.Helper()
	if err := c.dp.Apply(c.t.Context(), c.cfg); err != nil {
		c.t.Fatal(err)
	}
}

// datagram is a UDP packet from the clients' side to the servers'.
func datagram(port byte) []byte {
	b := []byte{0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 1, 0, 2, 10, 9, 0, 2, 0x10, port, 0, 53, 0, 20, 0, 0}
	sum := ipSum(b[:20])
	b[10], b[11] = byte(sum>>8), byte(sum)
	return append(b, make([]byte, 12)...)
}

// cross sends a datagram and gives the frame that came out of the other side.
func (c *crossing) cross(port byte) datapathtest.Frame {
	c.t.Helper()
	c.Send("gw", "up0", datapathtest.Frame{Packet: datagram(port)})
	f, ok := c.Receive("gw", "up1", time.Minute)
	if !ok {
		c.t.Fatal("a packet did not arrive")
	}
	if ttl := f.Packet[8]; ttl != 63 {
		c.t.Errorf("the packet's hop limit is %d, must be 63", ttl)
	}
	return f
}

func (c *crossing) uplink(name string) onpath.UplinkCounters {
	c.t.Helper()
	counters, err := c.dp.Counters(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	return counters.Uplinks[name]
}

// carried tells how many packets XDP finished since it was last asked.
func (c *crossing) carried() uint64 {
	c.t.Helper()
	n := c.uplink("up0").Carried
	was := c.seen
	c.seen = n
	return n - was
}

// settle crosses until XDP carries the flow.
func (c *crossing) settle(port byte) {
	c.t.Helper()
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		c.cross(port)
		if c.carried() > 0 {
			return
		}
	}
	c.t.Fatalf("XDP does not carry the flow: %+v", c.uplink("up0"))
}

// TestFastCarries: after its first packet a flow is XDP's, and everything counts
// as if it were not.
func TestFastCarries(t *testing.T) {
	t.Parallel()
	c := newCrossing(t, onpath.FastAlways)
	c.apply()
	c.settle(1)
	for range 10 {
		c.cross(1)
	}
	if n := c.carried(); n != 10 {
		t.Errorf("XDP carried %d packets, must carry 10: %+v", n, c.uplink("up0"))
	}
	counters, err := c.dp.Counters(t.Context())
	c.w.must(err)
	u, v, p := c.uplink("up0"), counters.Vports[1], counters.Paths[1]
	all := u.Carried + u.PassedOn
	if v.In.Packets != v.Out.Packets || v.In != p.Steered || v.In.Bytes != v.In.Packets*40 || v.In.Packets > all {
		t.Errorf("in %+v, out %+v, steered %+v, of %d packets", v.In, v.Out, p.Steered, all)
	}
	if !u.Fast || u.Why != "" {
		t.Errorf("the uplink is %+v", u)
	}
	// Frames for another machine are not ours.
	c.Send("gw", "up0", datapathtest.Frame{Src: "02:00:00:00:00:01", Dst: "02:00:00:00:00:99", Packet: datagram(1)})
	if f, ok := c.Receive("gw", "up1", 100*time.Millisecond); ok {
		t.Errorf("a frame for another machine was carried: %x", f.Packet)
	}
}

// TestFastKeepsUsed: a flow that only the fast path sees is in use, however short its
// idle time is, and no packet of it goes uncounted.
func TestFastKeepsUsed(t *testing.T) {
	every := ebpf.SetSweep(0)
	t.Cleanup(func() { ebpf.SetSweep(every) })
	c := newCrossing(t, onpath.FastAlways)
	c.cfg.Paths[0].Idle = onpath.DefaultIdle
	c.cfg.Paths[0].Idle.UDP = onpath.Duration(4 * time.Second)
	c.apply()
	sent := uint64(0)
	carried := func() uint64 { return c.uplink("up0").Carried }
	for began := time.Now(); time.Since(began) < 7*time.Second || carried() < sent/2 && time.Since(began) < time.Minute; time.Sleep(50 * time.Millisecond) {
		c.cross(1)
		sent++
	}
	found := uint64(0)
	c.w.must(c.dp.Flows(t.Context(), onpath.FlowFilter{}, func(e onpath.FlowEntry) bool {
		if e.Tuple.Dst == netip.MustParseAddr("10.9.0.2") {
			found += e.Packets
		}
		return true
	}))
	if u := c.uplink("up0"); found != sent || u.Carried < sent/2 {
		t.Errorf("%d packets of the flow are known, %d were sent: %+v", found, sent, u)
	}
}

// TestFastFollowsRoutes: whatever a next hop depends on may change; the next packet
// goes where the kernel would send it.
func TestFastFollowsRoutes(t *testing.T) {
	t.Parallel()
	c := newCrossing(t, onpath.FastAlways)
	c.apply()
	ns := c.nodes["gw"].ns
	gw := netip.MustParseAddr("10.0.2.254")
	c.settle(1)

	// The neighbour has another address.
	const moved = "02:cc:00:00:00:77"
	c.w.neighbour(ns, "up1", gw, moved)
	c.await("the new address", func() bool { return c.cross(1).Dst == moved })
	c.settle(1)

	// Another gateway on the way.
	other := netip.MustParseAddr("10.0.2.253")
	c.w.neighbour(ns, "up1", other, "02:cc:00:00:00:78")
	c.w.in(ns, func() error {
		r := &netlink.Route{LinkIndex: c.index(ns, "up1"), Gw: other.AsSlice(), Flags: int(netlink.FLAG_ONLINK)}
		r.Dst = &net.IPNet{IP: net.IPv4(10, 9, 0, 0), Mask: net.CIDRMask(24, 32)}
		return netlink.RouteAdd(r)
	})
	c.await("the new gateway", func() bool { return c.cross(1).Dst == "02:cc:00:00:00:78" })
	c.settle(1)

	// The neighbour is gone: as the kernel does it, the next one is asked for.
	c.w.in(ns, func() error {
		return netlink.NeighDel(&netlink.Neigh{LinkIndex: c.index(ns, "up1"), IP: other.AsSlice()})
	})
	c.await("the loss", func() bool {
		c.Send("gw", "up0", datapathtest.Frame{Packet: datagram(1)})
		_, ok := c.Receive("gw", "up1", 50*time.Millisecond)
		return !ok
	})
	c.w.neighbour(ns, "up1", other, moved)
	c.await("the return", func() bool {
		c.Send("gw", "up0", datapathtest.Frame{Packet: datagram(1)})
		f, ok := c.Receive("gw", "up1", 50*time.Millisecond)
		return ok && f.Dst == moved
	})
}

// TestFastOneNeighbourGone: a neighbour that is gone takes its own next hop away; XDP goes on
// with flows by another one.
func TestFastOneNeighbourGone(t *testing.T) {
	t.Parallel()
	c := newCrossing(t, onpath.FastAlways)
	c.apply()
	ns := c.nodes["gw"].ns
	const mac = "02:cc:00:00:00:78"
	other := netip.MustParseAddr("10.0.2.253")
	c.w.neighbour(ns, "up1", other, mac)
	c.w.route(ns, "up1", netip.MustParsePrefix("10.9.1.0/24"), other)
	there := datagram(9)
	there[18] = 1 // to 10.9.1.2
	there[10], there[11] = 0, 0
	sum := ipSum(there[:20])
	there[10], there[11] = byte(sum>>8), byte(sum)
	c.await("the other neighbour", func() bool {
		c.Send("gw", "up0", datapathtest.Frame{Packet: there})
		f, ok := c.Receive("gw", "up1", 50*time.Millisecond)
		return ok && f.Dst == mac && c.carried() > 0
	})
	c.settle(1)
	c.w.in(ns, func() error {
		return netlink.NeighDel(&netlink.Neigh{LinkIndex: c.index(ns, "up1"), IP: other.AsSlice()})
	})
	for range 30 {
		c.carried()
		c.cross(1)
		if c.carried() == 0 {
			t.Fatal("XDP does not carry a flow any more whose neighbour is there")
		}
		time.Sleep(20 * time.Millisecond)
	}
	c.Send("gw", "up0", datapathtest.Frame{Packet: there})
	if f, ok := c.Receive("gw", "up1", 50*time.Millisecond); ok && f.Dst == mac {
		t.Error("a packet went to the neighbour that is gone")
	}
}

// TestFastStepsAside: what XDP would pass by keeps packets on the ordinary path.
func TestFastStepsAside(t *testing.T) {
	t.Parallel()
	c := newCrossing(t, onpath.FastAlways)
	c.apply()
	ns := c.nodes["gw"].ns
	c.settle(1)
	c.w.in(ns, func() error {
		return netlink.QdiscAdd(&netlink.Tbf{
			QdiscAttrs: netlink.QdiscAttrs{LinkIndex: c.index(ns, "up1"), Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
			Rate:       1e9, Limit: 1 << 20, Buffer: 1 << 20,
		})
	})
	c.await("the queueing discipline to be seen", func() bool {
		c.carried()
		c.cross(1)
		return c.carried() == 0 && c.uplink("up1").Why != ""
	})
	c.w.in(ns, func() error {
		return netlink.QdiscDel(&netlink.Tbf{
			QdiscAttrs: netlink.QdiscAttrs{LinkIndex: c.index(ns, "up1"), Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		})
	})
	c.settle(1)
}

// TestFastTaken: where another XDP program is, tc does it all and says so; when it
// is gone the fast path comes back.
func TestFastTaken(t *testing.T) {
	t.Parallel()
	c := newCrossing(t, onpath.FastAlways)
	ns := c.nodes["gw"].ns
	free := c.w.occupyXDP(ns, "up0")
	c.apply()
	for range 3 {
		c.cross(1)
	}
	if u := c.uplink("up0"); u.Fast || u.Why == "" || u.Carried != 0 {
		t.Errorf("the uplink is %+v", u)
	}
	free()
	c.await("the fast path", func() bool { return c.uplink("up0").Fast })
	c.settle(1)
}

// TestFastOutlives: without a process flows are still carried, and still follow
// routes.
func TestFastOutlives(t *testing.T) {
	t.Parallel()
	c := newCrossing(t, onpath.FastAlways)
	c.apply()
	ns := c.nodes["gw"].ns
	c.settle(1)
	if err := c.dp.Close(); err != nil {
		t.Fatal(err)
	}
	c.cross(1)
	c.w.neighbour(ns, "up1", netip.MustParseAddr("10.0.2.254"), "02:cc:00:00:00:77")
	c.await("the new address", func() bool { return c.cross(1).Dst == "02:cc:00:00:00:77" })
	c.dp = c.Reopen("gw")
	c.cross(1)
	c.apply()
	c.settle(1)
	if err := c.dp.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if l := c.linkOf(ns, "up0"); l.Xdp != nil && l.Xdp.Attached {
		t.Error("a program is on XDP of up0 after Remove")
	}
	c.cross(1)
}

// TestFastAuto: a virtual device has no fast path unless the operator says so.
func TestFastAuto(t *testing.T) {
	t.Parallel()
	for _, fast := range []onpath.Fast{"", onpath.FastAuto, onpath.FastNever} {
		c := newCrossing(t, fast)
		c.apply()
		for range 3 {
			c.cross(1)
		}
		u := c.uplink("up0")
		if u.Fast || u.Carried != 0 || (u.Why == "") != (fast == onpath.FastNever) {
			t.Errorf("fast: %q: the uplink is %+v", fast, u)
		}
		if l := c.linkOf(c.nodes["gw"].ns, "up0"); l.Xdp != nil && l.Xdp.Attached {
			t.Errorf("fast: %q: a program is on XDP of up0", fast)
		}
	}
}

func (c *crossing) await(what string, ok func() bool) {
	c.t.Helper()
	for until := time.Now().Add(time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			c.t.Fatalf("waited in vain for %s: %+v %+v", what, c.uplink("up0"), c.uplink("up1"))
		}
	}
}

func (c *crossing) linkOf(ns, dev string) (attrs netlink.LinkAttrs) {
	c.t.Helper()
	c.w.must(netnsrun.Do(ns, func() error {
		l, err := netlink.LinkByName(dev)
		if err == nil {
			attrs = *l.Attrs()
		}
		return err
	}))
	return attrs
}

func (c *crossing) index(ns, dev string) int { return c.linkOf(ns, dev).Index }
