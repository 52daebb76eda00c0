package machine

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/node/wiring"
)

// needsForwarding tells the uplinks between which the kernel routes.
func needsForwarding(u onpath.Uplink) bool {
	return u.Attach == onpath.AttachRouter || u.Attach == onpath.AttachArm
}

// Underlay finds the device with the underlay address.
func Underlay(h *netlink.Handle, addr netip.Addr) (netlink.Link, onpath.Condition) {
	c := onpath.Condition{Type: ConditionUnderlay, Status: onpath.True}
	if !addr.IsValid() {
		c.Status, c.Reason = onpath.Unknown, "NoAddress"
		c.Message = "the node has no underlay address, which only a node alone can do without; set spec.underlay.address"
		return nil, c
	}
	all, err := wiring.Dump(func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_ALL) })
	if err == nil {
		for _, have := range all {
			if wiring.PrefixOf(have.IPNet).Addr() != addr {
				continue
			}
			if l, err := h.LinkByIndex(have.LinkIndex); err == nil {
				c.Message = fmt.Sprintf("%s is on %s, MTU %d", addr, l.Attrs().Name, l.Attrs().MTU)
				return l, c
			}
		}
	}
	c.Status, c.Reason = onpath.False, "AddressMissing"
	c.Message = fmt.Sprintf("no device of this machine has the underlay address %s, so that other nodes' instances count as lost here; give it to one, or correct spec.underlay.address", addr)
	return nil, c
}

// networksBehind are those of the machine's devices that are no uplinks.
func networksBehind(h *netlink.Handle, uplinks []onpath.Uplink) (out []netip.Prefix) {
	all, err := wiring.Dump(func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil
	}
	names := map[int]bool{}
	for _, u := range uplinks {
		if l, err := h.LinkByName(u.Device); err == nil {
			names[l.Attrs().Index] = true
		}
	}
	for _, have := range all {
		if !names[have.LinkIndex] {
			out = append(out, wiring.PrefixOf(have.IPNet).Masked())
		}
	}
	return out
}

// addressesOf are those of the machine by which others know it, in order.
func addressesOf(h *netlink.Handle) ([]netip.Addr, error) {
	all, err := wiring.Dump(func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list this machine's addresses: %w", err)
	}
	var out []netip.Addr
	for _, have := range all {
		if a := wiring.PrefixOf(have.IPNet).Addr(); a.IsGlobalUnicast() {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out), nil
}

// ethernet is netlink's word for devices whose frames have an Ethernet header.
const ethernet = "ether"

// uplinkCondition says whether an uplink is usable; l is its device, nil if there is none.
// held: chains are in force there, and go on being so wherever packets can be steered.
func uplinkCondition(l netlink.Link, u onpath.Uplink, fw firewall, t transit, held bool) onpath.Condition {
	c := onpath.Condition{Type: onpath.ConditionUplink + u.Name, Status: onpath.False}
	switch {
	case l == nil:
		c.Reason = onpath.ReasonDeviceMissing
		c.Message = fmt.Sprintf("uplink %s: there is no device %s on this machine", u.Name, u.Device)
		return c
	case l.Attrs().EncapType != ethernet:
		c.Reason = onpath.ReasonNotEthernet
		c.Message = fmt.Sprintf("uplink %s is not attached: packets of device %s (%s) have no Ethernet header, which chains need. "+
			"Name a device with one: of a tunnel, tap or gretap in place of tun or gre", u.Name, u.Device, l.Type())
		return c
	case l.Attrs().Flags&unix.IFF_UP == 0:
		c.Reason = onpath.ReasonUplinkDown
		c.Message = fmt.Sprintf("uplink %s: device %s is down; set it up (ip link set %s up)", u.Name, u.Device, u.Device)
		return c
	case l.Attrs().OperState == netlink.OperDown || l.Attrs().OperState == netlink.OperLowerLayerDown:
		c.Reason = onpath.ReasonUplinkDown
		c.Message = fmt.Sprintf("uplink %s: device %s has no carrier", u.Name, u.Device)
		return c
	}
	if name := l.Attrs().Name; name != u.Device {
		c.Reason = onpath.ReasonRenamed
		c.Message = fmt.Sprintf("uplink %s: device %s is called %s now; it is steered all the same. "+
			"Name it in the node's spec.uplinks, or rename it back", u.Name, u.Device, name)
		return c
	}
	if why := fw.objection(u.Device, t); needsForwarding(u) && why != "" {
		switch {
		case !u.BypassHostFirewall && held:
			c.Reason = onpath.ReasonPastHostFirewall
			c.Message = fmt.Sprintf("uplink %s: %s, and steered packets pass it by. "+
				"They are steered all the same, because chains were in force before. "+
				"Say bypassHostFirewall: true on the uplink if that is meant; else mend the firewall", u.Name, why)
			return c
		case !u.BypassHostFirewall:
			c.Reason = onpath.ReasonHostFirewall
			c.Message = fmt.Sprintf("uplink %s is not attached: %s, and steered packets would pass it by. "+
				"Say bypassHostFirewall: true on the uplink if that is meant", u.Name, why)
			return c
		}
		c.Message = fmt.Sprintf("%s; steered packets pass it by, as bypassHostFirewall says", why)
	}
	c.Status = onpath.True
	return c
}

// vrfOf is the name of the VRF that a device is in, "" for none.
func vrfOf(h *netlink.Handle, l netlink.Link) string {
	if l.Attrs().MasterIndex == 0 {
		return ""
	}
	master, err := h.LinkByIndex(l.Attrs().MasterIndex)
	if err != nil || master.Type() != "vrf" {
		return ""
	}
	return master.Attrs().Name
}

// mayForward reports whether what the kernel forwards is steered.
func (m *Machine) mayForward() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.routes
}

// forwarding says whether the kernel routes between the uplinks, and turns it
// on if it may: once the chains are in force, which packets would else pass by.
func (m *Machine) forwarding() onpath.Condition {
	c := onpath.Condition{Type: ConditionForwarding, Status: onpath.True}
	var off []string
	waiting := false
	err := netnsrun.Do(m.part.NetNS, func() error {
		for _, key := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
			got, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(key, ".", "/"))
			if err != nil || strings.TrimSpace(string(got)) != "0" {
				continue // on, or a kernel without it
			}
			if m.opt.SetForwarding && !m.mayForward() {
				waiting = true
				continue
			}
			if m.opt.SetForwarding {
				if err := (wiring.Sysctl{Key: key, Value: "1"}).Set(); err != nil {
					return err
				}
				m.part.Log.Info("turned forwarding on", "sysctl", key)
				continue
			}
			off = append(off, key+"=1")
		}
		return nil
	})
	switch {
	case err != nil:
		c.Status, c.Reason, c.Message = onpath.False, "CannotSet", err.Error()
	case waiting:
		c.Status, c.Reason = onpath.Unknown, "Waiting"
		c.Message = "this machine routes between its uplinks once the chains are in force"
	case len(off) > 0:
		c.Status, c.Reason = onpath.False, "Off"
		c.Message = "this machine does not route between its uplinks; run sysctl -w " + strings.Join(off, " ")
	}
	return c
}

// speed asks a device for its bit rate; 0 if it does not know.
func (m *Machine) speed(device string) (rate onpath.Rate) {
	_ = netnsrun.Do(m.part.NetNS, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		rate = ethtoolSpeed(fd, device)
		return nil
	})
	return rate
}

// ethtoolSpeed is ETHTOOL_GSET of linux/ethtool.h, which every driver answers
// that knows a speed.
func ethtoolSpeed(fd int, device string) onpath.Rate {
	var cmd struct {
		cmd, supported, advertising uint32
		speed                       uint16
		duplex, port, phy, trans    uint8
		autoneg, mdio               uint8
		maxtx, maxrx                uint32
		speedHi                     uint16
		_                           [10]byte
	}
	cmd.cmd = unix.ETHTOOL_GSET
	var ifr struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	if copy(ifr.name[:unix.IFNAMSIZ-1], device) < len(device) {
		return 0
	}
	ifr.data = unsafe.Pointer(&cmd)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&ifr)))
	mbits := uint32(cmd.speedHi)<<16 | uint32(cmd.speed)
	if errno != 0 || mbits == 0 || mbits == 1<<32-1 || mbits == 1<<16-1 {
		return 0
	}
	return onpath.Rate(mbits) * 1e6
}
