package control

import (
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan"
	"github.com/onpath/onpath/store/mem"
)

// TestSilenceMakesPlans: a node that goes on reporting has nothing planned, however much
// time passes; one that is silent has, when it counts as away and when it counts as gone.
func TestSilenceMakesPlans(t *testing.T) {
	now := time.Now()
	c := New(Options{Store: mem.New(mem.Options{}), Clock: func() time.Time { return now }})
	c.core.started = now.Add(-time.Hour)
	report := onpath.NodeReport{Node: "n1"}
	c.core.nodes["n1"] = &session{connected: true, state: plan.NodeState{Report: &report, Seen: now}}
	for range 20 {
		planned := now
		now = now.Add(time.Second)
		c.NodeReported(report)
		if next := c.next(time.Time{}, planned); !next.Equal(now.Add(onpath.NodeTimeout)) || len(c.wake) > 0 {
			t.Fatalf("at %v it plans at %v, woken %t", now, next, len(c.wake) > 0)
		}
	}
	if next := c.next(now.Add(time.Second), now); !next.Equal(now.Add(time.Second)) {
		t.Errorf("what happens earlier waits until %v", next)
	}
	seen, planned := now, now.Add(onpath.NodeTimeout)
	if next := c.next(time.Time{}, planned); !next.Equal(seen.Add(plan.DefaultGrace)) {
		t.Errorf("a node that is away is gone at %v", next)
	}
	if next := c.next(time.Time{}, seen.Add(plan.DefaultGrace)); !next.IsZero() {
		t.Errorf("nothing is left to come, and it plans at %v", next)
	}
}

// TestRenewalIsNoNews: a claim that is proved again has nothing planned; one that is proved
// first, or lost, or another one, has.
func TestRenewalIsNoNews(t *testing.T) {
	c := New(Options{Store: mem.New(mem.Options{})})
	now, version := time.Unix(1_700_000_000, 0), int64(0)
	claim := onpath.PrefixClaim{TypeMeta: onpath.TypeMeta{APIVersion: onpath.APIVersion, Kind: onpath.KindPrefixClaim},
		Metadata: onpath.Metadata{Tenant: "acme", Name: "site"}}
	is := func(what string, news bool, change func()) {
		t.Helper()
		version++
		change()
		o := claim
		o.Metadata.Version = version
		if got := c.core.changed(onpath.StoreEvent{Key: onpath.KeyOf(&o), Object: &o, Revision: version}); got != news {
			t.Errorf("%s is news: %t", what, got)
		}
	}
	is("a claim", true, func() {})
	is("its proof", true, func() { claim.Status.State, claim.Status.Since = onpath.ClaimProved, now })
	for range 10 {
		is("its proof again", false, func() {
			now = now.Add(time.Second)
			claim.Status.Checked, claim.Status.Until = now, now.Add(5*time.Second)
		})
	}
	is("its end", true, func() { claim.Status.State = onpath.ClaimLost })
	is("another specification", true, func() { claim.Metadata.Generation++ })
}

// TestTrialIsNoNews: what a chain's scaler remembers has nothing planned; other numbers of
// instances have, and a metric that is not believed.
func TestTrialIsNoNews(t *testing.T) {
	c := New(Options{Store: mem.New(mem.Options{})})
	version := int64(0)
	chain := onpath.Chain{TypeMeta: onpath.TypeMeta{APIVersion: onpath.APIVersion, Kind: onpath.KindChain},
		Metadata: onpath.Metadata{Tenant: "acme", Name: "web"}}
	is := func(what string, news bool, change func(s *onpath.ScalingStatus)) {
		t.Helper()
		version++
		o := onpath.Clone(&chain)
		if o.Metadata.Version = version; o.Status.Scaling == nil {
			o.Status.Scaling = &onpath.ScalingStatus{}
		}
		change(o.Status.Scaling)
		chain = *onpath.Clone(o)
		if got := c.core.changed(onpath.StoreEvent{Key: onpath.KeyOf(o), Object: o, Revision: version}); got != news {
			t.Errorf("%s is news: %t", what, got)
		}
	}
	is("a chain", true, func(s *onpath.ScalingStatus) {})
	is("another number", true, func(s *onpath.ScalingStatus) { s.Wanted = map[string]int{"fw": 2} })
	is("a reference", false, func(s *onpath.ScalingStatus) { s.Reference.N, s.Phase = 10, onpath.ScalingWatching })
	is("a session", false, func(s *onpath.ScalingStatus) { s.Session, s.Phase = &onpath.ScalingSession{}, onpath.ScalingTrying })
	is("a trial that keeps what it tried", false, func(s *onpath.ScalingStatus) {
		s.Session, s.Decisions = nil, []onpath.ScalingDecision{{Kept: true}}
	})
	is("a doubt", true, func(s *onpath.ScalingStatus) { s.Doubt = "the value is exactly 1" })
	is("a metric that stops", true, func(s *onpath.ScalingStatus) { s.Phase, s.Message = onpath.ScalingStopped, "no value" })
	chain.Metadata.Generation++
	is("another specification", true, func(*onpath.ScalingStatus) {})
}

// TestCheckWakes: what a check, or another's dry run, reads before the watch brings it is
// planned all the same.
func TestCheckWakes(t *testing.T) {
	s := mem.New(mem.Options{})
	c := New(Options{Store: s})
	o := newObject(onpath.KindTenant, "acme")
	write := func(change onpath.Change) {
		t.Helper()
		if _, err := s.Write(t.Context(), onpath.Batch{Changes: []onpath.Change{change}}); err != nil {
			t.Fatal(err)
		}
	}
	reads := func(what string, news bool) {
		t.Helper()
		if err := c.relist(t.Context(), declaredKinds()); err != nil {
			t.Fatal(err)
		}
		select {
		case <-c.wake:
			if !news {
				t.Errorf("%s: the loop looks again", what)
			}
		default:
			if news {
				t.Errorf("%s: nobody looks", what)
			}
		}
	}
	write(onpath.Change{Key: onpath.KeyOf(o), Object: o})
	reads("a new object", true)
	reads("the same", false)
	write(onpath.Change{Key: onpath.KeyOf(o), Version: onpath.AnyVersion})
	c.events.Tell(onpath.Key{Kind: onpath.KindChain, Tenant: "acme", Name: "web"}, "Taken", "by somebody", true)
	reads("a deletion", true)
	c.core.changed(onpath.StoreEvent{Key: onpath.KeyOf(o), Revision: 1 << 40})
	if n := c.events.Kept("acme"); n != 0 {
		t.Errorf("%d events of a tenant that is gone are kept for the next of its name", n)
	}
}
