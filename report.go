package onpath

import (
	"net/netip"
	"time"
)

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
	// UnderlayDevice is the name of that device; "" without one.
	UnderlayDevice string `json:"underlayDevice,omitempty"`
	// Addresses are the machine's own, in order: of all devices, but loopback's and
	// link-local ones.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// NoHostImage: functions with image: host are not permitted here. Agents that
	// do not know the field leave it out, and are tried.
	NoHostImage bool `json:"noHostImage,omitempty"`
	// Blocks are the building blocks that modules of wasm functions may use here. Agents
	// that do not know the field leave it null, and are tried.
	Blocks []string `json:"blocks"`
	// Knows are the abilities of the agent's build.
	Knows      []Ability        `json:"knows,omitempty"`
	Instances  []InstanceReport `json:"instances,omitempty"`
	Conditions []Condition      `json:"conditions,omitempty"` // of the node: uplinks, firewall, runtime
	// Paths counts the live flow entries of each path of the plan in force
	// that has Ended set, those without any included.
	Paths map[PathID]uint64 `json:"paths,omitempty"`
	// Unreachable are the nodes among the plan's peers whose machines do not
	// answer on the underlay. An agent that is only away is not among them.
	Unreachable []string `json:"unreachable,omitempty"`
	// Distances are what the plan's targets measured last, by name. A value stays as it is
	// until it has changed by the target's threshold.
	Distances []Distance `json:"distances,omitempty"`
	// TunnelKey is the public key of the node's WireGuard, as wg(8) writes it; "": none.
	TunnelKey string `json:"tunnelKey,omitempty"`
	// TunnelLacks is why the node can have no WireGuard; "": it can, if TunnelKey says so.
	TunnelLacks string `json:"tunnelLacks,omitempty"`
	// Indirect are the peers whose data path has not answered VXLAN in clear text when that
	// was tried.
	Indirect []string `json:"indirect,omitempty"`
	// Leases are those in force, in order of arrival.
	Leases []LeaseReport `json:"leases,omitempty"`
	// Counters since the last report are not here; see the session's operations.
}

// Ability is a part of plans that agents of earlier builds leave out without a word.
type Ability string

// The abilities.
const (
	AbilitySecrets  Ability = "secrets"
	AbilityServices Ability = "addresses of services"
	AbilityUsers    Ability = "user namespaces"
	AbilityPairs    Ability = "pairs"
)

// Abilities are those of this build.
func Abilities() []Ability {
	return []Ability{AbilitySecrets, AbilityServices, AbilityUsers, AbilityPairs}
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
	Name   string        `json:"name"`
	Tenant string        `json:"tenant"`
	State  InstanceState `json:"state"`
	// Reason is why, as one CamelCase word. Where the node tells of it in an event,
	// it is the event's Reason.
	Reason string `json:"reason,omitempty"`
	// Message says the same to people.
	Message string `json:"message,omitempty"`
	// Printed are the last lines of the run, or of the probe, that ended with a failure.
	Printed string `json:"printed,omitempty"`
	// NextTry is how long the node waits before it starts a failed instance again;
	// 0: it does not wait.
	NextTry  Duration  `json:"nextTry,omitempty"`
	Restarts int       `json:"restarts,omitempty"`
	Since    time.Time `json:"since"`
	// Wired: its vport is part of the data path in force.
	Wired bool `json:"wired"`
	// Flows is the number of flow entries that lead to it; only counted while
	// it drains, and 1 until a count has ended that began when it drained already.
	Flows uint64 `json:"flows,omitempty"`
	// Full: it keeps its connections, and new flows pass it by; of relays.
	Full bool `json:"full,omitempty"`
	// Config is the EBPFSpec.Told of what an ebpf function was told last; absent
	// as long as the agent has told it nothing.
	Config string `json:"config,omitempty"`
	// Refused is why it did not take Config and keeps what it was told before.
	Refused string `json:"refused,omitempty"`
	// Modules are a wasm function's, in their order.
	Modules []ModuleState `json:"modules,omitempty"`
	// Lists are the lists of addresses that an ebpf function has in force, by type.
	Lists []Condition `json:"lists,omitempty"`
}

// ModuleState is how a module of a running wasm function fares.
type ModuleState struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"` // of the code that runs, hexadecimal
	// Out is why it is out of service; empty: it runs.
	Out string `json:"out,omitempty"`
	// Traps is how often it left the path by itself.
	Traps uint64 `json:"traps,omitempty"`
}

// ConditionWireGuard is a node's, and false as long as its tunnels by WireGuard are not as its plan
// says.
const ConditionWireGuard = "WireGuard"

// ConditionRuntime is a node's: whether it runs containers.
const ConditionRuntime = "Runtime"

// What Runtime is false for.
const (
	ReasonRuntimeMissing = "Missing"     // none is set up
	ReasonRuntimeDown    = "Unavailable" // it is, and does not answer
)

// RuntimeDown is why a node with these conditions can start no container although it has a
// runtime for them; "" where it can, and where it has none. Admission, placement and nodes'
// promises ask it alike.
func RuntimeDown(conditions []Condition) string {
	for _, c := range conditions {
		if c.Type == ConditionRuntime && c.Status == False && c.Reason == ReasonRuntimeDown {
			return c.Message
		}
	}
	return ""
}
