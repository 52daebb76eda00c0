package storetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// next waits for an event; ok is false when the watch ended.
func next(t *testing.T, events <-chan onpath.StoreEvent) (e onpath.StoreEvent, ok bool) {
	t.Helper()
	select {
	case e, ok = <-events:
	case <-time.After(time.Minute):
		t.Fatal("no event")
	}
	return e, ok
}

func want(t *testing.T, events <-chan onpath.StoreEvent, key string, priority int, revision int64) {
	t.Helper()
	e, ok := next(t, events)
	if !ok {
		t.Fatalf("the watch ended before %s %d", key, priority)
	}
	got := -1
	if e.Object != nil {
		got = e.Object.(*onpath.Chain).Spec.Priority
		if e.Object.Meta().Version != e.Revision {
			t.Errorf("version %d in the event of revision %d", e.Object.Meta().Version, e.Revision)
		}
	}
	if e.Key.String() != key || got != priority || (revision != 0 && e.Revision != revision) {
		t.Fatalf("event %s %d at %d; want %s %d at %d", e.Key, got, e.Revision, key, priority, revision)
	}
}

func testWatch(t *testing.T, ctx context.Context, h Harness) {
	s := h.Store
	write(t, ctx, s, put(chain("a", "before", 1), 0))
	wctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := s.Watch(wctx, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	x, y := chain("a", "x", 1), chain("a", "y", 2)
	write(t, ctx, s, put(x, 0), put(y, 0))
	if _, err := s.NextIDs(ctx, "vport", 0, 1); err != nil { // no event
		t.Fatal(err)
	}
	write(t, ctx, s, onpath.Change{Key: onpath.KeyOf(x), Version: x.Metadata.Version})
	want(t, events, "chain a/x", 1, x.Metadata.Version)
	want(t, events, "chain a/y", 2, y.Metadata.Version)
	want(t, events, "chain a/x", -1, 0)
	cancel()
	for {
		if _, ok := next(t, events); !ok {
			return
		}
	}
}

func testWatchResume(t *testing.T, ctx context.Context, h Harness) {
	s := h.Store
	write(t, ctx, s, put(chain("a", "x", 0), 0))
	_, revision, err := s.List(ctx, onpath.KindChain, "")
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i <= 50; i++ {
		write(t, ctx, s, put(chain("a", "x", i), onpath.AnyVersion))
	}
	for i := 1; i <= 50; i += 7 { // each watcher reads some, goes, and another resumes
		wctx, cancel := context.WithCancel(ctx)
		events, err := s.Watch(wctx, revision, nil)
		if err != nil {
			t.Fatal(err)
		}
		for j := i; j < i+7 && j <= 50; j++ {
			e, ok := next(t, events)
			if !ok || e.Object.(*onpath.Chain).Spec.Priority != j {
				t.Fatalf("resumed at %d: %+v, want change %d", revision, e, j)
			}
			revision = e.Revision
		}
		cancel()
	}
}

func testWatchCompacted(t *testing.T, ctx context.Context, h Harness) {
	s := h.Store
	var revisions []int64
	for i := range 10 {
		c := chain("a", "x", i)
		write(t, ctx, s, put(c, onpath.AnyVersion))
		revisions = append(revisions, c.Metadata.Version)
	}
	if err := h.Compact(ctx, revisions[6]); err != nil {
		t.Fatal(err)
	}
	_, err := s.Watch(ctx, revisions[2], nil)
	wantCode(t, err, onpath.CodeConflict)
	events, err := s.Watch(ctx, revisions[7], nil)
	if err != nil {
		t.Fatal(err)
	}
	want(t, events, "chain a/x", 8, revisions[8])
	want(t, events, "chain a/x", 9, revisions[9])
}

// testWatchAhead: who resumes where this store never was, because it is another one now,
// is told, and does not wait for it to get there.
func testWatchAhead(t *testing.T, ctx context.Context, h Harness) {
	s := h.Store
	c := chain("a", "x", 0)
	write(t, ctx, s, put(c, onpath.AnyVersion))
	last := c.Metadata.Version
	for _, from := range []int64{last + 1, 1 << 40, -1} {
		_, err := s.Watch(ctx, from, nil)
		wantCode(t, err, onpath.CodeConflict)
	}
	events, err := s.Watch(ctx, last, nil)
	if err != nil {
		t.Fatal(err)
	}
	c = chain("a", "x", 1)
	write(t, ctx, s, put(c, onpath.AnyVersion))
	want(t, events, "chain a/x", 1, c.Metadata.Version)
}

func testWatchSlow(t *testing.T, ctx context.Context, h Harness) {
	s := h.Store
	slow, err := s.Watch(ctx, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	fast, err := s.Watch(ctx, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	total := 3 * h.Slow
	for i := range total {
		write(t, ctx, s, put(chain("a", fmt.Sprint("c", i%5), i), onpath.AnyVersion))
		// The fast one keeps pace, whatever else the machine does.
		if e, ok := next(t, fast); !ok || e.Object.(*onpath.Chain).Spec.Priority != i {
			t.Fatalf("the fast watcher got %+v instead of change %d of %d", e, i, total)
		}
	}
	time.Sleep(time.Second) // the slow one's patience
	n := 0
	for ; n < total; n++ {
		if _, ok := next(t, slow); !ok {
			return
		}
	}
	t.Errorf("a watcher that read nothing for %d changes got them all", n)
}
