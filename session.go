package onpath

import (
	"net/netip"
	"time"
)

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
	// Grant is what the machine may say of itself; nil: anything. The server knows it from
	// the token by which the machine joined.
	Grant *NodeGrant `json:"-"`
	// Seen is the address from which the session came; zero: by the unix socket.
	Seen netip.Addr `json:"-"`
}

// NodeGrant is what a join token is for: what a machine may say of itself beside its
// underlay address and capacity.
type NodeGrant struct {
	Cloudlet string `json:"cloudlet"`
	// Uplinks are names of devices, or AnyUplink.
	Uplinks []string `json:"uplinks,omitempty"`
}

// AnyUplink in NodeGrant.Uplinks stands for all devices.
const AnyUplink = "any"

// NodeOp is an operation that the server asks of a node within the session; each
// has its own stream: the request as one JSON line, then the answer.
type NodeOp string

// The operations on a node.
const (
	OpFlows    NodeOp = "flows"    // FlowFilter → a JSON line per FlowEntry
	OpCounters NodeOp = "counters" // → Counters
	OpLook     NodeOp = "look"     // LookRequest → Look
	OpWatch    NodeOp = "watch"    // WatchSpec → a JSON array of FlowCounters
	OpCapture  NodeOp = "capture"  // CaptureSpec → pcapng
	OpExec     NodeOp = "exec"     // ExecRequest → framed stdin, stdout, stderr, exit code
	OpLogs     NodeOp = "logs"     // LogsRequest → bytes
	OpFault    NodeOp = "fault"    // FaultRequest → Fault
	OpUsage    NodeOp = "usage"    // → a JSON object: instance name → Usage
	OpPromise  NodeOp = "promise"  // PromiseRequest → Promise
	OpMeters   NodeOp = "meters"   // MeterRequest → a JSON array of Meter
	OpProve    NodeOp = "prove"    // PasswordRequest → PasswordAnswer
	OpEcho     NodeOp = "echo"     // EchoRequest → EchoAnswer
	OpTrial    NodeOp = "trial"    // trial.Part → a receiver's trial.Ports, then trial.Result
	// OpDistances asks for what the node measured last → a JSON array of Distance.
	OpDistances NodeOp = "distances"
	// OpNotifications: → a JSON line per NumberedNotification, without end; the server
	// answers with the numbers that it has stored.
	OpNotifications NodeOp = "notifications"
)

// LookRequest asks for counters, and for the flow entries that each filter selects.
type LookRequest struct {
	Flows []FlowFilter `json:"flows,omitempty"`
}

// Look is what a node sees at one look.
type Look struct {
	Counters *Counters     `json:"counters"`
	Flows    [][]FlowEntry `json:"flows,omitempty"` // of each filter, at most MaxLookFlows
}

// MaxLookFlows bounds the flow entries of one filter: behind an element that changes
// addresses all of its path are looked at.
const MaxLookFlows = 50_000

// MaxNodeReply bounds, in bytes, what a server reads of a node's reply at once: a node that is
// broken or in wrong hands cannot use up the server's memory.
const MaxNodeReply = 64 << 20

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
	// Since: only what was printed that long ago at most; zero: all.
	Since      time.Duration `json:"since,omitempty"`
	Timestamps bool          `json:"timestamps,omitempty"` // before each line
}

// View is what a runtime is to show; now is by the node's clock.
func (l LogsRequest) View(now time.Time) LogView {
	v := LogView{Tail: l.Tail, Timestamps: l.Timestamps}
	if l.Since > 0 {
		v.Since = now.Add(-l.Since)
	}
	return v
}
