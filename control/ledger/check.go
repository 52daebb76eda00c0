package ledger

import (
	"fmt"
	"maps"
	"slices"

	"github.com/onpath/onpath"
)

// MaxWrong bounds how many faults a check tells of.
const MaxWrong = 100

// Check recomputes a ledger: each posting's amount from its basis, each account's balance
// from its postings, and that no number is missing or stands twice.
type Check struct {
	Prices map[int64]*onpath.PriceListSpec
	// Days is how many closed days were read.
	Days    int
	result  onpath.LedgerCheck
	entered map[string]entries // by tenant
	sums    map[string]onpath.Money
	numbers map[string]int64
	files   map[string]int64 // the last numbers that stand in files
}

// entries are what people entered into one account.
type entries struct {
	references map[string]int64
	open       map[int64]onpath.Posting // that a correction may reverse
}

// enter checks what people entered: each reference stands once, and a correction moves
// back what an earlier entry moved, once.
func (c *Check) enter(at string, p *onpath.Posting) {
	e, ok := c.entered[p.Tenant]
	if !ok {
		e = entries{map[string]int64{}, map[int64]onpath.Posting{}}
		c.entered[p.Tenant] = e
	}
	if n := e.references[p.Reference]; n != 0 && p.Reference != "" {
		c.Wrong("%s has the reference of posting %d: %s", at, n, p.Reference)
	}
	e.references[p.Reference] = p.Number
	if p.Kind != onpath.PostingCorrection {
		e.open[p.Number] = *p
		return
	}
	was, ok := e.open[p.Reverses]
	delete(e.open, p.Reverses)
	if !ok || was.Amount != p.Amount || was.Debit != p.Credit || was.Credit != p.Debit {
		c.Wrong("%s does not move back what posting %d moved", at, p.Reverses)
	}
}

func (c *Check) begin() {
	if c.sums == nil {
		c.sums, c.numbers, c.entered = map[string]onpath.Money{}, map[string]int64{}, map[string]entries{}
	}
}

// EndFiles ends what is in files; what is added from now on is in the store.
func (c *Check) EndFiles() { c.files = maps.Clone(c.numbers) }

// Archived is the number of the last posting of a tenant that a file has.
func (c *Check) Archived(tenant string) int64 { return c.files[tenant] }

// Resume goes on after a posting of which those up to it cannot be read.
func (c *Check) Resume(tenant string, number int64, balance onpath.Money) {
	c.begin()
	c.numbers[tenant], c.sums[tenant] = number, balance
}

// Carried compares what is carried forward after a posting of a tenant with the postings
// that were added up to it, all of them.
func (c *Check) Carried(at, tenant string, number int64, balance onpath.Money) {
	c.begin()
	if c.numbers[tenant] != number || c.sums[tenant] != balance {
		c.Wrong("%s has %s after posting %d of tenant %s, its postings give %s after %d", at, balance, number, tenant,
			c.sums[tenant], c.numbers[tenant])
	}
}

// Posting adds one posting; a tenant's are added in order.
func (c *Check) Posting(p *onpath.Posting) {
	c.begin()
	c.result.Postings++
	at := fmt.Sprintf("posting %d of tenant %s", p.Number, p.Tenant)
	if c.numbers[p.Tenant]++; c.numbers[p.Tenant] != p.Number {
		c.Wrong("%s stands where number %d should", at, c.numbers[p.Tenant])
		c.numbers[p.Tenant] = p.Number
	}
	own := onpath.AccountOf(p.Tenant)
	switch {
	case p.Amount <= 0:
		c.Wrong("%s moves %s", at, p.Amount)
	case (p.Debit == own) == (p.Credit == own):
		c.Wrong("%s goes from %s to %s", at, p.Debit, p.Credit)
	}
	if Entered(p.Kind) {
		c.enter(at, p)
	}
	c.sums[p.Tenant] += Moved(p)
	want, err := Amount(p, c.Prices[p.Prices])
	switch {
	case err != nil:
		c.Wrong("%s cannot be recomputed: %v", at, err)
	case want != p.Amount:
		c.Wrong("%s is %s, recomputed %s", at, p.Amount, want)
	}
}

// Done compares with the accounts and says what was found.
func (c *Check) Done(accounts []onpath.Account) onpath.LedgerCheck {
	c.result.Tenants, c.result.Days = len(accounts), c.Days
	var known []string
	for _, a := range accounts {
		known = append(known, a.Tenant)
		if a.Balance != c.sums[a.Tenant] || a.Postings != c.numbers[a.Tenant] {
			c.Wrong("account %s has %s after %d postings, its postings give %s after %d", a.Tenant, a.Balance,
				a.Postings, c.sums[a.Tenant], c.numbers[a.Tenant])
		}
	}
	for tenant := range c.numbers {
		if !slices.Contains(known, tenant) {
			c.Wrong("tenant %s has postings and no account", tenant)
		}
	}
	return c.result
}

// Wrong tells of a fault.
func (c *Check) Wrong(format string, args ...any) {
	if len(c.result.Wrong) < MaxWrong {
		c.result.Wrong = append(c.result.Wrong, fmt.Sprintf(format, args...))
	}
}

// Moved is by how much a posting changes its tenant's balance.
func Moved(p *onpath.Posting) onpath.Money {
	if p.Debit == onpath.AccountOf(p.Tenant) {
		return -p.Amount
	}
	return p.Amount
}

// Bill is the invoice of an account's month as it is made.
type Bill struct {
	invoice onpath.Invoice
	order   []string
	lines   map[string]*onpath.InvoiceLine
}

// NewBill begins the invoice of an account's month. The account's last postings are to be
// added in order, with all since the month began.
func NewBill(a onpath.Account, month string) *Bill {
	return &Bill{lines: map[string]*onpath.InvoiceLine{},
		invoice: onpath.Invoice{Tenant: a.Tenant, Month: month, Lines: []onpath.InvoiceLine{}, Opening: a.Balance}}
}

// Add adds a posting.
func (b *Bill) Add(p *onpath.Posting) {
	inv, moved := &b.invoice, Moved(p)
	inv.Opening -= moved
	if m := p.At.UTC().Format("2006-01"); m != inv.Month {
		if m < inv.Month {
			inv.Opening += moved
		}
		return
	}
	inv.Closing += moved
	if Entered(p.Kind) {
		inv.Credits += moved
		return
	}
	l := b.lines[p.Reservation]
	if l == nil {
		l = &onpath.InvoiceLine{Reservation: p.Reservation}
		b.lines[p.Reservation], b.order = l, append(b.order, p.Reservation)
	}
	switch p.Kind {
	case onpath.PostingCharge:
		l.Charged += p.Amount
	case onpath.PostingUse:
		l.Use += p.Amount
		l.CPU += p.CPU
		l.Bytes += p.Bytes
	case onpath.PostingRefund:
		l.Refunded += p.Amount
	case onpath.PostingCompensation:
		l.Compensated += p.Amount
	}
	l.Total -= moved
	inv.Total -= moved
}

// Done is the invoice.
func (b *Bill) Done() onpath.Invoice {
	inv := b.invoice
	inv.Closing += inv.Opening
	for _, name := range b.order {
		inv.Lines = append(inv.Lines, *b.lines[name])
	}
	return inv
}
