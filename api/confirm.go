package api

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"crypto/rand"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/wire"
	"github.com/onpath/onpath/internal/wholefile"
)

// pending keeps what has to be undone unless it is confirmed, one file each, so
// that a server that was killed meanwhile still does it.
type pending struct {
	dir  string
	mu   sync.Mutex
	open map[string]undo
	wake chan struct{}
}

// undo is what was there before.
type undo struct {
	wire.Pending
	Steps []undoStep `json:"steps"`
}

// undoStep puts Before back under Key, or deletes what is there, but only what
// the apply wrote: UID and Generation tell.
type undoStep struct {
	Key        wire.ObjectRef  `json:"key"`
	Before     json.RawMessage `json:"before,omitempty"`
	UID        string          `json:"uid,omitempty"` // as applied; empty: deleted by it
	Generation int64           `json:"generation,omitempty"`
}

// openPending reads what waits. What cannot be read is set aside: the server
// must not stay down for it. So is all of it where another server has led since.
func openPending(dir string, succeeds bool, log *slog.Logger) (*pending, error) {
	p := &pending{dir: filepath.Join(dir, "unconfirmed"), open: map[string]undo{}, wake: make(chan struct{}, 1)}
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return nil, onpath.Errorf(onpath.CodeUnavailable, "data directory: %w", err)
	}
	if err := wholefile.Clean(p.dir); err != nil {
		return nil, onpath.Errorf(onpath.CodeUnavailable, "data directory: %w", err)
	}
	files, err := filepath.Glob(filepath.Join(p.dir, "*.json"))
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if succeeds {
			log.Warn("an unconfirmed change is not undone: another server has led since", "kept as", f+setAside, "error", os.Rename(f, f+setAside))
			continue
		}
		data, err := os.ReadFile(f)
		var u undo
		if err == nil {
			err = json.Unmarshal(data, &u)
		}
		if err != nil {
			log.Error("an unconfirmed change cannot be read, and will not be undone", "file", f, "error", err,
				"kept as", f+setAside, "renamed", os.Rename(f, f+setAside) == nil)
			continue
		}
		p.open[u.ID] = u
	}
	return p, nil
}

// setAside ends the name of a file that is not acted on.
const setAside = ".set-aside"

func (p *pending) file(id string) string { return filepath.Join(p.dir, id+".json") }

func (p *pending) add(who auth.Identity, deadline time.Time, all []changed) (*wire.Pending, error) {
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
	data, err := json.Marshal(u)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.save(u.ID, data); err != nil {
		e := onpath.Errorf(onpath.CodeUnavailable, "the objects are applied, but will not be undone by themselves: %w", err)
		e.Remedy = "make room in the server's data directory, and check that the network works"
		return nil, e
	}
	p.open[u.ID] = u
	select {
	case p.wake <- struct{}{}:
	default:
	}
	return &u.Pending, nil
}

func (p *pending) save(id string, data []byte) error {
	return wholefile.Write(p.file(id), data, 0o600)
}

// rewrite has all but one change their step about an object, if they have one.
// It reports whether any did.
func (p *pending) rewrite(but string, k wire.ObjectRef, f func(*undoStep) bool) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	any := false
	for id, u := range p.open {
		if id == but {
			continue
		}
		u.Steps = slices.Clone(u.Steps)
		i := slices.IndexFunc(u.Steps, func(s undoStep) bool { return s.Key == k })
		if i < 0 || !f(&u.Steps[i]) {
			continue
		}
		data, err := json.Marshal(u)
		if err == nil {
			err = p.save(id, data)
		}
		if err != nil {
			return any, onpath.Errorf(onpath.CodeUnavailable, "the unconfirmed change %s: %w", id, err)
		}
		p.open[id], any = u, true
	}
	return any, nil
}

// take removes one, which is then either confirmed or undone; allowed may refuse.
func (p *pending) take(id string, allowed func(wire.Pending) error) (undo, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	u, ok := p.open[id]
	if !ok {
		return u, notPending(id)
	}
	if err := allowed(u.Pending); err != nil {
		return u, err
	}
	if err := os.Remove(p.file(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return u, onpath.Errorf(onpath.CodeUnavailable, "confirm %s: %w", id, err)
	}
	delete(p.open, id)
	return u, nil
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

// next is the one whose time is over first.
func (p *pending) next() (first undo, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, u := range p.open {
		if !ok || u.Deadline.Before(first.Deadline) {
			first, ok = u, true
		}
	}
	return first, ok
}

// undoUnconfirmed waits for deadlines.
func (s *Server) undoUnconfirmed(ctx context.Context) {
	for ctx.Err() == nil {
		wait := time.Hour
		u, ok := s.pending.next()
		if ok {
			wait = u.Deadline.Sub(s.o.Clock())
		}
		if ok && wait <= 0 {
			_, err := s.undo(ctx, u.ID, "was not confirmed in time", func(wire.Pending) error { return nil })
			if err == nil || onpath.CodeOf(err) == onpath.CodeNotFound { // confirmed at the last moment
				continue
			}
			s.log.Error("an unconfirmed change could not be undone", "id", u.ID, "error", err)
			wait = time.Second
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-s.pending.wake:
		case <-ctx.Done():
		}
		t.Stop()
	}
}

// undo puts back what was there, all or nothing; what others changed meanwhile
// stays as they left it, and so does what they came to need. What a later
// unconfirmed change wrote is that one's to undo, then to what was there before
// both. Done says what it did and what it left. Why completes "change ID …"; allowed may refuse.
func (s *Server) undo(ctx context.Context, id, why string, allowed func(wire.Pending) error) (done wire.Undone, err error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	u, ok := s.pending.get(id)
	if !ok {
		return done, notPending(id)
	}
	if err := allowed(u.Pending); err != nil {
		return done, err
	}
	why = "change " + u.ID + " " + why
	for attempt := 1; ; attempt++ {
		var steps []undoStep
		var writes []onpath.Change
		done = wire.Undone{Changes: []wire.ObjectChange{}}
		for _, step := range u.Steps {
			c, kept, err := s.undoOne(ctx, u.ID, step)
			if err != nil {
				return done, err
			}
			if c != nil {
				steps, writes = append(steps, step), append(writes, *c)
			} else {
				done.Kept = append(done.Kept, wire.KeptObject{ObjectRef: step.Key, Why: kept})
			}
		}
		steps, writes, needed := s.keepNeeded(ctx, why, steps, writes)
		done.Kept = append(done.Kept, needed...)
		_, err := s.o.Store.Write(ctx, onpath.Batch{Changes: writes})
		if err == nil {
			s.tellUndone(why, writes)
			s.log.Warn("an unconfirmed change is undone", "id", u.ID, "objects", len(u.Steps), "why", why)
			err = s.follow(u, steps, writes)
			_, taken := s.pending.take(u.ID, func(wire.Pending) error { return nil })
			for i, c := range writes {
				done.Changes = append(done.Changes, wire.ObjectChange{ObjectRef: steps[i].Key, Action: undoing(steps[i], c)})
			}
			return done, errors.Join(err, taken)
		}
		if onpath.CodeOf(err) != onpath.CodeConflict || attempt == attempts {
			return done, err
		}
	}
}

// undoing is what a change does that undoes a step.
func undoing(step undoStep, c onpath.Change) wire.Action {
	switch {
	case c.Object == nil:
		return wire.Deleted
	case step.UID == "":
		return wire.Created
	}
	return wire.Updated
}

// keepNeeded leaves out deletions of what others need by now, and what cannot be
// as it was: because what it needs has been deleted since, say.
func (s *Server) keepNeeded(ctx context.Context, why string, steps []undoStep, writes []onpath.Change) (_ []undoStep, _ []onpath.Change, kept []wire.KeptObject) {
	for len(writes) > 0 {
		needed := map[string]*onpath.Error{}
		if err := s.o.Controller.Check(ctx, writes, false); err != nil {
			for _, e := range listed(err) {
				needed[e.Object] = e
			}
		}
		var stay []undoStep
		var rest []onpath.Change
		for i, c := range writes {
			if e := needed[c.Key.String()]; e != nil {
				stays := "stays as it is"
				if c.Object == nil {
					stays = "stays"
				}
				s.o.Controller.Tell(c.Key, "Kept", why+", but this "+stays+": "+e.Message, true)
				kept = append(kept, wire.KeptObject{ObjectRef: steps[i].Key, Why: stays + ": " + e.Message})
				continue
			}
			stay, rest = append(stay, steps[i]), append(rest, c)
		}
		if len(rest) == len(writes) {
			break
		}
		steps, writes = stay, rest
	}
	return steps, writes, kept
}

// follow tells earlier unconfirmed changes that what is there again is what they
// wrote.
func (s *Server) follow(u undo, steps []undoStep, writes []onpath.Change) error {
	for i, c := range writes {
		was, err := decodeBefore(steps[i])
		if err != nil || was == nil || c.Object == nil {
			continue // nothing was there: nothing is again
		}
		w, now := was.Meta(), c.Object.Meta()
		if _, err := s.pending.rewrite(u.ID, steps[i].Key, func(o *undoStep) bool {
			if o.UID != w.UID || o.Generation != w.Generation {
				return false
			}
			o.UID, o.Generation = now.UID, now.Generation
			return true
		}); err != nil {
			return err
		}
	}
	return nil
}

// tellUndone leaves an event about every object that went back.
func (s *Server) tellUndone(why string, writes []onpath.Change) {
	for _, c := range writes {
		what := "it is as it was before"
		if c.Object == nil {
			what = "it is deleted again"
		}
		s.o.Controller.Tell(c.Key, "Undone", why+": "+what, true)
	}
}

func (s *Server) undoOne(ctx context.Context, id string, step undoStep) (_ *onpath.Change, kept string, _ error) {
	now, err := s.current(ctx, step.Key.Key())
	if err != nil {
		return nil, "", err
	}
	c := &onpath.Change{Key: step.Key.Key()}
	uid, generation := "", int64(0)
	if now != nil {
		uid, generation, c.Version = now.Meta().UID, now.Meta().Generation, now.Meta().Version
	}
	if uid != step.UID || generation != step.Generation {
		handed, err := s.pending.rewrite(id, step.Key, func(o *undoStep) bool { return o.takes(step) })
		if err == nil && !handed {
			s.log.Warn("an object was changed by others since the unconfirmed change and stays", "object", c.Key)
		}
		return nil, whyKept(step, uid, handed), err
	}
	if c.Object, err = decodeBefore(step); err != nil || c.Object == nil {
		return c, "", err
	}
	if now != nil {
		keepStatus(now, c.Object)
	}
	return c, "", nil
}

// whyKept says why an object, now of this UID, is not what a step made of it.
func whyKept(step undoStep, uid string, handed bool) string {
	switch {
	case handed:
		return "goes back with the later change that waits for its confirmation, too"
	case uid == "":
		return "was deleted since, and stays deleted"
	case step.UID == "":
		return "was created anew since, and stays"
	case uid != step.UID:
		return "was deleted and created anew since, and stays"
	}
	return "was changed since, and stays as it is"
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
