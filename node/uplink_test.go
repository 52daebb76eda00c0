package node_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
)

// tun makes a device without Ethernet header in the host.
func (b *fixture) tun(name string) {
	b.t.Helper()
	h := b.netlink(b.host)
	defer h.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	must(b.t, netnsrun.Do(b.host, func() error {
		return netlink.LinkAdd(&netlink.Tuntap{LinkAttrs: attrs, Mode: netlink.TUNTAP_MODE_TUN, NonPersist: false})
	}))
	l, err := h.LinkByName(name)
	must(b.t, err)
	must(b.t, h.LinkSetUp(l))
}

// TestNotEthernet: an uplink whose packets have no Ethernet header is not attached, and says
// so; nor are the others between which the kernel routes.
func TestNotEthernet(t *testing.T) {
	b := newFixture(t)
	b.device("eth1", 0)
	b.tun("tun0")
	r := b.run()
	r.plan(uplinkPlan(1, false, "tun0", "eth1"))
	b.until("no uplink is attached, and both say why", func() bool {
		tun, eth := r.condition(onpath.ConditionUplink+"up-tun0"), r.condition(onpath.ConditionUplink+"up-eth1")
		return r.server.last().Plan == 1 && fmt.Sprint(b.path.uplinks()) == "[]" &&
			tun.Reason == onpath.ReasonNotEthernet && strings.Contains(tun.Message, "tun0") && eth.Reason == onpath.ReasonOtherUplink
	})
}
