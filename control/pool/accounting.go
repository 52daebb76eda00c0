package pool

import (
	"encoding/json"
	"log/slog"
	"math"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/ledger"
)

// accounting is what tenants have and owe, and by what prices.
type accounting struct {
	log      *slog.Logger
	accounts map[string]*ledger.Book // by owners.account; without postings that are not written
	owners   owners
	spent    map[string]onpath.Account // accounts as they will be once the groups are written
	entering map[string]bool           // references of money that is being entered
	billed   map[string]billed         // how far instances' meters are paid for, by UID
	prices   prices
	lists    map[int64]*onpath.PriceListSpec // price lists by version
	kept     map[int64]bool                  // versions of those that are in the ledger
}

// clear leaves what is read from the store empty.
func (ac *accounting) clear() {
	ac.accounts, ac.spent, ac.billed = map[string]*ledger.Book{}, map[string]onpath.Account{}, map[string]billed{}
	ac.entering, ac.owners.former = map[string]bool{}, map[string][]time.Time{}
	ac.prices, ac.lists, ac.kept = prices{}, map[int64]*onpath.PriceListSpec{noList: {}}, map[int64]bool{}
}

// takeUp takes up the books that a group wrote.
func (ac *accounting) takeUp(books map[string]*ledger.Book, revision int64) {
	for tenant, b := range books {
		ac.accounts[tenant] = &ledger.Book{Account: b.Account, Version: revision}
		if ac.spent[tenant].Postings == b.Account.Postings {
			delete(ac.spent, tenant)
		}
		for _, x := range b.Added() {
			if x.Prices != 0 {
				ac.kept[x.Prices] = true
			}
		}
	}
}

// usePrices has decisions be paid by a price list.
func (ac *accounting) usePrices(list prices) {
	ac.prices = list
	if list.spec != nil {
		ac.lists[list.version] = list.spec
	}
}

// noList is the version by which decisions are paid where there is no price list.
const noList = 0

func (ac *accounting) currency() string {
	if ac.prices.spec == nil {
		return ""
	}
	return ac.prices.spec.Currency
}

// chargeAll has the tenants' accounts pay.
func (ac *accounting) chargeAll(held []*decision) (quotes []onpath.Quote, books map[string]*ledger.Book, err error) {
	books = map[string]*ledger.Book{}
	for _, d := range held {
		if err := ac.chargeDecision(books, d); err != nil {
			return nil, nil, about(d.key, err)
		}
		quotes = append(quotes, d.quote)
	}
	return quotes, books, nil
}

// payDecision finds the amounts of a decision, and has its tenant's account pay.
func (ac *accounting) payDecision(d *decision, now time.Time) (map[string]*ledger.Book, error) {
	if err := ac.reckonAmounts(d, now); err != nil {
		return nil, err
	}
	books := map[string]*ledger.Book{}
	return books, ac.chargeDecision(books, d)
}

// reckonAmounts finds the amounts of a decision's postings.
func (ac *accounting) reckonAmounts(d *decision, now time.Time) error {
	all, paid, due := segmentsOf(d.pay), d.obj.Status.Paid, onpath.Money(0)
	for i := range d.postings {
		post := &d.postings[i]
		post.At = now
		all += len(post.Segments)
		if len(post.Segments) > maxSegments {
			e := onpath.Errorf(onpath.CodeInvalid,
				"the price changes %d times with what the tenant has reserved; at most %d", len(post.Segments), maxSegments)
			e.Remedy = "make several reservations of it"
			return e
		}
		var err error
		if post.Amount, err = ledger.Amount(post, ac.lists[post.Prices]); err != nil {
			return onpath.Errorf(onpath.CodeInvalid, "the price cannot be found: %w", err)
		}
		if post.Kind != onpath.PostingCharge {
			continue
		}
		if post.Amount > math.MaxInt64-paid {
			e := onpath.Errorf(onpath.CodeInvalid, "the price of it all is more than can be counted")
			e.Remedy = "make several reservations of it"
			return e
		}
		paid, due = paid+post.Amount, due+post.Amount
	}
	if due > 0 && all > maxAllSegments { // what only gives back is never refused
		e := onpath.Errorf(onpath.CodeInvalid,
			"the price changes %d times with what the tenant has reserved, over all slots; at most %d", all, maxAllSegments)
		e.Remedy = "make several reservations of it"
		return e
	}
	return nil
}

// Bounds of what one decision charges and gives back: of a posting, and of all of them
// and what is paid, which the store takes in one transaction.
const (
	maxSegments    = 2000
	maxAllSegments = 10_000
)

// chargeDecision enters the decision's postings into the tenant's account: what is given back
// first.
func (ac *accounting) chargeDecision(books map[string]*ledger.Book, d *decision) error {
	for _, x := range append([]*decision{d}, d.moved...) {
		name := ac.owners.now(x.key.Tenant)
		b := books[name]
		if b == nil {
			b = ac.openBook(name)
			books[name] = b
		}
		st := &x.obj.Status
		x.quote.Currency = st.Currency
		for _, charges := range []bool{false, true} {
			if due := x.due(); charges && due > 0 { // all of it, or nothing
				if err := b.CanPay(due); err != nil {
					return err
				}
			}
			for _, post := range x.postings {
				if (post.Kind == onpath.PostingCharge) != charges {
					continue
				}
				post.Reservation = x.key.Name
				if err := b.Add(post.At, post); err != nil {
					return err
				}
				if charges {
					st.Paid += post.Amount
					x.quote.Price += post.Amount
				} else {
					st.Refunded += post.Amount
					x.quote.Refund += post.Amount
				}
			}
		}
	}
	return nil
}

// openBook is a copy of the account of a name, with what is decided and not written yet, to add
// postings to.
func (ac *accounting) openBook(name string) *ledger.Book {
	if a, ok := ac.spent[name]; ok {
		return &ledger.Book{Account: a}
	}
	return &ledger.Book{Account: ac.findAccount(name)}
}

// findAccount is the one of a name as it is stored.
func (ac *accounting) findAccount(name string) onpath.Account {
	if b := ac.accounts[name]; b != nil {
		return b.Account
	}
	return onpath.Account{Tenant: name}
}

// bookRecords adds a group's postings, and the price lists by which they were found.
func (ac *accounting) bookRecords(g *group, b *onpath.Batch) error {
	lists := map[int64]bool{}
	for _, tenant := range sortedKeys(g.books) {
		book := g.books[tenant]
		if book.Version = 0; ac.accounts[tenant] != nil {
			book.Version = ac.accounts[tenant].Version
		}
		records, err := book.Records()
		if err != nil {
			return err
		}
		b.Records = append(b.Records, records...)
		for _, x := range book.Added() {
			lists[x.Prices] = x.Prices != 0 && !ac.kept[x.Prices]
		}
	}
	for version, wanted := range lists {
		if !wanted {
			continue
		}
		list, err := json.Marshal(ac.lists[version])
		if err != nil {
			return err
		}
		b.Records = append(b.Records, onpath.Record{Path: ledger.PricesPath(version), Value: list, Version: onpath.AnyVersion})
	}
	return nil
}

// beginEntry has nobody else enter something by a reference meanwhile.
func (ac *accounting) beginEntry(ready error, path, reference string) error {
	if ready == nil && ac.entering[path] {
		ready = onpath.Errorf(onpath.CodeUnavailable, "reference %q is being entered; try again", reference)
	}
	if ready == nil {
		ac.entering[path] = true
	}
	return ready
}

func segmentsOf(list []payment) (n int) {
	for i := range list {
		n += len(list[i].Segments)
	}
	return n
}
