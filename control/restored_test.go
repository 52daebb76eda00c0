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

// TestRestoredStore: a node that leads traffic by a chain of after the backup keeps what it runs,
// until the operator has applied that again and accepts the node. It then follows, though its
// plan is newer than all that the backup knows of. Nodes that lose nothing follow at once.
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
	s.until("no plan is under way", func() bool {
		old := before
		time.Sleep(100 * time.Millisecond)
		before = generation()
		return old == before
	})
	s.stop()
	s.store, s.restored = backup, true
	again := func() {
		s.start()
		for _, n := range s.nodes {
			n.connect()
		}
	}
	again()
	for range 2 {
		s.until("gw waits", func() bool { reason, _ := s.waits("gw"); return reason == onpath.ReasonForeignPlan })
		if _, m := s.waits("gw"); !strings.Contains(m, "/late") || !strings.Contains(m, "restored from a backup") {
			t.Errorf("why it waits: %s", m)
		}
		s.lead(40 * time.Second)
		if now := generation(); !leads("late") || now != before {
			t.Fatalf("the chain of after the backup was taken away: plan %d, %d before", now, before)
		}
		s.stop()
		s.restored = false
		again() // waits also after another start
	}
	late = onpath.Clone(late)
	late.Metadata = onpath.Metadata{Name: "late", Tenant: late.Metadata.Tenant}
	s.apply(late)
	for _, name := range []string{"gw", "n1", "n2"} {
		if err := s.c.AcceptNode(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	s.until("gw follows", func() bool { return leads("late") && leads("web") && generation() > before })
	s.stop()
	again()
	s.lead(5 * time.Second)
	for _, name := range []string{"gw", "n1", "n2"} {
		if reason, m := s.waits(name); reason != "" {
			t.Errorf("%s waits: %s", name, m)
		}
	}
	s.apply(web(1))
	s.until("a change reaches gw", func() bool { return generation() > before+1 })
}
