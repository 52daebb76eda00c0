package pool

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/ledger"
)

// postingReader reads what is stored of accounts.
type postingReader struct {
	store onpath.Store
	past  *Past
}

// Account is what a tenant has; NAME~0 and so on are those of the former ones of a name.
func (p *Pool) Account(ctx context.Context, tenant string) (a onpath.Account, err error) {
	list, err := p.priceList.readPrices(ctx)
	p.queue.look(func(s *state) { a = s.accounting.findAccount(s.accounting.owners.now(tenant)) })
	if list.spec != nil {
		a.Currency = list.spec.Currency
	}
	return a, err
}

// Enter takes money of a tenant in, gives it back, or corrects such an entry. What has been
// entered by a reference already is not entered again.
func (p *Pool) Enter(ctx context.Context, tenant string, e onpath.MoneyEntry) (a onpath.Account, err error) {
	tenant = p.accountNow(tenant)
	post, err := p.read.posting(ctx, tenant, e)
	if err != nil {
		return a, err
	}
	if err := p.Held(); err != nil {
		return a, err
	}
	path := ledger.ReferencePath(tenant, post.Reference)
	p.queue.look(func(s *state) { err = s.accounting.beginEntry(s.ready(), path, post.Reference) })
	if err != nil {
		return a, err
	}
	defer p.queue.look(func(s *state) { delete(s.accounting.entering, path) })
	known, err := p.read.entered(ctx, tenant, post.Reference)
	if err != nil {
		return a, err
	}
	if known != nil {
		p.queue.look(func(s *state) { a = s.accounting.findAccount(tenant) })
		return a, p.read.sameEntry(ctx, tenant, &post, known)
	}
	err = p.queue.commit(ctx, func(s *state) (j joining, err error) {
		b := s.accounting.openBook(tenant)
		if err := b.Add(s.clock(), post); err != nil {
			return j, err
		}
		number, err := json.Marshal(b.Account.Postings)
		a = b.Account
		return joining{books: map[string]*ledger.Book{tenant: b},
			records: []onpath.Record{{Path: path, Value: number}}}, err // which is not there yet
	})
	return a, err
}

// sameEntry refuses an entry whose reference is that of another one, or of one that was
// taken back.
func (p *postingReader) sameEntry(ctx context.Context, tenant string, post, known *onpath.Posting) error {
	if known.Kind != post.Kind || known.Amount != post.Amount {
		return onpath.Errorf(onpath.CodeConflict, "reference %q is that of posting %d, a %s of %s",
			post.Reference, known.Number, known.Kind, known.Amount)
	}
	back, err := p.entered(ctx, tenant, ledger.Reversal(known.Number))
	if err == nil && back != nil {
		e := onpath.Errorf(onpath.CodeConflict, "reference %q is that of posting %d, which posting %d takes back",
			post.Reference, known.Number, back.Number)
		e.Remedy = "enter it by another reference"
		err = e
	}
	return err
}

// posting is what an entry becomes.
func (p *postingReader) posting(ctx context.Context, tenant string, e onpath.MoneyEntry) (post onpath.Posting, err error) {
	refuse := func(remedy, format string, args ...any) (onpath.Posting, error) {
		err := onpath.Errorf(onpath.CodeInvalid, format, args...)
		err.Remedy = remedy
		return post, err
	}
	post = onpath.Posting{Kind: e.Kind, Amount: e.Amount, Reference: strings.TrimSpace(e.Reference), Cause: e.Cause}
	switch e.Kind {
	case onpath.PostingCredit, onpath.PostingPayout:
		if e.Amount <= 0 {
			return refuse("write an amount above 0; onpath account correct takes an entry back", "%s is no %s", e.Amount, e.Kind)
		}
		if post.Reference == "" {
			return refuse("name it, as by the number of a transfer: --reference",
				"a %s needs a reference, lest it be entered twice", e.Kind)
		}
		return post, nil
	case onpath.PostingCorrection:
	default:
		return refuse("write credit, payout or correction", "%q is no kind of entry", e.Kind)
	}
	page, err := p.postings(ctx, tenant, max(e.Reverses, 1), 1, 0)
	if err != nil {
		return post, err
	}
	if len(page.Postings) == 0 || page.Postings[0].Number != e.Reverses {
		return refuse("see onpath ledger list "+tenant, "tenant %s has no posting %d", tenant, e.Reverses)
	}
	was := page.Postings[0]
	if was.Kind != onpath.PostingCredit && was.Kind != onpath.PostingPayout {
		return refuse("see onpath ledger list "+tenant, "posting %d is a %s; only a credit or payout can be corrected",
			was.Number, was.Kind)
	}
	post.Amount, post.Debit, post.Credit, post.Reverses = was.Amount, was.Credit, was.Debit, was.Number
	post.Reference = ledger.Reversal(was.Number)
	return post, nil
}

// entered is the posting with a reference; nil: there is none.
func (p *postingReader) entered(ctx context.Context, tenant, reference string) (*onpath.Posting, error) {
	path := ledger.ReferencePath(tenant, reference)
	page, err := p.store.Records(ctx, onpath.RecordRange{From: path, To: path + "\x00"})
	if err != nil || len(page.Records) == 0 {
		return nil, err
	}
	var number int64
	if err := json.Unmarshal(page.Records[0].Value, &number); err != nil {
		return nil, fmt.Errorf("record %s: %w", path, err)
	}
	list, err := p.postings(ctx, tenant, number, 1, 0)
	if err != nil || len(list.Postings) == 0 {
		return nil, cmp.Or(err, fmt.Errorf("record %s names posting %d, which is not there", path, number))
	}
	return &list.Postings[0], nil
}

// Postings are a page of a tenant's, from a number on, at most limit and MaxPostings;
// from 0: the newest ones.
func (p *Pool) Postings(ctx context.Context, tenant string, from int64, limit int) (onpath.PostingPage, error) {
	if from < 0 || limit < 1 {
		return onpath.PostingPage{}, onpath.Errorf(onpath.CodeInvalid, "from=%d and limit=%d: postings are numbered from 1", from, limit)
	}
	limit, tenant = min(limit, onpath.MaxPostings), p.accountNow(tenant)
	if from == 0 {
		p.queue.look(func(s *state) { from = max(1, s.accounting.findAccount(tenant).Postings-int64(limit)+1) })
	}
	out := onpath.PostingPage{Postings: []onpath.Posting{}, Next: from}
	for out.Next != 0 && len(out.Postings) < limit { // some are in files, some in the store
		page, err := p.read.postings(ctx, tenant, out.Next, limit-len(out.Postings), 0)
		if err != nil {
			return onpath.PostingPage{}, err
		}
		out.Postings, out.Next = append(out.Postings, page.Postings...), page.Next
	}
	return out, nil
}

// postings reads a page as of a revision; limit 0: as long as the store, or a file, gives.
func (p *postingReader) postings(ctx context.Context, tenant string, from int64, limit int,
	revision int64) (onpath.PostingPage, error) {
	x, _, revision, err := p.past.carried(ctx, tenant, revision)
	if err != nil {
		return onpath.PostingPage{}, err
	}
	if from <= x.Number {
		page, err := p.past.postings(ctx, x, from, limit, revision)
		if err == nil && page.Next > x.Number {
			more, err := p.postings(ctx, tenant, page.Next, 1, revision)
			if len(more.Postings) == 0 {
				page.Next = 0
			}
			return page, err
		}
		return page, err
	}
	at := onpath.RecordsUnder(ledger.PostingsOf(tenant))
	at.From, at.Limit, at.Revision = ledger.PostingPath(tenant, from), limit, revision
	page, err := p.store.Records(ctx, at)
	if err != nil {
		return onpath.PostingPage{}, err
	}
	out := onpath.PostingPage{Postings: make([]onpath.Posting, len(page.Records))}
	for i, r := range page.Records {
		if err := json.Unmarshal(r.Value, &out.Postings[i]); err != nil {
			return onpath.PostingPage{}, fmt.Errorf("record %s: %w", r.Path, err)
		}
	}
	if page.Next != "" {
		out.Next = from + int64(len(out.Postings))
	}
	return out, nil
}

// clockSteps is how far a server's clock may have been set back without an invoice
// missing what was entered meanwhile.
const clockSteps = 24 * time.Hour

// Invoice is a tenant's of a month, such as 2026-11. It reads the postings since that month
// began, however many came before.
func (p *Pool) Invoice(ctx context.Context, tenant, month string) (onpath.Invoice, error) {
	begin, err := time.Parse("2006-01", month)
	if err != nil || begin.Format("2006-01") != month {
		return onpath.Invoice{}, onpath.Errorf(onpath.CodeInvalid, "%q is not a month (write 2026-11)", month)
	}
	a := onpath.Account{Tenant: p.accountNow(tenant)}
	path := ledger.AccountPath(a.Tenant)
	page, err := p.read.store.Records(ctx, onpath.RecordRange{From: path, To: path + "\x00"})
	if err == nil && len(page.Records) == 1 {
		err = json.Unmarshal(page.Records[0].Value, &a)
	}
	if err != nil {
		return onpath.Invoice{}, err
	}
	bill := ledger.NewBill(a, month)
	if err := p.read.postingsSince(ctx, a, page.Revision, begin.Add(-clockSteps), bill.Add); err != nil {
		return onpath.Invoice{}, err
	}
	inv := bill.Done()
	now, err := p.Account(ctx, tenant)
	inv.Currency = now.Currency
	return inv, err
}

// postingsSince calls yield for an account's from the first one that is not before a time, as
// of a revision. It looks for that by halves: their numbers have no gaps and rise with time.
func (p *postingReader) postingsSince(ctx context.Context, a onpath.Account, revision int64, since time.Time,
	yield func(*onpath.Posting)) (err error) {
	first := sort.Search(int(a.Postings), func(i int) bool {
		page, e := p.postings(ctx, a.Tenant, int64(i)+1, 1, revision)
		if err == nil {
			err = e
		}
		return err != nil || len(page.Postings) == 0 || !page.Postings[0].At.Before(since)
	})
	for next := int64(first) + 1; next != 0 && err == nil; {
		var page onpath.PostingPage
		page, err = p.postings(ctx, a.Tenant, next, 0, revision)
		for i := range page.Postings {
			yield(&page.Postings[i])
		}
		next = page.Next
	}
	return err
}

// CheckLedger recomputes every posting, in the store and in the files of closed days, every
// balance, and what live reservations have paid by their calendar. What is written meanwhile is not looked at: all is read as of one
// revision.
func (p *Pool) CheckLedger(ctx context.Context) (onpath.LedgerCheck, error) {
	c := ledger.Check{Prices: map[int64]*onpath.PriceListSpec{}}
	page, err := p.read.store.Records(ctx, onpath.RecordRange{From: ledger.Accounts, To: ledger.Accounts, Limit: 1})
	if err != nil {
		return onpath.LedgerCheck{}, err
	}
	at := page.Revision
	err = p.read.recordsAt(ctx, ledger.Prices, at, func(r onpath.Record, name string) error {
		version, err := strconv.ParseInt(name, 10, 64)
		if err != nil {
			return err
		}
		c.Prices[version] = &onpath.PriceListSpec{}
		return json.Unmarshal(r.Value, c.Prices[version])
	})
	if err != nil {
		return onpath.LedgerCheck{}, err
	}
	if err := p.past.check(ctx, &c, at); err != nil {
		return onpath.LedgerCheck{}, err
	}
	err = p.read.recordsAt(ctx, ledger.Postings, at, func(r onpath.Record, path string) error {
		var x onpath.Posting
		if err := json.Unmarshal(r.Value, &x); err != nil {
			return err
		}
		tenant, number, _ := strings.Cut(path, "/")
		if n, err := strconv.ParseInt(number, 10, 64); err != nil || n > c.Archived(tenant) {
			c.Posting(&x) // else it is in a file, and about to be deleted
		}
		return nil
	})
	if err != nil {
		return onpath.LedgerCheck{}, err
	}
	var accounts []onpath.Account
	err = p.read.recordsAt(ctx, ledger.Accounts, at, func(r onpath.Record, _ string) error {
		var a onpath.Account
		err := json.Unmarshal(r.Value, &a)
		accounts = append(accounts, a)
		return err
	})
	out := c.Done(accounts)
	p.queue.look(func(s *state) { out.Wrong = append(out.Wrong, s.rows.findMisbilled(p.o.Clock().UTC())...) })
	out.Wrong = out.Wrong[:min(len(out.Wrong), ledger.MaxWrong)]
	return out, err
}
