package ebpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/onpath/onpath/internal/boundlog"
)

// The files in an instance's folder. The log is two, as boundlog names them.
const (
	recordFile = "record.json"
	objectFile = "function.o"
	logFile    = boundlog.Now
)

// Sizes of a log, in bytes: of each of its two files, and of a line.
const (
	maxLog  = 1 << 20
	maxLine = 4 << 10
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

// say writes a line for onpath logs.
func (p *process) say(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	line := fmt.Appendf(nil, "%s %s\n", time.Now().UTC().Format(time.RFC3339), text[:min(len(text), maxLine)])
	p.logging.Lock()
	defer p.logging.Unlock()
	path := filepath.Join(p.d.dir(p.id), logFile)
	switch info, err := os.Stat(path); {
	case err != nil:
	case info.Size() > 2*maxLog: // a former version's, which did not bound it
		_ = os.Remove(path)
	case info.Size()+int64(len(line)) > maxLog:
		_ = os.Rename(path, filepath.Join(filepath.Dir(path), boundlog.Former))
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	_, _ = f.Write(line)
}

// openLog opens the two files of an instance's log; former is nil if there is none.
func (d *Driver) openLog(id string) (former, now *os.File, err error) {
	d.mu.Lock()
	p := d.runs[id]
	d.mu.Unlock()
	if p != nil { // it may be just changing files
		p.logging.Lock()
		defer p.logging.Unlock()
	}
	if now, err = os.Open(filepath.Join(d.dir(id), logFile)); err != nil {
		return nil, nil, err
	}
	former, err = os.Open(filepath.Join(d.dir(id), boundlog.Former))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, nil, errors.Join(err, now.Close())
	}
	return former, now, nil
}
