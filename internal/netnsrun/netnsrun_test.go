package netnsrun_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/onpath/onpath/internal/netnsrun"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to create network namespaces")
	}
}

func TestCreateDoRemove(t *testing.T) {
	needRoot(t)
	path := filepath.Join(t.TempDir(), "ns", "one")
	if netnsrun.Is(path) {
		t.Fatal("a path that does not exist is no namespace")
	}
	if err := netnsrun.Create(path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netnsrun.Remove(path) })
	if !netnsrun.Is(path) {
		t.Fatal("created, but not mounted")
	}
	if err := netnsrun.Create(path); !errors.Is(err, fs.ErrExist) {
		t.Fatalf("second Create: got %v, want fs.ErrExist", err)
	}

	var inside []net.Interface
	err := netnsrun.Do(path, func() (err error) {
		inside, err = net.Interfaces()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(inside) != 1 || inside[0].Name != "lo" || inside[0].Flags&net.FlagUp != 0 {
		t.Fatalf("a new namespace has lo, down; this one has %+v", inside)
	}

	held, err := netnsrun.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := netnsrun.Remove(path); err != nil {
		t.Fatal(err)
	}
	before, _ := net.Interfaces()
	if err := held.Do(func() (err error) {
		inside, err = net.Interfaces()
		return err
	}); err != nil || len(inside) != 1 || inside[0].Name != "lo" {
		t.Errorf("held open, the namespace that was removed has %+v, %v", inside, err)
	}
	if after, _ := net.Interfaces(); len(after) != len(before) {
		t.Errorf("%d devices before, %d after", len(before), len(after))
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the mount point is left: %v", err)
	}
	if err := netnsrun.Remove(path); err != nil {
		t.Fatalf("Remove twice: %v", err)
	}
}

// A reboot leaves the file without the mount.
func TestCreateOverLeftoverFile(t *testing.T) {
	needRoot(t)
	path := filepath.Join(t.TempDir(), "one")
	if err := os.WriteFile(path, nil, 0o444); err != nil {
		t.Fatal(err)
	}
	if err := netnsrun.Create(path); err != nil {
		t.Fatal(err)
	}
	if err := netnsrun.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func TestDoComesBack(t *testing.T) {
	needRoot(t)
	path := filepath.Join(t.TempDir(), "one")
	if err := netnsrun.Create(path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netnsrun.Remove(path) })
	home, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		failed := errors.New("from inside")
		if err := netnsrun.Do(path, func() error { return failed }); !errors.Is(err, failed) {
			t.Fatalf("got %v, want fn's error", err)
		}
	}
	tasks, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		if ns, err := os.Readlink(task); err == nil && ns != home {
			t.Errorf("thread %s stayed in %s", task, ns)
		}
	}
}

// TestStart: what was started to end with its starter outlives the threads that Go ends.
func TestStart(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	ended, err := netnsrun.Start("", cmd)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	hold := make(chan struct{})
	for range 100 { // takes every thread that is idle, and ends it
		wg.Go(func() {
			runtime.LockOSThread()
			<-hold
		})
	}
	time.Sleep(50 * time.Millisecond)
	close(hold)
	wg.Wait()
	select {
	case <-ended:
		t.Fatalf("it has ended: %s", cmd.ProcessState)
	case <-time.After(200 * time.Millisecond):
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-ended
	if _, err := netnsrun.Start("", exec.Command("/nowhere")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what is not there: got %v, want fs.ErrNotExist", err)
	}
	if _, err := netnsrun.Start("/nowhere", exec.Command("sleep", "60")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in no namespace: got %v, want fs.ErrNotExist", err)
	}
}
