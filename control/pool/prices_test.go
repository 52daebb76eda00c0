package pool

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// between has something happen before the next write.
type between struct {
	onpath.Store
	do func()
}

func (s *between) Write(ctx context.Context, b onpath.Batch) (onpath.Written, error) {
	if do := s.do; do != nil {
		s.do = nil
		do()
	}
	return s.Store.Write(ctx, b)
}

// TestPricesInForce: what is charged is by the price list in force as it is written, though
// decisions are taken by the one read last.
func TestPricesInForce(t *testing.T) {
	f := setUp(t)
	perCore := func(n onpath.Money) onpath.PriceListSpec {
		return onpath.PriceListSpec{Hour: onpath.UnitPrices{CPU: n * onpath.Millionths}}
	}
	hour := func(name string) *onpath.Reservation { return request(name, time.Hour, 2*time.Hour, cores(1)) }
	if q := f.must(hour("free")); q.Price != 0 {
		t.Errorf("without a price list it costs %s", q.Price)
	}
	f.credit(100 * onpath.Millionths)
	f.prices(perCore(1))
	if q := f.must(hour("first")); q.Price != onpath.Millionths {
		t.Errorf("under the first list it costs %s", q.Price)
	}
	f.prices(perCore(9))
	dear, limit := hour("dear"), 2*onpath.Millionths
	dear.Spec.MaxPrice = &limit
	if _, err := f.apply(dear); onpath.CodeOf(err) != onpath.CodeNoCapacity {
		t.Errorf("by the list of before it is cheap enough: %v", err)
	}
	f.prices(perCore(2))
	if q := f.must(dear); q.Price != limit {
		t.Errorf("by the list of before it is too dear; it costs %s", q.Price)
	}
	f.through(&between{f.store, func() { f.prices(perCore(3)) }})
	if q := f.must(hour("meanwhile")); q.Price != 3*onpath.Millionths {
		t.Errorf("it costs %s, and the list changed before it was written", q.Price)
	}
	f.balance(100*onpath.Millionths - (1+2+3)*onpath.Millionths)
	f.restart()
	f.balance(100*onpath.Millionths - (1+2+3)*onpath.Millionths)
}

// TestExtremes: amounts up to the largest that can be counted are exact, and what would be
// more is refused and changes nothing.
func TestExtremes(t *testing.T) {
	f := setUp(t)
	for name, n := range f.nodes {
		n.Capacity.CPU = 1_000_000
		f.nodes[name] = n
	}
	f.observe()
	f.prices(onpath.PriceListSpec{Hour: onpath.UnitPrices{CPU: 1_000_000 * onpath.Millionths}})
	const most, paid, decade = onpath.Money(9_200_000_000_000_000_000), onpath.Money(8_760_000_000_000_000_000), 87_600 * time.Hour
	refused := func(what string, err error) {
		t.Helper()
		if onpath.CodeOf(err) != onpath.CodeInvalid || !strings.Contains(err.Error(), "more than can be counted") {
			t.Errorf("%s: %v", what, err)
		}
	}
	f.credit(most)
	r := request("r", time.Hour, time.Hour+decade, cores(200))
	_, err := f.apply(r)
	refused("one part of 200 cores", err)
	limit := onpath.Money(1)
	slots := request("slots", 0, 0, onpath.Resources{})
	slots.Spec.From, slots.Spec.MaxPrice = start.Add(time.Hour), &limit
	for i := range 2 {
		until := start.Add(time.Hour + time.Duration(i+1)*decade)
		slots.Spec.Slots = append(slots.Spec.Slots, onpath.ReservationSlot{Until: until, Capacity: cores(100 + float64(i)/4)})
	}
	_, err = f.apply(slots)
	refused("two slots", err)
	f.balance(most)
	r.Spec.Capacity = cores(100)
	if q := f.must(r); q.Price != paid {
		t.Errorf("%s is to be paid", q.Price)
	}
	f.balance(most - paid)
	if q, err := f.Apply(t.Context(), nil, []onpath.Key{onpath.KeyOf(r)}, true); err != nil || q[0].Refund != paid {
		t.Errorf("%+v %v", q, err)
	}
	_, err = f.enter(onpath.MoneyEntry{Kind: onpath.PostingCredit, Amount: most, Reference: "most"})
	refused("a credit", err)
	f.credit(paid)
	r.Spec.Capacity = cores(200)
	_, err = f.apply(r)
	refused("100 cores more", err)
	f.balance(most)
	if s := f.get("r").Status; s.Paid != paid || s.State != onpath.ReservationConfirmed {
		t.Errorf("%+v", s)
	}
}
