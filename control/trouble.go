package control

import (
	"sync"
	"time"
)

// retold is how often a failure that lasts, such as a full disk, is logged.
const retold = 10 * time.Second

// trouble is why something does not work just now.
type trouble struct {
	mu   sync.Mutex
	err  error
	told time.Time
}

// note takes a failure up, and reports whether it is to be logged: it is the first, or the
// last one was logged a while ago.
func (t *trouble) note(err error, now time.Time) (news bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if news = t.err == nil || now.Sub(t.told) >= retold; news {
		t.told = now
	}
	t.err = err
	return news
}

// end says that it works again.
func (t *trouble) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.err = nil
}

func (t *trouble) why() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}
