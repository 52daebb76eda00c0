package change

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/api/router"
	"github.com/onpath/onpath/api/wire"
	"github.com/onpath/onpath/store"
)

// undoer undoes what is not confirmed in time.
type undoer struct {
	d       Deps
	writer  *writer
	pending *pending
}

// undoUnconfirmed waits for deadlines.
func (s *undoer) undoUnconfirmed(ctx context.Context) {
	for ctx.Err() == nil {
		wait := time.Hour
		if s.pending.doubtful() {
			wait = time.Second
			if err := s.readPending(ctx); err != nil {
				s.d.Log.Warn("whether a change waits for its confirmation is not known", "error", err)
			}
		}
		for _, u := range s.pending.inOrder() {
			left := u.Deadline.Sub(s.d.Clock())
			if left > 0 {
				wait = min(wait, left)
				break
			}
			_, err := s.undo(ctx, u.ID, "was not confirmed in time", func(wire.Pending) error { return nil })
			if err != nil && onpath.CodeOf(err) != onpath.CodeNotFound { // not found: confirmed at the last moment
				s.d.Log.Error("an unconfirmed change could not be undone; it is tried again", "id", u.ID, "error", err)
				wait = time.Second
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

// readPending reads what waits while nobody writes.
func (s *undoer) readPending(ctx context.Context) error {
	s.writer.writing.take(rights.WhoIs(ctx).Tenant)
	defer s.writer.writing.pass()
	return s.pending.read(ctx)
}

// undo puts back what was there, all or nothing; what others changed meanwhile
// stays as they left it, and so does what they came to need. What a later
// unconfirmed change wrote is that one's to undo, then to what was there before
// both. Done says what it did and what it left. Why completes "change ID …"; allowed may refuse.
func (s *undoer) undo(ctx context.Context, id, why string, allowed func(wire.Pending) error) (done wire.Undone, err error) {
	s.writer.writing.take(rights.WhoIs(ctx).Tenant)
	defer s.writer.writing.pass()
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
		others := &edit{p: s.pending, changed: map[string]undo{}}
		for _, step := range u.Steps {
			c, kept, err := s.undoOne(ctx, others, u.ID, step)
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
		err := s.writeUndo(ctx, others, u, steps, writes)
		if err == nil {
			s.tellUndone(why, writes)
			s.d.Log.Warn("an unconfirmed change is undone", "id", u.ID, "objects", len(u.Steps), "why", why)
			all := make([]changed, len(writes))
			for i, c := range writes {
				all[i] = changed{change: c, result: wire.ObjectChange{ObjectRef: steps[i].Key, Action: undoing(steps[i], c)}}
				done.Changes = append(done.Changes, all[i].result)
			}
			s.writer.history.note(ctx, "onpath: "+why, all)
			return done, nil
		}
		if onpath.CodeOf(err) != onpath.CodeConflict || attempt == attempts {
			return done, err
		}
	}
}

// writeUndo writes what undoes u, what others that wait learn from it, and that u
// waits no more, in one batch.
func (s *undoer) writeUndo(ctx context.Context, others *edit, u undo, steps []undoStep, writes []onpath.Change) error {
	follow(others, u, steps, writes)
	records, err := others.records()
	if err != nil {
		return err
	}
	w, err := s.writer.commit(ctx, onpath.Batch{Request: rand.Text(), Changes: writes, Records: append(records, u.gone())})
	if err != nil {
		return err
	}
	s.pending.drop(u.ID)
	for _, other := range others.changed {
		s.pending.put(other, w.Revision)
	}
	return nil
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
func (s *undoer) keepNeeded(ctx context.Context, why string, steps []undoStep, writes []onpath.Change) (_ []undoStep,
	_ []onpath.Change, kept []wire.KeptObject) {
	for len(writes) > 0 {
		needed := map[string]*onpath.Error{}
		if _, err := s.d.Planner.Check(ctx, writes, false); err != nil {
			for _, e := range router.ErrorsOf(err) {
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
				s.d.Planner.Tell(c.Key, "Kept", why+", but this "+stays+": "+e.Message, true)
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
func follow(others *edit, u undo, steps []undoStep, writes []onpath.Change) {
	for i, c := range writes {
		was, err := decodeBefore(steps[i])
		if err != nil || was == nil || c.Object == nil {
			continue // nothing was there: nothing is again
		}
		w, now := was.Meta(), c.Object.Meta()
		others.rewrite(u.ID, steps[i].Key, func(o *undoStep) bool {
			if o.UID != w.UID || o.Generation != w.Generation {
				return false
			}
			o.UID, o.Generation = now.UID, now.Generation
			return true
		})
	}
}

// tellUndone leaves an event about every object that went back.
func (s *undoer) tellUndone(why string, writes []onpath.Change) {
	for _, c := range writes {
		what := "it is as it was before"
		if c.Object == nil {
			what = "it is deleted again"
		}
		s.d.Planner.Tell(c.Key, "Undone", why+": "+what, true)
	}
}

func (s *undoer) undoOne(ctx context.Context, others *edit, id string, step undoStep) (_ *onpath.Change, kept string, _ error) {
	now, err := currentOf(ctx, s.d.Store, step.Key.Key())
	if err != nil {
		return nil, "", err
	}
	c := &onpath.Change{Key: step.Key.Key()}
	uid, generation := "", int64(0)
	if now != nil {
		uid, generation, c.Version = now.Meta().UID, now.Meta().Generation, now.Meta().Version
	}
	if uid != step.UID || generation != step.Generation {
		handed := others.rewrite(id, step.Key, func(o *undoStep) bool { return o.takes(step) })
		if !handed {
			s.d.Log.Warn("an object was changed by others since the unconfirmed change and stays", "object", c.Key)
		}
		return nil, whyKept(step, uid, handed), nil
	}
	if c.Object, err = decodeBefore(step); err != nil || c.Object == nil {
		return c, "", err
	}
	if now != nil {
		keepStatus(now, c.Object)
	} else {
		c.Object.Meta().UID = "" // it is another one than that which was deleted
	}
	store.Stamp(now, c.Object, s.d.Clock())
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
