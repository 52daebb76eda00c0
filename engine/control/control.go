// Package control is what an engine is told and tells, by its control socket: requests
// and answers in JSON, one after the other on a connection, and files beside a request.
// Who holds the socket's path may say everything; modules cannot reach it.
package control

import (
	"time"

	"github.com/onpath/onpath"
)

// MaxReasons are the codes by which a module can drop (ONPATH_REASONS).
const MaxReasons = 16

// Config is what an engine runs, whole.
type Config struct {
	Modules []onpath.WasmModule `json:"modules"`
	// Packets is what modules may do to packets; Emit bounds what they send.
	Packets onpath.PacketRights `json:"packets,omitempty"`
	Emit    onpath.Emit         `json:"emit,omitzero"`
	// Memory is what the engine may have in all; 0: no limit.
	Memory onpath.Size `json:"memory,omitempty"`
}

// Device is how an engine's packets come and go.
type Device struct {
	Vport onpath.VportID `json:"vport,omitempty"`
	// MAC is the instance's address, NextHop the node's, six bytes each.
	MAC     []byte `json:"mac"`
	NextHop []byte `json:"nextHop"`
	// Served are the ports of the sockets that were handed over, in their order.
	Served []onpath.ServedPort `json:"served,omitempty"`
}

// Status is what an engine is doing.
type Status struct {
	// Attached: packets come.
	Attached bool           `json:"attached"`
	Received uint64         `json:"received"` // packets
	Sent     uint64         `json:"sent"`
	Lost     uint64         `json:"lost,omitempty"`   // that the device did not take
	Missed   uint64         `json:"missed,omitempty"` // that came while all frames were in use
	Modules  []ModuleStatus `json:"modules"`
	// Served are the ports at which it serves.
	Served []onpath.ServedPort `json:"served,omitempty"`
}

// ModuleStatus is one module's.
type ModuleStatus struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"`
	// Why it is out of service; empty if it runs. Again says when it is tried again.
	Why   string          `json:"why,omitempty"`
	Again onpath.Duration `json:"again,omitempty"` // from now on
	ModuleNumbers
	// Counters are those that the module itself declares or sets.
	Counters map[string]uint64 `json:"counters,omitempty"`
}

// ModuleNumbers count packets, unless they say otherwise.
type ModuleNumbers struct {
	Packets   uint64 `json:"packets"` // given to it
	Passed    uint64 `json:"passed"`
	Dropped   uint64 `json:"dropped"`
	Answered  uint64 `json:"answered"`
	Rewritten uint64 `json:"rewritten"`
	Bypassed  uint64 `json:"bypassed,omitempty"` // while it was out of service, none: bypass
	Refused   uint64 `json:"refused,omitempty"`  // likewise, none: drop
	Sent      uint64 `json:"sent"`
	SendOver  uint64 `json:"sendOver,omitempty"` // over what emit allows
	Traps     uint64 `json:"traps,omitempty"`    // how often it left the list by itself
	// FetchFailed and NotifyLost count fetches that failed, and notifications that nobody took.
	FetchFailed uint64 `json:"fetchFailed,omitempty"`
	NotifyLost  uint64 `json:"notifyLost,omitempty"`
	// Reasons counts dropped and answered packets by the module's own codes.
	Reasons [MaxReasons]uint64 `json:"reasons"`
	// Samples packets took Time of the processor in all.
	Samples uint64        `json:"samples"`
	Time    time.Duration `json:"time"` // ns
}
