package onpath

import "time"

// Reservation is capacity for a time (PacketCloud §3.4, Tables 1 and 2): a request until
// it is admitted, a promise from then on.
type Reservation struct {
	TypeMeta
	Metadata Metadata          `json:"metadata"`
	Spec     ReservationSpec   `json:"spec"`
	Status   ReservationStatus `json:"status,omitzero"`
}

// ReservationSpec says how much, when and where. Exactly one of Capacity, Slots and Nodes.
type ReservationSpec struct {
	// From absent: at once.
	From time.Time `json:"from,omitzero"`
	// Until absent: open-ended, paid each hour ahead. Not beside Slots.
	Until time.Time `json:"until,omitzero"`
	// Capacity of each instance, all the time.
	Capacity Resources `json:"capacity,omitzero"`
	// Slots have a capacity each; the first begins at From, each next where the one
	// before ends (Table 2).
	Slots []ReservationSlot `json:"slots,omitempty"`
	// Instances, default 1, at most MaxReserved.
	Instances int `json:"instances,omitempty"`
	// Nodes are whole machines, an instance on each.
	Nodes int `json:"nodes,omitempty"`
	// Cloudlet, or the one nearest to users with these addresses; neither: any.
	Cloudlet string `json:"cloudlet,omitempty"`
	Near     Prefix `json:"near,omitzero"`
	// MaxPrice: what costs more in all is declined. An open-ended reservation ends before
	// an hour that costs more.
	MaxPrice *Money `json:"maxPrice,omitempty"`
}

// ReservationSlot is a capacity until a time.
type ReservationSlot struct {
	// From may be left out: it is where the slot before ends.
	From time.Time `json:"from,omitzero"`
	// Until may be absent in the last slot: open-ended.
	Until    time.Time `json:"until,omitzero"`
	Capacity Resources `json:"capacity"`
}

// Bounds of a reservation.
const (
	MaxReserved = 128 // instances
	MaxSlots    = 400 // a year of days, and some
)

// ReservationStatus is what was decided.
type ReservationStatus struct {
	State  ReservationState  `json:"state,omitempty"`
	Reason string            `json:"reason,omitempty"` // of the state, in words
	Steps  []ReservationStep `json:"steps,omitempty"`  // the states so far, at most MaxSteps
	// Cloudlet and Places: an instance each.
	Cloudlet string          `json:"cloudlet,omitempty"`
	Places   []ReservedPlace `json:"places,omitempty"`
	// Slots as they are promised; an Until that is absent is open-ended.
	Slots []ReservationSlot `json:"slots,omitempty"`
	// Paid so far, Refunded of it.
	Paid     Money  `json:"paid"`
	Refunded Money  `json:"refunded,omitempty"`
	Currency string `json:"currency,omitempty"`
	// PaidUntil is the end of the last hour that an open-ended reservation has paid.
	PaidUntil time.Time `json:"paidUntil,omitzero"`
	// Holds is from when a growth holds that waits for instances to move.
	Holds time.Time `json:"holds,omitzero"`
	// Notes say what the promise does not hold, and what goes on.
	Notes []string `json:"notes,omitempty"`
}

// MaxSteps bounds ReservationStatus.Steps; of more, the oldest go.
const MaxSteps = 32

// ReservationStep is a state and when it began.
type ReservationStep struct {
	State  ReservationState `json:"state"`
	At     time.Time        `json:"at"`
	Reason string           `json:"reason,omitempty"`
}

// ReservedPlace is where one instance runs.
type ReservedPlace struct {
	Node string `json:"node"`
	// Leaving is the node that the instance moves from, which stays promised until
	// LeavingUntil; it is gone there by then.
	Leaving      string    `json:"leaving,omitempty"`
	LeavingUntil time.Time `json:"leavingUntil,omitzero"`
	// Lost is from when on it is not known that the instance runs, and nothing is credited
	// yet.
	Lost time.Time `json:"lost,omitzero"`
	// Credited is the end of the time that was credited for the instance last.
	Credited time.Time `json:"credited,omitzero"`
}

// ReservationState is how far a reservation is.
type ReservationState string

// The states. Declined, cancelled, ended and failed are final.
const (
	ReservationRequested ReservationState = "requested"
	ReservationQuoted    ReservationState = "quoted"
	ReservationConfirmed ReservationState = "confirmed"
	ReservationActive    ReservationState = "active"
	// ReservationInterrupted: of some instances it is not known that they run. Their room
	// stays booked, the time is credited, and the reservation goes on by itself.
	ReservationInterrupted ReservationState = "interrupted"
	ReservationEnded       ReservationState = "ended"
	ReservationDeclined    ReservationState = "declined"
	ReservationCancelled   ReservationState = "cancelled"
	ReservationFailed      ReservationState = "failed"
)

// Live reports whether the state is a promise.
func (s ReservationState) Live() bool {
	return s == ReservationConfirmed || s == ReservationActive || s == ReservationInterrupted
}

// Meta implements Object.
func (r *Reservation) Meta() *Metadata { return &r.Metadata }

// ObjectKind implements Object.
func (r *Reservation) ObjectKind() Kind { return KindReservation }

// End is when the last slot ends; zero: never.
func (s *ReservationStatus) End() time.Time {
	if n := len(s.Slots); n > 0 {
		return s.Slots[n-1].Until
	}
	return time.Time{}
}

// Begin is when the first slot begins.
func (s *ReservationStatus) Begin() time.Time {
	if len(s.Slots) > 0 {
		return s.Slots[0].From
	}
	return time.Time{}
}

// At is the slot that holds at an instant; nil if none does.
func (s *ReservationStatus) At(t time.Time) *ReservationSlot {
	for i := range s.Slots {
		if k := &s.Slots[i]; !t.Before(k.From) && (k.Until.IsZero() || t.Before(k.Until)) {
			return k
		}
	}
	return nil
}

// Step enters a state.
func (s *ReservationStatus) Step(state ReservationState, at time.Time, reason string) {
	s.State, s.Reason = state, reason
	s.Steps = append(s.Steps, ReservationStep{state, at.UTC().Round(0), reason})
	if n := len(s.Steps); n > MaxSteps {
		s.Steps = s.Steps[n-MaxSteps:]
	}
}
