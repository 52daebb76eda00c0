package ebpf_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/datapath/ebpf"
)

// TestHold: one holder of what is pinned, which leaves no empty folder, and none
// of a folder that is there no more.
func TestHold(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for the BPF file system")
	}
	o := ebpf.Options{Name: fmt.Sprintf("hold-%d", os.Getpid())}
	dir := filepath.Join(ebpf.DefaultPinPath, o.Name)
	for range 2 {
		release, err := ebpf.Hold(o)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ebpf.Hold(o); onpath.CodeOf(err) != onpath.CodeConflict {
			t.Errorf("while it is held: %v", err)
		}
		if ebpf.Installed(o) {
			t.Error("an empty folder is taken for a data path")
		}
		release()
		if _, err := os.Stat(dir); err == nil {
			t.Error("an empty folder is left")
		}
	}
	release, err := ebpf.Hold(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(dir); err != nil { // as whoever takes the node off does
		t.Fatal(err)
	}
	next, err := ebpf.Hold(o)
	if err != nil {
		t.Fatal(err)
	}
	defer next()
	release()
	if _, err := ebpf.Hold(o); onpath.CodeOf(err) != onpath.CodeConflict {
		t.Errorf("while the next one holds it: %v", err)
	}
}
