package etcd

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/onpath/onpath"
)

// leaderKey is where servers stand for election, beside the objects.
const leaderKey = "/onpath-leader"

// LeaderTTL is how long a leader that is gone without a word still counts.
const LeaderTTL = 10 * time.Second

// resignTimeout bounds a farewell; without one the TTL ends the leadership.
const resignTimeout = 2 * time.Second

// Leadership of one server among those that share the store.
type Leadership struct {
	session  *concurrency.Session
	election *concurrency.Election
}

// Leader is who leads now; "" if nobody does.
func (s *Store) Leader(ctx context.Context) (string, error) {
	ctx, cancel := s.limit(ctx)
	defer cancel()
	r, err := s.client.Get(ctx, leaderKey+"/", clientv3.WithFirstCreate()...)
	if err != nil || len(r.Kvs) == 0 {
		return "", s.failed(ctx, "ask who leads", err)
	}
	return string(r.Kvs[0].Value), nil
}

// Lead waits until this server leads, or ctx ends. Name is how others see it.
// A zero ttl is LeaderTTL; etcd rounds it to whole seconds.
func (s *Store) Lead(ctx context.Context, name string, ttl time.Duration) (*Leadership, error) {
	if ttl == 0 {
		ttl = LeaderTTL
	}
	// The session lives as long as the store: ctx may end with the waiting.
	session, err := concurrency.NewSession(s.client, concurrency.WithTTL(int(ttl.Seconds())), concurrency.WithContext(s.ctx))
	if err != nil {
		return nil, onpath.Errorf(onpath.CodeUnavailable, "stand for election: %w", err)
	}
	l := &Leadership{session: session, election: concurrency.NewElection(session, leaderKey)}
	done := make(chan error, 1)
	go func() { done <- l.election.Campaign(ctx, name) }()
	select {
	case err = <-done:
	case <-ctx.Done():
		// Campaign takes the candidacy back before it returns, however long the
		// cluster cannot be reached.
		select {
		case err = <-done:
		case <-time.After(resignTimeout):
			return nil, ctx.Err() // the TTL does it, and closing the store ends Campaign
		}
	}
	if err != nil {
		l.Resign()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, onpath.Errorf(onpath.CodeUnavailable, "stand for election: %w", err)
	}
	return l, nil
}

// Lost is closed when the leadership has ended, also because the cluster cannot
// be reached: another server may lead from then on.
func (l *Leadership) Lost() <-chan struct{} { return l.session.Done() }

// Resign lets another server lead at once.
func (l *Leadership) Resign() {
	ctx, cancel := context.WithTimeout(context.Background(), resignTimeout)
	defer cancel()
	_ = l.election.Resign(ctx) // else the TTL does it
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = l.session.Close() // tries for as long as the TTL where the cluster is away
	}()
	select {
	case <-closed:
	case <-ctx.Done():
	}
}
