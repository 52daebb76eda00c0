package ebpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const selfNS = "/proc/thread-self/ns/net"

// namespace is the network namespace a driver works in: the one it was made in,
// whatever thread its methods are called on later.
type namespace struct {
	file *os.File
	ino  uint64
	nl   *netlink.Handle
}

func currentNamespace() (*namespace, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	f, err := os.Open(selfNS)
	if err != nil {
		return nil, fmt.Errorf("open own network namespace: %w", err)
	}
	ino, err := inode(f)
	if err != nil {
		f.Close()
		return nil, err
	}
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return &namespace{file: f, ino: ino, nl: nl}, nil
}

func inode(f *os.File) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, fmt.Errorf("stat network namespace: %w", err)
	}
	return st.Ino, nil
}

func (n *namespace) close() error {
	n.nl.Close()
	return n.file.Close()
}

// do runs fn on a thread inside the namespace.
func (n *namespace) do(fn func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := os.Open(selfNS)
	if err != nil {
		return fmt.Errorf("open own network namespace: %w", err)
	}
	defer home.Close()
	if ino, err := inode(home); err == nil && ino == n.ino {
		return fn()
	}
	if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the data path's network namespace: %w", err)
	}
	err = fn()
	if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
		runtime.LockOSThread() // never reuse this thread elsewhere
		err = errors.Join(err, fmt.Errorf("return to own network namespace: %w", back))
	}
	return err
}

// sysctl writes a setting of the namespace; path is below /proc/sys/net.
func sysctl(path, value string) error {
	if err := os.WriteFile(filepath.Join("/proc/sys/net", path), []byte(value), 0); err != nil {
		return fmt.Errorf("set net/%s=%s: %w", path, value, err)
	}
	return nil
}
