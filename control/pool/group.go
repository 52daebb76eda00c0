package pool

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/ledger"
	"github.com/onpath/onpath/store"
)

// group is decisions that one transaction writes: those that are taken while the one
// before waits for the disk. Who waits for a group writes it if nobody else does.
type group struct {
	held    []*decision
	marks   marks
	authors map[onpath.Key]string   // who asked for them: others than who writes the group
	books   map[string]*ledger.Book // with all postings of the group
	records []onpath.Record         // of meters
	written []func(revision int64)  // take them up
	priced  bool                    // it depends on the version of the price list
	list    int64                   // that version; 0: there is none

	parts, bytes int
	done         chan struct{} // closed once it is written or let go
	over         bool
	err          error
}

// marks are those of the store that all decisions of a group have.
type marks struct {
	followUp bool // nobody's request: written while there is little space too
	filed    bool // it leaves the store for a file
}

func marksOf(ctx context.Context) marks { return marks{store.IsFollowUp(ctx), store.IsFiled(ctx)} }

func (m marks) on(ctx context.Context) context.Context {
	if m.followUp {
		ctx = store.FollowUp(ctx)
	}
	if m.filed {
		ctx = store.Filed(ctx)
	}
	return ctx
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

// groupFor is the last group that waits, or a new one.
func (q *queue) groupFor(parts, bytes int, m marks, j joining) *group {
	if n := len(q.groups); n > 0 && (n > 1 || !q.writing) {
		g := q.groups[n-1]
		fits := g.parts+parts <= groupParts && g.bytes+bytes <= groupBytes
		if fits && g.marks == m && (!g.priced || !j.priced || g.list == j.list) {
			return g
		}
	}
	g := &group{authors: map[onpath.Key]string{}, books: map[string]*ledger.Book{}, marks: m, done: make(chan struct{})}
	q.groups = append(q.groups, g)
	return g
}

// batchOf is what a group writes. A record of each node and account that a decision depends
// on is written with the version that was read: whoever decided from the same state at
// the same time is refused.
func (q *queue) batchOf(g *group, ac *accounting) (onpath.Batch, error) {
	b := onpath.Batch{Request: rand.Text(), Records: slices.Clone(g.records)}
	if g.priced {
		b.Guards = []onpath.Guard{{Key: priceList, Version: g.list}}
	}
	bump := map[string]bool{}
	for _, d := range flat(g.held) {
		version := int64(0)
		if d.old != nil {
			version = d.old.obj.Metadata.Version
		}
		if d.gone {
			b.Changes = append(b.Changes, onpath.Change{Key: d.key, Version: version})
			b.Records = append(b.Records, onpath.Record{Path: paymentPath(d.key), Version: onpath.AnyVersion, Delete: true})
			continue
		}
		b.Changes = append(b.Changes, onpath.Change{Key: d.key, Object: d.obj, Version: version})
		pay, err := json.Marshal(d.pay)
		if err != nil {
			return b, err
		}
		b.Records = append(b.Records, onpath.Record{Path: paymentPath(d.key), Value: pay, Version: onpath.AnyVersion,
			Delete: len(d.pay) == 0})
		for _, name := range nodesOf(d.obj) {
			bump[name] = true
		}
	}
	if err := ac.bookRecords(g, &b); err != nil {
		return b, err
	}
	for _, name := range sortedKeys(bump) {
		b.Records = append(b.Records, onpath.Record{Path: nodePath + name, Version: q.bumped[name]})
	}
	return b, nil
}

// Where records lie.
const (
	payments = "pool/payment/"
	nodePath = "pool/node/"
)

func paymentPath(k onpath.Key) string { return payments + k.Tenant + "/" + k.Name }

// write tries on as long as it is not known what became of a batch, and not for long.
// unsure: that stays unknown, or somebody else wrote.
func (q *queue) write(ctx context.Context, b onpath.Batch) (w onpath.Written, unsure bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	for {
		w, err := q.store.Write(ctx, b)
		switch onpath.CodeOf(err) {
		case "":
			return w, false, nil
		case onpath.CodeInvalid, onpath.CodeNoCapacity:
			return w, false, err
		case onpath.CodeConflict:
			var e *onpath.Error
			if errors.As(err, &e) && e.Object == priceList.String() { // another list: nothing is written
				q.priceList.last.Store(nil)
				return w, false, errAgain
			}
			return w, true, onpath.Errorf(onpath.CodeUnavailable, "somebody else changed what was decided on; try again: %w", err)
		case onpath.CodeUnavailable:
			if ctx.Err() == nil {
				select {
				case <-time.After(100 * time.Millisecond):
					continue
				case <-ctx.Done():
				}
			}
		}
		return w, true, onpath.Errorf(onpath.CodeUnavailable, "it is not known whether the decision was written; try again: %w", err)
	}
}

const writeTimeout = 10 * time.Second
