package onpath

import (
	"encoding/base64"
	"fmt"
)

// Function is a recipe for processing packets.
type Function struct {
	TypeMeta
	Metadata Metadata       `json:"metadata"`
	Spec     FunctionSpec   `json:"spec"`
	Status   FunctionStatus `json:"status,omitzero"`
}

// FunctionStatus says what the object file of an ebpf function is, if it brings one, or
// the modules of a wasm function. onpath writes it when the function is applied.
type FunctionStatus struct {
	SHA256  string `json:"sha256,omitempty"`  // of the file, hexadecimal
	License string `json:"license,omitempty"` // as the file names it
	Bytes   int    `json:"bytes,omitempty"`
	// Redirects: its code declares that it may send packets to later elements of its
	// chain, past those between.
	Redirects bool `json:"redirects,omitempty"`
	// Limited are the sources that alerts have limited, the oldest first.
	Limited []LimitedSource `json:"limited,omitempty"`
	// Modules are those of a wasm function.
	Modules []ModuleFacts `json:"modules,omitempty"`
}

// ModuleFacts say what a module is.
type ModuleFacts struct {
	Name    string   `json:"name"`
	SHA256  string   `json:"sha256"` // hexadecimal
	Bytes   int      `json:"bytes"`
	Memory  Size     `json:"memory"`            // at first
	Blocks  []string `json:"blocks,omitempty"`  // building blocks that it imports
	Exports []string `json:"exports,omitempty"` // functions
}

// FunctionSpec describes a function. Exactly one of Container, EBPF, Wasm
// and Relay is set.
type FunctionSpec struct {
	Container *ContainerSpec `json:"container,omitempty"`
	EBPF      *EBPFSpec      `json:"ebpf,omitempty"`
	Wasm      *WasmSpec      `json:"wasm,omitempty"`
	Relay     *RelaySpec     `json:"relay,omitempty"`
	// State is what the function keeps about flows; it decides whether a live
	// flow can be moved to another instance. Default flow.
	State FlowState `json:"state,omitempty"`
	// Packets is what the function may do to packets. Default keep.
	Packets PacketRights `json:"packets,omitempty"`
	// Resources is what one instance gets. Defaults: 100m CPU (ebpf: none), 64Mi memory.
	Resources Resources `json:"resources,omitzero"`
	Health    Health    `json:"health,omitzero"`
	// Parameters are what the function can be told; without any, whatever is written.
	Parameters []Parameter `json:"parameters,omitempty"`
	// Alerts say which notifications have the function limit the source that they name.
	Alerts []AlertRule `json:"alerts,omitempty"`
	// Metrics of the function's own, which the agent exports with the instance's name.
	Metrics OwnMetrics `json:"metrics,omitzero"`
	// Overhead is how many bytes the function adds to a packet at most: what enters it is
	// kept so much shorter than what its links carry.
	Overhead int `json:"overhead,omitempty"`
	// Shared lets other tenants use the function as "tenant/name".
	Shared bool `json:"shared,omitempty"`
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

// FlowState is what a function keeps about the flows it sees.
type FlowState string

// The kinds of state.
const (
	StateNone FlowState = "none" // any instance can take over any packet
	StateFlow FlowState = "flow" // keeps per-flow state
	// StateTerminates ends TCP itself: cannot be re-picked or bypassed in mid-flow, and
	// needs packets: originate but at the end of a chain.
	StateTerminates FlowState = "terminates"
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
	TCP  Port     `json:"tcp,omitempty"`  // port to connect to, in the instance's namespace
	Exec []string `json:"exec,omitempty"` // command in the container; exit code 0 is healthy
	// Every is the time between probes; default 1s.
	Every Duration `json:"every,omitempty"`
	// Failures in a row that make an instance not ready; default 3.
	Failures int `json:"failures,omitempty"`
	// Start is how long an instance may take to its first success; default 60s.
	Start Duration `json:"start,omitempty"`
}

// OwnMetrics says where an instance tells metrics, in Prometheus' text format. At most one of
// the fields is set.
type OwnMetrics struct {
	Exec []string `json:"exec,omitempty"` // a command in the container that prints them
	// HTTP is PORT/PATH in the instance's namespace: 9167/metrics.
	HTTP string `json:"http,omitempty"`
}

// Meta implements Object.
func (f *Function) Meta() *Metadata { return &f.Metadata }

// ObjectKind implements Object.
func (f *Function) ObjectKind() Kind { return KindFunction }
