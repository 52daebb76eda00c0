package pool

import (
	"context"
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
	f.o.Store = &between{f.store, func() { f.prices(perCore(3)) }}
	if q := f.must(hour("meanwhile")); q.Price != 3*onpath.Millionths {
		t.Errorf("it costs %s, and the list changed before it was written", q.Price)
	}
	f.balance(100*onpath.Millionths - (1+2+3)*onpath.Millionths)
	f.restart()
	f.balance(100*onpath.Millionths - (1+2+3)*onpath.Millionths)
}
