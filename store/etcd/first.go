package etcd

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/onpath/onpath"
)

// The directories of etcd in that of the store. A new store is made in newDir,
// and gets its name once etcd was ready in it: etcd does not survive an end in
// the middle of its first start. So whatever is in newDir never held anything,
// and nothing is ever removed from dataDir.
const (
	dataDir = "etcd"
	newDir  = "etcd.new"
)

// makeNew makes the store unless there is one.
func (e *embedded) makeNew(ctx context.Context, log *slog.Logger) error {
	data, fresh := filepath.Join(e.dir, dataDir), filepath.Join(e.dir, newDir)
	if _, err := os.Lstat(fresh); err == nil {
		log.Info("the first start of the store was interrupted before anything was kept in it; what it left is removed", "dir", fresh)
	}
	if err := os.RemoveAll(fresh); err != nil {
		return e.cannotMake(err)
	}
	if there, err := holdsFiles(data); err != nil || there {
		return err
	}
	log.Info("a new store is made", "dir", e.dir)
	e.first.Store(true)
	s, err := e.open(ctx, fresh, log)
	if err != nil {
		_ = os.RemoveAll(fresh)
		return e.cannotMake(err)
	}
	s.Close()
	if err := errors.Join(syncDirs(fresh), removeEmpty(data), os.Rename(fresh, data), syncDirs(e.dir)); err != nil {
		return e.cannotMake(err)
	}
	return nil
}

func (e *embedded) cannotMake(err error) error {
	f := onpath.Errorf(onpath.CodeUnavailable, "the store in %s cannot be made: %w", e.dir, err)
	f.Remedy = "make sure the disk is healthy and has room, then start the server again"
	return f
}

// holdsFiles tells whether anything but directories is below dir.
func holdsFiles(dir string) (bool, error) {
	found := false
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		found = true
		return fs.SkipAll
	})
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return found, err
}

// removeEmpty removes directories, and fails at the first file.
func removeEmpty(dir string) error {
	list, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, d := range list {
		if !d.IsDir() {
			return fs.ErrExist
		}
		if err := removeEmpty(filepath.Join(dir, d.Name())); err != nil {
			return err
		}
	}
	return os.Remove(dir)
}

// syncDirs puts the names in dir and below on the disk.
func syncDirs(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		return errors.Join(f.Sync(), f.Close())
	})
}
