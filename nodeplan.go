package onpath

import (
	"context"
	"net/netip"
	"time"
)

// NodePlan is the whole desired state of one node: what to run and how to steer.
// The planner derives it, nobody stores it but the node itself (so that a
// restarted agent knows what was asked of it with the server away).
type NodePlan struct {
	Node string `json:"node"`
	// Generation rises with every plan that differs from the one before.
	Generation uint64         `json:"generation"`
	Instances  []InstancePlan `json:"instances,omitempty"` // by name
	Datapath   DatapathConfig `json:"datapath"`
}

// InstancePlan is one instance to run, with everything the node needs for it.
type InstancePlan struct {
	Name       string       `json:"name"` // of the Instance object
	Tenant     string       `json:"tenant"`
	Deployment string       `json:"deployment"`
	Function   string       `json:"function"` // tenant/name, for display
	UID        string       `json:"uid"`      // of the Instance object: names are not reused, UIDs certainly not
	Spec       FunctionSpec `json:"spec"`     // env, files and resources as merged with the deployment's
	Vport      VportID      `json:"vport"`
	Back       VportID      `json:"back,omitempty"` // second side of a bridged instance
	// Addresses are its own, with prefix length.
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	// MTU of its interfaces, bytes.
	MTU int `json:"mtu"`
	// Idle are the idle times that the instance must keep to: of the chains that
	// it stands in, the longest. The node tells it.
	Idle Idle `json:"idle,omitzero"`
	// Draining: keep it running, do not restart it when it ends.
	Draining bool `json:"draining,omitempty"`
}

// NodeReport is what a node tells its server: on connecting, on every change,
// and every ReportEvery as a sign of life.
type NodeReport struct {
	Node string `json:"node"`
	// Plan is the generation of the last plan whose vports, tables and groups
	// are all in force (acknowledged); 0 if none.
	Plan uint64 `json:"plan"`
	// PlanError says why a newer plan is not in force, if one failed.
	PlanError string    `json:"planError,omitempty"`
	Version   string    `json:"version"`
	Kernel    string    `json:"kernel"`
	Started   time.Time `json:"started"` // of the agent
	Capacity  Resources `json:"capacity"`
	// UnderlayMTU is the MTU of the device with the underlay address, bytes.
	UnderlayMTU int `json:"underlayMTU"`
	// Addresses are the machine's own, in order: of all devices, but loopback's and
	// link-local ones.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// NoHostImage: functions with image: host are not permitted here. Agents that
	// do not know the field leave it out, and are tried.
	NoHostImage bool             `json:"noHostImage,omitempty"`
	Instances   []InstanceReport `json:"instances,omitempty"`
	Conditions  []Condition      `json:"conditions,omitempty"` // of the node: uplinks, firewall, runtime
	// Paths counts the live flow entries of each path of the plan in force
	// that has Ended set, those without any included.
	Paths map[PathID]uint64 `json:"paths,omitempty"`
	// Unreachable are the nodes among the plan's peers whose machines do not
	// answer on the underlay. An agent that is only away is not among them.
	Unreachable []string `json:"unreachable,omitempty"`
	// Counters since the last report are not here; see the session's operations.
}

// ReportEvery is the longest time between two reports; a node unheard of for
// NodeTimeout is not ready.
const (
	ReportEvery = time.Second
	NodeTimeout = 5 * time.Second
)

// InstanceReport is one instance as its node sees it. Instances that the plan
// no longer names are reported until nothing of them is left, the last time
// with state stopped.
type InstanceReport struct {
	Name     string        `json:"name"`
	Tenant   string        `json:"tenant"`
	State    InstanceState `json:"state"`
	Message  string        `json:"message,omitempty"`
	Restarts int           `json:"restarts,omitempty"`
	Since    time.Time     `json:"since"`
	// Wired: its vport is part of the data path in force.
	Wired bool `json:"wired"`
	// Flows is the number of flow entries that lead to it; only counted while
	// it drains, and 1 until a count has ended that began when it drained already.
	Flows uint64 `json:"flows,omitempty"`
	// Config is the EBPFSpec.Told of what an ebpf function was told last; absent
	// as long as the agent has told it nothing.
	Config string `json:"config,omitempty"`
	// Refused is why it did not take Config and keeps what it was told before.
	Refused string `json:"refused,omitempty"`
}

// NodeEvent is an event as a node reports it.
type NodeEvent struct {
	Time    time.Time `json:"time"`
	About   string    `json:"about"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	Warning bool      `json:"warning,omitempty"`
}

// Clock tells the time; tests and simulators pass their own.
type Clock func() time.Time

// Store keeps resources. storetest is its exam.
type Store interface {
	// Get reads one object; CodeNotFound.
	Get(ctx context.Context, k Key) (Object, error)
	// List reads all objects of a kind, of one tenant or ("") of all, ordered
	// by tenant and name, and the store revision they are of.
	List(ctx context.Context, k Kind, tenant string) ([]Object, int64, error)
	// Write makes all changes or none. Each must name the Version read (0:
	// must not exist yet; AnyVersion: whatever is there), else CodeConflict.
	// Written objects get their new Version in place. At most MaxWrite.
	Write(ctx context.Context, changes []Change) error
	// Watch sends every change after revision from (0: from now), in order,
	// until ctx ends or w is too slow, which closes the channel. A revision
	// that was compacted away gives CodeConflict: list again.
	Watch(ctx context.Context, from int64) (<-chan StoreEvent, error)
	// NextIDs reserves n consecutive numbers of the named sequence ("vport",
	// "path", "address") that no one got before, and returns the first; it
	// starts at 1.
	NextIDs(ctx context.Context, sequence string, n int) (uint64, error)
	Close() error
}

// AnyVersion in Change.Version skips the check.
const AnyVersion int64 = -1

// MaxWrite is the largest number of changes in one Store.Write. An etcd cluster
// of the operator's own takes that many only if it was told to (--max-txn-ops);
// SureWrite is what every one takes, for changes that may be written in parts.
const (
	MaxWrite  = 2000
	SureWrite = 120
)

// Change is one write: put Object, or delete Key where Object is nil.
type Change struct {
	Key     Key
	Object  Object
	Version int64
}

// StoreEvent is one change seen by a watcher.
type StoreEvent struct {
	Revision int64
	Key      Key
	Object   Object // nil: deleted
}

// NodeHello is the first thing a node says on a new session.
type NodeHello struct {
	Node string `json:"node"`
	// Spec is what the machine's own configuration file says; the server makes
	// the Node object from it if there is none.
	Spec NodeSpec `json:"spec"`
	// Plan is the plan in force on the node, whole, so that a restarted server
	// knows what may be pointed at and what may not be taken away. Nil if none.
	Plan   *NodePlan  `json:"plan,omitempty"`
	Report NodeReport `json:"report"`
}

// NodeOp is an operation that the server asks of a node within the session; each
// has its own stream: the request as one JSON line, then the answer.
type NodeOp string

// The operations on a node.
const (
	OpFlows    NodeOp = "flows"    // FlowFilter → a JSON line per FlowEntry
	OpCounters NodeOp = "counters" // → Counters
	OpWatch    NodeOp = "watch"    // WatchSpec → a JSON array of FlowCounters
	OpCapture  NodeOp = "capture"  // CaptureSpec → pcapng
	OpExec     NodeOp = "exec"     // ExecRequest → framed stdin, stdout, stderr, exit code
	OpLogs     NodeOp = "logs"     // LogsRequest → bytes
	OpFault    NodeOp = "fault"    // FaultRequest → Fault
	OpUsage    NodeOp = "usage"    // → a JSON object: instance name → Usage
)

// ExecRequest asks for a command in an instance.
type ExecRequest struct {
	Instance string   `json:"instance"` // tenant/name
	Command  []string `json:"command"`
	TTY      bool     `json:"tty,omitempty"`
	Stdin    bool     `json:"stdin,omitempty"`
}

// LogsRequest asks for an instance's output.
type LogsRequest struct {
	Instance string `json:"instance"` // tenant/name
	Tail     int    `json:"tail"`     // last lines; negative: all
	Follow   bool   `json:"follow,omitempty"`
	// Previous: of the run before the present one, up to the moment when it
	// ended or was told to end.
	Previous bool `json:"previous,omitempty"`
}
