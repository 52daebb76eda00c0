package session

import (
	"context"
	"sync"

	"github.com/hashicorp/yamux"

	"github.com/onpath/onpath"
)

// answer serves one call.
func (s *Session) answer(ctx context.Context, stream *yamux.Stream, calls *calls) {
	defer func() { _ = hangUp(stream) }()
	var m callMessage
	if err := receive(stream, &m); err != nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a := &responseWriter{stream: stream}
	if !calls.add(m.Call, func() { cancel(); _ = hangUp(stream) }) {
		return
	}
	defer calls.remove(m.Call)
	err := s.handler.Serve(ctx, m.Op, m.Request, a)
	if ctx.Err() == nil {
		_ = a.end(err) // if that fails the session is gone, and its end is logged
	}
}

// calls are the operations that run, by number, so that they can be cancelled.
// A cancel may come before its call: streams overtake each other.
type calls struct {
	mu      sync.Mutex
	cancels map[uint64]context.CancelFunc
	early   []uint64
}

// add returns false if the call was cancelled already.
func (c *calls) add(id uint64, cancel context.CancelFunc) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.early {
		if e == id {
			return false
		}
	}
	c.cancels[id] = cancel
	return true
}

func (c *calls) remove(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.cancels, id)
}

func (c *calls) cancel(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cancel := c.cancels[id]; cancel != nil {
		cancel()
		return
	}
	if c.early = append(c.early, id); len(c.early) > 64 { // most are of calls long ended
		c.early = c.early[1:]
	}
}

// latestPlan hands on plans, and leaves out those that were overtaken.
type latestPlan struct {
	mu   sync.Mutex
	plan *onpath.NodePlan
	wake chan struct{}
}

func newLatestPlan() *latestPlan { return &latestPlan{wake: make(chan struct{}, 1)} }

func (l *latestPlan) set(p *onpath.NodePlan) {
	l.mu.Lock()
	l.plan = p
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *latestPlan) run(ctx context.Context, do func(context.Context, *onpath.NodePlan)) {
	for {
		select {
		case <-l.wake:
		case <-ctx.Done():
			return
		}
		l.mu.Lock()
		p := l.plan
		l.plan = nil
		l.mu.Unlock()
		if p != nil {
			do(ctx, p)
		}
	}
}
