package ebpf

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// exitPrograms are those of bpf/exit_hook.bpf.c, exitMap what they get.
var exitPrograms = []string{"onpath_exit", "onpath_killed"}

const exitMap = "exit_hooks"

//go:embed exit_hook_bpfel.o
var exitObject []byte

var _ onpath.ExitCloser = (*Driver)(nil)

// exits closes vports at the moment a process ends.
type exits struct {
	processes *ebpf.Map // struct exit_hook of bpf/abi.h, by process handle
	links     []link.Link
	watches   map[*exitWatch]bool
}

// exitWatch is of one process.
type exitWatch struct {
	handle int // pidfd
	vports []onpath.VportID
}

type exitValue struct {
	Vports [2]uint32
	Begun  uint32
}

// openExits loads the programs with the configuration's maps. They run as long as
// this process does: nobody but an agent opens again what they close.
func openExits(with *ebpf.Collection) (*exits, error) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(exitObject))
	if err != nil {
		return nil, fmt.Errorf("read the compiled programs: %w", err)
	}
	shared := map[string]*ebpf.Map{}
	for name := range spec.Maps {
		if m := with.Maps[name]; m != nil {
			shared[name] = m
		}
	}
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: shared})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	e := &exits{processes: c.DetachMap(exitMap), watches: map[*exitWatch]bool{}}
	for _, name := range exitPrograms {
		l, err := link.AttachTracing(link.TracingOptions{Program: c.Programs[name], AttachType: ebpf.AttachTraceRawTp})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("watch processes: %w", err), e.close())
		}
		e.links = append(e.links, l)
	}
	return e, nil
}

func (e *exits) close() error {
	if e == nil {
		return nil
	}
	err := e.processes.Close()
	for _, l := range e.links {
		err = errors.Join(err, l.Close())
	}
	return err
}

// CloseAtExit implements onpath.ExitCloser.
func (d *Driver) CloseAtExit(pid int, vports []onpath.VportID) (func(), error) {
	var v exitValue
	if pid <= 0 || len(vports) > len(v.Vports) {
		return nil, onpath.Errorf(onpath.CodeInvalid, "%d vports cannot close with process %d", len(vports), pid)
	}
	for i, id := range vports {
		v.Vports[i] = uint32(id)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, d.errClosed()
	}
	if d.coll == nil {
		return nil, onpath.Errorf(onpath.CodeUnavailable, "nothing is applied on this node")
	}
	if d.exits == nil && !d.endless {
		var err error
		if d.exits, err = openExits(d.coll); err != nil {
			d.endless = true
			d.opts.Log.Warn("instances whose programs end are closed only when the agent has seen it", "error", err)
		}
	}
	if d.exits == nil {
		return nil, onpath.Errorf(onpath.CodeUnsupported, "this kernel does not let the data path close vports with processes")
	}
	handle, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	e := d.exits
	if err := e.processes.Put(int32(handle), v); err != nil {
		unix.Close(handle)
		return nil, fmt.Errorf("watch process %d: %w", pid, err)
	}
	w := &exitWatch{handle, vports}
	e.watches[w] = true
	return func() { d.forgetExit(e, w) }, nil
}

// forgetExit lets a process end without closing anything.
func (d *Driver) forgetExit(e *exits, w *exitWatch) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.exits == e {
		_ = e.processes.Delete(int32(w.handle)) // fails if it has ended
		for _, id := range w.vports {
			d.reread(id)
		}
		delete(e.watches, w)
	}
	unix.Close(w.handle)
}

// rereadExits sees which vports the kernel has closed by itself, so that those
// which are open in the new configuration are written. d.mu is held.
func (d *Driver) rereadExits() {
	if d.exits == nil {
		return
	}
	for w := range d.exits.watches {
		for _, id := range w.vports {
			d.reread(id)
		}
	}
}

// keepEnded closes in a configuration the vports of watched processes that end or
// have ended, whoever does not know of it yet; it reports whether one was open.
// d.mu is held.
func (d *Driver) keepEnded(want *state) (changed bool) {
	if d.exits == nil {
		return false
	}
	for w := range d.exits.watches {
		if !d.exits.begun(w) {
			continue
		}
		for _, id := range w.vports {
			if open(want, uint32(id)) {
				slot := want.slots[uint32(id)]
				v := want.vports[slot]
				v.State = stateClosed
				want.vports[slot] = v
				changed = true
			}
		}
	}
	return changed
}

// begun reports whether a process has begun to end. What is told of one that is
// gone altogether went with it.
func (e *exits) begun(w *exitWatch) bool {
	var v exitValue
	err := e.processes.Lookup(int32(w.handle), &v)
	return v.Begun != 0 || errors.Is(err, ebpf.ErrKeyNotExist) || errors.Is(err, unix.ESRCH)
}

func (d *Driver) reread(id onpath.VportID) {
	slot, ok := d.maps.slots.now[uint32(id)]
	if !ok {
		return
	}
	var v vportValue
	if d.maps.vports.m.Lookup(slot, &v) == nil && v.ID == uint32(id) {
		d.maps.vports.now[slot] = v
	}
}
