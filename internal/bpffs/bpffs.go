// Package bpffs has the BPF file system mounted where things are pinned.
package bpffs

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const magic = 0xcafe4a11

// Need mounts the BPF file system at the folder that root lies in, if it is not mounted
// there: a new mount namespace often lacks it. Of several processes that find it
// missing one does so; a second mount would hide what the first one has pinned.
func Need(root string) error {
	at := filepath.Dir(root)
	if is, err := mounted(at); is || err != nil {
		return err
	}
	f, err := os.Open(at)
	if err != nil {
		return fmt.Errorf("find the BPF file system at %s: %w", at, err)
	}
	defer f.Close() // and lets go of the lock
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", at, err)
	}
	if is, err := mounted(at); is || err != nil {
		return err
	}
	if err := unix.Mount("bpf", at, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return fmt.Errorf("mount the BPF file system at %s: %w", at, err)
	}
	return nil
}

func mounted(at string) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil {
		return false, fmt.Errorf("find the BPF file system at %s: %w", at, err)
	}
	return st.Type == magic, nil
}
