package pool

import (
	"encoding/json"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/ledger"
	"github.com/onpath/onpath/plan/price"
)

// TestPaysItsCalendar: an open-ended reservation whose slots change at any minute has paid
// the price of its calendar until the end of the hour that is paid, each posting to half a
// millionth; the other kinds have paid the price of the whole.
func TestPaysItsCalendar(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		f := setUp(t)
		list := onpath.PriceListSpec{Hour: onpath.UnitPrices{CPU: 1_234_567, Memory: 77_777, Network: 333}}
		f.prices(list)
		f.credit(1_000_000_000_000)
		o := request("r", 0, 0, onpath.Resources{})
		o.Spec.Cloudlet, o.Spec.Instances = "fra", 1+r.IntN(2)
		at := time.Duration(0)
		for range 1 + r.IntN(6) {
			at += time.Duration(1+r.IntN(3*3600)) * time.Second
			o.Spec.Slots = append(o.Spec.Slots, onpath.ReservationSlot{Until: start.Add(at),
				Capacity: onpath.Resources{CPU: onpath.CPU(1 + r.IntN(3000)), Memory: onpath.Size(r.IntN(2)) << 30, Network: onpath.Rate(r.IntN(3)) * 1e9}})
		}
		if r.IntN(4) > 0 {
			o.Spec.Slots[len(o.Spec.Slots)-1].Until = time.Time{}
		}
		f.must(o)
		f.pass(time.Duration(r.IntN(20*3600)) * time.Second)
		st := f.get("r").Status
		until := st.PaidUntil
		if until.IsZero() {
			until = st.End()
		}
		want := new(big.Rat)
		for _, x := range st.Slots {
			z := earliest(end(x.Until), until)
			if x.From.Before(z) {
				one := []onpath.PaidSegment{{From: x.From, Until: z, Tiers: []onpath.Resources{multiply(x.Capacity, len(st.Places))}}}
				want.Add(want, price.Fee(&list, one))
			}
		}
		postings := len(f.allPostings(t)) - 1 // one is the credit
		off := new(big.Rat).Sub(want, big.NewRat(int64(st.Paid), 1))
		if off.Abs(off).Cmp(big.NewRat(int64(postings), 2)) > 0 {
			t.Errorf("seed %d: %d paid by %d postings, the calendar costs %s", seed, st.Paid, postings, want.FloatString(1))
		}
		f.checkLedger()
	}
}

// TestLedgerKnowsCalendar: a payment that does not fit the calendar is found.
func TestLedgerKnowsCalendar(t *testing.T) {
	f := setUp(t)
	f.must(request("before", 0, 0, cores(0.5))) // before there is a price
	f.prices(simple)
	f.credit(100_000_000)
	f.must(request("r", time.Hour, 3*time.Hour, cores(2)))
	f.must(request("before", 0, 0, cores(1)))
	f.checkLedger()
	e := f.queue.state.rows.entries[onpath.Key{Kind: onpath.KindReservation, Tenant: onpath.DefaultTenant, Name: "r"}]
	whole := e.payments[0].Segments[0]
	for what, spoil := range map[string]func(s *onpath.PaidSegment){
		"too much":   func(s *onpath.PaidSegment) { s.Tiers = []onpath.Resources{cores(3)} },
		"too little": func(s *onpath.PaidSegment) { s.Tiers = []onpath.Resources{cores(1)} },
		"too late":   func(s *onpath.PaidSegment) { s.From = s.From.Add(time.Minute) },
		"too long":   func(s *onpath.PaidSegment) { s.Until = s.Until.Add(time.Minute) },
	} {
		spoil(&e.payments[0].Segments[0])
		c, err := f.CheckLedger(t.Context())
		if err != nil || len(c.Wrong) != 1 || !strings.Contains(c.Wrong[0], "reservation default/r has paid for") {
			t.Errorf("%s: %v %v", what, c.Wrong, err)
		}
		e.payments[0].Segments[0] = whole
	}
	f.checkLedger()
}

// TestMaxPriceOfHours: an open-ended reservation ends before the hour that costs more than
// maxPrice.
func TestMaxPriceOfHours(t *testing.T) {
	f := setUp(t)
	f.prices(simple)
	f.credit(1_000_000_000)
	limit := onpath.Money(1_500_000)
	r := request("open", 0, 0, cores(1))
	r.Spec.MaxPrice = &limit
	f.must(r)
	f.pass(10*time.Hour + time.Minute)
	if st := f.get("open").Status; st.State != onpath.ReservationActive || st.Paid != 11_000_000 {
		t.Errorf("hours of 1 each, at most 1.5: %s, %s paid", st.State, st.Paid)
	}
	dear := simple
	dear.Hour.CPU = 100_000_000
	f.prices(dear)
	f.pass(time.Hour)
	if st := f.get("open").Status; st.State != onpath.ReservationEnded || !strings.Contains(st.Reason, "maxPrice") || st.Paid != 11_000_000 {
		t.Errorf("an hour of 100, at most 1.5: %s (%s), %s paid", st.State, st.Reason, st.Paid)
	}
}

func (f *fixture) checkLedger() {
	f.t.Helper()
	if c, err := f.CheckLedger(f.t.Context()); err != nil || len(c.Wrong) > 0 {
		f.t.Errorf("the ledger: %v %v", c.Wrong, err)
	}
}

// TestEntries: what the operator enters stands once by its reference, and is taken back once.
func TestEntries(t *testing.T) {
	f := setUp(t)
	f.prices(simple)
	credit := onpath.MoneyEntry{Kind: onpath.PostingCredit, Amount: 250_000_000, Reference: "transfer 4711"}
	for range 2 { // the answer to the first may have been lost
		if a, err := f.enter(credit); err != nil || a.Balance != 250_000_000 {
			t.Fatalf("%+v %v", a, err)
		}
	}
	refused := func(e onpath.MoneyEntry, code onpath.Code, want string) {
		t.Helper()
		if _, err := f.enter(e); onpath.CodeOf(err) != code || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s: %s", e, err, code, want)
		}
	}
	refused(onpath.MoneyEntry{Kind: onpath.PostingCredit, Amount: 1, Reference: " transfer 4711"}, onpath.CodeConflict, "posting 1, a credit of 250")
	refused(onpath.MoneyEntry{Kind: onpath.PostingPayout, Amount: 250_000_000, Reference: "transfer 4711"}, onpath.CodeConflict, "posting 1")
	refused(onpath.MoneyEntry{Kind: onpath.PostingCredit, Amount: 1}, onpath.CodeInvalid, "needs a reference")
	refused(onpath.MoneyEntry{Kind: onpath.PostingCredit, Amount: -1, Reference: "x"}, onpath.CodeInvalid, "-0.000001 is no credit")
	refused(onpath.MoneyEntry{Kind: onpath.PostingRefund, Amount: 1, Reference: "x"}, onpath.CodeInvalid, "no kind of entry")
	refused(onpath.MoneyEntry{Kind: onpath.PostingPayout, Amount: 251_000_000, Reference: "out"}, onpath.CodeNoCapacity, "has 250")
	refused(onpath.MoneyEntry{Kind: onpath.PostingCorrection, Reverses: 7}, onpath.CodeInvalid, "has no posting 7")
	refused(onpath.MoneyEntry{Kind: onpath.PostingCorrection}, onpath.CodeInvalid, "has no posting 0")

	if _, err := f.enter(onpath.MoneyEntry{Kind: onpath.PostingPayout, Amount: 50_000_000, Reference: "out"}); err != nil {
		t.Fatal(err)
	}
	f.must(request("r", 0, time.Hour, cores(1)))
	refused(onpath.MoneyEntry{Kind: onpath.PostingCorrection, Reverses: 3}, onpath.CodeInvalid, "posting 3 is a charge")
	for range 2 {
		if a, err := f.enter(onpath.MoneyEntry{Kind: onpath.PostingCorrection, Reverses: 1, Cause: "another tenant's"}); err != nil || a.Balance != -51_000_000 {
			t.Fatalf("%+v %v", a, err)
		}
	}
	refused(credit, onpath.CodeConflict, "which posting 4 takes back")
	refused(onpath.MoneyEntry{Kind: onpath.PostingCorrection, Reverses: 4}, onpath.CodeInvalid, "posting 4 is a correction")
	f.balance(-51_000_000)
	inv, err := f.Invoice(t.Context(), onpath.DefaultTenant, "2026-11")
	if err != nil || inv.Credits != -50_000_000 || inv.Total != 1_000_000 || inv.Closing != -51_000_000 {
		t.Errorf("%+v %v", inv, err)
	}
}

// TestLedgerMutations: whatever is changed in one posting or account, the check finds it.
func TestLedgerMutations(t *testing.T) {
	f := setUp(t)
	f.prices(onpath.PriceListSpec{Hour: onpath.UnitPrices{CPU: 1_234_567}, Tiers: []onpath.PriceTier{{Above: 10, Percent: 150}}})
	for _, e := range []onpath.MoneyEntry{
		{Kind: onpath.PostingCredit, Amount: 500_000_000, Reference: "a"}, {Kind: onpath.PostingCredit, Amount: 3_000_000, Reference: "b"},
		{Kind: onpath.PostingPayout, Amount: 1_000_000, Reference: "c"}, {Kind: onpath.PostingCorrection, Reverses: 2},
	} {
		if _, err := f.enter(e); err != nil {
			t.Fatal(err)
		}
	}
	f.must(request("r", time.Hour, 5*time.Hour, cores(2)))
	f.must(request("r", time.Hour, 5*time.Hour, cores(1)))
	f.must(request("open", 0, 0, cores(1)))
	f.pass(3 * time.Hour)
	f.checkLedger()
	r := rand.New(rand.NewPCG(4, 2))
	all := f.allPostings(t)
	for n := range 100 {
		was := all[r.IntN(len(all))]
		p := was
		p.Segments = slices.Clone(was.Segments)
		path := ledger.PostingPath(p.Tenant, p.Number)
		what := "its amount"
		switch k := r.IntN(8); {
		case k == 0:
			what, p.Number = "its number", p.Number+int64(1+r.IntN(3))
		case k == 1:
			what, p.Debit, p.Credit = "its direction", p.Credit, p.Debit
		case k == 2 && len(p.Segments) > 0:
			what = "its time"
			p.Segments[0].Until = p.Segments[0].Until.Add(time.Minute)
		case k == 3 && len(p.Segments) > 0:
			what = "its capacity"
			p.Segments[0].Tiers = slices.Clone(p.Segments[0].Tiers)
			p.Segments[0].Tiers[0].CPU += 100
		case k == 4 && p.Prices != 0:
			what, p.Prices = "its price list", p.Prices+77
		case k == 5 && p.Reference == "c":
			what, p.Reference = "its reference", "a"
		case k == 6 && p.Reverses != 0:
			what, p.Reverses = "what it reverses", 3
		default:
			p.Amount += onpath.Money(1 + r.IntN(9))
		}
		f.overwrite(path, &p)
		if c, err := f.CheckLedger(t.Context()); err != nil || len(c.Wrong) == 0 {
			t.Errorf("%d: posting %d, a %s, has %s changed: not found (%v)", n, was.Number, was.Kind, what, err)
		}
		f.overwrite(path, &was)
	}
	f.checkLedger()
	a, err := f.Account(t.Context(), onpath.DefaultTenant)
	if err != nil {
		t.Fatal(err)
	}
	a.Currency = ""
	a.Balance++
	f.overwrite(ledger.AccountPath(a.Tenant), &a)
	if c, err := f.CheckLedger(t.Context()); err != nil || len(c.Wrong) != 1 {
		t.Errorf("a balance is changed: %v %v", c.Wrong, err)
	}
}

// overwrite puts a record into the store behind the pool's back.
func (f *fixture) overwrite(path string, v any) {
	f.t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		f.t.Fatal(err)
	}
	if _, err := f.store.Write(f.t.Context(), onpath.Batch{Records: []onpath.Record{{Path: path, Value: b, Version: onpath.AnyVersion}}}); err != nil {
		f.t.Fatal(err)
	}
}
