package inline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/bpfobject"
	"github.com/onpath/onpath/internal/wholefile"
	"github.com/onpath/onpath/sdk"
)

// process is one instance. Nothing runs: it lasts until it is stopped.
type process struct {
	d        *Driver
	id       string
	labels   map[string]string
	function *function
	tables   sdk.Tables

	logging sync.Mutex // say
	lists   atomic.Pointer[[]onpath.Condition]

	mu     sync.Mutex // guards the rest
	leave  func()     // ends what accompany began
	spec   onpath.FunctionSpec
	kept   []byte // what the record says
	exited chan struct{}
	ended  time.Time
}

var (
	_ onpath.Process        = (*process)(nil)
	_ onpath.Reconfigurable = (*process)(nil)
	_ onpath.Inline         = (*process)(nil)
	_ onpath.KeyedCounters  = (*process)(nil)
)

// begin makes the instance: files, tables, and what is in them.
func (p *process) begin() error {
	if err := os.MkdirAll(p.d.dir(p.id), 0o700); err != nil {
		return fmt.Errorf("make the instance's folder: %w", err)
	}
	object, err := wholefile.NewDraft(p.objectPath(), p.function.Object, 0o600)
	if err == nil {
		err = object.Put()
	}
	if err != nil {
		return fmt.Errorf("keep the object: %w", err)
	}
	if p.tables, err = p.function.object.OpenTables(p.d.pins(p.id)); err != nil {
		return err
	}
	if err := p.verify(); err != nil {
		return err
	}
	return p.configure(&p.spec)
}

func (p *process) verify() error {
	n, err := p.function.object.Verify(p.tables)
	if err != nil {
		return err
	}
	p.say("%s, sha256 %s, licence %q: %d instructions verified", p.function.Name, p.function.object.SHA256, p.function.object.License, n)
	return nil
}

// accompany begins what the node does beside the function.
func (p *process) accompany(s *onpath.FunctionSpec) {
	if p.function.Accompany == nil {
		return
	}
	run := p.function.Accompany(told(s.EBPF), &sdk.Instance{ID: p.id, Tables: p.tables, Log: p.d.opt.Log, Say: p.say})
	if run == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { run(ctx) })
	p.leave = func() {
		cancel()
		done.Wait()
	}
}

// abandon ends that.
func (p *process) abandon() {
	if p.leave != nil {
		p.leave()
		p.leave = nil
	}
}

func (p *process) objectPath() string { return filepath.Join(p.d.dir(p.id), objectFile) }

// configure keeps the configuration, and puts it in force.
func (p *process) configure(s *onpath.FunctionSpec) error {
	apply, err := p.function.compile(s.EBPF)
	if err != nil {
		return err
	}
	lists, err := p.listsOf(s)
	if err != nil {
		return err
	}
	data, err := json.Marshal(record{Labels: p.labels, Spec: *s, Lists: lists})
	if err != nil {
		return err
	}
	var kept *wholefile.Draft
	if !bytes.Equal(data, p.kept) { // what is told again needs no space
		if kept, err = wholefile.NewDraft(filepath.Join(p.d.dir(p.id), recordFile), data, 0o600); err != nil {
			return fmt.Errorf("keep the configuration: %w", err)
		}
	}
	p.abandon()
	if err := apply(p.tables); err != nil {
		kept.Discard()
		p.accompany(&p.spec)
		return fmt.Errorf("write the function's configuration: %w", err)
	}
	if err := kept.Put(); err != nil {
		err = fmt.Errorf("keep the configuration: %w", err)
		if again := p.takeBack(); again != nil {
			p.accompany(s)
			return errors.Join(err, fmt.Errorf("it is in force until the agent is started again: %w", again))
		}
		p.accompany(&p.spec)
		return err
	}
	p.kept = data
	p.lists.Store(&lists)
	p.say("told %d values and %d files", len(s.EBPF.Config), len(s.EBPF.Files))
	p.accompany(s)
	return nil
}

// listsOf are the lists of addresses that the function is told: of what it has already,
// since when.
func (p *process) listsOf(s *onpath.FunctionSpec) (out []onpath.Condition, err error) {
	now, before := told(s.EBPF), told(p.spec.EBPF)
	for _, name := range slices.Sorted(maps.Keys(p.function.Lists)) {
		text, ok := now[name]
		if !ok {
			continue
		}
		had := slices.IndexFunc(p.Lists(), func(l onpath.Condition) bool { return l.Type == name })
		if had >= 0 && before[name] == text {
			out = append(out, p.Lists()[had])
			continue
		}
		l, held, err := onpath.ReadAddresses(text)
		if err != nil {
			return nil, sdk.About(name, err)
		}
		if held > 0 {
			p.say("%s: %d lines are left out, for others hold what they say", name, held)
		}
		out = append(out, onpath.Condition{Type: name, Status: onpath.True, Since: time.Now().UTC().Round(0),
			Message: fmt.Sprintf("%d entries", len(l))})
	}
	return out, nil
}

// Lists are the lists of addresses in force, for reports.
func (p *process) Lists() []onpath.Condition {
	if l := p.lists.Load(); l != nil {
		return *l
	}
	return nil
}

// takeBack puts in force what was before.
func (p *process) takeBack() error {
	apply, err := p.function.compile(p.spec.EBPF)
	if err != nil {
		return err
	}
	return apply(p.tables)
}

// ID implements onpath.Process.
func (p *process) ID() string { return p.id }

// Labels implements onpath.Process.
func (p *process) Labels() map[string]string { return p.labels }

// Pid implements onpath.Process: there is none.
func (p *process) Pid() int { return 0 }

// Exited implements onpath.Process.
func (p *process) Exited() <-chan struct{} { return p.exited }

// Exit implements onpath.Process.
func (p *process) Exit() (int, time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return 0, p.ended
}

// Resize implements onpath.Process: tables keep their sizes.
func (p *process) Resize(_ context.Context, r onpath.Resources) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.function.checkMemory(p.spec.EBPF, r.Memory)
}

// Usage implements onpath.Process.
func (p *process) Usage(context.Context) (onpath.Usage, error) {
	var named []string
	for _, l := range p.Lists() {
		named = append(named, l.Type)
	}
	return onpath.Usage{Memory: p.function.memory(named)}, nil
}

// Reconfigure implements onpath.Reconfigurable.
func (p *process) Reconfigure(_ context.Context, s *onpath.FunctionSpec) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.EBPF == nil {
		return onpath.Errorf(onpath.CodeInvalid, "instance %s is an ebpf function", p.id)
	}
	err := p.checkGrowth(s)
	if err == nil {
		err = p.configure(s)
	}
	if err != nil {
		p.say("not told: %v", err)
		return err
	}
	p.spec = *s
	return nil
}

// checkGrowth refuses lists that come to the function, if its memory does not suffice.
func (p *process) checkGrowth(s *onpath.FunctionSpec) error {
	if p.function.memory(p.function.lists(s.EBPF)) <= p.function.memory(p.function.lists(p.spec.EBPF)) {
		return nil
	}
	return p.function.checkMemory(s.EBPF, s.Resources.Memory)
}

// Inline implements onpath.Inline.
func (p *process) Inline() onpath.InlineFunction {
	return onpath.InlineFunction{Object: p.objectPath(), SHA256: p.function.object.SHA256, Maps: p.d.pins(p.id)}
}

// Counters implements onpath.Inline.
func (p *process) Counters() (map[string]uint64, error) {
	return p.function.object.ReadCounters(p.tables)
}

// Keys implements onpath.KeyedCounters.
func (p *process) Keys() ([]onpath.KeyCount, error) {
	if p.function.Keys == nil {
		return nil, nil
	}
	return p.function.Keys(p.tables)
}

// Stop implements onpath.Process.
func (p *process) Stop(context.Context, time.Duration) error {
	p.d.mu.Lock()
	delete(p.d.runs, p.id)
	p.d.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.exited:
		return nil
	default:
	}
	p.ended = time.Now()
	p.abandon()
	close(p.exited)
	return p.remove()
}

func (p *process) remove() error {
	p.abandon()
	bpfobject.CloseTables(p.tables)
	return errors.Join(os.RemoveAll(p.d.pins(p.id)), os.RemoveAll(p.d.dir(p.id)))
}
