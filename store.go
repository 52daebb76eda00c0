package onpath

import "context"

// Store keeps resources. storetest is its exam.
type Store interface {
	// Get reads one object; CodeNotFound.
	Get(ctx context.Context, k Key) (Object, error)
	// List reads all objects of a kind, of one tenant or ("") of all, ordered
	// by tenant and name, and the store revision they are of.
	List(ctx context.Context, k Kind, tenant string) ([]Object, int64, error)
	// Write makes all changes or none. Each must name the Version read (0:
	// must not exist yet; AnyVersion: whatever is there), else CodeConflict.
	// Written objects get their new Version in place. At most MaxWrite.
	Write(ctx context.Context, changes []Change) error
	// Watch sends every change after revision from (0: from now), in order,
	// until ctx ends or w is too slow, which closes the channel. A revision
	// that was compacted away gives CodeConflict: list again.
	Watch(ctx context.Context, from int64) (<-chan StoreEvent, error)
	// NextIDs reserves n consecutive numbers of the named sequence ("vport",
	// "path", "address") that no one got before, and returns the first; it
	// starts at 1.
	NextIDs(ctx context.Context, sequence string, n int) (uint64, error)
	Close() error
}

// AnyVersion in Change.Version skips the check.
const AnyVersion int64 = -1

// MaxWrite is the largest number of changes in one Store.Write. An etcd cluster
// of the operator's own takes that many only if it was told to (--max-txn-ops);
// SureWrite is what every one takes, for changes that may be written in parts.
const (
	MaxWrite  = 2000
	SureWrite = 120
)

// Change is one write: put Object, or delete Key where Object is nil.
type Change struct {
	Key     Key
	Object  Object
	Version int64
}

// StoreEvent is one change seen by a watcher.
type StoreEvent struct {
	Revision int64
	Key      Key
	Object   Object // nil: deleted
}
