package boundlog

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"
)

// followEvery is how often a log is looked at that somebody follows.
const followEvery = 100 * time.Millisecond

// ErrNoTimes: lines were asked for by their time, and nobody knows when they came.
var ErrNoTimes = errors.New("it is not known when its lines came: it was started by an earlier version of onpath, or the disk was full")

// file is one of a log's two, open.
type file struct {
	f *os.File // nil: there is none
	t *times
}

func (f file) close() {
	if f.f != nil {
		_ = f.f.Close()
	}
	f.t.close()
}

// Follow copies what is to be seen of the log in dir to w, and, if follow is said, what
// comes until ctx ends or ended says that nothing more does. Without a log it is
// os.ErrNotExist.
func Follow(ctx context.Context, dir string, view View, follow bool, ended func() bool, w io.Writer) error {
	v := newViewer(w, view)
	now, err := v.open(dir, Now)
	if err != nil {
		return err
	}
	defer func() { now.close() }()
	former, err := v.open(dir, Former)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if former.f != nil && same(former.f, now.f) { // now has become it since
		former.close()
		former = file{}
	}
	err = v.both(former, now)
	former.close()
	if err == nil && v.some && !v.seen && !v.known {
		return ErrNoTimes
	}
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for last := !follow; err == nil && !last; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		last = ended()
		now, err = v.more(dir, now)
	}
	return err
}

// more copies what has come, and goes on to the next file where this one has become the
// former one. It gives the file to go on with.
func (v *viewer) more(dir string, now file) (file, error) {
	if now.t == nil && !v.plain() { // they are made after the file
		now.t = timesOf(dir, now.f)
	}
	f, err := os.Open(filepath.Join(dir, Now))
	if err != nil { // it is just being made, or all is being deleted
		return now, v.rest(now)
	}
	if same(f, now.f) {
		_ = f.Close()
		return now, v.rest(now)
	}
	next := v.with(dir, f)
	err = v.rest(now) // nothing more comes to it
	now.close()
	if err == nil {
		err = v.rest(next)
	}
	return next, err
}

// rest copies a file from where it is. One that is shorter was emptied, and is read anew.
func (v *viewer) rest(f file) error {
	at, err := f.f.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	if info, err := f.f.Stat(); err == nil && info.Size() < at {
		if _, err := f.f.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
	return v.copy(f.f, f.t)
}

// open opens a file of a log; the present one is away for a moment whenever it is full.
func (v *viewer) open(dir, name string) (o file, err error) {
	for range 20 {
		if o.f, err = os.Open(filepath.Join(dir, name)); name == Former || !errors.Is(err, os.ErrNotExist) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err != nil {
		return file{}, err
	}
	return v.with(dir, o.f), nil
}

// with has the times of a file beside it, if they are needed.
func (v *viewer) with(dir string, f *os.File) file {
	if v.plain() {
		return file{f: f}
	}
	return file{f: f, t: timesOf(dir, f)}
}

func same(a, b *os.File) bool {
	x, err1 := a.Stat()
	y, err2 := b.Stat()
	return err1 == nil && err2 == nil && os.SameFile(x, y)
}
