package signalling

import "time"

// clock is the time by which requests wait, and connections end.
func clock() time.Time { return time.Now() }
