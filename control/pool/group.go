package pool

import (
	"context"
	"slices"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/ledger"
	"github.com/onpath/onpath/store"
)

// group is decisions that one transaction writes: those that are taken while the one
// before waits for the disk. Who waits for a group writes it if nobody else does.
type group struct {
	held     []*decision
	authors  map[onpath.Key]string   // who asked for them: others than who writes the group
	books    map[string]*ledger.Book // with all postings of the group
	records  []onpath.Record         // of meters
	written  []func(revision int64)  // take them up
	followUp bool                    // nobody's request: written while there is little space too
	priced   bool                    // it depends on the version of the price list
	list     int64                   // that version; 0: there is none

	parts, bytes int
	done         chan struct{} // closed once it is written or let go
	over         bool
	err          error
}

// Bounds of a group; a decision that is larger is one by itself.
const (
	groupParts = onpath.SureWrite - 1 // a guard
	groupBytes = 1 << 20
)

// errAgain is why a decision has to be taken again: one that it rests on was not written.
var errAgain = onpath.Errorf(onpath.CodeUnavailable, "what was decided just before could not be written; try again")

// joining is what joins a group, whole.
type joining struct {
	held    []*decision
	books   map[string]*ledger.Book
	records []onpath.Record
	written func(revision int64)
	// priced: it was decided by version list of the price list; 0: by none.
	priced bool
	list   int64
}

// commit has decisions and postings written, all or nothing, and takes them up. If that
// fails, they are let go. It gives mu up meanwhile.
func (p *Pool) commit(ctx context.Context, j joining) error {
	g, err := p.join(ctx, j)
	if err != nil {
		return err
	}
	return p.await(g)
}

// join has something written by the next group that has room for it. If it fails, the
// decisions are let go.
func (p *Pool) join(ctx context.Context, j joining) (*group, error) {
	if p.broken {
		p.admission().letDecisionsGo(j.held)
		return nil, errAgain
	}
	parts, bytes := j.size(p.accounting.kept)
	if parts == 0 {
		return &group{over: true}, nil
	}
	g := p.room(parts, bytes, store.IsFollowUp(ctx), j)
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
		g.books[tenant], p.accounting.spent[tenant] = b, b.Account
	}
	for _, d := range flat(j.held) {
		p.rows.pending[d.key], g.authors[d.key] = g, store.Author(ctx)
	}
	return g, nil
}

// room is the last group that waits, or a new one.
func (p *Pool) room(parts, bytes int, followUp bool, j joining) *group {
	if n := len(p.queue); n > 0 && (n > 1 || !p.writing) {
		g := p.queue[n-1]
		fits := g.parts+parts <= groupParts && g.bytes+bytes <= groupBytes
		if fits && g.followUp == followUp && (!g.priced || !j.priced || g.list == j.list) {
			return g
		}
	}
	g := &group{authors: map[onpath.Key]string{}, books: map[string]*ledger.Book{}, followUp: followUp, done: make(chan struct{})}
	p.queue = append(p.queue, g)
	return g
}

// size is how many changes, guards and records are written at most, and about how many bytes.
func (j joining) size(kept map[int64]bool) (parts, bytes int) {
	const object, item, segment = 1000, 150, 300
	for _, d := range flat(j.held) {
		st := &d.obj.Status
		parts += 2 + len(st.Places)
		bytes += object + item*(len(d.obj.Spec.Slots)+len(st.Slots)+len(st.Steps)+len(st.Places)) + segment*segmentsOf(d.pay)
		for _, x := range st.Places {
			if x.Leaving != "" {
				parts++
			}
		}
	}
	for _, b := range j.books {
		added := b.Added()
		if len(added) == 0 {
			continue
		}
		parts += 1 + len(added)
		var lists []int64
		for i := range added {
			bytes += object + segment*len(added[i].Segments)
			if v := added[i].Prices; v != 0 && !kept[v] && !slices.Contains(lists, v) {
				lists = append(lists, v)
			}
		}
		parts += len(lists)
	}
	return parts + len(j.records), bytes + item*len(j.records)
}

func segmentsOf(list []payment) (n int) {
	for i := range list {
		n += len(list[i].Segments)
	}
	return n
}

// await waits until a group is written or let go, without mu.
func (p *Pool) await(g *group) error {
	for !g.over {
		if !p.writing {
			p.writeFirst()
			continue
		}
		done := p.queue[0].done
		p.mu.Unlock()
		<-done
		p.mu.Lock()
	}
	return g.err
}

// awaitKeys waits until nothing is being written of some reservations, so that a decision
// may rest on what is stored of them.
func (p *Pool) awaitKeys(keys ...onpath.Key) {
	for i := 0; i < len(keys); {
		if g := p.rows.pending[keys[i]]; g != nil {
			_ = p.await(g)
			i = 0
			continue
		}
		i++
	}
}

// writeFirst writes the first group that waits: for those who asked for its decisions,
// whoever it is that waits for it.
func (p *Pool) writeFirst() {
	g := p.queue[0]
	b, err := p.batch(g)
	if err != nil {
		p.letGroupsGo(err)
		return
	}
	ctx := store.ByEach(context.Background(), g.authors)
	if g.followUp {
		ctx = store.FollowUp(ctx)
	}
	p.writing = true
	p.mu.Unlock()
	w, unsure, err := p.write(ctx, b)
	p.mu.Lock()
	p.writing = false
	if err != nil {
		if unsure { // all is read again before the next decision
			p.broken = true
			p.poke()
		}
		p.letGroupsGo(err)
		return
	}
	b.SetVersions(w.Revision)
	p.queue = p.queue[1:]
	p.takeUpGroup(g, w.Revision)
	g.over = true
	close(g.done)
}

// letGroupsGo lets go the first group, for a reason, and those after it, as they rest on it.
func (p *Pool) letGroupsGo(why error) {
	list := p.queue
	p.queue, p.rows.pending, p.accounting.spent = nil, map[onpath.Key]*group{}, map[string]onpath.Account{}
	for i, g := range list {
		p.admission().letDecisionsGo(g.held)
		g.over, g.err = true, errAgain
		if i == 0 {
			g.err = why
		}
		close(g.done)
	}
}

// takeUpGroup takes up what is written.
func (p *Pool) takeUpGroup(g *group, revision int64) {
	nodes := map[string]bool{}
	for _, d := range flat(g.held) {
		delete(p.rows.pending, d.key)
		if d.old != nil {
			p.rows.agenda.drop(d.old)
			note(nodes, nodesOf(d.old.obj))
		}
		if d.gone {
			delete(p.rows.entries, d.key)
			p.board.show(d.key, nil, false)
			continue
		}
		e := &entry{obj: d.obj, payments: d.pay, index: -1}
		p.rows.entries[d.key] = e
		p.plan(e)
		note(nodes, nodesOf(d.obj))
		for _, name := range nodesOf(d.obj) {
			p.bumped[name] = revision
		}
	}
	p.promise(sortedKeys(nodes))
	p.accounting.takeUp(g.books, revision)
	for _, f := range g.written {
		f(revision)
	}
	p.publish()
}

func note(set map[string]bool, names []string) {
	for _, s := range names {
		set[s] = true
	}
}
