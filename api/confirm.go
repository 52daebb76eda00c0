package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"crypto/rand"

	"github.com/danielgtaylor/huma/v2"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/wire"
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

func openPending(dir string) (*pending, error) {
	p := &pending{dir: filepath.Join(dir, "unconfirmed"), open: map[string]undo{}, wake: make(chan struct{}, 1)}
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return nil, onpath.Errorf(onpath.CodeUnavailable, "data directory: %w", err)
	}
	files, err := filepath.Glob(filepath.Join(p.dir, "*.json"))
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		var u undo
		if err == nil {
			err = json.Unmarshal(data, &u)
		}
		if err != nil {
			return nil, onpath.Errorf(onpath.CodeUnavailable, "the unconfirmed change in %s cannot be read: %w", f, err)
		}
		p.open[u.ID] = u
	}
	return p, nil
}

func (p *pending) file(id string) string { return filepath.Join(p.dir, id+".json") }

func (p *pending) add(tenant string, deadline time.Time, all []changed) (*wire.Pending, error) {
	u := undo{Pending: wire.Pending{ID: strings.ToLower(rand.Text()[:8]), Tenant: tenant, Deadline: deadline.UTC()}}
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
	tmp := p.file(u.ID) + ".new"
	if err := errors.Join(os.WriteFile(tmp, data, 0o600), os.Rename(tmp, p.file(u.ID))); err != nil {
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

// take removes one, which is then either confirmed or undone; allowed may refuse.
func (p *pending) take(id string, allowed func(wire.Pending) error) (undo, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	u, ok := p.open[id]
	if !ok {
		return u, onpath.Errorf(onpath.CodeNotFound, "nothing waits for a confirmation as %s: it was confirmed, or undone when its time was over", id)
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
			if err := s.undo(ctx, u); err != nil {
				s.log.Error("an unconfirmed change could not be undone", "id", u.ID, "error", err)
				wait = time.Second
			} else {
				_, _ = s.pending.take(u.ID, func(wire.Pending) error { return nil })
				s.log.Warn("a change was not confirmed in time and is undone", "id", u.ID, "objects", len(u.Steps))
				continue
			}
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
// stays as they left it.
func (s *Server) undo(ctx context.Context, u undo) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	for attempt := 1; ; attempt++ {
		var writes []onpath.Change
		for _, step := range u.Steps {
			c, err := s.undoOne(ctx, step)
			if err != nil {
				return err
			}
			if c != nil {
				writes = append(writes, *c)
			}
		}
		err := s.o.Store.Write(ctx, writes)
		if err == nil {
			s.tellUndone(u, writes)
		}
		if onpath.CodeOf(err) != onpath.CodeConflict || attempt == attempts {
			return err
		}
	}
}

// tellUndone leaves an event about every object that went back.
func (s *Server) tellUndone(u undo, writes []onpath.Change) {
	for _, c := range writes {
		what := "it is as it was before"
		if c.Object == nil {
			what = "it is deleted again"
		}
		s.o.Controller.Tell(c.Key, "Undone", "change "+u.ID+" was not confirmed in time: "+what, true)
	}
}

func (s *Server) undoOne(ctx context.Context, step undoStep) (*onpath.Change, error) {
	now, err := s.current(ctx, step.Key.Key())
	if err != nil {
		return nil, err
	}
	c := &onpath.Change{Key: step.Key.Key()}
	uid, generation := "", int64(0)
	if now != nil {
		uid, generation, c.Version = now.Meta().UID, now.Meta().Generation, now.Meta().Version
	}
	if uid != step.UID || generation != step.Generation {
		s.log.Warn("an object was changed by others since the unconfirmed change and stays", "object", c.Key)
		return nil, nil
	}
	if step.Before == nil {
		return c, nil
	}
	if c.Object, err = onpath.Decode(step.Before); err != nil {
		return nil, err
	}
	if now != nil {
		keepStatus(now, c.Object)
	}
	return c, nil
}

func (s *Server) registerConfirm() {
	huma.Register(s.doc, operation(http.MethodPost, "/v1/confirm/{id}", "confirm", "Keep an apply that waits for its confirmation"),
		func(ctx context.Context, in *struct {
			ID string `path:"id"`
		}) (*struct{}, error) {
			who := whoIs(ctx)
			_, err := s.pending.take(in.ID, func(p wire.Pending) error {
				if who.Role == auth.RoleOperator || (who.Role == auth.RoleUser && p.Tenant == who.Tenant) {
					return nil
				}
				return forbidden(who, "confirm the change "+p.ID)
			})
			return nil, s.answer(err)
		})
}
