package pool

import (
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

func (f *fixture) of(tenant, name string, from, until time.Duration, c onpath.Resources) *onpath.Reservation {
	r := request(name, from, until, c)
	r.Metadata.Tenant = tenant
	return r
}

func (f *fixture) refused(err error, code onpath.Code, words ...string) {
	f.t.Helper()
	for _, w := range words {
		if onpath.CodeOf(err) != code || !strings.Contains(err.Error(), w) {
			f.t.Errorf("%v; want %s with %q", err, code, w)
		}
	}
}

// TestQuotaBoundsReservations: the most that a tenant has reserved at an instant, beside what
// it has without reservations, stays within its quota of capacity. What it had before stays.
func TestQuotaBoundsReservations(t *testing.T) {
	f := setUp(t)
	const h = time.Hour
	f.owner["acme"] = Bounds{Most: cores(4), Unreserved: cores(1)}
	f.must(f.of("acme", "two", 0, 2*h, cores(2)))
	if f.must(f.of("acme", "later", 2*h, 4*h, cores(3))).Cloudlet == "" {
		t.Error("what another reservation had is not free after it")
	}
	_, err := f.apply(f.of("acme", "over", h, 3*h, cores(2)))
	f.refused(err, onpath.CodeNoCapacity, "tenant acme", "5 of CPU", "beside 1 of CPU", "allows 4 of CPU", "spec.quota.capacity")
	_, err = f.apply(f.of("acme", "two", 0, 2*h, cores(3.1)))
	f.refused(err, onpath.CodeNoCapacity, "capacity.cpu")
	_, err = f.Apply(t.Context(), []*onpath.Reservation{f.checked(f.of("acme", "a", 0, h, cores(0.5))), f.checked(f.of("acme", "b", 0, h, cores(1)))}, nil, true)
	f.refused(err, onpath.CodeNoCapacity, "capacity.cpu")
	f.must(f.of("acme", "a", 0, h, cores(1)))
	f.must(f.of("bob", "other", 0, 0, cores(3)))
	f.owner["acme"] = Bounds{Most: cores(1)}
	f.must(f.of("acme", "later", 2*h, 3*h, cores(3))) // shrinks
	if f.Reserved("acme") != cores(3) {
		t.Errorf("%v is reserved", f.Reserved("acme"))
	}
	f.restart()
	if f.Reserved("acme") != cores(3) {
		t.Errorf("after a restart %v is reserved", f.Reserved("acme"))
	}
}

// TestQuotaBoundsStored: reservations that are over count until their day closes; what is
// there stays, and may end.
func TestQuotaBoundsStored(t *testing.T) {
	f := setUp(t)
	f.owner["acme"] = Bounds{Objects: 3}
	for _, name := range []string{"a", "b", "c"} {
		f.must(f.of("acme", name, time.Hour, 2*time.Hour, cores(0.1)))
		if _, err := f.Apply(t.Context(), nil, []onpath.Key{{Kind: onpath.KindReservation, Tenant: "acme", Name: name}}, false); err != nil {
			t.Fatal(err)
		}
	}
	_, err := f.apply(f.of("acme", "d", time.Hour, 2*time.Hour, cores(0.1)))
	f.refused(err, onpath.CodeNoCapacity, "tenant acme", "4 reservations", "objects allows 3", "spec.quota.objects")
	f.must(f.of("bob", "d", time.Hour, 2*time.Hour, cores(0.1)))
	f.restart()
	_, err = f.apply(f.of("acme", "d", time.Hour, 2*time.Hour, cores(0.1)))
	f.refused(err, onpath.CodeNoCapacity, "objects allows 3")
	f.owner["acme"] = Bounds{Objects: 9, Bytes: 4000}
	_, err = f.apply(f.of("acme", "d", time.Hour, 2*time.Hour, cores(0.1)))
	f.refused(err, onpath.CodeNoCapacity, "bytes allows", "spec.quota.bytes")
	f.owner["acme"] = Bounds{Objects: 9, Bytes: 1 << 20}
	f.must(f.of("acme", "d", time.Hour, 2*time.Hour, cores(0.1)))
}

// remove deletes a tenant.
func (f *fixture) remove(name string) error {
	f.t.Helper()
	o := &onpath.Tenant{Metadata: onpath.Metadata{Name: name, UID: f.owner[name].UID}}
	records, done, err := f.RemoveTenant(f.t.Context(), o)
	if err != nil {
		return err
	}
	w, err := f.store.Write(f.t.Context(), onpath.Batch{Records: records})
	done(w.Revision)
	return err
}

// TestTenantGoes: a tenant with live reservations or money stays. The next one of its name has
// an account of its own; what the former one's instances used is not the next one's to pay.
func TestTenantGoes(t *testing.T) {
	f := setUp(t)
	list := simple
	list.Use.CPU = 2_000_000
	f.prices(list)
	f.owner["acme"] = Bounds{UID: "first"}
	enter := func(kind onpath.PostingKind, amount onpath.Money, reference string) {
		t.Helper()
		if _, err := f.Enter(t.Context(), "acme", onpath.MoneyEntry{Kind: kind, Amount: amount, Reference: reference}); err != nil {
			t.Fatal(err)
		}
	}
	enter(onpath.PostingCredit, 10_000_000, "t1")
	r := f.of("acme", "r", 0, time.Hour, cores(1))
	f.must(r)
	f.refused(f.remove("acme"), onpath.CodeInvalid, "tenant acme", "reservation acme/r", "cancel them first")
	if _, err := f.Apply(t.Context(), nil, []onpath.Key{onpath.KeyOf(r)}, false); err != nil {
		t.Fatal(err)
	}
	f.refused(f.remove("acme"), onpath.CodeInvalid, "its account has 9", "onpath account payout acme 9")
	enter(onpath.PostingPayout, 9_000_000, "p1")
	mine := map[string]Placed{"u1": {Node: "fra-1", Tenant: "acme", Instance: "i", Created: f.now}}
	f.pass(time.Minute)
	if err := f.remove("acme"); err != nil {
		t.Fatal(err)
	}
	if f.Exists(onpath.KeyOf(r)) {
		t.Error("the reservation that is over stays behind")
	}
	_, err := f.apply(f.of("acme", "late", 2*time.Minute, time.Hour, cores(1)))
	f.refused(err, onpath.CodeNotFound, "tenant acme is deleted")
	f.owner["acme"] = Bounds{UID: "second"}
	f.pass(time.Minute)
	for range 2 {
		if _, err := f.Bill(t.Context(), "fra-1", []onpath.Meter{{UID: "u1", CPU: time.Hour}}, mine); err != nil {
			t.Fatal(err)
		}
		a, err := f.Account(t.Context(), "acme")
		page, err2 := f.Postings(t.Context(), "acme", 0, 10)
		if err != nil || err2 != nil || a.Balance != 0 || len(page.Postings) != 0 || a.Tenant != "acme~1" {
			t.Errorf("the next tenant has %+v, %+v (%v, %v)", a, page, err, err2)
		}
		inv, err := f.Invoice(t.Context(), "acme", "2026-11")
		if err != nil || len(inv.Lines) != 0 || inv.Opening != 0 {
			t.Errorf("the next tenant's invoice is %+v, %v", inv, err)
		}
		if a, err := f.Account(t.Context(), "acme~0"); err != nil || a.Tenant != "acme" || a.Balance != -2_000_000 {
			t.Errorf("the former one's account is %+v, %v", a, err)
		}
		f.restart()
	}
	enter(onpath.PostingCredit, 5_000_000, "t1") // the reference is that of another account
	f.must(f.of("acme", "r", 2*time.Minute, time.Hour, cores(1)))
	if a, _ := f.Account(t.Context(), "acme"); a.Balance == 0 || a.Balance >= 5_000_000 {
		t.Errorf("it has %s", a.Balance)
	}
	f.checkLedger()
}

// TestTenantStays: what is not written leaves the tenant as it was.
func TestTenantStays(t *testing.T) {
	f := setUp(t)
	f.owner["acme"] = Bounds{UID: "first"}
	_, done, err := f.RemoveTenant(t.Context(), &onpath.Tenant{Metadata: onpath.Metadata{Name: "acme", UID: "first"}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.apply(f.of("acme", "r", 0, time.Hour, cores(1)))
	f.refused(err, onpath.CodeNotFound, "is deleted")
	done(0)
	f.pass(0)
	f.must(f.of("acme", "r", 0, time.Hour, cores(1)))
}
