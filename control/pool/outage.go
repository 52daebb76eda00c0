package pool

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/ledger"
	"github.com/onpath/onpath/plan/calendar"
)

// FailAfter is how long the room of an instance of which nothing is known stays booked.
const FailAfter = time.Hour

// fate is what becomes of an instance's place.
type fate int

const (
	stays   fate = iota // as it was judged last: nothing new is known
	serves              // nothing says that the instance does not run
	unknown             // it is credited, and stays where it is
	moves               // its machine is dead: another takes it, if one has room
	ends                // as moves; without room it is given up
)

// fateOfPlace judges one place by its node.
func (p *promises) fateOfPlace(x *onpath.ReservedPlace, begun bool, now time.Time) fate {
	n, known := p.nodes[x.Node]
	switch {
	case !known && !p.observed, known && n.NoReport && !n.Gone:
		return stays
	case !known, n.removed:
		return ends
	case !n.Gone, n.Alive:
		return serves
	case p.silentTogether(n):
		return unknown
	case now.Sub(n.Since) >= FailAfter:
		return ends
	case n.Dead:
		return moves
	case !begun:
		return serves
	}
	return unknown
}

// together is how far apart nodes may fall silent that one cut silences.
const together = 5 * time.Minute

// silentTogether reports whether more than half of a node's cloudlet, or of all nodes, fell
// silent with it: that is a network that is cut, or a server that stood still, and no
// machine's death. Nodes that were silent long before say nothing.
func (p *promises) silentTogether(n Node) bool {
	var here, hereGone, all, allGone int
	for _, o := range p.nodes {
		if o.removed || o.Gone && o.Since.Sub(n.Since).Abs() > together || o.NoReport && o.Name != n.Name {
			continue
		}
		gone := 0
		if o.Gone {
			gone = 1
		}
		all, allGone = all+1, allGone+gone
		if o.Cloudlet == n.Cloudlet {
			here, hereGone = here+1, hereGone+gone
		}
	}
	return hereGone > 1 && 2*hereGone > here || allGone > 1 && 2*allGone > all
}

// tendOutages looks after the reservations on nodes that are not heard of, and those that
// were interrupted.
func (p *Pool) tendOutages(ctx context.Context) {
	p.awaitAll(p.tendAll(ctx))
}

func (p *Pool) tendAll(ctx context.Context) (list []writing) {
	var concerned []onpath.Key
	p.queue.look(func(s *state) { concerned = sortedKeysOf(s.admission().findConcerned()) })
	for _, k := range concerned {
		w, err := p.write(ctx, func(s *state) (*decision, map[string]*ledger.Book, error) {
			if e := s.rows.entries[k]; e != nil && !s.rows.isBusy(k) && e.obj.Status.State.Live() {
				return s.admission().tendPlaces(e)
			}
			return nil, nil, nil
		})
		if err != nil {
			p.log.Error("a reservation of a node that is gone cannot be changed; it is tried on", "reservation", k, "err", err)
		} else if w.g != nil {
			list = append(list, w)
		}
	}
	return list
}

// findConcerned are the reservations on nodes that are not heard of, and those that were
// interrupted, but for those that are being changed.
func (a admission) findConcerned() map[onpath.Key]*entry {
	gone := false
	for _, n := range a.promises.nodes {
		gone = gone || n.Gone && a.promises.cal.Peak(n.Name, a.now, calendar.Forever) != (onpath.Resources{})
	}
	if !gone && len(a.rows.lost) == 0 {
		return nil
	}
	concerned := map[onpath.Key]*entry{}
	for k, e := range a.rows.entries {
		if e.obj.Status.State.Live() && !a.rows.isBusy(k) && (a.rows.lost[k] || slices.ContainsFunc(e.obj.Status.Places,
			func(x onpath.ReservedPlace) bool { return a.promises.nodes[x.Node].Gone })) {
			concerned[k] = e
		}
	}
	return concerned
}

// tendPlaces does what is due of one reservation, place by place, and is held; nil: nothing.
func (a admission) tendPlaces(e *entry) (*decision, map[string]*ledger.Book, error) {
	now := a.now
	d := e.change()
	d.pay = slices.Clone(e.payments)
	st := &d.obj.Status
	begun := !st.Begin().After(now)
	slots := booked(st.Slots, now, calendar.Forever, 1)
	var tried []calendar.Booking
	var words []string
	var given []int // places that are given up
	for i := range st.Places {
		x := &st.Places[i]
		n := a.promises.nodes[x.Node]
		lost := x.Lost
		if lost.IsZero() && begun {
			lost = latest(latest(n.Since, st.Begin()), x.Credited)
			if n.Since.IsZero() {
				lost = now // nobody knows the node
			}
		}
		f := a.promises.fateOfPlace(x, begun, now)
		if f == moves || f == ends {
			if to := a.promises.cal.Place(st.Cloudlet, slots, 1, false); to != nil {
				b := calendar.Booking{Node: to[0], Slots: slots}
				a.promises.cal.Book(b)
				tried = append(tried, b)
				d.creditPlace(lost, now)
				words = append(words, fmt.Sprintf("node %s is gone: moved to node %s", x.Node, to[0]))
				*x = onpath.ReservedPlace{Node: to[0], Credited: now}
				continue
			}
			if f == ends {
				x.Lost = lost
				given = append(given, i)
				continue
			}
			f = unknown
		}
		switch {
		case f == unknown && x.Lost.IsZero() && begun:
			x.Lost = lost
			words = append(words, fmt.Sprintf("node %s is not heard of; its time is credited", x.Node))
		case f == serves && !x.Lost.IsZero():
			d.creditPlace(x.Lost, now)
			x.Lost, x.Credited = time.Time{}, now
			words = append(words, fmt.Sprintf("node %s is back", x.Node))
		}
	}
	for _, b := range tried {
		a.promises.cal.Free(b)
	}
	switch {
	case len(given) == len(st.Places):
		books, err := a.failWhole(d, fmt.Sprintf("node %s is gone, and no other of cloudlet %s has room",
			st.Places[given[0]].Node, st.Cloudlet))
		return d, books, err
	case len(given) > 0:
		words = append(words, a.giveUpPlaces(d, given, now))
	case len(words) == 0:
		return nil, nil, nil
	}
	st.Step(stateOf(st, now), now, strings.Join(words, "; "))
	books, err := a.accounting.payDecision(d, now)
	if err != nil {
		return nil, nil, err
	}
	a.holdDecision(d)
	return d, books, nil
}

// giveUpPlaces has a reservation go on with fewer instances, and credits what is paid for the
// others from now on, and since they were lost.
func (a admission) giveUpPlaces(d *decision, places []int, now time.Time) string {
	st := &d.obj.Status
	var names []string
	n := len(st.Places)
	for _, i := range places {
		x := &st.Places[i]
		names = append(names, x.Node)
		d.creditPlace(x.Lost, now)
	}
	for _, x := range differences(paidFor(st), paidFor(st), n, n-len(places), now) {
		d.giveBack(x, onpath.PostingCompensation)
	}
	var stay []onpath.ReservedPlace
	for i, x := range st.Places {
		if !slices.Contains(places, i) {
			stay = append(stay, x)
		}
	}
	st.Places = stay
	return fmt.Sprintf("node %s is gone, and no other of cloudlet %s has room: %d instances are left",
		strings.Join(unique(names), ", "), st.Cloudlet, len(stay))
}

// creditLost credits the lost places of a reservation until a time.
func (d *decision) creditLost(until time.Time) {
	d.pay = slices.Clone(d.pay)
	for i := range d.obj.Status.Places {
		if x := &d.obj.Status.Places[i]; !x.Lost.IsZero() && x.Lost.Before(until) {
			d.creditPlace(x.Lost, until)
			x.Lost, x.Credited = until, until
		}
	}
}

// creditPlace credits one instance's part of a time that is over.
func (d *decision) creditPlace(from, until time.Time) {
	if from.IsZero() || !from.Before(until) {
		return
	}
	for _, s := range booked(paidFor(&d.obj.Status), from, until, 1) {
		d.giveBack(part{s.From, s.Until, onpath.Resources{}, s.Capacity}, onpath.PostingCompensation)
	}
}
