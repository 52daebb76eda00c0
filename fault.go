package onpath

import (
	"fmt"
	"time"
)

// FaultKind is what is done on purpose to an instance or a node.
type FaultKind string

// The faults of instances.
const (
	FaultKill  FaultKind = "kill-instance"  // its processes end with SIGKILL; its node starts it again
	FaultStall FaultKind = "stall-instance" // its processes are stopped (SIGSTOP), and go on at the end
	FaultDrop  FaultKind = "drop"           // a share of the packets to and from it is lost
	FaultDelay FaultKind = "delay"          // packets to and from it take longer
)

// The faults of nodes. Of a gateway the tunnels can be cut, but not the uplinks.
const (
	FaultCut      FaultKind = "cut-link"  // its tunnels, or those to one other node, lose everything
	FaultKillNode FaultKind = "kill-node" // its tunnels are cut, its instances killed, its agent stopped until the end
)

// OfNode tells the faults of nodes from those of instances.
func (k FaultKind) OfNode() bool { return k == FaultCut || k == FaultKillNode }

// MaxFault is the longest time that a fault may last.
const MaxFault = Duration(time.Hour)

// FaultRequest asks for a fault. It ends by itself after For, whatever becomes
// of server and agent meanwhile.
type FaultRequest struct {
	Kind     FaultKind `json:"kind" enum:"kill-instance,stall-instance,drop,delay,cut-link,kill-node"`
	Instance string    `json:"instance,omitempty" doc:"tenant/name; of faults of nodes none"`
	Node     string    `json:"node,omitempty" doc:"cut-link, kill-node: which"`
	Peer     string    `json:"peer,omitempty" doc:"cut-link: only the tunnels to this node"`
	For      Duration  `json:"for,omitempty" doc:"how long; not for kill-instance"`
	Share    float64   `json:"share,omitempty" doc:"drop: of the packets, from 0 to 1"`
	Delay    Duration  `json:"delay,omitempty" doc:"delay: each way"`
	// By is who asks, as the server has authenticated him.
	By string `json:"by,omitempty" doc:"filled in by the server"`
}

// Validate says what is wrong with a request.
func (f *FaultRequest) Validate() error {
	fail := func(field, remedy, format string, args ...any) error {
		return &Error{Code: CodeInvalid, Field: field, Message: fmt.Sprintf(format, args...), Remedy: remedy}
	}
	switch f.Kind {
	case FaultKill, FaultStall, FaultDrop, FaultDelay, FaultCut, FaultKillNode:
	default:
		return fail("kind", "write kill-instance, stall-instance, drop, delay, cut-link or kill-node", "%q is no fault", f.Kind)
	}
	switch {
	case f.Kind.OfNode() && f.Node == "":
		return fail("node", "name one", "no node is named")
	case f.Kind.OfNode() && f.Instance != "":
		return fail("instance", "leave it out", "%s is done to a node", f.Kind)
	case !f.Kind.OfNode() && f.Node != "":
		return fail("node", "leave it out", "%s is done to an instance, wherever it is", f.Kind)
	case f.Kind != FaultCut && f.Peer != "":
		return fail("peer", "leave it out", "%s is not done to a link", f.Kind)
	case f.Peer != "" && f.Peer == f.Node:
		return fail("peer", "name another node", "node %s has no tunnel to itself", f.Node)
	case !f.Kind.OfNode() && f.Instance == "":
		return fail("instance", "name one as tenant/name", "no instance is named")
	case f.Kind == FaultKill && f.For != 0:
		return fail("for", "leave it out: the instance is started again at once", "a killed instance has no time")
	case f.Kind == FaultKillNode && f.For > 0 && f.For < Duration(time.Second):
		return fail("for", "give 1s or more", "a node is dead for %s at least, not for %s", Duration(time.Second), f.For)
	case f.Kind != FaultKill && (f.For <= 0 || f.For > MaxFault):
		return fail("for", "give a time such as 5s", "a fault of %s; it must be more than nothing and at most %s", f.For, MaxFault)
	case f.Kind == FaultDrop && !(f.Share > 0 && f.Share <= 1): // NaN is neither
		return fail("share", "give a share above 0 and up to 1", "%g of the packets cannot be lost", f.Share)
	case f.Kind == FaultDelay && (f.Delay <= 0 || f.Delay > Duration(10*time.Second)):
		return fail("delay", "give a time such as 20ms", "a delay of %s; it must be more than nothing and at most 10s", f.Delay)
	}
	return nil
}

// Fault is one that was caused.
type Fault struct {
	ID        string    `json:"id"`
	Kind      FaultKind `json:"kind"`
	Instance  string    `json:"instance,omitempty"` // tenant/name; of faults of nodes none
	Node      string    `json:"node"`
	Peer      string    `json:"peer,omitempty"`
	Began     time.Time `json:"began"` // by the node's clock
	Until     time.Time `json:"until,omitzero"`
	Processes []int     `json:"processes,omitempty"` // killed or stopped
	Devices   []string  `json:"devices,omitempty"`   // that lose or delay
}
