package change

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/wire"
)

// pending are the applies that wait for their confirmation. Each is a record in the
// store, written by the same batch as its objects: it is there if and only if they
// are, whatever becomes of this server.
type pending struct {
	store onpath.Store
	log   *slog.Logger
	wake  chan struct{}

	mu   sync.Mutex
	open map[string]undo
	// unsure is until when the store may have more than is known here, after a
	// write whose end was not heard of.
	unsure time.Time
}

// unconfirmed begins the paths of the records.
const unconfirmed = "unconfirmed/"

// late is how long a write may still come into force of which nothing was heard.
const late = 30 * time.Second

// undo is what was there before an apply.
type undo struct {
	wire.Pending
	Steps []undoStep `json:"steps"`

	version int64 // of its record
}

// undoStep puts Before back under Key, or deletes what is there, but only what
// the apply wrote: UID and Generation tell.
type undoStep struct {
	Key        wire.ObjectRef  `json:"key"`
	Before     json.RawMessage `json:"before,omitempty"`
	UID        string          `json:"uid,omitempty"` // as applied; empty: deleted by it
	Generation int64           `json:"generation,omitempty"`
}

// openPending reads what waits.
func openPending(ctx context.Context, store onpath.Store, log *slog.Logger) (*pending, error) {
	p := &pending{store: store, log: log, wake: make(chan struct{}, 1)}
	return p, p.read(ctx)
}

// read takes over what the store has. What cannot be decoded is left there: the
// server must not stay down for it.
func (p *pending) read(ctx context.Context) error {
	began := time.Now()
	open := map[string]undo{}
	for r := onpath.RecordsUnder(unconfirmed); ; {
		page, err := p.store.Records(ctx, r)
		if err != nil {
			return err
		}
		for _, record := range page.Records {
			u := undo{version: record.Version}
			if err := json.Unmarshal(record.Value, &u); err != nil {
				p.log.Error("an unconfirmed change cannot be read, and will not be undone", "record", record.Path, "error", err)
				continue
			}
			open[u.ID] = u
		}
		if r.From, r.Revision = page.Next, page.Revision; r.From == "" {
			break
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open = open; began.After(p.unsure) {
		p.unsure = time.Time{}
	}
	return nil
}

// newUndo is the undo of an apply whose objects are stamped already.
func newUndo(who auth.Identity, deadline time.Time, all []changed) undo {
	u := undo{Pending: wire.Pending{ID: strings.ToLower(rand.Text()[:8]), Tenant: tenantOf(who), By: who.URI(), Deadline: deadline.UTC()}}
	for _, c := range all {
		if c.result.Action == wire.Unchanged {
			continue
		}
		step := undoStep{Key: wire.RefOf(c.change.Key)}
		if c.prev != nil {
			step.Before, _ = json.Marshal(c.prev) // every Object marshals
		}
		if o := c.change.Object; o != nil {
			step.UID, step.Generation = o.Meta().UID, o.Meta().Generation
		}
		u.Steps = append(u.Steps, step)
	}
	return u
}

// record is what the store keeps of u.
func (u undo) record() (onpath.Record, error) {
	data, err := json.Marshal(u)
	if err == nil && len(data) > onpath.MaxRecord {
		e := onpath.Errorf(onpath.CodeInvalid, "what is there now has %d bytes, too many to be kept for an undo: at most %d are possible",
			len(data), onpath.MaxRecord)
		e.Remedy = "apply in smaller parts"
		return onpath.Record{}, e
	}
	return onpath.Record{Path: unconfirmed + u.ID, Value: data, Version: u.version}, err
}

// put takes over what was written.
func (p *pending) put(u undo, version int64) {
	p.mu.Lock()
	u.version = version
	p.open[u.ID] = u
	p.mu.Unlock()
	p.look()
}

// look has the loop look again at what waits.
func (p *pending) look() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// doubt has the store read again: a write may or may not have been done.
func (p *pending) doubt() {
	p.mu.Lock()
	p.unsure = time.Now().Add(late)
	p.mu.Unlock()
	p.look()
}

// doubtful reports whether the store may have more than is known.
func (p *pending) doubtful() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.unsure.IsZero()
}

// edit is a change of what waits, to be written with other changes.
type edit struct {
	p       *pending
	changed map[string]undo
}

// rewrite has all but one change their step about an object, if they have one.
// It reports whether any did.
func (e *edit) rewrite(but string, k wire.ObjectRef, f func(*undoStep) bool) bool {
	any := false
	for id, u := range e.now() {
		if id == but {
			continue
		}
		u.Steps = slices.Clone(u.Steps)
		i := slices.IndexFunc(u.Steps, func(s undoStep) bool { return s.Key == k })
		if i >= 0 && f(&u.Steps[i]) {
			e.changed[id], any = u, true
		}
	}
	return any
}

// now is what waits, the changes included.
func (e *edit) now() map[string]undo {
	e.p.mu.Lock()
	defer e.p.mu.Unlock()
	all := maps.Clone(e.p.open)
	maps.Copy(all, e.changed)
	return all
}

// records are what is to be written.
func (e *edit) records() (records []onpath.Record, err error) {
	for _, u := range e.changed {
		r, err := u.record()
		if err != nil {
			return nil, err
		}
		records = append(records, r)
	}
	return records, nil
}

// confirm forgets one that waits, and so keeps what it did.
func (p *pending) confirm(ctx context.Context, u undo) error {
	_, err := p.store.Write(ctx, onpath.Batch{Records: []onpath.Record{u.gone()}})
	if err != nil {
		return err
	}
	p.drop(u.ID)
	return nil
}

// gone deletes the record of u.
func (u undo) gone() onpath.Record {
	return onpath.Record{Path: unconfirmed + u.ID, Version: u.version, Delete: true}
}

func (p *pending) drop(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, id)
}

// get is one that still waits.
func (p *pending) get(id string) (undo, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	u, ok := p.open[id]
	return u, ok
}

// images are those of functions that may come back.
func (p *pending) images() (images []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, u := range p.open {
		for _, step := range u.Steps {
			before, err := decodeBefore(step)
			if f, ok := before.(*onpath.Function); ok && err == nil {
				images = append(images, imagesOf(f)...)
			}
		}
	}
	return images
}

// inOrder are the changes that wait, by their deadlines.
func (p *pending) inOrder() []undo {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.SortedFunc(maps.Values(p.open), func(x, y undo) int { return x.Deadline.Compare(y.Deadline) })
}

// takes has a later step undo what an earlier one would have, if it began with
// what that one wrote.
func (s *undoStep) takes(earlier undoStep) bool {
	was, err := decodeBefore(*s)
	if err != nil {
		return false
	}
	uid, generation := "", int64(0)
	if was != nil {
		uid, generation = was.Meta().UID, was.Meta().Generation
	}
	if uid != earlier.UID || generation != earlier.Generation {
		return false
	}
	s.Before = earlier.Before
	return true
}

// decodeBefore is what was there before a step; nil: nothing.
func decodeBefore(s undoStep) (onpath.Object, error) {
	if s.Before == nil {
		return nil, nil
	}
	return onpath.Decode(s.Before)
}
