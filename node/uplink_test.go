package node_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

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

// add makes a device in the host, up, or skips where the kernel cannot.
func (b *fixture) add(t *testing.T, l netlink.Link) {
	t.Helper()
	h := b.netlink(b.host)
	defer h.Close()
	if err := h.LinkAdd(l); errors.Is(err, unix.EOPNOTSUPP) {
		t.Skipf("needs a kernel with %s devices", l.Type())
	} else {
		must(t, err)
	}
	must(t, h.LinkSetUp(l))
}

// ppp makes a device of the kind that pppd makes, up, or skips where the kernel cannot.
func (b *fixture) ppp(t *testing.T, name string) {
	t.Helper()
	if err := unix.Mknod("/dev/ppp", unix.S_IFCHR|0o600, int(unix.Mkdev(108, 0))); err == nil {
		t.Cleanup(func() { _ = os.Remove("/dev/ppp") })
	}
	var fd int
	var unit uint32 = 0xffffffff // any
	must(t, netnsrun.Do(b.host, func() (err error) {
		if fd, err = unix.Open("/dev/ppp", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
			return nil
		}
		t.Cleanup(func() { _ = unix.Close(fd) }) // the device goes with it
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.PPPIOCNEWUNIT, uintptr(unsafe.Pointer(&unit))); errno != 0 {
			return errno
		}
		return nil
	}))
	if fd < 0 {
		t.Skip("needs a kernel with ppp devices")
	}
	h := b.netlink(b.host)
	defer h.Close()
	l, err := h.LinkByName(fmt.Sprint("ppp", unit))
	must(t, err)
	must(t, h.LinkSetName(l, name))
	must(t, h.LinkSetUp(l))
}

// TestKindsOfUplink: devices are told by whether their packets have an Ethernet header.
func TestKindsOfUplink(t *testing.T) {
	one, other := net.IPv4(192, 0, 2, 1), net.IPv4(192, 0, 2, 2)
	named := netlink.LinkAttrs{Name: "up0", TxQLen: -1}
	for _, c := range []struct {
		link     netlink.Link
		ethernet bool
	}{
		{&netlink.Wireguard{LinkAttrs: named}, false},
		{&netlink.Gretun{LinkAttrs: named, Local: one, Remote: other}, false},
		{&netlink.Iptun{LinkAttrs: named, Local: one, Remote: other}, false},
		{&netlink.Gretap{LinkAttrs: named, Local: one, Remote: other}, true},
		{netlink.NewLinkBond(named), true},
		{&netlink.Bridge{LinkAttrs: named}, true},
		{&netlink.Vlan{LinkAttrs: named, VlanId: 7}, true},
		{&netlink.GenericLink{LinkAttrs: named, LinkType: "ppp"}, false},
	} {
		t.Run(c.link.Type(), func(t *testing.T) {
			b := newFixture(t)
			switch l := c.link.(type) {
			case *netlink.GenericLink:
				b.ppp(t, named.Name)
			case *netlink.Vlan:
				b.device("eth1", 0)
				h := b.netlink(b.host)
				defer h.Close()
				under, err := h.LinkByName("eth1")
				must(t, err)
				l.ParentIndex = under.Attrs().Index
				b.add(t, l)
			default:
				b.add(t, l)
			}
			r := b.run()
			r.plan(uplinkPlan(1, false, "up0"))
			b.until("the uplink is as it should be", func() bool {
				refused := r.condition(onpath.ConditionUplink+"up-up0").Reason == onpath.ReasonNotEthernet
				return r.server.last().Plan == 1 && refused != c.ethernet && (fmt.Sprint(b.path.uplinks()) == "[up-up0]") == c.ethernet
			})
		})
	}
}

// TestOtherVRF: uplinks in different VRFs are refused, those in one are not.
func TestOtherVRF(t *testing.T) {
	b := newFixture(t)
	blue := &netlink.Vrf{LinkAttrs: netlink.LinkAttrs{Name: "blue"}, Table: 10}
	b.add(t, blue)
	b.device("eth1", 0)
	b.device("eth2", 0)
	h := b.netlink(b.host)
	defer h.Close()
	r := b.run()
	for i, c := range []struct{ move, want string }{{"", "[up-eth1 up-eth2]"}, {"eth1", "[]"}, {"eth2", "[up-eth1 up-eth2]"}} {
		if l, err := h.LinkByName(c.move); err == nil {
			must(t, h.LinkSetMaster(l, blue))
		}
		r.plan(uplinkPlan(uint64(i+1), false, "eth1", "eth2"))
		b.until("uplinks "+c.want, func() bool {
			other := r.condition(onpath.ConditionUplink+"up-eth1").Reason == onpath.ReasonOtherVRF
			return fmt.Sprint(b.path.uplinks()) == c.want && other == (c.want == "[]")
		})
	}
}
