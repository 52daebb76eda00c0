package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/onpath/onpath"
	"golang.org/x/sys/unix"
)

// Kinds of emulation of shaped links.
const (
	EmulateAuto  = ""      // netem where the kernel has it, else relay
	EmulateNetem = "netem" // the kernel's
	EmulateRelay = "relay" // a process of the lab's
)

// Options are what Up needs beside the topology.
type Options struct {
	Name      string                       // of the lab; empty: the topology's
	StateDir  string                       // empty: DefaultStateDir
	Emulation string                       // EmulateAuto, EmulateNetem or EmulateRelay
	IPNetNS   bool                         // also name the hosts in /run/netns, for ip netns, as LAB-HOST
	Bound     bool                         // it is of no use without this process: List and Status say when that has ended
	Log       *slog.Logger                 // nil: none
	Progress  func(step string, n, of int) // nil: none; called before each step, by Up's goroutine
}

// Lab is one that is up, or was left half up.
type Lab struct {
	dir directory
	*state
	log *slog.Logger
}

// Name is the lab's name.
func (l *Lab) Name() string { return l.state.Name }

// Dir is the directory with the lab's state and logs.
func (l *Lab) Dir() string { return string(l.dir) }

// Unbind has the lab be of use without the process that started it.
func (l *Lab) Unbind() error {
	l.state.Bound = false
	return l.dir.save(l.state)
}

// Topology is what the lab was made from; do not change it.
func (l *Lab) Topology() *Topology { return l.state.Topology }

// Open finds a lab that is up. A lab that nobody finished to start or to stop
// can be opened too, to take it down.
func Open(stateDir, name string) (*Lab, error) {
	if !nodeName.MatchString(name) {
		return nil, onpath.Errorf(onpath.CodeInvalid, "%q is not a lab's name", name)
	}
	d := directoryOf(stateDir, name)
	s, err := d.load()
	if err != nil {
		return nil, err
	}
	return &Lab{d, s, slog.New(slog.DiscardHandler)}, nil
}

// Up makes a topology real. If it fails or ctx ends, it takes back what it
// made. What an interrupted Up or Down of the same name left is removed first;
// a lab of that name that is up is CodeExists.
func Up(ctx context.Context, t *Topology, o Options) (*Lab, error) {
	if o.Name == "" {
		o.Name = t.Name
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Progress == nil {
		o.Progress = func(string, int, int) {}
	}
	if !nodeName.MatchString(o.Name) {
		return nil, onpath.Errorf(onpath.CodeInvalid, "%q is not a lab's name: a lower-case letter first, then letters, digits and hyphens, at most 31 in all", o.Name)
	}
	if err := needRoot(); err != nil {
		return nil, err
	}
	if err := checkPaths(t); err != nil {
		return nil, err
	}
	stateDir := o.StateDir
	if stateDir == "" {
		stateDir = DefaultStateDir
	}
	if err := os.MkdirAll(stateDir, 0o755); err != nil {
		return nil, fmt.Errorf("lab: state directory: %w", err)
	}
	l := &Lab{dir: directoryOf(stateDir, o.Name), log: o.Log.With("lab", o.Name)}
	unlock, err := l.dir.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := l.clearRemains(ctx); err != nil {
		return nil, err
	}
	if err := l.begin(t, o); err != nil {
		return nil, err
	}
	if err := l.build(ctx, o); err != nil {
		l.log.Info("start failed, taking back what was made", "error", err)
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		return nil, errors.Join(err, l.remove(undo))
	}
	return l, nil
}

func needRoot() error {
	if unix.Geteuid() == 0 {
		return nil
	}
	return &onpath.Error{Code: onpath.CodeForbidden, Message: "a lab needs root: it makes network namespaces and devices", Remedy: "run it with sudo"}
}

// checkPaths refuses hosts whose private or shared paths this machine lacks: a host
// sees the machine's files, and what is not there cannot be mounted on.
func checkPaths(t *Topology) error {
	var errs []error
	lacks := func(h *Host, key, format, p, remedy string) {
		e := onpath.Errorf(onpath.CodeInvalid, format, p)
		e.Place, e.Remedy = "hosts."+h.Name+"."+key, remedy
		errs = append(errs, e)
	}
	for _, h := range t.Hosts {
		for _, p := range h.OwnPaths {
			if st, err := os.Stat(p); slices.Contains(ownPaths, p) {
				continue // made if it is missing
			} else if err != nil {
				lacks(h, "private", "%s is not there on this machine", p, "make it first (mkdir -p "+p+"); what the host puts there stays its own")
			} else if !st.IsDir() {
				lacks(h, "private", "%s is no directory on this machine", p, "name a directory")
			}
		}
		for _, p := range h.Share {
			if _, err := os.Stat(p); err != nil {
				lacks(h, "share", "%s is not there on this machine", p, "make it first, or take it out")
			}
		}
	}
	return errors.Join(errs...)
}

// clearRemains removes what a crash left and refuses what is up.
func (l *Lab) clearRemains(ctx context.Context) error {
	old, err := l.dir.load()
	switch {
	case onpath.CodeOf(err) == onpath.CodeNotFound:
		if entries, err := os.ReadDir(string(l.dir)); err == nil && len(entries) > 0 {
			return &onpath.Error{Code: onpath.CodeExists, Place: string(l.dir), Message: "this directory is not a lab's", Remedy: "choose another name or state directory"}
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("lab: state directory: %w", err)
		}
		return nil
	case err != nil:
		return err
	case old.Phase == PhaseUp:
		name := filepath.Base(string(l.dir))
		return &onpath.Error{Code: onpath.CodeExists, Message: fmt.Sprintf("lab %s is up already, since %s", name, old.Created.Format(time.DateTime)), Remedy: "take it down with onpath lab down " + name + ", or choose another name"}
	}
	// The lock is ours, so whoever wrote "starting" or "stopping" is gone.
	l.log.Info("removing what an interrupted run left", "phase", old.Phase, "pid", old.Owner.PID)
	l.state = old
	return l.remove(ctx)
}

// begin writes the state before anything else is made.
func (l *Lab) begin(t *Topology, o Options) error {
	owner, err := identify(os.Getpid())
	if err != nil {
		return fmt.Errorf("lab: who am I: %w", err)
	}
	l.state = &state{Name: o.Name, Phase: PhaseStarting, Owner: owner, Created: time.Now(), IPNetNS: o.IPNetNS, Bound: o.Bound, Topology: t}
	if err := os.MkdirAll(string(l.dir), 0o755); err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	if err := l.dir.save(l.state); err != nil {
		return errors.Join(err, os.RemoveAll(string(l.dir)))
	}
	return nil
}

// build makes everything, in an order in which each part finds what it needs.
func (l *Lab) build(ctx context.Context, o Options) error {
	steps := []struct {
		name string
		do   func(context.Context) error
	}{
		{"emulation", func(ctx context.Context) error { return l.chooseEmulation(ctx, o.Emulation) }},
		{"hosts", l.makeHosts},
		{"links", l.makeLinks},
		{"addresses and routes", l.configureHosts},
		{"emulated links", l.startEmulation},
		{"commands", l.startCommands},
	}
	for i, s := range steps {
		if err := ctx.Err(); err != nil {
			return l.interrupted(s.name, context.Cause(ctx))
		}
		o.Progress(s.name, i+1, len(steps))
		l.log.Debug("step", "name", s.name)
		if err := s.do(ctx); err != nil && ctx.Err() != nil {
			return l.interrupted(s.name, context.Cause(ctx))
		} else if err != nil {
			return fmt.Errorf("lab %s: %s: %w", l.Name(), s.name, err)
		}
	}
	l.Phase = PhaseUp
	return l.dir.save(l.state)
}

// interrupted is the error of a lab that nobody waits for any more.
func (l *Lab) interrupted(step string, why error) error {
	return fmt.Errorf("lab %s is not up: interrupted at step %q, and what was made is removed again: %w", l.Name(), step, why)
}

// nodes are the names of all network namespaces of the lab.
func (l *Lab) nodes() []string {
	names := []string{wire}
	for _, h := range l.state.Topology.Hosts {
		names = append(names, h.Name)
	}
	return names
}

// makeHosts makes the namespaces and binds them below a mount of the lab's
// own: a mount namespace can be bound only where mounts do not propagate.
func (l *Lab) makeHosts(ctx context.Context) error {
	for _, d := range []string{l.dir.namespaces(), l.dir.logs()} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount("onpath-lab", l.dir.namespaces(), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755,size=1m"); err != nil {
		return fmt.Errorf("mount on %s: %w", l.dir.namespaces(), err)
	}
	if err := unix.Mount("", l.dir.namespaces(), "", unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make %s private: %w", l.dir.namespaces(), err)
	}
	for _, node := range l.nodes() {
		if err := ctx.Err(); err != nil {
			return err
		}
		order := hostOrder{Hidden: []string{filepath.Dir(string(l.dir)), DefaultStateDir}}
		if h := l.state.Topology.Host(node); h != nil && h.Private {
			order.Private, order.OwnPaths, order.Share = true, h.OwnPaths, h.Share
		}
		if err := makeNamespaces(ctx, l.dir, node, order); err != nil {
			return err
		}
		if l.IPNetNS && node != wire {
			if err := l.nameForIP(node); err != nil {
				return err
			}
		}
	}
	return nil
}

// nameForIP makes a host visible to ip netns.
func (l *Lab) nameForIP(host string) error {
	if err := os.MkdirAll("/run/netns", 0o755); err != nil {
		return err
	}
	return bindFile(l.dir.net(host), l.dir.ipNetNS(host))
}

// process notes a process of the lab before it may begin its work.
func (l *Lab) process(p *Process) error {
	l.Processes = append(slices.Clip(l.Processes), p)
	return l.dir.save(l.state)
}
