package pool

import (
	"context"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/ledger"
)

// counting counts the records that are read.
type counting struct {
	onpath.Store
	read int
}

func (c *counting) Records(ctx context.Context, r onpath.RecordRange) (onpath.RecordPage, error) {
	page, err := c.Store.Records(ctx, r)
	c.read += len(page.Records)
	return page, err
}

// allPostings are the tenant's, read in pages of a hundred.
func (f *fixture) allPostings(t testing.TB) (all []onpath.Posting) {
	t.Helper()
	for next := int64(1); next != 0; {
		page, err := f.Postings(t.Context(), "default", next, 100)
		if err != nil || len(page.Postings) > 100 {
			t.Fatalf("%d postings, %v", len(page.Postings), err)
		}
		all, next = append(all, page.Postings...), page.Next
	}
	return all
}

// TestInvoice: an invoice is the same as one of all postings, also where the clock was set
// back as the month began, and does not read those of months before.
func TestInvoice(t *testing.T) {
	f := setUp(t)
	step := func(at time.Time, n int) {
		t.Helper()
		for i := range n {
			f.now = at.Add(time.Duration(i) * time.Second)
			if _, err := f.enter(onpath.MoneyEntry{Kind: onpath.PostingCredit, Amount: onpath.Money(1 + i), Reference: fmt.Sprint(at.Unix(), i)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	december := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	step(start, 400)
	step(december.Add(-2*time.Second), 4)
	step(december.Add(-time.Hour), 3)
	step(december.Add(time.Hour), 20)
	january := december.AddDate(0, 1, 0)
	step(january.Add(50*time.Hour), 30)
	all := f.allPostings(t)
	if len(all) != 457 {
		t.Fatalf("%d postings", len(all))
	}
	newest, err := f.Postings(t.Context(), "default", 0, 5)
	if err != nil || newest.Next != 0 || !reflect.DeepEqual(newest.Postings, all[452:]) {
		t.Errorf("the newest five: %+v, %v", newest, err)
	}
	store := &counting{Store: f.store}
	f.through(store)
	for _, c := range []struct {
		month            string
		opening, credits onpath.Money
		most             int // records
	}{
		{"2026-10", 0, 0, 500},
		{"2026-11", 0, 80_200 + 3 + 6, 500},
		{"2026-12", 80_209, 7 + 210, 90},
		{"2027-01", 80_426, 465, 50},
		{"2027-02", 80_891, 0, 20},
	} {
		store.read = 0
		inv, err := f.Invoice(t.Context(), "default", c.month)
		if err != nil {
			t.Fatal(err)
		}
		bill := ledger.NewBill(f.queue.state.accounting.findAccount("default"), c.month)
		for i := range all {
			bill.Add(&all[i])
		}
		if want := bill.Done(); !reflect.DeepEqual(inv, want) {
			t.Errorf("%s: %+v, of all postings %+v", c.month, inv, want)
		}
		if inv.Opening != c.opening || inv.Credits != c.credits || inv.Closing != c.opening+c.credits {
			t.Errorf("%s: %+v, want an opening of %s and credits of %s", c.month, inv, c.opening, c.credits)
		}
		if store.read > c.most {
			t.Errorf("%s: %d records were read of %d, want %d at most", c.month, store.read, len(all), c.most)
		}
		t.Logf("%s: %d records were read of %d", c.month, store.read, len(all))
	}
}
