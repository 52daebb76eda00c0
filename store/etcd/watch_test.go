package etcd_test

import (
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/store/etcd"
)

// TestStoppedWatchers: what waits for watchers who read nothing is bounded in bytes, whatever
// the size of objects; they are told why their watch ended, and others get everything.
func TestStoppedWatchers(t *testing.T) {
	s := open(t, etcd.Options{Dir: t.TempDir(), Patience: 100 * time.Millisecond})
	watch := func(covers func(onpath.Key) bool) <-chan onpath.StoreEvent {
		t.Helper()
		events, err := s.Watch(t.Context(), 0, covers)
		if err != nil {
			t.Fatal(err)
		}
		return events
	}
	var stopped []<-chan onpath.StoreEvent
	for range 20 {
		stopped = append(stopped, watch(nil))
	}
	reads, chains := watch(nil), watch(func(k onpath.Key) bool { return k.Kind == onpath.KindChain })
	f, most := large("f"), int64(0)
	f.Spec.Container.Env["F"] = strings.Repeat("x", 510_000)
	for i := range 46 {
		f.Spec.Container.Command = []string{strings.Repeat("y", i+1)}
		if err := commit(t.Context(), s, put(f, onpath.AnyVersion)); err != nil {
			t.Fatal(err)
		}
		for got := false; !got; {
			e := <-reads
			if e.Err != nil {
				t.Fatal(e.Err)
			}
			got = e.Key == onpath.KeyOf(f)
		}
		most = max(most, s.Use().Waiting)
	}
	if limit := int64(22 << 20); most > limit {
		t.Errorf("%d bytes wait for 20 watchers who read nothing; %d are allowed", most, limit)
	}
	for _, events := range stopped {
		var why error
		for e := range events {
			why = e.Err
		}
		if onpath.CodeOf(why) != onpath.CodeUnavailable || !strings.Contains(why.Error(), "too slow") {
			t.Errorf("a watch that was not read ends with %v", why)
		}
	}
	await(t, "nothing waits for those who are gone", func() bool { return s.Use().Waiting == 0 })
	if err := commit(t.Context(), s, put(chain("x", 1), 0)); err != nil {
		t.Fatal(err)
	}
	progress := 0
	for e := range chains {
		if e.Err != nil {
			t.Fatal(e.Err)
		}
		if e.Key.Kind != "" {
			break
		}
		progress++
	}
	if progress == 0 {
		t.Error("a watcher of other kinds does not learn from where to resume")
	}
}
