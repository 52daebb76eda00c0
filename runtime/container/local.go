package container

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// maxIndex is the largest index of an image that is read, in bytes.
const maxIndex = 4 << 20

// openLocal opens a folder or a file with content, and nothing else: to open a device
// can set it going, and to open a pipe waits for its other end. A path is looked at
// before anything of what it leads to is asked to open.
func openLocal(path string) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(path, unix.O_PATH, 0)
	if err != nil {
		return nil, nil, err
	}
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() && info.Size() == 0 {
		// As the kernel's own files are, some of which wait when they are read.
		return nil, nil, errors.Join(fmt.Errorf("%s is empty", info.Name()), f.Close())
	}
	return reopen(f)
}

// reopen opens what an O_PATH descriptor, which it closes, stands for.
func reopen(f *os.File) (*os.File, fs.FileInfo, error) {
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, nil, err
	case info.IsDir():
	case !info.Mode().IsRegular():
		return nil, nil, fmt.Errorf("%s is neither a file nor a folder", info.Name())
	}
	opened, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_RDONLY|unix.O_NONBLOCK, 0)
	return opened, info, err
}

// layoutFolder is an OCI layout's. Nothing outside it is read, whatever links in it say.
type layoutFolder struct{ root *os.Root }

var _ fs.ReadLinkFS = layoutFolder{}

func openLayout(folder *os.File) (layoutFolder, error) {
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", folder.Fd()))
	return layoutFolder{root}, err
}

// Open implements fs.FS, for files and folders.
func (l layoutFolder) Open(name string) (fs.File, error) {
	if info, err := l.root.Lstat(name); err == nil && info.IsDir() {
		return l.root.OpenFile(name, unix.O_DIRECTORY, 0)
	}
	f, err := l.root.OpenFile(name, unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	if f, _, err = reopen(f); err != nil {
		return nil, err
	}
	return f, nil
}

// ReadLink implements fs.ReadLinkFS.
func (l layoutFolder) ReadLink(name string) (string, error) { return l.root.Readlink(name) }

// Lstat implements fs.ReadLinkFS.
func (l layoutFolder) Lstat(name string) (fs.FileInfo, error) { return l.root.Lstat(name) }

// readIndex reads the index of an OCI layout or archive (or a docker archive's manifest).
func readIndex(path string) ([]byte, error) {
	f, info, err := openLocal(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info.IsDir() {
		l, err := openLayout(f)
		if err != nil {
			return nil, err
		}
		defer l.root.Close()
		index, err := l.Open("index.json")
		if err != nil {
			return nil, err
		}
		defer index.Close()
		return readBounded(index)
	}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil, errors.New("it is no image archive: neither index.json nor manifest.json is in it")
		}
		if err != nil {
			return nil, fmt.Errorf("it is no tar archive: %w", err)
		}
		if name := filepath.Clean(h.Name); name == "index.json" || name == "manifest.json" {
			return readBounded(r)
		}
	}
}

func readBounded(r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxIndex+1))
	if err == nil && len(data) > maxIndex {
		return nil, fmt.Errorf("its index is larger than %d MiB", maxIndex>>20)
	}
	return data, err
}

// openArchive streams an archive, or a layout directory as one.
func openArchive(path string) (io.ReadCloser, error) {
	f, info, err := openLocal(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return f, nil
	}
	defer f.Close()
	l, err := openLayout(f)
	if err != nil {
		return nil, err
	}
	r, w := io.Pipe()
	go func() {
		defer l.root.Close()
		t := tar.NewWriter(w)
		err := t.AddFS(l)
		if err == nil {
			err = t.Close()
		}
		w.CloseWithError(err)
	}()
	return r, nil
}
