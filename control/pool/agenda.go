package pool

import (
	"cmp"
	"container/heap"
	"slices"
	"time"

	"github.com/onpath/onpath"
)

// agenda orders reservations by when something of them is due next.
type agenda []*entry

func (a agenda) Len() int { return len(a) }

func (a agenda) Less(i, j int) bool { return a[i].due.Before(a[j].due) }

func (a agenda) Swap(i, j int) {
	a[i], a[j] = a[j], a[i]
	a[i].index, a[j].index = i, j
}

// Push implements heap.Interface.
func (a *agenda) Push(x any) {
	e := x.(*entry)
	e.index = len(*a)
	*a = append(*a, e)
}

// Pop implements heap.Interface.
func (a *agenda) Pop() any {
	e := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	e.index = -1
	return e
}

func (a *agenda) drop(e *entry) {
	if e.index >= 0 {
		heap.Remove(a, e.index)
	}
}

// nextDue is when something of a live reservation is to be done, after now or at last.
func nextDue(st *onpath.ReservationStatus, now time.Time) (due time.Time) {
	if !st.State.Live() {
		return due
	}
	note := func(t time.Time) {
		if !t.IsZero() && (due.IsZero() || t.Before(due)) {
			due = t
		}
	}
	note(st.End())
	if st.State == onpath.ReservationConfirmed {
		note(st.Begin())
		if soon := st.Begin().Add(-Soon); soon.After(now) {
			note(soon)
		}
	}
	if st.End().IsZero() {
		note(st.PaidUntil)
	}
	note(st.Holds)
	for _, x := range st.Places {
		note(x.LeavingUntil)
	}
	return due
}

// dueAtOnce bounds how long one step keeps others waiting.
const dueAtOnce = 500

// dueBy are entries of which something is due by a time, the earliest first.
func (a agenda) dueBy(now time.Time) []*entry {
	var out []*entry
	at := []int{0}
	for len(at) > 0 && len(out) < dueAtOnce { // nothing below one that is not due is
		i := at[0]
		if at = at[1:]; i < len(a) && !a[i].due.After(now) {
			out = append(out, a[i])
			at = append(at, 2*i+1, 2*i+2)
		}
	}
	slices.SortFunc(out, func(x, y *entry) int {
		return cmp.Or(x.due.Compare(y.due), cmp.Compare(x.key.String(), y.key.String()))
	})
	return out
}
