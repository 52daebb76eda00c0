package control_test

import (
	"slices"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestReportsFromTheFuture: an agent was started with its clock two days ahead, which
// was then set right. Its instances are as old as they have been heard of, and one that
// takes over does so.
func TestReportsFromTheFuture(t *testing.T) {
	s := threeNodes(t)
	s.apply(web(1))
	s.until("active", s.active)
	at := s.instances()[0].Spec.Node
	n := s.nodes[at]
	s.mu.Lock()
	n.started = time.Now().Add(48 * time.Hour) // what the instances say, too
	s.mu.Unlock()
	n.disconnect()
	n.connect()
	since := func() time.Time { return s.instances()[0].Status.Since }
	s.until("the report is taken up", func() bool { return !since().After(time.Now()) })
	n.report()
	time.Sleep(20 * time.Millisecond)
	first := since()
	s.lead(5 * time.Second)
	time.Sleep(20 * time.Millisecond)
	if last := since(); !last.Equal(first) {
		t.Errorf("an instance is younger with every report: %s, then %s", first, last)
	}
	// The change of the function has another instance take over, which reports a future too.
	f := function("fw")
	f.Spec.Container.Env = onpath.Env{"A": "b"}
	old := s.instances()[0].Metadata.Name
	s.mu.Lock()
	for _, n := range s.nodes {
		n.started = time.Now().Add(48 * time.Hour)
	}
	s.mu.Unlock()
	s.apply(f)
	s.lead(10 * time.Second)
	s.until("the old one drains", func() bool {
		return !slices.ContainsFunc(s.instances(), func(i *onpath.Instance) bool { return i.Metadata.Name == old && i.Spec.Draining.IsZero() })
	})
}
