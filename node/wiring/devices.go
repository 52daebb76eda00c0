package wiring

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/internal/offload"
)

// outside sets the host's ends: no addresses of their own, no talk of their own.
func (r Wirer) outside(host *netlink.Handle, w Wiring) error {
	err := netnsrun.Do(r.NetNS, func() error {
		for _, p := range w.Ports() {
			dev := onpath.DeviceName(p.ID)
			if w.WholeFrames {
				if err := offload.Disable(dev, offload.CompleteFrames); err != nil {
					return err
				}
			}
			// The data path decides what of an instance's packets is routed; where
			// it asks the kernel's FIB, the device must be allowed to forward.
			for _, s := range []Sysctl{
				{"net.ipv6.conf." + dev + ".accept_ra", "0"},
				{"net.ipv6.conf." + dev + ".addr_gen_mode", "1"}, // no link-local address, no chatter
				{"net.ipv6.conf." + dev + ".forwarding", "1"},
				{"net.ipv4.conf." + dev + ".forwarding", "1"},
				{"net.ipv4.conf." + dev + ".arp_ignore", "8"},
				{"net.ipv4.conf." + dev + ".send_redirects", "0"},
			} {
				if err := s.Set(); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, p := range w.Ports() {
		if err := up(host, onpath.DeviceName(p.ID), w.MTU); err != nil {
			return err
		}
	}
	return nil
}

// inside sets up the instance's namespace.
func (r Wirer) inside(in *netlink.Handle, w Wiring, path string) error {
	if err := netnsrun.Do(path, func() error { return setAll(append(w.baseSysctls(), w.originSysctls()...)) }); err != nil {
		return err
	}
	if err := up(in, "lo", 0); err != nil {
		return err
	}
	for _, p := range w.Ports() {
		if err := up(in, p.Inside, w.MTU); err != nil {
			return err
		}
	}
	if w.Attach == onpath.Routed {
		if err := routes(in, w, ipv6On(path, "eth0")); err != nil {
			return err
		}
	}
	return netnsrun.Do(path, func() error { return setAll(w.ownSysctls()) })
}

func up(h *netlink.Handle, name string, mtu int) error {
	l, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find device %s: %w", name, err)
	}
	if mtu != 0 && l.Attrs().MTU != mtu {
		if err := h.LinkSetMTU(l, mtu); err != nil {
			return fmt.Errorf("set the MTU of %s to %d: %w", name, mtu, err)
		}
	}
	if err := h.LinkSetUp(l); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}

// routes gives a routed instance its addresses, next hops and default routes;
// without IPv6 only those of IPv4.
func routes(in *netlink.Handle, w Wiring, ipv6 bool) error {
	eth, err := in.LinkByName("eth0")
	if err != nil {
		return fmt.Errorf("find eth0 in the instance: %w", err)
	}
	own := slices.DeleteFunc(w.held(), func(p netip.Prefix) bool { return p.Addr().Is6() && !ipv6 })
	if err := addresses(in, eth, own, w.Serves); err != nil {
		return err
	}
	mac, err := net.ParseMAC(onpath.HostMAC(w.Vport))
	if err != nil {
		return err
	}
	for _, gw := range []netip.Addr{gateway4, gateway6} {
		if gw.Is6() && !ipv6 {
			continue
		}
		family := netlink.FAMILY_V4
		if gw.Is6() {
			family = netlink.FAMILY_V6
		}
		n := &netlink.Neigh{LinkIndex: eth.Attrs().Index, Family: family, State: netlink.NUD_PERMANENT, IP: gw.AsSlice(), HardwareAddr: mac}
		if err := in.NeighSet(n); err != nil {
			return fmt.Errorf("set the next hop %s of the instance: %w", gw, err)
		}
		rt := &netlink.Route{LinkIndex: eth.Attrs().Index, Gw: gw.AsSlice(), Flags: int(netlink.FLAG_ONLINK), Dst: anywhere(gw)}
		if err := in.RouteReplace(rt); err != nil {
			return fmt.Errorf("set the default route of the instance via %s: %w", gw, err)
		}
	}
	return nil
}

// held are all addresses of eth0. Those of services come last: the kernel takes the first
// of its version as the source of what the instance begins.
func (w Wiring) held() []netip.Prefix {
	out := slices.Clone(w.Addresses)
	for _, a := range w.Serves {
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	return out
}

func anywhere(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: make(net.IP, a.BitLen()/8), Mask: net.CIDRMask(0, a.BitLen())}
}

// addresses makes eth0's own addresses those of want. They come without the
// network's route (noprefixroute): neighbours in it are behind the gateway too.
func addresses(in *netlink.Handle, eth netlink.Link, want []netip.Prefix, serves []netip.Addr) error {
	have, err := Dump(func() ([]netlink.Addr, error) { return in.AddrList(eth, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list the instance's addresses: %w", err)
	}
	for _, a := range have {
		if a.Flags&unix.IFA_F_NOPREFIXROUTE == 0 || slices.Contains(want, PrefixOf(a.IPNet)) {
			continue // the kernel's, the program's, or as it should be
		}
		if err := in.AddrDel(eth, &a); err != nil {
			return fmt.Errorf("remove address %s from the instance: %w", a.IPNet, err)
		}
	}
	for _, p := range want {
		a := &netlink.Addr{
			IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())},
			Flags: unix.IFA_F_NOPREFIXROUTE,
		}
		if p.Addr().Is6() {
			a.Flags |= unix.IFA_F_NODAD
			if slices.Contains(serves, p.Addr()) {
				a.ValidLft = math.MaxUint32 // for ever, and deprecated: no source of what the instance begins
			}
		} else {
			a.Broadcast = net.IPv4zero // none: the library would make one up
		}
		if err := in.AddrReplace(eth, a); err != nil {
			return fmt.Errorf("give address %s to the instance: %w", p, err)
		}
	}
	return nil
}

// PrefixOf is an address with its network.
func PrefixOf(n *net.IPNet) netip.Prefix {
	a, _ := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), bits)
}
