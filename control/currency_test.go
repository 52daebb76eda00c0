package control_test

import (
	"strings"
	"testing"

	"github.com/onpath/onpath"
)

// TestCurrencyOfAccounts: while an account has something, the price list keeps its currency;
// prices may change.
func TestCurrencyOfAccounts(t *testing.T) {
	s := threeNodes(t)
	list := object[*onpath.PriceList](onpath.KindPriceList, "", onpath.DefaultPriceList)
	list.Spec.Currency = "EUR"
	s.apply(list)
	pool := s.c.Pool()
	enter := func(kind onpath.PostingKind, amount int64, reference string) {
		t.Helper()
		_, err := pool.Enter(t.Context(), "acme", onpath.MoneyEntry{Kind: kind, Amount: onpath.Money(amount) * 1_000_000, Reference: reference})
		if err != nil {
			t.Fatal(err)
		}
	}
	check := func(o onpath.Object) error {
		_, err := s.c.Check(t.Context(), s.changes(o), false)
		return err
	}
	s.apply(object[*onpath.Tenant](onpath.KindTenant, "", "acme"))
	other := onpath.Clone(list)
	other.Metadata = onpath.Metadata{Name: onpath.DefaultPriceList}
	other.Spec.Currency = "JPY"
	if err := check(other); err != nil {
		t.Errorf("no account has anything: %v", err)
	}
	enter(onpath.PostingCredit, 5, "one")
	if err := check(other); onpath.CodeOf(err) != onpath.CodeConflict || !strings.Contains(err.Error(), "acme has 5 EUR") {
		t.Errorf("an account has 5 EUR: %v", err)
	}
	same := onpath.Clone(other)
	same.Spec.Currency, same.Spec.Hour.CPU = "EUR", 3_000_000
	if err := check(same); err != nil {
		t.Errorf("the same currency: %v", err)
	}
	enter(onpath.PostingPayout, 5, "two")
	if err := check(other); err != nil {
		t.Errorf("all is paid out: %v", err)
	}
}
