package ebpf

import (
	"net/netip"

	"github.com/onpath/onpath"
)

// The layouts and numbers of bpf/abi.h. A test compares every size with what
// the compiled object says.

const (
	maxVports             = onpath.MaxVports + 1 // slot 0 is none
	maxPaths              = onpath.MaxPaths + 1
	maxPeers              = onpath.MaxPeers + 1
	maxTenants            = 4096
	maxMembers            = onpath.MaxMembers
	maxTables             = onpath.MaxTables + 1
	maxRules              = onpath.MaxTableCells
	maxForests            = 8192
	maxMirrors            = onpath.MaxMirrors
	maxNAT                = onpath.MaxNAT
	maxRouters            = 4
	maxUplinks            = 256
	nearLines             = 1 << 15
	maxLines              = 1 << 21 // of one CPU
	maxHops               = 4096
	laneMultiplier uint64 = 0x9e3779b97f4a7c15
	maxFunctions          = 128 // of functions
	maxDropReasons        = 32  // with 0, which is none: MAX_DROP_REASONS
)

// next kinds
const (
	nextNone uint8 = iota
	nextVport
	nextExit
	nextPass
	nextPending
	nextDrop
)

// oneWayMany is after how many packets a flow of one direction is established.
const oneWayMany = 32

// flow flags
const (
	flowReverse uint8 = 1 << iota
	flowFIN
	flowRST
	flowEmitted
	flowAtEdge
	flowLearned
)

// flow kind and group, beside kind, element and direction
const (
	kindMask uint8 = 0x0f
	edgeHere uint8 = 0x10
	chosen   uint8 = 0x40
	reopened uint8 = 0x80
)

// seenMask: entries are stamped in seconds modulo 2^24.
const seenMask = 1<<24 - 1

// vport kinds, states and flags
const (
	vportInstance uint8 = 1
	vportRemote   uint8 = 2
	vportEdge     uint8 = 3
	vportFunction uint8 = 4

	stateClosed   uint8 = 0
	stateUp       uint8 = 1
	stateDraining uint8 = 2

	flagMirror   uint16 = 2
	flagRoutes   uint16 = 4
	flagChainTag uint16 = 0x20
	flagPeer     uint16 = 8
	flagAway     uint16 = 16
	flagAsleep   uint16 = 0x40
	flagWaking   uint16 = 0x80
)

// port kinds and attachments
const (
	portUplink   uint8 = 1
	portInstance uint8 = 2

	attachRouter uint8 = 1
	attachBridge uint8 = 2
	attachArm    uint8 = 3
	attachTap    uint8 = 4
	attachHost   uint8 = 5

	portWire    uint16 = 1
	portCarries uint16 = 2
	portFrags   uint16 = 4
)

// kinds of local addresses
const (
	localAddress   uint32 = 1
	localBroadcast uint32 = 2
)

// actions
const (
	actGroup uint8 = 1 + iota
	actTable
	actExit
	actRoute
	actDrop
)

// rule, group and path flags
const (
	groupReverse uint16 = 1
	groupMirror  uint16 = 2
	groupReset   uint16 = 4
	groupBypass  uint16 = 8
	groupInline  uint16 = 16
	groupRows    uint16 = 32
	groupSource  uint16 = 64
	groupHosts   uint16 = 128

	rowKey = 16 // in weights: where the member's key stands

	pathStrict  uint32 = 1
	pathCut     uint32 = 2
	pathForward uint32 = 4
	pathClosed  uint32 = 8
	pathEnded   uint32 = 16
)

// addr16 is an address as the programs see it: IPv4 mapped (RFC 4291 §2.5.5.2).
type addr16 [16]byte

type flowKey struct {
	Scope [3]byte // vport
	Proto uint8
	Src   addr16
	Dst   addr16
	SPort [2]byte // network order
	DPort [2]byte
}

type flowValue struct {
	Next    [3]byte // vport
	Kind    uint8   // and edgeHere, and that next has answered
	Slot    uint16  // low 13 bits
	Path    uint16  // low 12 bits: slot
	Context [3]byte // group
	Flags   uint8
	Entry   uint32 // with flowAtEdge TCP's last acknowledgement number
	Seen    [3]byte
	Group   uint8 // chosen, and the low 6 bits
	Mirrors [maxMirrors]uint16
	Packets uint64 // low 48 bits
	Bytes   uint64 // low 56 bits
	// Functions are the slots of the ebpf functions to run.
	Functions [8]uint8
}

type natValue struct {
	Addr addr16
	Port [2]byte
	In   uint8
	// State is what was seen of this half's packets.
	State uint8
	Seen  uint32
}

type vportValue struct {
	ID      uint32
	Kind    uint8
	State   uint8
	Flags   uint16
	Ifindex uint32
	Other   uint32
	Entry   uint32
	Emit    uint32
	Peer    uint16
	Tenant  uint16
	Key     uint32
	DMAC    [6]byte
	SMAC    [6]byte
}

type portValue struct {
	Vport    uint32
	Slot     uint16
	Kind     uint8
	Attach   uint8
	Opposite uint32
	Addr4    [4]byte
	Addr6    addr16
	MAC      [6]byte
	Flags    uint16
}

type fastValue struct {
	Epoch uint32
	Lease uint32 // seconds, monotonic, 24 bits
}

type uplinkValue struct {
	Ifindex    uint32
	Edge       uint32
	EdgeSlot   uint32
	TunnelPort uint32
	MAC        [6]byte
	Pad        uint16
	Fast       fastValue
}

type uplinkCounters struct {
	PassedOn uint64
	Ran      uint64
	Tick     uint64
	Clock    uint64
	Seconds  uint32
	Pad      uint32
}

type hopValue struct {
	Ifindex uint32
	DMAC    [6]byte
	SMAC    [6]byte
	MTU     uint16
	Flags   uint16
	Pad     uint32
	Via     addr16
}

type hopSlot struct {
	Hop  hopValue
	Used uint32 // seconds, monotonic, 24 bits
	Pad  uint32
}

type ownKey struct {
	Vport  uint32
	Addr   addr16
	Family uint8
	Pad    [3]uint8
}

type addrKey struct {
	Addr   addr16
	Family uint32
}

type peerValue struct {
	Addr   addr16
	Family uint32
	Secret uint32
	Known  uint32
	MTU    uint32
}

// peerInside in a peerRef's Flags: what comes from the address is taken inside WireGuard alone.
const peerInside = 1

type peerRef struct {
	Secret uint32
	Slot   uint16
	Flags  uint16
}

// tableValue says where a table is.
type tableValue struct {
	Where   uint64 // written in one go
	ID      uint32
	Planted uint32   // cells of the forest whose slot has this row's number
	Sum     [32]byte // of the table; 0 while it changes
}

// smallTable is the most rules that a row of cells has; the programs read no
// more. Tests make forests of all tables by a smaller one.
var smallTable = onpath.SmallTable

// Bits of tableValue.Where.
const (
	whereUsed   uint64 = 1 << 63
	whereForest uint64 = 1 << 62
	whereCount         = 32
)

// maxCells is how many cells all forests together may have: 512 MiB.
const maxCells = 1 << 23

type memberValue struct {
	Vport  uint32
	Key    uint32
	Weight uint32
	Slot   uint16
	Pad    uint16
}

type groupValue struct {
	ID       uint32
	Path     uint32
	PathSlot uint16
	Flags    uint16
	Then     uint32
	Back     uint32
	Count    uint32
	Members  [maxMembers]memberValue
}

type weightsKey struct {
	Group uint32
	From  uint32
}

type weightsValue [maxMembers]uint32

type affinityKey struct {
	Hash  uint64
	Group uint32
	Pad   uint32
}

type affinityValue struct {
	Member uint32 // key
	Seen   uint32
}

type pathValue struct {
	ID         uint32
	MTU        uint32
	AdoptUntil uint64 // ns, monotonic
	Flags      uint32
	Tenant     uint32 // slot
}

type natPrefix struct {
	Addr   addr16
	Mask   addr16
	Family uint32
	Pad    uint32
}

type nodeValue struct {
	Edge            uint32
	EdgeTable       uint32
	EdgeSlot        uint32
	TunnelIfindex   uint32
	TunnelPort      uint32
	UnderlayIfindex uint32
	UplinkIfindex   uint32
	Capture         uint32
	CaptureLength   uint32
	NATCount        uint32
	UnderlayFamily  uint32
	HostIfindex     uint32
	NAT             [maxNAT]natPrefix
	Bridged         uint32
	Watch           uint32
	Routers         [maxRouters]uint32
	Gateways        [2]uint32
	Generation      uint32
	Since           uint32
}

// stages: the programs that the first one goes on with.
const (
	stageFunctions uint32 = iota
	stageResume
	stagePunt
)

// Third byte of the source of a frame at the punt port, for signalling.
const (
	puntSignalling = 0x90
	puntAsleep     = 0x91
)

type puntValue struct {
	Ifindex  uint32
	NSLPID   uint32
	Until    uint32 // seconds
	Pad      uint32
	Interval uint64 // ns
	Burst    uint64 // ns
}

type puntState struct {
	Due, Taken, Refused uint64
}

// fast_stages: the same at XDP.
const (
	fastStageFunctions uint32 = iota
)

// Parts of an entry's functions.
const (
	inlineSlot   uint8 = 0x7f
	inlineBypass uint8 = 0x80
)

type functionValue struct {
	Vport     uint32
	Slot      uint16
	Open      uint8
	Redirects uint8
	Needs     uint16
	Element   uint8 // from 1; 0: not the same in all chains
	Shard     uint8 // the dispatcher that it is linked in
	Tenant    uint16
	Pad       uint16
}

type functionCounters struct {
	Calls                          uint64
	PassedPackets, PassedBytes     uint64
	DroppedPackets, DroppedBytes   uint64
	AnsweredPackets, AnsweredBytes uint64
	BypassedPackets, BypassedBytes uint64
	RefusedPackets                 uint64
	Samples, Time                  uint64
	Reasons                        [16]uint64
}

const maxWatches = 16

// What watchKey.What counts; from watchDrop on drop reasons.
const (
	watchIn = iota
	watchOut
	watchDrop
)

type watchValue struct {
	Src   addr16
	Dst   addr16
	SPort [2]byte // network order
	DPort [2]byte
	Proto uint8
	Used  uint8
	Pad   uint16
}

type watchKey struct {
	Watch uint32 // slot
	Vport uint32
	What  uint32
}

type watchCounters struct {
	Packets, Bytes uint64
}

type tenantValue struct {
	Max      uint64
	Cap      uint64
	Deferred uint64
	Interval uint64 // 2^-admissionShift ns
	Burst    uint64
	// By which its flows are translated; tenant 0's are for all.
	PortsFrom, Ports uint32
}

// admissionShift: the pace of new flows is counted in sixteenths of a nanosecond.
const admissionShift = 4

type admissionValue struct {
	Due   uint64 // 2^-admissionShift ns, monotonic
	Spare int64
	Pad   [6]uint64
}

type tenantCounters struct {
	Refused uint64
}

type quotaValue struct {
	Flows       uint64
	Established uint64
}

type vportCounters struct {
	InPackets, InBytes   uint64
	OutPackets, OutBytes uint64
	Dropped              [maxDropReasons]uint64
}

type pathCounters struct {
	SteeredPackets, SteeredBytes uint64
	PassedPackets, PassedBytes   uint64
	Begun                        uint64
}

type totalCounters struct {
	Learned      uint64
	Encapsulated uint64
}

type capturedHead struct {
	At     uint64 // ns, monotonic
	Vport  uint32
	Length uint32
	Kept   uint32
	Out    uint32
}

const family4 = 4

func family(a netip.Addr) uint8 {
	if a.Is4() {
		return 4
	}
	return 6
}

// wide is a in the form of the flow keys.
func wide(a netip.Addr) addr16 { return a.As16() }

func narrow(a addr16) netip.Addr { return netip.AddrFrom16(a).Unmap() }

// three is the low 24 bits of v, as the programs' bit fields lie in memory.
func three[T ~uint32](v T) [3]byte { return [3]byte{byte(v), byte(v >> 8), byte(v >> 16)} }

func unthree(b [3]byte) uint32 { return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 }

// masked is a prefix and its mask in the form of the flow keys.
func masked(p netip.Prefix) (addr, mask addr16) {
	bits := p.Bits()
	if p.Addr().Is4() {
		bits += 96
	}
	for i := range bits {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return wide(p.Masked().Addr()), mask
}
