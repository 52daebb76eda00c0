package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/wire"
)

// Pool asks for reservations and money.
type Pool struct{ c *Client }

// Pool is what the server's pool is asked by.
func (c *Client) Pool() Pool { return Pool{c} }

// Capacity reads what the nodes of a cloudlet, or ("") of all, have promised; zero times:
// from now on, for a day.
func (p Pool) Capacity(ctx context.Context, cloudlet string, from, until time.Time) (*onpath.CapacityView, error) {
	q := url.Values{}
	set(q, "cloudlet", cloudlet)
	setTimes(q, from, until)
	var out onpath.CapacityView
	return &out, p.c.do(ctx, http.MethodGet, "/v1/capacity", q, nil, &out)
}

// Move has an instance of a reservation leave its node, for the named one or ("") the
// least loaded of the cloudlet.
func (p Pool) Move(ctx context.Context, tenant, instance, to string) (*onpath.Quote, error) {
	var out onpath.Quote
	path := "/v1/instances/" + url.PathEscape(tenant) + "/" + url.PathEscape(instance) + "/move"
	return &out, p.c.do(ctx, http.MethodPost, path, nil, wire.Move{To: to}, &out)
}

// Account reads what a tenant has.
func (p Pool) Account(ctx context.Context, tenant string) (*onpath.Account, error) {
	var out onpath.Account
	return &out, p.c.do(ctx, http.MethodGet, "/v1/accounts/"+url.PathEscape(tenant), nil, nil, &out)
}

// Enter takes money of a tenant in, gives it back, or corrects such an entry.
func (p Pool) Enter(ctx context.Context, tenant string, e onpath.MoneyEntry) (*onpath.Account, error) {
	var out onpath.Account
	return &out, p.c.do(ctx, http.MethodPost, "/v1/accounts/"+url.PathEscape(tenant)+"/entries", nil, e, &out)
}

// ReservationQuery chooses reservations; zero values choose all.
type ReservationQuery struct {
	Tenant, Cloudlet string
	From, Until      time.Time // those that meet it
}

// reservationsAtOnce is how many are read in one request.
const reservationsAtOnce = 500

// Reservations reads those that q chooses, and hands them to f a page at a time.
func (p Pool) Reservations(ctx context.Context, query ReservationQuery, f func([]onpath.Object) error) error {
	q := url.Values{"limit": {strconv.Itoa(reservationsAtOnce)}}
	set(q, "tenant", query.Tenant)
	set(q, "cloudlet", query.Cloudlet)
	setTimes(q, query.From, query.Until)
	for {
		var page wire.List[*onpath.Reservation]
		if err := p.c.do(ctx, http.MethodGet, "/v1/reservations", q, nil, &page); err != nil {
			return err
		}
		list := make([]onpath.Object, len(page.Items))
		for i, r := range page.Items {
			list[i] = r
		}
		if err := f(list); err != nil || page.Continue == "" {
			return err
		}
		q.Set("continue", page.Continue)
	}
}

func setTimes(q url.Values, from, until time.Time) {
	for name, t := range map[string]time.Time{"from": from, "until": until} {
		if !t.IsZero() {
			q.Set(name, t.UTC().Format(time.RFC3339Nano))
		}
	}
}

// Invoice reads what a tenant's month, such as 2026-11, cost.
func (p Pool) Invoice(ctx context.Context, tenant, month string) (*onpath.Invoice, error) {
	var out onpath.Invoice
	return &out, p.c.do(ctx, http.MethodGet, "/v1/accounts/"+url.PathEscape(tenant)+"/invoices/"+url.PathEscape(month), nil, nil, &out)
}

// Postings reads a page of a tenant's postings, from a number on; from 0: the newest ones.
func (p Pool) Postings(ctx context.Context, tenant string, from int64, limit int) (*onpath.PostingPage, error) {
	q := url.Values{"from": {strconv.FormatInt(from, 10)}, "limit": {strconv.Itoa(limit)}}
	var out onpath.PostingPage
	return &out, p.c.do(ctx, http.MethodGet, "/v1/accounts/"+url.PathEscape(tenant)+"/postings", q, nil, &out)
}

// LedgerDays are the closed days of the ledger.
func (p Pool) LedgerDays(ctx context.Context) (out []onpath.LedgerDay, err error) {
	return out, p.c.do(ctx, http.MethodGet, "/v1/ledger/days", nil, nil, &out)
}

// CheckLedger has the server recompute every posting and balance.
func (p Pool) CheckLedger(ctx context.Context) (*onpath.LedgerCheck, error) {
	var out onpath.LedgerCheck
	return &out, p.c.do(ctx, http.MethodGet, "/v1/ledger/check", nil, nil, &out)
}
