package etcd

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/storage/mvcc"

	"github.com/onpath/onpath"
)

// What an embedded store may hold, old versions included. Only what is needed to make
// room has no mark, so that no size of the store is without a way back.
const (
	quota = 4 << 30 // bytes of the database that hold something
	// usersPart is the part of the quota, in percent, from which on users' changes are
	// refused, systemPart that for what onpath itself decides. Deletions always go on.
	usersPart, systemPart = 70, 90
	// historyPart of the quota is what old versions may hold: beyond it the older half of
	// these bytes is compacted.
	historyPart = 16
	// A file is rewritten where more than wastePart of the quota lies in it unused and at
	// most copyPart of the quota has to be copied: requests wait for that long.
	wastePart, copyPart = 4, 8
	// betweenCompactions is the least wait between two, each of which reads all keys.
	betweenCompactions = time.Second
)

// bytesAt says how many bytes had been written or deleted at a revision since the store was opened.
type bytesAt struct{ revision, bytes int64 }

// room keeps an embedded store below its quota.
type room struct {
	quota int64
	asked chan chan struct{} // writers that wait until old versions are gone
	grown chan struct{}      // more was written and deleted than old versions may hold
	ended chan struct{}      // nobody makes room any more

	mu      sync.Mutex
	written []bytesAt // the first is what was compacted last
	// told is what etcd told last that it holds: it tells at each commit, ten times a second.
	// untold is how many bytes had been written then, and how many were deleted up to now.
	told, untold int64
}

func newRoom(quota int64) *room {
	return &room{quota: quota, written: []bytesAt{{}},
		asked: make(chan chan struct{}), grown: make(chan struct{}, 1), ended: make(chan struct{})}
}

// wrote counts a transaction, and what it deleted: both are, or become, old versions.
func (e *embedded) wrote(ctx context.Context, revision int64, t *transaction) {
	var written, deleted int64
	for _, w := range t.writes {
		written += int64(len(w.KeyBytes()) + len(w.ValueBytes()))
		if w.IsDelete() {
			deleted += e.size(ctx, w.KeyBytes(), revision-1)
		}
	}
	e.room.wrote(revision, written, deleted)
}

// size is how many bytes a key and its value had at a revision. The value does not leave the
// process: a transaction may delete gigabytes.
func (e *embedded) size(ctx context.Context, key []byte, revision int64) (n int64) {
	r, err := e.etcd.Server.KV().Range(ctx, key, nil, mvcc.RangeOptions{Rev: revision})
	if err != nil { // compacted meanwhile
		return 0
	}
	for i := range r.KVs {
		n += int64(len(r.KVs[i].Key) + len(r.KVs[i].Value))
	}
	return n
}

// wrote counts the bytes of a transaction.
func (r *room) wrote(revision, written, deleted int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first, last := r.written[0], r.written[len(r.written)-1]
	now := bytesAt{revision, last.bytes + written + deleted}
	r.untold += deleted // etcd tells of these bytes until they are compacted
	if n := len(r.written); n > 1 && now.bytes-r.written[n-2].bytes < r.history()/64 {
		r.written[n-1] = now
	} else {
		r.written = append(r.written, now)
	}
	if now.bytes-first.bytes > r.history() {
		select {
		case r.grown <- struct{}{}:
		default:
		}
	}
}

// inUse is what the store holds, given what etcd tells.
func (r *room) inUse(told int64) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	total := r.written[len(r.written)-1].bytes
	if told != r.told {
		r.told, r.untold = told, total
	}
	return told + total - r.untold
}

// history is how many bytes of old versions there may be.
func (r *room) history() int64 { return r.quota / historyPart }

// older is the oldest revision that has at most half of history's bytes behind it: the newest
// one of all, after a deletion of more than that.
func (r *room) older() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	end := r.written[len(r.written)-1].bytes - r.history()/2
	i := slices.IndexFunc(r.written, func(w bytesAt) bool { return w.bytes >= end })
	return r.written[i].revision
}

// compacted forgets what lies before a revision.
func (r *room) compacted(revision int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for n < len(r.written)-1 && r.written[n+1].revision <= revision {
		n++
	}
	r.written = append([]bytesAt(nil), r.written[n:]...)
}

// Use is how much of its quota the store holds, and what waits for watchers.
func (s *Store) Use() onpath.StoreUse {
	u := onpath.StoreUse{Waiting: s.waiting.Load()}
	if s.embedded == nil {
		if m := s.members.Load(); m != nil {
			u.InUse, u.File, u.Quota = m.InUse, m.File, m.Quota
		}
		return u
	}
	u.InUse, u.File, u.Quota = s.embedded.inUse(), s.embedded.etcd.Server.Backend().Size(), s.embedded.room.quota
	u.Refuses = u.InUse >= u.Quota/100*usersPart
	return u
}

func (e *embedded) inUse() int64 { return e.room.inUse(e.etcd.Server.Backend().SizeInUse()) }

// checkQuota refuses writes of a store that is nearly full, if old versions are not what fills it.
func (s *Store) checkQuota(ctx context.Context, p purpose) error {
	e := s.embedded
	if e == nil || p == deletion {
		return nil
	}
	part, what := int64(usersPart), "changes of users"
	if p == followUp {
		part, what = systemPart, "decisions"
	}
	mark := e.room.quota / 100 * part
	full := func() bool { return e.inUse() >= mark }
	if full() {
		waiting, cancel := context.WithTimeout(ctx, requestTimeout) // not a request, which rewriting waits for
		e.makeRoom(waiting)
		cancel()
	}
	if !full() {
		return nil
	}
	f := onpath.Errorf(onpath.CodeNoCapacity, "the store is nearly full: it holds %d MiB of its quota of %d MiB, and %s end at %d MiB",
		e.inUse()>>20, e.room.quota>>20, what, mark>>20)
	f.Remedy = "delete what is not needed: deletions go on, and changes go on as soon as there is room; " +
		"running nodes and traffic go on meanwhile"
	return f
}

// makeRoom waits, for a time, until old versions are gone.
func (e *embedded) makeRoom(ctx context.Context) {
	done := make(chan struct{})
	select {
	case e.room.asked <- done:
	case <-ctx.Done():
		return
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// keepRoom compacts and rewrites the store's file as needed, until ctx ends.
func (e *embedded) keepRoom(ctx context.Context) {
	defer close(e.room.ended)
	var last int64 // revision at the last compaction of all
	var owed int64 // revision of a compaction that failed
	var at time.Time
	var again <-chan time.Time
	tries := 0
	for {
		var done chan struct{}
		var err error
		revision := owed
		select {
		case <-ctx.Done():
			return
		case <-again:
			err = e.commitFree(ctx)
		case <-e.room.grown:
			revision, tries = e.room.older(), triesOfRewriting
		case done = <-e.room.asked:
			tries = triesOfRewriting
			revision, err = e.revision(ctx)
		}
		if err == nil && revision > last {
			e.pause(ctx, betweenCompactions-time.Since(at))
			var now int64
			if now, err = e.compact(ctx, revision); done != nil && err == nil {
				last = now
			}
			at = time.Now()
			if owed = 0; err != nil {
				owed = revision
			}
		}
		if done != nil {
			close(done)
		}
		rewritten := false
		if err == nil {
			rewritten, err = e.defragment()
		}
		if again = nil; !rewritten && tries > 0 { // who reads old versions keeps their pages for a moment
			again, tries = time.After(time.Second), tries-1
		}
		if err != nil && ctx.Err() == nil {
			e.log.Warn("no room is made in the store; it is tried again", "err", err)
		}
	}
}

// triesOfRewriting is how often it is looked, after a compaction, whether the file may be
// rewritten.
const triesOfRewriting = 10

// spaceKey is written after a compaction: etcd tells what is free only at the next write.
const spaceKey = "/onpath-space"

func (e *embedded) revision(ctx context.Context) (int64, error) {
	r, err := e.client.Get(ctx, spaceKey)
	if err != nil {
		return 0, err
	}
	return r.Header.Revision, nil
}

func (e *embedded) pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// compact removes old versions before a revision, and returns the store's revision then.
func (e *embedded) compact(ctx context.Context, revision int64) (int64, error) {
	_, err := e.client.Compact(ctx, revision, clientv3.WithCompactPhysical())
	if err != nil && !errors.Is(err, rpctypes.ErrCompacted) && rpctypes.ErrorDesc(err) != rpctypes.ErrorDesc(rpctypes.ErrGRPCCompacted) {
		return 0, err
	}
	e.etcd.Server.Backend().ForceCommit()
	r, err := e.client.Put(ctx, spaceKey, "")
	if err != nil {
		return 0, err
	}
	e.etcd.Server.Backend().ForceCommit()
	e.room.compacted(revision)
	return r.Header.Revision, nil
}

// commitFree has etcd tell what is free.
func (e *embedded) commitFree(ctx context.Context) error {
	_, err := e.client.Put(ctx, spaceKey, "")
	e.etcd.Server.Backend().ForceCommit()
	return err
}

// defragment gives the disk back what the file holds no more, if that is much and soon done.
func (e *embedded) defragment() (done bool, err error) {
	be, q := e.etcd.Server.Backend(), e.room.quota
	use := be.SizeInUse()
	free, err := e.free()
	if err != nil || be.Size()-use < q/wastePart || use > q/copyPart || free < use+e.reserve {
		return false, err
	}
	e.filesMu.Lock() // the file is replaced by another of its name
	defer e.filesMu.Unlock()
	if err := e.rewriting.do(e.etcd.Server.Defragment, requestTimeout); err != nil {
		return false, err
	}
	e.files, err = openedIn(e.dir)
	return true, err
}

// disarm ends the alarm that a version of onpath with a quota of etcd's own may have left:
// etcd refuses every transaction that puts something while it is raised.
func (e *embedded) disarm(ctx context.Context) error {
	srv := e.etcd.Server
	for _, a := range srv.Alarms() {
		if a.Alarm != pb.AlarmType_NOSPACE {
			continue
		}
		off := &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, MemberID: a.MemberID, Alarm: a.Alarm}
		if _, err := srv.Alarm(ctx, off); err != nil {
			return err
		}
		e.log.Info("the alarm that the store has no space is off: onpath keeps the quota by itself")
	}
	return nil
}
