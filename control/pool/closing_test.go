package pool

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/archive"
	"github.com/onpath/onpath/control/ledger"
	"github.com/onpath/onpath/control/translog"
	"github.com/onpath/onpath/store/etcd"
)

// withFolder gives the pool a folder for closed days.
func (f *fixture) withFolder() (dir string) {
	f.t.Helper()
	l, err := translog.Open(f.t.TempDir())
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = l.Close() })
	dir, f.signer = f.t.TempDir(), l
	if f.archive, err = archive.Open(dir, l); err != nil {
		f.t.Fatal(err)
	}
	f.Pool = f.restart()
	return dir
}

func (f *fixture) closeDays() {
	f.t.Helper()
	if err := f.Past().Close(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
}

// stored counts records under a prefix.
func (f *fixture) stored(prefix string) (n int) {
	f.t.Helper()
	err := f.read.recordsAt(f.t.Context(), prefix, 0, func(onpath.Record, string) error { n++; return nil })
	if err != nil {
		f.t.Fatal(err)
	}
	return n
}

// leftOfThreeDays is how many postings the day has that is not over: of hours that began since
// midnight, of two tenants.
const leftOfThreeDays = 2 * 7

// threeDays is a pool of which three days are over: money was entered, a reservation pays each
// hour, others are over, instances are metered.
func threeDays(t *testing.T) (*fixture, string) {
	f := setUp(t)
	dir := f.withFolder()
	f.prices(onpath.PriceListSpec{Currency: "EUR", Hour: onpath.UnitPrices{CPU: 1_234_567}, Use: onpath.UsePrices{CPU: 1_000_000}})
	f.credit(9_000_000_000)
	if _, err := f.Enter(t.Context(), "acme", onpath.MoneyEntry{Kind: onpath.PostingCredit, Amount: 7_000_000, Reference: "first"}); err != nil {
		t.Fatal(err)
	}
	f.must(request("open", 0, 0, cores(1)))
	f.must(request("short", 0, 3*time.Hour, cores(1)))
	f.must(request("named", 0, 3*time.Hour, cores(0.5)))
	f.use[keyOf("default/named")] = Use{Nodes: map[string]int{}}
	placed := map[string]Placed{"u1": {Node: "fra-1", Tenant: "acme", Instance: "ids-1", Created: start}}
	for h := range 66 { // from noon on
		f.pass(time.Hour)
		m := onpath.Meter{UID: "u1", Began: start, CPU: time.Duration(h+1) * time.Minute}
		if _, err := f.Bill(t.Context(), "fra-1", []onpath.Meter{m}, placed); err != nil {
			t.Fatal(err)
		}
	}
	return f, dir
}

// all is everything that can be asked about accounts.
func (f *fixture) all() (out []any) {
	f.t.Helper()
	for _, tenant := range []string{"default", "acme"} {
		a, err := f.Account(f.t.Context(), tenant)
		if err != nil {
			f.t.Fatal(err)
		}
		out = append(out, a)
		for next := int64(1); next != 0; {
			page, err := f.Postings(f.t.Context(), tenant, next, 50)
			if err != nil {
				f.t.Fatal(err)
			}
			for _, p := range page.Postings {
				out = append(out, p)
			}
			next = page.Next
		}
		newest, err := f.Postings(f.t.Context(), tenant, 0, 60)
		if err != nil {
			f.t.Fatal(err)
		}
		inv, err := f.Invoice(f.t.Context(), tenant, "2026-11")
		if err != nil {
			f.t.Fatal(err)
		}
		out = append(out, newest, inv)
	}
	return out
}

// TestDaysClose: the postings and reservations of days that are over leave the store, and
// whoever asks for them finds them as before.
func TestDaysClose(t *testing.T) {
	f, dir := threeDays(t)
	want := f.all()
	f.now = f.now.Add(30 * time.Minute)
	f.closeDays()
	if got := f.all(); !reflect.DeepEqual(got, want) {
		t.Errorf("after the days were closed:\n%v\nbefore:\n%v", got, want)
	}
	days, err := f.Past().Days(t.Context())
	if err != nil || len(days) != 3 || days[0].Day != "2026-11-24" || days[0].Reservations != 1 || days[2].Day != "2026-11-26" || days[2].Missing {
		t.Errorf("closed days: %+v, %v", days, err)
	}
	if n := f.stored(ledger.Postings); n != leftOfThreeDays {
		t.Errorf("%d postings are left in the store: those of the last day are %d", n, leftOfThreeDays)
	}
	f.checkLedger()
	c, err := f.CheckLedger(t.Context())
	if err != nil || c.Days != 3 || c.Postings < 130 {
		t.Errorf("%+v %v", c, err)
	}
	f.Pool = f.restart()
	f.closeDays()
	if got := f.all(); !reflect.DeepEqual(got, want) {
		t.Errorf("after a restart: %v", got)
	}
	if _, err := f.store.Get(t.Context(), keyOf("default/short")); onpath.CodeOf(err) != onpath.CodeNotFound {
		t.Errorf("a reservation that was over two days ago: %v", err)
	}
	r, err := f.Past().Ended(t.Context(), keyOf("default/short"))
	if err != nil || r.Status.State != onpath.ReservationEnded || r.Metadata.Name != "short" {
		t.Errorf("%+v %v", r, err)
	}
	f.get("named") // which a deployment names still
	q, err := f.Apply(t.Context(), []*onpath.Reservation{f.checked(request("new", 66*time.Hour+30*time.Minute, 70*time.Hour, cores(0.1))),
		f.checked(request("short", 0, 3*time.Hour, cores(1)))}, nil, true)
	if err != nil || len(q) != 2 || q[0].State != onpath.ReservationQuoted || q[1].State != onpath.ReservationEnded {
		t.Errorf("a file with a reservation of a closed day is applied again: %+v %v", q, err)
	}
	if _, err := f.apply(request("short", 0, 4*time.Hour, cores(1))); onpath.CodeOf(err) != onpath.CodeInvalid {
		t.Errorf("another reservation in the past: %v", err)
	}
	if a, err := f.Enter(t.Context(), "acme", onpath.MoneyEntry{Kind: onpath.PostingCredit, Amount: 7_000_000, Reference: "first"}); err != nil || a.Balance != f.queue.state.accounting.findAccount("acme").Balance {
		t.Errorf("an entry of a closed day, entered again: %+v %v", a, err)
	}
	if _, err := f.Enter(t.Context(), "acme", onpath.MoneyEntry{Kind: onpath.PostingCorrection, Reverses: 1}); err != nil {
		t.Errorf("an entry of a closed day is corrected: %v", err)
	}
	f.checkLedger()
	delete(f.use, keyOf("default/named"))
	f.pass(24 * time.Hour)
	f.closeDays()
	f.checkLedger()
	if r, err := f.Past().Ended(t.Context(), keyOf("default/named")); err != nil || r.Status.State != onpath.ReservationEnded {
		t.Errorf("a reservation that no deployment names any more: %+v %v", r, err)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 4 {
		t.Errorf("%d files, %v", len(list), err)
	}
}

// mortal is a store whose writer is killed by one of its writes, before it or after it.
type mortal struct {
	onpath.Store
	left  int
	after bool
}

func (m *mortal) Write(ctx context.Context, b onpath.Batch) (w onpath.Written, err error) {
	if m.left--; m.left > 0 || m.left == 0 && m.after {
		w, err = m.Store.Write(ctx, b)
	}
	if m.left <= 0 {
		return w, onpath.Errorf(onpath.CodeInternal, "killed")
	}
	return w, err
}

// TestKilledWhileClosing: wherever the server is killed while it closes days, no posting is lost
// or counted twice, and the next server goes on.
func TestKilledWhileClosing(t *testing.T) {
	for _, after := range []bool{false, true} {
		f, _ := threeDays(t)
		want, store, kills := f.all(), f.store, 0
		f.now = f.now.Add(30 * time.Minute)
		for ; ; kills++ { // each server is killed by its first, second or third write
			f.store = &mortal{store, 1 + kills%3, after}
			f.Pool = f.restart()
			err := f.Past().Close(t.Context())
			f.store = store
			f.Pool = f.restart()
			f.checkLedger()
			if got := f.all(); !reflect.DeepEqual(got, want) {
				t.Fatalf("after %d kills: %v\nwant %v", kills+1, got, want)
			}
			if err == nil {
				break
			}
			if kills > 100 {
				t.Fatal(err)
			}
		}
		if n := f.stored(ledger.Postings); kills < 8 || n != leftOfThreeDays {
			t.Errorf("after %d kills %d postings are left in the store", kills, n)
		}
		if r, err := f.Past().Ended(t.Context(), keyOf("default/short")); err != nil || f.queue.state.rows.entries[keyOf("default/short")] != nil {
			t.Errorf("%+v %v", r, err)
		}
	}
}

// TestFilesAreChecked: a file that is gone, or of which anything is changed, is found, as is a
// balance that is carried forward; where a file is gone, nothing else is moved into files.
func TestFilesAreChecked(t *testing.T) {
	f, dir := threeDays(t)
	f.now = f.now.Add(30 * time.Minute)
	f.closeDays()
	days, err := f.Past().Days(t.Context())
	if err != nil || len(days) != 3 {
		t.Fatal(days, err)
	}
	found := func(what string, name string) {
		t.Helper()
		c, err := f.CheckLedger(t.Context())
		if err != nil || len(c.Wrong) == 0 || !strings.Contains(strings.Join(c.Wrong, "\n"), name) {
			t.Errorf("%s: not found: %v %v", what, c.Wrong, err)
		}
	}
	r := rand.New(rand.NewPCG(7, 7))
	for _, d := range days {
		path := filepath.Join(dir, d.File)
		was, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		write := func(b []byte) {
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for range 40 {
			b := append([]byte(nil), was...)
			i := r.IntN(len(b))
			b[i] ^= 1 << r.IntN(8)
			write(b)
			found(fmt.Sprintf("bit in byte %d of %d", i, len(b)), d.File)
		}
		write(was[:len(was)-1])
		found("its end is cut off", d.File)
		write(append(append([]byte(nil), was...), was...))
		found("it stands twice", d.File)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		found("it is gone", d.File)
		f.Pool = f.restart()
		if _, err := f.Postings(t.Context(), "default", 2, 10); d == days[0] && (err == nil || !strings.Contains(err.Error(), d.File)) {
			t.Errorf("postings of a file that is gone: %v", err)
		}
		write(was)
		f.checkLedger()
	}
	path := filepath.Join(dir, days[2].File)
	if err := os.Rename(path, path+"x"); err != nil {
		t.Fatal(err)
	}
	f.pass(24 * time.Hour)
	if err := f.Past().Close(t.Context()); err == nil || !strings.Contains(err.Error(), "copy the folder") {
		t.Errorf("a day is closed by a server without the file of the day before: %v", err)
	}
	if err := os.Rename(path+"x", path); err != nil {
		t.Fatal(err)
	}
	f.closeDays()
	f.checkLedger()
	page, err := f.store.Records(t.Context(), onpath.RecordsUnder(ledger.Balances))
	if err != nil {
		t.Fatal(err)
	}
	for _, rec := range page.Records {
		var x ledger.Carried
		if err := json.Unmarshal(rec.Value, &x); err != nil {
			t.Fatal(err)
		}
		y := x
		y.Balance++
		f.overwrite(rec.Path, &y)
		found("what is carried forward is changed", "carried forward")
		f.overwrite(rec.Path, &x)
	}
	f.checkLedger()
}

// TestMeteredDays: with metered instances that go on for days the store holds no more after
// three days than after two. ONPATH_SOAK: 10,000 instances, in an embedded etcd.
func TestMeteredDays(t *testing.T) {
	f, instances := setUp(t), 50
	size := func() (sum int64) {
		_ = f.read.recordsAt(t.Context(), "", 0, func(r onpath.Record, _ string) error {
			sum += int64(len(r.Path) + len(r.Value))
			return nil
		})
		return sum
	}
	held := size
	if os.Getenv("ONPATH_SOAK") != "" {
		instances = 10_000
		s, err := etcd.Open(t.Context(), etcd.Options{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		f.store = s
		held = func() int64 { return s.Use().InUse }
	}
	dir := f.withFolder()
	f.prices(onpath.PriceListSpec{Currency: "EUR", Use: onpath.UsePrices{CPU: 1_000_000}})
	f.credit(9_000_000_000)
	placed := map[string]Placed{}
	meters := make([]onpath.Meter, instances)
	for i := range meters {
		uid := fmt.Sprintf("%024x", i)
		meters[i] = onpath.Meter{UID: uid, Began: start}
		placed[uid] = Placed{Node: "fra-1", Tenant: "default", Instance: fmt.Sprintf("ids-%d", i), Created: start}
	}
	f.now = start.Truncate(day)
	var after [4]int64
	for hour := 1; hour <= 3*24+2; hour++ {
		f.now = f.now.Add(time.Hour)
		f.Tick(t.Context())
		for i := range meters {
			meters[i].CPU += time.Duration(1+i%7) * time.Minute
			meters[i].Bytes += uint64(i)
		}
		if _, err := f.Bill(t.Context(), "fra-1", meters, placed); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		f.closeDays()
		if n := hour / 24; hour > 24 && hour%24 == 1 {
			after[n] = size()
			files := int64(0)
			list, _ := os.ReadDir(dir)
			for _, e := range list {
				if info, err := e.Info(); err == nil {
					files += info.Size()
				}
			}
			t.Logf("%d instances, day %d is over: %d bytes of records, the store holds %d; %d bytes of files; closing took %s",
				instances, n, after[n], held(), files, time.Since(began))
		}
	}
	if after[3] > after[2]+after[2]/50 {
		t.Errorf("%d bytes after two days, %d after three", after[2], after[3])
	}
	c, err := f.CheckLedger(t.Context())
	if err != nil || len(c.Wrong) > 0 || c.Days != 3 || c.Postings != instances*74+1 {
		t.Errorf("%+v %v", c, err)
	}
}
