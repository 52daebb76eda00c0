package control_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/store/mem"
)

// copied is a store with all that another one has now.
func copied(t *testing.T, from onpath.Store) onpath.Store {
	t.Helper()
	to := mem.New(mem.Options{})
	var b onpath.Batch
	for _, kind := range onpath.Kinds() {
		list, _, err := from.List(t.Context(), kind, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list {
			o = onpath.Clone(o)
			o.Meta().Version = 0
			b.Changes = append(b.Changes, onpath.Change{Key: onpath.KeyOf(o), Object: o})
		}
	}
	page, err := from.Records(t.Context(), onpath.RecordsUnder("store"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range page.Records {
		b.Records = append(b.Records, onpath.Record{Path: r.Path, Value: r.Value})
	}
	if _, err := to.Write(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	return to
}

// TestRestoredStore: a node whose plan is newer than all that the backup knows of follows the
// restored server, keeps what the backup knows, and an event tells what it loses.
func TestRestoredStore(t *testing.T) {
	s := threeNodes(t)
	s.apply(web(2))
	s.until("active", s.active)
	backup := copied(t, s.store)
	late := onpath.Clone(web(2))
	late.Metadata.Name, late.Spec.Priority = "late", 7
	s.apply(late)
	leads := func(chain string) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		p := s.nodes["gw"].plan
		return p != nil && slices.ContainsFunc(p.Datapath.Paths, func(x onpath.Path) bool { return strings.HasSuffix(x.Chain, "/"+chain) })
	}
	generation := func() uint64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.nodes["gw"].plan.Generation
	}
	s.until("the late chain leads traffic", func() bool { return leads("late") && s.chain("late").Status.Active })
	before := generation()
	s.stop()
	s.store, s.restored = backup, true
	again := func() {
		s.start()
		for _, n := range s.nodes {
			n.connect()
		}
	}
	again()
	told := func() (n int) {
		list, _, err := s.store.List(t.Context(), onpath.KindEvent, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list {
			if e := o.(*onpath.Event).Spec; e.Reason == "Restored" && strings.Contains(e.Message, "/late") {
				n += max(e.Count, 1)
			}
		}
		return n
	}
	s.until("gw follows", func() bool { s.lead(time.Second); return !leads("late") && leads("web") && generation() > before })
	s.until("it is told what is lost", func() bool { return told() > 0 })
	s.apply(web(1))
	s.until("a change reaches gw", func() bool { return generation() > before+1 })
	n := told()
	s.stop()
	s.restored = false
	again()
	s.apply(web(2))
	s.until("another start tells nothing", func() bool { return s.chain("web").Status.Elements[0].Ready == 2 })
	if now := told(); now != n {
		t.Errorf("it is told %d times more after another start", now-n)
	}
}
