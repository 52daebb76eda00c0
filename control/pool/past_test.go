package pool

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/archive"
	"github.com/onpath/onpath/control/translog"
)

// counted counts how often heads of files are read: each time their signature is looked at.
type counted struct {
	archive.Signer
	heads atomic.Int64
}

func (c *counted) Key() string { c.heads.Add(1); return c.Signer.Key() }

// TestManyClosedDaysAreReadOnce: pages of postings read the head of each closed day at most
// twice, however many days and pages there are. Those of one day need the file of no other.
func TestManyClosedDaysAreReadOnce(t *testing.T) {
	f := setUp(t)
	l, err := translog.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	c, dir := &counted{Signer: l}, f.t.TempDir()
	restart := func() {
		if f.archive, err = archive.Open(dir, c); err != nil {
			t.Fatal(err)
		}
		f.Pool = f.restart()
		c.heads.Store(0)
	}
	restart()
	const days = 56
	for d := range days {
		for _, tenant := range []string{"acme", "rare"} {
			if tenant == "rare" && d%23 != 0 {
				continue
			}
			for n := range 3 {
				e := onpath.MoneyEntry{Kind: onpath.PostingCredit, Amount: 1, Reference: fmt.Sprint(d, n)}
				if _, err := f.Enter(t.Context(), tenant, e); err != nil {
					t.Fatal(err)
				}
			}
		}
		f.now = f.now.Add(24 * time.Hour)
	}
	pages := func(tenant string, limit int) (out []onpath.Posting) {
		t.Helper()
		for next := int64(1); next != 0; {
			page, err := f.Postings(t.Context(), tenant, next, limit)
			if err != nil {
				t.Fatal(err)
			}
			out, next = append(out, page.Postings...), page.Next
		}
		return out
	}
	want := append(pages("acme", 1000), pages("rare", 1000)...)
	f.closeDays()
	restart()
	if got := append(pages("acme", 1000), pages("rare", 1000)...); !reflect.DeepEqual(got, want) {
		t.Errorf("%d postings of closed days, before they were closed %d", len(got), len(want))
	}
	pages("acme", 2)
	if n := c.heads.Load(); n > 4*days {
		t.Errorf("%d heads of %d days were read", n, days)
	}
	restart()
	if _, err := f.Invoice(t.Context(), "acme", f.now.Format("2006-01")); err != nil {
		t.Fatal(err)
	}
	if n := c.heads.Load(); n > 2*days {
		t.Errorf("%d heads of %d days were read for an invoice", n, days)
	}
	restart()
	list, err := f.Past().Days(t.Context())
	if err != nil || len(list) != days {
		t.Fatal(len(list), err)
	}
	if err := os.Remove(filepath.Join(dir, list[days-2].File)); err != nil {
		t.Fatal(err)
	}
	if page, err := f.Postings(t.Context(), "acme", 1, 100); err != nil || !reflect.DeepEqual(page.Postings, want[:100]) {
		t.Errorf("the file of another day is gone: %d postings, %v", len(page.Postings), err)
	}
	if _, err := f.Postings(t.Context(), "acme", 3*days-5, 3); onpath.CodeOf(err) != onpath.CodeUnavailable {
		t.Errorf("the file of their day is gone: %v", err)
	}
}

// TestMissingDayHidesNoOther: where the file of a closed day is missing, reservations of other days
// are found, and what is said of a name that no file has tells of the missing one, as does one event.
// Once the file is back it is read.
func TestMissingDayHidesNoOther(t *testing.T) {
	f := setUp(t)
	dir := f.withFolder()
	short, later := request("short", 0, 3*time.Hour, cores(1)), request("later", 24*time.Hour, 27*time.Hour, cores(1))
	f.must(short)
	f.must(later)
	f.pass(3 * day)
	f.closeDays()
	list, err := os.ReadDir(dir)
	if err != nil || len(list) != 2 {
		t.Fatal(list, err)
	}
	path := filepath.Join(dir, list[0].Name())
	move := func(from, to string) {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	move(path, path+".gone")
	if f.archive, err = archive.Open(dir, f.signer); err != nil {
		t.Fatal(err)
	}
	f.Pool = f.restart()
	told := 0
	f.Past().tell = func(_ onpath.Key, _, message string, warning bool) {
		if told++; !warning || !strings.Contains(message, list[0].Name()) {
			t.Errorf("told: %s", message)
		}
	}
	ended := func(name string, code onpath.Code, says string) {
		t.Helper()
		r, err := f.Past().Ended(t.Context(), keyOf("default/"+name))
		if onpath.CodeOf(err) != code || err == nil && r.Metadata.Name != name || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %+v %v", name, r, err)
		}
	}
	again := func(code onpath.Code, says string, list ...*onpath.Reservation) {
		t.Helper()
		for i := range list {
			list[i] = f.checked(list[i])
		}
		_, err := f.Apply(t.Context(), list, nil, true)
		if onpath.CodeOf(err) != code || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("applied again: %v", err)
		}
	}
	for range 2 {
		ended("later", "", "")
		ended("short", onpath.CodeNotFound, "2026-11-24")
		ended("never", onpath.CodeNotFound, "2026-11-24")
		again("", "", later, request("new", 4*day, 5*day, cores(1)))
		again(onpath.CodeInvalid, "is past; it may be in a file that cannot be read, of the closed day 2026-11-24", short, later)
		f.now = f.now.Add(time.Minute)
	}
	move(path+".gone", path)
	ended("short", "", "")
	again("", "", short, later)
	if _, err := f.Past().Ended(t.Context(), keyOf("default/never")); onpath.CodeOf(err) != onpath.CodeNotFound || strings.Contains(err.Error(), "2026") {
		t.Errorf("all files are there: %v", err)
	}
	move(path, path+".gone")
	ended("short", onpath.CodeUnavailable, list[0].Name())
	again(onpath.CodeInvalid, "is past; what was reserved by this name is not known", short, later)
	if told != 1 {
		t.Errorf("told %d times", told)
	}
}

// TestLogTellsNoEndOfWhatIsFiled: a reservation that leaves the store for the file of a closed day
// is not deleted, and the public log does not say so.
func TestLogTellsNoEndOfWhatIsFiled(t *testing.T) {
	l, err := translog.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	f := setUp(t)
	f.withFolder()
	s, err := translog.NewStore(t.Context(), f.store, func() time.Time { return f.now }, []byte("salt"))
	if err != nil {
		t.Fatal(err)
	}
	f.store = s
	f.Pool = f.restart()
	f.must(request("short", 0, 3*time.Hour, cores(1)))
	f.pass(2 * day)
	f.closeDays()
	if _, err := s.Get(t.Context(), keyOf("default/short")); onpath.CodeOf(err) != onpath.CodeNotFound {
		t.Fatal(err)
	}
	if err := l.Take(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	var lives []onpath.LogLife
	err = l.Audit("default", 100, func(e onpath.LoggedEntry) error {
		if e.Life != "" {
			lives = append(lives, e.Life)
		}
		return nil
	})
	if err != nil || len(lives) != 1 || lives[0] != onpath.LogCreated {
		t.Errorf("%v %v", lives, err)
	}
}
