package etcd_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/store"
	"github.com/onpath/onpath/store/etcd"
)

// disk is a small file system with a store, and a file that fills it.
type disk struct {
	*testing.T
	dir     string
	ballast *os.File
}

func newDisk(t *testing.T, size string) *disk {
	t.Helper()
	d := &disk{T: t, dir: t.TempDir()}
	if err := unix.Mount("tmpfs", d.dir, "tmpfs", 0, "size="+size); err != nil {
		if errors.Is(err, unix.EPERM) {
			t.Skip("mounting a small file system needs root")
		}
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(d.dir, unix.MNT_DETACH) })
	return d
}

func (d *disk) store() string { return filepath.Join(d.dir, "data") }

func (d *disk) free() int64 {
	d.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(d.dir, &st); err != nil {
		d.Fatal(err)
	}
	return int64(st.Bavail) * st.Bsize
}

// leave fills it but for some bytes.
func (d *disk) leave(free int64) {
	d.Helper()
	d.empty()
	var err error
	if d.ballast, err = os.Create(filepath.Join(d.dir, "ballast")); err != nil {
		d.Fatal(err)
	}
	err = unix.ENOSPC
	for range 20 { // etcd prepares its next log segment meanwhile
		if err = unix.Fallocate(int(d.ballast.Fd()), 0, 0, d.free()-free); err != unix.ENOSPC {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err != nil {
		d.Fatal(err)
	}
}

func (d *disk) empty() {
	d.Helper()
	if d.ballast == nil {
		return
	}
	_ = d.ballast.Close()
	if err := os.Remove(d.ballast.Name()); err != nil {
		d.Fatal(err)
	}
	d.ballast = nil
}

// refused is a write for which there is no room.
func (d *disk) refused(what string, err error) {
	d.Helper()
	if onpath.CodeOf(err) != onpath.CodeUnavailable || !strings.Contains(err.Error(), "is full") || !strings.Contains(err.Error(), "free space") {
		d.Errorf("%s: %v", what, err)
	}
}

func deletionOf(o onpath.Object) []onpath.Change {
	return []onpath.Change{{Key: onpath.KeyOf(o), Version: onpath.AnyVersion}}
}

func TestFullDisk(t *testing.T) {
	d := newDisk(t, "400m")
	s := open(t, etcd.Options{Dir: d.store()})
	write := func(changes []onpath.Change) error { return commit(t.Context(), s, changes) }
	for _, name := range []string{"x", "y", "z"} {
		if err := write(put(chain(name, 1), 0)); err != nil {
			t.Fatal(err)
		}
	}
	d.leave(100 << 20)
	d.refused("a new chain with little room", write(put(chain("w", 1), 0)))
	if err := write(deletionOf(chain("x", 1))); err != nil {
		t.Errorf("a deletion with little room: %v", err)
	}
	if err := commit(store.FollowUp(t.Context()), s, put(chain("v", 1), 0)); err != nil {
		t.Errorf("what follows from it: %v", err)
	}
	if _, err := s.NextIDs(t.Context(), "path", 0, 1); err != nil {
		t.Errorf("numbers for it: %v", err)
	}
	d.leave(10 << 20)
	d.refused("a new chain with no room", write(put(chain("w", 1), 0)))
	d.refused("a deletion with no room", write(deletionOf(chain("y", 1))))
	d.refused("a decision with no room", commit(store.FollowUp(t.Context()), s, put(chain("w", 1), 0)))
	if _, err := s.Get(t.Context(), onpath.KeyOf(chain("y", 0))); err != nil {
		t.Errorf("reading with a full disk: %v", err)
	}
	d.empty()
	if err := write(put(chain("w", 1), 0)); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

// TestSpare: on a disk without any room a deletion, and what follows from it, goes
// through, by the space that was kept for it; so does a start of the server.
func TestSpare(t *testing.T) {
	const size = 96 << 20
	d := newDisk(t, "700m")
	s := open(t, etcd.Options{Dir: d.store(), Spare: size})
	kept := func() bool {
		info, err := os.Stat(filepath.Join(d.store(), "spare"))
		return err == nil && info.Size() == size
	}
	for _, name := range []string{"x", "y"} {
		if err := commit(t.Context(), s, put(chain(name, 1), 0)); err != nil {
			t.Fatal(err)
		}
	}
	if !kept() {
		t.Fatal("no space is kept")
	}
	d.leave(0)
	d.refused("a new chain", commit(t.Context(), s, put(chain("w", 1), 0)))
	d.refused("a decision before", commit(store.FollowUp(t.Context()), s, put(chain("w", 1), 0)))
	if err := commit(t.Context(), s, deletionOf(chain("x", 1))); err != nil {
		t.Errorf("a deletion: %v", err)
	}
	if err := commit(store.FollowUp(t.Context()), s, put(chain("v", 1), 0)); err != nil {
		t.Errorf("what follows from it: %v", err)
	}
	d.refused("a new chain after", commit(t.Context(), s, put(chain("w", 1), 0)))
	d.empty()
	if err := commit(t.Context(), s, put(chain("w", 1), 0)); err != nil || !kept() {
		t.Errorf("with room again: %v, spare %v", err, kept())
	}
	d.leave(0)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, etcd.Options{Dir: d.store(), Spare: size})
	if err := commit(t.Context(), s, deletionOf(chain("y", 1))); err != nil {
		t.Errorf("a deletion after a restart: %v", err)
	}
}
