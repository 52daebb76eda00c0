package userns_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/internal/userns"
)

// TestCreateNet: a network namespace belongs to users of its own, and files can be written
// as theirs.
func TestCreateNet(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to create namespaces")
	}
	dir, err := os.MkdirTemp("/tmp", "userns-")
	if err == nil {
		err = os.Chmod(dir, 0o777)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path, first := filepath.Join(dir, "net"), userns.First(7)
	if err := userns.CreateNet(path, first); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := netnsrun.Remove(path); err != nil {
			t.Error(err)
		}
	}()
	if err := userns.CreateNet(path, first); err == nil {
		t.Error("it was made twice")
	}
	f, got, err := userns.Owner(path)
	if err != nil || f == nil || got != first {
		t.Fatalf("it belongs to %d: %v", got, err)
	}
	f.Close()
	if err := netnsrun.Do(path, func() error {
		out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	}); err != nil {
		t.Errorf("the machine's root cannot change it: %v", err)
	}
	if f, _, err := userns.Owner("/proc/self/ns/net"); f != nil || err != nil {
		t.Errorf("the machine's own belongs to others: %v", err)
	}
	file := filepath.Join(dir, "file")
	if err := userns.Write(first, func() error { return os.WriteFile(file, nil, 0o600) }); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(file)
	if err != nil || info.Sys().(*syscall.Stat_t).Uid != first || info.Sys().(*syscall.Stat_t).Gid != first {
		t.Errorf("the file is of %+v, %v", info, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "ours"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(dir, "ours")); err != nil || info.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("what is written later is of %+v, %v", info, err)
	}
	if err := userns.Possible(dir); err != nil {
		t.Logf("containers cannot have users of their own here: %v", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := userns.Possible(dir); err == nil || !strings.Contains(err.Error(), "passes through "+dir) {
		t.Errorf("where nobody else passes: %v", err)
	}
}

func TestFirst(t *testing.T) {
	seen := map[uint32]bool{}
	for n := range uint32(0x3000) {
		f := userns.First(n)
		if seen[f] || f < 1<<30 || int64(f)+userns.Size > 1<<31 {
			t.Fatalf("number %d begins at %d", n, f)
		}
		seen[f] = true
	}
}
