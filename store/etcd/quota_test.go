package etcd_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/store"
	"github.com/onpath/onpath/store/etcd"
)

// large is a function with 900 KB of environment.
func large(name string) *onpath.Function {
	o, _ := onpath.New(onpath.KindFunction)
	f := o.(*onpath.Function)
	f.Metadata.Tenant, f.Metadata.Name = "a", name
	f.Spec.Container = &onpath.ContainerSpec{Image: rand.Text(), Env: map[string]string{"F": strings.Repeat("x", 900_000)}}
	return f
}

// await waits for what happens in the background.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for range 3000 { // the store tries for ten seconds after a compaction, which waits for the one before
		if holds() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("not so: " + what)
}

// fillStore writes large objects until that is refused.
func fillStore(ctx context.Context, t *testing.T, s *etcd.Store, most int) (names []string, err error) {
	t.Helper()
	for i := range most {
		f := large(fmt.Sprintf("f%d", i))
		if err := commit(ctx, s, put(f, 0)); err != nil {
			return names, err
		}
		names = append(names, f.Metadata.Name)
	}
	t.Fatalf("%d objects of 900 KB are in the store, and it is not full", most)
	return nil, nil
}

// TestQuota: in a store that is nearly full users' changes are refused; deletions, reads and
// decisions go on, and as soon as something was deleted changes go on, too. ONPATH_SOAK: with
// the default quota.
func TestQuota(t *testing.T) {
	o, most := etcd.Options{Dir: t.TempDir(), Quota: 16 << 20}, 20
	if os.Getenv("ONPATH_SOAK") != "" {
		o.Quota, most = 0, 5000
	}
	s, began := open(t, o), time.Now()
	ctx := t.Context()
	others := chain("others", 1)
	if err := commit(ctx, s, put(others, 0)); err != nil {
		t.Fatal(err)
	}
	names, err := fillStore(ctx, t, s, most)
	if onpath.CodeOf(err) != onpath.CodeNoCapacity || !strings.Contains(err.Error(), "deletions go on") {
		t.Errorf("a change beyond the quota: %v", err)
	}
	u := s.Use()
	if !u.Refuses || u.InUse > u.Quota {
		t.Errorf("a store that refuses changes holds %+v", u)
	}
	t.Logf("after %s and %d objects of 900 KB: %+v", time.Since(began), len(names), u)
	if err := commit(store.FollowUp(ctx), s, put(chain("decided", 1), 0)); err != nil {
		t.Errorf("a decision: %v", err)
	}
	if _, err := s.Get(ctx, onpath.KeyOf(others)); err != nil {
		t.Errorf("reading: %v", err)
	}
	log := onpath.Record{Path: store.LogPath + "new/1", Value: []byte("deleted")}
	if _, err := s.Write(ctx, onpath.Batch{Request: "r", Note: []byte("{}"), Changes: deletionOf(others), Records: []onpath.Record{log}}); err != nil {
		t.Errorf("a deletion, with its entry in the log and its request: %v", err)
	}
	file := s.Use().File
	for _, n := range names {
		if err := commit(ctx, s, deletionOf(large(n))); err != nil {
			t.Fatal(err)
		}
	}
	if err := commit(ctx, s, put(large("again"), 0)); err != nil {
		t.Errorf("a change after deletions: %v", err)
	}
	await(t, "the file is rewritten without what was deleted", func() bool { return s.Use().File < file/2 })
	if err := commit(ctx, s, put(large("after"), 0)); err != nil {
		t.Errorf("a change after the file was rewritten: %v", err)
	}
	t.Logf("after %s, with all deleted: %+v", time.Since(began), s.Use())
}

// TestQuotaOfDecisions: decisions end at a higher mark, deletions at none.
func TestQuotaOfDecisions(t *testing.T) {
	s := open(t, etcd.Options{Dir: t.TempDir(), Quota: 16 << 20})
	decided := store.FollowUp(t.Context())
	if _, err := fillStore(decided, t, s, 25); onpath.CodeOf(err) != onpath.CodeNoCapacity {
		t.Errorf("a decision beyond the quota: %v", err)
	}
	if u := s.Use(); u.InUse < u.Quota*8/10 {
		t.Errorf("decisions end at %+v", u)
	}
	balance := onpath.Batch{Records: []onpath.Record{{Path: "carried", Value: []byte("1")}}}
	if _, err := s.Write(store.MakesRoom(t.Context()), balance); err != nil {
		t.Errorf("what deletions need: %v", err)
	}
	if err := commit(t.Context(), s, deletionOf(large("f0"))); err != nil {
		t.Errorf("a deletion: %v", err)
	}
}

// TestOldVersionsAreNoUse: what old versions of objects hold keeps nobody from changes.
func TestOldVersionsAreNoUse(t *testing.T) {
	s := open(t, etcd.Options{Dir: t.TempDir(), Quota: 16 << 20})
	for range 20 {
		if err := commit(t.Context(), s, put(large("f"), onpath.AnyVersion)); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "old versions hold little", func() bool { return s.Use().InUse < 4<<20 })
}

// TestDeletedGivesRoom: what is deleted from a store that is far from full leaves its file, too,
// though nothing is written after it.
func TestDeletedGivesRoom(t *testing.T) {
	s := open(t, etcd.Options{Dir: t.TempDir(), Quota: 16 << 20})
	var all []onpath.Change
	for i := range 8 {
		f := large(fmt.Sprintf("f%d", i))
		if err := commit(t.Context(), s, put(f, 0)); err != nil {
			t.Fatal(err)
		}
		all = append(all, deletionOf(f)...)
	}
	if err := commit(t.Context(), s, all); err != nil {
		t.Fatal(err)
	}
	await(t, "the file is rewritten without what was deleted", func() bool { u := s.Use(); return u.InUse < 2<<20 && u.File < 4<<20 })
}

// TestOldVersionsAreKeptForWatchers: small changes are not compacted at once.
func TestOldVersionsAreKeptForWatchers(t *testing.T) {
	s := open(t, etcd.Options{Dir: t.TempDir(), Quota: 16 << 20})
	first := chain("x", 1)
	if err := commit(t.Context(), s, put(first, 0)); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		if err := commit(t.Context(), s, put(chain("x", i), onpath.AnyVersion)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Watch(t.Context(), first.Metadata.Version, nil); err != nil {
		t.Error(err)
	}
}
