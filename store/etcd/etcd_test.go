package etcd_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/store/etcd"
	"github.com/onpath/onpath/store/storetest"
)

func open(t *testing.T, o etcd.Options) *etcd.Store {
	t.Helper()
	s, err := etcd.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func chain(name string, priority int) *onpath.Chain {
	o, _ := onpath.New(onpath.KindChain)
	c := o.(*onpath.Chain)
	c.Metadata.Tenant, c.Metadata.Name, c.Spec.Priority = "a", name, priority
	return c
}

func put(o onpath.Object, version int64) []onpath.Change {
	return []onpath.Change{{Key: onpath.KeyOf(o), Object: o, Version: version}}
}

func TestEmbedded(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		s := open(t, etcd.Options{Dir: t.TempDir(), Buffer: 16, Patience: 200 * time.Millisecond})
		return storetest.Harness{Store: s, Compact: s.Compact, Slow: 50}
	})
}

func TestSecondServerIsRefused(t *testing.T) {
	dir := t.TempDir()
	s := open(t, etcd.Options{Dir: dir})
	_, err := etcd.Open(t.Context(), etcd.Options{Dir: dir})
	if onpath.CodeOf(err) != onpath.CodeExists || !strings.Contains(err.Error(), dir) {
		t.Fatalf("got %v", err)
	}
	if err := commit(t.Context(), s, put(chain("x", 1), 0)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again := open(t, etcd.Options{Dir: dir})
	if o, err := again.Get(t.Context(), onpath.KeyOf(chain("x", 0))); err != nil || o.Meta().Generation != 1 {
		t.Errorf("after reopening: %+v, %v", o, err)
	}
}

func TestNothingListens(t *testing.T) {
	before := listeners(t)
	open(t, etcd.Options{Dir: t.TempDir()})
	if after := listeners(t); after != before {
		t.Errorf("%d sockets listen, %d before", after, before)
	}
}

// listeners counts this process's listening sockets.
func listeners(t *testing.T) int {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, fd := range fds {
		target, _ := os.Readlink(filepath.Join("/proc/self/fd", fd.Name()))
		if !strings.HasPrefix(target, "socket:") {
			continue
		}
		var number int
		for _, c := range fd.Name() {
			number = number*10 + int(c-'0')
		}
		if on, err := unix.GetsockoptInt(number, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err == nil && on == 1 {
			n++
		}
	}
	return n
}

func TestNoCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a time-out of 5 s")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := etcd.Open(ctx, etcd.Options{Endpoints: []string{"http://127.0.0.1:1"}})
	if onpath.CodeOf(err) != onpath.CodeUnavailable || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("got %v", err)
	}
}

// commit writes changes of objects.
func commit(ctx context.Context, s *etcd.Store, changes []onpath.Change) error {
	_, err := s.Write(ctx, onpath.Batch{Changes: changes})
	return err
}
