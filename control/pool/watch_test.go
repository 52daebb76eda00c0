package pool

import (
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestClockLeaps: while the clock is wrong nothing is charged, ended, admitted or entered.
// Decisions go on once it is right again, or when the server restarts.
func TestClockLeaps(t *testing.T) {
	for _, leap := range []time.Duration{500 * time.Hour, 2 * time.Minute, -2 * time.Minute} {
		f := setUp(t)
		var leapt time.Duration
		f.boot = func() time.Duration { return f.now.Sub(start) - leapt + time.Hour }
		f.restart()
		f.prices(simple)
		f.credit(1000_000_000)
		f.must(request("open", 0, 0, cores(1)))
		f.must(request("day", 0, 24*time.Hour, cores(1)))
		f.pass(time.Minute)
		before, _ := f.Account(t.Context(), onpath.DefaultTenant)
		set := func(d time.Duration) {
			f.now, leapt = f.now.Add(d), leapt+d
			f.Tick(t.Context())
		}
		set(leap)
		f.refused(f.Held(), onpath.CodeUnavailable, "the clock has leapt by "+leap.String(), "restart the server")
		_, err := f.apply(f.of("default", "new", leap+time.Hour, leap+2*time.Hour, cores(1)))
		f.refused(err, onpath.CodeUnavailable, "the clock has leapt")
		_, err = f.Apply(t.Context(), nil, []onpath.Key{onpath.KeyOf(f.get("day"))}, false)
		f.refused(err, onpath.CodeUnavailable, "the clock has leapt")
		_, err = f.enter(onpath.MoneyEntry{Kind: onpath.PostingCredit, Amount: 1, Reference: "x"})
		f.refused(err, onpath.CodeUnavailable, "the clock has leapt")
		_, err = f.Bill(t.Context(), "fra-1", nil, nil)
		f.refused(err, onpath.CodeUnavailable, "the clock has leapt")
		set(time.Second - leap)
		if a, _ := f.Account(t.Context(), onpath.DefaultTenant); a != before || f.Held() != nil {
			t.Errorf("leap of %s: it has %s, and had %s (%v)", leap, a.Balance, before.Balance, f.Held())
		}
		f.wants("day", onpath.ReservationActive, 1, "")
		set(30 * time.Second) // a small step is followed
		f.pass(24 * time.Hour)
		f.wants("day", onpath.ReservationEnded, 1, "its time is over")
		set(2 * time.Hour)
		if f.restart(); f.Held() != nil {
			t.Error(f.Held())
		}
		f.pass(time.Second)
		f.checkLedger()
	}
}
