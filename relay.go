package onpath

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/netip"
)

// RelayFunction relays TCP connections toward an Accelerator's origins. Accelerators make
// functions of this kind; one process on a node runs all of them.
const RelayFunction FunctionKind = "relay"

// RelaySpec is empty in files: what a relay does follows from its Accelerator.
type RelaySpec struct {
	// Work is one instance's; the planner writes it into the instance's plan.
	Work *RelayWork `json:"work,omitempty"`
}

// RelayWork is what one node's relay does for one tenant.
type RelayWork struct {
	// Listen is where other nodes' relays connect.
	Listen netip.AddrPort `json:"listen"`
	// Secret signs what relays tell each other.
	Secret string `json:"secret"`
	// Congestion control of all legs; "" is the kernel's default.
	Congestion string `json:"congestion,omitempty"`
	// SYN says when a client's SYN is answered.
	SYN SYNAnswer `json:"syn,omitempty"`
	// Vanish has the relay step out of connections after slow start.
	Vanish bool `json:"vanish,omitempty"`
	// Origins to which connections are relayed; no other leg is opened.
	Origins []RelayOrigin `json:"origins"`
}

// RelayOrigin is one server and how its connections go on from here.
type RelayOrigin struct {
	Address netip.AddrPort `json:"address"`
	Size    Size           `json:"size"` // of a typical transfer
	// Paths are by size, smallest first; none: nothing is measured yet, and connections
	// go on directly.
	Paths []RelayPath `json:"paths,omitempty"`
}

// RelayPath are the relays to come for transfers of at most UpTo bytes.
type RelayPath struct {
	UpTo Size             `json:"upTo"`
	Next []netip.AddrPort `json:"next,omitempty"` // none: the origin is next
}

// NewRelay is a function that relays.
func NewRelay() FunctionSpec { return FunctionSpec{Relay: &RelaySpec{}} }

// WithWork is a relay's specification with what one instance does.
func (s FunctionSpec) WithWork(w *RelayWork) FunctionSpec {
	s.Relay = &RelaySpec{Work: w}
	return s
}

// RelayWork is what one instance of a relay does; nil for all else.
func (s *FunctionSpec) RelayWork() *RelayWork {
	if s.Relay == nil {
		return nil
	}
	return s.Relay.Work
}

// PathFor is the path of a transfer of that size.
func (o *RelayOrigin) PathFor(size Size) RelayPath {
	for _, p := range o.Paths {
		if size <= p.UpTo {
			return p
		}
	}
	if n := len(o.Paths); n > 0 {
		return o.Paths[n-1]
	}
	return RelayPath{}
}

// DefaultRelayPort is the TCP port at nodes' underlay addresses where relays connect.
const DefaultRelayPort = 4799

func (r *RelaySpec) traits() FunctionTraits {
	return FunctionTraits{Runs: "relay", Attach: Routed, Addresses: AddressesPrivate, Outbound: OutboundNone, Relays: true}
}

func (r *RelaySpec) brings(string) brought { return brought{} }

func (r *RelaySpec) complete(Env, map[string]File) {}

func (r *RelaySpec) values(string) map[string]Env { return nil }

func (r *RelaySpec) shape(function string, _ Health) any {
	return struct{ Function, Kind string }{function, string(RelayFunction)}
}

func (r *RelaySpec) fix() { *r = RelaySpec{} }

func (r *RelaySpec) told(*FunctionSpec) string {
	if r.Work == nil {
		return ""
	}
	b, err := json.Marshal(r.Work)
	if err != nil {
		panic("onpath: relay: " + err.Error()) // all of it marshals
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

func (r *RelaySpec) validate(v *validation, at string, s *FunctionSpec) {
	if r.Work != nil {
		v.add(at+".work", "take it out, and write kind: Accelerator", "is what onpath itself writes for each node")
	}
	if s.Health.TCP != 0 || len(s.Health.Exec) > 0 {
		v.add("spec.health", "take it out", "a relay has no probe: its process says how it is")
	}
	byDefault(&s.State, StateTerminates)
	byDefault(&s.Packets, PacketsOriginate)
}
