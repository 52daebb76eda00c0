package etcd

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/onpath/onpath"
)

// queue holds changes for one watcher as etcd gave them: all watchers share their bytes, and
// they are decoded when the watcher takes them.
type queue struct {
	most, mostBytes int
	waiting         *atomic.Int64 // bytes in all queues

	mu     sync.Mutex
	events []*clientv3.Event
	bytes  int
	seen   int64 // revision up to which nothing else is to come
	ended  bool
	err    error         // why
	news   chan struct{} // something came, or the queue ended
	room   chan struct{} // something was taken
}

func newQueue(o Options, waiting *atomic.Int64) *queue {
	return &queue{most: o.Buffer, mostBytes: o.BufferBytes, waiting: waiting,
		news: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// put adds a change; false: it stayed full for longer than patience, or ctx has ended.
func (q *queue) put(ctx context.Context, ev *clientv3.Event, patience time.Duration) bool {
	var over <-chan time.Time
	for !q.add(ev) {
		if over == nil {
			t := time.NewTimer(patience)
			defer t.Stop()
			over = t.C
		}
		select {
		case <-q.room:
		case <-over:
			return false
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// add adds a change if there is room, as there always is for one.
func (q *queue) add(ev *clientv3.Event) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := len(ev.Kv.Value)
	if len(q.events) >= q.most || len(q.events) > 0 && q.bytes+n > q.mostBytes {
		return false
	}
	q.events, q.bytes = append(q.events, ev), q.bytes+n
	q.waiting.Add(int64(n))
	signal(q.news)
	return true
}

// pass notes that what concerns the watcher up to a revision was added.
func (q *queue) pass(revision int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.seen = revision
	signal(q.news)
}

// end drops what waits; err says why, nil for who left or is left.
func (q *queue) end(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting.Add(-int64(q.bytes))
	q.events, q.bytes, q.ended, q.err = nil, 0, true, err
	signal(q.news)
}

// take is the next change, or (nil) the revision up to which there is none.
func (q *queue) take() (ev *clientv3.Event, seen int64, ended bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) == 0 {
		return nil, q.seen, q.ended, q.err
	}
	ev = q.events[0]
	q.events[0] = nil
	q.events = q.events[1:]
	n := len(ev.Kv.Value)
	q.bytes -= n
	q.waiting.Add(-int64(n))
	signal(q.room)
	return ev, 0, false, nil
}

// tooSlow is how a watch ends whose queue stayed full.
func tooSlow(q *queue) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := onpath.Errorf(onpath.CodeUnavailable, "the watch is too slow: %d changes of %d bytes waited for it", len(q.events), q.bytes)
	e.Remedy = "watch again from the last revision, and read faster or watch fewer kinds"
	return e
}
