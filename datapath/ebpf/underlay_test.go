package ebpf_test

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/datapath/datapathtest"
	"github.com/onpath/onpath/datapath/ebpf"
)

func (h *harness) Underlay(node string, there bool) {
	h.t.Helper()
	n := h.nodes[node]
	h.w.in(n.ns, func() error {
		l, err := netlink.LinkByName("under0")
		if err != nil {
			return err
		}
		a := &netlink.Addr{IPNet: &net.IPNet{IP: n.underlay.AsSlice(), Mask: net.CIDRMask(24, 32)}}
		if there {
			return netlink.AddrAdd(l, a)
		}
		return netlink.AddrDel(l, a)
	})
}

// lone is a node with an uplink, and its configuration, with a peer.
func lone(h *harness) (*ebpf.Driver, *onpath.DatapathConfig) {
	d := driverOf(h.AddNode(loneSpec))
	return d, &onpath.DatapathConfig{
		Node: "gw", Underlay: onpath.Underlay{Address: loneSpec.Underlay.Addr()},
		Peers: []onpath.Peer{{Node: "n2", Address: netip.MustParseAddr("10.255.0.2"), Secret: 7, MTU: 1500}},
		Edge:  &onpath.Edge{Vport: 1, Uplinks: []onpath.Uplink{{Name: "up0", Device: "up0", Attach: onpath.AttachRouter, Fast: onpath.FastAlways}}},
	}
}

var loneSpec = datapathtest.NodeSpec{
	Name: "gw", Underlay: netip.MustParsePrefix("10.255.0.1/24"), UnderlayMTU: 1600,
	Uplinks: []datapathtest.UplinkSpec{{Device: "up0", MTU: 1500, Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.1.1/24")}}},
}

// isOn checks on which devices the program is, and that it takes the right ones for the
// underlay and the tunnel.
func (h *harness) isOn(d *ebpf.Driver, underlay bool) {
	h.t.Helper()
	index := map[string]int{}
	h.w.in(h.nodes["gw"].ns, func() error {
		links, err := netlink.LinkList()
		for _, l := range links {
			index[l.Attrs().Name] = l.Attrs().Index
		}
		return err
	})
	want := map[string][]string{"up0": {"fast", "ingress"}, "under0": {"ingress"}, d.TunnelDevice(): {"ingress"}}
	links := 4
	if !underlay {
		want["under0"], index["under0"], links = nil, 0, 3
	}
	for name, hooks := range want {
		if got := d.On(index[name]); !slices.Equal(got, hooks) {
			h.t.Errorf("the program is at %v of %s, must be at %v", got, name, hooks)
		}
	}
	n, tcx := d.Links()
	if !tcx {
		links = 1 // at XDP
	}
	if n != links {
		h.t.Errorf("there are %d links, must be %d", n, links)
	}
	tun, under, err := d.Devices()
	h.w.must(err)
	if int(tun) != index[d.TunnelDevice()] || int(under) != index["under0"] {
		h.t.Errorf("the programs know devices %d and %d as tunnel and underlay, these are %d and %d", tun, under, index[d.TunnelDevice()], index["under0"])
	}
}

// TestUnderlayComesAndGoes: the program stays on the tunnel's device, where the kernel
// would take packets itself otherwise, and is where the underlay's address is.
func TestUnderlayComesAndGoes(t *testing.T) {
	h := newHarness(t)
	d, c := lone(h)
	for _, there := range []bool{true, false, true} {
		if !there {
			h.Underlay("gw", false)
		}
		h.w.must(d.Apply(t.Context(), c))
		h.isOn(d, there)
		if !there {
			h.Underlay("gw", true)
		}
	}
	c.Peers = nil
	h.w.must(d.Apply(t.Context(), c))
	h.isOn(d, false)
}

// TestDevicesMadeAnew: an equal configuration finds devices that were made anew under
// the same names.
func TestDevicesMadeAnew(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	d, c := lone(h)
	h.w.must(d.Apply(t.Context(), c))
	h.isOn(d, true)
	u := loneSpec.Uplinks[0]
	for _, x := range []struct {
		name   string
		remake func()
	}{
		{"up0", func() { h.addPort("gw", u.Device, "", "", u.MTU, u.Addresses) }},
		{"under0", func() { h.addUnderlay(loneSpec, h.nodes["gw"]) }},
		{d.TunnelDevice(), func() {}},
	} {
		h.w.in(h.nodes["gw"].ns, func() error {
			l, err := netlink.LinkByName(x.name)
			if err != nil {
				return err
			}
			return netlink.LinkDel(l)
		})
		x.remake()
		h.w.must(d.Apply(t.Context(), c))
		h.isOn(d, true)
	}
}

// TestAddressesFollowed: the node's own addresses are known also after more changes at
// once than the kernel keeps.
func TestAddressesFollowed(t *testing.T) {
	t.Cleanup(ebpf.SetAddressBuffer(4096, time.Hour)) // when the driver has been closed
	h := newHarness(t)
	d, _ := lone(h)
	add := func(a netip.Addr) {
		h.w.in(h.nodes["gw"].ns, func() error {
			l, err := netlink.LinkByName("up0")
			if err != nil {
				return err
			}
			return netlink.AddrAdd(l, &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(32, 32)}})
		})
	}
	known := func(a netip.Addr) {
		t.Helper()
		for until := time.Now().Add(time.Minute); !d.Own(a); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(until) {
				t.Fatalf("the data path does not know the node's own address %s", a)
			}
		}
	}
	a := netip.MustParseAddr("10.200.0.1")
	add(a)
	known(a)
	d.Locked(func() {
		a = a.Next()
		add(a)
		time.Sleep(300 * time.Millisecond) // whoever was told waits for the lock
		for range 500 {
			a = a.Next()
			add(a)
		}
	})
	known(a)
	a = a.Next()
	add(a)
	known(a)
}
