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
	placed := map[string]Placed{"u1": {Node: "fra-1", Tenant: "default", Instance: "ids-1", Reservation: "evening", Created: start}}
	bill := func(cpu time.Duration, bytes uint64, gone bool) {
		t.Helper()
		_, err := f.Bill(t.Context(), "fra-1", []onpath.Meter{{UID: "u1", Began: start, CPU: cpu, Bytes: bytes, Gone: gone}}, placed)
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
	if _, err := f.Bill(t.Context(), "fra-1", []onpath.Meter{{UID: "u1", CPU: 3 * time.Hour,
		Bytes: 3 << 30, Gone: true}}, placed); onpath.CodeOf(err) != onpath.CodeUnavailable {
		t.Errorf("two servers bill the same: %v", err)
	}
	f.Tick(t.Context()) // reads again
	f.balance(5_000_000)
	if err := f.Forget(t.Context(), "fra-1", []string{"u1"}); err != nil || len(f.queue.state.accounting.billed) != 0 {
		t.Errorf("%v is kept: %v", f.queue.state.accounting.billed, err)
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
	placed := map[string]Placed{}
	meter := func(uid string, cpu time.Duration, bytes uint64) onpath.Meter {
		placed[uid] = Placed{Node: "fra-1", Tenant: "default", Instance: uid, Created: start}
		return onpath.Meter{UID: uid, Began: start, CPU: cpu, Bytes: bytes}
	}
	bill := func(list ...onpath.Meter) {
		t.Helper()
		f.now = f.now.Add(time.Hour)
		if _, err := f.Bill(t.Context(), "fra-1", list, placed); err != nil {
			t.Error(err)
		}
	}
	bill(meter("wrapped", 0, 1<<63), meter("long", 1<<62, 0), meter("less", -time.Hour, 0), meter("good", time.Hour, 0))
	f.balance(8_000_000)
	bill(meter("wrapped", 0, 1<<63+2<<30), meter("less", time.Hour, 0))
	f.balance(5_000_000)
}

// TestUseOfOthers: a node's word counts only for instances that the server placed there. It
// cannot charge another tenant or for times before them, nor reset or drop how far another
// node's instances are billed, nor have one billed twice.
func TestUseOfOthers(t *testing.T) {
	f := setUp(t)
	f.prices(onpath.PriceListSpec{Use: onpath.UsePrices{CPU: 2_000_000, Traffic: 500_000}})
	f.credit(10_000_000)
	f.now = f.now.Add(2 * time.Hour)
	mine := Placed{Node: "fra-1", Tenant: "default", Instance: "ids-1", Reservation: "evening", Created: f.now.Add(-time.Hour)}
	bill := func(node string, placed map[string]Placed, list ...onpath.Meter) []string {
		t.Helper()
		gone, err := f.Bill(t.Context(), node, list, placed)
		if err != nil {
			t.Fatal(err)
		}
		return gone
	}
	u1 := onpath.Meter{UID: "u1", Tenant: "default", Instance: "ids-1", CPU: time.Hour}
	bill("fra-1", map[string]Placed{"u1": mine}, u1, u1)
	f.balance(8_000_000)
	for _, m := range []onpath.Meter{
		{UID: "u1", Tenant: "default", Instance: "ids-1"}, // begins anew
		{UID: "u1", Tenant: "default", Instance: "ids-1", CPU: 3 * time.Hour, Gone: true},
		{UID: "u2", Tenant: "default", Instance: "ids-1", CPU: 3 * time.Hour, Gone: true},
	} {
		if gone := bill("fra-2", nil, m); m.Gone != (len(gone) == 1) {
			t.Errorf("the node may forget %v of %+v", gone, m)
		}
	}
	if err := f.Forget(t.Context(), "fra-2", []string{"u1", "u2"}); err != nil {
		t.Fatal(err)
	}
	f.balance(8_000_000)
	f.Pool = f.restart() // which does not know the instance any more
	bill("fra-1", nil, u1)
	f.balance(8_000_000)
	u1.Tenant, u1.CPU, u1.Gone = "operator", 90*time.Minute, true
	if gone := bill("fra-1", nil, u1); len(gone) != 1 {
		t.Errorf("%v is billed and gone", gone)
	}
	f.balance(7_000_000)
	// 5 million hours since the year 1, of an instance of an hour.
	bill("fra-1", map[string]Placed{"u3": {Node: "fra-1", Tenant: "default", Instance: "ids-3", Created: mine.Created}},
		onpath.Meter{UID: "u3", CPU: 9000 * time.Hour})
	f.balance(7_000_000)
	inv, err := f.Invoice(t.Context(), "default", "2026-11")
	if err != nil || len(inv.Lines) != 1 || inv.Lines[0].Reservation != "evening" || inv.Lines[0].CPU != 90*time.Minute {
		t.Errorf("%+v %v", inv, err)
	}
}
