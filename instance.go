package onpath

import (
	"net/netip"
	"time"
)

// Instance is one running copy of a function on a node (PacketCloud §4: a VI).
// onpath writes it; it is created when placed, and deleted when its node has
// acknowledged that nothing of it is left.
type Instance struct {
	TypeMeta
	Metadata Metadata       `json:"metadata"` // name: DEPLOYMENT-xxxxx
	Spec     InstanceSpec   `json:"spec"`
	Status   InstanceStatus `json:"status,omitzero"`
}

// ReasonOrdinaryPath is the reason of a node's condition that an uplink has no fast path and
// needs none.
const ReasonOrdinaryPath = "OrdinaryPath"

// ReasonSpoofed is the reason of a ready instance of which most packets are dropped, since
// its function may not send them.
const ReasonSpoofed = "SpoofedPackets"

// ReasonProcessEnded is the reason of a failed instance whose process has ended, until
// its node knows how. The node then tells that in an event.
const ReasonProcessEnded = "ProcessEnded"

// ReasonPartner is the reason of an unready half of a pair of which the other is not ready.
const ReasonPartner = "PartnerNotReady"

// ReasonExited is the reason of a failed instance whose process has ended by itself.
const ReasonExited = "Exited"

// InstanceSpec is fixed at creation, but for Drain, Draining, Until and Pair.
type InstanceSpec struct {
	Deployment string  `json:"deployment"` // in the same tenant
	Node       string  `json:"node"`
	Vport      VportID `json:"vport"`          // where forward packets are delivered
	Back       VportID `json:"back,omitempty"` // bridged only: the second side, where reverse packets are delivered
	// Key orders and hashes the instance among its siblings; never reused
	// within a deployment.
	Key uint32 `json:"key"`
	// Addresses are its own, with the length of the network they lie in.
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	// Shape is a hash of everything that needs a new instance when it changes.
	Shape string `json:"shape"`
	// Drain is the deployment's, kept here because an instance may outlive it.
	Drain Duration `json:"drain,omitempty"`
	// Draining is set when the instance is to go: it gets no new flows.
	Draining time.Time `json:"draining,omitzero"`
	// Until is when a draining instance goes even if flows remain. The last ones of an
	// element that goes from a chain, or with it, go together: at the latest Until of
	// all that go by that change.
	Until time.Time `json:"until,omitzero"`
	// Pair is its place in a pair; nil: it is of none, or has no partner yet.
	Pair *Pair `json:"pair,omitempty"`
}

// InstanceStatus is what the node says.
type InstanceStatus struct {
	State  InstanceState `json:"state"`
	Reason string        `json:"reason,omitempty"` // of the state, as one CamelCase word
	// Message says why State is failed or unready, or what is amiss of a ready one.
	Message string `json:"message,omitempty"`
	// Printed are the last lines of the run, or of the probe, that ended with a failure.
	Printed string `json:"printed,omitempty"`
	// NextTry is how long the node waits before it starts a failed instance again.
	NextTry  Duration  `json:"nextTry,omitempty"`
	Restarts int       `json:"restarts,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	// Modules are those that a wasm function's instance runs.
	Modules []ModuleState `json:"modules,omitempty"`
	// Lists are the lists of addresses that an ebpf function's instance has in force: the
	// type is a list's name, the message says how many entries there are.
	Lists []Condition `json:"lists,omitempty"`
}

// InstanceState is how far an instance is.
type InstanceState string

// The states.
const (
	InstancePending  InstanceState = "pending"  // its node has not taken it up
	InstanceStarting InstanceState = "starting" // image, namespace, process, first probe
	InstanceReady    InstanceState = "ready"
	InstanceUnready  InstanceState = "unready" // runs, but its probe fails
	InstanceFailed   InstanceState = "failed"  // died or could not start; is tried again with backoff
	InstanceStopped  InstanceState = "stopped" // gone on purpose; nothing of it is left
)

// Meta implements Object.
func (i *Instance) Meta() *Metadata { return &i.Metadata }

// ObjectKind implements Object.
func (i *Instance) ObjectKind() Kind { return KindInstance }
