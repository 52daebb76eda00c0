package events

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan"
	"github.com/onpath/onpath/store/mem"

	"log/slog"
)

func testLog(s onpath.Store) *Log {
	return New(Options{Store: s, Clock: time.Now, After: time.After, Log: slog.New(slog.DiscardHandler), Keep: 10})
}

// TestEventsAreARing: repeats are counted, the oldest go, and a restarted log
// goes on where the one before ended.
func TestEventsAreARing(t *testing.T) {
	store := mem.New(mem.Options{})
	chain := onpath.Key{Kind: onpath.KindChain, Tenant: "default", Name: "web"}
	list := func() []*onpath.Event {
		objects, _, err := store.List(context.Background(), onpath.KindEvent, "")
		if err != nil {
			t.Fatal(err)
		}
		var out []*onpath.Event
		for _, o := range objects {
			out = append(out, o.(*onpath.Event))
		}
		return out
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: %d events", what, len(list()))
			}
		}
	}
	begin := func() (*Log, func()) {
		l := testLog(store)
		objects, _, _ := store.List(context.Background(), onpath.KindEvent, "")
		l.Load(objects)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); l.Run(ctx) }()
		return l, func() { cancel(); <-done }
	}
	l, stop := begin()
	for range 3 {
		l.Add(plan.Event{About: chain, Reason: "Same", Message: "again"}, time.Now())
	}
	until("counted", func() bool { e := list(); return len(e) == 1 && e[0].Spec.Count == 3 && !e[0].Spec.First.IsZero() })
	for i := range 9 {
		l.Add(plan.Event{About: chain, Reason: "Other", Message: fmt.Sprint(i)}, time.Now())
	}
	l.Add(plan.Event{About: onpath.Key{Kind: onpath.KindNode, Name: "n1"}, Reason: "Away"}, time.Time{})
	until("written", func() bool { return len(list()) == 11 })
	l.Add(plan.Event{About: onpath.Key{Kind: onpath.KindChain, Tenant: "former", Name: "web"}, Reason: "Secret"}, time.Time{})
	until("written", func() bool { return len(list()) == 12 })
	l.Forget("former")
	until("forgotten", func() bool { return len(list()) == 11 })
	stop()

	l, stop = begin()
	defer stop()
	l.Add(plan.Event{About: chain, Reason: "Other", Message: "8"}, time.Now())
	l.Add(plan.Event{About: chain, Reason: "New"}, time.Now())
	until("the oldest went", func() bool {
		e := list()
		same, again := false, false
		for _, x := range e {
			same = same || x.Spec.Reason == "Same"
			again = again || x.Spec.Message == "8" && x.Spec.Count == 2
		}
		return len(e) == 11 && !same && again
	})
	for _, e := range list() {
		if err := e.Validate(); err != nil {
			t.Error(err)
		}
	}
}

// TestEventsAreToldOnce: what a node tells in words and its report tells again
// without is one event, whichever comes first.
func TestEventsAreToldOnce(t *testing.T) {
	at := time.Now()
	key := func(name string) onpath.Key {
		return onpath.Key{Kind: onpath.KindInstance, Tenant: "default", Name: name}
	}
	ready := func(name, words string) plan.Event {
		return plan.Event{About: key(name), Node: "n1", Reason: "Ready", Message: words}
	}
	l := testLog(mem.New(mem.Options{}))
	l.Add(ready("a", "takes traffic"), at)
	l.Add(ready("a", ""), at.Add(time.Second))
	l.Add(ready("b", ""), at)
	l.Add(ready("b", "takes traffic"), at.Add(-time.Second))
	l.Add(ready("c", ""), at) // of a node that tells nothing itself
	l.Add(ready("a", ""), at.Add(time.Hour))
	l.Add(ready("a", "takes traffic"), at.Add(time.Hour)) // the first, again
	want := []string{"takes traffic", "takes traffic", ""}
	got := l.tenant["default"]
	if len(got) != len(want) || len(l.byKey) != len(want) {
		t.Fatalf("%d events of %d keys, want %d", len(got), len(l.byKey), len(want))
	}
	for i, e := range got {
		if e.Spec.Message != want[i] || e.Spec.Count != 1 && i > 0 || l.byKey[keyOf(e)] != e {
			t.Errorf("event %d is %+v", i, e.Spec)
		}
	}
	if got[0].Spec.Count != 2 {
		t.Errorf("the repeated one counts %d", got[0].Spec.Count)
	}
	// One that is given words while it is being written stays.
	l.Add(ready("d", ""), at)
	part := l.take()
	l.Add(ready("d", "takes traffic"), at)
	l.wrote(part)
	if len(l.gone) > 0 || len(l.dirty) != 1 {
		t.Errorf("%v are to be deleted, %d to be written", l.gone, len(l.dirty))
	}
}

// TestFailuresAreToldOnce: an image that cannot be had is one event however often
// it is tried, though the node tells of it and the instance's state repeats it.
func TestFailuresAreToldOnce(t *testing.T) {
	at := time.Now()
	about := onpath.Key{Kind: onpath.KindInstance, Tenant: "default", Name: "a"}
	l := testLog(mem.New(mem.Options{}))
	failed := plan.Event{About: about, Node: "n1", Reason: "Failed", Cause: "PrepareFailed", Message: "image x cannot be pulled", Warning: true}
	for try := range 5 {
		at = at.Add(time.Duration(try) * time.Second)
		l.Add(plan.Event{About: about, Node: "n1", Reason: "PrepareFailed", Message: "image x cannot be pulled", Warning: true}, at)
		l.Add(failed, at.Add(time.Second))
	}
	if got := l.tenant["default"]; len(got) != 1 || got[0].Spec.Reason != "PrepareFailed" || got[0].Spec.Count != 5 {
		t.Errorf("it is told as %+v", got)
	}
	for name, other := range map[string]func(*plan.Event){
		"another instance": func(e *plan.Event) { e.About.Name = "b" },
		"another reason":   func(e *plan.Event) { e.Cause, e.Message = "Exited", "killed by signal 9 (SIGKILL)" },
		"much later":       func(e *plan.Event) { at = at.Add(time.Hour) },
	} {
		e, before := failed, len(l.tenant["default"])
		other(&e)
		if l.Add(e, at); len(l.tenant["default"]) != before+1 {
			t.Errorf("%s is not told", name)
		}
	}
}

// TestEventsForOthers: an event may be for another tenant than the one it is about.
func TestEventsForOthers(t *testing.T) {
	l := testLog(mem.New(mem.Options{}))
	chain := onpath.Key{Kind: onpath.KindChain, Tenant: "acme", Name: "web"}
	l.Add(plan.Event{About: chain, Reason: "Taken", Message: "by somebody"}, time.Time{})
	l.Add(plan.Event{About: chain, To: onpath.OperatorTenant, Reason: "Taken", Message: "by bob"}, time.Time{})
	if own, others := l.tenant["acme"], l.tenant[onpath.OperatorTenant]; len(own) != 1 || own[0].Spec.Message != "by somebody" || len(others) != 1 || others[0].Spec.Message != "by bob" || others[0].Spec.About != chain.String() {
		t.Errorf("acme is told %+v, the operator %+v", own, others)
	}
}
