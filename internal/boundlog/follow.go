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

// Follow copies the log in dir to w, from the last n lines on (n < 0: all), and, if
// follow is said, what comes until ctx ends or ended says that nothing more does.
func Follow(ctx context.Context, dir string, n int, follow bool, ended func() bool, w io.Writer) error {
	f, err := openNow(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { f.Close() }()
	former, err := os.Open(filepath.Join(dir, Former))
	if err != nil || same(former, f) {
		err = Copy(w, nil, f, n)
	} else {
		err = Copy(w, former, f, n)
	}
	if former != nil {
		former.Close()
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
		if _, err = io.Copy(w, f); err != nil {
			break
		}
		next, nerr := openNow(dir)
		if nerr != nil || same(next, f) {
			if nerr == nil {
				next.Close()
			}
			continue
		}
		f.Close() // it has become the former one
		f = next
		_, err = io.Copy(w, f)
	}
	return err
}

// openNow opens a file that is away for a moment whenever it is full.
func openNow(dir string) (f *os.File, err error) {
	for range 20 {
		if f, err = os.Open(filepath.Join(dir, Now)); !errors.Is(err, os.ErrNotExist) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return f, err
}

func same(a, b *os.File) bool {
	x, err1 := a.Stat()
	y, err2 := b.Stat()
	return err1 == nil && err2 == nil && os.SameFile(x, y)
}
