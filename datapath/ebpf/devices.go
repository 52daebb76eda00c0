package ebpf

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// tunnelDevice carries all tunnels of a namespace.
const tunnelDevice = onpath.TunnelDevice

// device is a network device as the kernel has it.
type device struct {
	index        int
	kind         string // device: a physical one
	master       int    // bridge that it belongs to; 0: none
	mac          [6]byte
	mtu          int
	up           bool       // with its other end, where it has one
	peer, peerNS int        // its other end and where that is; peerNS -1: here
	direct       bool       // packets may go straight to the other end
	addr4, addr6 netip.Addr // the first global ones
}

// kernel is what the kernel has of devices and addresses.
type kernel struct {
	devices          map[string]device
	addrs            []netip.Addr       // all
	holders          map[netip.Addr]int // ifindex of the first device with it
	broadcasts       []netip.Addr       // of the subnets
	tunnel, underlay int                // ifindex; 0: none
	punt, inside     int                // likewise: of the punt port, of WireGuard
	underlayDevice   device
}

// look reads devices and addresses of the namespace.
func look(nl *netlink.Handle) (*kernel, error) {
	links, err := dump(nl.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	k := &kernel{devices: make(map[string]device, len(links)), holders: map[netip.Addr]int{}}
	names := map[int]string{}
	for _, l := range links {
		a := l.Attrs()
		d := device{
			index: a.Index, kind: l.Type(), master: a.MasterIndex, mtu: a.MTU,
			up: a.OperState == netlink.OperUp, peer: a.ParentIndex, peerNS: a.NetNsID,
		}
		copy(d.mac[:], a.HardwareAddr)
		k.devices[a.Name] = d
		names[a.Index] = a.Name
	}
	addrs, err := dump(func() ([]netlink.Addr, error) { return nl.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		if !ok {
			continue
		}
		ip = ip.Unmap()
		k.addrs = append(k.addrs, ip)
		if k.holders[ip] == 0 {
			k.holders[ip] = a.LinkIndex
		}
		if b, ok := netip.AddrFromSlice(a.Broadcast); ok && !b.IsUnspecified() {
			k.broadcasts = append(k.broadcasts, b.Unmap())
		}
		d := k.devices[names[a.LinkIndex]]
		switch {
		case a.Scope != unix.RT_SCOPE_UNIVERSE:
		case ip.Is4() && !d.addr4.IsValid():
			d.addr4 = ip
		case ip.Is6() && !d.addr6.IsValid():
			d.addr6 = ip
		}
		k.devices[names[a.LinkIndex]] = d
	}
	return k, nil
}

// dump asks the kernel for a list again while a change disturbed the answer; what
// there is does not change for ever.
func dump[T any](list func() ([]T, error)) (all []T, err error) {
	for range 50 {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

// findUnderlay finds the devices that have the underlay's address and the one inside
// WireGuard, if there are any.
func (k *kernel) findUnderlay(c *onpath.DatapathConfig) {
	k.underlay = k.holders[c.Underlay.Address.Unmap()]
	if c.Inside.IsValid() && k.holders[c.Inside] == k.devices[onpath.WireGuardDevice].index {
		k.inside = k.holders[c.Inside]
	}
	for _, d := range k.devices {
		if d.index == k.underlay {
			k.underlayDevice = d
		}
	}
}

// lacks reports whether there is no device by which a peer is reached.
func (k *kernel) lacks(p onpath.Peer) bool {
	if p.Inside {
		return k.inside == 0
	}
	return k.underlay == 0
}

// needTunnel makes the tunnel device, or keeps it if it is as it should be.
func (k *kernel) needTunnel(nl *netlink.Handle, port uint16) error {
	l, err := nl.LinkByName(tunnelDevice)
	if err == nil {
		if v, ok := l.(*netlink.Vxlan); ok && v.FlowBased && v.Port == int(port) {
			k.tunnel = l.Attrs().Index
			return nil
		}
		if err := nl.LinkDel(l); err != nil {
			return fmt.Errorf("remove device %s with an old port: %w", tunnelDevice, err)
		}
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = tunnelDevice
	attrs.MTU = 65485 // what fits is checked against each path's MTU
	v := &netlink.Vxlan{LinkAttrs: attrs, FlowBased: true, Learning: false, Port: int(port), UDP6ZeroCSumRx: true}
	if err := nl.LinkAdd(v); err != nil {
		e := onpath.Errorf(onpath.CodeUnavailable, "make tunnel device %s on UDP port %d: %w", tunnelDevice, port, err)
		if errors.Is(err, unix.EADDRINUSE) || errors.Is(err, unix.EEXIST) {
			e.Remedy = "choose another port with underlay.port on all nodes of the cloudlet"
		}
		return e
	}
	l, err = nl.LinkByName(tunnelDevice)
	if err != nil {
		return fmt.Errorf("find device %s: %w", tunnelDevice, err)
	}
	// No address may appear on it, or the kernel talks over it by itself.
	if err := sysctl("ipv6/conf/"+tunnelDevice+"/addr_gen_mode", "1"); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	if err := nl.LinkSetUp(l); err != nil {
		return fmt.Errorf("set %s up: %w", tunnelDevice, err)
	}
	k.tunnel = l.Attrs().Index
	return forwarding(tunnelDevice)
}

// forwarding lets route look-ups begin at one of our devices. No packet from
// there reaches the kernel's own forwarding: the programs see to that.
func forwarding(dev string) error {
	for _, v := range []string{"ipv4", "ipv6"} {
		err := sysctl(v+"/conf/"+dev+"/forwarding", "1")
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

func removeTunnel(nl *netlink.Handle) error {
	l, err := nl.LinkByName(tunnelDevice)
	if err != nil {
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		return fmt.Errorf("find device %s: %w", tunnelDevice, err)
	}
	if err := nl.LinkDel(l); err != nil {
		return fmt.Errorf("remove device %s: %w", tunnelDevice, err)
	}
	return nil
}
