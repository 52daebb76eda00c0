package leases

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/engine"
	"github.com/onpath/onpath/node/base"
	"github.com/onpath/onpath/node/machine"
)

// TestDeciding: a publisher whose server is slow, and all that have no account, leave room
// for others' requests.
func TestDeciding(t *testing.T) {
	d := deciding{}
	fill := func(known bool, keys ...string) (n int) {
		for _, k := range keys {
			for d.begin(k, known) {
				n++
			}
		}
		return n
	}
	if n := fill(false, "s1", "s2", "s3", "s4"); n != maxDeciding/2 {
		t.Errorf("of strangers %d are decided on", n)
	}
	if n := fill(true, "voice"); n != maxDeciding/4 {
		t.Errorf("of one tenant %d are decided on", n)
	}
	if n := fill(true, "web", "video"); n != maxDeciding/4 {
		t.Errorf("of other tenants %d are decided on", n)
	}
	d.end("s1")
	if !d.begin("video", true) || d.begin("video", true) {
		t.Error("what ends makes room for one")
	}
	for k := range d {
		for range maxDeciding {
			d.end(k)
		}
	}
	if len(d) != 0 {
		t.Errorf("%v is left", d)
	}
}

// TestSignallingEnds: an agent that is told to end while its plan gives leases ends.
func TestSignallingEnds(t *testing.T) {
	l := leasesOf(t, puntless{})
	l.Follow(&onpath.NodePlan{Leases: &onpath.LeasePlan{}})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ended := make(chan struct{})
	go func() { l.signal.run(ctx); close(ended) }()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("it goes on")
	}
}

// puntless is a data path at whose punt port nothing comes.
type puntless struct{ noDatapath }

func (puntless) Punted(ctx context.Context, _ func(onpath.Punted)) error { <-ctx.Done(); return nil }

// TestSparing: of many refusals some are told, with how many were not.
func TestSparing(t *testing.T) {
	s, now, told := newSparing(), time.Unix(1e9, 0), 0
	for range 1000 {
		if _, ok := s.may(now); ok {
			told++
		}
	}
	unsaid, ok := s.may(now.Add(time.Second))
	if told != 10*refusalsTold || !ok || unsaid != 1000-told {
		t.Errorf("%d are told, then %d are said not to have been, %t", told, unsaid, ok)
	}
}

// TestAwaitsTheEngine: an answer waits until the engine has what is in force now, however
// ready it is for what was before.
func TestAwaitsTheEngine(t *testing.T) {
	l := leasesOf(t, noDatapath{})
	o := onpath.LocalLease{Slot: onpath.LeaseSlot{Vport: 16}}
	ready := map[onpath.VportID]onpath.LeaseStatus{16: {State: onpath.InstanceReady}}
	if s := l.status(&o); s.State != onpath.InstancePending {
		t.Errorf("without an engine it is %s", s.State)
	}
	l.SetEngines(ready, 0)
	if err := l.set([]onpath.LocalLease{o}); err != nil {
		t.Fatal(err)
	}
	if s := l.status(&o); s.State != onpath.InstanceStarting {
		t.Errorf("an engine that does not know of it yet: %s", s.State)
	}
	got := make(chan onpath.LeaseStatus, 1)
	go func() { got <- l.await(t.Context(), &o) }()
	<-l.Renewals()
	l.SetEngines(ready, l.Current().Number)
	if s := <-got; s.State != onpath.InstanceReady {
		t.Errorf("it is %s", s.State)
	}
}

// TestRestored: leases that an earlier agent admitted are news to an agent that has none.
func TestRestored(t *testing.T) {
	l := leasesOf(t, puntless{})
	until := func(d time.Duration) (o onpath.LocalLease) { o.Until = l.part.Clock.Now().Add(d); return o }
	if err := l.set([]onpath.LocalLease{until(time.Hour), until(-time.Hour)}); err != nil {
		t.Fatal(err)
	}
	next := leasesOf(t, puntless{})
	next.part.Dir = l.part.Dir
	if err := next.Restore(); err != nil {
		t.Fatal(err)
	}
	if now := next.Current(); len(now.Leases) != 1 || now.Number <= (List{}).Number {
		t.Errorf("the leases are %+v", now)
	}
}

// TestNoNotify: of the building blocks of a node leased modules have all but notifications. A
// request that depends on them, or whose code imports them, would wait for what nobody hears.
func TestNoNotify(t *testing.T) {
	got := New(&base.Part{}, &machine.Machine{}, nil, Options{Blocks: engine.Blocks}).opt.Blocks
	if len(got) != len(engine.Blocks)-1 || slices.Contains(got, "notify/1") {
		t.Errorf("leased modules have %v", got)
	}
}
