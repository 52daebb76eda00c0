package pool

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
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
