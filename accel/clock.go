package accel

import "time"

// now is what limits and time-outs of sockets are set by: they are the kernel's.
func now() time.Time { return time.Now() }

// again is the wait before what lacked something is tried again.
const again = 20 * time.Millisecond

// rest waits a moment for something to become free.
func (r *Relay) rest() {
	select {
	case <-time.After(again):
	case <-r.ctx.Done():
	}
}

func after(d time.Duration) <-chan time.Time { return time.After(d) }

func every(d time.Duration) *time.Ticker { return time.NewTicker(d) }
