// Package storetest is the exam that every onpath.Store passes.
package storetest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// Harness is a store under test, empty at first.
type Harness struct {
	Store onpath.Store
	// Compact forgets the changes up to a revision.
	Compact func(ctx context.Context, revision int64) error
	// Slow is how many changes a watcher that reads nothing survives at most.
	Slow int
}

// Run examines the stores that open gives, a new one for each part.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	parts := []struct {
		name string
		test func(*testing.T, context.Context, Harness)
	}{
		{"GetAndList", testGetAndList},
		{"Versions", testVersions},
		{"AllOrNone", testAllOrNone},
		{"Metadata", testMetadata},
		{"Refused", testRefused},
		{"Concurrent", testConcurrent},
		{"Watch", testWatch},
		{"WatchResume", testWatchResume},
		{"WatchCompacted", testWatchCompacted},
		{"WatchAhead", testWatchAhead},
		{"WatchSlow", testWatchSlow},
		{"NextIDs", testNextIDs},
		{"Records", testRecords},
		{"RecordVersions", testRecordVersions},
		{"Guards", testGuards},
		{"BatchAllOrNone", testBatchAllOrNone},
		{"Request", testRequest},
		{"BatchRefused", testBatchRefused},
		{"Admission", testAdmission},
		{"Close", testClose},
	}
	for _, p := range parts {
		t.Run(p.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			p.test(t, ctx, open(t))
		})
	}
}

func chain(tenant, name string, priority int) *onpath.Chain {
	o, _ := onpath.New(onpath.KindChain)
	c := o.(*onpath.Chain)
	c.Metadata.Tenant, c.Metadata.Name, c.Spec.Priority = tenant, name, priority
	return c
}

func put(o onpath.Object, version int64) onpath.Change {
	return onpath.Change{Key: onpath.KeyOf(o), Object: o, Version: version}
}

func write(t *testing.T, ctx context.Context, s onpath.Store, changes ...onpath.Change) {
	t.Helper()
	if err := try(ctx, s, changes...); err != nil {
		t.Fatalf("write: %v", err)
	}
}

// try writes changes of objects.
func try(ctx context.Context, s onpath.Store, changes ...onpath.Change) error {
	_, err := s.Write(ctx, onpath.Batch{Changes: changes})
	return err
}

func wantCode(t *testing.T, err error, code onpath.Code) {
	t.Helper()
	if got := onpath.CodeOf(err); got != code {
		t.Fatalf("got %q (%v), want %q", got, err, code)
	}
}

func testGetAndList(t *testing.T, ctx context.Context, h Harness) {
	s := h.Store
	_, err := s.Get(ctx, onpath.Key{Kind: onpath.KindChain, Tenant: "a", Name: "x"})
	wantCode(t, err, onpath.CodeNotFound)
	// "a-b" sorts before "a/…" byte by byte, but behind "a" as a name.
	for _, c := range []*onpath.Chain{chain("b", "y", 4), chain("a-b", "z", 3), chain("a", "y", 2), chain("a", "x", 1)} {
		write(t, ctx, s, put(c, 0))
	}
	n, _ := onpath.New(onpath.KindNode)
	n.Meta().Name = "x"
	write(t, ctx, s, put(n, 0))
	list, revision, err := s.List(ctx, onpath.KindChain, "")
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, o := range list {
		got += onpath.KeyOf(o).String() + " "
	}
	if want := "chain a/x chain a/y chain a-b/z chain b/y "; got != want {
		t.Errorf("listed %q, want %q", got, want)
	}
	if revision < n.Meta().Version {
		t.Errorf("list of revision %d, but %d was written before", revision, n.Meta().Version)
	}
	if list, _, _ = s.List(ctx, onpath.KindChain, "a"); len(list) != 2 {
		t.Errorf("tenant a has %d chains, want 2", len(list))
	}
	if list, _, _ = s.List(ctx, onpath.KindNode, ""); len(list) != 1 {
		t.Errorf("%d nodes, want 1", len(list))
	}
	for _, c := range []struct{ tenant, after, want string }{
		{"", "", "a-b/z a/x; a/y b/y; "}, {"a", "", "a/x a/y; "}, {"a", "a/x", "a/y; "}, {"", "a/x", "a/y b/y; "},
		{"a", "a-b/z", "a/x a/y; "}, {"a", "b/y", "; "}, {"b", "a/nothing", "b/y; "}, {"none", "", "; "},
	} {
		got, next := "", c.after
		for {
			var list []onpath.Object
			if list, next, err = s.ListPage(ctx, onpath.KindChain, c.tenant, next, 2); err != nil {
				t.Fatal(err)
			}
			for i, o := range list {
				got += " "[:min(i, 1)] + o.Meta().Tenant + "/" + o.Meta().Name
			}
			if got += "; "; next == "" {
				break
			}
		}
		if got != c.want {
			t.Errorf("pages of tenant %q behind %q are %q, want %q", c.tenant, c.after, got, c.want)
		}
	}
	o, err := s.Get(ctx, onpath.KeyOf(chain("a", "x", 0)))
	if err != nil || o.(*onpath.Chain).Spec.Priority != 1 {
		t.Errorf("got %+v, %v", o, err)
	}
	o.(*onpath.Chain).Spec.Priority = 99 // a reader's copy is its own
	if o, _ = s.Get(ctx, onpath.KeyOf(o)); o.(*onpath.Chain).Spec.Priority != 1 {
		t.Error("a reader changed the stored object")
	}
}

func testVersions(t *testing.T, ctx context.Context, h Harness) {
	s, c := h.Store, chain("a", "x", 1)
	write(t, ctx, s, put(c, 0))
	first := c.Metadata.Version
	if first == 0 {
		t.Fatal("no version was set")
	}
	err := try(ctx, s, put(chain("a", "x", 2), 0))
	wantCode(t, err, onpath.CodeConflict)
	var e *onpath.Error
	if e, _ = err.(*onpath.Error); e == nil || e.Object != "chain a/x" {
		t.Errorf("the conflict names %+v", e)
	}
	c.Spec.Priority = 3
	write(t, ctx, s, put(c, first))
	if c.Metadata.Version <= first {
		t.Errorf("version %d after %d", c.Metadata.Version, first)
	}
	wantCode(t, try(ctx, s, put(c, first)), onpath.CodeConflict)
	wantCode(t, try(ctx, s, onpath.Change{Key: onpath.KeyOf(c), Version: first}), onpath.CodeConflict)
	write(t, ctx, s, put(chain("a", "x", 4), onpath.AnyVersion))
	write(t, ctx, s, onpath.Change{Key: onpath.KeyOf(c), Version: onpath.AnyVersion})
	wantCode(t, try(ctx, s, put(c, first)), onpath.CodeConflict) // deleted meanwhile
	write(t, ctx, s, onpath.Change{Key: onpath.KeyOf(c), Version: onpath.AnyVersion})
	write(t, ctx, s, put(c, onpath.AnyVersion))
}

func testAllOrNone(t *testing.T, ctx context.Context, h Harness) {
	s := h.Store
	write(t, ctx, s, put(chain("a", "there", 1), 0))
	err := try(ctx, s, put(chain("a", "new", 1), 0), put(chain("a", "there", 2), 0))
	wantCode(t, err, onpath.CodeConflict)
	if _, err := s.Get(ctx, onpath.KeyOf(chain("a", "new", 1))); onpath.CodeOf(err) != onpath.CodeNotFound {
		t.Errorf("half of a refused write is there: %v", err)
	}
	var changes []onpath.Change
	for i := range onpath.MaxWrite {
		changes = append(changes, put(chain("b", fmt.Sprintf("c%03d", i), i), 0))
	}
	write(t, ctx, s, changes...)
	for _, c := range changes {
		if c.Object.Meta().Version != changes[0].Object.Meta().Version {
			t.Fatal("objects of one write have different versions")
		}
	}
	if list, _, _ := s.List(ctx, onpath.KindChain, "b"); len(list) != onpath.MaxWrite {
		t.Errorf("%d of %d were written", len(list), onpath.MaxWrite)
	}
}

func testMetadata(t *testing.T, ctx context.Context, h Harness) {
	s, c := h.Store, chain("a", "x", 1)
	c.Metadata.Generation = 77
	write(t, ctx, s, put(c, 0))
	m := c.Metadata
	if m.UID == "" || m.Generation != 1 || m.Created.IsZero() {
		t.Fatalf("created with %+v", m)
	}
	c.Status.Active = true
	write(t, ctx, s, put(c, m.Version))
	if c.Metadata.Generation != 1 {
		t.Errorf("generation %d after a change of status", c.Metadata.Generation)
	}
	next := chain("a", "x", 2)
	next.Metadata.UID = "forged"
	write(t, ctx, s, put(next, onpath.AnyVersion))
	if next.Metadata.Generation != 2 || next.Metadata.UID != m.UID || !next.Metadata.Created.Equal(m.Created) {
		t.Errorf("changed to %+v, was %+v", next.Metadata, m)
	}
	write(t, ctx, s, onpath.Change{Key: onpath.KeyOf(c), Version: onpath.AnyVersion})
	again := chain("a", "x", 2)
	write(t, ctx, s, put(again, 0))
	if again.Metadata.UID == m.UID || again.Metadata.Generation != 1 {
		t.Errorf("created again with %+v", again.Metadata)
	}
	named := chain("a", "named", 0)
	named.Metadata.UID = "chosen-before"
	if write(t, ctx, s, put(named, 0)); named.Metadata.UID != "chosen-before" {
		t.Errorf("a new object's UID became %q", named.Metadata.UID)
	}
	o, err := s.Get(ctx, onpath.KeyOf(c))
	if err != nil || o.Meta().UID != again.Metadata.UID || o.Meta().Version != again.Metadata.Version {
		t.Errorf("read %+v (%v), written %+v", o.Meta(), err, again.Metadata)
	}
}

func testRefused(t *testing.T, ctx context.Context, h Harness) {
	s := h.Store
	var many []onpath.Change
	for i := range onpath.MaxWrite + 1 {
		many = append(many, put(chain("a", fmt.Sprint("c", i), 0), 0))
	}
	big := chain("a", "big", 0)
	big.Metadata.Labels = map[string]string{"x": string(make([]byte, 2<<20))}
	twice := chain("a", "x", 0)
	cases := map[string][]onpath.Change{
		"too many":     many,
		"too big":      {put(big, 0)},
		"twice":        {put(twice, 0), put(twice, 0)},
		"other key":    {{Key: onpath.KeyOf(chain("a", "y", 0)), Object: chain("a", "x", 0)}},
		"slash":        {put(chain("a", "x/y", 0), 0)},
		"no name":      {put(chain("a", "", 0), 0)},
		"unknown kind": {{Key: onpath.Key{Kind: "Cloud", Name: "x"}, Version: onpath.AnyVersion}},
	}
	for name, changes := range cases {
		if err := try(ctx, s, changes...); onpath.CodeOf(err) != onpath.CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := try(ctx, s); err != nil {
		t.Errorf("nothing to write: %v", err)
	}
	if list, _, _ := s.List(ctx, onpath.KindChain, ""); len(list) != 0 {
		t.Errorf("%d refused objects were written", len(list))
	}
}

func testConcurrent(t *testing.T, ctx context.Context, h Harness) {
	s, c := h.Store, chain("a", "x", 0)
	write(t, ctx, s, put(c, 0))
	const writers, times = 4, 10
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for done := 0; done < times; {
				o, err := s.Get(ctx, onpath.KeyOf(c))
				if err != nil {
					t.Error(err)
					return
				}
				o.(*onpath.Chain).Spec.Priority++
				switch err := try(ctx, s, put(o, o.Meta().Version)); onpath.CodeOf(err) {
				case "":
					done++
				case onpath.CodeConflict:
				default:
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	o, err := s.Get(ctx, onpath.KeyOf(c))
	if err != nil || o.(*onpath.Chain).Spec.Priority != writers*times {
		t.Errorf("%d increments left %+v, %v", writers*times, o, err)
	}
}

func testNextIDs(t *testing.T, ctx context.Context, h Harness) {
	s := h.Store
	first, err := s.NextIDs(ctx, "vport", 0, 3)
	if err != nil || first != 1 {
		t.Fatalf("first: %d, %v", first, err)
	}
	if next, _ := s.NextIDs(ctx, "vport", 0, 1); next != 4 {
		t.Errorf("after 1 to 3 comes %d", next)
	}
	if other, _ := s.NextIDs(ctx, "path", 0, 1); other != 1 {
		t.Errorf("another sequence starts at %d", other)
	}
	if next, _ := s.NextIDs(ctx, "vport", 2, 1); next != 5 {
		t.Errorf("after 4, above 2, comes %d", next)
	}
	if next, _ := s.NextIDs(ctx, "vport", 100, 2); next != 101 {
		t.Errorf("above 100 comes %d", next)
	}
	if next, _ := s.NextIDs(ctx, "vport", 0, 1); next != 103 {
		t.Errorf("after 101 and 102 comes %d", next)
	}
	_, err = s.NextIDs(ctx, "vport", 0, 0)
	wantCode(t, err, onpath.CodeInvalid)
	var mu sync.Mutex
	seen := map[uint64]bool{}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 5 {
				first, err := s.NextIDs(ctx, "address", 0, 2)
				mu.Lock()
				if err != nil || seen[first] || seen[first+1] {
					t.Errorf("got %d again, or %v", first, err)
				}
				seen[first], seen[first+1] = true, true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

func testClose(t *testing.T, ctx context.Context, h Harness) {
	events, err := h.Store.Watch(ctx, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Store.Close(); err != nil {
		t.Fatal(err)
	}
	if e, ok := next(t, events); ok {
		t.Errorf("a closed store sent %+v", e)
	}
	wantCode(t, try(ctx, h.Store, put(chain("a", "x", 0), 0)), onpath.CodeUnavailable)
}
