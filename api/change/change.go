// Package change is the part of the API that changes objects: it examines what a request wants,
// has the planner check it, writes it with what undoes it, and keeps the histories of objects.
// A backup belongs to it, for it is made between two changes.
package change

import (
	"context"
	"log/slog"
	"path/filepath"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/router"
	"github.com/onpath/onpath/api/wire"
	"github.com/onpath/onpath/internal/sealed"
)

// Planner decides whether changes are possible.
type Planner interface {
	// Check refuses changes that contradict each other or what is stored: a
	// reference to nothing, ambiguous chains, an object that others need. Each
	// changed object has passed its own Validate. The error is best an
	// onpath.Errors. With force a node that is away may go whatever it had; the
	// changes must then be nothing but deletions of nodes.
	Check(ctx context.Context, changes []onpath.Change, force bool) (notes []string, err error)
	// Preview says what changes would do, without doing it.
	Preview(ctx context.Context, changes []onpath.Change) (*onpath.Preview, error)
	// VerifyChange proves what would follow from changes; the error says which
	// flow would go astray.
	VerifyChange(ctx context.Context, changes []onpath.Change) error
	// Tell keeps an event about an object.
	Tell(about onpath.Key, reason, message string, warning bool)
}

// Pool decides on reservations.
type Pool interface {
	// Apply admits, changes and cancels reservations, all or none; CodeNoCapacity: declined.
	Apply(ctx context.Context, puts []*onpath.Reservation, cancels []onpath.Key, dryRun bool) ([]onpath.Quote, error)
	// Exists reports whether a reservation is stored.
	Exists(reservation onpath.Key) bool
	// RemoveTenant closes a tenant's account by records that are to be written with its removal;
	// done is told by which revision they were, or 0.
	RemoveTenant(ctx context.Context, t *onpath.Tenant) (records []onpath.Record, done func(revision int64), err error)
}

// Departures ends what deleted nodes and tenants had.
type Departures interface {
	RevokeDeleted(writes []onpath.Change)
	RevokeNode(name string)
}

// Deps are what the part needs of others.
type Deps struct {
	Store      onpath.Store
	Planner    Planner
	Pool       Pool // nil: there are no reservations
	Departures Departures
	// Functions look into functions before they are taken; those of a kind that is
	// not here only nodes look into.
	Functions map[onpath.FunctionKind]onpath.FunctionChecker
	Sealed    *sealed.Box // seals secrets; nil: there are none
	Dir       string      // of the server, for backups
	Version   string
	Log       *slog.Logger
	Clock     onpath.Clock
}

// Changes changes objects.
type Changes struct {
	d        Deps
	examiner *examiner
	writer   *writer
	undoer   *undoer
}

// New reads what waits for its confirmation.
func New(ctx context.Context, d Deps) (*Changes, error) {
	waits, err := openPending(ctx, d.Store, d.Log)
	if err != nil {
		return nil, err
	}
	if left, _ := filepath.Glob(filepath.Join(d.Dir, unconfirmed+"*.json")); len(left) > 0 {
		d.Log.Warn("changes of an older version that were not confirmed are kept: remove their files", "files", left)
	}
	w := &writer{d: d, pending: waits, history: &history{d.Store, d.Log, d.Clock, historyWrite}}
	return &Changes{d: d, examiner: &examiner{d}, writer: w, undoer: &undoer{d, w, waits}}, nil
}

// Register adds the part's routes.
func (s *Changes) Register(rt *router.Router) {
	s.registerApply(rt)
	s.undoer.registerConfirm(rt)
	rt.Stream("/v1/backup", "backup", "All that the server keeps, as a tar file; for operators on its own machine",
		"application/x-tar", (&backups{s.d, s.writer}).backup, router.Boolean("images", "the images that were pushed, too"))
}

// Run undoes what is not confirmed in time, until ctx ends.
func (s *Changes) Run(ctx context.Context) { s.undoer.undoUnconfirmed(ctx) }

// Put writes an object; version is the one that is to be there, 0: whatever is.
func (s *Changes) Put(ctx context.Context, o onpath.Object, version int64) error {
	_, _, err := s.change(ctx, changeSet{puts: []onpath.Object{o}, version: version})
	return err
}

// Remove deletes an object, likewise. With force a node goes, whatever it had.
func (s *Changes) Remove(ctx context.Context, k onpath.Key, version int64, force bool) error {
	_, _, err := s.change(ctx, changeSet{deletes: []onpath.Key{k}, version: version, mustExist: true, force: force})
	return err
}

// Versions are what is kept of an object, which is there now, the oldest first.
func (s *Changes) Versions(ctx context.Context, now onpath.Object) ([]wire.ObjectVersion, error) {
	return s.writer.history.versions(ctx, now)
}
