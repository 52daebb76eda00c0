package vanish

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// idleFor is how long a connection may rest: more than two hours and four minutes (RFC 5382).
	idleFor = 2*time.Hour + 15*time.Minute
	// overFor is how long packets of a connection that is over may still come.
	overFor = 30 * time.Second
)

// clock is the time by which the program notes when a packet came.
func clock() uint64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &t); err != nil {
		return 0
	}
	return uint64(t.Nano())
}

// Sweep deletes connections that are over or have rested for too long, from all translators of a
// machine, and returns how many connections are left.
func Sweep(list []*Translator) (left int, err error) {
	return sweep(list, clock())
}

// location is where a half is.
type location struct {
	in  *Translator
	key Key
	Half
}

// reverse is the key of packets that go the other way, but for the device.
func (p location) reverse() Key {
	return Key{Src: p.Dst, Dst: p.Src, Sport: p.Dport, Dport: p.Sport}
}

func sweep(list []*Translator, now uint64) (left int, err error) {
	found := map[Key][]location{} // by ends alone
	for _, t := range list {
		all, failed := t.All()
		err = errors.Join(err, failed)
		for k, h := range all {
			at := k
			at.Ifindex = 0
			found[at] = append(found[at], location{t, k, h})
		}
	}
	halves := 0
	for _, some := range found {
		for _, p := range some {
			other := p.other(found)
			over, seen := p.Over, p.Seen
			if other != nil {
				over, seen = over&other.Over|(over|other.Over)&Reset, max(seen, other.Seen)
			}
			rest := time.Duration(now - min(seen, now))
			if p.State == Forward || p.State == Observe || p.State == Drain || p.State == Own { // its connection deletes it
				continue
			}
			if over != 0 && rest > overFor || rest > idleFor {
				p.in.Delete(p.key)
				p.deleteForward(found)
				continue
			}
			halves++
		}
	}
	return (halves + 1) / 2, err
}

// other is the half of the other end; nil: it is gone.
func (p location) other(found map[Key][]location) *location {
	for _, o := range found[p.reverse()] {
		if o.State == Translate && o.reverse() == without(p.key) {
			return &o
		}
	}
	return nil
}

func without(k Key) Key {
	k.Ifindex = 0
	return k
}

// deleteForward deletes the half by which packets of this one cross over.
func (p location) deleteForward(found map[Key][]location) {
	translated := Key{Src: p.Src, Dst: p.Dst, Sport: p.Sport, Dport: p.Dport}
	for _, o := range found[translated] {
		if o.State == Forward && o.in != p.in {
			o.in.Delete(o.key)
		}
	}
}

// clean deletes halves of connections whose relay was killed before it had stepped out.
func (t *Translator) clean() error {
	all, err := t.All()
	for k, h := range all {
		if h.State == Observe || h.State == Drain || h.State == Own {
			t.Delete(k)
		}
	}
	return err
}
