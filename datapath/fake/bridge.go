package fake

import (
	"net"
	"net/netip"
	"slices"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/packet"
)

// bridged is the frame at work, which came in at one side of a bridge.
type bridged struct {
	device, opposite string
	src, dst         string // MAC addresses
}

// end is an address as source, or as destination, of what came in at a bridge.
type end struct {
	addr netip.Addr
	from bool
}

// station is where an end lies, and what stood in the frame.
type station struct{ device, mac string }

// bridge takes a frame at one side of a bridge.
func (n *Node) bridge(u *onpath.Uplink, f frame) {
	other := slices.IndexFunc(n.edge.Uplinks, func(o onpath.Uplink) bool { return o.Attach == onpath.AttachBridge && o.Side != u.Side })
	if other < 0 {
		return
	}
	n.bridged = &bridged{u.Device, n.edge.Uplinks[other].Device, net.HardwareAddr(f.src[:]).String(), net.HardwareAddr(f.dst[:]).String()}
	defer func() { n.bridged = nil }()
	if len(f.tags) < 2 {
		n.packetIn(u.Device, f.payload)
		return
	}
	h := packet.Parse(f.payload)
	if h.Verdict == packet.Malformed || !n.refusesTags(&h) {
		n.kernel(f.payload, h)
	}
}

// refusesTags drops what a strict chain selects in a frame with more tags than can be given back.
func (n *Node) refusesTags(h *packet.Header) bool {
	if n.edge.Table == 0 || neverSelected(h.Tuple, h.Verdict == packet.Fine) {
		return false
	}
	if _, strict := n.unclassified(h); !strict {
		return false
	}
	n.countIn(n.edge.Vport, h.Length)
	n.countDrop(n.edge.Vport, onpath.DropUnclassified)
	return true
}

// crossBridge gives what no chain takes to the other side, as it is.
func (n *Node) crossBridge(b []byte, h packet.Header) {
	if h.Verdict != packet.Malformed {
		b = b[:h.Length]
	}
	n.deliver(Delivery{Device: n.bridged.opposite, By: ByKernel, Src: n.bridged.src, Dst: n.bridged.dst, Packet: b})
}

// learnStations notes where the two ends of a packet lie that came in at a bridge.
func (n *Node) learnStations(t onpath.Tuple) {
	if n.bridged == nil {
		return
	}
	n.stations[end{t.Src, true}] = station{n.bridged.device, n.bridged.src}
	n.stations[end{t.Dst, false}] = station{n.bridged.opposite, n.bridged.dst}
}

// station is where an address lies, first as one or the other end.
func (n *Node) station(a netip.Addr, from bool) (station, bool) {
	if s, ok := n.stations[end{a, from}]; ok {
		return s, true
	}
	s, ok := n.stations[end{a, !from}]
	return s, ok
}

// leaveBridge has a packet leave at the side of its destination, or drops what came in at a
// bridge and leads to neither; false if it is to be routed.
func (n *Node) leaveBridge(w *work, f *flow, from onpath.VportID) bool {
	if n.edge == nil || !slices.ContainsFunc(n.edge.Uplinks, func(u onpath.Uplink) bool { return u.Attach == onpath.AttachBridge }) {
		return false
	}
	to, known := n.station(w.h.Tuple.Dst, false)
	if !known {
		if !n.cameBridged(w, f) {
			return false
		}
		n.countDrop(from, onpath.DropNoStation)
		return true
	}
	n.countOut(n.edge.Vport, w.h.Length)
	n.show(n.edge.Vport, true, w.b)
	src, _ := n.station(w.h.Tuple.Src, true)
	n.deliver(Delivery{Device: to.device, By: BySteering, Src: src.mac, Dst: to.mac, Packet: w.b})
	return true
}

// cameBridged tells whether the packet's flow came in at a bridge.
func (n *Node) cameBridged(w *work, f *flow) bool {
	if w.uplink != "" {
		return n.bridged != nil
	}
	if f.counts || f.path == 0 {
		return false // an instance's own
	}
	_, known := n.stations[end{w.h.Tuple.Src, true}]
	return known || !slices.ContainsFunc(n.edge.Uplinks, func(u onpath.Uplink) bool {
		return u.Attach == onpath.AttachRouter || u.Attach == onpath.AttachArm
	})
}
