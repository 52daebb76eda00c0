package wasm

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// TestBlobsShareTheDisk: the blobs of all instances together never have more than the disk, and
// a file that is opened again has what it had.
func TestBlobsShareTheDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount")
	}
	const room = 8 << 20
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, fmt.Sprintf("size=%d", room)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	var all, last onpath.Size
	for i := range 12 {
		f, err := os.Create(filepath.Join(disk, fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if last, err = reserve(f, 1<<30); err != nil {
			t.Fatal(err)
		}
		all += last
		if again, err := reserve(f, last); err != nil || again != last {
			t.Errorf("file %d has %d bytes, and then %d: %v", i, last, again, err)
		}
	}
	if all > room {
		t.Errorf("all may have %d bytes of %d", all, room)
	}
}

// TestNothingToSupply: an instance whose modules need no connections costs nothing while it runs.
func TestNothingToSupply(t *testing.T) {
	p := (&Driver{}).newProcess(record{Spec: onpath.FunctionSpec{Wasm: &onpath.WasmSpec{}}}, nil)
	if p.supplyOnce(t.Context()) != nil {
		t.Error("its modules are read again and again")
	}
}
