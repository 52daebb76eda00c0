package onpath

import (
	"cmp"
	"net/netip"
	"slices"
)

// Node is one machine that runs `onpath node`. A node with uplinks is a gateway.
type Node struct {
	TypeMeta
	Metadata Metadata   `json:"metadata"`
	Spec     NodeSpec   `json:"spec"`
	Status   NodeStatus `json:"status,omitzero"`
}

// NodeSpec is what the operator says about a machine.
type NodeSpec struct {
	Cloudlet string `json:"cloudlet"`
	// Schedulable false means cordoned: no new instances. Default true.
	Schedulable *bool `json:"schedulable,omitempty"`
	// Drain true moves the instances off (set by `onpath drain`).
	Drain    bool     `json:"drain,omitempty"`
	Underlay Underlay `json:"underlay"`
	Uplinks  []Uplink `json:"uplinks,omitempty"`
	// Capacity limits what instances may use; default is what the node reports.
	Capacity Resources `json:"capacity,omitzero"`
	// Leases lets publishers have modules installed here by messages on the way of their
	// users' traffic. Absent: such messages are forwarded like others.
	Leases *LeasesSpec `json:"leases,omitempty"`
}

// Underlay is the network that carries tunnels and control, never an uplink.
type Underlay struct {
	// Address is the one by which other nodes reach this one. What comes by VXLAN and has passed
	// a router or NAT is dropped (tunnel-source).
	Address netip.Addr `json:"address"`
	MTU     int        `json:"mtu,omitempty"` // bytes; default: the device's
	// Port is the UDP port of the tunnels; default DefaultTunnelPort, which is free beside
	// Cilium (8472) and others (4789). The same on all nodes of a cloudlet.
	Port uint16 `json:"port,omitempty"`
	// Tunnel is how packets get to the other nodes of the cloudlet: vxlan, in clear text and one
	// IP hop; wireguard, with VXLAN inside; or auto, the default: vxlan with those whose data path
	// answers so, wireguard with others. The other node of a pair decides for one that says auto.
	Tunnel tunnel `json:"tunnel,omitempty"`
}

// tunnel is how packets get from one node to another.
type tunnel string

// The tunnels.
const (
	TunnelAuto      tunnel = "auto"
	TunnelVXLAN     tunnel = "vxlan"
	TunnelWireGuard tunnel = "wireguard"
)

// WireGuardDevice is the device of WireGuard, where a node has any peer by it.
const WireGuardDevice = "onpathwg0"

// WireGuardPort is the UDP port of WireGuard: the one behind that of the tunnels.
func (u Underlay) WireGuardPort() uint16 { return cmp.Or(u.Port, DefaultTunnelPort) + 1 }

// ConditionTunnel, with the name of another node, is the type of a condition of a node: whether
// packets get there and back, by which tunnel, and why that one.
const ConditionTunnel = "Tunnel/"

// The reasons of ConditionTunnel. True: which tunnel. False: why there is no way.
const (
	ReasonVXLAN       = "VXLAN"
	ReasonWireGuard   = "WireGuard"
	ReasonNoAnswer    = "NoAnswer"    // what was chosen is not answered
	ReasonNoWay       = "NoWay"       // both are behind NAT
	ReasonNoWireGuard = "NoWireGuard" // one of the two cannot have it
)

// DefaultTunnelPort is used where Underlay.Port is 0. 4789 and 8472 are avoided:
// other overlays own them on many hosts.
const DefaultTunnelPort = 4797

// Attach says how an uplink's packets come in and go out.
type Attach string

// The ways to attach an uplink.
const (
	AttachRouter Attach = "router" // the kernel routes between uplinks
	AttachBridge Attach = "bridge" // two devices, a bump in the wire
	AttachArm    Attach = "arm"    // the operator's router diverts to us and takes it back
	AttachTap    Attach = "tap"    // copies only; nothing goes back
	AttachHost   Attach = "host"   // this machine's own traffic
)

// Side says which way an uplink looks; it only matters for attach: bridge,
// which needs one device of each, and for display.
type Side string

// The two sides.
const (
	SideCore   Side = "core"
	SideAccess Side = "access"
)

// Uplink is a device that carries transit traffic.
type Uplink struct {
	Name   string `json:"name"`
	Device string `json:"device"`
	Attach Attach `json:"attach"`
	Side   Side   `json:"side,omitempty"`
	// BypassHostFirewall is the operator's word that steered packets may pass
	// by the host's netfilter; without it an uplink with NAT or a forward
	// policy of drop is refused.
	BypassHostFirewall bool `json:"bypassHostFirewall,omitempty"`
	// Fast is the word on the fast path (XDP) at the device; default FastAuto.
	Fast Fast `json:"fast,omitempty"`
}

// Fast says whether XDP carries established flows at an uplink, before the
// kernel makes a socket buffer of a packet. Only router and arm uplinks have it.
type Fast string

// The fast path's settings.
const (
	FastAuto   Fast = "auto"   // on physical devices that can
	FastAlways Fast = "always" // also on virtual ones, whose frames must then have whole checksums
	FastNever  Fast = "never"
)

// Resources is a capacity ⟨cpu, memory, disk, network⟩ (PacketCloud §4).
type Resources struct {
	CPU     CPU  `json:"cpu,omitempty"`
	Memory  Size `json:"memory,omitempty"`
	Disk    Size `json:"disk,omitempty"`
	Network Rate `json:"network,omitempty"`
}

// Add is the sum of r and o.
func (r Resources) Add(o Resources) Resources {
	return Resources{r.CPU + o.CPU, r.Memory + o.Memory, r.Disk + o.Disk, r.Network + o.Network}
}

// Sub is r less o; parts may become negative.
func (r Resources) Sub(o Resources) Resources {
	return Resources{r.CPU - o.CPU, r.Memory - o.Memory, r.Disk - o.Disk, r.Network - o.Network}
}

// Fits reports whether o fits into r, part by part.
func (r Resources) Fits(o Resources) bool {
	return o.CPU <= r.CPU && o.Memory <= r.Memory && o.Disk <= r.Disk && o.Network <= r.Network
}

// NodeStatus is what the node last reported, and what the planner gave it.
type NodeStatus struct {
	Ready    bool      `json:"ready"`
	Version  string    `json:"version,omitempty"` // of the agent
	Kernel   string    `json:"kernel,omitempty"`
	Capacity Resources `json:"capacity,omitzero"`
	Used     Resources `json:"used,omitzero"`
	// HostImage: functions with image: host may run here (hostImage in the
	// machine's onpath.yaml).
	HostImage bool `json:"hostImage,omitempty"`
	// Blocks are what modules of wasm functions may use here (blocks in the machine's
	// onpath.yaml).
	Blocks []string `json:"blocks,omitempty"`
	// Addresses are the machine's own, which Hosts with spec.node stand for: of all
	// devices, but loopback's and link-local ones.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Edge is the vport of all uplinks together; 0 without uplinks.
	Edge VportID `json:"edge,omitempty"`
	// Leases are the ids that are reserved for leases.
	Leases     []LeaseSlot `json:"leases,omitempty"`
	Conditions []Condition `json:"conditions,omitempty"`
}

// Meta implements Object.
func (n *Node) Meta() *Metadata { return &n.Metadata }

// ObjectKind implements Object.
func (n *Node) ObjectKind() Kind { return KindNode }

// ConditionDrained is the type of the condition that a node has while it is to be
// drained, and ReasonStuck its reason if some of its instances have nowhere to go.
const (
	ConditionDrained = "Drained"
	ReasonStuck      = "Stuck"
)

// ConditionAccepted is the type of the condition that is false while a node waits: the
// server gives it nothing to do, and it keeps what it runs.
const (
	ConditionAccepted = "Accepted"
	ReasonForeignPlan = "ForeignPlan" // it holds the plan of another store
	ReasonNotGranted  = "NotGranted"  // it asks for more than its token is for
	ReasonRefused     = "Refused"     // it cannot be beside what is there
)

// Accepted reports whether the node is given something to do.
func (n *Node) Accepted() bool {
	for _, c := range n.Status.Conditions {
		if c.Type == ConditionAccepted {
			return c.Status != False
		}
	}
	return true
}

// Gateway reports whether the node has uplinks.
func (n *Node) Gateway() bool { return len(n.Spec.Uplinks) > 0 }

// AttachedHost reports whether the node's uplinks carry its machine's own traffic and
// nothing else: it is no gateway, and a cloudlet may have many such nodes.
func (n *Node) AttachedHost() bool {
	return n.Gateway() && !slices.ContainsFunc(n.Spec.Uplinks, func(u Uplink) bool { return u.Attach != AttachHost })
}
