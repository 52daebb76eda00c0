package onpath

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// WasmSpec says which packet modules to run, as WebAssembly in a process of the
// instance's own. Packets visit them in their order.
type WasmSpec struct {
	Modules []WasmModule `json:"modules"`
	// Ports are those at which modules serve, whatever the address: tcp/80, udp/53.
	Ports []ServedPort `json:"ports,omitempty"`
	// Emit bounds what modules send by themselves.
	Emit Emit `json:"emit,omitzero"`
}

// WasmModule is one module of a function.
type WasmModule struct {
	// Name is unique in the function.
	Name string `json:"name"`
	// Module is a compiled module (./x.wasm) that the client reads and sends as Code.
	Module string     `json:"module"`
	Code   ObjectCode `json:"code,omitempty"`
	// Select limits what the module is given, as seen in the chain's direction. Default:
	// everything.
	Select []Selector `json:"select,omitempty"`
	// Config is what the module is told, by name. A change reaches it while it runs.
	Config Env `json:"config,omitempty"`
	// Budget is the mean time that one packet may take, measured on batches. Default
	// DefaultModuleBudget.
	Budget Duration `json:"budget,omitempty"`
	// None is what becomes of the module's packets while it is out of service: drop |
	// bypass. Default drop.
	None None `json:"none,omitempty"`
}

// DefaultModuleBudget is the mean time that a packet may take in a module.
const DefaultModuleBudget = Duration(20 * time.Microsecond)

// Emit bounds what an instance's modules send by themselves.
type Emit struct {
	Packets int64 `json:"packets,omitempty"` // a second; default 1000
	Rate    Rate  `json:"rate,omitempty"`    // default 10Mbit
}

// DefaultEmit is what modules may send where a function says nothing.
var DefaultEmit = Emit{Packets: 1000, Rate: 10_000_000}

// ServedPort is a port at which modules serve: tcp/80.
type ServedPort struct {
	Protocol Protocol // tcp or udp
	Port     uint16
}

// String is the port as it is written.
func (p ServedPort) String() string { return fmt.Sprintf("%s/%d", p.Protocol, p.Port) }

// MarshalText implements encoding.TextMarshaler.
func (p ServedPort) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *ServedPort) UnmarshalText(b []byte) error {
	protocol, port, _ := strings.Cut(string(b), "/")
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || protocol != "tcp" && protocol != "udp" {
		return fmt.Errorf("%q is no port to serve at; write tcp/80 or udp/5060", b)
	}
	*p = ServedPort{Protocol: Protocol(protocol), Port: uint16(n)}
	return nil
}

// SHA256 is the hash of the module's code, hexadecimal.
func (m *WasmModule) SHA256() string {
	sum := sha256.Sum256(m.Code)
	return hex.EncodeToString(sum[:])
}
