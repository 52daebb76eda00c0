// Package fault causes faults of instances and of the node, and ends them.
package fault

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/impair"
	"github.com/onpath/onpath/internal/wholefile"
	"github.com/onpath/onpath/node/base"
	"github.com/onpath/onpath/node/wiring"
)

// A fault that lasts is written down before it is caused, with all that its end
// needs: the agent ends it, or the next agent, or its keeper, a process of its
// own; whoever comes second finds nothing to do.

// lease is StateDir/faults/ID.json.
type lease struct {
	Fault   onpath.Fault `json:"fault"`
	NetNS   string       `json:"netns,omitempty"` // of the node's devices
	Inside  string       `json:"inside,omitempty"`
	Stopped []processID  `json:"stopped,omitempty"`
	// Tunnels are lost by the fault's devices.
	Tunnels *impair.Datagrams `json:"tunnels,omitempty"`
}

// Faults causes faults, and ends them.
type Faults struct {
	part      *base.Part
	keeper    []string
	instances Instances
	mu        sync.Mutex // serialises what begins and ends faults
	replaced  sync.Map   // IDs of those whose place another took before their time
}

// New makes one. keeper is a command that, given the file of a fault as its last argument,
// calls Keep; empty: faults end when an agent runs.
func New(p *base.Part, keeper []string, i Instances) *Faults {
	return &Faults{part: p, keeper: keeper, instances: i}
}

// Instances are those of the node.
type Instances interface {
	PIDs() []int // of the first processes
}

// Instance is what a fault of an instance is done to.
type Instance struct {
	ID   string
	Plan onpath.InstancePlan
	PID  int // of its first process; 0: it does not run
}

// OfInstance causes a fault of an instance.
func (f *Faults) OfInstance(r onpath.FaultRequest, in Instance) (*onpath.Fault, error) {
	if in.PID == 0 {
		e := onpath.Errorf(onpath.CodeUnavailable, "instance %s does not run", r.Instance)
		e.Remedy = "wait until it is ready (onpath get instances)"
		return nil, e
	}
	p := f.part
	now := time.Now()
	l := &lease{NetNS: p.NetNS, Inside: p.Dir.NetNS(in.ID), Fault: onpath.Fault{
		ID: fmt.Sprintf("%s-%x", r.Kind, now.UnixNano()), Kind: r.Kind, Instance: r.Instance, Node: p.Node, Began: now,
	}}
	by := byWhom(r)
	if r.Kind == onpath.FaultKill {
		p.TellInstance(in.Plan, true, "FaultInjected", "killed on purpose%s", by)
		return &l.Fault, l.kill(in.PID)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.endLike(r); err != nil {
		return nil, err
	}
	l.Fault.Until = now.Add(time.Duration(r.For))
	l.aim(in.PID, wiring.Of(in.ID, in.Plan))
	if err := saveLease(p.Dir, l); err != nil {
		return nil, err
	}
	f.keep(l)
	if err := l.begin(r); err != nil {
		return nil, errors.Join(err, l.end(), removeLease(p.Dir, l))
	}
	p.TellInstance(in.Plan, true, "FaultInjected", "%s on purpose%s, for %s", r.Kind, by, r.For)
	p.Go(func(ctx context.Context) { f.endInTime(ctx, l) })
	return &l.Fault, nil
}

func byWhom(r onpath.FaultRequest) string {
	if r.By == "" {
		return ""
	}
	return " by " + r.By
}

// endLike ends the faults of that kind at that instance, or of the node: a new one takes
// their place.
func (f *Faults) endLike(r onpath.FaultRequest) error {
	return endFaults(f.part.Dir, func(old *onpath.Fault) bool {
		like := old.Instance == r.Instance && (old.Kind == r.Kind || old.Kind.OfNode() && r.Kind.OfNode())
		if like {
			f.replaced.Store(old.ID, true)
		}
		return like
	})
}

// EndAll ends those that last.
func EndAll(d base.Dir) error {
	return endFaults(d, func(*onpath.Fault) bool { return true })
}

func endFaults(d base.Dir, which func(*onpath.Fault) bool) error {
	entries, _ := os.ReadDir(d.Faults())
	var errs []error
	for _, e := range entries {
		l, err := loadLease(filepath.Join(d.Faults(), e.Name()))
		if err != nil || !which(&l.Fault) {
			continue
		}
		if err := inTurn(d.Faults(), func() error { return errors.Join(l.end(), removeLease(d, l)) }); err != nil {
			errs = append(errs, fmt.Errorf("end fault %s: %w", l.Fault.ID, err))
		}
	}
	return errors.Join(errs...)
}

// keep starts the keeper, which outlives this agent.
func (f *Faults) keep(l *lease) {
	if len(f.keeper) == 0 {
		return
	}
	args := append(f.keeper[1:len(f.keeper):len(f.keeper)], leaseFile(f.part.Dir, l.Fault.ID))
	cmd := exec.Command(f.keeper[0], args...)
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		f.part.Log.Warn("if this agent dies, the fault ends only when an agent runs again", "fault", l.Fault.ID, "err", err)
		return
	}
	go func() { _ = cmd.Wait() }() // no zombie while we live
}

// endInTime ends a fault, unless the agent ends first. If the agent is late, the keeper
// ends it, before or meanwhile; that is told all the same.
func (f *Faults) endInTime(ctx context.Context, l *lease) {
	t := time.NewTimer(time.Until(l.Fault.Until))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return
	case <-t.C:
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, replaced := f.replaced.LoadAndDelete(l.Fault.ID); replaced {
		return
	}
	err := inTurn(f.part.Dir.Faults(), func() error { return errors.Join(l.end(), removeLease(f.part.Dir, l)) })
	if err != nil {
		f.part.Log.Error("a fault does not end", "fault", l.Fault.ID, "err", err)
		return
	}
	f.tellEnded(l)
}

func (f *Faults) tellEnded(l *lease) {
	if l.Fault.Kind.OfNode() {
		f.part.Tell(onpath.NodeEvent{About: f.part.About(), Reason: "FaultEnded", Message: string(l.Fault.Kind) + " is over"})
		return
	}
	tenant, name, _ := strings.Cut(l.Fault.Instance, "/")
	f.part.TellInstance(onpath.InstancePlan{Tenant: tenant, Name: name}, false, "FaultEnded", "%s is over", l.Fault.Kind)
}

// Resume takes up those that an earlier agent caused.
func (f *Faults) Resume() {
	entries, err := os.ReadDir(f.part.Dir.Faults())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.part.Log.Error("cannot read which faults last", "err", err)
	}
	for _, e := range entries {
		l, err := loadLease(filepath.Join(f.part.Dir.Faults(), e.Name()))
		if err != nil {
			f.part.Log.Error("cannot read a fault", "file", e.Name(), "err", err)
			continue
		}
		f.part.Go(func(ctx context.Context) { f.endInTime(ctx, l) })
	}
}

// Keep waits until the fault described in a file is over and ends it, if
// the file is still there: then no agent has.
func Keep(ctx context.Context, file string) error {
	l, err := loadLease(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the agent has ended it already
	}
	if err != nil {
		return err
	}
	t := time.NewTimer(time.Until(l.Fault.Until) + keeperLate)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
	}
	return inTurn(filepath.Dir(file), func() error {
		if l, err = loadLease(file); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return errors.Join(l.end(), os.Remove(file))
	})
}

// inTurn ends faults of a folder while no other process does: of two that take the same
// program from a device, the second would fail.
func inTurn(dir string, end func() error) error {
	d, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return end()
	}
	if err != nil {
		return err
	}
	defer d.Close()
	for {
		if err := unix.Flock(int(d.Fd()), unix.LOCK_EX); err == nil {
			return end()
		} else if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock %s: %w", dir, err)
		}
	}
}

// keeperLate is how long the agent has before its keeper does its work.
const keeperLate = 200 * time.Millisecond

func leaseFile(d base.Dir, id string) string { return filepath.Join(d.Faults(), id+".json") }

func saveLease(d base.Dir, l *lease) error {
	data, err := json.Marshal(l)
	if err == nil {
		err = os.MkdirAll(d.Faults(), 0o750)
	}
	if err == nil {
		err = wholefile.Write(leaseFile(d, l.Fault.ID), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write the fault down: %w", err)
	}
	return nil
}

func removeLease(d base.Dir, l *lease) error {
	if err := os.Remove(leaseFile(d, l.Fault.ID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func loadLease(file string) (*lease, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var l lease
	if err := json.Unmarshal(data, &l); err != nil {
		return nil, fmt.Errorf("read fault %s: %w", file, err)
	}
	return &l, nil
}
