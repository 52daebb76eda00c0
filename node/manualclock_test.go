package node_test

import (
	"context"
	"sync"
	"time"
)

// manualClock is a clock that tests move.
type manualClock struct {
	mu      sync.Mutex
	now     time.Time
	waiters map[chan struct{}]time.Time
}

func newManualClock() *manualClock {
	return &manualClock{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), waiters: map[chan struct{}]time.Time{}}
}

func (h *manualClock) Now() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now
}

func (h *manualClock) Sleep(ctx context.Context, d time.Duration) error {
	ch := make(chan struct{})
	h.mu.Lock()
	h.waiters[ch] = h.now.Add(d)
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.waiters, ch)
	}()
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// awaited is how many sleep for exactly d more.
func (h *manualClock) awaited(d time.Duration) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, at := range h.waiters {
		if at.Equal(h.now.Add(d)) {
			n++
		}
	}
	return n
}

// sleepers is how many sleep at all.
func (h *manualClock) sleepers() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.waiters)
}

func (h *manualClock) move(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now = h.now.Add(d)
	for ch, at := range h.waiters {
		if !at.After(h.now) {
			close(ch)
			delete(h.waiters, ch)
		}
	}
}
