package change

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"reflect"
	"slices"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/api/wire"
	"github.com/onpath/onpath/store"
)

// writer writes what has been examined. Check and Write belong together: writing is held
// meanwhile.
type writer struct {
	d       Deps
	writing turns
	pending *pending
	history *history
}

// changeSet is what a request wants changed.
type changeSet struct {
	puts    []onpath.Object
	deletes []onpath.Key
	// version that the only object must have; 0: whatever is there.
	version   int64
	mustExist bool // deleting what is not there is an error
	dryRun    bool
	verify    bool // refuse what would lead flows astray
	force     bool // the nodes to be deleted are gone for good
	// request is the writer's id for it ("": none), unique among all writers.
	request string
	// confirm undoes it after this time unless it is confirmed; 0: never.
	confirm time.Duration
	// notes is where to say what is worth knowing of a change; nil: nobody asks.
	notes *[]string
}

// changed is a change and what was there before.
type changed struct {
	change onpath.Change
	prev   onpath.Object // nil: nothing
	result wire.ObjectChange
}

// attempts is how often a change is tried against concurrent writers.
const attempts = 8

// change makes a changeSet so, or says what it would do. Objects that are as
// they should be are not written. What then waits for its confirmation is the second
// result.
func (s *Changes) change(ctx context.Context, c changeSet) ([]changed, *wire.Pending, error) {
	if err := s.examiner.examine(ctx, c); err != nil {
		return nil, nil, err
	}
	if own, rest := partReservations(c); len(own.puts)+len(own.deletes) > 0 && s.d.Pool != nil {
		return s.writer.reserve(ctx, own, rest)
	}
	return s.writer.changeObjects(ctx, c)
}

// changeObjects is change for what has been examined, and is no reservation.
func (s *writer) changeObjects(ctx context.Context, c changeSet) ([]changed, *wire.Pending, error) {
	s.writing.take(rights.WhoIs(ctx).Tenant)
	defer s.writing.pass()
	for attempt := 1; ; attempt++ {
		all, err := s.compare(ctx, c)
		if err != nil {
			return nil, nil, err
		}
		writes := toWrite(all)
		if len(writes) == 0 {
			return all, s.waiting(ctx, c), nil
		}
		if err := s.mayChange(ctx, c, writes); err != nil {
			return all, nil, err
		}
		if c.dryRun {
			return all, nil, nil
		}
		c.verify = false // once is enough: what is tried again is the same
		waits, err := s.write(ctx, c, all, writes)
		if onpath.CodeOf(err) == onpath.CodeConflict && c.version == 0 && attempt < attempts {
			continue // onpath itself wrote a status meanwhile
		}
		if err != nil {
			return nil, nil, err
		}
		for i := range all {
			if o := all[i].change.Object; o != nil {
				all[i].result.Version = o.Meta().Version
			}
		}
		s.d.Departures.RevokeDeleted(writes)
		s.history.note(ctx, rights.WhoIs(ctx).URI(), all)
		s.d.Log.Info("objects changed", "by", rights.WhoIs(ctx).URI(), "objects", len(writes), "first", writes[0].Key)
		return all, waits, nil
	}
}

// mayChange refuses what may not be written as things are now.
func (s *writer) mayChange(ctx context.Context, c changeSet, writes []onpath.Change) error {
	if len(writes) > onpath.MaxWrite {
		e := onpath.Errorf(onpath.CodeInvalid, "%d objects change at once; at most %d can", len(writes), onpath.MaxWrite)
		e.Remedy = "apply them in parts, those that others refer to first"
		return e
	}
	notes, err := s.d.Planner.Check(ctx, writes, c.force)
	if c.notes != nil {
		*c.notes = notes
	}
	if err == nil && c.verify {
		err = s.d.Planner.VerifyChange(ctx, writes)
	}
	return redactErrors(ctx, err, writes[0].Key)
}

// write writes what changes, and with it what undoes it if that may be needed.
func (s *writer) write(ctx context.Context, c changeSet, all []changed, writes []onpath.Change) (*wire.Pending, error) {
	b := onpath.Batch{Request: c.request, Changes: writes}
	var u *undo
	if c.confirm > 0 {
		for _, n := range all {
			if n.change.Object != nil && n.result.Action != wire.Unchanged {
				store.Stamp(n.prev, n.change.Object, s.d.Clock())
			}
		}
		made := newUndo(rights.WhoIs(ctx), s.d.Clock().Add(c.confirm), all)
		r, err := made.record()
		if err != nil {
			return nil, err
		}
		u, b.Records = &made, append(b.Records, r)
	}
	b.Note = noteOf(c, all, u)
	records, done, err := removeTenants(ctx, s.d.Pool, all)
	if err != nil {
		done(0)
		return nil, err
	}
	b.Records = append(b.Records, records...)
	w, err := s.commit(ctx, b)
	done(w.Revision)
	if err != nil || u == nil {
		return nil, err
	}
	s.pending.put(*u, w.Revision)
	return &u.Pending, nil
}

// removeTenants has the pool close the accounts of tenants that are deleted.
func removeTenants(ctx context.Context, pool Pool, all []changed) (records []onpath.Record, done func(revision int64), err error) {
	done = func(int64) {}
	for _, n := range all {
		t, ok := n.prev.(*onpath.Tenant)
		if !ok || n.change.Object != nil || pool == nil {
			continue
		}
		list, closed, err := pool.RemoveTenant(context.WithoutCancel(ctx), t)
		if err != nil {
			return nil, done, err
		}
		before := done
		records = append(records, list...)
		done = func(revision int64) { before(revision); closed(revision) }
	}
	return records, done, nil
}

// commit writes a batch. If its end is not heard of, it is written again, which its
// Request makes harmless: who asked is to know whether it was written.
func (s *writer) commit(ctx context.Context, b onpath.Batch) (onpath.Written, error) {
	if b.Request == "" {
		b.Request = rand.Text()
	}
	ctx = context.WithoutCancel(ctx) // who gives up now could not know, either
	w, err := s.d.Store.Write(ctx, b)
	if onpath.CodeOf(err) == onpath.CodeUnavailable {
		if w, err = s.d.Store.Write(ctx, b); onpath.CodeOf(err) == onpath.CodeUnavailable {
			s.pending.doubt()
		}
	}
	return w, err
}

// waiting is the newest unconfirmed change that wrote one of the objects which are
// found as they should be: whoever repeats an apply confirms that.
func (s *writer) waiting(ctx context.Context, c changeSet) *wire.Pending {
	if c.confirm == 0 || c.dryRun {
		return nil
	}
	var found *wire.Pending
	for _, u := range s.pending.list() {
		if mayConfirm(rights.WhoIs(ctx), u.Pending) == nil &&
			slices.ContainsFunc(u.Changes, func(o wire.ObjectChange) bool { return c.names(o.Key()) }) {
			found = &u.Pending
		}
	}
	return found
}

// names reports whether c is about an object.
func (c changeSet) names(k onpath.Key) bool {
	return slices.Contains(c.deletes, k) || slices.ContainsFunc(c.puts, func(o onpath.Object) bool { return onpath.KeyOf(o) == k })
}

// noteOf is what a repetition of the request is answered.
func noteOf(set changeSet, all []changed, u *undo) []byte {
	a := wire.Applied{}
	if set.notes != nil {
		a.Notes = *set.notes
	}
	if u != nil {
		a.Confirm = &u.Pending
	}
	for _, c := range all {
		if c.result.Action != wire.Unchanged {
			a.Changes = append(a.Changes, wire.ObjectChange{ObjectRef: c.result.ObjectRef, Action: c.result.Action})
		}
	}
	note, _ := json.Marshal(a)
	return note
}

// repeated is the answer to a request that was carried out before; nil if it was not.
func (s *writer) repeated(ctx context.Context, request string) (*wire.Applied, error) {
	w, err := s.d.Store.Write(ctx, onpath.Batch{Request: request})
	if err != nil || !w.Repeated {
		return nil, err
	}
	a := &wire.Applied{}
	if err := json.Unmarshal(w.Note, a); err != nil {
		return nil, err
	}
	for i := range a.Changes {
		if a.Changes[i].Action != wire.Deleted {
			a.Changes[i].Version = w.Revision
		}
	}
	return a, nil
}

// compare reads what is there now.
func (s *writer) compare(ctx context.Context, c changeSet) ([]changed, error) {
	var all []changed
	for _, o := range c.puts {
		k := onpath.KeyOf(o)
		prev, err := currentOf(ctx, s.d.Store, k)
		if err != nil {
			return nil, err
		}
		n := changed{prev: prev, change: onpath.Change{Key: k, Object: o}, result: wire.ObjectChange{ObjectRef: wire.RefOf(k)}}
		n.result.Action, n.result.Diff = compareObjects(prev, o)
		if prev != nil {
			n.change.Version = prev.Meta().Version
			keepStatus(prev, o)
		} else {
			clearStatus(o)
		}
		if c.version != 0 {
			n.change.Version = c.version
			if prev != nil && prev.Meta().Version != c.version {
				n.result.Action = wire.Updated // the store refuses it in its words
			}
		}
		all = append(all, n)
	}
	for _, k := range c.deletes {
		prev, err := currentOf(ctx, s.d.Store, k)
		if err != nil {
			return nil, err
		}
		n := changed{prev: prev, change: onpath.Change{Key: k, Version: c.version},
			result: wire.ObjectChange{ObjectRef: wire.RefOf(k), Action: wire.Deleted}}
		switch {
		case prev == nil && c.mustExist:
			e := onpath.Errorf(onpath.CodeNotFound, "it does not exist")
			e.Object = k.String()
			e.Remedy = "onpath get " + k.Kind.Plural() + " lists what there is"
			return nil, e
		case prev == nil:
			n.result.Action = wire.Unchanged
		case c.version == 0:
			n.change.Version = prev.Meta().Version
		}
		all = append(all, n)
	}
	return all, nil
}

// currentOf is what is stored under k; nil if nothing.
func currentOf(ctx context.Context, store onpath.Store, k onpath.Key) (onpath.Object, error) {
	o, err := store.Get(ctx, k)
	if onpath.CodeOf(err) == onpath.CodeNotFound {
		return nil, nil
	}
	return o, err
}

func toWrite(all []changed) (writes []onpath.Change) {
	for _, c := range all {
		if c.result.Action != wire.Unchanged {
			writes = append(writes, c.change)
		}
	}
	return writes
}

// keepStatus gives o the status and identity that the server knows; users write
// neither.
func keepStatus(prev, o onpath.Object) {
	m, p := o.Meta(), prev.Meta()
	m.UID, m.Version, m.Generation, m.Created = p.UID, p.Version, p.Generation, p.Created
	if f := statusOf(o); f.IsValid() && o.ObjectKind() != onpath.KindFunction { // inspect wrote it
		f.Set(statusOf(prev))
	}
}

func clearStatus(o onpath.Object) {
	m := o.Meta()
	m.UID, m.Version, m.Generation, m.Created = "", 0, 0, time.Time{}
	if f := statusOf(o); f.IsValid() && o.ObjectKind() != onpath.KindFunction {
		f.SetZero()
	}
}

func statusOf(o onpath.Object) reflect.Value {
	return reflect.ValueOf(o).Elem().FieldByName("Status")
}
