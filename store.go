package onpath

import "context"

// Store keeps resources, and records beside them. storetest is its exam.
type Store interface {
	// Get reads one object; CodeNotFound.
	Get(ctx context.Context, k Key) (Object, error)
	// List reads all objects of a kind, of one tenant or ("") of all, ordered
	// by tenant and name, and the store revision they are of.
	List(ctx context.Context, k Kind, tenant string) ([]Object, int64, error)
	// ListPage reads at most limit (1 to MaxList) of them, in order of TENANT/NAME as one
	// text, behind after; next is behind what to go on, "" after the last page. What is
	// written between two pages may be in the later one or not.
	ListPage(ctx context.Context, k Kind, tenant, after string, limit int) (list []Object, next string, err error)
	// Records reads records in order of their path, a page at a time.
	Records(ctx context.Context, r RecordRange) (RecordPage, error)
	// Write writes all of a batch or nothing. CodeConflict: a change, guard or
	// record names a Version that is not there (any more); Error.Object says which.
	// Written objects get their new Version in place. After CodeUnavailable the
	// batch may be written or not: with a Request, writing it again finds out.
	Write(ctx context.Context, b Batch) (Written, error)
	// Watch sends every change of the objects that covers names (nil: all) after revision
	// from (0: from now), in order, until ctx ends or the watcher is too slow, which
	// closes the channel. A revision that was compacted away gives CodeConflict: list
	// again. Records are not watched.
	Watch(ctx context.Context, from int64, covers func(Key) bool) (<-chan StoreEvent, error)
	// NextIDs reserves n consecutive numbers of the named sequence ("vport",
	// "path", "address") that no one got before and that are greater than above,
	// and returns the first; the least is 1.
	NextIDs(ctx context.Context, sequence string, above uint64, n int) (uint64, error)
	Close() error
}

// MaxList is the largest number of objects in a page.
const MaxList = 5000

// AnyVersion in a Version skips the check.
const AnyVersion int64 = -1

// MaxWrite is the largest number of changes in one Store.Write, and of guards and
// records together. An etcd cluster of the operator's own takes that many only if
// it was told to (--max-txn-ops); SureWrite is the number of changes, guards and
// records together that every one takes, for what may be written in parts.
const (
	MaxWrite  = 2000
	SureWrite = 120
)

// Batch is what one Store.Write writes, all or nothing.
type Batch struct {
	// Request is an id that the writer chose for this batch and uses for no other
	// one, at most MaxRequestID characters; "": none. A batch whose Request is
	// written already is not written again, whatever its versions are by now.
	// The store remembers a Request for an hour at least. A batch that has nothing
	// to write only finds out whether its Request was written.
	Request string
	// Note is kept with Request, for whoever repeats it; at most MaxNote bytes.
	Note []byte
	// Changes of objects, each Key once.
	Changes []Change
	// Guards are what must be as it was read, beside what is changed.
	Guards []Guard
	// Records to write, each Path once.
	Records []Record
}

// Change is one write: put Object, or delete Key where Object is nil. Version is
// the one read; 0: must not exist yet; AnyVersion: whatever is there. An object
// that is new keeps the UID that it has, if any.
type Change struct {
	Key     Key
	Object  Object
	Version int64
}

// Guard is an object, or (with Path) a record, on which a batch depends without
// writing it. A batch that both depends on a key and must keep other batches from
// depending on what it read writes a Record there, with the Version read: of two
// such batches, from however many servers, one gets CodeConflict.
type Guard struct {
	Key     Key
	Path    string
	Version int64 // as read; 0: must not exist
}

// Record is a value of its writer's own in the store, under a path like
// "posting/acme/2026-11/000017". Nobody but the writers of a path's first part
// reads or writes there.
type Record struct {
	Path  string
	Value []byte // at most MaxRecord bytes; may be empty
	// Version is the revision of its last write. In a Batch it is the one read; 0:
	// must not exist yet; AnyVersion: whatever is there.
	Version int64
	// Delete the record instead; one that is not there is none to delete.
	Delete bool
}

// Bounds of a batch, in bytes. A store may take less in all (etcd: 10 MiB), which
// is CodeInvalid.
const (
	MaxRecord    = 8 << 20
	MaxPath      = 512
	MaxRequestID = 64
	MaxNote      = 1 << 20
)

// Written is what became of a batch.
type Written struct {
	// Revision of the write, which is the Version of all that it wrote.
	Revision int64
	// Repeated: the batch's Request was written before, with Note, at Revision.
	Repeated bool
	Note     []byte
}

// RecordRange are the records with From <= Path < To; To "" is no bound.
type RecordRange struct {
	From, To string
	// Limit is the largest number of records in a page; 0 and more than 5,000
	// mean 5,000.
	Limit int
	// Revision to read as of, so that pages fit together; 0: the newest. One that
	// was compacted away gives CodeConflict.
	Revision int64
}

// RecordsUnder is the range of all paths that begin with prefix.
func RecordsUnder(prefix string) RecordRange {
	end := []byte(prefix)
	for len(end) > 0 && end[len(end)-1] == 0xff {
		end = end[:len(end)-1]
	}
	if len(end) > 0 {
		end[len(end)-1]++
	}
	return RecordRange{From: prefix, To: string(end)}
}

// RecordPage is one page of a range.
type RecordPage struct {
	Records  []Record
	Revision int64
	// Next is where the next page begins (RecordRange.From); "": this was the last.
	Next string
}

// StoreUse is what a store holds, in bytes.
type StoreUse struct {
	InUse int64 `json:"inUse"` // old versions included
	File  int64 `json:"file"`  // its file, of which some may be unused
	Quota int64 `json:"quota"` // 0: nobody here knows
	// Refuses: changes of users are refused until there is room again.
	Refuses bool `json:"refuses,omitempty"`
	// Waiting are changes that watchers have not taken yet.
	Waiting int64 `json:"waiting"`
}

// StoreEvent is one change seen by a watcher. Without a Key it says that all changes up to
// Revision that concern the watcher were sent.
type StoreEvent struct {
	Revision int64
	Key      Key
	Object   Object // nil: deleted
	Err      error  // why the watch ends with this event, which tells no change
}

// SetVersions gives all objects of the batch the version that they were written as.
func (b *Batch) SetVersions(revision int64) {
	for _, c := range b.Changes {
		if c.Object != nil {
			c.Object.Meta().Version = revision
		}
	}
}
