// Package filelock keeps two processes from doing the same thing at once, by a
// lock on a file that is there only while somebody holds it.
package filelock

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Held is the error that another process holds the lock.
type Held struct {
	Path string
	PID  int // of who holds it; 0: unknown
}

func (h *Held) Error() string {
	return fmt.Sprintf("%s is locked by process %d", h.Path, h.PID)
}

// Try takes the lock, which ends with the process if it is not released; the error
// is a *Held if another has it. The file's folder is made.
func Try(path string) (release func(), err error) {
	for again := 0; ; again++ {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
		if errors.Is(err, fs.ErrNotExist) && again < 1000 {
			continue // whoever had the last lock in it took the folder away
		}
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
		case errors.Is(err, unix.EINTR):
			f.Close()
			continue
		case errors.Is(err, unix.EWOULDBLOCK):
			defer f.Close()
			return nil, &Held{path, holder(f)}
		case err != nil:
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if !isAt(f, path) { // who held it before has removed the file
			f.Close()
			continue
		}
		if err := sign(f); err != nil {
			os.Remove(path)
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		return func() { os.Remove(path); f.Close() }, nil
	}
}

// isAt reports whether the open file is the one that is at the path now.
func isAt(f *os.File, path string) bool {
	ours, err1 := f.Stat()
	named, err2 := os.Stat(path)
	return err1 == nil && err2 == nil && os.SameFile(ours, named)
}

// sign writes down who holds the lock.
func sign(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

func holder(f *os.File) int {
	b := make([]byte, 16)
	n, _ := f.ReadAt(b, 0)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	return pid
}
