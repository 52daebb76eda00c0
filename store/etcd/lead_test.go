package etcd_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/onpath/onpath/store/etcd"
)

// TestLead: of two servers on one cluster one leads; when it resigns the other
// takes over at once, and when it dies within its TTL.
func TestLead(t *testing.T) {
	endpoint := startServer(t, embed.DefaultMaxTxnOps)
	server := func() *etcd.Store {
		return open(t, etcd.Options{Endpoints: []string{endpoint}, Logger: slog.New(slog.DiscardHandler)})
	}
	const ttl = 2 * time.Second
	lead := func(s *etcd.Store, name string) <-chan *etcd.Leadership {
		out := make(chan *etcd.Leadership, 1)
		go func() {
			l, err := s.Lead(t.Context(), name, ttl)
			if err != nil && t.Context().Err() == nil {
				t.Error(err)
			}
			out <- l
		}()
		return out
	}
	get := func(c <-chan *etcd.Leadership, limit time.Duration) *etcd.Leadership {
		t.Helper()
		select {
		case l := <-c:
			return l
		case <-time.After(limit):
			t.Fatalf("nobody leads after %s", limit)
			return nil
		}
	}
	a, b := server(), server()
	first := get(lead(a, "a"), time.Minute)
	waiting := lead(b, "b")
	select {
	case <-waiting:
		t.Fatal("two servers lead")
	case <-time.After(3 * ttl / 2):
	}
	if who, err := b.Leader(t.Context()); err != nil || who != "a" {
		t.Errorf("%q leads, %v", who, err)
	}
	first.Resign()
	second := get(waiting, time.Minute)
	select {
	case <-first.Lost():
	default:
		t.Error("who resigned has not lost")
	}
	if who, err := a.Leader(t.Context()); err != nil || who != "b" {
		t.Errorf("%q leads, %v", who, err)
	}
	// It dies: nothing keeps its lease alive any more.
	c := server()
	waiting = lead(c, "c")
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	get(waiting, time.Minute)
	select {
	case <-second.Lost():
	case <-time.After(time.Minute):
		t.Error("who died does not know that it lost")
	}
	// Waiting ends with its context.
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := a.Lead(ctx, "a", ttl); err == nil {
		t.Error("a second one leads")
	}
}
