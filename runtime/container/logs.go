package container

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/onpath/onpath"
)

// Times between looks at log files: for followers, and for rotation.
const (
	followEvery = 100 * time.Millisecond
	rotateEvery = 5 * time.Second
)

// logFile is written by the instance's shim, which appends to it; so it goes on
// without us, and may be truncated under its hands.
func (d *Driver) logFile(id string) string { return filepath.Join(d.instanceDir(id), "log") }

// Logs implements onpath.Runtime.
func (d *Driver) Logs(ctx context.Context, id string, n int, follow bool, w io.Writer) error {
	p, err := d.lookup(id)
	if err != nil {
		return err
	}
	path := d.logFile(id)
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) && p.ended() {
		return nil
	}
	if err != nil {
		return fmt.Errorf("log of instance %s: %w", id, err)
	}
	defer f.Close()
	if n != 0 {
		if err := history(path, f, n, w); err != nil {
			return fmt.Errorf("log of instance %s: %w", id, err)
		}
	} else if _, err := f.Seek(0, io.SeekEnd); err != nil {
		return err
	}
	if !follow {
		return nil
	}
	return p.follow(ctx, f, w)
}

// history copies the older file and this one, or their last n lines, and leaves
// f at its end.
func history(path string, f *os.File, n int, w io.Writer) error {
	old, err := os.ReadFile(path + ".1")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	now, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	_, err = w.Write(lastLines(append(old, now...), n))
	return err
}

func lastLines(data []byte, n int) []byte {
	if n < 0 {
		return data
	}
	end := len(data)
	if end > 0 && data[end-1] == '\n' {
		end--
	}
	for i := range n {
		nl := bytes.LastIndexByte(data[:end], '\n')
		if nl < 0 {
			return data
		}
		if i == n-1 {
			return data[nl+1:]
		}
		end = nl
	}
	return nil
}

// follow copies what is appended until ctx ends, or the instance and its log do.
func (p *process) follow(ctx context.Context, f *os.File, w io.Writer) error {
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		ended := p.ended()
		pos, err := f.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		if info, err := f.Stat(); err == nil && info.Size() < pos { // rotated
			if _, err := f.Seek(0, io.SeekStart); err != nil {
				return err
			}
		}
		if _, err := io.Copy(w, f); err != nil {
			return err
		}
		if ended {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.d.ctx.Done():
			return onpath.Errorf(onpath.CodeUnavailable, "the node agent is ending")
		case <-tick.C:
		case <-p.done:
		}
	}
}

// rotateLogs bounds the logs: a file above MaxLog becomes the older one, and is
// emptied. Lines written between the two steps are lost.
func (d *Driver) rotateLogs(ctx context.Context) {
	tick := time.NewTicker(rotateEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		d.mu.Lock()
		ids := make([]string, 0, len(d.procs))
		for id := range d.procs {
			ids = append(ids, id)
		}
		d.mu.Unlock()
		for _, id := range ids {
			if err := rotate(d.logFile(id), d.opt.MaxLog); err != nil && !errors.Is(err, os.ErrNotExist) {
				d.log.Warn("rotate log", "instance", id, "err", err)
			}
		}
	}
}

// rotate keeps the last limit bytes of a file that has grown above limit, and what is
// written meanwhile, up to as much again: a program that writes faster than is copied
// fills no disk.
func rotate(path string, limit int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() <= limit {
		return err
	}
	if _, err := f.Seek(-limit, io.SeekEnd); err != nil {
		return err
	}
	old, err := os.OpenFile(path+".1", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer old.Close()
	if _, err := io.Copy(old, io.LimitReader(f, 2*limit)); err != nil {
		return err
	}
	return f.Truncate(0)
}
