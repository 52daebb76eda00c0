package pool

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/onpath/onpath"
)

// Apply admits, changes or cancels reservations, all or none; those that are as they are
// asked to be are left alone. With dryRun it only says what it would do. The error's code
// is CodeNoCapacity where the pool declines.
func (p *Pool) Apply(ctx context.Context, puts []*onpath.Reservation, cancels []onpath.Key, dryRun bool) ([]onpath.Quote, error) {
	rest, over, doubts, err := p.past.splitEnded(ctx, demandsOf(puts))
	if err != nil {
		return nil, err
	}
	for begin := time.Now(); ; {
		list, err := p.priceList.listFor(ctx, dryRun)
		if err != nil {
			return nil, err
		}
		bounds, err := p.boundsOf(ctx, rest)
		if err != nil {
			return nil, err
		}
		quotes, err := p.tryApply(ctx, list, bounds, rest, cancels, dryRun)
		again := errors.Is(err, errNoConfirm) || errors.Is(err, errAgain)
		if err != nil && !again { // by a list that may be out of force
			latest, readErr := p.priceList.readPrices(ctx)
			again = readErr == nil && latest.version != list.version
		}
		if again && time.Since(begin) <= tryTimeout {
			continue
		}
		for i := range puts {
			if q, ok := over[i]; ok && err == nil {
				quotes = slices.Insert(quotes, len(cancels)+i, q)
			}
		}
		for k, doubt := range doubts {
			err = withDoubt(err, k, doubt)
		}
		return quotes, err
	}
}

// tryTimeout is how long decisions are taken again at most.
const tryTimeout = 10 * time.Second

func (p *Pool) tryApply(ctx context.Context, prices prices, bounds map[string]Bounds, puts []demand,
	cancels []onpath.Key, dryRun bool) (quotes []onpath.Quote, err error) {
	h, err := p.hold(append(keysOf(puts), cancels...), func(a admission) ([]*decision, error) {
		a.accounting.usePrices(prices)
		return a.decideWithinQuotas(bounds, puts, func() ([]*decision, error) { return a.decideAll(puts, cancels) })
	})
	if err != nil {
		return nil, err
	}
	refused := p.confirmNodes(ctx, h.requests)
	err = p.queue.commit(ctx, func(s *state) (j joining, err error) {
		if err := s.stillHeld(h, refused); err != nil {
			return j, err
		}
		all, books, err := s.accounting.chargeAll(h.decisions)
		if quotes = all; err != nil || dryRun {
			s.admission().letDecisionsGo(h.decisions)
			return j, err
		}
		for i, d := range h.decisions {
			quotes[i].State = d.obj.Status.State
		}
		return joining{held: h.decisions, books: books, priced: true, list: prices.version}, nil
	})
	if err != nil {
		return nil, err
	}
	return quotes, nil
}

func keysOf(list []demand) (out []onpath.Key) {
	for _, r := range list {
		out = append(out, r.key)
	}
	return out
}

// boundsOf asks for the bounds of all tenants whose reservations are applied.
func (p *Pool) boundsOf(ctx context.Context, puts []demand) (map[string]Bounds, error) {
	out := map[string]Bounds{}
	for _, r := range puts {
		k := r.key
		if _, known := out[k.Tenant]; known || p.o.Tenant == nil {
			continue
		}
		b, err := p.o.Tenant(ctx, k.Tenant)
		if err != nil {
			return nil, about(k, err)
		}
		out[k.Tenant] = b
	}
	return out, nil
}

// Move has an instance of a reservation leave its node: to a named one, or the least
// loaded of the cloudlet.
func (p *Pool) Move(ctx context.Context, k onpath.Key, from, to string) (onpath.Quote, error) {
	for begin := time.Now(); ; {
		q, err := p.tryMove(ctx, k, from, to)
		if !errors.Is(err, errNoConfirm) && !errors.Is(err, errAgain) || time.Since(begin) > tryTimeout {
			return q, about(k, err)
		}
	}
}

func (p *Pool) tryMove(ctx context.Context, k onpath.Key, from, to string) (onpath.Quote, error) {
	h, err := p.hold([]onpath.Key{k}, func(a admission) ([]*decision, error) {
		d, err := a.moveInstance(k, from, to)
		return []*decision{d}, err
	})
	if err != nil {
		return onpath.Quote{}, err
	}
	refused := p.confirmNodes(ctx, h.requests)
	return h.decisions[0].quote, p.queue.commit(ctx, func(s *state) (joining, error) {
		return joining{held: h.decisions}, s.stillHeld(h, refused)
	})
}

// tentative are decisions that are held in the calendar while nodes are asked: nobody else can
// sell that meanwhile.
type tentative struct {
	decisions []*decision
	requests  map[string]onpath.PromiseRequest // of nodes that promise more than before
	loads     int
	over      chan struct{} // closed when they are held no more
}

// hold has something decided on reservations on which nobody else decides.
func (p *Pool) hold(keys []onpath.Key, decide func(admission) ([]*decision, error)) (h tentative, err error) {
	if err := p.Held(); err != nil {
		return h, err
	}
	p.queue.observe()
	for {
		var others <-chan struct{}
		p.queue.look(func(s *state) {
			if others = s.rows.tentativeOf(keys); others == nil {
				h, err = s.decideTentatively(keys, decide)
			}
		}, keys...)
		if others == nil {
			return h, err
		}
		<-others
	}
}

func (s *state) decideTentatively(keys []onpath.Key, decide func(admission) ([]*decision, error)) (h tentative, err error) {
	if err := s.ready(); err != nil {
		return h, err
	}
	a := s.admission()
	a.touched = map[onpath.Key]bool{}
	for _, k := range keys {
		a.touched[k] = true
	}
	h.loads = s.loads
	if h.decisions, err = decide(a); err != nil {
		return h, err
	}
	h.requests, h.over = s.promises.requestsOf(h.decisions, s.clock()), s.rows.markTentative(h.decisions)
	return h, nil
}

// confirmNodes asks nodes whether they keep what they will have promised, and names those that do
// not say so.
func (p *Pool) confirmNodes(ctx context.Context, requests map[string]onpath.PromiseRequest) (refused []string) {
	if len(requests) == 0 || p.o.Confirm == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	type answer struct {
		node string
		err  error
	}
	answers := make(chan answer, len(requests))
	for name, r := range requests {
		go func() { answers <- answer{name, p.o.Confirm(ctx, name, r)} }()
	}
	for range requests {
		if a := <-answers; a.err != nil {
			p.log.Warn("a node does not confirm a reservation", "node", a.node, "err", a.err)
			refused = append(refused, a.node)
		}
	}
	return refused
}

// confirmTimeout bounds how long a node may take to confirm.
const confirmTimeout = 2 * time.Second

// stillHeld lets decisions go that a node did not confirm, or that somebody else has overtaken.
// A node that did not confirm is not asked again for a while.
func (s *state) stillHeld(h tentative, refused []string) error {
	s.rows.endTentative(h.decisions, h.over)
	for _, name := range refused {
		s.promises.refuse(name, s.clock())
	}
	switch {
	case s.loads != h.loads: // nothing is held any more
		for _, d := range flat(h.decisions) {
			s.promises.displaced.takeBack(d)
		}
		return errAgain
	case len(refused) > 0:
		s.admission().letDecisionsGo(h.decisions)
		return errNoConfirm
	case s.broken || slices.ContainsFunc(h.decisions, s.rows.isOvertaken):
		s.admission().letDecisionsGo(h.decisions)
		return errAgain
	}
	return nil
}

// errNoConfirm is why a decision is taken again: a node did not confirm.
var errNoConfirm = onpath.Errorf(onpath.CodeUnavailable, "no node confirms what the calendar says it has")
