package control_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/store/etcd"
)

// TestDeleteOnFullDisk: with no room for changes a chain can be deleted, and what it
// ran goes.
func TestDeleteOnFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=400m"); err != nil {
		if errors.Is(err, unix.EPERM) {
			t.Skip("mounting a small file system needs root")
		}
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	st, err := etcd.Open(t.Context(), etcd.Options{Dir: filepath.Join(dir, "data")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	s := &site{t: t, store: st, nodes: map[string]*fakeNode{}}
	s.start()
	s.join("gw", "fra1", 1, true)
	s.join("n1", "fra1", 2, false)
	s.apply(function("fw"))
	s.apply(web(1))
	s.until("active", s.active)
	fill(t, dir, 100<<20)
	if _, err := st.Write(t.Context(), onpath.Batch{Changes: s.changes(function("another"))}); onpath.CodeOf(err) != onpath.CodeUnavailable {
		t.Errorf("another function: %v", err)
	}
	s.remove(onpath.Key{Kind: onpath.KindChain, Tenant: "default", Name: "web"})
	s.lead(5 * time.Second)
	s.until("no instance is left", func() bool { return len(s.instances()) == 0 })
	for _, n := range []string{"gw", "n1"} {
		s.until(n+" has nothing", func() bool {
			p := s.plan(n)
			return len(p.Instances)+len(p.Datapath.Groups)+len(p.Datapath.Paths) == 0
		})
	}
}

// fill leaves so many bytes of a file system.
func fill(t *testing.T, dir string, free int64) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	err = unix.ENOSPC
	for range 20 { // etcd prepares its next log segment meanwhile
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			t.Fatal(err)
		}
		if err = unix.Fallocate(int(f.Fd()), 0, 0, int64(st.Bavail)*st.Bsize-free); err != unix.ENOSPC {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err != nil {
		t.Fatal(err)
	}
}
