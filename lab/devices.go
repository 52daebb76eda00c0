package lab

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath/internal/offload"
)

// inside is a network namespace of the lab, opened.
type inside struct {
	*netlink.Handle
	fd netns.NsHandle
}

func (l *Lab) inside(node string) (*inside, error) {
	fd, err := netns.GetFromPath(l.dir.net(node))
	if err != nil {
		return nil, fmt.Errorf("namespace of %s: %w", node, err)
	}
	h, err := netlink.NewHandleAt(fd, unix.NETLINK_ROUTE)
	if err != nil {
		fd.Close()
		return nil, fmt.Errorf("namespace of %s: %w", node, err)
	}
	return &inside{h, fd}, nil
}

func (i *inside) close() {
	i.Handle.Close()
	i.fd.Close()
}

// opened holds namespaces open while many devices are made in them.
type opened map[string]*inside

func (o opened) get(l *Lab, node string) (*inside, error) {
	if i := o[node]; i != nil {
		return i, nil
	}
	i, err := l.inside(node)
	if err == nil {
		o[node] = i
	}
	return i, err
}

func (o opened) close() {
	for _, i := range o {
		i.close()
	}
}

// Devices in the wire namespace. A shaped link is two veth pairs whose inner
// ends, lNa and lNb, the emulation joins; an end at a switch is a port, pNa or
// pNb, of the switch's bridge.
func middle(link int, side string) string { return "l" + strconv.Itoa(link) + side }
func port(link int, side string) string   { return "p" + strconv.Itoa(link) + side }
func bridge(i int) string                 { return "s" + strconv.Itoa(i) }

// makeLinks makes all devices. Defaults come first: a device takes them when
// it is made.
func (l *Lab) makeLinks(ctx context.Context) error {
	for _, node := range l.nodes() {
		if err := inNetNS(l.dir.net(node), func() error { return writeSysctls(deviceDefaults(node)) }); err != nil {
			return fmt.Errorf("%s: %w", node, err)
		}
	}
	open := opened{}
	defer open.close()
	w, err := open.get(l, wire)
	if err != nil {
		return err
	}
	for i, s := range l.state.Topology.Switches {
		if err := makeBridge(w, bridge(i), l.switchMTU(s)); err != nil {
			return fmt.Errorf("switch %s: %w", s.Name, err)
		}
	}
	for i, link := range l.state.Topology.Links {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := l.makeLink(open, i, link); err != nil {
			return fmt.Errorf("link %s: %w", link.Name(), err)
		}
	}
	return nil
}

// deviceDefaults keep the wire silent and hosts predictable: no address that
// is still being checked, no routes from advertisements, no filter on the way
// back.
func deviceDefaults(node string) [][2]string {
	if node == wire {
		return known([][2]string{
			{"net.ipv4.ip_forward", "0"},
			{"net.ipv6.conf.all.disable_ipv6", "1"},
			{"net.ipv6.conf.default.disable_ipv6", "1"},
		})
	}
	var out [][2]string
	for _, which := range []string{"all", "default"} {
		out = append(out,
			[2]string{"net.ipv4.conf." + which + ".rp_filter", "0"},
			[2]string{"net.ipv6.conf." + which + ".accept_dad", "0"},
			[2]string{"net.ipv6.conf." + which + ".accept_ra", "0"},
			[2]string{"net.ipv6.conf." + which + ".disable_ipv6", "0"})
	}
	return known(out)
}

// known leaves out settings of IPv6 where the kernel has none of it.
func known(settings [][2]string) [][2]string {
	if _, err := os.Stat("/proc/sys/net/ipv6"); err == nil {
		return settings
	}
	return slices.DeleteFunc(settings, func(s [2]string) bool { return strings.HasPrefix(s[0], "net.ipv6.") })
}

// switchMTU is the least MTU of the switch's links unless it has its own.
func (l *Lab) switchMTU(s *Switch) int {
	mtu := s.MTU
	for _, link := range l.state.Topology.Links {
		if s.MTU == 0 && (link.A.Node == s.Name || link.B.Node == s.Name) && (mtu == 0 || link.MTU < mtu) {
			mtu = link.MTU
		}
	}
	return max(mtu, minMTU)
}

func makeBridge(w *inside, name string, mtu int) error {
	off := false
	b := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: mtu}, MulticastSnooping: &off}
	if err := w.LinkAdd(b); err != nil {
		return err
	}
	return errors.Join(w.LinkSetARPOff(b), w.LinkSetUp(b))
}

// place is where one end of a veth pair goes.
type place struct {
	node string // wire for a middle or a port
	name string
	mac  net.HardwareAddr
	mtu  int
}

func (l *Lab) makeLink(open opened, i int, link *Link) error {
	a, b := l.placeOf(link.A, i, "a", link.MTU), l.placeOf(link.B, i, "b", link.MTU)
	var err error
	if link.Shaped() {
		// The middle takes what either end sends; the ends keep the MTU.
		err = errors.Join(
			l.makePair(open, a, place{node: wire, name: middle(i, "a"), mtu: maxMTU}),
			l.makePair(open, b, place{node: wire, name: middle(i, "b"), mtu: maxMTU}))
	} else {
		err = l.makePair(open, a, b)
	}
	if err != nil {
		return err
	}
	for _, e := range []struct {
		end  End
		side string
	}{{link.A, "a"}, {link.B, "b"}} {
		if err := l.finishEnd(open, i, link, e.end, e.side); err != nil {
			return err
		}
	}
	return nil
}

// finishEnd joins an end at a switch to its bridge, and sets what frames an
// end at a host may send.
func (l *Lab) finishEnd(open opened, i int, link *Link, e End, side string) error {
	if e.Interface != "" {
		off := l.offloadsOff(link)
		if len(off) == 0 {
			return nil
		}
		return inNetNS(l.dir.net(e.Node), func() error { return offload.Disable(e.Interface, off) })
	}
	w := open[wire]
	p, err := w.LinkByName(port(i, side))
	if err != nil {
		return err
	}
	n := slices.IndexFunc(l.state.Topology.Switches, func(s *Switch) bool { return s.Name == e.Node })
	br, err := w.LinkByName(bridge(n))
	if err != nil {
		return err
	}
	return w.LinkSetMaster(p, br)
}

func (l *Lab) placeOf(e End, link int, side string, mtu int) place {
	h := l.state.Topology.Host(e.Node)
	if h == nil {
		return place{node: wire, name: port(link, side), mtu: mtu}
	}
	mac := StableMAC(e.Node, e.Interface)
	if f := h.Interface(e.Interface); f.MAC != "" {
		mac, _ = net.ParseMAC(f.MAC)
	}
	return place{e.Node, e.Interface, mac, mtu}
}

// StableMAC is the Ethernet address of a host's interface that is given none:
// the same in every run.
func StableMAC(host, face string) net.HardwareAddr {
	sum := sha256.Sum256([]byte(host + ":" + face))
	return net.HardwareAddr{0x02, sum[0], sum[1], sum[2], sum[3], sum[4]}
}

// makePair makes a veth pair with each end at once where it belongs, so that
// no name is ever taken in the machine's own namespace.
func (l *Lab) makePair(open opened, a, b place) error {
	in, err := open.get(l, a.node)
	if err != nil {
		return err
	}
	other, err := open.get(l, b.node)
	if err != nil {
		return err
	}
	v := netlink.NewVeth(netlink.LinkAttrs{Name: a.name, MTU: a.mtu, HardwareAddr: a.mac, TxQLen: 1000})
	v.PeerName, v.PeerHardwareAddr, v.PeerMTU = b.name, b.mac, uint32(b.mtu)
	v.PeerNamespace, v.PeerTxQLen = netlink.NsFd(other.fd), 1000
	if err := in.LinkAdd(v); err != nil {
		return fmt.Errorf("veth %s of %s: %w", a.name, a.node, err)
	}
	return errors.Join(setUp(in, a), setUp(other, b))
}

func setUp(in *inside, p place) error {
	dev, err := in.LinkByName(p.name)
	if err != nil {
		return fmt.Errorf("device %s of %s: %w", p.name, p.node, err)
	}
	if p.node == wire {
		if err := in.LinkSetARPOff(dev); err != nil {
			return err
		}
	}
	if err := in.LinkSetUp(dev); err != nil {
		return fmt.Errorf("device %s of %s: %w", p.name, p.node, err)
	}
	return nil
}

// configureHosts gives hosts their addresses, routes and sysctls.
func (l *Lab) configureHosts(ctx context.Context) error {
	for _, h := range l.state.Topology.Hosts {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := l.configureHost(h); err != nil {
			return fmt.Errorf("host %s: %w", h.Name, err)
		}
	}
	return nil
}

func (l *Lab) configureHost(h *Host) error {
	in, err := l.inside(h.Name)
	if err != nil {
		return err
	}
	defer in.close()
	lo, err := in.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := in.LinkSetUp(lo); err != nil {
		return err
	}
	for _, f := range h.Interfaces {
		dev, err := in.LinkByName(f.Name)
		if err != nil {
			return fmt.Errorf("interface %s: %w", f.Name, err)
		}
		for _, a := range f.Addresses {
			addr := &netlink.Addr{IPNet: ipNet(a)}
			if a.Addr().Is6() {
				addr.Flags = unix.IFA_F_NODAD
			}
			if err := in.AddrAdd(dev, addr); err != nil {
				return fmt.Errorf("address %s on %s: %w", a, f.Name, err)
			}
		}
	}
	if err := inNetNS(l.dir.net(h.Name), func() error { return writeSysctls(hostSysctls(h)) }); err != nil {
		return err
	}
	routes := h.Routes
	if h.AutoRoutes {
		routes = append(slices.Clip(routes), l.state.Topology.AutoRoutes(h)...)
	}
	for _, r := range routes {
		if err := addRoute(in, h, r); err != nil {
			return err
		}
	}
	return nil
}

func addRoute(in *inside, h *Host, r Route) error {
	device := r.Device
	if device == "" {
		if f, ok := h.connected(r.Via); ok {
			device = f.Name
		}
	}
	dev, err := in.LinkByName(device)
	if err != nil {
		return fmt.Errorf("route to %s: device %s: %w", r.To, device, err)
	}
	route := &netlink.Route{LinkIndex: dev.Attrs().Index, Dst: ipNet(r.To)}
	if r.Via.IsValid() {
		route.Gw = r.Via.AsSlice()
	} else {
		route.Scope = netlink.SCOPE_LINK
	}
	if err := in.RouteAdd(route); err != nil {
		return fmt.Errorf("route to %s via %s: %w", r.To, r.Via, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// hostSysctls are the host's own after forwarding, which resets others.
func hostSysctls(h *Host) [][2]string {
	forward := "0"
	if h.Forwarding {
		forward = "1"
	}
	out := known([][2]string{{"net.ipv4.ip_forward", forward}, {"net.ipv6.conf.all.forwarding", forward}})
	names := make([]string, 0, len(h.Sysctls))
	for name := range h.Sysctls {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		out = append(out, [2]string{name, h.Sysctls[name]})
	}
	return out
}

// writeSysctls writes in the network namespace of the calling thread.
func writeSysctls(values [][2]string) error {
	for _, v := range values {
		path := v[0]
		if !strings.Contains(path, "/") {
			path = strings.ReplaceAll(path, ".", "/")
		}
		if err := os.WriteFile(filepath.Join("/proc/sys", path), []byte(v[1]+"\n"), 0); err != nil {
			if errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("sysctl %s: this kernel has none of that name for a network namespace", v[0])
			}
			return fmt.Errorf("sysctl %s = %s: %w", v[0], v[1], errors.Unwrap(err))
		}
	}
	return nil
}
