package reservations

import (
	"context"
	"net/http"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/router"
)

func (s *Reservations) registerAccounts() {
	type accountInput struct {
		Tenant string `path:"tenant"`
	}
	type entryInput struct {
		Tenant string `path:"tenant"`
		Body   onpath.MoneyEntry
	}
	type invoiceInput struct {
		Tenant string `path:"tenant"`
		Month  string `path:"month" doc:"such as 2026-11, in UTC"`
	}
	type postingsInput struct {
		Tenant string `path:"tenant"`
		From   int64  `query:"from" minimum:"0" doc:"number of the first one; 0: the newest ones"`
		Limit  int    `query:"limit" default:"100" minimum:"1" maximum:"1000"`
	}
	type accountOutput struct{ Body onpath.Account }
	router.Register(s.router, router.Operation(http.MethodGet, "/v1/accounts/{tenant}", "account", "What a tenant has"),
		func(ctx context.Context, in *accountInput) (*accountOutput, error) {
			a, err := s.d.Pool.Account(ctx, in.Tenant)
			if err == nil && a.Postings == 0 { // a tenant that is gone may have an account, one that never was has none
				_, err = s.d.Store.Get(ctx, onpath.Key{Kind: onpath.KindTenant, Name: in.Tenant})
			}
			if err != nil {
				return nil, err
			}
			return &accountOutput{a}, nil
		})
	router.Register(s.router, router.Operation(http.MethodPost, "/v1/accounts/{tenant}/entries", "enter-money",
		"Take money of a tenant in, give it back, or correct such an entry"),
		func(ctx context.Context, in *entryInput) (*accountOutput, error) {
			a, err := s.enterMoney(ctx, in.Tenant, in.Body)
			if err != nil {
				return nil, err
			}
			return &accountOutput{a}, nil
		})
	router.Register(s.router, router.Operation(http.MethodGet, "/v1/accounts/{tenant}/invoices/{month}", "invoice",
		"What a tenant's month cost"),
		func(ctx context.Context, in *invoiceInput) (*struct{ Body onpath.Invoice }, error) {
			inv, err := s.d.Pool.Invoice(ctx, in.Tenant, in.Month)
			if err != nil {
				return nil, err
			}
			return &struct{ Body onpath.Invoice }{inv}, nil
		})
	router.Register(s.router, router.Operation(http.MethodGet, "/v1/accounts/{tenant}/postings", "postings",
		"A page of a tenant's postings"),
		func(ctx context.Context, in *postingsInput) (*struct{ Body onpath.PostingPage }, error) {
			page, err := s.d.Pool.Postings(ctx, in.Tenant, in.From, in.Limit)
			if err == nil && len(page.Postings) == 0 {
				_, err = s.d.Store.Get(ctx, onpath.Key{Kind: onpath.KindTenant, Name: in.Tenant})
			}
			if err != nil {
				return nil, err
			}
			return &struct{ Body onpath.PostingPage }{page}, nil
		})
	router.Register(s.router, router.Operation(http.MethodGet, "/v1/ledger/days", "ledger-days",
		"The closed days of the ledger, and the files that hold them"),
		func(ctx context.Context, _ *struct{}) (*struct{ Body []onpath.LedgerDay }, error) {
			days, err := []onpath.LedgerDay{}, error(nil)
			if s.d.Past != nil {
				days, err = s.d.Past.Days(ctx)
			}
			if err != nil {
				return nil, err
			}
			return &struct{ Body []onpath.LedgerDay }{days}, nil
		})
	router.Register(s.router, router.Operation(http.MethodGet, "/v1/ledger/check", "check-ledger", "Recompute every posting and balance"),
		func(ctx context.Context, _ *struct{}) (*struct{ Body onpath.LedgerCheck }, error) {
			c, err := s.d.Pool.CheckLedger(ctx)
			if err != nil {
				return nil, err
			}
			return &struct{ Body onpath.LedgerCheck }{c}, nil
		})
}

func (s *Reservations) enterMoney(ctx context.Context, tenant string, e onpath.MoneyEntry) (a onpath.Account, err error) {
	if _, err := s.d.Store.Get(ctx, onpath.Key{Kind: onpath.KindTenant, Name: tenant}); err != nil {
		return a, err
	}
	if _, err := s.d.Pool.Enter(context.WithoutCancel(ctx), tenant, e); err != nil {
		return a, err
	}
	return s.d.Pool.Account(ctx, tenant)
}
