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

// boundEvery is the time between two looks at the log files of shims.
const boundEvery = 5 * time.Second

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
func (d *Driver) Logs(ctx context.Context, id string, v onpath.LogView, follow bool, w io.Writer) error {
	p, err := d.lookup(id)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.ctx, cancel)()
	p.awaitLog()
	err = boundlog.Follow(ctx, d.instanceDir(id), boundlog.View(v), follow, p.endedWithLog, w)
	switch {
	case errors.Is(err, os.ErrNotExist) && p.ended():
		return nil
	case errors.Is(err, boundlog.ErrNoTimes):
		return onpath.Errorf(onpath.CodeUnsupported, "log of instance %s: %w", id, err)
	case err != nil:
		return fmt.Errorf("log of instance %s: %w", id, err)
	case follow && d.ctx.Err() != nil:
		return onpath.Errorf(onpath.CodeUnavailable, "the node agent is ending")
	}
	return nil
}

// endedWithLog tells whether an instance has ended, and its last words are written.
func (p *process) endedWithLog() bool {
	ended := p.ended()
	if ended {
		p.awaitLog()
	}
	return ended
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
