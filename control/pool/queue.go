package pool

import (
	"context"
	"sync"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/calendar"
	"github.com/onpath/onpath/store"
)

// queue owns what is decided by. What is decided is written in the order in which it was, by groups.
// While one is written the state is free for others: mu is held for as long as one function looks or
// decides, and by no function that waits.
type queue struct {
	store     onpath.Store
	read      *postingReader
	priceList *priceReader
	board     *board
	changed   func()        // the planner is to look at the board
	wake      chan struct{} // something is due sooner than before

	mu      sync.Mutex // guards what follows
	state   state
	groups  []*group // that wait; while writing, the first of them is being written
	writing bool
	bumped  map[string]int64 // versions of the nodes' records
}

// look has f see the state, once nothing is being written of some reservations.
func (q *queue) look(f func(*state), keys ...onpath.Key) {
	q.lockSettled(keys...)
	defer q.mu.Unlock()
	f(&q.state)
}

// submit has f decide, once nothing is being written of some reservations, and joins that to what
// is written next. If it is not joined, what f holds is let go.
func (q *queue) submit(ctx context.Context, f func(*state) (joining, error), keys ...onpath.Key) (*group, error) {
	q.lockSettled(keys...)
	defer q.mu.Unlock()
	j, err := f(&q.state)
	if err != nil {
		return nil, err
	}
	return q.join(ctx, j)
}

// commit has f decide, and waits until that is written.
func (q *queue) commit(ctx context.Context, f func(*state) (joining, error)) error {
	g, err := q.submit(ctx, f)
	if err != nil {
		return err
	}
	return q.await(g)
}

func (q *queue) exists(k onpath.Key) (is bool) {
	q.look(func(s *state) { is = s.rows.entries[k] != nil })
	return is
}

// observe takes up what was observed.
func (q *queue) observe() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.takeUp()
}

// refresh takes up what was observed, and reads everything again where that is to be done.
func (q *queue) refresh(ctx context.Context) error {
	broken := false
	q.observe()
	q.look(func(s *state) {
		s.promises.tryRefused(s.clock())
		broken = s.broken
	})
	if !broken {
		return nil
	}
	return q.reload(ctx)
}

// join has something written by the next group that has room for it. If it fails, the
// decisions are let go. Callers hold mu, and await the group when they do not.
func (q *queue) join(ctx context.Context, j joining) (*group, error) {
	if q.state.broken {
		q.state.admission().letDecisionsGo(j.held)
		return nil, errAgain
	}
	parts, bytes := j.size(q.state.accounting.kept)
	if parts == 0 {
		return &group{over: true}, nil
	}
	g := q.groupFor(parts, bytes, marksOf(ctx), j)
	if j.priced {
		g.priced, g.list = true, j.list
	}
	g.parts, g.bytes = g.parts+parts, g.bytes+bytes
	g.held, g.records = append(g.held, j.held...), append(g.records, j.records...)
	if j.written != nil {
		g.written = append(g.written, j.written)
	}
	for tenant, b := range j.books {
		if len(b.Added()) == 0 {
			continue
		}
		if old := g.books[tenant]; old != nil {
			b = old.Join(b)
		}
		g.books[tenant], q.state.accounting.spent[tenant] = b, b.Account
	}
	for _, d := range flat(j.held) {
		q.state.rows.pending[d.key], g.authors[d.key] = g, store.Author(ctx)
	}
	return g, nil
}

// await waits until a group is written or let go. Who waits for a group writes it if nobody else
// does. Callers do not hold mu.
func (q *queue) await(g *group) error {
	for {
		next := q.nextWrite(g)
		switch {
		case next.over:
			return next.err
		case next.under != nil:
			<-next.under
		case next.g != nil:
			w, unsure, err := q.write(next.ctx, next.b)
			q.endWrite(next, w.Revision, unsure, err)
		}
	}
}

// lockSettled locks mu once nothing is being written of some reservations, so that a decision may
// rest on what is stored of them.
func (q *queue) lockSettled(keys ...onpath.Key) {
	for {
		q.mu.Lock()
		g := q.state.rows.pendingOf(keys)
		if g == nil {
			return
		}
		q.mu.Unlock()
		_ = q.await(g)
	}
}

// lookIdle has f see the state once nothing is being written.
func (q *queue) lookIdle(f func(*state)) {
	q.lockIdle()
	defer q.mu.Unlock()
	f(&q.state)
}

// lockIdle locks mu once nothing is being written.
func (q *queue) lockIdle() {
	for {
		q.mu.Lock()
		n := len(q.groups)
		if n == 0 {
			return
		}
		g := q.groups[n-1]
		q.mu.Unlock()
		_ = q.await(g)
	}
}

// writeStep is what who waits for a group does next: it has the answer, waits for another write, or
// writes the first group.
type writeStep struct {
	over  bool
	err   error
	under <-chan struct{} // closed when the write that is under way is done
	ctx   context.Context
	g     *group
	b     onpath.Batch
}

func (q *queue) nextWrite(g *group) writeStep {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case g.over:
		return writeStep{over: true, err: g.err}
	case q.writing:
		return writeStep{under: q.groups[0].done}
	}
	first := q.groups[0]
	b, err := q.batchOf(first, &q.state.accounting)
	if err != nil {
		q.letGroupsGo(err)
		return writeStep{} // and asks again
	}
	q.writing = true
	ctx := store.ByEach(context.Background(), first.authors) // for those who asked for its decisions
	return writeStep{ctx: first.marks.on(ctx), g: first, b: b}
}

// endWrite takes up what became of the first group.
func (q *queue) endWrite(n writeStep, revision int64, unsure bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.writing = false
	if err != nil {
		if unsure { // all is read again before the next decision
			q.state.broken = true
			q.poke()
		}
		q.letGroupsGo(err)
		return
	}
	n.b.SetVersions(revision)
	q.groups = q.groups[1:]
	q.takeUpGroup(n.g, revision)
	n.g.over = true
	close(n.g.done)
}

// letGroupsGo lets go the first group, for a reason, and those after it, as they rest on it.
func (q *queue) letGroupsGo(why error) {
	list := q.groups
	q.groups, q.state.rows.pending, q.state.accounting.spent = nil, map[onpath.Key]*group{}, map[string]onpath.Account{}
	for i, g := range list {
		q.state.admission().letDecisionsGo(g.held)
		g.over, g.err = true, errAgain
		if i == 0 {
			g.err = why
		}
		close(g.done)
	}
}

// takeUpGroup takes up what is written.
func (q *queue) takeUpGroup(g *group, revision int64) {
	nodes := map[string]bool{}
	for _, d := range flat(g.held) {
		delete(q.state.rows.pending, d.key)
		if d.old != nil {
			q.state.rows.agenda.drop(d.old)
			note(nodes, nodesOf(d.old.obj))
		}
		if d.gone {
			q.state.rows.put(d.key, nil)
			q.board.show(d.key, nil, false)
			continue
		}
		e := &entry{key: d.key, obj: d.obj, payments: d.pay, index: -1}
		q.state.rows.put(d.key, e)
		q.plan(e)
		note(nodes, nodesOf(d.obj))
		for _, name := range nodesOf(d.obj) {
			q.bumped[name] = revision
		}
	}
	q.promise(sortedKeys(nodes))
	q.state.accounting.takeUp(g.books, revision)
	for _, f := range g.written {
		f(revision)
	}
	q.publish()
}

func note(set map[string]bool, names []string) {
	for _, s := range names {
		set[s] = true
	}
}

// promise notes the most that nodes have promised from now on.
func (q *queue) promise(nodes []string) {
	now := q.state.clock()
	for _, name := range nodes {
		q.board.notePromised(name, q.state.promises.cal.Peak(name, now, calendar.Forever))
	}
}

// takeUp takes up what was observed. Callers hold mu.
func (q *queue) takeUp() {
	if nodes, cloudlets := q.board.takeObserved(); cloudlets != nil {
		q.promise(q.state.promises.takeUp(nodes, cloudlets, q.state.clock()))
	}
}

// plan notes when something of a reservation is due next, and whether the planner is to
// know of it now. Callers hold mu.
func (q *queue) plan(e *entry) {
	soon := q.state.rows.schedule(e, q.state.clock())
	q.board.show(e.key, e.obj, soon)
	q.poke()
}

// publish has the planner see what was to be shown.
func (q *queue) publish() {
	if q.board.publish() {
		q.changed()
	}
}

// poke has Run look at what is due.
func (q *queue) poke() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// clear leaves what is read from the store empty. Callers hold mu.
func (q *queue) clear() {
	q.state.clear()
	q.bumped = map[string]int64{}
	q.board.clear()
}

// schedule notes anew when something of a reservation is due.
func (q *queue) schedule(e *entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state.rows.entries[e.key] == e {
		q.plan(e)
		q.publish()
	}
}
