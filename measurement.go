package onpath

import "net/netip"

// Measurement registers that the pairs among some nodes are measured (MOSTO §IV.B). Nodes
// measure a pair once for all who ask, as often as the most eager does.
type Measurement struct {
	TypeMeta
	Metadata Metadata        `json:"metadata"`
	Spec     MeasurementSpec `json:"spec"`
}

// MeasurementSpec says which pairs, how often, and what is news.
type MeasurementSpec struct {
	// Nodes, of which every two are measured; at least 2, at most 128.
	Nodes []string `json:"nodes"`
	// Every is the time between two questions of a pair; default 10s.
	Every Duration `json:"every,omitempty"`
	// Change is the change of the round trip from which on it is told, as a share of the
	// value told before, 0 to 1; default 0.1.
	Change *float64 `json:"change,omitempty"`
}

// MeasurePort is the UDP port at nodes' underlay addresses where they answer (STAMP,
// RFC 8762 §4.1).
const MeasurePort = 862

// DefaultMeasureChange is Measurement.Spec.Change where it is absent.
const DefaultMeasureChange = 0.1

// MeasureTarget is one thing that a node measures.
type MeasureTarget struct {
	Name    string         `json:"name"`    // a node, or ADDRESS:PORT of an origin
	Address netip.AddrPort `json:"address"` // where it answers
	// Connect: the time of a TCP handshake is taken, for what does not speak STAMP.
	Connect bool     `json:"connect,omitempty"`
	Every   Duration `json:"every"`
	Change  float64  `json:"change"`
}

// MeasurePlan is what a node measures, and that it answers others.
type MeasurePlan struct {
	Secret  []byte          `json:"secret"` // signs questions and answers
	Targets []MeasureTarget `json:"targets,omitempty"`
}

// Distance is what a node measured last of one target.
type Distance struct {
	To   string   `json:"to"`   // MeasureTarget.Name
	RTT  Duration `json:"rtt"`  // median; 0: no answer
	Loss float64  `json:"loss"` // share, 0 to 1
}

// Meta implements Object.
func (m *Measurement) Meta() *Metadata { return &m.Metadata }

// ObjectKind implements Object.
func (m *Measurement) ObjectKind() Kind { return KindMeasurement }

// Validate implements Object.
func (m *Measurement) Validate() error {
	v := begin(m, &m.TypeMeta)
	s := &m.Spec
	if n := len(s.Nodes); n < 2 || n > MaxAcceleratorNodes {
		v.add("spec.nodes", "name from 2 to 128 nodes", "has %d nodes", n)
	}
	s.Nodes = v.names("spec.nodes", s.Nodes)
	byDefault(&s.Every, DefaultMeasureEvery)
	quantity(v, "spec.every", s.Every, Duration(100e6), Duration(3600e9))
	if s.Change == nil {
		c := DefaultMeasureChange
		s.Change = &c
	} else if *s.Change < 0 || *s.Change > 1 {
		v.add("spec.change", "write a share, such as 0.1", "%v is not between 0 and 1", *s.Change)
	}
	return v.err()
}
