package pool

import (
	"cmp"
	"container/heap"
	"slices"
	"strings"
	"time"

	"github.com/onpath/onpath"
)

// rows are the reservations that are stored, and what is to be done of them when.
type rows struct {
	entries map[onpath.Key]*entry
	stored  map[string]stored // by tenant
	agenda  agenda
	leaving map[onpath.Key]bool   // with instances that move
	lost    map[onpath.Key]bool   // with instances of which nothing is known
	pending map[onpath.Key]*group // by the reservations that groups change
	// tentative are the reservations of decisions that nodes are asked to confirm: what they had
	// is not in the calendar. The channel is closed when that is over.
	tentative map[onpath.Key]chan struct{}
}

// clear leaves them empty.
func (r *rows) clear() {
	*r = rows{entries: map[onpath.Key]*entry{}, stored: map[string]stored{}, leaving: map[onpath.Key]bool{}, lost: map[onpath.Key]bool{},
		pending: map[onpath.Key]*group{}, tentative: map[onpath.Key]chan struct{}{}}
}

// put takes up another entry of a reservation; nil: there is none any more.
func (r *rows) put(k onpath.Key, e *entry) {
	s := r.stored[k.Tenant]
	if old := r.entries[k]; old != nil {
		was := storedOf(old.obj)
		s.objects, s.bytes = s.objects-was.objects, s.bytes-was.bytes
	}
	if e == nil {
		delete(r.entries, k)
	} else {
		is := storedOf(e.obj)
		s.objects, s.bytes = s.objects+is.objects, s.bytes+is.bytes
		r.entries[k] = e
	}
	if r.stored[k.Tenant] = s; s.objects == 0 {
		delete(r.stored, k.Tenant)
	}
}

// schedule notes when something of a reservation is due next. soon: it runs, or soon will.
func (r *rows) schedule(e *entry, now time.Time) (soon bool) {
	k, st := e.key, &e.obj.Status
	r.agenda.drop(e)
	delete(r.leaving, k)
	if slices.ContainsFunc(st.Places, func(x onpath.ReservedPlace) bool { return x.Leaving != "" }) {
		r.leaving[k] = true
	}
	delete(r.lost, k)
	if st.State.Live() && slices.ContainsFunc(st.Places, func(x onpath.ReservedPlace) bool { return !x.Lost.IsZero() }) {
		r.lost[k] = true
	}
	if e.due = nextDue(st, now); !e.due.IsZero() {
		heap.Push(&r.agenda, e)
	}
	return st.State.Live() && !st.Begin().Add(-Soon).After(now)
}

// reservedOn are the live reservations with instances on a node that do not leave it already,
// one for each instance, those that begin last first.
func (r *rows) reservedOn(node string) []onpath.Key {
	var out []onpath.Key
	for k, e := range r.entries {
		st := &e.obj.Status
		for _, x := range st.Places {
			if x.Node == node && x.Leaving == "" && st.State.Live() {
				out = append(out, k)
			}
		}
	}
	slices.SortFunc(out, func(a, b onpath.Key) int {
		return cmp.Or(r.entries[b].obj.Status.Begin().Compare(r.entries[a].obj.Status.Begin()), strings.Compare(a.String(), b.String()))
	})
	return out
}

// ofTenant are the reservations of a tenant that are live, or that are not.
func (r *rows) ofTenant(tenant string, live bool) (out []onpath.Key) {
	for _, k := range sortedKeysOf(r.entries) {
		if k.Tenant == tenant && r.entries[k].obj.Status.State.Live() == live {
			out = append(out, k)
		}
	}
	return out
}

// isOvertaken reports whether somebody else changed what d is a change of.
func (r *rows) isOvertaken(d *decision) bool {
	return r.entries[d.key] != d.old || r.pending[d.key] != nil || slices.ContainsFunc(d.moved, r.isOvertaken)
}

// pendingOf is a group that changes one of some reservations; nil: none does.
func (r *rows) pendingOf(keys []onpath.Key) *group {
	for _, k := range keys {
		if g := r.pending[k]; g != nil {
			return g
		}
	}
	return nil
}

// isBusy reports whether a decision on a reservation is under way.
func (r *rows) isBusy(k onpath.Key) bool { return r.pending[k] != nil || r.tentative[k] != nil }

// tentativeOf is closed when one of some reservations is free; nil: all are.
func (r *rows) tentativeOf(keys []onpath.Key) <-chan struct{} {
	for _, k := range keys {
		if over := r.tentative[k]; over != nil {
			return over
		}
	}
	return nil
}

// markTentative has nobody else decide on the reservations of decisions until they are confirmed.
func (r *rows) markTentative(decisions []*decision) (over chan struct{}) {
	over = make(chan struct{})
	for _, d := range flat(decisions) {
		r.tentative[d.key] = over
	}
	return over
}

// endTentative has others decide on them again.
func (r *rows) endTentative(decisions []*decision, over chan struct{}) {
	for _, d := range flat(decisions) {
		if r.tentative[d.key] == over {
			delete(r.tentative, d.key)
		}
	}
	close(over)
}
