// Package wholefile replaces files as a whole: who opens one finds what was there
// before or all that was written, also after a crash.
package wholefile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// draftMark stands in a draft's name between the file's name and a number.
const draftMark = ".new-"

// Write puts data into the file at path, for good: it outlasts a power loss. If it
// fails, what was there still is.
func Write(path string, data []byte, mode fs.FileMode) error {
	d, err := NewDraft(path, data, mode)
	if err != nil {
		return err
	}
	if err := d.Put(); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// WriteLightly is Write for what is written often and may be lost with the power.
func WriteLightly(path string, data []byte, mode fs.FileMode) error {
	d, err := draft(path, data, mode, false)
	if err != nil {
		return err
	}
	return d.Put()
}

// Draft is what is to take the place of a file, on disk beside it: a full disk is
// found out before anything is changed. A nil one changes nothing.
type Draft struct{ path, tmp string }

// NewDraft writes a draft, which is to be put or discarded.
func NewDraft(path string, data []byte, mode fs.FileMode) (*Draft, error) {
	return draft(path, data, mode, true)
}

func draft(path string, data []byte, mode fs.FileMode, sync bool) (*Draft, error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+draftMark+"*")
	if err != nil {
		return nil, err
	}
	d := &Draft{path: path, tmp: f.Name()}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(mode))
	if err == nil && sync {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		d.Discard()
		return nil, err
	}
	return d, nil
}

// Put gives the file its new content.
func (d *Draft) Put() error {
	if d == nil {
		return nil
	}
	if err := os.Rename(d.tmp, d.path); err != nil {
		d.Discard()
		return err
	}
	return nil
}

// Clean removes the drafts that writers left in folders when they were killed. It is for
// a folder's owner at its start, and for whoever takes away what the owner kept: the
// draft of a writer that still runs would go, too. A folder that is not there is clean.
func Clean(dirs ...string) error {
	var errs []error
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		for _, e := range entries {
			if isDraft(e.Name()) {
				errs = append(errs, os.Remove(filepath.Join(dir, e.Name())))
			}
		}
	}
	return errors.Join(errs...)
}

func isDraft(name string) bool {
	at := strings.LastIndex(name, draftMark)
	if at < 1 || name[0] != '.' {
		return false
	}
	_, err := strconv.ParseUint(name[at+len(draftMark):], 10, 64) // as os.CreateTemp ends it
	return err == nil
}

// Discard leaves the file as it is.
func (d *Draft) Discard() {
	if d != nil {
		_ = os.Remove(d.tmp)
	}
}

// syncDir has the names in a directory outlast a power loss.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
