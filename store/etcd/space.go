package etcd

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/store"
)

// What must be free on the disk for a write, in bytes. etcd does not survive one to
// its log that fails, so writes are refused before.
const (
	// reserveAll is for any: the next log segment of 64 MiB, and the growth of the
	// database.
	reserveAll = 160 << 20
	// reserveFollowUp is for what lets a full disk be left: deletions, and what
	// onpath decides by what is stored. The segment, and some growth.
	reserveFollowUp = 80 << 20
	// spareSize is what is kept in a file that goes when a deletion needs its space.
	spareSize = 96 << 20
)

// spare is a file that holds space for deletions.
type spare struct {
	path string
	size int64 // 0: none is kept

	mu sync.Mutex
}

// newSpare keeps none in memory, where it would take what it is to save.
func newSpare(dir string, size int64) *spare {
	var st unix.Statfs_t
	if size == 0 && unix.Statfs(dir, &st) == nil && st.Type != unix.TMPFS_MAGIC {
		size = spareSize
	}
	return &spare{path: filepath.Join(dir, "spare"), size: size}
}

// keep makes the file where more than enough is free; a file system that cannot
// promise space has none.
func (s *spare) keep(free, reserve int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.size == 0 || free < reserve+2*s.size {
		return
	}
	if info, err := os.Stat(s.path); err == nil && info.Size() == s.size {
		return
	}
	f, err := os.OpenFile(s.path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, s.size); err != nil {
		_ = os.Remove(s.path)
		if errors.Is(err, unix.EOPNOTSUPP) {
			s.size = 0
		}
	}
}

// give frees what the file holds, and says whether there was any.
func (s *spare) give() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := os.Remove(s.path)
	return err == nil || !errors.Is(err, fs.ErrNotExist) && os.Truncate(s.path, 0) == nil
}

// purpose is what a write is for: how much must be free for it.
type purpose int

const (
	anyWrite purpose = iota
	followUp         // what onpath decides
	deletion         // what frees space in the end
)

// checkSpace refuses writes before the disk is full, and to files that nobody finds again.
func (e *embedded) checkSpace(p purpose) error {
	if err := e.broken(); err != nil {
		return err
	}
	if err := e.stillThere(); err != nil {
		return err
	}
	free, err := e.free()
	if err != nil {
		return nil // it says so itself when it writes
	}
	if e.up.Load() { // else etcd is about to take what it needs
		e.spare.keep(free, e.reserve)
	}
	need, what := e.reserve, "changes"
	if p != anyWrite {
		need, what = min(need, reserveFollowUp), "deletions"
	}
	if free < need && p == deletion && e.spare.give() {
		free, _ = e.free()
	}
	if free >= need {
		return nil
	}
	f := onpath.Errorf(onpath.CodeUnavailable, "the disk of %s is full: %d MiB are free, %s need %d MiB", e.dir, free>>20, what, need>>20)
	f.Remedy = "free space there"
	if p == anyWrite {
		f.Remedy += ", or delete what fills it: that needs less"
	}
	f.Remedy += "; running nodes and traffic go on meanwhile"
	return f
}

// free is how much of the disk is, in bytes.
func (e *embedded) free() (int64, error) {
	var st unix.Statfs_t
	err := unix.Statfs(e.dir, &st)
	return int64(st.Bavail) * st.Bsize, err
}

func (s *Store) checkSpace(ctx context.Context, p purpose) error {
	if s.embedded == nil {
		return nil
	}
	if err := s.embedded.checkSpace(p); err != nil {
		return err
	}
	return s.checkQuota(ctx, p)
}

// purposeOf tells what a batch is for.
func purposeOf(ctx context.Context, b onpath.Batch) purpose {
	p := deletion
	if store.IsMakesRoom(ctx) {
		return p
	}
	if slices.ContainsFunc(b.Changes, func(c onpath.Change) bool { return c.Object != nil }) ||
		slices.ContainsFunc(b.Records, func(r onpath.Record) bool {
			return !r.Delete && !strings.HasPrefix(r.Path, store.LogPath) // a deletion is logged, too
		}) {
		p = anyWrite
	}
	if p == anyWrite && store.IsFollowUp(ctx) {
		return followUp
	}
	return p
}
