// Package fake is the data path in memory: the reference model of what
// onpath.Datapath means, on real packet bytes. Every other driver must do to a
// packet what this one does. Nodes of one Network reach each other by tunnels
// that are function calls; nothing runs in the background, and the same
// packets in the same order give the same result.
//
// What it models beside the data path itself is as much of a kernel as the data
// path leans on: addresses, routes, and ordinary forwarding of packets that are
// left alone.
package fake

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/onpath/onpath"
)

// Network is a set of nodes that can reach each other's underlay.
type Network struct {
	clock onpath.Clock

	mu        sync.Mutex
	nodes     map[string]*Node
	underlay  map[netip.Addr]*Node
	queue     []Delivery
	onDeliver func(Delivery)
	onTunnel  func(Tunnelled, By) bool
	cut       map[string]bool // nodes off the underlay
	missing   map[string]bool // nodes whose machine lacks its underlay address
}

// NewNetwork makes an empty network; clock ages flow entries and dates captures.
func NewNetwork(clock onpath.Clock) *Network {
	return &Network{clock: clock, nodes: map[string]*Node{}, underlay: map[netip.Addr]*Node{}}
}

// By says who delivered a packet.
type By string

// The ways in which packets come out of a node.
const (
	BySteering By = "steering" // the data path, on its way along a chain or at its exit
	ByMirror   By = "mirror"   // a copy for a mirror
	ByAnswer   By = "answer"   // the data path itself answered: RST or ICMP error
	ByKernel   By = "kernel"   // ordinary forwarding
	ByLocal    By = "local"    // left to the node's own stack; Device is empty
)

// Delivery is one packet that came out of a node.
type Delivery struct {
	Node   string
	Device string
	By     By
	// Src and Dst are MAC addresses, as instances see them; empty at uplinks.
	Src, Dst string
	// Packet is the IP packet, or for other frames left to the kernel, the
	// payload. It belongs to the receiver.
	Packet []byte
}

// OnDelivery calls f for every packet that comes out of any node from now on,
// in order, after the call that caused it has let go of its locks: f may inject
// packets. Without it deliveries are kept for Deliveries.
func (w *Network) OnDelivery(f func(Delivery)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.onDeliver = f
}

// OnTunnel calls f for every packet that a node sends to another through their
// tunnel, before it gets there, and lets it get there if f says so. f may not touch
// the network.
func (w *Network) OnTunnel(f func(t Tunnelled, by By) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.onTunnel = f
}

// Deliveries gives what came out since the last call.
func (w *Network) Deliveries() []Delivery {
	w.mu.Lock()
	defer w.mu.Unlock()
	d := w.queue
	w.queue = nil
	return d
}

// Options describes the machine that a node runs on.
type Options struct {
	Uplinks []Uplink
	// Routes of the kernel; the longest prefix wins.
	Routes []Route
	// Function is the model of all ebpf functions of the node; nil passes all.
	Function func(InlinePacket) InlineVerdict
	// Pick chooses a member in place of Rendezvous.
	Pick Picker
	// Flows is the size of the table of established flows, in entries, which the
	// tenants share, Pending that of each one's table of flows that begin. 0: 2¹⁸
	// and 2¹⁴.
	Flows, Pending int
}

// Uplink is a device with the node's addresses on it.
type Uplink struct {
	Device    string
	Addresses []netip.Addr
	MTU       int // bytes; 0: no limit
}

// Route leads a prefix to a device.
type Route struct {
	Prefix netip.Prefix
	Device string
}

// Node makes a node; names are unique in a network.
func (w *Network) Node(name string, o Options) (*Node, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.nodes[name] != nil {
		return nil, onpath.Errorf(onpath.CodeExists, "the network has a node %s already", name)
	}
	if o.Pick == nil {
		o.Pick = Rendezvous
	}
	o.Uplinks, o.Routes = slices.Clone(o.Uplinks), slices.Clone(o.Routes)
	slices.SortStableFunc(o.Routes, func(a, b Route) int { return b.Prefix.Bits() - a.Prefix.Bits() })
	n := &Node{net: w, name: name, options: o, broadcasts: broadcastsOf(&o)}
	n.forget()
	w.nodes[name] = n
	return n, nil
}

// emit queues a packet that comes out of n.
func (w *Network) emit(d Delivery) { w.queue = append(w.queue, d) }

// release unlocks the network and hands out what was queued.
func (w *Network) release() {
	f := w.onDeliver
	if f == nil {
		w.mu.Unlock()
		return
	}
	q := w.queue
	w.queue = nil
	w.mu.Unlock()
	for _, d := range q {
		f(d)
	}
}

// Tunnelled is a packet as it comes through a tunnel.
type Tunnelled struct {
	From   netip.Addr // underlay address of the sender
	Secret uint32     // of the pair of nodes
	Next   onpath.VportID
	Prev   onpath.VportID
	Entry  onpath.VportID // 0: Next, and the connection is led past a younger chain
	// Group through which Next was chosen, or that the packet left last where
	// Next is the edge; 0 if none.
	Group  onpath.GroupID
	Packet []byte
}

// Inject puts an IP packet in at a device: an uplink, or onpath.DeviceName of a
// vport on this node.
func (n *Node) Inject(device string, packet []byte) {
	n.net.mu.Lock()
	defer n.net.release()
	n.packetIn(device, append([]byte(nil), packet...))
}

// InjectFrame puts an Ethernet frame in at a device.
func (n *Node) InjectFrame(device string, raw []byte) {
	n.net.mu.Lock()
	defer n.net.release()
	f, ok := parseFrame(append([]byte(nil), raw...))
	if !ok {
		return
	}
	n.frameIn(device, f)
}

// InjectTunnel puts a packet in at the underlay.
func (n *Node) InjectTunnel(t Tunnelled) {
	n.net.mu.Lock()
	defer n.net.release()
	t.Packet = append([]byte(nil), t.Packet...)
	n.tunnelIn(t)
}

// Forwarded is the number of packets that the node's kernel forwarded.
func (n *Node) Forwarded() uint64 {
	n.net.mu.Lock()
	defer n.net.mu.Unlock()
	return n.forwarded
}

// Dropped is the number of packets that the node has dropped, for any reason.
func (n *Node) Dropped() uint64 {
	n.net.mu.Lock()
	defer n.net.mu.Unlock()
	return n.dropped
}

func (n *Node) String() string { return fmt.Sprintf("node %s (in memory)", n.name) }
