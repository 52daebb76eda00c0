package fake

import (
	"time"

	"github.com/onpath/onpath"
)

// way is a direction at a vport.
type way struct {
	vport onpath.VportID
	out   bool // what it is sent
}

// withinRate tells whether a packet may pass a vport one way; then it counts. What was not
// sent in time is not made up for, but for a burst.
func (n *Node) withinRate(v *onpath.Vport, out bool, length int) bool {
	rate := v.RateIn
	if out {
		rate = v.RateOut
	}
	asleep, bytes := out && v.Asleep, n.wire(length)
	if asleep {
		rate, bytes = 8*uint64(v.Hold), bytes+onpath.HeldOverhead
	}
	if rate == 0 {
		return true
	}
	k, now := way{v.ID, out}, n.now()
	due, burst := n.due[k], takes(onpath.RateBurst(rate), rate)
	if asleep {
		burst = time.Second
	}
	if due.Sub(now) > burst {
		return false
	}
	if due.Before(now) {
		due = now
	}
	n.due[k] = due.Add(takes(bytes, rate))
	return true
}

// takes is how long bytes take at a rate in bit/s.
func takes(bytes, rate uint64) time.Duration {
	return time.Duration(float64(bytes) * 8 / float64(rate) * float64(time.Second))
}
