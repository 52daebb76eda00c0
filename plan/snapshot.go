package plan

import (
	"net/netip"
	"time"

	"github.com/onpath/onpath"
)

// Snapshot is all that planning depends on. Make changes nothing of it.
type Snapshot struct {
	Now time.Time
	// Started is when this server began to listen for nodes: a node that has
	// not been heard of counts as away after the usual time from then on.
	Started time.Time
	// Objects are the resources as stored, instances included.
	Objects map[onpath.Key]onpath.Object
	// States holds the nodes that have been heard of since Started, by name.
	States map[string]*NodeState
	// Waiting are the nodes that the operator has not accepted, by name; Objects has none of them.
	Waiting []*onpath.Node
	// Wanted are numbers of instances in each cloudlet, by deployment, that hold instead
	// of those in the specifications. A chain's short form is named by
	// onpath.ShortDeployment.
	Wanted map[onpath.Key]int
	// Filling are instances that get more new flows than their share, as long as they have
	// fewer live ones: of chains with Scaling, which says how many more.
	Filling map[onpath.Key]bool
	// Reservations are those that run or soon will, of all tenants.
	Reservations map[onpath.Key]*Reserved
	// Reserved is the most that tenants have reserved at an instant from now on, as far as it
	// is needed: it counts against their quotas.
	Reserved map[string]onpath.Resources
	// Promised is the most that each node has promised to reservations from now on:
	// instances outside of reservations run beside it.
	Promised map[string]onpath.Resources
	// Demand is what was measured lately, by chain or deployment. It is not stored: a
	// restarted server begins without any.
	Demand map[onpath.Key]Demand
	// IDs are reserved for this planner and used from the front.
	IDs      IDs
	Settings Settings

	// changed are the objects of a change that is being checked.
	changed map[onpath.Key]bool
}

// NodeState is what is known of a node that has connected.
type NodeState struct {
	// Report is its last one; Seen is when it came.
	Report *onpath.NodeReport
	Seen   time.Time
	// From is the address from which its session came; zero: it is on the server's machine.
	From netip.Addr
	// Acked is the plan in force on the node, nil if none.
	Acked *onpath.NodePlan
	// Sent are the plans pushed since, oldest first: each may be in force, or
	// may come to be.
	Sent []*onpath.NodePlan
}

// Demand is the last measurement of one object.
type Demand struct {
	At     time.Time     // when Window ended
	Window time.Duration // that the values are the means of
	// Values by metric, each in the unit that its name says: newFlowsPerSecond,
	// bitsPerSecond, cpuMillis.
	Values map[string]float64
}

// latest is the newest plan the node may follow.
func (s *NodeState) latest() *onpath.NodePlan {
	if s == nil {
		return nil
	}
	if n := len(s.Sent); n > 0 {
		return s.Sent[n-1]
	}
	return s.Acked
}

// IDs are numbers that nothing has used before.
type IDs struct {
	Vports    []onpath.VportID
	Paths     []onpath.PathID
	Addresses []uint64 // numbers from which own addresses are made
}

// Settings are the operator's choices for the whole installation.
type Settings struct {
	// PrivatePools give instances their private addresses: at most one prefix
	// of each IP version. Nothing else in the cloudlets may use them.
	PrivatePools []netip.Prefix
	// PublicPools are for functions with addresses: pool, likewise.
	PublicPools []netip.Prefix
	// Store is the identity of the store, for the plans that are made from it.
	Store string
	// Secret is the key from which the secrets of node pairs are made.
	Secret []byte
	// Grace is how long a node may be away before its instances are replaced
	// elsewhere; 0 means DefaultGrace.
	Grace time.Duration
}

// DefaultGrace lets an agent or a small machine restart without moving anything.
const DefaultGrace = 30 * time.Second

// DefaultPrivatePools are used where Settings.PrivatePools is empty: a part of
// the shared address space (RFC 6598) and a unique local prefix (RFC 4193).
var DefaultPrivatePools = []netip.Prefix{
	netip.MustParsePrefix("100.100.0.0/16"),
	netip.MustParsePrefix("fd6f:6e70:6174:6800::/64"),
}

func (s Settings) withDefaults() Settings {
	if s.Grace == 0 {
		s.Grace = DefaultGrace
	}
	if len(s.PrivatePools) == 0 {
		s.PrivatePools = DefaultPrivatePools
	}
	return s
}

// Result is what Make decides.
type Result struct {
	// Plans are the plans of all nodes in Snapshot.States whose content differs
	// from the newest one they have.
	Plans map[string]*onpath.NodePlan
	// Create, Update and Delete are for the store. Updated objects are copies.
	Create []*onpath.Instance
	// Own are objects to be created that stand for others, such as an accelerator's chains.
	Own    []onpath.Object
	Update []onpath.Object
	Delete []onpath.Key
	// Events tell people what has just been decided or seen.
	Events []Event
	// Taken is what instances outside of reservations hold of what tenants may use, by
	// node.
	Taken map[string]onpath.Resources
	// Again is when time alone will change the result, other than by the silence of nodes,
	// which NextSilence says; zero: never.
	Again time.Time
	// Used counts the ids taken from the front of Snapshot.IDs.
	Used Count
	// Short says how many more ids were wanted than there were; the decisions
	// that need them wait.
	Short Count
}

// Count is a number of ids of each sequence.
type Count struct{ Vports, Paths, Addresses int }

// Event is something to tell.
type Event struct {
	About  onpath.Key
	To     string // the tenant that is told; empty: whose object it is about
	Node   string
	Reason string
	// Cause is the reason of the node's own event about the same, if the node has told
	// one.
	Cause   string
	Message string
	Warning bool
}
