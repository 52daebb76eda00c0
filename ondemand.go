package onpath

import "time"

// OnDemand has the instances of a deployment sleep while nobody needs them: their programs
// begin with the first packet (MOSTO §IV). A sleeping instance is placed, wired and prepared,
// and counts as ready. An ebpf function has no program of its own and never sleeps.
type OnDemand struct {
	// StopAfter is how long an instance runs on without a packet to it; default 60s.
	StopAfter Duration `json:"stopAfter,omitempty"`
	// Hold is how much of what comes meanwhile is kept for an instance until it is ready, in
	// bytes; each packet counts as HeldOverhead bytes more than it has. What is too much is
	// dropped. Default 1Mi.
	Hold Size `json:"hold,omitempty"`
}

// Bounds and defaults of OnDemand.
const (
	DefaultStopAfter = Duration(time.Minute)
	DefaultHold      = Size(1 << 20)
	MinStopAfter     = Duration(time.Second)
	MaxStopAfter     = day
	MinHold          = Size(16 << 10)
	MaxHold          = Size(16 << 20)
	HeldOverhead     = 256
)

// ReasonAsleep is the reason of a ready instance whose program is not running.
const ReasonAsleep = "Asleep"

func (o *OnDemand) validate(v *validation, at string) {
	if o == nil {
		return
	}
	byDefault(&o.StopAfter, DefaultStopAfter)
	byDefault(&o.Hold, DefaultHold)
	quantity(v, at+".stopAfter", o.StopAfter, MinStopAfter, MaxStopAfter)
	quantity(v, at+".hold", o.Hold, MinHold, MaxHold)
}
