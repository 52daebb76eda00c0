package pool

import (
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/calendar"
)

// hour is how far ahead an open-ended reservation pays.
const hour = time.Hour

// end is a slot's end as calendars know it.
func end(t time.Time) time.Time {
	if t.IsZero() {
		return calendar.Forever
	}
	return t
}

// booked are slots as the calendar knows them, between two times.
func booked(slots []onpath.ReservationSlot, from, until time.Time, times int) []calendar.Slot {
	var out []calendar.Slot
	for _, s := range slots {
		a, z := latest(s.From, from), earliest(end(s.Until), until)
		if a.Before(z) {
			out = append(out, calendar.Slot{From: a, Until: z, Capacity: multiply(s.Capacity, times)})
		}
	}
	return out
}

func whole(slots []onpath.ReservationSlot) []calendar.Slot {
	return booked(slots, time.Time{}, calendar.Forever, 1)
}

// multiply is the capacity of n instances.
func multiply(r onpath.Resources, n int) onpath.Resources {
	return onpath.Resources{CPU: r.CPU * onpath.CPU(n), Memory: r.Memory * onpath.Size(n),
		Disk: r.Disk * onpath.Size(n), Network: r.Network * onpath.Rate(n)}
}

// over is how much a is more than b, part by part.
func over(a, b onpath.Resources) onpath.Resources { return atLeastNothing(a.Sub(b)) }

// spliced are the slots old before at, and next from then on.
func spliced(old, next []onpath.ReservationSlot, at time.Time) []onpath.ReservationSlot {
	var out []onpath.ReservationSlot
	add := func(s onpath.ReservationSlot) {
		if n := len(out); n > 0 && out[n-1].Capacity == s.Capacity && out[n-1].Until.Equal(s.From) {
			out[n-1].Until = s.Until
			return
		}
		out = append(out, s)
	}
	for _, s := range old {
		if s.From.Before(at) {
			if end(s.Until).After(at) {
				s.Until = at
			}
			add(s)
		}
	}
	for _, s := range next {
		if end(s.Until).After(at) {
			s.From = latest(s.From, at)
			add(s)
		}
	}
	return out
}

// part is what differs between two rows of slots from one time to another.
type part struct {
	from, until time.Time
	more, less  onpath.Resources
}

// differences goes through the instants from at on.
func differences(old, next []onpath.ReservationSlot, oldTimes, nextTimes int, at time.Time) []part {
	edges := map[time.Time]bool{at: true}
	for _, list := range [][]onpath.ReservationSlot{old, next} {
		for _, s := range list {
			for _, t := range []time.Time{s.From, end(s.Until)} {
				if t.After(at) {
					edges[t] = true
				}
			}
		}
	}
	times := sortedTimes(edges)
	var out []part
	for i := range times[:len(times)-1] {
		a, b := multiply(capacityAt(old, times[i]), oldTimes), multiply(capacityAt(next, times[i]), nextTimes)
		p := part{times[i], times[i+1], over(b, a), over(a, b)}
		if p.more != (onpath.Resources{}) || p.less != (onpath.Resources{}) {
			out = append(out, p)
		}
	}
	return out
}

func capacityAt(slots []onpath.ReservationSlot, t time.Time) onpath.Resources {
	for _, s := range slots {
		if !t.Before(s.From) && t.Before(end(s.Until)) {
			return s.Capacity
		}
	}
	return onpath.Resources{}
}

func sortedTimes(set map[time.Time]bool) []time.Time {
	var out []time.Time
	for t := range set {
		out = append(out, t)
	}
	sortTimes(out)
	return out
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// paidFor are the slots of a reservation as far as they are paid: an open-ended one pays
// an hour ahead.
func paidFor(st *onpath.ReservationStatus) []onpath.ReservationSlot {
	if !st.End().IsZero() || len(st.Slots) == 0 {
		return st.Slots
	}
	var out []onpath.ReservationSlot
	for _, s := range st.Slots {
		if s.From.Before(st.PaidUntil) {
			s.Until = earliest(end(s.Until), st.PaidUntil)
			out = append(out, s)
		}
	}
	return out
}

// paidEdges are now and the instants after it at which slots or payments change.
func paidEdges(slots []onpath.ReservationSlot, payments []payment, now time.Time) []time.Time {
	edges := map[time.Time]bool{now: true}
	mark := func(t time.Time) {
		if t.After(now) {
			edges[t] = true
		}
	}
	for _, s := range slots {
		mark(s.From)
		mark(s.Until)
	}
	for _, pay := range payments {
		for _, s := range pay.Segments {
			mark(s.From)
			mark(s.Until)
		}
	}
	return sortedTimes(edges)
}

// paidAt is the capacity that payments cover at an instant.
func paidAt(payments []payment, at time.Time) (sum onpath.Resources) {
	for _, pay := range payments {
		for _, s := range pay.Segments {
			if !at.Before(s.From) && at.Before(s.Until) {
				for _, t := range s.Tiers {
					sum = sum.Add(t)
				}
			}
		}
	}
	return sum
}

// paidIn is the amount that segments hold in a part in which they do not change.
func paidIn(segments []onpath.PaidSegment, x part) (sum onpath.Resources) {
	for _, s := range segments {
		if s.From.Before(x.until) && x.from.Before(s.Until) {
			for _, t := range s.Tiers {
				sum = sum.Add(t)
			}
			return sum
		}
	}
	return sum
}

func clip(slots []calendar.Slot, until time.Time) []calendar.Slot {
	var out []calendar.Slot
	for _, s := range slots {
		if s.From.Before(until) {
			s.Until = earliest(s.Until, until)
			out = append(out, s)
		}
	}
	return out
}
