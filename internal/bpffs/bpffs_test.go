package bpffs

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNeed: of many that need it at once one mounts it.
func TestNeed(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount")
	}
	at := t.TempDir()
	t.Cleanup(func() {
		for unix.Unmount(at, 0) == nil {
		}
	})
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for range 8 * runtime.NumCPU() {
		wg.Go(func() {
			<-begin
			if err := Need(filepath.Join(at, "onpath")); err != nil {
				t.Error(err)
			}
		})
	}
	close(begin)
	wg.Wait()
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(table), " "+at+" "); n != 1 {
		t.Errorf("it is mounted %d times", n)
	}
	if err := Need("/no/such/folder"); err == nil || !strings.Contains(err.Error(), "/no/such") {
		t.Errorf("where there is no folder: %v", err)
	}
}
