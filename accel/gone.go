package accel

import (
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// goneAfter is after how long without any acknowledgement an end is gone.
const goneAfter = 2 * time.Minute

// endGone resets connections of which an end is gone while bytes are on their way to it.
// Keep-alives do not find these, and the kernel goes on for a quarter of an hour.
func (r *Relay) endGone() {
	ticks := time.NewTicker(r.cfg.gone / 4)
	defer ticks.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-ticks.C:
		}
		r.mu.Lock()
		live := slices.Collect(maps.Keys(r.live))
		r.mu.Unlock()
		for _, c := range live {
			if isGone(c, r.cfg.gone) {
				reset(c)
			}
		}
	}
}

// isGone reports whether an end has left segments unanswered that were sent to it several times,
// or several probes of its closed window. An end that rests answers each.
func isGone(c conn, after time.Duration) (gone bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	_ = control(raw, func(fd int) error {
		is, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil {
			quiet := time.Duration(is.Last_ack_recv) * time.Millisecond
			gone = max(is.Retransmits, is.Probes) >= 3 && quiet > after
		}
		return err
	})
	return gone
}
