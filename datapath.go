package onpath

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// The data path is a match-action machine over vports. In one paragraph:
//
// A packet enters at a vport. Its flow entry (vport, 5-tuple) says what comes
// next. Without an entry the vport's table is walked: the first matching rule
// gives an action; a group action picks one member by weight and consistent
// hash, and the choice is written as flow entries, forward and reverse, insert
// if absent. A group also says which table continues when the packet comes out
// of the member again; that, the entry vport, the path and the direction are
// the *context* of the flow at the member, written when the packet is
// delivered there. So a chain is a row of tables linked by groups, and the same
// table serves all instances of an element.

// VportID identifies a vport. Unique within one operator, 24 bits, never 0.
type VportID uint32

// TableID identifies a table of rules on a node. 32 bits, never 0; not carried
// in packets. 1 and 2 are the classifiers of the tiers, ids with the top bit
// are emit tables, the others come from TableOf.
type TableID uint32

// GroupID identifies a group. 24 bits, never 0; it stands for (path, element,
// direction) and is carried in tunnelled packets, so it must mean the same on
// every node that knows it.
type GroupID uint32

// PathID identifies one list of elements of one chain. 18 bits, never 0.
type PathID uint32

// MaxID24 is the largest VportID, TableID or GroupID.
const MaxID24 = 1<<24 - 1

// MaxElements is the largest number of elements in a chain.
const MaxElements = 31

// Group and table ids are made from the path id: path·64 + element·2 + direction.

// GroupOf is the group that chooses an instance for element i of a path, in the
// given direction.
func GroupOf(p PathID, element int, reverse bool) GroupID {
	return GroupID(idOf(p, element, reverse))
}

// TableOf is the table walked when a packet leaves element i of a path in the
// given direction.
func TableOf(p PathID, element int, reverse bool) TableID {
	return TableID(idOf(p, element, reverse))
}

func idOf(p PathID, element int, reverse bool) uint32 {
	id := uint32(p)<<6 | uint32(element)<<1
	if reverse {
		id |= 1
	}
	return id
}

// Split gives back what GroupOf was made from.
func (g GroupID) Split() (p PathID, element int, reverse bool) {
	return PathID(g >> 6), int(g>>1) & 31, g&1 == 1
}

// ClassifierTable is the table of a tier at every edge of a node.
func ClassifierTable(t Tier) TableID {
	if t == TierOperator {
		return 1
	}
	return 2
}

// EmitTableOf is the table for what an instance's vport emits without an entry.
func EmitTableOf(v VportID) TableID { return TableID(1<<31 | uint32(v)) }

// DeviceName is the host-side network device of an instance's vport.
func DeviceName(id VportID) string { return fmt.Sprintf("op%06x", uint32(id)) }

// TunnelDevice carries all tunnels of a node.
const TunnelDevice = "onpath0"

// InstanceMAC is the address of the instance's end of a vport's pair, HostMAC of
// the node's end: locally administered, made from the id.
func InstanceMAC(id VportID) string { return macOf(0x70, id) }

// HostMAC is the address of the node's end of a vport's pair.
func HostMAC(id VportID) string { return macOf(0x50, id) }

// ChainMAC is the source of frames to a vport that Tells: which chain a packet is on its
// way through, by the last three bytes as GroupOf makes them, and in which direction.
func ChainMAC(p PathID, reverse bool) string {
	return macOf(ChainMACByte, VportID(GroupOf(p, 0, reverse)))
}

// ChainMACByte is the third byte of a ChainMAC.
const ChainMACByte = 0x60

func macOf(third byte, id VportID) string {
	return fmt.Sprintf("02:6f:%02x:%02x:%02x:%02x", third, byte(id>>16), byte(id>>8), byte(id))
}

// DatapathConfig is the whole desired state of one node's data path. Zero
// values mean absent. Slices are ordered by id; a driver treats equal contents
// as equal configurations.
type DatapathConfig struct {
	Node       string `json:"node"`
	Generation uint64 `json:"generation"`
	// Restored: it was kept on disk, nobody knows for how long. No adoption begins by it
	// (Path.AdoptFor); one that is under way goes on.
	Restored bool `json:"-"`

	// Underlay's address need not be there: WithoutPeers. Without Peers nothing asks
	// for it.
	Underlay Underlay `json:"underlay"`
	Peers    []Peer   `json:"peers,omitempty"`
	// Inside is this node's address inside WireGuard, for peers that are reached so; invalid:
	// there are none. It need not be there either.
	Inside netip.Addr `json:"inside,omitzero"`
	// Edge is absent on nodes without uplinks.
	Edge *Edge `json:"edge,omitempty"`

	Vports []Vport `json:"vports,omitempty"`
	Tables []Table `json:"tables,omitempty"`
	Groups []Group `json:"groups,omitempty"`
	// Paths are those that serve flows. Entries of a path that is not here any
	// more are forgotten: their flows go the ordinary way or begin anew.
	Paths []Path `json:"paths,omitempty"`
	// Functions are what stands behind the vports of kind function. The node
	// adds them to what the plan says; a vport of that kind without its function
	// here is closed.
	Functions []InlineFunction `json:"functions,omitempty"`
	// Tenants are the limits of those that have any but the ones of Paths and Vports.
	Tenants []TenantLimits `json:"tenants,omitempty"`
	// Punt hands packets to the agent; nil: none.
	Punt *Punt `json:"punt,omitempty"`
}

// Punt says which packets go to the node's agent, whole and before any rule, in place of
// being forwarded: signalling messages of GIST (RFC 5971) that come in at routing uplinks,
// if somebody reads (PuntReader). Others, and all while nobody reads, are forwarded.
type Punt struct {
	// NSLPID is the signalling application. Its messages go to the agent if they are for
	// whoever stands on the way, or for one of the node's own addresses.
	NSLPID uint16 `json:"nslpid"`
	// Rate is how many packets a second the agent is given, after a rest a tenth of that at
	// once. What is more is dropped.
	Rate int `json:"rate"`
}

// Punted is a packet that was handed to the agent.
type Punted struct {
	Vport  VportID // where it came in; of one for a sleeping instance: where it is delivered
	Device int     // where it came in: the index of the device; 0 of one for a sleeping instance
	Packet []byte  // from the IP header on
	// Frame is, of one for a sleeping instance, what Inlet.Deliver takes.
	Frame []byte
}

// PuntReader is a Datapath that hands packets to the agent.
type PuntReader interface {
	// Punted calls take with each, one after the other, until ctx ends. Who takes must not
	// keep Packet or Frame. One may read at a time.
	Punted(ctx context.Context, take func(Punted)) error
	// Inlet opens the device of a local instance's vport, past all rules, for the packets
	// that were kept while the instance slept.
	Inlet(id VportID) (Inlet, error)
}

// Inlet lets kept packets into an instance.
type Inlet interface {
	// Deliver sends the Frame of a Punted to the instance.
	Deliver(frame []byte) error
	// Open has the vport lead to the instance again, as the next Apply does that says so. It
	// gives take of Punted all that came before: what take delivers comes in before what no
	// longer goes there.
	Open() error
	Close() error
}

// WithoutPeers is what a driver does with the configuration while no device of the machine
// has the underlay's address, or the one inside WireGuard: the peers that are reached from there
// count as lost. Vports of theirs among which there is a choice are closed, so that flows
// go on here by Lost and None.
func (c *DatapathConfig) WithoutPeers(lost func(Peer) bool) *DatapathConfig {
	choice, gone := c.Choice(), map[string]bool{}
	for _, p := range c.Peers {
		gone[p.Node] = lost(p)
	}
	alone := *c
	alone.Vports = slices.Clone(c.Vports)
	for i := range alone.Vports {
		if v := &alone.Vports[i]; v.Kind == VportRemote && gone[v.Peer] && choice[v.ID] {
			v.State, v.Away = VportClosed, true
		}
	}
	return &alone
}

// TenantLimits is what one tenant may do on a node.
type TenantLimits struct {
	Name string `json:"name"`
	// MaxNewFlows is how many flows may begin in a second, after a rest a tenth of
	// that at once; 0: no limit. Packets that would begin more are dropped before
	// anything is chosen or written for them. A flow counts for the tenant whose chain
	// takes it up, at the node where that is; where an operator's chain leads on into
	// a tenant's, for both, TCP there by its SYN. What an instance begins counts for
	// its tenant. Never
	// refused are packets of flows that have an entry, also a pending one; what
	// another node sends or tells; connections older than the chain; and what no rule
	// selects.
	MaxNewFlows int `json:"maxNewFlows,omitempty"`
}

// InlineFunction is an instance of an ebpf function that the node has made ready:
// checked, its maps made and filled. The data path links it into its dispatcher.
type InlineFunction struct {
	Vport VportID `json:"vport"`
	// Object is the path of the object file, SHA256 its hash in hexadecimal.
	Object string `json:"object"`
	SHA256 string `json:"sha256"`
	// Maps is the folder in the BPF file system where the instance's own maps
	// are pinned by their names; what is in them survives agents and upgrades.
	Maps string `json:"maps"`
}

// MaxInline is the largest number of ebpf functions in a row on one node, without an
// instance between them at which every packet stops: one of an element that selects
// all the chain's traffic and lets none pass by.
const MaxInline = 8

// MaxMirrors is the largest number of mirrors in a row, in the same sense; ebpf
// functions between them do not count.
const MaxMirrors = 2

// Peer is another node to which tunnels lead.
type Peer struct {
	Node    string     `json:"node"`
	Address netip.Addr `json:"address"` // where packets go and come from: underlay, or inside WireGuard
	Port    uint16     `json:"port"`
	// Secret is shared by the two nodes of a pair; 24 bits, symmetric.
	Secret uint32 `json:"secret"`
	MTU    int    `json:"mtu"` // of the underlay between the two, or of WireGuard there, bytes
	// Inside: it is reached inside WireGuard. The rest is for such peers.
	Inside bool `json:"inside,omitempty"`
	// Key is the peer's public one, as wg(8) writes it; "": it has none.
	Key string `json:"key,omitempty"`
	// Endpoints are where its WireGuard may be, to be tried in this order. Wherever it speaks
	// from, it is answered.
	Endpoints [2]netip.AddrPort `json:"endpoints,omitzero"`
}

// Edge is all uplinks of the node together: a reply may come in on another
// uplink than the request left by, so entries are keyed by Vport, not device.
type Edge struct {
	Vport   VportID  `json:"vport"`
	Uplinks []Uplink `json:"uplinks"`
	// Table classifies packets without an entry; 0: nothing is selected.
	Table TableID `json:"table,omitempty"`
	// NAT: sources in these prefixes (the instances' private addresses) are
	// translated to the uplink's address when they leave here.
	NAT []netip.Prefix `json:"nat,omitempty"`
}

// vportKind says what stands behind a vport.
type vportKind string

// The kinds of vport in a configuration. The edge is described by Edge.
const (
	VportInstance vportKind = "instance" // a local instance's interface: device DeviceName(ID)
	// an ebpf function of this node, run inline: a packet that is led to it goes on at once with
	// what comes behind its element
	VportFunction vportKind = "function"
	VportRemote   vportKind = "remote" // a vport of another node (an instance's, or its edge), reached through the tunnel to Peer
)

// VportState says whether a vport takes packets.
type VportState string

// The vport states.
const (
	VportUp       VportState = "up"
	VportClosed   VportState = "closed"   // takes nothing: flows go by Lost, new ones elsewhere
	VportDraining VportState = "draining" // keeps its flows, gets no new ones
)

// Vport is an instance's interface on this node, or one on another node.
type Vport struct {
	ID    VportID    `json:"id"`
	Kind  vportKind  `json:"kind"`
	State VportState `json:"state"`
	// Hold is, of a local instance that may sleep, OnDemand.Hold: so many bytes a second, and
	// after a rest at once, are handed to the agent while it does, HeldOverhead more for each
	// packet. 0: it never sleeps.
	Hold Size `json:"hold,omitempty"`
	// Asleep: what is delivered here is handed to the agent (PuntReader). Its State is as if
	// it were awake. Only with Hold.
	Asleep bool `json:"asleep,omitempty"`
	// Alone, of a local instance of a pair that is closed: the partner does not serve. It
	// stays closed, whatever the instance is.
	Alone bool `json:"alone,omitempty"`

	// Peer is the node of a remote vport.
	Peer string `json:"peer,omitempty"`
	// Away is for remote vports that are closed: the peer does not answer. Where it
	// does, it knows best whether the instance takes packets of a connection that
	// has just come through it.
	Away bool `json:"away,omitempty"`
	// Backup is for remote edges: the edge of the other gateway of a pair, this
	// node's or a remote one. Flows that would leave at a closed edge leave
	// there, and the two gateways tell each other of their flows.
	Backup VportID `json:"backup,omitempty"`

	// The rest is for local instances.

	Instance string `json:"instance,omitempty"` // tenant/name, for display
	Tenant   string `json:"tenant,omitempty"`
	// Other is where packets delivered here come out: the other side of a
	// bridged instance, the vport itself (or 0) for a routed one.
	Other VportID `json:"other,omitempty"`
	// The rest is for those of kind instance.

	// MAC of the instance's end of the pair; what is delivered is sent to it.
	MAC string `json:"mac,omitempty"`
	// HostMAC of our end: the source of what is delivered to a routed
	// instance. A bridged one gets source HostMAC of this side and destination
	// HostMAC of the other, always the same.
	HostMAC string          `json:"hostMAC,omitempty"`
	Attach  ContainerAttach `json:"attach,omitempty"`
	Packets PacketRights    `json:"packets,omitempty"`
	// Own addresses of the instance.
	Own []netip.Addr `json:"own,omitempty"`
	// Routes: packets from an own address that no chain selects exit at Entry
	// (pool addresses, and private ones with outbound: nat); else dropped.
	Routes bool `json:"routes,omitempty"`
	// Entry is the edge vport (often a remote one) at which flows leave that
	// start at this instance and so have no context.
	Entry VportID `json:"entry,omitempty"`
	// Tells: the source of what is delivered is ChainMAC.
	Tells bool `json:"tells,omitempty"`
	// Mirror: everything it emits, but from its own address, is dropped.
	Mirror bool `json:"mirror,omitempty"`
	// Emit is the table for packets it emits without an entry (rewrite and
	// originate only); 0: those are dropped as spoofed.
	Emit TableID `json:"emit,omitempty"`
	// MaxFlows caps the entries that its Tenant's instances cause on this node;
	// packets that would cause more are dropped.
	MaxFlows int `json:"maxFlows,omitempty"`
	// RateIn limits what the vport sends, RateOut what it is sent: bits of IP in a
	// second, after a rest RateBurst more at once; 0: no limit. Packets above are
	// dropped with reason rate. Of a bridged instance each side has its own.
	RateIn  uint64 `json:"rateIn,omitempty"`
	RateOut uint64 `json:"rateOut,omitempty"`
}

// MinRate and MaxRate bound limits of vports, in bit/s.
const (
	MinRate = 8_000
	MaxRate = 1_000_000_000_000
)

// RateLimit is what each direction of an instance's vports is limited to in bit/s; 0: it is not,
// as above MaxRate.
func RateLimit(network Rate) uint64 {
	if network <= 0 || network > MaxRate {
		return 0
	}
	return max(uint64(network), MinRate)
}

// RateBurst is how many bytes may pass at once at a rate in bit/s, after a rest: what the
// rate gives in 50 ms, and four of the largest packets that kernels pass on whole. Where
// a queue keeps the rate, so many may wait in it.
func RateBurst(rate uint64) uint64 { return max(rate/8/20, 256<<10) }

// Table is a list of rules in order of precedence; the first match decides.
type Table struct {
	ID    TableID `json:"id"`
	Rules []Rule  `json:"rules,omitempty"`
	// Miss is done when no rule matches. At an edge, exit without any element
	// passed means: leave the packet to the kernel, write nothing, count nothing.
	Miss Action `json:"miss"`
}

// Rule is a match and what to do.
type Rule struct {
	Match  Match  `json:"match"`
	Action Action `json:"action"`
	// Path is the chain's path the rule starts (in classifiers and emit
	// tables) or continues; it decides adoption and accounting.
	Path PathID `json:"path,omitempty"`
	// Reverse: packets matching here run against the chain's from→to.
	Reverse bool `json:"reverse,omitempty"`
}

// Match is a conjunction; an empty list or zero matches everything, within
// Family.
type Match struct {
	// Family 4 or 6 limits the rule to one IP version; 0: both. Src and Dst
	// hold prefixes of both versions; for a version of which a non-empty list
	// has no prefix the rule does not match.
	Family   uint8          `json:"family,omitempty"`
	Src      []netip.Prefix `json:"src,omitempty"`
	Dst      []netip.Prefix `json:"dst,omitempty"`
	Protocol []uint8        `json:"protocol,omitempty"` // IP protocol numbers; icmp is 1 and 58
	SrcPorts []PortRange    `json:"srcPorts,omitempty"` // TCP, UDP, SCTP, UDP-Lite only
	DstPorts []PortRange    `json:"dstPorts,omitempty"`
}

// ActionKind is what to do with a packet.
type ActionKind string

// The actions.
const (
	ActionGroup ActionKind = "group" // choose a member of Group (mirror groups: copy, then go on with its Then)
	ActionTable ActionKind = "table" // go on with Table
	ActionExit  ActionKind = "exit"  // return to the edge vport where the flow entered and leave there
	// ActionRoute: leave by this node's routes, behind an element (exit: last). In a
	// classifier it is as ActionExit.
	ActionRoute ActionKind = "route"
	// ActionDeliver: leave at the edge Vport instead of the one where the flow entered,
	// behind an element. It is the edge of the node whose machine the packet is for, here
	// or on another node; answers come in there. In a classifier, and for what is bypassed
	// at an edge, it is as ActionExit.
	ActionDeliver ActionKind = "deliver"
	ActionDrop    ActionKind = "drop" // with Reason
)

// Action is one thing to do.
type Action struct {
	Kind   ActionKind `json:"kind"`
	Group  GroupID    `json:"group,omitempty"`
	Table  TableID    `json:"table,omitempty"`
	Vport  VportID    `json:"vport,omitempty"` // of ActionDeliver
	Reason DropReason `json:"reason,omitempty"`
}

// Group chooses among the instances of one element, in one direction.
type Group struct {
	ID      GroupID  `json:"id"`
	Path    PathID   `json:"path"`
	Reverse bool     `json:"reverse,omitempty"`
	Mode    Mode     `json:"mode"`
	Members []Member `json:"members,omitempty"`
	// Then is the table walked when the packet leaves the member in this
	// direction; Back is the one for the other direction (answers, and the
	// mirrors that replies must meet).
	Then TableID `json:"then"`
	Back TableID `json:"back"`
	Lost Lost    `json:"lost"`
	None None    `json:"none"`
	// Together says which flows meet one member; "": each flow is chosen for by itself.
	// A new flow meets the member that others of its part have, unless it is closed: also
	// a member that drains or has no weight. The group of the other direction counts as
	// the same. Mirrors, and functions of this node, are chosen by the addresses
	// alone. Where nothing is known of others, members' weights decide: rows must be none.
	Together Together `json:"together,omitempty"`
	// Weights are the shares of new flows by where they come from, a row for
	// each instance of the element before; whoever has none is served by the
	// members' own weights. Rows decide for the first packet that meets the
	// element, from whichever direction it comes, and entries lead the other
	// direction. What is chosen anew because an instance was lost goes by the
	// members' weights, on which all nodes and directions agree.
	Weights []WeightRow `json:"weights,omitempty"`
}

// WeightRow is a row of a group's matrix of weights.
type WeightRow struct {
	// From is the Key of the instance that a flow comes from; 0: from the edge.
	From uint32 `json:"from"`
	// Weights are those of Members, in their order; 0 gets none.
	Weights []uint32 `json:"weights"`
}

// Member is one instance of a group.
type Member struct {
	// Vport to deliver to in this direction (a bridged instance has another
	// one for the other direction).
	Vport VportID `json:"vport"`
	// Key is the instance's, the same in both directions: the hash uses it.
	Key uint32 `json:"key"`
	// Weight is the share of new flows; 0 gets none.
	Weight uint32 `json:"weight"`
}

// Path is what the data path must know about one chain.
type Path struct {
	ID     PathID `json:"id"`
	Chain  string `json:"chain"` // tenant/name, for display
	Tenant string `json:"tenant"`
	// MTU is the largest IP packet, in bytes, that all hops of the path carry;
	// TCP's MSS is clamped to it, larger packets get an ICMP error. 0: no limit
	// below the uplinks'.
	MTU int `json:"mtu,omitempty"`
	// Began is when steering began; TCP without SYN and without entry is
	// passed by for Adopt after it, or reset if Cut. It still meets what the chain of the
	// other tier before this one has chosen; where that is nothing, its entry is a pass entry.
	Began time.Time `json:"began,omitzero"`
	Adopt Duration  `json:"adopt,omitempty"`
	// AdoptFor is what was left of Adopt as the plan was made, by the server's clock. A
	// node counts it from when it hears of it, by a clock that nobody sets, and no later
	// word makes it longer: clocks of machines differ.
	AdoptFor Duration `json:"adoptFor,omitempty"`
	Cut      bool     `json:"cut,omitempty"`
	// Strict: none of the chain's strictest element is drop; what cannot be
	// classified to the port is then dropped, else passed by.
	Strict bool `json:"strict,omitempty"`
	// Forward: only the forward direction is steered, and what answers flows that an
	// instance or a function began or changed: nobody else could take it.
	Forward bool `json:"forward,omitempty"`
	// Idle is how long flows may rest; zero fields mean DefaultIdle's.
	Idle Idle `json:"idle,omitzero"`
	// MaxFlows caps the established entries of Tenant on this node, the largest
	// of its paths'; 0: an even share of the table. Flows above it are steered
	// too, but not protected from a flood of new ones.
	MaxFlows int `json:"maxFlows,omitempty"`
	// Side of the chain's pair that stands here, for a planner that finds the path on a node
	// and nowhere else; "": it has none.
	Side string `json:"side,omitempty"`
	// Elements are the deployments passed, tenant/name, for display and for a
	// planner that finds the path on a node and nowhere else.
	Elements []string `json:"elements,omitempty"`
	// Ended is set once no rule starts the path any more: it serves the flows
	// that it has, which nodes count in NodeReport.Paths, and goes after them. A
	// flow of which a packet comes by another path has left it, both its directions.
	Ended time.Time `json:"ended,omitzero"`
	// Closed: at the edge nothing enters the path any more. Entries of it there are
	// forgotten: their flows go the ordinary way or begin anew, by another path, also at
	// functions and instances that know them by the closed one. What other nodes still
	// send by it goes on, and leaves nothing at the edge.
	Closed bool `json:"closed,omitempty"`
	// Until is when an ended path goes even if flows remain: with the last of the
	// instances that go with it. It is zero while all its elements stay.
	Until time.Time `json:"until,omitzero"`
}

// Datapath is a driver of the packet path. datapathtest is its exam.
type Datapath interface {
	// Apply makes the configuration so, replacing the one before as a whole.
	// Idempotent. Nothing that stays is touched: a flow that need not move
	// loses no packet. On error the old configuration stays in force. The
	// driver keeps no pointer into c.
	Apply(ctx context.Context, c *DatapathConfig) error
	// Counters reads all hop counters.
	Counters(ctx context.Context) (*Counters, error)
	// Flows calls yield for each flow entry that f selects, in no order, until
	// it returns false.
	Flows(ctx context.Context, f FlowFilter, yield func(FlowEntry) bool) error
	// Capture writes packets seen at a vport to w as pcapng, until ctx ends or
	// s.Count is reached.
	Capture(ctx context.Context, s CaptureSpec, w io.Writer) error
	// Watch counts the packets of single flows at each hop of this node, from
	// the first call that names a tuple until WatchSpec.For after the last one,
	// and reads what was counted. Costs nothing while nobody watches.
	Watch(ctx context.Context, s WatchSpec) ([]FlowCounters, error)
	// Close lets go of everything and leaves the packet path running.
	Close() error
	// Remove takes the whole data path off this machine, also one left by
	// another process; traffic is ordinary again.
	Remove(ctx context.Context) error
}

// DropReason says why a packet was dropped; one list from C to the CLI.
type DropReason string

// DropReasons, in the order of their numbers in bpf/abi.h (from 1).
var DropReasons = []DropReason{
	DropNoInstance, DropClosed, DropSpoofed, DropQuota, DropTooBig, DropTTL, DropNoRoute, DropNoNeighbour,
	DropMalformed, DropUnclassified, DropTunnelSource, DropTunnelSecret, DropUnknownVport, DropNoTable,
	DropMirror, DropReset, DropNATPorts, DropLoop, DropPolicy, DropFunction,
	DropNewFlows, DropRate, DropNoStation, DropSourceRoute,
}

// The drop reasons.
const (
	DropNoInstance   DropReason = "no-instance"   // no ready instance, none: drop
	DropClosed       DropReason = "closed"        // the flow's instance is gone and the flow cannot move
	DropSpoofed      DropReason = "spoofed"       // emitted by an instance that may not, or from outside with the node's own address
	DropQuota        DropReason = "quota"         // the tenant's flow entries are used up
	DropTooBig       DropReason = "too-big"       // longer than the path's MTU; an ICMP error was sent or rate-limited
	DropTTL          DropReason = "ttl"           // hop limit ran out
	DropNoRoute      DropReason = "no-route"      // the FIB has none
	DropNoNeighbour  DropReason = "no-neighbour"  // next hop does not resolve
	DropMalformed    DropReason = "malformed"     // headers lie about lengths
	DropUnclassified DropReason = "unclassified"  // ports cannot be read and the chain is strict
	DropTunnelSource DropReason = "tunnel-source" // tunnel packet from no known node, or not on the underlay
	DropTunnelSecret DropReason = "tunnel-secret" // tunnel packet without the pair's secret
	DropUnknownVport DropReason = "unknown-vport" // tunnel packet for a vport this node has not
	DropNoTable      DropReason = "no-table"      // a table or group is missing: plan out of step
	DropMirror       DropReason = "mirror"        // emitted by a mirror; as it should be
	DropReset        DropReason = "reset"         // answered with a TCP RST
	DropNATPorts     DropReason = "nat-ports"     // no free port for translation
	DropLoop         DropReason = "loop"          // too many steps
	DropPolicy       DropReason = "policy"        // a rule says so
	DropFunction     DropReason = "function"      // an ebpf function's verdict; the function counts its own reasons
	DropNewFlows     DropReason = "new-flows"     // the tenant begins more flows a second than it may
	DropNoStation    DropReason = "no-station"    // it came in at a bridge, and where its destination lies is not known
	DropSourceRoute  DropReason = "source-route"  // it says by itself which routers it is to pass
	DropRate         DropReason = "rate"          // the instance sends, or is sent, more a second than it may
)

// Counters are the hop counters of one node since the data path was installed.
// Packets are wire segments (gso_segs), bytes are IP bytes on the wire.
type Counters struct {
	Vports map[VportID]VportCounters `json:"vports"`
	Paths  map[PathID]PathCounters   `json:"paths,omitempty"`
	// Functions are the ebpf functions', by their vports.
	Functions map[VportID]FunctionCounters `json:"functions,omitempty"`
	// Uplinks by name.
	Uplinks map[string]UplinkCounters `json:"uplinks,omitempty"`
	// Flows is the number of flow entries, Learned of all ever written. What is said of
	// entries is as they were counted last, seconds ago; millions are counted all the time.
	Flows   uint64 `json:"flows"`
	Learned uint64 `json:"learned"`
	// Tenants are what tenants hold of the flow table, by name.
	Tenants map[string]TenantFlows `json:"tenants,omitempty"`
	// Untouched encapsulations seen: GRE, IP-in-IP, MPLS, PPPoE….
	Encapsulated uint64 `json:"encapsulated,omitempty"`
}

// TenantFlows is what one tenant holds of a node's flow table.
type TenantFlows struct {
	// Established entries: of flows that are known to live, by both directions
	// or for a while; they are never evicted. Limit is the most there may be.
	Established uint64 `json:"established"`
	Limit       uint64 `json:"limit"`
	// Pending entries, as counted last: of flows that begin. Each tenant has a small table of
	// them, in which the least recently used makes room.
	Pending uint64 `json:"pending"`
	// Caused by the tenant's instances, of those established.
	Caused uint64 `json:"caused,omitempty"`
	// Deferred packets: of flows that stayed pending because of Limit.
	Deferred uint64 `json:"deferred,omitempty"`
	// NewLimit is how many flows may begin in a second; 0: no limit. Refused packets
	// would have begun more.
	NewLimit uint64 `json:"newLimit,omitempty"`
	Refused  uint64 `json:"refused,omitempty"`
}

// Tally counts packets and bytes.
type Tally struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// VportCounters are one vport's. In and Out are seen from the data path: In
// came from the vport, Out was handed to it; what the data path answers by itself
// (ICMP errors, resets) is not in Out.
type VportCounters struct {
	In      Tally                 `json:"in"`
	Out     Tally                 `json:"out"`
	Dropped map[DropReason]uint64 `json:"dropped,omitempty"` // packets that came from the vport
	// Flows, as counted last, lead to it or come from it by this node's entries, both
	// directions of a flow being one; so on each node those that it knows of.
	Flows uint64 `json:"flows,omitempty"`
	// Device is what the kernel counted at a local instance's device, since the
	// device was made: what Out was handed and the device refused is not in the
	// instance.
	Device *DeviceDrops `json:"device,omitempty"`
	// NotKept is how much of Out came while a local instance slept or woke and was lost: more
	// came than is kept, or it did not start. Since the node's agent began.
	NotKept uint64 `json:"notKept,omitempty"`
}

// DeviceDrops are packets that a device lost by itself, seen from the node's end.
type DeviceDrops struct {
	Out uint64 `json:"out"` // handed to it, dropped or failed
	In  uint64 `json:"in"`  // came from the instance, dropped or failed before the data path
}

// UplinkCounters are the fast path's at one uplink, in packets.
type UplinkCounters struct {
	// Fast: it is on the device. Why says in a sentence why it is not, where it
	// could be wanted.
	Fast bool   `json:"fast"`
	Why  string `json:"why,omitempty"`
	// Carried were finished before the kernel made socket buffers of them,
	// PassedOn went on to the ordinary path. The vports' counters have both.
	Carried  uint64 `json:"carried,omitempty"`
	PassedOn uint64 `json:"passedOn,omitempty"`
	// Ran are those of Carried that ebpf functions were given on the way.
	Ran uint64 `json:"ran,omitempty"`
}

// PathCounters are one chain's on this node's edge.
type PathCounters struct {
	Steered Tally `json:"steered"` // entered the chain here
	Passed  Tally `json:"passed"`  // selected, but passed by (adoption, bypass)
	// Begun are the flows that entered the chain here for the first time, or again after
	// a rest in which their entries were forgotten.
	Begun uint64 `json:"begun"`
}

// FunctionCounters are one ebpf function's: what became of the packets that it
// was given. Its In and Out stand with its vport.
type FunctionCounters struct {
	Passed   Tally `json:"passed"`   // verdict next
	Dropped  Tally `json:"dropped"`  // verdict drop, or none that is known
	Answered Tally `json:"answered"` // dropped with an answer: TCP RST, ICMP unreachable
	Bypassed Tally `json:"bypassed"` // not given to it: it was out of service, and none: bypass
	// Reasons counts dropped and answered packets by the function's own codes.
	Reasons map[uint8]uint64 `json:"reasons,omitempty"`
	// Samples packets took Time in all, in nanoseconds.
	Samples uint64 `json:"samples"`
	Time    uint64 `json:"time"`
	// Linked: it is part of the program in force. Error says why not.
	Linked bool   `json:"linked"`
	Error  string `json:"error,omitempty"`
}

// At is what was counted for a vport, and was dropped there: what ebpf functions drop of
// packets that come from a vport stands at the functions, not at that vport.
func (c *Counters) At(v VportID) (VportCounters, bool) {
	n, ok := c.Vports[v]
	n.Dropped = maps.Clone(n.Dropped)
	delete(n.Dropped, DropFunction)
	if f := c.Functions[v]; f.Dropped.Packets+f.Answered.Packets > 0 {
		if n.Dropped == nil {
			n.Dropped = map[DropReason]uint64{}
		}
		n.Dropped[DropFunction] = f.Dropped.Packets + f.Answered.Packets
	}
	return n, ok
}

// Tuple is the 5-tuple of a packet. For ICMP echo the identifier stands in both
// ports. Addresses are of one family and never IPv4-mapped.
type Tuple struct {
	Protocol uint8      `json:"protocol"`
	Src      netip.Addr `json:"src"`
	Dst      netip.Addr `json:"dst"`
	SrcPort  uint16     `json:"srcPort"`
	DstPort  uint16     `json:"dstPort"`
}

// IsZero reports whether nothing is said of a packet.
func (t Tuple) IsZero() bool { return t == Tuple{} }

// Reverse is the tuple of the answer.
func (t Tuple) Reverse() Tuple {
	return Tuple{Protocol: t.Protocol, Src: t.Dst, Dst: t.Src, SrcPort: t.DstPort, DstPort: t.SrcPort}
}

// NextKind says what a flow entry leads to.
type NextKind string

// What flow entries lead to.
const (
	NextVport   NextKind = "vport"   // Next
	NextExit    NextKind = "exit"    // out at this node's edge
	NextPass    NextKind = "pass"    // the kernel's ordinary forwarding (adopted connections)
	NextPending NextKind = "pending" // context only: nothing came out of the instance yet
	NextDrop    NextKind = "drop"
)

// FlowEntry is what the data path learnt: (vport, 5-tuple) → what comes next.
type FlowEntry struct {
	Vport   VportID   `json:"vport"` // where the packet comes from
	Tuple   Tuple     `json:"tuple"`
	Kind    NextKind  `json:"kind"`
	Next    VportID   `json:"next,omitempty"`
	Mirrors []VportID `json:"mirrors,omitempty"`
	// Functions are run, in order, before the packet goes to Next.
	Functions []VportID `json:"functions,omitempty"`
	Entry     VportID   `json:"entry,omitempty"` // edge vport where the flow entered
	Path      PathID    `json:"path,omitempty"`
	Reverse   bool      `json:"reverse,omitempty"`
	Packets   uint64    `json:"packets"`
	Bytes     uint64    `json:"bytes"`
	Idle      Duration  `json:"idle"`
	// Emitted: an instance began the flow with these addresses: no packet of them had
	// come to the instance.
	Emitted bool `json:"emitted,omitempty"`
	// Learned for the answers to a flow's packets; others are from a packet's own choice.
	Learned bool `json:"learned,omitempty"`
	// Adopted: led past a chain that is younger than the connection.
	Adopted bool `json:"adopted,omitempty"`
}

// FlowFilter selects flow entries; zero fields select all.
type FlowFilter struct {
	Vport VportID `json:"vport,omitempty"` // entries that come from or lead to it
	Tuple *Tuple  `json:"tuple,omitempty"` // zero parts are wild; the reverse matches too
	Path  PathID  `json:"path,omitempty"`
	// Bare entries are enough: a driver may leave out all but Vport, Kind, Next, Functions,
	// Path and Reverse. That is for who counts many.
	Bare bool `json:"bare,omitempty"`
}

// Matches reports whether e is selected.
func (f FlowFilter) Matches(e FlowEntry) bool {
	if f.Vport != 0 && e.Vport != f.Vport && e.Next != f.Vport && !slices.Contains(e.Functions, f.Vport) {
		return false
	}
	if f.Path != 0 && e.Path != f.Path {
		return false
	}
	return f.Tuple == nil || f.Tuple.covers(e.Tuple) || f.Tuple.covers(e.Tuple.Reverse())
}

func (t Tuple) covers(o Tuple) bool {
	return (t.Protocol == 0 || t.Protocol == o.Protocol) &&
		(!t.Src.IsValid() || t.Src == o.Src) && (!t.Dst.IsValid() || t.Dst == o.Dst) &&
		(t.SrcPort == 0 || t.SrcPort == o.SrcPort) && (t.DstPort == 0 || t.DstPort == o.DstPort)
}

// CapturedOut ends the name of the second interface of a capture, which has the
// packets that were handed to the vport; the first has those that came from it.
const CapturedOut = " out"

// CaptureSpec says what to capture.
type CaptureSpec struct {
	Vport  VportID `json:"vport"` // an instance's vport, or the edge
	Count  int     `json:"count,omitempty"`
	Length int     `json:"length,omitempty"` // bytes kept of each packet; 0: all
	// Filter in the language of pcap-filter(7) is not understood; a tuple is.
	Tuple *Tuple `json:"tuple,omitempty"`
}

// FunctionReader is a Datapath that reads the counters of its ebpf functions
// without those of everything else.
type FunctionReader interface {
	Functions(ctx context.Context) (map[VportID]FunctionCounters, error)
}

// RefusalReader is a Datapath that reads how many packets tenants were refused, by
// their names (TenantFlows.Refused), without everything else.
type RefusalReader interface {
	Refused(ctx context.Context) (map[string]uint64, error)
}
