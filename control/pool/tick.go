package pool

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/ledger"
	"github.com/onpath/onpath/store"
)

// Run does what is due until ctx ends.
func (p *Pool) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		wait := p.Tick(ctx)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-p.wake:
		}
		timer.Stop()
	}
	return nil
}

// look is how often moves are looked at, and longest wait of Run.
const look = time.Second

// Tick does what is due by now, and says how long nothing will be.
func (p *Pool) Tick(ctx context.Context) time.Duration {
	ctx = store.FollowUp(ctx)
	if err := p.queue.refresh(ctx); err != nil {
		p.log.Error("reservations cannot be read; it is tried on", "err", err)
		return look
	}
	if p.holdsStill() {
		return look
	}
	p.tendOutages(ctx)
	p.finishMoves(ctx)
	for {
		var due []*entry
		var now time.Time
		p.queue.look(func(s *state) { due, now = s.dueNow() })
		if len(due) == 0 {
			break
		}
		if !p.doAll(ctx, due, now) {
			p.relieve(ctx)
			return look
		}
	}
	p.relieve(ctx)
	wait := look
	p.queue.look(func(s *state) { wait = s.nextWait() })
	return wait
}

// dueNow are entries of which something is due.
func (s *state) dueNow() ([]*entry, time.Time) {
	now := s.clock()
	if s.broken {
		return nil, now
	}
	return s.rows.agenda.dueBy(now), now
}

// nextWait is how long nothing will be due.
func (s *state) nextWait() time.Duration {
	if len(s.rows.agenda) == 0 || s.broken {
		return look
	}
	return min(s.rows.agenda[0].due.Sub(s.clock()), look)
}

// doAll is one step of what is due of some reservations, in as few transactions as may be.
// It is false if something has to be tried again.
func (p *Pool) doAll(ctx context.Context, due []*entry, now time.Time) bool {
	var list *prices
	if slices.ContainsFunc(due, paysHourly) {
		l, err := p.priceList.readPrices(ctx)
		if err != nil {
			p.log.Error("the price list cannot be read; it is tried on", "err", err)
			return false
		}
		list = &l
	}
	var written []writing
	done := true
	for _, e := range due {
		w, err := p.doOne(ctx, e, now, list)
		if done = done && err == nil; err != nil && !errors.Is(err, errAgain) {
			p.log.Error("what is due of a reservation cannot be done; it is tried on", "reservation", e.key, "err", err)
		}
		if w.g != nil {
			written = append(written, w)
		}
	}
	return p.awaitAll(written) && done
}

// doOne has the next step of a reservation written, unless somebody changed it meanwhile.
func (p *Pool) doOne(ctx context.Context, e *entry, now time.Time, list *prices) (writing, error) {
	k, soon := e.key, false
	w, err := p.write(ctx, func(s *state) (*decision, map[string]*ledger.Book, error) {
		if s.broken || s.rows.entries[k] != e {
			return nil, nil, nil
		}
		if s.rows.tentative[k] != nil {
			return nil, nil, errAgain
		}
		if list != nil {
			s.accounting.usePrices(*list)
		}
		a := s.admission()
		a.now = now
		d, books, err := a.doNext(e)
		soon = d == nil && err == nil
		return d, books, err
	}, k)
	if soon {
		p.queue.schedule(e)
	}
	return w, err
}

func paysHourly(e *entry) bool { return e.obj.Status.End().IsZero() }

// writing is a decision that is being written.
type writing struct {
	d *decision
	g *group
}

// write has one decision of f, that is held, be written; of none, w.g is nil.
func (p *Pool) write(ctx context.Context, f func(*state) (*decision, map[string]*ledger.Book, error),
	keys ...onpath.Key) (w writing, err error) {
	g, err := p.queue.submit(ctx, func(s *state) (j joining, err error) {
		d, books, err := f(s)
		if d == nil || err != nil {
			return j, err
		}
		w.d = d
		return joining{held: []*decision{d}, books: books, priced: d.charges(), list: s.accounting.prices.version}, nil
	}, keys...)
	if w.d != nil {
		w.g = g
	}
	return w, err
}

// awaitAll waits until decisions are written, and tells of them. It is false if one was not.
func (p *Pool) awaitAll(list []writing) bool {
	all := true
	for _, x := range list {
		if err := p.queue.await(x.g); err != nil {
			p.log.Error("what is decided on a reservation cannot be written; it is tried on", "reservation", x.d.key, "err", err)
			all = false
			continue
		}
		st := &x.d.obj.Status
		message := string(st.State)
		if st.Reason != "" {
			message += ": " + st.Reason
		}
		p.o.Tell(x.d.key, reasonOf(st.State), message, st.State == onpath.ReservationFailed || st.State == onpath.ReservationInterrupted)
	}
	return all
}

func reasonOf(s onpath.ReservationState) string {
	switch s {
	case onpath.ReservationActive:
		return "ReservationActive"
	case onpath.ReservationEnded:
		return "ReservationEnded"
	case onpath.ReservationFailed:
		return "ReservationFailed"
	case onpath.ReservationInterrupted:
		return "ReservationInterrupted"
	}
	return "ReservationChanged"
}
