package ebpf

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/bpffs"
)

// Hold keeps every other holder out of what is pinned of the data path of that
// name, until it is released or the process ends, however it ends. Drivers do not
// need it: it is for programs of which there may be two.
func Hold(opts Options) (release func(), err error) {
	if err := opts.fill(); err != nil {
		return nil, err
	}
	if err := bpffs.Need(opts.PinPath); err != nil {
		return nil, err
	}
	for {
		f, err := holdFolder(opts.dir())
		if err != nil {
			return nil, err
		}
		if f == nil {
			continue // who held it before has removed it
		}
		return func() {
			if same, err := isAt(f, opts.dir()); err == nil && same {
				_ = os.Remove(opts.dir()) // not empty: of a data path
			}
			_ = f.Close()
		}, nil
	}
}

// holdFolder locks a folder, which is made if it is not there; nil if somebody
// removed it meanwhile.
func holdFolder(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make folder for pinned maps: %w", err)
	}
	f, err := os.Open(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("lock the data path: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock the data path %s: %w", dir, err)
		}
		e := onpath.Errorf(onpath.CodeConflict, "another process works with the data path that is pinned at %s", dir)
		e.Remedy = "stop that agent first (ps -ef shows it), or start this one with another name (--name) in a network namespace of its own"
		return nil, e
	}
	same, err := isAt(f, dir)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock the data path: %w", err)
	}
	if !same {
		f.Close()
		return nil, nil
	}
	return f, nil
}

// isAt reports whether the open folder is the one that is at the path now.
func isAt(f *os.File, path string) (bool, error) {
	held, err := f.Stat()
	if err != nil {
		return false, err
	}
	now, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(held, now), err
}
