package change

import (
	"slices"
	"sync"
	"testing"
	"time"
)

// TestTurns: who waits once for the lock waits for one of each other tenant's, however many
// of these wait.
func TestTurns(t *testing.T) {
	var l turns
	l.take("first")
	var mu sync.Mutex
	var order []string
	var wg sync.WaitGroup
	waits := func(tenant string, n int) {
		for range n {
			wg.Go(func() {
				l.take(tenant)
				defer l.pass()
				mu.Lock()
				defer mu.Unlock()
				order = append(order, tenant)
			})
		}
		for waiting := 0; waiting < n; time.Sleep(time.Millisecond) {
			l.mu.Lock()
			waiting = len(l.queues[tenant])
			l.mu.Unlock()
		}
	}
	waits("greedy", 50)
	waits("modest", 2)
	l.pass()
	wg.Wait()
	if len(order) != 52 || slices.Index(order, "modest") != 1 || order[3] != "modest" {
		t.Errorf("the lock went to %v", order)
	}
	l.take("again")
	l.pass()
	if l.held {
		t.Error("nobody waits, and the lock is held")
	}
}
