package api

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// SocketPath is where a server listens and the CLI looks for it.
const SocketPath = "/run/onpath/server.sock"

// maxSocketPath is what the kernel takes as the path of a unix socket, in
// bytes: sun_path without the zero at its end.
const maxSocketPath = len(unix.RawSockaddrUnix{}.Path) - 1

// ListenUnix opens the unix socket, for the owner and group of the process
// only. What a dead server left is replaced; a living one, and whatever is not
// a socket, is an error and stays. Closing removes what was made here only.
func ListenUnix(path string) (net.Listener, error) {
	if err := CheckSocket(path); err != nil {
		return nil, err
	}
	if dir := filepath.Dir(path); dir == filepath.Dir(SocketPath) {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, onpath.Errorf(onpath.CodeUnavailable, "socket %s: %w", path, err)
		}
	}
	// It appears under its name only once its mode is right.
	temporary := besides(path)
	for _, p := range []string{path, temporary} {
		if err := vacate(p); err != nil {
			return nil, err
		}
	}
	l, err := net.Listen("unix", temporary)
	if err != nil {
		return nil, onpath.Errorf(onpath.CodeUnavailable, "socket %s: %w", path, err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	made, err := os.Lstat(temporary)
	if err := errors.Join(err, os.Chmod(temporary, 0o660), os.Rename(temporary, path)); err != nil {
		_ = l.Close()
		_ = os.Remove(temporary)
		return nil, onpath.Errorf(onpath.CodeUnavailable, "socket %s: %w", path, err)
	}
	return &unixListener{l, path, made}, nil
}

// besides is a name in the same directory that a socket can be bound to before
// it is moved to path.
func besides(path string) string {
	if p := path + ".new"; len(p) <= maxSocketPath {
		return p
	}
	last := byte('~')
	if path[len(path)-1] == last {
		last = '_'
	}
	return path[:len(path)-1] + string(last)
}

// CheckSocket says why a server could not listen at path, and changes nothing.
// The error of a missing directory is an fs.ErrNotExist.
func CheckSocket(path string) error {
	if len(path) > maxSocketPath {
		e := onpath.Errorf(onpath.CodeInvalid, "the socket's path %s is too long: %d bytes of at most %d", path, len(path), maxSocketPath)
		e.Remedy = "give a shorter one (--socket, or server.socket in the configuration)"
		return e
	}
	dir := filepath.Dir(path)
	st, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) && dir == filepath.Dir(SocketPath):
		return nil // ListenUnix makes it
	case errors.Is(err, fs.ErrNotExist):
		e := onpath.Errorf(onpath.CodeInvalid, "the socket %s cannot be made: there is no directory %s", path, dir)
		e.Remedy, e.Cause = "make the directory first, or give another socket", err
		return e
	case err != nil:
		return onpath.Errorf(onpath.CodeUnavailable, "socket %s: %w", path, err)
	case !st.IsDir():
		e := onpath.Errorf(onpath.CodeInvalid, "the socket %s cannot be made: %s is no directory", path, dir)
		e.Remedy = "give another socket"
		return e
	}
	_, err = dead(path)
	return err
}

// vacate removes the socket that a dead server left at path.
func vacate(path string) error {
	there, err := dead(path)
	if err != nil || !there {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return onpath.Errorf(onpath.CodeUnavailable, "socket %s: %w", path, err)
	}
	return nil
}

// RemoveDeadSocket removes the socket that a server which was killed left at path.
// Anything else stays.
func RemoveDeadSocket(path string) { _ = vacate(path) }

// dead tells whether a socket is at path that nobody listens at; false means
// that nothing is there. Anything else is an error.
func dead(path string) (bool, error) {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, onpath.Errorf(onpath.CodeUnavailable, "socket %s: %w", path, err)
	}
	if st.Mode().Type() != fs.ModeSocket {
		e := onpath.Errorf(onpath.CodeInvalid, "%s is %s, not a socket", path, kindOf(st.Mode()))
		e.Remedy = "give another socket, or move that away; it was left as it is"
		return false, e
	}
	c, err := net.Dial("unix", path)
	if errors.Is(err, unix.ECONNREFUSED) {
		return true, nil
	}
	if err == nil || errors.Is(err, unix.EAGAIN) { // its queue is full
		if err == nil {
			_ = c.Close()
		}
		e := onpath.Errorf(onpath.CodeExists, "another server answers at %s", path)
		e.Remedy = "stop it, or give this one another socket"
		return false, e
	}
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // it was removed meanwhile
	}
	e := onpath.Errorf(onpath.CodeInvalid, "the socket at %s is another program's: %w", path, err)
	e.Remedy = "give another socket; that one was left as it is"
	return false, e
}

// kindOf names what a file is.
func kindOf(m fs.FileMode) string {
	switch {
	case m.IsRegular():
		return "a file"
	case m.IsDir():
		return "a directory"
	case m.Type() == fs.ModeSymlink:
		return "a symbolic link"
	}
	return "a device or pipe"
}

type unixListener struct {
	net.Listener
	path string
	made fs.FileInfo
}

// Close removes the socket, unless another thing has its name by now.
func (l *unixListener) Close() error {
	if st, err := os.Lstat(l.path); err == nil && os.SameFile(st, l.made) {
		_ = os.Remove(l.path)
	}
	return l.Listener.Close()
}
