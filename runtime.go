package onpath

import (
	"context"
	"io"
	"net/netip"
	"time"
)

// Runtime runs instances of one kind of function. The network namespace is
// prepared by the node; a runtime only joins it. runtimetest is its exam.
type Runtime interface {
	// Prepare makes the image available (pull, unpack), reporting progress in
	// words. Idempotent.
	Prepare(ctx context.Context, spec *FunctionSpec, progress func(string)) error
	// Start starts the instance; it returns once the process runs. An instance
	// of that id which exists already is CodeExists.
	Start(ctx context.Context, r RunSpec) (Process, error)
	// Adopt finds the running or ended instances that an earlier process of
	// ours started on this machine, by id. With an error it gives those that it
	// could take over, and leaves the others as they are; it is asked again.
	Adopt(ctx context.Context) (map[string]Process, error)
	// Exec runs a command inside; it returns the exit code.
	Exec(ctx context.Context, id string, e ExecSpec) (int, error)
	// Logs copies what v says of the instance's output to w; with follow until ctx ends
	// or the instance does.
	Logs(ctx context.Context, id string, v LogView, follow bool, w io.Writer) error
	// Close lets go and leaves everything running.
	Close() error
	// Remove stops and deletes everything of ours on this machine.
	Remove(ctx context.Context) error
}

// LogView says what of an instance's output is shown, and how.
type LogView struct {
	Tail int // the last lines; negative: all
	// Since: of those, none before the first that was printed then or later, by the
	// node's clock. Zero: all. Where it is not known when lines were printed, that is
	// CodeUnsupported.
	Since time.Time
	// Timestamps: before each line stands when it was printed, in UTC as RFC 3339 with
	// milliseconds, and a blank; "-" where that is not known. Lines that a driver writes
	// with their time stay as they are.
	Timestamps bool
}

// Creator is a Runtime that can make all of an instance but its program's
// beginning, while the devices of its network namespace are still being made.
type Creator interface {
	// Create makes the instance; the namespace must exist, and nothing in it is
	// changed. An instance of that id which exists already is CodeExists. Until
	// Start, Adopt does not tell of it; one whose maker died is told as ended.
	Create(ctx context.Context, r RunSpec) (Created, error)
}

// Created is an instance whose program has not begun. Exactly one of its
// methods is to be called, once.
type Created interface {
	// Start lets the program begin, as Runtime.Start does; if it fails, nothing
	// of the instance is left.
	Start(ctx context.Context) (Process, error)
	// Discard deletes everything of the instance.
	Discard(ctx context.Context) error
}

// RunSpec is what a runtime needs to start one instance.
type RunSpec struct {
	// ID is unique on the machine and safe as a file name.
	ID     string
	Labels map[string]string // tenant, deployment, instance, plan hash; returned by Adopt
	Spec   FunctionSpec
	NetNS  string // path of the prepared network namespace
	// Hostname inside; default ID.
	Hostname string
	// Awaited: packets wait for its program. Until Resize, what it may use of the CPU in a
	// second it may use at once, and not a tenth of it in each tenth.
	Awaited bool
	// Secrets are the contents of files in SecretsFolder, by name. They are written into
	// memory alone, and into nothing that is kept.
	Secrets map[string][]byte `json:"-"`
}

// Process is one started instance.
type Process interface {
	ID() string
	Labels() map[string]string
	// Pid of its first process in the host's pid namespace; 0 once ended.
	Pid() int
	// Exited is closed at once when it has ended; Exit then says how, and may
	// wait some seconds until that is known; the code is negative if it never will be.
	Exited() <-chan struct{}
	Exit() (code int, at time.Time)
	// Resize changes CPU and memory limits while it runs.
	Resize(ctx context.Context, r Resources) error
	// Usage since start.
	Usage(ctx context.Context) (Usage, error)
	// Stop sends SIGTERM, after grace SIGKILL, and deletes everything of it. A
	// program that has no handler for SIGTERM and would not hear of it, as the
	// first process of its namespace, is not waited for. An instance already gone
	// is no error.
	Stop(ctx context.Context, grace time.Duration) error
}

// Usage is what an instance has used.
type Usage struct {
	CPU    time.Duration `json:"cpu"`    // processor time
	Memory Size          `json:"memory"` // resident now
	// Throttled is the time for which it was kept from running by its limit of CPU.
	Throttled time.Duration `json:"throttled,omitempty"`
}

// ExecSpec is a command to run inside an instance.
type ExecSpec struct {
	Command []string
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	TTY     bool
	Resize  <-chan WindowSize // of the terminal, the first one at once; nil: none
}

// WindowSize is a terminal's size in characters.
type WindowSize struct {
	Rows    uint16 `json:"rows"`
	Columns uint16 `json:"columns"`
}

// Modular is a Process that runs modules: a wasm function's.
type Modular interface {
	// Modules is how they fare, and ModuleCounters what they count, by module and name:
	// packets and what became of them, and what a module declares. Both are as they were
	// some seconds ago at most.
	Modules() []ModuleState
	ModuleCounters() map[string]map[string]uint64
}

// Attached is a Process that is in a network namespace of its own: its packets come by
// sockets of the instance's.
type Attached interface {
	// AttachedTo reports whether the sockets are of the namespace at a path, or that cannot
	// be known.
	AttachedTo(netns string) bool
}

// Relaying is a Process that relays connections.
type Relaying interface {
	// Relayed is what the node's relays did for the instance's tenant since they began.
	Relayed(ctx context.Context) (Relayed, error)
	// AwaitFull returns once Relayed.Full is another one than was, or after a while.
	AwaitFull(ctx context.Context, was RelayFullness) (RelayFullness, error)
}

// RelayFullness is why a relay should get no new connections; "": it should.
type RelayFullness string

// The reasons. A relay is full before it refuses anybody, and for a while after.
const (
	RelayFullConnections RelayFullness = "connections" // the process has nearly as many as it may
	RelayFullTenant      RelayFullness = "tenant"      // the tenant has
)

// Relayed counts relayed connections.
type Relayed struct {
	Connections int // open now
	Most        int // connections that the tenant may have
	Full        RelayFullness
	// ToOrigin and ToClient are bytes of TCP's payload.
	ToOrigin, ToClient int64
	// Vanished and Stayed count connections of all relays of the node: those without a relay since the
	// end of slow start, and why others kept theirs.
	Vanished int64
	Stayed   map[string]int64
}

// Reconfigurable is a Process that takes a changed configuration while it runs.
type Reconfigurable interface {
	// Reconfigure puts the configuration of s in force, whole; on error the one
	// before stays.
	Reconfigure(ctx context.Context, s *FunctionSpec) error
}

// Lacking is a Process that may not do all of what it was started with, as that needs what its
// runtime does not have at the time.
type Lacking interface {
	// Lacks is what it does not do, and the remedy; nil: it does all.
	Lacks() error
}

// Judged is a Process that its runtime may end by itself.
type Judged interface {
	// EndedFor is why it did; "": it did not.
	EndedFor() string
}

// Talkative is a Process whose output is kept only so far.
type Talkative interface {
	// LeftOut is how much of its output was not kept, in bytes, and why not.
	LeftOut() (bytes int64, why string)
}

// Connecting is a Runtime that connects to other machines by itself, to fetch images.
type Connecting interface {
	// BeforeConnect has a function called before each such connection (TCP), with its
	// destination, and ends when the connection is closed. It is set before the first Prepare.
	BeforeConnect(func(ctx context.Context, to netip.AddrPort) (ends func()))
}

// Inline is a Process without a process: an ebpf function, which the data path
// runs.
type Inline interface {
	// Inline says what to link; its Vport is not set.
	Inline() InlineFunction
	// Counters are those that the function itself declares, by name.
	Counters() (map[string]uint64, error)
}

// KeyedCounters is an Inline that counts by keys of its own choice.
type KeyedCounters interface {
	// Keys are those with the most packets.
	Keys() ([]KeyCount, error)
}

// KeyCount is what was counted for one key.
type KeyCount struct {
	Key     string // its parts, such as "src=10.1.0.2 dport=53"
	Reverse bool
	Count   Tally
}
