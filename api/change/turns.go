package change

import (
	"slices"
	"sync"
)

// turns is a lock that goes round among tenants: one whose users wait for it many times at
// once gets it no more often than the others who wait.
type turns struct {
	mu     sync.Mutex
	held   bool
	order  []string // tenants that wait, the next first
	queues map[string][]chan struct{}
}

// take waits for the lock.
func (t *turns) take(tenant string) {
	t.mu.Lock()
	if !t.held {
		t.held = true
		t.mu.Unlock()
		return
	}
	if t.queues == nil {
		t.queues = map[string][]chan struct{}{}
	}
	mine := make(chan struct{})
	if t.queues[tenant] = append(t.queues[tenant], mine); !slices.Contains(t.order, tenant) {
		t.order = append(t.order, tenant)
	}
	t.mu.Unlock()
	<-mine
}

// pass gives the lock to the next who waits.
func (t *turns) pass() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.order) == 0 {
		t.held = false
		return
	}
	tenant := t.order[0]
	queue := t.queues[tenant]
	t.order = t.order[1:]
	if t.queues[tenant] = queue[1:]; len(queue) > 1 {
		t.order = append(t.order, tenant)
	} else {
		delete(t.queues, tenant)
	}
	close(queue[0])
}
