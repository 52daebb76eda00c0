package pool

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/onpath/onpath"
)

// demand is what is asked for by one name.
type demand struct {
	key onpath.Key
	obj *onpath.Reservation
}

func demandsOf(puts []*onpath.Reservation) (out []demand) {
	for _, r := range puts {
		out = append(out, demand{onpath.KeyOf(r), r})
	}
	return out
}

// terms are what follows from a demand and from what is stored by its name, whatever others have.
type terms struct {
	slots   []onpath.ReservationSlot
	same    bool  // it asks for what is stored
	refused error // why nothing can become of it
}

// readTerms finds the terms of a demand, beside the reservation of its name; nil: there is none.
func (r demand) readTerms(old *entry, now time.Time) (t terms) {
	s := &r.obj.Spec
	t.same = old != nil && sameRequest(old.obj, r.obj)
	switch {
	case old == nil || !old.obj.Status.State.Live():
		t.slots = slotsOf(s, now)
		t.refused = notPast(s, t.slots, now)
	case !t.same:
		t.slots = slotsOf(s, old.obj.Status.Begin())
		t.refused = changeable(old.obj, r.obj, t.slots, now)
	}
	return t
}

// slotsOf are the slots that a specification asks for; one without a beginning begins at
// from.
func slotsOf(s *onpath.ReservationSpec, from time.Time) []onpath.ReservationSlot {
	if !s.From.IsZero() {
		from = s.From.UTC()
	}
	if len(s.Slots) == 0 {
		return []onpath.ReservationSlot{{From: from, Until: utc(s.Until), Capacity: s.Capacity}}
	}
	var out []onpath.ReservationSlot
	for _, k := range s.Slots {
		out = append(out, onpath.ReservationSlot{From: from, Until: utc(k.Until), Capacity: k.Capacity})
		from = k.Until.UTC()
	}
	return out
}

func utc(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC()
}

func sameRequest(a, b *onpath.Reservation) bool {
	same := func(s, t onpath.ReservationSlot) bool {
		return s.From.Equal(t.From) && s.Until.Equal(t.Until) && s.Capacity == t.Capacity
	}
	if !slices.EqualFunc(a.Spec.Slots, b.Spec.Slots, same) {
		return false
	}
	s, t := a.Spec, b.Spec
	s.Slots, t.Slots = nil, nil
	x, _ := json.Marshal(s)
	y, _ := json.Marshal(t)
	return bytes.Equal(x, y) && maps.Equal(a.Metadata.Labels, b.Metadata.Labels)
}

// notPast refuses what would begin or end before now.
func notPast(s *onpath.ReservationSpec, slots []onpath.ReservationSlot, now time.Time) error {
	refuse := func(field, remedy, format string, args ...any) error {
		e := onpath.Errorf(onpath.CodeInvalid, format, args...)
		e.Field, e.Remedy = field, remedy
		return e
	}
	if z := slots[len(slots)-1].Until; !z.IsZero() && !z.After(now) {
		return refuse("spec.until", "write a later time", "%s is past", text(z))
	}
	if !s.From.IsZero() && s.From.Before(now) {
		return refuse("spec.from", "write a later time, or leave it out to begin at once", "%s is past", text(s.From))
	}
	for i, k := range slots {
		if !k.Until.IsZero() && !k.From.Before(k.Until) {
			return refuse(fmt.Sprintf("spec.slots[%d].until", i), "write a later time",
				"%s is not after %s, where the slot begins", text(k.Until), text(k.From))
		}
	}
	return nil
}

// changeable refuses what no live reservation can become.
func changeable(old, r *onpath.Reservation, next []onpath.ReservationSlot, now time.Time) error {
	refuse := func(field, remedy, format string, args ...any) error {
		e := onpath.Errorf(onpath.CodeInvalid, format, args...)
		e.Field, e.Remedy = field, remedy
		return e
	}
	anew := "cancel it, and make another"
	s, was := &r.Spec, &old.Spec
	begun := !old.Status.Begin().After(now)
	switch {
	case s.Cloudlet != was.Cloudlet && s.Cloudlet != old.Status.Cloudlet:
		return refuse("spec.cloudlet", anew, "it is in cloudlet %s", old.Status.Cloudlet)
	case s.Near != was.Near && s.Near.IsValid():
		return refuse("spec.near", anew, "where a reservation is cannot be changed")
	case s.Nodes != was.Nodes:
		return refuse("spec.nodes", anew, "machines cannot be added or given back one by one")
	case begun && !next[0].From.Equal(old.Status.Begin()):
		return refuse("spec.from", "leave it as it is", "it has begun at %s", text(old.Status.Begin()))
	case !begun:
		return notPast(s, next, now)
	}
	if z := next[len(next)-1].Until; !z.IsZero() && !z.After(now) {
		return refuse("spec.until", "delete it, which cancels it", "%s is past", text(z))
	}
	return nil
}
