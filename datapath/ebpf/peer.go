package ebpf

import (
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// Packets for an instance go straight to the far end of its pair of devices, which
// takes them as if they had come in there: that saves a queue and a softirq on the
// way. It passes by all that stands between: queueing disciplines and filters at
// the near end, and native XDP at the far one. Where one of those is, packets go
// into the near end as ever.

// peersEvery is how often instances' devices are looked at again.
const peersEvery = 5 * time.Second

// checkPeers finds out which instances' packets may go straight to the far end. What
// was found out a moment ago is taken from the vports as they are.
func (d *Driver) checkPeers(c *onpath.DatapathConfig, now *kernel) {
	for i := range c.Vports {
		v := &c.Vports[i]
		name := onpath.DeviceName(v.ID)
		dev, ok := now.devices[name]
		if v.Kind != onpath.VportInstance || !ok {
			continue
		}
		if slot, known := d.slots.vports.of[v.ID]; known && d.maps.vports.now[slot].State != stateClosed {
			dev.direct = d.maps.vports.now[slot].Flags&flagPeer != 0
		} else {
			dev.direct = d.direct(dev)
		}
		dev.direct = dev.direct && v.RateOut == 0 // what is limited waits in a queue there
		now.devices[name] = dev
	}
}

// direct checks one device. It runs in the driver's namespace.
func (d *Driver) direct(dev device) bool {
	return dev.kind == "veth" && dev.peerNS >= 0 && dev.up && !xdpBehind(dev) && egress(d.ns.nl, dev.index) == ""
}

// checkPeersAgain notices what came to stand between. It runs in the driver's
// namespace; d.mu is held.
func (d *Driver) checkPeersAgain() error {
	if time.Since(d.peersChecked) < peersEvery {
		return nil
	}
	d.peersChecked = time.Now()
	now, err := look(d.ns.nl)
	if err != nil {
		return err
	}
	var errs []error
	for slot, v := range d.state.vports {
		dev, ok := now.devices[onpath.DeviceName(onpath.VportID(v.ID))]
		if v.Kind != vportInstance || v.State == stateClosed || !ok {
			continue
		}
		flags := v.Flags &^ flagPeer
		if d.state.rates[slot*rateWays+rateOut].Byte == 0 && d.direct(dev) {
			flags |= flagPeer
		}
		if flags == v.Flags {
			continue
		}
		d.opts.Log.Info("packets for an instance go another way into its device", "vport", v.ID, "straight", flags&flagPeer != 0)
		errs = append(errs, d.setFlags(slot, flags))
	}
	return errors.Join(errs...)
}

// setFlags changes a vport's flags and nothing else: the kernel may have closed it.
func (d *Driver) setFlags(slot uint32, flags uint16) error {
	want := d.state.vports[slot]
	want.Flags = flags
	d.state.vports[slot] = want
	v := want
	if err := d.maps.vports.m.Lookup(slot, &v); err != nil {
		return fmt.Errorf("read vport %d: %w", want.ID, err)
	}
	v.Flags = flags
	return d.maps.vports.put(slot, v)
}

// xdpBehind tells whether a program is on the native XDP of a device's far end. If
// it cannot be asked, one may be.
func xdpBehind(dev device) bool {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(dev.peer)
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFLA_IF_NETNSID, nl.Uint32Attr(uint32(dev.peerNS))))
	answers, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil || len(answers) != 1 {
		return true
	}
	l, err := netlink.LinkDeserialize(&unix.NlMsghdr{Type: unix.RTM_NEWLINK}, answers[0])
	if err != nil || l.Type() != "veth" {
		return true
	}
	xdp := l.Attrs().Xdp
	return xdp != nil && xdp.Attached && xdp.AttachMode != nl.XDP_ATTACHED_SKB
}
