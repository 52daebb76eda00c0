package pool

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/price"
)

var priceList = onpath.Key{Kind: onpath.KindPriceList, Name: onpath.DefaultPriceList}

// priceReader reads the price list in force.
type priceReader struct {
	store onpath.Store
	last  atomic.Pointer[prices] // as it was read last
}

// listFor is the price list to decide by. What is written depends on its version, so that
// the one read last is enough; a quote is by the one in force now.
func (p *priceReader) listFor(ctx context.Context, quote bool) (prices, error) {
	if l := p.last.Load(); l != nil && !quote {
		return *l, nil
	}
	return p.readPrices(ctx)
}

// readPrices reads the price list.
func (p *priceReader) readPrices(ctx context.Context) (list prices, err error) {
	o, err := p.store.Get(ctx, priceList)
	if err != nil && onpath.CodeOf(err) != onpath.CodeNotFound {
		return list, err
	}
	if l, ok := o.(*onpath.PriceList); ok && err == nil {
		list = prices{&l.Spec, l.Metadata.Version}
	}
	p.last.Store(&list)
	return list, nil
}

// settlePayments finds what a decision costs and gives back, from now on. What was promised
// before is still in the calendar, what d promises is not.
func (a admission) settlePayments(d *decision, now time.Time) error {
	st := &d.obj.Status
	var old onpath.ReservationStatus
	if d.old != nil && d.old.obj.Status.State.Live() {
		old = d.old.obj.Status
	}
	switch {
	case !st.End().IsZero():
		st.PaidUntil = time.Time{}
	case old.State == "":
		st.PaidUntil = latest(st.Begin(), now).Add(hour)
	case !old.End().IsZero():
		st.PaidUntil = old.End() // that is paid
	}
	st.Currency = a.accounting.currency()
	for _, x := range differences(paidFor(&old), paidFor(st), len(old.Places), len(st.Places), now) {
		if x.less != (onpath.Resources{}) {
			d.giveBack(x, onpath.PostingRefund)
		}
		a.chargePart(d, x, now)
	}
	return a.accounting.reckonAmounts(d, now)
}

// chargePart charges what a part has more than before. Without a price list it costs
// nothing, and is noted as paid.
func (a admission) chargePart(d *decision, x part, now time.Time) {
	if x.more == (onpath.Resources{}) {
		return
	}
	list := a.accounting.prices.spec
	if list == nil {
		list = a.accounting.lists[noList]
	}
	cl := d.obj.Status.Cloudlet
	levels := a.promises.tenants.Steps(tenantNode(d.key.Tenant, cl), x.from, x.until)
	segments := price.Segments(list, x.from, x.until, x.more, a.promises.tenantsTotal(cl), levels)
	d.postings = append(d.postings, onpath.Posting{Kind: onpath.PostingCharge, Cause: span(x),
		Prices: a.accounting.prices.version, Segments: segments})
	d.pay = append(d.pay, payment{At: now, Begin: x.from, Prices: a.accounting.prices.version, Segments: segments})
}

func span(x part) string { return fmt.Sprintf("from %s until %s", text(x.from), text(x.until)) }

// giveBack cuts a part out of the payments, the latest first. Between two instants at which
// none of them changes, each holds one amount.
func (d *decision) giveBack(x part, kind onpath.PostingKind) {
	gone := make([][]onpath.PaidSegment, len(d.pay))
	edges := paidEdges(nil, d.pay, x.from)
	edges = append(slices.DeleteFunc(edges, func(t time.Time) bool { return !t.Before(x.until) }), x.until)
	for k := range edges[:len(edges)-1] {
		piece, left := part{from: edges[k], until: edges[k+1]}, x.less
		for i := len(d.pay) - 1; i >= 0 && left != (onpath.Resources{}); i-- {
			list := d.pay[i].Segments
			if n := len(list); n == 0 || !list[0].From.Before(piece.until) || !piece.from.Before(list[n-1].Until) {
				continue
			}
			have := paidIn(list, piece)
			keep := over(have, left)
			stays, goes := price.Cut(d.pay[i].Segments, piece.from, piece.until, keep)
			if len(goes) > 0 {
				left = left.Sub(have.Sub(keep))
				d.pay[i].Segments, gone[i] = price.Join(stays), price.Join(append(gone[i], goes...))
			}
		}
	}
	for i := len(d.pay) - 1; i >= 0; i-- {
		if pay := &d.pay[i]; len(gone[i]) > 0 {
			d.postings = append(d.postings, onpath.Posting{Kind: kind, Cause: span(x), Prices: pay.Prices, Segments: gone[i],
				Paid: pay.At, Begin: x.from})
		}
	}
	d.pay = slices.DeleteFunc(d.pay, func(pay payment) bool { return len(pay.Segments) == 0 })
}
