// Package userns makes network namespaces that belong to a user namespace of their own:
// root of a container that joins both is nobody outside, and root of its own network alone.
package userns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/sys"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath/internal/netnsrun"
)

// Size is how many users, and groups, a namespace has.
const Size = 1 << 16

// The ids of this machine that stand for users of namespaces: above those that
// distributions give to people and services, below those that programs take for negative.
const (
	lowest = 0x4000_0000
	ranges = 0x3000
)

// First is the machine's id of root in the namespace with that number. Numbers next to each
// other share no id.
func First(number uint32) uint32 { return lowest + number%ranges*Size }

// Mapping is how containerd writes the ids of a namespace.
func Mapping(first uint32) string { return fmt.Sprintf("0:%d:%d", first, Size) }

// CreateNet makes a network namespace at path that belongs to a new user namespace.
func CreateNet(path string, first uint32) error {
	if netnsrun.Is(path) {
		return fmt.Errorf("create network namespace %s: %w", path, os.ErrExist)
	}
	err := sys.UnshareAfterEnterUserns(Mapping(first), Mapping(first), syscall.CLONE_NEWNET, func(pid int) error {
		return netnsrun.Bind(fmt.Sprintf("/proc/%d/ns/net", pid), path)
	})
	if err != nil {
		return errors.Join(fmt.Errorf("create network namespace %s with users of its own: %w", path, err), netnsrun.Remove(path))
	}
	return nil
}

// Owner is the user namespace that the network namespace at path belongs to, and its First;
// nil if that is this process's own.
func Owner(path string) (*os.File, uint32, error) {
	if path == "" {
		return nil, 0, nil
	}
	net, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer net.Close()
	fd, err := unix.IoctlRetInt(int(net.Fd()), unix.NS_GET_USERNS)
	if err != nil {
		return nil, 0, fmt.Errorf("whose network namespace is %s: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), "user namespace of "+path)
	is, err := f.Stat()
	if err == nil {
		var own os.FileInfo
		if own, err = os.Stat("/proc/self/ns/user"); err == nil && os.SameFile(is, own) {
			return nil, 0, f.Close()
		}
	}
	var first uint32
	if err == nil { // made by CreateNet: who made it was root in it
		first, err = unix.IoctlGetUint32(fd, unix.NS_GET_OWNER_UID)
	}
	if err != nil {
		f.Close()
		return nil, 0, fmt.Errorf("whose network namespace is %s: %w", path, err)
	}
	return f, first, nil
}

// Possible says what the machine lacks for containers with users of their own, whose files
// lie on the file system of dir: it mounts layers of other owners there, for a moment.
func Possible(dir string) error {
	for way := dir; way != filepath.Dir(way); way = filepath.Dir(way) {
		if info, err := os.Stat(way); err != nil || info.Mode()&1 == 0 {
			return fmt.Errorf("nobody but its owner passes through %s (chmod o+x)", way)
		}
	}
	dir, err := os.MkdirTemp(dir, "users-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(at(name), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(at("lower/file"), nil, 0o644); err != nil {
		return err
	}
	first := First(0)
	overlay := mount.Mount{Type: "overlay", Source: "overlay", Options: []string{"lowerdir=" + at("lower"), "upperdir=" + at("upper"),
		"workdir=" + at("work"), "uidmap=" + Mapping(first), "gidmap=" + Mapping(first)}}
	if err := overlay.Mount(at("merged")); err != nil {
		return fmt.Errorf("layers cannot be mounted with other owners at %s: %w", filepath.Dir(dir), err)
	}
	defer func() { _ = mount.UnmountAll(at("merged"), 0) }()
	var st unix.Stat_t
	if err := unix.Stat(at("merged/file"), &st); err != nil || st.Uid != first {
		return fmt.Errorf("layers mounted with other owners at %s keep the old ones: %d (%v)", filepath.Dir(dir), st.Uid, err)
	}
	return nil
}

// Write runs fn, which writes files, as root of the namespace whose First that is; 0 is
// the machine's own root.
func Write(first uint32, fn func() error) error {
	if first == 0 {
		return fn()
	}
	done := make(chan error, 1)
	go func() {
		done <- func() error {
			// The thread ends with the goroutine: nobody else runs on it as somebody else.
			runtime.LockOSThread()
			if _, err := unix.SetfsgidRetGid(int(first)); err != nil {
				return err
			}
			if _, err := unix.SetfsuidRetUid(int(first)); err != nil {
				return err
			}
			return fn()
		}()
	}()
	return <-done
}
