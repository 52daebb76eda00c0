package etcd

import (
	"context"
	"sync"
	"time"
)

// rewriting has requests wait while the file of an embedded store is rewritten, which takes longer
// than a request may. The zero value is ready.
type rewriting struct {
	mu      sync.Mutex
	running int           // requests
	over    chan struct{} // closed once the file is rewritten; nil: it is not being rewritten
	idle    chan struct{} // closed once no request runs; nil: nobody waits for that
}

// begin waits until a request may run; false: ctx has ended before.
func (r *rewriting) begin(ctx context.Context) bool {
	for {
		r.mu.Lock()
		over := r.over
		if over == nil {
			r.running++
			r.mu.Unlock()
			return true
		}
		r.mu.Unlock()
		select {
		case <-over:
		case <-ctx.Done():
			return false
		}
	}
}

// end follows each begin that was true.
func (r *rewriting) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running--; r.running == 0 && r.idle != nil {
		close(r.idle)
		r.idle = nil
	}
}

// do rewrites once the requests that run have ended, for which it waits at most patience.
func (r *rewriting) do(rewrite func() error, patience time.Duration) error {
	r.mu.Lock()
	over, idle := make(chan struct{}), make(chan struct{})
	if r.over = over; r.running == 0 {
		close(idle)
	} else {
		r.idle = idle
	}
	r.mu.Unlock()
	select {
	case <-idle:
	case <-time.After(patience):
	}
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.over, r.idle = nil, nil
		close(over)
	}()
	return rewrite()
}
