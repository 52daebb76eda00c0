package container

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/pkg/cio"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/boundlog"
)

// Times between looks at log files: for followers, and at those of shims.
const (
	followEvery = 100 * time.Millisecond
	boundEvery  = 5 * time.Second
)

// logFile is written by a process of the instance's own (internal/boundlog), so it
// goes on without us.
func (d *Driver) logFile(id string) string { return filepath.Join(d.instanceDir(id), boundlog.Now) }

// logTo has the instance's shim start the process that keeps its log.
func (d *Driver) logTo(id string) (cio.Creator, error) {
	self, err := program()
	if err != nil {
		return nil, fmt.Errorf("log of instance %s: %w", id, err)
	}
	return cio.LogURI(boundlog.URI(self, d.instanceDir(id), d.opt.MaxLog)), nil
}

// program is the file of the running program, by a name that also leads to it where
// the file was replaced since.
func program() (string, error) {
	running := fmt.Sprintf("/proc/%d/exe", os.Getpid())
	is, err := os.Stat(running)
	if err != nil {
		return "", err
	}
	if path, err := os.Executable(); err == nil {
		if info, err := os.Stat(path); err == nil && os.SameFile(is, info) {
			return path, nil
		}
	}
	return running, nil
}

// LeftOut implements onpath.Talkative.
func (p *process) LeftOut() (int64, string) { return boundlog.LeftOut(p.d.instanceDir(p.id)) }

// Logs implements onpath.Runtime.
func (d *Driver) Logs(ctx context.Context, id string, n int, follow bool, w io.Writer) error {
	p, err := d.lookup(id)
	if err != nil {
		return err
	}
	path := d.logFile(id)
	p.awaitLog()
	f, err := openLog(path)
	if errors.Is(err, os.ErrNotExist) && p.ended() {
		return nil
	}
	if err != nil {
		return fmt.Errorf("log of instance %s: %w", id, err)
	}
	defer func() { f.Close() }()
	if err := history(path, f, n, w); err != nil {
		return fmt.Errorf("log of instance %s: %w", id, err)
	}
	if !follow {
		return nil
	}
	return p.follow(ctx, &f, w)
}

// openLog opens a file that is away for a moment whenever it is full and becomes the
// former one.
func openLog(path string) (f *os.File, err error) {
	for range 20 {
		if f, err = os.Open(path); !errors.Is(err, os.ErrNotExist) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return f, err
}

// history copies the former file and this one, or their last n lines, and leaves
// f at its end.
func history(path string, f *os.File, n int, w io.Writer) error {
	former, err := os.Open(filepath.Join(filepath.Dir(path), boundlog.Former))
	if errors.Is(err, os.ErrNotExist) {
		return boundlog.Copy(w, nil, f, n)
	}
	if err != nil {
		return err
	}
	defer former.Close()
	if sameFile(former, f) { // f has become it since
		return boundlog.Copy(w, nil, f, n)
	}
	return boundlog.Copy(w, former, f, n)
}

func sameFile(a, b *os.File) bool {
	x, err1 := a.Stat()
	y, err2 := b.Stat()
	return err1 == nil && err2 == nil && os.SameFile(x, y)
}

// follow copies what is appended until ctx ends, or the instance and its log do.
func (p *process) follow(ctx context.Context, f **os.File, w io.Writer) error {
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		ended := p.ended()
		if ended {
			p.awaitLog()
		}
		if err := p.copyNew(f, w); err != nil {
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

// copyNew copies what has been appended to f, and goes on to the next file where f
// has become the former one.
func (p *process) copyNew(f **os.File, w io.Writer) error {
	next, err := os.Open(p.d.logFile(p.id))
	if err != nil { // it is just being made, or all is being deleted
		next = nil
	}
	moved := next != nil && !sameFile(next, *f)
	if next != nil && !moved {
		next.Close()
	}
	if err := upTo(*f, w); err != nil || !moved { // if moved, nothing more comes to it
		if moved {
			next.Close()
		}
		return err
	}
	(*f).Close()
	*f = next
	return upTo(next, w)
}

// upTo copies the rest of a file. One that is shorter than was read is read anew:
// boundOlder has emptied it.
func upTo(f *os.File, w io.Writer) error {
	pos, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	if info, err := f.Stat(); err == nil && info.Size() < pos {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
	_, err = io.Copy(w, f)
	return err
}

// settleLog is how long after an instance's end its last words may be on their way
// into the log.
const settleLog = 50 * time.Millisecond

// awaitLog waits for the last words of an instance that has just ended.
func (p *process) awaitLog() {
	if !p.ended() {
		return
	}
	p.mu.Lock()
	at := p.seenEnded
	p.mu.Unlock()
	time.Sleep(settleLog - time.Since(at))
}

// boundOlder empties the logs that shims write themselves, of instances that an
// earlier version started, when they are too large.
func (d *Driver) boundOlder(ctx context.Context) {
	tick := time.NewTicker(boundEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		d.mu.Lock()
		ids := slices.Collect(maps.Keys(d.procs))
		d.mu.Unlock()
		for _, id := range ids {
			if err := emptyAbove(d.logFile(id), 2*d.opt.MaxLog); err != nil {
				d.log.Warn("bound log", "instance", id, "err", err)
			}
		}
	}
}

// emptyAbove empties a file that is larger than limit. Its writer appends, and goes on.
func emptyAbove(path string, limit int64) error {
	info, err := os.Stat(path)
	if err == nil && info.Size() > limit {
		err = os.Truncate(path, 0)
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
