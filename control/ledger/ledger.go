// Package ledger is double entry: postings that move money between accounts, each
// written in the transaction of its cause. It makes and recomputes them; whoever
// writes keeps them in the store, by the paths given here.
package ledger

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/price"
)

// Book is a tenant's account while postings are added. What is added is written by
// Records, or forgotten with the Book.
type Book struct {
	Account onpath.Account
	// Version of the account's record; 0: there is none yet.
	Version int64
	added   []onpath.Posting
}

// Add enters a posting at a time. Amounts of 0 are not entered. It fails if the account
// cannot pay, or would hold more than can be counted.
func (b *Book) Add(at time.Time, p onpath.Posting) error {
	if p.Amount == 0 {
		return nil
	}
	if p.Amount < 0 {
		return fmt.Errorf("a posting of %s", p.Amount)
	}
	own := onpath.AccountOf(b.Account.Tenant)
	p.Tenant, p.At = b.Account.Tenant, at.UTC().Round(0)
	switch p.Kind {
	case onpath.PostingCharge, onpath.PostingUse:
		p.Debit, p.Credit = own, onpath.AccountIncome
	case onpath.PostingCredit:
		p.Debit, p.Credit = onpath.AccountCash, own
	case onpath.PostingPayout:
		p.Debit, p.Credit = own, onpath.AccountCash
	case onpath.PostingCorrection: // of which the accounts are those of what it reverses, changed over
	default:
		p.Debit, p.Credit = onpath.AccountIncome, own
	}
	balance := b.Account.Balance
	switch {
	case (p.Kind == onpath.PostingCharge || p.Kind == onpath.PostingPayout) && balance < p.Amount:
		return b.CanPay(p.Amount)
	case p.Debit == own && balance < math.MinInt64+p.Amount, p.Credit == own && balance > math.MaxInt64-p.Amount:
		return onpath.Errorf(onpath.CodeInvalid, "the account of tenant %s would hold more than can be counted", p.Tenant)
	case p.Debit == own:
		b.Account.Balance -= p.Amount
	default:
		b.Account.Balance += p.Amount
	}
	b.Account.Postings++
	p.Number = b.Account.Postings
	b.added = append(b.added, p)
	return nil
}

// CanPay refuses what is more than the account has.
func (b *Book) CanPay(amount onpath.Money) error {
	if b.Account.Balance >= amount {
		return nil
	}
	t := b.Account.Tenant
	e := onpath.Errorf(onpath.CodeNoCapacity, "the account of tenant %s has %s, and %s is to be paid", t, b.Account.Balance, amount)
	name, _, _ := strings.Cut(t, "~") // the account of a later tenant of a name
	e.Remedy = "have the operator credit it: onpath account credit " + name + " AMOUNT --reference TRANSFER"
	return e
}

// Join is b with what was added to next, which began as b is.
func (b *Book) Join(next *Book) *Book {
	return &Book{Account: next.Account, Version: b.Version, added: append(slices.Clip(b.added), next.added...)}
}

// Added are the postings since the account was read.
func (b *Book) Added() []onpath.Posting { return b.added }

// Records are the account and its new postings as they are stored; none if nothing was
// added.
func (b *Book) Records() ([]onpath.Record, error) {
	if len(b.added) == 0 {
		return nil, nil
	}
	account, err := json.Marshal(b.Account)
	if err != nil {
		return nil, err
	}
	out := []onpath.Record{{Path: AccountPath(b.Account.Tenant), Value: account, Version: b.Version}}
	for _, p := range b.added {
		v, err := json.Marshal(p)
		if err != nil {
			return nil, err
		}
		out = append(out, onpath.Record{Path: PostingPath(p.Tenant, p.Number), Value: v})
	}
	return out, nil
}

// Entered reports whether people enter postings of a kind.
func Entered(k onpath.PostingKind) bool {
	return k == onpath.PostingCredit || k == onpath.PostingPayout || k == onpath.PostingCorrection
}

// Where records lie.
const (
	Accounts   = "ledger/account/"
	Prices     = "ledger/prices/"
	Postings   = "ledger/posting/"
	References = "ledger/reference/"
	Days       = "ledger/day/"
	Balances   = "ledger/carried/"
)

// Carried is the balance that stands in the store for the postings of closed days.
type Carried struct {
	Tenant string `json:"tenant"`
	// Number of the last of these postings, and the day whose file has it.
	Number  int64        `json:"number"`
	Day     string       `json:"day"`
	Balance onpath.Money `json:"balance"`
}

// ReferencePath is where the number of the posting with a reference lies.
func ReferencePath(tenant, reference string) string {
	sum := sha256.Sum256([]byte(reference))
	return References + tenant + "/" + hex.EncodeToString(sum[:])
}

// Reversal is the reference of the correction of a posting: there is one at most.
func Reversal(number int64) string { return fmt.Sprintf("reverses posting %d", number) }

// AccountPath is where a tenant's account lies.
func AccountPath(tenant string) string { return Accounts + tenant }

// PostingsOf is the folder of a tenant's postings.
func PostingsOf(tenant string) string { return Postings + tenant + "/" }

// PostingPath is where a posting lies; paths are ordered as the numbers are.
func PostingPath(tenant string, number int64) string {
	return fmt.Sprintf("%s%012d", PostingsOf(tenant), number)
}

// PricesPath is where the price list of a version is kept, once somebody paid by it.
func PricesPath(version int64) string { return fmt.Sprintf("%s%020d", Prices, version) }

// Amount is what a posting must be, recomputed from what it says and the price list of
// its version.
func Amount(p *onpath.Posting, l *onpath.PriceListSpec) (onpath.Money, error) {
	if Entered(p.Kind) {
		return p.Amount, nil
	}
	if l == nil {
		return 0, fmt.Errorf("the price list of version %d is not there", p.Prices)
	}
	for _, s := range p.Segments {
		if len(s.Tiers) > len(l.Tiers)+1 {
			return 0, fmt.Errorf("it has %d tiers, its price list %d", len(s.Tiers), len(l.Tiers)+1)
		}
	}
	amount := price.Fee(l, p.Segments)
	switch p.Kind {
	case onpath.PostingRefund:
		amount = price.Refund(amount, p.Paid, p.Begin, p.At)
	case onpath.PostingUse:
		amount = price.Use(l, p.CPU, p.Bytes)
	}
	m, ok := price.Round(amount)
	if !ok {
		return 0, fmt.Errorf("it is more than can be counted")
	}
	return m, nil
}
