package wholefile_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/onpath/onpath/internal/wholefile"
)

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for _, data := range []string{"a long first content", "short"} {
		if err := wholefile.Write(path, []byte(data), 0o640); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != data {
			t.Fatalf("%q, %v; written was %q", got, err, data)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("the file's mode: %v, %v", info, err)
	}
	if names, _ := os.ReadDir(dir); len(names) != 1 {
		t.Errorf("left beside it: %v", names)
	}
}

// TestClean: what a killed writer left goes, and nothing else does.
func TestClean(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "plan.json")
	if err := wholefile.Write(path, []byte("whole"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := wholefile.NewDraft(path, []byte("cut short"), 0o600); err != nil {
		t.Fatal(err)
	}
	others := []string{".hidden", "note.new-1", ".plan.json.new-", ".plan.json.new-x"}
	for _, name := range others {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if names, _ := os.ReadDir(dir); len(names) != len(others)+2 {
		t.Fatalf("before: %v", names)
	}
	if err := wholefile.Clean(dir, filepath.Join(dir, "none")); err != nil {
		t.Fatal(err)
	}
	if names, _ := os.ReadDir(dir); len(names) != len(others)+1 {
		t.Errorf("after: %v", names)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "whole" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestWriteFails: where there is no room, what was there stays.
func TestWriteFails(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount a small file system")
	}
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	defer syscall.Unmount(dir, 0)
	path := filepath.Join(dir, "f")
	if err := wholefile.Write(path, []byte("before"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := wholefile.Write(path, make([]byte, 1<<20), 0o600); err == nil {
		t.Error("a megabyte has found room in 64 KiB")
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "before" {
		t.Errorf("%q, %v; what was there is to stay", got, err)
	}
	if names, _ := os.ReadDir(dir); len(names) != 1 {
		t.Errorf("left beside it: %v", names)
	}
}
