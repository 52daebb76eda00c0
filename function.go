package onpath

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
)

// Function is a recipe for processing packets.
type Function struct {
	TypeMeta
	Metadata Metadata       `json:"metadata"`
	Spec     FunctionSpec   `json:"spec"`
	Status   FunctionStatus `json:"status,omitzero"`
}

// FunctionStatus says what the object file of an ebpf function is, if it brings
// one. onpath writes it when the function is applied.
type FunctionStatus struct {
	SHA256  string `json:"sha256,omitempty"`  // of the file, hexadecimal
	License string `json:"license,omitempty"` // as the file names it
	Bytes   int    `json:"bytes,omitempty"`
	// Redirects: its code declares that it may send packets to later elements of its
	// chain, past those between.
	Redirects bool `json:"redirects,omitempty"`
}

// FunctionSpec describes a function. Exactly one of Container and EBPF (and
// later Wasm) is set.
type FunctionSpec struct {
	Container *ContainerSpec `json:"container,omitempty"`
	EBPF      *EBPFSpec      `json:"ebpf,omitempty"`
	// State is what the function keeps about flows; it decides whether a live
	// flow can be moved to another instance. Default flow.
	State FlowState `json:"state,omitempty"`
	// Packets is what the function may do to packets. Default keep.
	Packets PacketRights `json:"packets,omitempty"`
	// Resources is what one instance gets. Defaults: 100m CPU, 64Mi memory.
	Resources Resources `json:"resources,omitzero"`
	Health    Health    `json:"health,omitzero"`
	// Shared lets other tenants use the function as "tenant/name".
	Shared bool `json:"shared,omitempty"`
}

// ContainerSpec says how to run an unmodified Linux program.
type ContainerSpec struct {
	// Image is a local OCI archive or layout (apply pushes it to the server), a
	// registry reference, or "host": the node's root file system, read-only
	// under an overlay. After apply it is a reference with a digest.
	Image      string   `json:"image"`
	Command    []string `json:"command,omitempty"` // default: the image's
	Env        Env      `json:"env,omitempty"`
	WorkingDir string   `json:"workingDir,omitempty"`
	// Files are written into the container before it starts; keys are absolute paths.
	Files map[string]File `json:"files,omitempty"`
	// Devices: "tun".
	Devices []string          `json:"devices,omitempty"`
	Attach  ContainerAttach   `json:"attach,omitempty"`
	Caps    []string          `json:"capabilities,omitempty"` // NET_ADMIN, NET_RAW, …
	Sysctls map[string]string `json:"sysctls,omitempty"`      // net.* only, in the instance's namespace
	// Addresses: none | private | pool. Default private, none if bridged.
	Addresses Addressing `json:"addresses,omitempty"`
	// Outbound: none | nat. What becomes of packets from a private own address
	// that no chain selects. Default none.
	Outbound Outbound `json:"outbound,omitempty"`
}

// EBPFSpec says which packet function to run in the kernel, inline on the path.
type EBPFSpec struct {
	// Object is the name of a function that comes with onpath (firewall,
	// loadbalancer, monitor, ratelimit), or a compiled object file (./x.o) that the
	// client reads and sends as Code.
	Object string `json:"object"`
	// Code is the object file, at most MaxObjectBytes; absent for those that
	// come with onpath.
	Code ObjectCode `json:"code,omitempty"`
	// Config is what the function declares that it can be told, by name; the
	// values of a deployment's env win over it. A change reaches a running
	// function at once and touches no flow.
	Config Env `json:"config,omitempty"`
	// Files are configuration that is better written in a file of its own, by
	// the names that the function declares; those of a deployment win.
	Files map[string]File `json:"files,omitempty"`
	// Budget is the time that one packet may take, measured on samples; a function
	// that stays above it under load leaves the path like a failed instance.
	// Default DefaultBudget.
	Budget Duration `json:"budget,omitempty"`
}

// Told stands for what the function is told, config and files.
func (e *EBPFSpec) Told() string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(e.Config)) {
		fmt.Fprintf(h, "config %q %q\n", name, e.Config[name])
	}
	for _, name := range slices.Sorted(maps.Keys(e.Files)) {
		fmt.Fprintf(h, "file %q %q\n", name, e.Files[name].Content)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// ObjectCode is a compiled object file; as text it is base64 (RFC 4648 §4).
type ObjectCode []byte

// MarshalText implements encoding.TextMarshaler.
func (c ObjectCode) MarshalText() ([]byte, error) {
	return base64.StdEncoding.AppendEncode(nil, c), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *ObjectCode) UnmarshalText(b []byte) error {
	out, err := base64.StdEncoding.AppendDecode(nil, b)
	if err != nil {
		return fmt.Errorf("the code is not base64: %w", err)
	}
	*c = out
	return nil
}

// Env is a set of environment variables.
type Env map[string]string

// File is the content of a file: given in place, or read from a file beside the
// YAML by the client, which then sends it as Content.
type File struct {
	Content  string `json:"content,omitempty"`
	FromFile string `json:"fromFile,omitempty"`
	Mode     uint32 `json:"mode,omitempty"` // permission bits; default 0644
}

// ContainerAttach says how packets get into a container.
type ContainerAttach string

// The two ways.
const (
	Routed  ContainerAttach = "routed"  // one vport; the container is an IP hop
	Bridged ContainerAttach = "bridged" // two vports; the container is a bump in the wire
)

// Addressing says which own address an instance has.
type Addressing string

// The kinds of own address.
const (
	AddressesNone    Addressing = "none"
	AddressesPrivate Addressing = "private"
	AddressesPool    Addressing = "pool"
)

// Outbound says what becomes of an instance's own traffic.
type Outbound string

// The two outbound policies.
const (
	OutboundNone Outbound = "none"
	OutboundNAT  Outbound = "nat"
)

// FlowState is what a function keeps about the flows it sees.
type FlowState string

// The kinds of state.
const (
	StateNone       FlowState = "none"       // any instance can take over any packet
	StateFlow       FlowState = "flow"       // keeps per-flow state
	StateTerminates FlowState = "terminates" // ends TCP itself: cannot be re-picked or bypassed in mid-flow
)

// PacketRights is what a function may do to packets.
type PacketRights string

// The packet rights, each including the one before.
const (
	PacketsKeep      PacketRights = "keep"      // passes or drops, answers on a flow it was given
	PacketsRewrite   PacketRights = "rewrite"   // changes addresses, ports
	PacketsOriginate PacketRights = "originate" // opens flows of its own within the chain's select
)

// Health is a probe. Without one, a running process counts as ready. A change of tcp or
// exec makes new instances, which serve once they succeed by it; the others are taken up
// by those that run.
type Health struct {
	TCP  uint16   `json:"tcp,omitempty"`  // port to connect to, in the instance's namespace
	Exec []string `json:"exec,omitempty"` // command in the container; exit code 0 is healthy
	// Every is the time between probes; default 1s.
	Every Duration `json:"every,omitempty"`
	// Failures in a row that make an instance not ready; default 3.
	Failures int `json:"failures,omitempty"`
	// Start is how long an instance may take to its first success; default 60s.
	Start Duration `json:"start,omitempty"`
}

// Meta implements Object.
func (f *Function) Meta() *Metadata { return &f.Metadata }

// ObjectKind implements Object.
func (f *Function) ObjectKind() Kind { return KindFunction }
