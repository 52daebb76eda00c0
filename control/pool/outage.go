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
	serves  fate = iota // nothing says that the instance does not run
	unknown             // it is credited, and stays where it is
	moves               // its machine is dead: another takes it, if one has room
	ends                // as moves; without room it is given up
)

// fateOf judges one place by its node.
func (p *Pool) fateOf(x *onpath.ReservedPlace, begun bool, now time.Time) fate {
	n := p.nodes[x.Node]
	switch {
	case !n.Gone:
		return serves
	case n.removed:
		return ends
	case n.Alive:
		return serves
	case p.silentTogether(n.Cloudlet):
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

// silentTogether reports whether more than half of a cloudlet's nodes, or of all, are not
// heard of: that is a network that is cut, or a server that stood still, and no machine's
// death.
func (p *Pool) silentTogether(cloudlet string) bool {
	var here, hereGone, all, allGone int
	for _, n := range p.nodes {
		if n.removed {
			continue
		}
		gone := 0
		if n.Gone {
			gone = 1
		}
		all, allGone = all+1, allGone+gone
		if n.Cloudlet == cloudlet {
			here, hereGone = here+1, hereGone+gone
		}
	}
	return hereGone > 1 && 2*hereGone > here || allGone > 1 && 2*allGone > all
}

// tendOutages looks after the reservations on nodes that are not heard of, and those that
// were interrupted.
func (p *Pool) tendOutages(ctx context.Context) {
	now, gone := p.clock(), false
	for _, n := range p.nodes {
		gone = gone || n.Gone && p.cal.Peak(n.Name, now, calendar.Forever) != (onpath.Resources{})
	}
	if !gone && len(p.lost) == 0 {
		return
	}
	concerned := map[onpath.Key]*entry{}
	for k, e := range p.entries {
		if e.obj.Status.State.Live() && p.pending[k] == nil && (p.lost[k] || slices.ContainsFunc(e.obj.Status.Places,
			func(x onpath.ReservedPlace) bool { return p.nodes[x.Node].Gone })) {
			concerned[k] = e
		}
	}
	for _, k := range sortedKeysOf(concerned) {
		if err := p.tend(ctx, concerned[k], now); err != nil {
			p.log.Error("a reservation of a node that is gone cannot be changed; it is tried on", "reservation", k, "err", err)
		}
	}
}

// tend does what is due of one reservation, place by place.
func (p *Pool) tend(ctx context.Context, e *entry, now time.Time) error {
	d := &decision{key: onpath.KeyOf(e.obj), old: e, obj: copyOf(e.obj), pay: slices.Clone(e.payments)}
	st := &d.obj.Status
	begun := !st.Begin().After(now)
	slots := booked(st.Slots, now, calendar.Forever, 1)
	var tried []calendar.Booking
	var words []string
	var given []int // places that are given up
	since := now
	for i := range st.Places {
		x := &st.Places[i]
		n := p.nodes[x.Node]
		lost := x.Lost
		if lost.IsZero() && begun {
			lost = latest(n.Since, st.Begin())
		}
		f := p.fateOf(x, begun, now)
		if f == moves || f == ends {
			if to := p.cal.Place(st.Cloudlet, slots, 1, false); to != nil {
				b := calendar.Booking{Node: to[0], Slots: slots}
				p.cal.Book(b)
				tried = append(tried, b)
				p.creditPlace(d, lost, now)
				words = append(words, fmt.Sprintf("node %s is gone: moved to node %s", x.Node, to[0]))
				*x = onpath.ReservedPlace{Node: to[0]}
				continue
			}
			if f == ends {
				since = earliest(since, latest(lost, st.Begin()))
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
			p.creditPlace(d, x.Lost, now)
			x.Lost = time.Time{}
			words = append(words, fmt.Sprintf("node %s is back", x.Node))
		}
	}
	for _, b := range tried {
		p.cal.Free(b)
	}
	switch {
	case len(given) == len(st.Places):
		return p.fail(ctx, e, now, fmt.Sprintf("node %s is gone, and no other of cloudlet %s has room",
			e.obj.Status.Places[given[0]].Node, st.Cloudlet), since)
	case len(given) > 0:
		words = append(words, p.giveUp(d, given, now))
	case len(words) == 0:
		return nil
	}
	state := onpath.ReservationConfirmed
	switch {
	case slices.ContainsFunc(st.Places, func(x onpath.ReservedPlace) bool { return !x.Lost.IsZero() }):
		state = onpath.ReservationInterrupted
	case begun:
		state = onpath.ReservationActive
	}
	st.Step(state, now, strings.Join(words, "; "))
	books := map[string]*ledger.Book{}
	if err := p.reckon(d, now); err != nil {
		return err
	}
	if err := p.charge(books, d); err != nil {
		return err
	}
	p.swap(d)
	return p.settleUp(ctx, d, books)
}

// giveUp has a reservation go on with fewer instances, and credits what is paid for the
// others from now on, and since they were lost.
func (p *Pool) giveUp(d *decision, places []int, now time.Time) string {
	st := &d.obj.Status
	var names []string
	n := len(st.Places)
	for _, i := range places {
		x := &st.Places[i]
		names = append(names, x.Node)
		p.creditPlace(d, x.Lost, now)
	}
	for _, x := range differences(paidFor(st), paidFor(st), n, n-len(places), now) {
		p.giveBack(d, x, onpath.PostingCompensation)
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
func (p *Pool) creditLost(d *decision, until time.Time) {
	d.pay = slices.Clone(d.pay)
	for i := range d.obj.Status.Places {
		if x := &d.obj.Status.Places[i]; !x.Lost.IsZero() && x.Lost.Before(until) {
			p.creditPlace(d, x.Lost, until)
			x.Lost = until
		}
	}
}

// creditPlace credits one instance's part of a time that is over.
func (p *Pool) creditPlace(d *decision, from, until time.Time) {
	if from.IsZero() || !from.Before(until) {
		return
	}
	for _, s := range booked(paidFor(&d.obj.Status), from, until, 1) {
		p.giveBack(d, part{s.From, s.Until, onpath.Resources{}, s.Capacity}, onpath.PostingCompensation)
	}
}
