package ledger

import (
	"fmt"
	"slices"

	"github.com/onpath/onpath"
)

// MaxWrong bounds how many faults a check tells of.
const MaxWrong = 100

// Check recomputes a ledger: each posting's amount from its basis, each account's balance
// from its postings, and that no number is missing or stands twice.
type Check struct {
	Prices  map[int64]*onpath.PriceListSpec
	result  onpath.LedgerCheck
	entered map[string]entries // by tenant
	sums    map[string]onpath.Money
	numbers map[string]int64
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
		c.wrong("%s has the reference of posting %d: %s", at, n, p.Reference)
	}
	e.references[p.Reference] = p.Number
	if p.Kind != onpath.PostingCorrection {
		e.open[p.Number] = *p
		return
	}
	was, ok := e.open[p.Reverses]
	delete(e.open, p.Reverses)
	if !ok || was.Amount != p.Amount || was.Debit != p.Credit || was.Credit != p.Debit {
		c.wrong("%s does not move back what posting %d moved", at, p.Reverses)
	}
}

// Posting adds one posting; a tenant's are added in order.
func (c *Check) Posting(p *onpath.Posting) {
	if c.sums == nil {
		c.sums, c.numbers, c.entered = map[string]onpath.Money{}, map[string]int64{}, map[string]entries{}
	}
	c.result.Postings++
	at := fmt.Sprintf("posting %d of tenant %s", p.Number, p.Tenant)
	if c.numbers[p.Tenant]++; c.numbers[p.Tenant] != p.Number {
		c.wrong("%s stands where number %d should", at, c.numbers[p.Tenant])
		c.numbers[p.Tenant] = p.Number
	}
	own := onpath.AccountOf(p.Tenant)
	switch {
	case p.Amount <= 0:
		c.wrong("%s moves %s", at, p.Amount)
	case (p.Debit == own) == (p.Credit == own):
		c.wrong("%s goes from %s to %s", at, p.Debit, p.Credit)
	}
	if Entered(p.Kind) {
		c.enter(at, p)
	}
	if p.Debit == own {
		c.sums[p.Tenant] -= p.Amount
	} else {
		c.sums[p.Tenant] += p.Amount
	}
	want, err := Amount(p, c.Prices[p.Prices])
	switch {
	case err != nil:
		c.wrong("%s cannot be recomputed: %v", at, err)
	case want != p.Amount:
		c.wrong("%s is %s, recomputed %s", at, p.Amount, want)
	}
}

// Done compares with the accounts and says what was found.
func (c *Check) Done(accounts []onpath.Account) onpath.LedgerCheck {
	c.result.Tenants = len(accounts)
	var known []string
	for _, a := range accounts {
		known = append(known, a.Tenant)
		if a.Balance != c.sums[a.Tenant] || a.Postings != c.numbers[a.Tenant] {
			c.wrong("account %s has %s after %d postings, its postings give %s after %d", a.Tenant, a.Balance,
				a.Postings, c.sums[a.Tenant], c.numbers[a.Tenant])
		}
	}
	for tenant := range c.numbers {
		if !slices.Contains(known, tenant) {
			c.wrong("tenant %s has postings and no account", tenant)
		}
	}
	return c.result
}

func (c *Check) wrong(format string, args ...any) {
	if len(c.result.Wrong) < MaxWrong {
		c.result.Wrong = append(c.result.Wrong, fmt.Sprintf(format, args...))
	}
}

// Bill is the invoice of an account's month; postings are the account's last ones, in order
// and with all since the month began.
func Bill(a onpath.Account, month string, postings []onpath.Posting) onpath.Invoice {
	inv := onpath.Invoice{Tenant: a.Tenant, Month: month, Lines: []onpath.InvoiceLine{}, Opening: a.Balance}
	own := onpath.AccountOf(a.Tenant)
	var order []string
	lines := map[string]*onpath.InvoiceLine{}
	for _, p := range postings {
		moved := p.Amount
		if p.Debit == own {
			moved = -moved
		}
		inv.Opening -= moved
		if m := p.At.UTC().Format("2006-01"); m != month {
			if m < month {
				inv.Opening += moved
			}
			continue
		}
		inv.Closing += moved
		if Entered(p.Kind) {
			inv.Credits += moved
			continue
		}
		l := lines[p.Reservation]
		if l == nil {
			l = &onpath.InvoiceLine{Reservation: p.Reservation}
			lines[p.Reservation], order = l, append(order, p.Reservation)
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
	inv.Closing += inv.Opening
	for _, name := range order {
		inv.Lines = append(inv.Lines, *lines[name])
	}
	return inv
}
