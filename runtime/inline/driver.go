// Package inline is the runtime of ebpf functions: it checks their object files,
// makes and fills their tables, and keeps them; the data path runs them. An
// instance is a folder on disk (the object, and what it is told) and one in the
// BPF file system (its tables), which outlive the process.
package inline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/boundlog"
	"github.com/onpath/onpath/internal/bpffs"
	"github.com/onpath/onpath/internal/bpfobject"
	"github.com/onpath/onpath/sdk"
)

// Options of a driver.
type Options struct {
	// Dir holds a folder per instance. Required.
	Dir string
	// PinPath must lie in a BPF file system, which is mounted if missing. Default
	// bpfobject.PinPath.
	PinPath string
	// Functions come with onpath.
	Functions []sdk.Function
	Log       *slog.Logger
}

// Driver is an onpath.Runtime.
type Driver struct {
	opt Options

	mu   sync.Mutex
	runs map[string]*process
}

var _ onpath.Runtime = (*Driver)(nil)

// New opens the runtime. Adopt finds what an earlier one left.
func New(o Options) (*Driver, error) {
	if o.Dir == "" {
		return nil, onpath.Errorf(onpath.CodeInvalid, "the runtime of ebpf functions has no folder")
	}
	if o.PinPath == "" {
		o.PinPath = bpfobject.PinPath
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of ebpf functions: %w", err)
	}
	if err := bpffs.Need(o.PinPath); err != nil {
		return nil, err
	}
	return &Driver{opt: o, runs: map[string]*process{}}, nil
}

// Prepare implements onpath.Runtime: it checks the object and what it is told.
func (d *Driver) Prepare(_ context.Context, spec *onpath.FunctionSpec, progress func(string)) error {
	progress("checking the object")
	f, err := d.open(spec)
	if err != nil {
		return err
	}
	_, err = f.compile(spec.EBPF)
	return err
}

// open reads and checks the function's object, and that its memory suffices.
func (d *Driver) open(spec *onpath.FunctionSpec) (*function, error) {
	f, err := d.known(spec)
	if err != nil {
		return nil, err
	}
	return f, f.checkMemory(spec.EBPF, spec.Resources.Memory)
}

// known reads and checks the function's object.
func (d *Driver) known(spec *onpath.FunctionSpec) (*function, error) {
	if spec.EBPF == nil {
		return nil, onpath.Errorf(onpath.CodeUnsupported, "this runtime runs ebpf functions")
	}
	return read(spec.EBPF, d.opt.Functions)
}

// read reads the function's object.
func read(e *onpath.EBPFSpec, known []sdk.Function) (*function, error) {
	if len(e.Code) > 0 {
		o, err := bpfobject.Parse(e.Code)
		if err != nil {
			return nil, err
		}
		return &function{Function: sdk.Function{Name: e.Object, Object: e.Code, Compile: plain(o)}, object: o}, nil
	}
	i := slices.IndexFunc(known, func(f sdk.Function) bool { return f.Name == e.Object })
	if i < 0 {
		err := onpath.Errorf(onpath.CodeNotFound, "this node has no function %q", e.Object)
		err.Remedy = "the node's onpath may be older than the server's: upgrade it"
		return nil, err
	}
	o, err := bpfobject.Parse(known[i].Object)
	if err != nil {
		return nil, err
	}
	return &function{Function: known[i], object: o}, nil
}

func cpus() int {
	if n, err := ebpf.PossibleCPU(); err == nil {
		return n
	}
	return runtime.NumCPU()
}

// Start implements onpath.Runtime.
func (d *Driver) Start(_ context.Context, r onpath.RunSpec) (onpath.Process, error) {
	if strings.ContainsAny(r.ID, "/.") || r.ID == "" {
		return nil, onpath.Errorf(onpath.CodeInvalid, "%q cannot name an instance", r.ID)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := os.Stat(d.dir(r.ID)); err == nil {
		return nil, onpath.Errorf(onpath.CodeExists, "instance %s exists", r.ID)
	}
	f, err := d.open(&r.Spec)
	if err != nil {
		return nil, err
	}
	p := &process{d: d, id: r.ID, labels: r.Labels, function: f, spec: r.Spec, exited: make(chan struct{})}
	if err := p.begin(); err != nil {
		return nil, errors.Join(err, p.remove())
	}
	d.runs[r.ID] = p
	return p, nil
}

func (d *Driver) dir(id string) string  { return filepath.Join(d.opt.Dir, id) }
func (d *Driver) pins(id string) string { return filepath.Join(d.opt.PinPath, id) }

// Exec implements onpath.Runtime.
func (d *Driver) Exec(context.Context, string, onpath.ExecSpec) (int, error) {
	return 0, onpath.Errorf(onpath.CodeUnsupported, "an ebpf function runs in the kernel: there is nothing to run a command in")
}

// Logs implements onpath.Runtime: what the function was told, and when.
func (d *Driver) Logs(ctx context.Context, id string, v onpath.LogView, follow bool, w io.Writer) error {
	ended := func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.runs[id] == nil
	}
	err := boundlog.Follow(ctx, d.dir(id), boundlog.View{Tail: v.Tail}, follow, ended, boundlog.OwnTimes(w, v.Since))
	if errors.Is(err, os.ErrNotExist) {
		return onpath.Errorf(onpath.CodeNotFound, "there is no instance %s", id)
	}
	return err
}

// Close implements onpath.Runtime.
func (d *Driver) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.runs {
		p.mu.Lock()
		p.abandon()
		p.mu.Unlock()
		bpfobject.CloseTables(p.tables)
	}
	d.runs = map[string]*process{}
	return nil
}

// Remove implements onpath.Runtime.
func (d *Driver) Remove(context.Context) error {
	if err := d.Close(); err != nil {
		return err
	}
	var errs []error
	list, _ := os.ReadDir(d.opt.Dir)
	for _, e := range list {
		errs = append(errs, os.RemoveAll(d.pins(e.Name())), os.RemoveAll(d.dir(e.Name())))
	}
	_ = os.Remove(d.opt.Dir) // if nothing of others is in it
	return errors.Join(errs...)
}
