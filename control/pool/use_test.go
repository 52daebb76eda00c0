package pool

import (
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestUse: what instances use is billed once, whichever server does it and however often it
// is told; what was used while nothing was charged for use stays free.
func TestUse(t *testing.T) {
	f := setUp(t)
	bill := func(cpu time.Duration, bytes uint64, gone bool) {
		t.Helper()
		_, err := f.Bill(t.Context(), []onpath.Meter{{UID: "u1", Tenant: "default", Instance: "ids-1", Reservation: "evening",
			Began: start, CPU: cpu, Bytes: bytes, Gone: gone}})
		if err != nil {
			t.Fatal(err)
		}
	}
	bill(time.Hour, 1<<30, false) // no price list yet
	f.prices(onpath.PriceListSpec{Use: onpath.UsePrices{CPU: 2_000_000, Traffic: 500_000}})
	f.credit(10_000_000)
	bill(time.Hour, 1<<30, false)
	f.balance(10_000_000)
	f.now = f.now.Add(time.Hour)
	for range 2 { // 1.5 hours of a core, 2 GiB
		bill(time.Hour+90*time.Minute, 3<<30, false)
		f.balance(6_000_000)
	}
	f.Pool = f.restart()
	bill(time.Hour+90*time.Minute, 3<<30, false)
	f.balance(6_000_000)
	old := f.Pool
	f.restart()
	bill(time.Hour+120*time.Minute, 3<<30, true)
	f.balance(5_000_000)
	f.Pool = old // it bills from what it read before
	if _, err := f.Bill(t.Context(), []onpath.Meter{{UID: "u1", Tenant: "default", Instance: "ids-1", CPU: 3 * time.Hour,
		Bytes: 3 << 30, Gone: true}}); onpath.CodeOf(err) != onpath.CodeUnavailable {
		t.Errorf("two servers bill the same: %v", err)
	}
	f.Tick(t.Context()) // reads again
	f.balance(5_000_000)
	if err := f.Forget(t.Context(), []string{"u1"}); err != nil || len(f.billed) != 0 {
		t.Errorf("%v is kept: %v", f.billed, err)
	}
	inv, err := f.Invoice(t.Context(), "default", "2026-11")
	if err != nil || len(inv.Lines) != 1 {
		t.Fatalf("%+v %v", inv, err)
	}
	if l := inv.Lines[0]; l.Reservation != "evening" || l.Use != 5_000_000 || l.CPU != 2*time.Hour || l.Bytes != 2<<30 {
		t.Errorf("the invoice says %+v", l)
	}
}

// TestUseImplausible: what no machine can have used is not billed, and what others used is.
func TestUseImplausible(t *testing.T) {
	f := setUp(t)
	f.prices(onpath.PriceListSpec{Use: onpath.UsePrices{CPU: 2_000_000, Traffic: 500_000}})
	f.credit(10_000_000)
	meter := func(uid string, cpu time.Duration, bytes uint64) onpath.Meter {
		return onpath.Meter{UID: uid, Tenant: "default", Instance: uid, Began: start, CPU: cpu, Bytes: bytes}
	}
	bill := func(list ...onpath.Meter) {
		t.Helper()
		f.now = f.now.Add(time.Hour)
		if _, err := f.Bill(t.Context(), list); err != nil {
			t.Error(err)
		}
	}
	bill(meter("wrapped", 0, 1<<63), meter("long", 1<<62, 0), meter("less", -time.Hour, 0), meter("good", time.Hour, 0))
	f.balance(8_000_000)
	bill(meter("wrapped", 0, 1<<63+2<<30), meter("less", time.Hour, 0))
	f.balance(5_000_000)
}
