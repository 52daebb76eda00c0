package pool

import (
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
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
	e := f.entries[onpath.Key{Kind: onpath.KindReservation, Tenant: onpath.DefaultTenant, Name: "r"}]
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
