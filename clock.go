package onpath

import "time"

// Clock tells the time; tests and simulators pass their own.
type Clock func() time.Time
