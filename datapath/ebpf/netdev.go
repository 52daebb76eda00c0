package ebpf

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/offload"
)

// What a device's driver can do with XDP: netdev_xdp_act of linux/netdev.h, which
// kernels tell since 6.3.
const (
	xdpBasic         uint64 = 0x01
	xdpTransmit      uint64 = 0x04
	xdpTransmitFrags uint64 = 0x40
)

// senders are the drivers that send what XDP redirects to them, for kernels that
// do not tell: they had it in Linux 5.15.
var senders = []string{"bnxt_en", "ena", "i40e", "ice", "igb", "igc", "ixgbe", "mlx5_core", "sfc", "virtio_net"}

// plainQueues are the queueing disciplines that only queue. Others shape or drop by
// rules, which XDP would pass by.
var plainQueues = []string{"noqueue", "pfifo_fast", "pfifo", "bfifo", "mq", "multiq", "fq", "fq_codel", "clsact", "ingress"}

// ability is what the fast path can do with a device.
type ability struct {
	receives bool // it can be attached there
	sends    bool // it may send by it
	frags    bool // also frames in several buffers
	why      string
}

// ability is that of an uplink's device. It runs in the driver's namespace.
func (d *Driver) ability(u *onpath.Uplink, dev device) ability {
	switch {
	case u.Fast == onpath.FastNever, u.Attach != onpath.AttachRouter && u.Attach != onpath.AttachArm:
		return ability{}
	case d.att.fast == nil:
		return ability{why: "this kernel did not take the fast path's program; the log of the start says why"}
	case u.Fast != onpath.FastAlways && dev.kind != "device":
		return ability{why: fmt.Sprintf("%s is a virtual device (%s), where XDP slows or breaks TCP; say fast: always on the uplink if its frames carry whole checksums", u.Device, dev.kind)}
	}
	links, err := d.ns.nl.LinkList()
	if err != nil && len(links) == 0 { // a list that changed meanwhile is nearly whole
		return ability{why: "the devices on " + u.Device + " cannot be listed: " + err.Error()}
	}
	if why := stripsTags(u.Device, dev.index, links, offload.StripsTags); why != "" {
		return ability{why: why}
	}
	features, known := xdpFeatures(dev.index)
	if known && features&xdpBasic == 0 {
		return ability{why: fmt.Sprintf("the driver of %s has no XDP", u.Device)}
	}
	if !known {
		if dev.kind != "device" || slices.Contains(senders, driverOf(u.Device)) {
			features = xdpTransmit // the operator's word, or known
		}
	}
	a := ability{receives: true, sends: features&xdpTransmit != 0, frags: features&xdpTransmitFrags != 0}
	if !a.sends {
		a.why = fmt.Sprintf("%s cannot send what XDP redirects to it", u.Device)
		if dev.kind == "veth" {
			a.why += "; its peer needs generic receive offload (ethtool -K PEER gro on) or an XDP program"
		}
		return a
	}
	if why := egress(d.ns.nl, dev.index); why != "" {
		a.sends, a.why = false, fmt.Sprintf("at %s %s, which XDP would pass by; packets leave there the ordinary way", u.Device, why)
	}
	return a
}

// stripsTags says why XDP must not stand at a device that takes the tags off frames before
// XDP sees them: frames of its VLANs would be taken for the untagged network's.
func stripsTags(device string, index int, links []netlink.Link, strips func(device string) bool) string {
	for _, l := range links {
		if l.Type() == "vlan" && l.Attrs().ParentIndex == index && strips(device) {
			return fmt.Sprintf("%s has the VLAN device %s and takes tags off before XDP sees them; ethtool -K %s rxvlan off leaves them on",
				device, l.Attrs().Name, device)
		}
	}
	return ""
}

// xdpFeatures asks the kernel; false before Linux 6.3.
func xdpFeatures(ifindex int) (features uint64, known bool) {
	const (
		getFamily      = 3
		attrFamilyID   = 1
		attrFamilyName = 2
		getDevice      = 1
		attrIfindex    = 1
		attrXDP        = 3
	)
	id, ok := generic(nl.GENL_ID_CTRL, getFamily, nl.NewRtAttr(attrFamilyName, nl.ZeroTerminated("netdev")), attrFamilyID)
	if !ok || len(id) < 2 {
		return 0, false
	}
	family := nl.NativeEndian().Uint16(id)
	value, ok := generic(family, getDevice, nl.NewRtAttr(attrIfindex, nl.Uint32Attr(uint32(ifindex))), attrXDP)
	if !ok || len(value) != 8 {
		return 0, false
	}
	return nl.NativeEndian().Uint64(value), true
}

// generic sends a generic netlink request with one attribute and gives one of the
// answer's. The header is ours: the library's has two bytes, of which it sends four.
func generic(family uint16, command uint8, question *nl.RtAttr, answer uint16) (value []byte, ok bool) {
	const version = 1
	req := nl.NewNetlinkRequest(int(family), 0)
	req.AddRawData(append([]byte{command, version, 0, 0}, question.Serialize()...))
	msgs, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return nil, false
	}
	for _, m := range msgs {
		attrs, err := nl.ParseRouteAttr(m[nl.SizeofGenlmsg:])
		if err != nil {
			return nil, false
		}
		for _, a := range attrs {
			if a.Attr.Type == answer {
				return a.Value, true
			}
		}
	}
	return nil, false
}

// driverOf is the name of a device's driver; "" if it has none.
func driverOf(device string) string {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	info, err := unix.IoctlGetEthtoolDrvinfo(fd, device)
	if err != nil {
		return ""
	}
	return unix.ByteSliceToString(info.Driver[:])
}

// egress says what stands where packets leave a device, that XDP would pass by.
func egress(h *netlink.Handle, ifindex int) string {
	l, err := h.LinkByIndex(ifindex)
	if err != nil {
		return "" // gone
	}
	queues, err := h.QdiscList(l)
	if err != nil {
		return "queueing disciplines cannot be read"
	}
	for _, q := range queues {
		if !slices.Contains(plainQueues, q.Type()) {
			return "stands the queueing discipline " + q.Type()
		}
	}
	filters, err := h.FilterList(l, netlink.HANDLE_MIN_EGRESS)
	if err == nil && len(filters) > 0 {
		return "stands a tc filter for what leaves"
	}
	programs, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: ebpf.AttachTCXEgress})
	if err == nil && len(programs.Programs) > 0 {
		return "stands a tcx program for what leaves"
	}
	return ""
}
