package onpath

import "time"

// Meter is what an instance has used so far, over restarts of its process, of the agent and
// of the machine. It never falls. What a process used in the last seconds before it ended
// by itself may be missing.
type Meter struct {
	UID        string `json:"uid"` // of the Instance object
	Tenant     string `json:"tenant"`
	Instance   string `json:"instance"`
	Deployment string `json:"deployment"`
	// Reservation, in the tenant, that gives the instance its size; "": none.
	Reservation string        `json:"reservation,omitempty"`
	Began       time.Time     `json:"began"` // when it was metered first
	CPU         time.Duration `json:"cpu"`   // nanoseconds of processor time
	Bytes       uint64        `json:"bytes"` // of IP that chains led into it
	// Gone: nothing of it is left, the meter will not change any more.
	Gone bool `json:"gone,omitempty"`
}

// MeterRequest asks a node for its meters, those of instances that are gone included until
// they are billed.
type MeterRequest struct {
	// Billed are the UIDs of instances that are gone and billed: the node forgets them.
	Billed []string `json:"billed,omitempty"`
}
