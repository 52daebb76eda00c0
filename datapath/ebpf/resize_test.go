package ebpf_test

import (
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/onpath/onpath"
)

// TestResize: the table of flows gets another size under traffic. Flows stay at their
// instance although new ones go to another, what an instance has begun from a private
// address keeps its port, and no packet is lost.
func TestResize(t *testing.T) {
	t.Parallel()
	const flows = 10
	c := newTestbed(t)
	gw := c.nodes["gw"]
	c.routed("gw", 16, "100.64.0.9/32")
	c.instances[0].Own = []netip.Addr{netip.MustParseAddr("100.64.0.9")}
	c.instances[0].Routes = true
	c.routed("gw", 17)
	translate := func(cfg *onpath.DatapathConfig) {
		if cfg.Edge != nil {
			cfg.Edge.NAT = []netip.Prefix{netip.MustParsePrefix("100.64.0.0/10")}
		}
	}
	c.apply(toServers(), translate, element(16, 16))
	sources := c.answer("10.9.0.2:5000", "[2001:db8:9::2]:5000")
	steered := c.talk(flows, "10.9.0.2:5000", "[2001:db8:9::2]:5000")
	own := c.talkFrom(filepath.Join(c.dir, "i16"), flows, "10.9.0.2:5000")
	for _, v := range []*conversation{steered, own} {
		v.more(t, 10)
	}
	before := sources.forget()
	size := gw.dp.FlowTableSize()
	for _, next := range []int{4 * size, size / 2} {
		c.must(gw.dp.Close())
		if gw.dp = c.openWith(gw, next); !gw.dp.Succeeds() {
			t.Fatalf("the table of %d entries stays though one of %d is wanted", size, next)
		}
		c.apply(toServers(), translate, element(17, 17))
		if got := gw.dp.FlowTableSize(); got != next {
			t.Errorf("the table has capacity for %d entries, must have for %d", got, next)
		}
		for _, v := range []*conversation{steered, own} {
			v.more(t, 10)
		}
		c.must(gw.dp.Close())
		if gw.dp = c.openWith(gw, next); gw.dp.Succeeds() {
			t.Errorf("the table of %d entries is made anew though its size is as wanted", next)
		}
		c.apply(toServers(), translate, element(17, 17))
	}
	c.must(gw.dp.Close())
	if gw.dp = c.openWith(gw, 64); gw.dp.Succeeds() || gw.dp.FlowTableSize() != size/2 {
		t.Errorf("a table of 64 entries is to hold those of %d flows", 3*flows)
	}
	c.apply(toServers(), translate, element(17, 17))
	for _, v := range []*conversation{steered, own} {
		if sent, lost := v.end(), v.lost(); lost != 0 || sent == 0 {
			t.Errorf("%d of %d packets were lost", lost, sent)
			c.dump()
		}
	}
	if n := c.out("gw", 17); n != 0 {
		t.Errorf("the instance that is newer than all flows got %d packets", n)
	}
	if after := sources.forget(); len(before) != 3*flows || !maps.Equal(before, after) {
		t.Errorf("%d flows came as %v before the table was resized, as %v after it", 3*flows, before, after)
	}
}

// TestManyAddresses: a machine may have any number of addresses of its own; all of them are
// known, and more that come.
func TestManyAddresses(t *testing.T) {
	t.Parallel()
	needKernel(t)
	c := newTestbed(t)
	n := c.nodes["gw"]
	c.in(n.ns, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		for i := range 4200 {
			a := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 66, byte(i>>8), byte(i)), Mask: net.CIDRMask(32, 32)}}
			if err := netlink.AddrAdd(lo, a); err != nil {
				return err
			}
		}
		return nil
	})
	last := netip.AddrFrom4([4]byte{10, 66, 4199 >> 8, 4199 & 0xff})
	c.must(n.dp.Close())
	n.dp = c.open(n)
	if !n.dp.Own(last) || !n.dp.Own(netip.MustParseAddr("10.1.0.1")) {
		t.Error("of 4,200 addresses some are not known")
	}
	c.must(n.dp.Close())
	n.dp = c.open(n) // nothing changes
	if !n.dp.Own(last) {
		t.Error("after another start some addresses are not known")
	}
}
