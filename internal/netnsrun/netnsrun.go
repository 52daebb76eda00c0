// Package netnsrun creates network namespaces that outlive their creator and
// runs code inside them. A namespace is named by the path of a file on which it
// is bind-mounted, as ip-netns(8) does it, but in any folder.
package netnsrun

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// self is the calling thread's namespace; /proc/self would be the main thread's.
const self = "/proc/thread-self/ns/net"

// Do runs fn in the namespace at path, on a thread of its own; sockets that fn
// opens stay in that namespace. An empty path is the process's own namespace.
// fn must not start goroutines that need the namespace.
func Do(path string, fn func() error) error {
	if path == "" {
		return fn()
	}
	return onThread(func() error {
		if err := enter(path); err != nil {
			return err
		}
		return fn()
	})
}

// Namespace is held open, for who enters it often: it does not go before Close.
type Namespace struct{ fd, home int }

// home is the process's own namespace.
var home = sync.OnceValues(func() (int, error) { return unix.Open("/proc/self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0) })

// Open opens the namespace at path.
func Open(path string) (*Namespace, error) {
	own, err := home()
	if err != nil {
		return nil, fmt.Errorf("open own network namespace: %w", err)
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", path, err)
	}
	return &Namespace{fd, own}, nil
}

// Do is the function Do on the thread that the caller has, by two system calls.
func (n *Namespace) Do(fn func() error) error {
	runtime.LockOSThread()
	if err := unix.Setns(n.fd, unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter a network namespace: %w", err)
	}
	err := fn()
	if back := unix.Setns(n.home, unix.CLONE_NEWNET); back != nil { // the thread ends with the goroutine
		return errors.Join(err, fmt.Errorf("leave a network namespace: %w", back))
	}
	runtime.UnlockOSThread()
	return err
}

// Close lets go of it.
func (n *Namespace) Close() error { return unix.Close(n.fd) }

// enter takes the calling thread into the namespace at path.
func enter(path string) error {
	target, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer target.Close()
	if err := unix.Setns(int(target.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", path, err)
	}
	return nil
}

// Start starts a command in the namespace at path, an empty one is the process's own,
// from a thread that stays until the command has ended: the kernel sends a command's
// Pdeathsig when the thread ends that started it, and Go ends threads. The channel is
// closed when the command has been waited for.
func Start(path string, cmd *exec.Cmd) (ended <-chan struct{}, err error) {
	started, over := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(over)
		err := onThisThread(func() error {
			if path != "" {
				if err := enter(path); err != nil {
					return err
				}
			}
			return cmd.Start()
		}, func(err error) {
			started <- err
			if err == nil {
				_ = cmd.Wait() // what it says is in cmd.ProcessState
			}
		})
		if err != nil {
			started <- err
		}
	}()
	return over, <-started
}

// onThread runs fn on a locked thread that returns to its first namespace
// afterwards; a thread that cannot return is ended instead of reused.
func onThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		if err := onThisThread(fn, func(err error) { done <- err }); err != nil {
			done <- err
		}
	}()
	return <-done
}

// onThisThread locks the goroutine to its thread, runs fn, returns to the namespace of
// before, and hands fn's error on while it still has the thread.
func onThisThread(fn func() error, then func(error)) error {
	runtime.LockOSThread()
	home, err := os.Open(self)
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open own network namespace: %w", err)
	}
	err = fn()
	back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET)
	home.Close()
	then(err)
	if back == nil {
		runtime.UnlockOSThread()
	}
	return nil
}

// Create makes a new namespace and mounts it at path, whose folder is made if
// need be. A file left there by a crash or a reboot is used again; a namespace
// there already is an error.
func Create(path string) error {
	if Is(path) {
		return fmt.Errorf("create network namespace %s: %w", path, fs.ErrExist)
	}
	if err := mountPoint(path); err != nil {
		return err
	}
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("create network namespace: %w", err)
		}
		return bind(self, path)
	})
	if err != nil {
		os.Remove(path)
	}
	return err
}

// Bind mounts the namespace at source (such as /proc/PID/ns/net) at path.
func Bind(source, path string) error {
	if err := mountPoint(path); err != nil {
		return err
	}
	if err := bind(source, path); err != nil {
		os.Remove(path)
		return err
	}
	return nil
}

func mountPoint(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("create network namespace: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o444)
	if err != nil {
		return fmt.Errorf("create network namespace: %w", err)
	}
	return f.Close()
}

func bind(source, path string) error {
	if err := unix.Mount(source, path, "none", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount network namespace %s at %s: %w", source, path, err)
	}
	return nil
}

// Is reports whether a namespace is mounted at path.
func Is(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.NSFS_MAGIC
}

// Identity tells the namespace at a path from others, as long as something is in it; it is
// empty for an empty path, the process's own.
func Identity(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", fmt.Errorf("look at network namespace %s: %w", path, err)
	}
	return fmt.Sprintf("%d:%d", st.Dev, st.Ino), nil
}

// Remove takes the name away; the namespace ends with its last process. A path
// that is not there is no error.
func Remove(path string) error {
	for Is(path) { // a crash between two mounts leaves one above the other
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount network namespace %s: %w", path, err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove network namespace: %w", err)
	}
	return nil
}
