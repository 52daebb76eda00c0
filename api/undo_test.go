package api_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
)

// deafStore does what it is asked to, and for as long as it is deaf answers writes
// of objects as if it had not heard them.
type deafStore struct {
	onpath.Store
	deaf atomic.Bool
}

func (s *deafStore) Write(ctx context.Context, b onpath.Batch) (onpath.Written, error) {
	w, err := s.Store.Write(ctx, b)
	if err == nil && s.deaf.Load() && len(b.Changes) > 0 {
		return onpath.Written{}, onpath.Errorf(onpath.CodeUnavailable, "the store does not answer")
	}
	return w, err
}

func deafWorld(t *testing.T) (*world, *deafStore) {
	w := newWorld(t)
	w.stop()
	s := &deafStore{Store: w.store}
	w.wrapped = s
	w.start()
	return w, s
}

// TestConfirmNoReply: a change of which nobody heard that it was written is undone
// all the same, at its time.
func TestConfirmNoReply(t *testing.T) {
	w, s := deafWorld(t)
	s.deaf.Store(true)
	_, err := w.operator.Apply(t.Context(), []onpath.Object{hosts("a", "x", "10.0.0.1")}, client.ApplyOptions{Confirm: 2 * time.Second})
	wantCode(t, err, onpath.CodeUnavailable)
	s.deaf.Store(false)
	w.await("x", "10.0.0.1")
	w.await("x", "none")
}

// TestConfirmRepeated: who repeats the apply of which nobody heard learns what to
// confirm, with its request's id and without.
func TestConfirmRepeated(t *testing.T) {
	w, s := deafWorld(t)
	s.deaf.Store(true)
	o := client.ApplyOptions{Confirm: time.Hour, Request: "mine"}
	_, err := w.operator.Apply(t.Context(), []onpath.Object{hosts("a", "x", "10.0.0.1")}, o)
	wantCode(t, err, onpath.CodeUnavailable)
	s.deaf.Store(false)
	a, err := w.operator.Apply(t.Context(), []onpath.Object{hosts("a", "x", "10.0.0.1")}, o)
	if err != nil || a.Confirm == nil || len(a.Changes) != 1 || a.Changes[0].Version == 0 {
		t.Fatalf("repeated: %+v, %v", a, err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		all, err := w.operator.Unconfirmed(t.Context())
		if err == nil && len(all) == 1 && all[0].ID == a.Confirm.ID {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%+v wait, %v", all, err)
		}
	}
	o.Request = "another"
	b, err := w.operator.Apply(t.Context(), []onpath.Object{hosts("a", "x", "10.0.0.1")}, o)
	if err != nil || b.Confirm == nil || b.Confirm.ID != a.Confirm.ID {
		t.Fatalf("repeated without its id: %+v, %v", b, err)
	}
	if err := w.operator.Confirm(t.Context(), a.Confirm.ID); err != nil {
		t.Fatal(err)
	}
	w.pass(2 * time.Hour)
	w.await("x", "10.0.0.1")
}

// TestRequestOfAnother: an id says something to those who chose it alone.
func TestRequestOfAnother(t *testing.T) {
	w := newWorld(t)
	alice := w.user("a")
	o := client.ApplyOptions{Request: "mine"}
	if _, err := alice.Apply(t.Context(), []onpath.Object{hosts("a", "x", "10.0.0.1")}, o); err != nil {
		t.Fatal(err)
	}
	a, err := w.operator.Apply(t.Context(), []onpath.Object{hosts("a", "y", "10.0.0.2")}, o)
	if err != nil || len(a.Changes) != 1 || a.Changes[0].Name != "y" {
		t.Fatalf("with another's id: %+v, %v", a, err)
	}
	o.Request = strings.Repeat("x", 65)
	_, err = w.operator.Apply(t.Context(), []onpath.Object{hosts("a", "z", "10.0.0.2")}, o)
	wantCode(t, err, onpath.CodeInvalid)
}
