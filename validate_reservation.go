package onpath

import "time"

// Reservations lie between these: what is outside is a slip of the pen.
var (
	firstTime = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	lastTime  = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)
)

// Validate implements Object. It does not know the time of day: who admits the
// reservation looks at that.
func (r *Reservation) Validate() error {
	v := begin(r, &r.TypeMeta)
	s := &r.Spec
	v.instant("spec.from", s.From)
	v.instant("spec.until", s.Until)
	v.amount(s)
	if !s.From.IsZero() && !s.Until.IsZero() && !s.From.Before(s.Until) {
		v.add("spec.until", "write a later time", "%s is not after %s, where the reservation begins", when(s.Until), when(s.From))
	}
	if len(s.Slots) > 0 {
		v.slots(s)
	}
	if s.Cloudlet != "" {
		v.name("spec.cloudlet", s.Cloudlet)
	}
	if s.Near.IsValid() && s.Cloudlet != "" {
		v.add("spec.near", "write cloudlet or near", "stands beside cloudlet")
	}
	if p := s.MaxPrice; p != nil && *p < 0 {
		v.add("spec.maxPrice", "write 0 or more", "%s is less than nothing", *p)
	}
	return v.err()
}

// amount checks how much is asked for, and how often.
func (v *validation) amount(s *ReservationSpec) {
	given := 0
	for _, is := range []bool{s.Capacity != Resources{}, len(s.Slots) > 0, s.Nodes != 0} {
		if is {
			given++
		}
	}
	if given != 1 {
		v.add("spec", "write exactly one of capacity, slots and nodes", "says %d times how much is reserved", given)
		return
	}
	switch {
	case s.Nodes != 0:
		v.number("spec.nodes", s.Nodes, 1, MaxReserved)
		if s.Instances != 0 {
			v.add("spec.instances", "take it out", "stands beside nodes: each machine has one instance")
		}
		return
	case s.Instances == 0:
		s.Instances = 1
	}
	v.number("spec.instances", s.Instances, 1, MaxReserved)
	if s.Capacity != (Resources{}) {
		v.resources("spec.capacity", s.Capacity)
	}
}

func (v *validation) slots(s *ReservationSpec) {
	if len(s.Slots) > MaxSlots {
		v.add("spec.slots", "make several reservations of it", "%d slots are too many; at most %d", len(s.Slots), MaxSlots)
		return
	}
	if !s.Until.IsZero() {
		v.add("spec.until", "take it out", "stands beside slots, of which the last says when the reservation ends")
	}
	before := s.From
	for i := range s.Slots {
		k, at := &s.Slots[i], index("spec.slots", i)
		v.instant(at+".from", k.From)
		v.instant(at+".until", k.Until)
		if k.Capacity == (Resources{}) {
			v.add(at+".capacity", "write cpu, memory, disk or network", "is missing")
		} else {
			v.resources(at+".capacity", k.Capacity)
		}
		v.joins(at, k, before, i == 0)
		if k.Until.IsZero() && i < len(s.Slots)-1 {
			v.add(at+".until", "write when the slot ends", "is missing; only the last slot may be open-ended")
			return
		}
		if !k.Until.IsZero() && !before.IsZero() && !before.Before(k.Until) {
			v.add(at+".until", "write a later time", "%s is not after %s, where the slot begins", when(k.Until), when(before))
		}
		before = k.Until
	}
}

// joins checks that a slot begins where the one before ends.
func (v *validation) joins(at string, k *ReservationSlot, before time.Time, first bool) {
	switch {
	case k.From.IsZero() || k.From.Equal(before):
		k.From = time.Time{} // said once
	case first:
		v.add(at+".from", "leave it out", "%s differs from spec.from, where the first slot begins", when(k.From))
	case k.From.After(before):
		v.add(at+".from", "leave it out, or write a slot between",
			"leaves a gap: the slot before ends at %s, this one begins at %s", when(before), when(k.From))
	default:
		v.add(at+".from", "leave it out", "overlaps: the slot before ends at %s, this one begins at %s", when(before), when(k.From))
	}
}

func (v *validation) instant(field string, t time.Time) {
	if !t.IsZero() && (t.Before(firstTime) || !t.Before(lastTime)) {
		v.add(field, "", "%s is not in this or the next century", when(t))
	}
}

func when(t time.Time) string { return t.Format(time.RFC3339Nano) }

// reservation checks the name of a reservation, which is the own tenant's.
func (v *validation) reservation(field string, r *Ref, own string) {
	if *r == "" || !v.ref(field, r, "reservation", own) {
		return
	}
	if tenant, _ := r.Resolve(own); tenant != own {
		v.add(field, "reserve for tenant "+own, "%s belongs to another tenant", quote(string(*r)))
	}
}
