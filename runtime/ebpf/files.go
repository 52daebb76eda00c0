package ebpf

import (
	"errors"
	"os"
	"path/filepath"
)

// The files in an instance's folder.
const (
	recordFile = "record.json"
	objectFile = "function.o"
	logFile    = "log"
)

// draft is what is to take the place of a file, on disk beside it: a full disk is
// found out before anything is changed.
type draft struct{ path, tmp string }

func newDraft(path string, data []byte) (*draft, error) {
	d := &draft{path: path, tmp: filepath.Join(filepath.Dir(path), "."+filepath.Base(path))}
	f, err := os.OpenFile(d.tmp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		d.discard()
		return nil, err
	}
	return d, nil
}

// put gives the file its new content, whole.
func (d *draft) put() error {
	if d == nil { // it has it
		return nil
	}
	if err := os.Rename(d.tmp, d.path); err != nil {
		d.discard()
		return err
	}
	return nil
}

func (d *draft) discard() {
	if d != nil {
		_ = os.Remove(d.tmp)
	}
}
