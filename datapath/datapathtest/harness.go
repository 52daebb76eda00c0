// Package datapathtest is the exam of every onpath.Datapath: packets go in at
// uplinks and at the interfaces of instances, and each case states which
// packets, verdicts, flow entries and counters must come out. Each driver's own
// test calls Run with a Harness that moves packets into and out of it.
//
// The exam speaks of IP packets. What a driver may change on the way is the
// link-layer header, and the hop limit by one where a packet leaves at an
// uplink; everything else must arrive as it was sent.
package datapathtest

import (
	"net/netip"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// Harness puts nodes that run the driver into a network of its own and stands
// on all their ports. A port is a device of a node: an uplink, or
// onpath.DeviceName of an instance's vport. One Harness serves one case; it
// cleans up with t.Cleanup of the test it was made for, and fails that test if
// the machinery itself breaks.
//
// Frames that a kernel sends by itself (ARP, neighbour discovery, MLD, router
// solicitations) must neither reach the data path from the harness's side nor
// be reported by Receive.
type Harness interface {
	// AddNode makes a node: addresses on its uplinks, forwarding of IPv4 and
	// IPv6 by its kernel, its routes with neighbours that resolve, an underlay
	// that connects it with all other nodes. The data path is as after
	// installation: nothing applied.
	AddNode(n NodeSpec) onpath.Datapath
	// AddInstance makes the devices for the vports of one instance (one if it
	// is routed, two if bridged), before a configuration names them.
	AddInstance(node string, vports ...onpath.VportID)
	// Send puts one frame on the wire so that the node receives it at device.
	Send(node, device string, f Frame)
	// Receive gives the next frame that the node sent out of device, waiting at
	// most wait for it. Frames are kept from the moment the device exists, all
	// of them, in order; a driver in memory need not wait.
	Receive(node, device string, wait time.Duration) (Frame, bool)
	// SendTunnel delivers a tunnel packet to the node's underlay device.
	SendTunnel(node string, p TunnelPacket)
	// Underlay takes the underlay address from the node's device, or gives it back.
	Underlay(node string, there bool)
	// Forwarded is how many packets the node's kernel forwarded by itself,
	// both IP versions together.
	Forwarded(node string) uint64
	// Now is the time by the clock that the driver goes by.
	Now() time.Time
	// Function makes an instance of the exam's ebpf function (ExamObject) ready on
	// a node; ExamFunction says what it does.
	Function(node string, v onpath.VportID) onpath.InlineFunction
	// Lacks says why the driver cannot take the named case, in a sentence that
	// names what is missing; "" if it can. Such a case is skipped with it.
	Lacks(name string) string
}

// Reopener is a Harness that can open the data path of a node once more, as a
// restarted agent does: after Close it takes over what is there, after Remove it
// begins anew. A Harness without it is examined for Remove alone.
type Reopener interface {
	Reopen(node string) onpath.Datapath
}

// Sleeper is a Harness whose driver goes by a clock of its own.
type Sleeper interface {
	// Sleep lets time pass on it.
	Sleep(d time.Duration)
}

// NodeSpec describes a node to make.
type NodeSpec struct {
	Name string
	// Underlay is its address on the underlay, one network for all nodes.
	Underlay    netip.Prefix
	UnderlayMTU int // bytes
	Uplinks     []UplinkSpec
}

// UplinkSpec is one uplink with what lies behind it.
type UplinkSpec struct {
	Device    string
	MTU       int            // bytes
	Addresses []netip.Prefix // the node's own, one of each IP version
	// Gateways are the far end, one of each IP version, on link; routes to
	// Behind lead to the gateway of their version.
	Gateways []netip.Addr
	Behind   []netip.Prefix
	// Side is which one of a bridge it is, whose devices have no addresses; "": it is routed.
	Side onpath.Side
}

// Frame is one Ethernet frame.
type Frame struct {
	// Src and Dst are MAC addresses. Sending, both empty means what the far end
	// of a pair would write: the instance's own MAC and the node's.
	Src, Dst string
	// Tags are VLAN ids, outermost first; the first of two is an 802.1ad tag.
	Tags []uint16
	// EtherType of the payload; 0: by the IP version in it.
	EtherType uint16
	// Packet is the payload, for IP without Ethernet's padding.
	Packet []byte
}

// TunnelPacket is one packet as it arrives through a tunnel. The driver's
// harness knows how it is written on the wire.
type TunnelPacket struct {
	From   netip.Addr // source on the underlay
	Secret uint32
	Next   onpath.VportID // deliver here
	Prev   onpath.VportID // where it comes from
	Entry  onpath.VportID // edge where the flow entered
	Group  onpath.GroupID // through which Next was chosen
	Packet []byte
}

// Run takes a driver through all cases. newHarness is called once for each.
func Run(t *testing.T, newHarness func(t *testing.T) Harness) {
	for _, c := range Cases() {
		t.Run(c.Name, func(t *testing.T) {
			h := newHarness(t)
			if why := h.Lacks(c.Name); why != "" {
				t.Skipf("the driver lacks %s: %s", c.Name, why)
			}
			b := newTestbed(t, h)
			c.run(b)
			b.finish()
		})
	}
}

// Case is one question of the exam.
type Case struct {
	Name string
	// About says in a sentence what must hold.
	About string
	run   func(b *testbed)
}
