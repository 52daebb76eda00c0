package wanopt

import "time"

// within is the deadline of what may take so long from now on.
func within(d time.Duration) time.Time { return time.Now().Add(d) }

// pause lets a moment pass after a failure.
func pause() { time.Sleep(10 * time.Millisecond) }
