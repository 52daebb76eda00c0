package wiring

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/internal/offload"
)

// The stretch between the halves of a pair is a VXLAN device in each instance. Its outer
// packets leave and come in by the node's own network namespace, where the kernel made it:
// ordinary UDP between the underlay addresses, which routers pass on, and which goes on
// without any agent. It has one partner and learns of no other.

// stretchTTL lets outer packets pass routers, whatever that of the inner packet is.
const stretchTTL = 64

// stretch makes the device to the partner unless it is there, and the routes to the
// partner's addresses where again says so, or it was not there.
func (r Wirer) stretch(host, in *netlink.Handle, w Wiring, again bool) error {
	l, err := in.LinkByName(onpath.StretchDevice)
	if err != nil && !isNoLink(err) {
		return fmt.Errorf("look for device %s in the instance: %w", onpath.StretchDevice, err)
	}
	there := err == nil
	if there && w.Pair != nil && leadsTo(l, w.Pair) {
		if !again {
			return nil
		}
	} else {
		if there {
			if err := in.LinkDel(l); err != nil {
				return fmt.Errorf("delete device %s, which leads to an earlier partner: %w", onpath.StretchDevice, err)
			}
		}
		if w.Pair == nil {
			return nil
		}
		if l, err = r.makeStretch(host, in, w); err != nil {
			return err
		}
	}
	return r.toPartner(in, l, w)
}

// leadsTo reports whether a device is the stretch of a plan.
func leadsTo(l netlink.Link, p *onpath.Pair) bool {
	x, ok := l.(*netlink.Vxlan)
	return ok && x.VxlanId == int(p.Link) && x.Port == onpath.StretchPort && x.MTU == p.MTU &&
		x.Group.Equal(p.Remote.AsSlice()) && x.SrcAddr.Equal(p.Local.AsSlice())
}

func (r Wirer) makeStretch(host, in *netlink.Handle, w Wiring) (netlink.Link, error) {
	p := w.Pair
	mac, err := net.ParseMAC(onpath.StretchMAC(p.Side))
	if err != nil {
		return nil, err
	}
	ns, err := netns.GetFromPath(r.Dir.NetNS(w.ID))
	if err != nil {
		return nil, fmt.Errorf("open the instance's network namespace: %w", err)
	}
	defer ns.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr, attrs.Namespace = onpath.StretchDevice, p.MTU, mac, netlink.NsFd(int(ns))
	dev := &netlink.Vxlan{LinkAttrs: attrs, VxlanId: int(p.Link), Group: p.Remote.AsSlice(), SrcAddr: p.Local.AsSlice(),
		TTL: stretchTTL, Port: onpath.StretchPort, Learning: false}
	if err := host.LinkAdd(dev); err != nil {
		return nil, fmt.Errorf("make device %s, by which the instance reaches its partner at %s (a kernel without VXLAN cannot): %w",
			onpath.StretchDevice, p.Remote, err)
	}
	l, err := in.LinkByName(onpath.StretchDevice)
	if err != nil {
		return nil, fmt.Errorf("find device %s just made: %w", onpath.StretchDevice, err)
	}
	err = netnsrun.Do(r.Dir.NetNS(w.ID), func() error {
		if err := (Sysctl{"net.ipv6.conf." + onpath.StretchDevice + ".addr_gen_mode", "1"}).Set(); err != nil { // no chatter
			return err
		}
		// A device that XDP redirects from or to forgets that a checksum is still to be made.
		return offload.Disable(onpath.StretchDevice, []string{"tx-checksum*"})
	})
	return l, err
}

// toPartner leads packets for the partner's own addresses over the stretch.
func (r Wirer) toPartner(in *netlink.Handle, l netlink.Link, w Wiring) error {
	if err := in.LinkSetUp(l); err != nil {
		return fmt.Errorf("set %s up: %w", onpath.StretchDevice, err)
	}
	mac, err := net.ParseMAC(onpath.StretchMAC(otherSide(w.Pair.Side)))
	if err != nil {
		return err
	}
	ipv6 := ipv6On(r.Dir.NetNS(w.ID), "eth0")
	for _, a := range w.Pair.Addresses {
		if a.Is6() && !ipv6 {
			continue
		}
		family := netlink.FAMILY_V4
		if a.Is6() {
			family = netlink.FAMILY_V6
		}
		n := &netlink.Neigh{LinkIndex: l.Attrs().Index, Family: family, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: mac}
		if err := in.NeighSet(n); err != nil {
			return fmt.Errorf("set the partner %s of the instance: %w", a, err)
		}
		rt := &netlink.Route{LinkIndex: l.Attrs().Index, Scope: netlink.SCOPE_LINK,
			Dst: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}, Src: w.ownLike(a).AsSlice()}
		if a.Is6() {
			rt.Scope = netlink.SCOPE_UNIVERSE
		}
		if err := in.RouteReplace(rt); err != nil {
			return fmt.Errorf("set the route to the partner %s of the instance: %w", a, err)
		}
	}
	return nil
}

// ownLike is the instance's own address of a's version.
func (w Wiring) ownLike(a netip.Addr) netip.Addr {
	for _, p := range w.Addresses {
		if p.Addr().Is4() == a.Is4() {
			return p.Addr()
		}
	}
	return netip.Addr{}
}

func otherSide(side string) string {
	if side == onpath.PairA {
		return onpath.PairB
	}
	return onpath.PairA
}
