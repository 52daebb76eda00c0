// Package fake is a runtime that runs nothing: instances are entries in memory.
// Tests of the node use it where no container is needed; its knobs let them
// make images missing, starts fail and instances die.
package fake

import (
	"bytes"
	"context"
	"io"
	"maps"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/onpath/onpath"
)

// Machine is what outlives a driver: the instances of one machine.
type Machine struct {
	mu    sync.Mutex
	procs map[string]*process
	made  map[string]bool // created and not started
	next  int
	knobs Knobs
}

// Knobs change the machine's behaviour; each may be nil.
type Knobs struct {
	// Prepare, Create and Start are asked before the work is done.
	Prepare func(ctx context.Context, spec *onpath.FunctionSpec) error
	Create  func(ctx context.Context, r onpath.RunSpec) error
	Start   func(ctx context.Context, r onpath.RunSpec) error
	// Exec replaces the built-in commands.
	Exec func(ctx context.Context, id string, e onpath.ExecSpec) (int, error)
	// Usage of an instance.
	Usage func(id string) onpath.Usage
}

// mostPids is above every process number that the kernel gives, so that what asks
// the kernel about an instance's process finds nobody else's.
const mostPids = 1 << 22

// NewMachine makes an empty machine.
func NewMachine() *Machine {
	return &Machine{procs: map[string]*process{}, made: map[string]bool{}, next: mostPids}
}

// Set changes the knobs.
func (m *Machine) Set(k Knobs) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.knobs = k
}

func (m *Machine) get() Knobs {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.knobs
}

// Kill ends an instance's process with an exit code; false if there is none.
func (m *Machine) Kill(id string, code int) bool {
	m.mu.Lock()
	p := m.procs[id]
	m.mu.Unlock()
	return p != nil && p.end(code)
}

// Running lists the ids of the instances whose process runs.
func (m *Machine) Running() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for id, p := range m.procs {
		if p.Pid() != 0 {
			out = append(out, id)
		}
	}
	sort.Strings(out)
	return out
}

// Spec is what an instance was started with, and what it has after its last Resize.
func (m *Machine) Spec(id string) (onpath.RunSpec, bool) {
	m.mu.Lock()
	p, ok := m.procs[id]
	m.mu.Unlock()
	if !ok {
		return onpath.RunSpec{}, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.spec, true
}

// Resources is what an instance has after its last Resize.
func (m *Machine) Resources(id string) onpath.Resources {
	m.mu.Lock()
	p := m.procs[id]
	m.mu.Unlock()
	if p == nil {
		return onpath.Resources{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.spec.Spec.Resources
}

// Runtime is one driver on a machine.
type Runtime struct{ m *Machine }

var (
	_ onpath.Runtime = (*Runtime)(nil)
	_ onpath.Creator = (*Runtime)(nil)
)

// New opens a driver.
func New(m *Machine) *Runtime { return &Runtime{m} }

// Prepare implements onpath.Runtime.
func (r *Runtime) Prepare(ctx context.Context, spec *onpath.FunctionSpec, progress func(string)) error {
	if f := r.m.get().Prepare; f != nil {
		return f(ctx, spec)
	}
	return ctx.Err()
}

var safeID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,75}$`)

// Start implements onpath.Runtime. The commands "exit CODE", "print TEXT" and
// "stubborn" do what they say; every other one runs until it is stopped.
func (r *Runtime) Start(ctx context.Context, s onpath.RunSpec) (onpath.Process, error) {
	c, err := r.Create(ctx, s)
	if err != nil {
		return nil, err
	}
	return c.Start(ctx)
}

// Create implements onpath.Creator.
func (r *Runtime) Create(ctx context.Context, s onpath.RunSpec) (onpath.Created, error) {
	if !safeID.MatchString(s.ID) {
		return nil, onpath.Errorf(onpath.CodeInvalid, "%q is no instance id", s.ID)
	}
	if s.Spec.Container == nil {
		return nil, onpath.Errorf(onpath.CodeUnsupported, "instance %s: the function is not of kind container", s.ID)
	}
	if f := r.m.get().Create; f != nil {
		if err := f(ctx, s); err != nil {
			return nil, err
		}
	}
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	if r.m.procs[s.ID] != nil || r.m.made[s.ID] {
		return nil, onpath.Errorf(onpath.CodeExists, "instance %s exists already", s.ID)
	}
	r.m.made[s.ID] = true
	return created{r.m, s}, nil
}

// created is an instance that waits for its start.
type created struct {
	m    *Machine
	spec onpath.RunSpec
}

// Start implements onpath.Created.
func (c created) Start(ctx context.Context) (onpath.Process, error) {
	var err error
	if f := c.m.get().Start; f != nil {
		err = f(ctx, c.spec)
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	delete(c.m.made, c.spec.ID)
	if err != nil {
		return nil, err
	}
	c.m.next++
	p := &process{m: c.m, spec: c.spec, pid: c.m.next, began: time.Now(), done: make(chan struct{})}
	c.m.procs[c.spec.ID] = p
	switch word, arg := split(c.spec.Spec.Container.Command); word {
	case "exit":
		code, _ := strconv.Atoi(arg)
		p.end(code)
	case "print":
		p.log = arg + "\n"
	case "stubborn":
		p.stubborn = true
	}
	return p, nil
}

// Discard implements onpath.Created.
func (c created) Discard(context.Context) error {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	delete(c.m.made, c.spec.ID)
	return nil
}

// Created lists the ids of the instances that are made and not started.
func (m *Machine) Created() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.made))
}

func split(command []string) (word, arg string) {
	if len(command) == 0 {
		return "", ""
	}
	return command[0], strings.Join(command[1:], " ")
}

// Adopt implements onpath.Runtime.
func (r *Runtime) Adopt(context.Context) (map[string]onpath.Process, error) {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	out := map[string]onpath.Process{}
	for id, p := range r.m.procs {
		out[id] = p
	}
	return out, nil
}

func (r *Runtime) find(id string) (*process, error) {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	p := r.m.procs[id]
	if p == nil {
		return nil, onpath.Errorf(onpath.CodeNotFound, "there is no instance %s on this machine", id)
	}
	return p, nil
}

// Exec implements onpath.Runtime; built in are "exit CODE", "cat" and
// "stubborn", and everything else ends with 0.
func (r *Runtime) Exec(ctx context.Context, id string, e onpath.ExecSpec) (int, error) {
	p, err := r.find(id)
	if err != nil {
		return 0, err
	}
	if p.Pid() == 0 {
		return 0, p.gone()
	}
	if f := r.m.get().Exec; f != nil {
		return f(ctx, id, e)
	}
	switch word, arg := split(e.Command); word {
	case "exit":
		return strconv.Atoi(arg)
	case "cat":
		_, err := io.Copy(e.Stdout, e.Stdin)
		return 0, err
	case "stubborn":
		<-ctx.Done()
		return 0, ctx.Err()
	}
	return 0, nil
}

// Logs implements onpath.Runtime.
func (r *Runtime) Logs(ctx context.Context, id string, v onpath.LogView, follow bool, w io.Writer) error {
	p, err := r.find(id)
	if err != nil {
		return err
	}
	lines := bytes.SplitAfter([]byte(p.log), []byte("\n"))
	lines = lines[:len(lines)-1]
	if v.Tail >= 0 && v.Tail < len(lines) {
		lines = lines[len(lines)-v.Tail:]
	}
	if p.began.Before(v.Since) { // it prints when it begins
		lines = nil
	}
	for _, l := range lines {
		if v.Timestamps {
			l = append(p.began.UTC().AppendFormat(nil, "2006-01-02T15:04:05.000Z "), l...)
		}
		if _, err := w.Write(l); err != nil {
			return err
		}
	}
	if follow {
		select {
		case <-ctx.Done():
		case <-p.done:
		}
	}
	return nil
}

// Close implements onpath.Runtime.
func (r *Runtime) Close() error { return nil }

// Remove implements onpath.Runtime.
func (r *Runtime) Remove(ctx context.Context) error {
	all, err := r.Adopt(ctx)
	if err != nil {
		return err
	}
	for _, p := range all {
		if err := p.Stop(ctx, 0); err != nil {
			return err
		}
	}
	return nil
}

type process struct {
	m        *Machine
	log      string
	began    time.Time
	stubborn bool
	done     chan struct{}

	mu   sync.Mutex
	spec onpath.RunSpec
	pid  int
	code int
	at   time.Time
}

func (p *process) gone() error {
	return onpath.Errorf(onpath.CodeNotFound, "instance %s does not run", p.spec.ID)
}

func (p *process) end(code int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pid == 0 {
		return false
	}
	p.pid, p.code, p.at = 0, code, time.Now()
	close(p.done)
	return true
}

// ID implements onpath.Process.
func (p *process) ID() string { return p.spec.ID }

// Labels implements onpath.Process.
func (p *process) Labels() map[string]string { return maps.Clone(p.spec.Labels) }

// Pid implements onpath.Process.
func (p *process) Pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pid
}

// Exited implements onpath.Process.
func (p *process) Exited() <-chan struct{} { return p.done }

// Exit implements onpath.Process.
func (p *process) Exit() (int, time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.code, p.at
}

// Resize implements onpath.Process.
func (p *process) Resize(_ context.Context, r onpath.Resources) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pid == 0 {
		return p.gone()
	}
	p.spec.Spec.Resources, p.spec.Awaited = r, false
	return nil
}

// Usage implements onpath.Process.
func (p *process) Usage(context.Context) (onpath.Usage, error) {
	if p.Pid() == 0 {
		return onpath.Usage{}, p.gone()
	}
	if f := p.m.get().Usage; f != nil {
		return f(p.ID()), nil
	}
	return onpath.Usage{}, nil
}

// Stop implements onpath.Process.
func (p *process) Stop(ctx context.Context, grace time.Duration) error {
	if p.Pid() != 0 && p.stubborn {
		select {
		case <-time.After(grace):
		case <-ctx.Done():
			return ctx.Err()
		}
		p.end(137)
	}
	p.end(0)
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	if p.m.procs[p.spec.ID] == p {
		delete(p.m.procs, p.spec.ID)
	}
	return nil
}
