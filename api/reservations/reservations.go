// Package reservations is the part of the API for the pool: what is reserved, what nodes have
// promised, and the money of tenants. Reservations are written as all objects are (package
// change).
package reservations

import (
	"context"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/router"
)

// Places places the instances of reservations.
type Places interface {
	// Move has an instance of a reservation leave its node, for the named one or ("")
	// the least loaded.
	Move(ctx context.Context, reservation onpath.Key, from, to string) (onpath.Quote, error)
	// Capacity is what nodes have promised; zero times: from now on, for a day.
	Capacity(cloudlet string, from, until time.Time) (onpath.CapacityView, error)
}

// Accounts keeps the money of tenants.
type Accounts interface {
	Account(ctx context.Context, tenant string) (onpath.Account, error)
	// Enter takes money of a tenant in, gives it back, or corrects such an entry.
	Enter(ctx context.Context, tenant string, e onpath.MoneyEntry) (onpath.Account, error)
	// Postings are a page of a tenant's, from a number on; from 0: the newest.
	Postings(ctx context.Context, tenant string, from int64, limit int) (onpath.PostingPage, error)
	// Invoice is a tenant's of a month, such as 2026-11.
	Invoice(ctx context.Context, tenant, month string) (onpath.Invoice, error)
	// CheckLedger recomputes every posting and balance.
	CheckLedger(ctx context.Context) (onpath.LedgerCheck, error)
}

// Pool is the pool as it is asked here.
type Pool interface {
	Places
	Accounts
}

// Past has the closed days of the ledger.
type Past interface {
	// Days are the closed days of the ledger.
	Days(ctx context.Context) ([]onpath.LedgerDay, error)
}

// Deps are what the part needs of others.
type Deps struct {
	Store onpath.Store
	Pool  Pool
	Past  Past // nil: no day is closed
}

// Reservations asks the pool.
type Reservations struct {
	d      Deps
	router *router.Router
}

// Register adds the part's routes.
func Register(rt *router.Router, d Deps) {
	s := &Reservations{d: d, router: rt}
	s.registerList()
	s.registerPool()
	s.registerAccounts()
}
