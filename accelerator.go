package onpath

import (
	"net/netip"
	"slices"
)

// Accelerator has TCP connections to origins relayed by chains of nodes, so that slow
// start runs over several short legs (MOSTO §III). The chain follows from the transfer's
// size and from the measured round trips between the nodes.
type Accelerator struct {
	TypeMeta
	Metadata Metadata          `json:"metadata"`
	Spec     AcceleratorSpec   `json:"spec"`
	Status   AcceleratorStatus `json:"status,omitzero"`
}

// AcceleratorSpec says what is accelerated, and where relays may be.
type AcceleratorSpec struct {
	Origins []AcceleratedOrigin `json:"origins"`
	// Between are nodes that may relay, at most 128. Those that are gateways take the
	// connections over that pass them.
	Between []string `json:"between"`
	// Ingress are those of Between that take connections over; default: all of them that
	// are gateways. On a path with several, name the one at the clients.
	Ingress []string `json:"ingress,omitempty"`
	// Congestion is the congestion control of the legs, such as cubic or bbr; default: the
	// kernel's.
	Congestion string `json:"congestion,omitempty"`
	// SYN says when a client's SYN is answered: at once, or once the origin has answered, so
	// that a closed port looks closed. Default answer.
	SYN SYNAnswer `json:"syn,omitempty"`
	// Vanish has relays step out of a connection at the end of its slow start: the kernel then
	// translates between the two halves, and the relay costs nothing more.
	Vanish bool `json:"vanish,omitempty"`
	// MaxLoss is the share of packets that a leg between two relays may lose, 0 to 1;
	// legs that lose more are not used. Default 0.05.
	MaxLoss *float64 `json:"maxLoss,omitempty"`
	// Every is the time between two measurements of a pair; default 10s.
	Every Duration `json:"every,omitempty"`
}

// SYNAnswer is when a relay answers a client's SYN.
type SYNAnswer string

// When a relay answers.
const (
	SYNAtOnce SYNAnswer = "answer" // at once, which saves a round trip
	SYNWait   SYNAnswer = "wait"   // once the origin has answered, and as it has
)

// AcceleratedOrigin is one port of a server, and how much it sends.
type AcceleratedOrigin struct {
	Address netip.Addr `json:"address"` // IPv4
	Port    uint16     `json:"port"`
	// Size of a typical transfer, 1 byte to 1Ti; default 100Ki.
	Size Size `json:"size,omitempty"`
}

// AcceleratorStatus says which chains are in use.
type AcceleratorStatus struct {
	// Paths for the size of each origin, from each ingress.
	Paths      []AcceleratorPath `json:"paths,omitempty"`
	Conditions []Condition       `json:"conditions,omitempty"`
}

// AcceleratorPath is one origin's path from one ingress node.
type AcceleratorPath struct {
	Ingress string   `json:"ingress"`
	Origin  string   `json:"origin"` // ADDRESS:PORT
	Nodes   []string `json:"nodes"`  // that relay, the ingress first
	// Time and Direct are what the model says of a transfer of the origin's size, seen
	// from the ingress: through Nodes, and without relays.
	Time   Duration `json:"time"`
	Direct Duration `json:"direct"`
}

// AcceleratorLabel names the accelerator on the functions, deployments and chains that
// onpath makes for it.
const AcceleratorLabel = "accelerator"

// Bounds and defaults of accelerators.
const (
	MaxAcceleratorNodes   = 128
	MaxAcceleratorOrigins = 64
	DefaultTransferSize   = Size(100 << 10)
	DefaultMaxLoss        = 0.05
	DefaultMeasureEvery   = Duration(10e9)
)

// Meta implements Object.
func (a *Accelerator) Meta() *Metadata { return &a.Metadata }

// ObjectKind implements Object.
func (a *Accelerator) ObjectKind() Kind { return KindAccelerator }

// Validate implements Object.
func (a *Accelerator) Validate() error {
	v := begin(a, &a.TypeMeta)
	s := &a.Spec
	switch n := len(s.Origins); {
	case n == 0:
		v.add("spec.origins", "write [{address: …, port: 443, size: 500k}]", "is missing")
	case n > MaxAcceleratorOrigins:
		v.add("spec.origins", "write several accelerators", "has %d origins; at most %d", n, MaxAcceleratorOrigins)
	}
	seen := map[netip.AddrPort]bool{}
	for i := range s.Origins {
		v.origin(index("spec.origins", i), &s.Origins[i], seen)
	}
	switch n := len(s.Between); {
	case n == 0:
		v.add("spec.between", "name the nodes that may relay", "is missing")
	case n > MaxAcceleratorNodes:
		v.add("spec.between", "", "has %d nodes; at most %d", n, MaxAcceleratorNodes)
	}
	s.Between = v.names("spec.between", s.Between)
	s.Ingress = v.names("spec.ingress", s.Ingress)
	for i, n := range s.Ingress {
		if !slices.Contains(s.Between, n) {
			v.add(index("spec.ingress", i), "add it to spec.between, too", "%s is not one of the nodes that relay", quote(n))
		}
	}
	v.text("spec.congestion", s.Congestion, 15)
	enum(v, "spec.syn", &s.SYN, SYNAtOnce, SYNAtOnce, SYNWait)
	if s.MaxLoss == nil {
		loss := DefaultMaxLoss
		s.MaxLoss = &loss
	} else if *s.MaxLoss < 0 || *s.MaxLoss > 1 {
		v.add("spec.maxLoss", "write a share, such as 0.05", "%v is not between 0 and 1", *s.MaxLoss)
	}
	byDefault(&s.Every, DefaultMeasureEvery)
	quantity(v, "spec.every", s.Every, Duration(100e6), Duration(3600e9))
	return v.err()
}

func (v *validation) origin(at string, o *AcceleratedOrigin, seen map[netip.AddrPort]bool) {
	switch a := o.Address; {
	case !a.IsValid():
		v.add(at+".address", "write the origin's IPv4 address", "is missing")
	case !a.Is4():
		v.add(at+".address", "write an IPv4 address", "%s: connections over IPv6 are not relayed yet", a)
	case !a.IsGlobalUnicast():
		v.add(at+".address", "", "%s is no address of a server that others reach", a)
	}
	if o.Port == 0 {
		v.add(at+".port", "write the server's TCP port", "is missing")
	}
	byDefault(&o.Size, DefaultTransferSize)
	quantity(v, at+".size", o.Size, 1, 1<<40)
	k := netip.AddrPortFrom(o.Address, o.Port)
	if seen[k] {
		v.add(at, "keep one of them", "%s stands twice", k)
	}
	seen[k] = true
}
