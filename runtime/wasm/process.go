package wasm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/engine/control"
	"github.com/onpath/onpath/engine/keeper"
	"github.com/onpath/onpath/internal/boundlog"
	"github.com/onpath/onpath/internal/cgroup"
	"github.com/onpath/onpath/internal/netnsrun"
)

// unknownExit is the code of a program of which nobody knows how it ended.
const unknownExit = -1

// process is one instance's.
type process struct {
	d        *Driver
	record   record
	cgroup   *cgroup.Group
	pid      int
	done     chan struct{}
	stopping sync.Mutex

	mu        sync.Mutex
	seenEnded time.Time // zero: it runs
	noteExit  *exit     // once its files are gone
	status    control.Status
	needs     chan struct{} // its modules need other things
}

type exit struct {
	code int
	at   time.Time
}

var (
	_ onpath.Process        = (*process)(nil)
	_ onpath.Reconfigurable = (*process)(nil)
	_ onpath.Talkative      = (*process)(nil)
	_ onpath.Modular        = (*process)(nil)
	_ onpath.Attached       = (*process)(nil)
)

func (d *Driver) newProcess(r record, c *cgroup.Group) *process {
	return &process{d: d, record: r, cgroup: c, done: make(chan struct{}), needs: make(chan struct{}, 1)}
}

// watch begins to watch the process; one that has ended already is noticed before it
// returns.
func (p *process) watch(pid int) {
	p.pid = pid
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil || pid == 0 {
		p.end()
		return
	}
	begun, forget := p.d.exits.Watch(pid)
	p.d.wg.Go(func() {
		defer forget()
		defer unix.Close(fd)
		gone := make(chan struct{})
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			for {
				if n, _ := unix.Poll(fds, 200); n > 0 {
					close(gone)
					return
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		}()
		select {
		case <-begun:
			p.end()
		case <-gone:
			p.end()
		case <-p.d.ctx.Done():
		}
		close(stop)
		<-stopped
	})
	p.d.wg.Go(p.look)
	p.d.wg.Go(p.supply)
}

// spec is what the engine was last told to run.
func (p *process) spec() onpath.FunctionSpec {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.record.Spec
}

func (p *process) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seenEnded.IsZero() {
		p.seenEnded = time.Now()
		close(p.done)
	}
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// noted reports whether nothing more comes to the log.
func (p *process) noted() bool {
	if !p.ended() {
		return false
	}
	_, _, ok := keeper.Exit(p.d.dir(p.record.ID))
	p.mu.Lock()
	defer p.mu.Unlock()
	return ok || time.Since(p.seenEnded) > settle
}

// settle is how long after its end the keeper may take to note it.
const settle = 5 * time.Second

// ID implements onpath.Process.
func (p *process) ID() string { return p.record.ID }

// Labels implements onpath.Process.
func (p *process) Labels() map[string]string { return maps.Clone(p.record.Labels) }

// Pid implements onpath.Process.
func (p *process) Pid() int {
	if p.ended() {
		return 0
	}
	return p.pid
}

// AttachedTo implements onpath.Attached.
func (p *process) AttachedTo(netns string) bool {
	its, err := netnsrun.Identity(netns)
	return err != nil || p.record.Namespace == "" || its == p.record.Namespace // an earlier version did not note it
}

// Exited implements onpath.Process.
func (p *process) Exited() <-chan struct{} { return p.done }

// Exit implements onpath.Process.
func (p *process) Exit() (code int, at time.Time) {
	p.mu.Lock()
	seen, noted := p.seenEnded, p.noteExit
	p.mu.Unlock()
	if noted != nil {
		return noted.code, noted.at
	}
	for {
		if code, at, ok := keeper.Exit(p.d.dir(p.record.ID)); ok {
			return code, at
		}
		if time.Since(seen) > settle {
			return unknownExit, seen
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (p *process) gone() error {
	if p.ended() {
		return onpath.Errorf(onpath.CodeNotFound, "instance %s has ended", p.record.ID)
	}
	return nil
}

// Resize implements onpath.Process: the engine, too, is told of other memory.
func (p *process) Resize(ctx context.Context, r onpath.Resources) error {
	if err := p.gone(); err != nil {
		return err
	}
	if err := p.cgroup.Update(linuxResources(r, false)); err != nil {
		return fmt.Errorf("resize instance %s: %w", p.record.ID, err)
	}
	if r.Memory == p.record.Spec.Resources.Memory {
		return nil
	}
	s := p.record.Spec
	s.Resources = r
	return p.set(ctx, s)
}

// Usage implements onpath.Process.
func (p *process) Usage(context.Context) (onpath.Usage, error) {
	if err := p.gone(); err != nil {
		return onpath.Usage{}, err
	}
	cpu, memory, err := p.cgroup.Usage()
	if err != nil {
		return onpath.Usage{}, fmt.Errorf("usage of instance %s: %w", p.record.ID, err)
	}
	return onpath.Usage{CPU: cpu, Memory: onpath.Size(memory)}, nil
}

// LeftOut implements onpath.Talkative.
func (p *process) LeftOut() (int64, string) { return boundlog.LeftOut(p.d.dir(p.record.ID)) }

// Reconfigure implements onpath.Reconfigurable: the list of modules is changed while
// packets go on through those that stay.
func (p *process) Reconfigure(ctx context.Context, s *onpath.FunctionSpec) error {
	if err := p.gone(); err != nil {
		return err
	}
	if err := p.d.offers(s); err != nil {
		return err
	}
	return p.set(ctx, *s)
}

// set tells the engine what it runs, and notes it.
func (p *process) set(ctx context.Context, s onpath.FunctionSpec) error {
	if err := p.d.giveDisk(ctx, &p.record, &s); err != nil {
		return err
	}
	if err := p.d.Control(p.record.ID).Set(ctx, configOf(&s)); err != nil {
		return err
	}
	if err := p.serve(ctx, s.Wasm.Served()); err != nil {
		return fmt.Errorf("serve ports of instance %s: %w", p.record.ID, err)
	}
	p.ask(ctx)
	p.mu.Lock()
	p.record.Spec = s
	p.mu.Unlock()
	kick(p.needs)
	return p.d.save(p.record.ID, p.record)
}

// serve has the engine serve these ports and no others. Connections to ports that stay go on.
func (p *process) serve(ctx context.Context, ports []onpath.ServedPort) error {
	if p.record.NetNS == "" || slices.Equal(p.record.Spec.Wasm.Served(), ports) {
		return nil
	}
	c := p.d.Control(p.record.ID)
	now, err := c.Status(ctx)
	if err != nil {
		return err
	}
	fresh := slices.DeleteFunc(slices.Clone(ports), func(o onpath.ServedPort) bool { return slices.Contains(now.Served, o) })
	if len(fresh) == 0 && len(now.Served) == len(ports) {
		return nil
	}
	files, err := openPorts(p.record.NetNS, fresh)
	defer closeAll(files)
	if err != nil {
		return err
	}
	if err := c.Serve(ctx, ports, files); err != nil {
		return err
	}
	return giveStack(p.record.NetNS, ports)
}

// Stop implements onpath.Process.
func (p *process) Stop(ctx context.Context, grace time.Duration) error {
	p.stopping.Lock()
	defer p.stopping.Unlock()
	crashed := p.ended()
	if !crashed {
		if err := p.terminate(ctx, grace); err != nil {
			return err
		}
	}
	// The keeper notes the end, or has been killed; then nothing writes here any more.
	code, at := p.Exit()
	if err := errors.Join(p.cgroup.Remove(), p.dropDisk(crashed), p.deleteFiles(code, at)); err != nil {
		return fmt.Errorf("stop instance %s: %w", p.record.ID, err)
	}
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	if p.d.procs[p.record.ID] == p {
		delete(p.d.procs, p.record.ID)
	}
	return nil
}

// deleteFiles leaves in memory how it ended.
func (p *process) deleteFiles(code int, at time.Time) error {
	p.mu.Lock()
	p.noteExit = &exit{code, at}
	p.mu.Unlock()
	return os.RemoveAll(p.d.dir(p.record.ID))
}

// lookAgain is how often a process is looked at that has been asked to end.
const lookAgain = 250 * time.Millisecond

// terminate asks the engine to end, and after grace makes it; as soon as it is seen that
// it would not hear of it.
func (p *process) terminate(ctx context.Context, grace time.Duration) error {
	deadline := time.Now().Add(grace)
	asked := false
	for wait := 50; time.Now().Before(deadline) && heeds(p.pid, syscall.SIGTERM, wait); wait = 1 {
		if !asked {
			asked = true
			if err := unix.Kill(p.pid, unix.SIGTERM); err != nil && !errors.Is(err, unix.ESRCH) {
				p.d.log.Warn("SIGTERM", "instance", p.record.ID, "err", err)
			}
		}
		select {
		case <-p.done:
			return nil
		case <-time.After(min(lookAgain, time.Until(deadline))):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return p.kill()
}

func (p *process) kill() error {
	if p.ended() {
		return nil
	}
	if err := unix.Kill(p.pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill instance %s: %w", p.record.ID, err)
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(10 * time.Second):
		return onpath.Errorf(onpath.CodeInternal, "instance %s does not end, even killed", p.record.ID)
	}
}

// heeds reports whether a process has a handler for a signal: the first process of a
// namespace does not hear others. Go sets its own soon after it begins, so it looks some
// times.
func heeds(pid int, s syscall.Signal, times int) bool {
	for range times {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			return false
		}
		_, rest, _ := strings.Cut(string(b), "SigCgt:")
		line, _, _ := strings.Cut(rest, "\n")
		if mask, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64); err == nil && mask>>(s-1)&1 == 1 {
			return true
		}
		time.Sleep(10 * time.Millisecond)
	}
	return false
}

// Adopt implements onpath.Runtime.
func (d *Driver) Adopt(context.Context) (map[string]onpath.Process, error) {
	entries, err := os.ReadDir(d.opt.Dir)
	if err != nil {
		return nil, fmt.Errorf("adopt instances: %w", err)
	}
	out := map[string]onpath.Process{}
	for _, e := range entries {
		id := e.Name()
		if strings.HasPrefix(id, ".") { // no instance's
			continue
		}
		d.mu.Lock()
		p, made := d.procs[id], d.made[id]
		d.mu.Unlock()
		if p == nil && !made {
			p, err = d.adopt(id)
		}
		if err != nil {
			return out, fmt.Errorf("adopt instance %s: %w", id, err)
		}
		if p != nil {
			out[id] = p
		}
	}
	return out, nil
}

func (d *Driver) adopt(id string) (*process, error) {
	r, err := d.load(id)
	if err != nil {
		return nil, os.RemoveAll(d.dir(id)) // not even half made
	}
	if r.Cgroup == "" { // of an earlier version
		r.Cgroup = id
	}
	p := d.newProcess(r, cgroup.Open(filepath.Join(d.opt.Cgroup, r.Cgroup)))
	p.watch(keeper.Running(d.dir(id)))
	if !r.Started { // its agent ended before it was told what it runs
		if err := p.kill(); err != nil {
			return nil, err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.procs[id] = p
	return p, nil
}

// Remove implements onpath.Runtime.
func (d *Driver) Remove(ctx context.Context) error {
	all, err := d.Adopt(ctx)
	errs := []error{err}
	for _, p := range all {
		errs = append(errs, p.Stop(ctx, 0))
	}
	d.cancel()
	d.wg.Wait()
	errs = append(errs, d.endStock(), os.RemoveAll(d.opt.Dir))
	cgroup.RemoveParent(d.opt.Cgroup)
	return errors.Join(errs...)
}
