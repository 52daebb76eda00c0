package container

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"syscall"
	"time"

	cgroup1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	cgroup2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"

	"github.com/onpath/onpath"
)

// exitWait is how long the exit code is waited for once the process is seen to
// have ended: containerd may be away, and the end itself must be told.
const exitWait = 2 * time.Second

// unknownExit is the exit code where containerd does not know one, as after a
// reboot.
const unknownExit = -1

type process struct {
	d      *Driver
	id     string
	labels map[string]string
	begun  time.Time     // as far as is known here
	over   chan struct{} // closed when it has ended
	done   chan struct{} // closed when it is known how
	taken  chan struct{} // closed when containerd knows that it runs
	needed chan struct{} // somebody waits for that

	mu   sync.Mutex
	pid  int // 0 once ended
	code int
	at   time.Time
	// seenEnded is when its end was noticed.
	seenEnded time.Time
	disk      onpath.Size // what it may write
	endedFor  string      // why the driver ended it

	stopping sync.Mutex // one Stop at a time
}

func newProcess(d *Driver, id string, labels map[string]string, pid int) *process {
	return &process{d: d, id: id, labels: maps.Clone(labels), pid: pid, begun: time.Now(),
		over: make(chan struct{}), done: make(chan struct{}), taken: make(chan struct{}), needed: make(chan struct{}, 1)}
}

// adopt enters a running process and watches for its end.
func (d *Driver) adopt(p *process, w *pidWatch) {
	d.mu.Lock()
	d.procs[p.id] = p
	d.mu.Unlock()
	begun, forget := d.exits.Watch(p.pid)
	d.goes(func(ctx context.Context) {
		select {
		case <-begun:
			p.passAway()
		case <-p.over:
		case <-ctx.Done():
		}
	})
	d.goes(func(ctx context.Context) {
		defer forget()
		if err := w.wait(ctx); err != nil {
			if ctx.Err() == nil {
				d.log.Error("watch instance", "instance", p.id, "err", err)
			}
			return
		}
		p.passAway() // at once: how it ended, containerd takes its time to tell
		code, at := d.exitOf(ctx, p.id)
		p.end(code, at)
	})
}

// exitOf asks containerd how the task ended.
func (d *Driver) exitOf(ctx context.Context, id string) (int, time.Time) {
	ctx, cancel := context.WithTimeout(d.scope(ctx), exitWait)
	defer cancel()
	now := time.Now()
	for wait := 2 * time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		status, err := d.taskStatus(ctx, id)
		switch {
		case err == nil && status.Status == containerd.Stopped:
			return int(status.ExitStatus), status.ExitTime
		case errdefs.IsNotFound(err):
			return unknownExit, now
		}
		select {
		case <-ctx.Done():
			return unknownExit, now
		case <-time.After(wait):
		}
	}
}

func (d *Driver) taskStatus(ctx context.Context, id string) (containerd.Status, error) {
	t, err := d.task(ctx, id)
	if err != nil {
		return containerd.Status{}, err
	}
	return t.Status(ctx)
}

func (d *Driver) task(ctx context.Context, id string) (containerd.Task, error) {
	c, err := d.client.LoadContainer(ctx, id)
	if err != nil {
		return nil, err
	}
	return c.Task(ctx, nil)
}

// task is what containerd has of it, once that knows that it runs.
func (p *process) task(ctx context.Context) (containerd.Task, error) {
	if err := p.awaitTaken(ctx); err != nil {
		return nil, err
	}
	return p.d.task(ctx, p.id)
}

// awaitTaken waits until containerd knows that it runs, and has that begin now.
func (p *process) awaitTaken(ctx context.Context) error {
	select {
	case p.needed <- struct{}{}:
	default:
	}
	select {
	case <-p.taken:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// passAway tells that it has ended.
func (p *process) passAway() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.over:
	default:
		p.pid, p.seenEnded = 0, time.Now()
		close(p.over)
	}
}

func (p *process) end(code int, at time.Time) {
	p.passAway()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended() {
		return
	}
	p.code, p.at = code, at
	close(p.done)
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// ID implements onpath.Process.
func (p *process) ID() string { return p.id }

// Labels implements onpath.Process.
func (p *process) Labels() map[string]string { return maps.Clone(p.labels) }

// Pid implements onpath.Process.
func (p *process) Pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pid
}

// Exited implements onpath.Process.
func (p *process) Exited() <-chan struct{} { return p.over }

// Exit implements onpath.Process. It waits until containerd has told, or is not
// likely to.
func (p *process) Exit() (int, time.Time) {
	select {
	case <-p.done:
	case <-time.After(exitWait + time.Second):
		return unknownExit, time.Now()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.code, p.at
}

// gone is the error of an operation that needs a running instance.
func gone(id string) error {
	return onpath.Errorf(onpath.CodeNotFound, "instance %s does not run", id)
}

// Resize implements onpath.Process.
func (p *process) Resize(ctx context.Context, r onpath.Resources) error {
	ctx = p.d.scope(ctx)
	t, err := p.task(ctx)
	if errdefs.IsNotFound(err) || p.ended() {
		return gone(p.id)
	}
	if err != nil {
		return unavailable("resize instance "+p.id, err)
	}
	if err := t.Update(ctx, containerd.WithResources(linuxResources(r, false))); err != nil {
		return &onpath.Error{Code: onpath.CodeInvalid,
			Message: fmt.Sprintf("instance %s cannot get %v CPU and %v memory: %v", p.id, r.CPU, r.Memory, err),
			Remedy:  "memory cannot go below what is in use", Cause: err}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.disk = r.Disk
	return nil
}

// Usage implements onpath.Process.
func (p *process) Usage(ctx context.Context) (onpath.Usage, error) {
	ctx = p.d.scope(ctx)
	t, err := p.task(ctx)
	if errdefs.IsNotFound(err) || p.ended() {
		return onpath.Usage{}, gone(p.id)
	}
	if err != nil {
		return onpath.Usage{}, unavailable("usage of instance "+p.id, err)
	}
	m, err := t.Metrics(ctx)
	if err != nil {
		return onpath.Usage{}, unavailable("usage of instance "+p.id, err)
	}
	data, err := typeurl.UnmarshalAny(m.Data)
	if err != nil {
		return onpath.Usage{}, fmt.Errorf("usage of instance %s: %w", p.id, err)
	}
	return usageOf(data)
}

// usageOf reads cgroup metrics of either version. Memory is what could not be
// given back at once: usage less the inactive page cache.
func usageOf(data any) (onpath.Usage, error) {
	var u onpath.Usage
	switch m := data.(type) {
	case *cgroup1.Metrics:
		u.CPU = time.Duration(m.GetCPU().GetUsage().GetTotal())
		u.Throttled = time.Duration(m.GetCPU().GetThrottling().GetThrottledTime())
		u.Memory = workingSet(m.GetMemory().GetUsage().GetUsage(), m.GetMemory().GetTotalInactiveFile())
	case *cgroup2.Metrics:
		u.CPU = time.Duration(m.GetCPU().GetUsageUsec()) * time.Microsecond
		u.Throttled = time.Duration(m.GetCPU().GetThrottledUsec()) * time.Microsecond
		u.Memory = workingSet(m.GetMemory().GetUsage(), m.GetMemory().GetInactiveFile())
	default:
		return u, fmt.Errorf("containerd gives metrics of type %T, which is unknown here", data)
	}
	return u, nil
}

func workingSet(usage, inactive uint64) onpath.Size {
	if inactive > usage {
		return 0
	}
	return onpath.Size(usage - inactive)
}

// Stop implements onpath.Process.
func (p *process) Stop(ctx context.Context, grace time.Duration) error {
	p.stopping.Lock()
	defer p.stopping.Unlock()
	sctx := p.d.scope(ctx)
	if err := p.awaitTaken(ctx); err != nil {
		return err
	}
	if !p.ended() {
		if err := p.terminate(sctx, grace); err != nil {
			return err
		}
	}
	if err := p.d.delete(sctx, p.id); err != nil {
		return fmt.Errorf("stop instance: %w", err)
	}
	p.end(unknownExit, time.Now()) // if the watch has not seen it yet, it will find nothing
	p.d.forget(p)
	return nil
}

// endsWithin waits until the process has ended, for so long at most.
func (p *process) endsWithin(ctx context.Context, d time.Duration) (bool, error) {
	select {
	case <-p.done:
		return true, nil
	case <-time.After(d):
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// terminate asks the process to end, and after grace makes it; at once if it would
// not hear of it.
func (p *process) terminate(ctx context.Context, grace time.Duration) error {
	t, err := p.task(ctx)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return unavailable("stop instance "+p.id, err)
	}
	for wait := grace; wait > 0 && p.awaitHeed(ctx, syscall.SIGTERM, wait); {
		before := executable(p.Pid())
		if err := t.Kill(ctx, syscall.SIGTERM); err != nil && !errdefs.IsNotFound(err) {
			p.d.log.Warn("SIGTERM", "instance", p.id, "err", err)
		}
		soon := min(wait, heedWithin)
		if ended, err := p.endsWithin(ctx, soon); ended || err != nil {
			return err
		}
		wait -= soon
		if executable(p.Pid()) != before {
			continue // what heard it was the runtime's, and has become the program, which has not
		}
		if ended, err := p.endsWithin(ctx, wait); ended || err != nil {
			return err
		}
		break
	}
	if err := t.Kill(ctx, syscall.SIGKILL, containerd.WithKillAll); err != nil && !errdefs.IsNotFound(err) {
		return unavailable("kill instance "+p.id, err)
	}
	select {
	case <-p.done:
	case <-time.After(10 * time.Second):
		return onpath.Errorf(onpath.CodeInternal, "instance %s does not end, even killed; it may wait for a device or a file system", p.id)
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}
