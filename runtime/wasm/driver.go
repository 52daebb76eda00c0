// Package wasm runs functions of kind wasm: each instance is an engine (engine/), a
// process of its own, in an empty network namespace, that may do nothing but run modules.
// The driver opens what an engine needs and may not open, in the instance's network
// namespace: an AF_XDP socket, and sockets at the function's ports. Some engines are started
// ahead (stock.go).
package wasm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/engine"
	"github.com/onpath/onpath/engine/control"
	"github.com/onpath/onpath/engine/wasm"
	"github.com/onpath/onpath/internal/boundlog"
	"github.com/onpath/onpath/internal/exithook"
	"github.com/onpath/onpath/internal/outdial"
)

// Options are the driver's.
type Options struct {
	Dir string // holds a folder for each instance
	// Cgroup is the parent of the instances' control groups; default "/onpath".
	Cgroup string
	// Program is called with the arguments of an engine's process; default: this program.
	Program string
	// MaxLog bounds each of the two files of an instance's log, in bytes. Default 16 MiB.
	MaxLog int64
	// Blocks are the building blocks that modules may use. Default: all that engines offer.
	Blocks []string
	// FetchTargets are addresses that are not public, from which modules may fetch.
	FetchTargets []netip.Prefix
	// Dial connects to hosts that modules fetch from. Default: to public addresses and
	// FetchTargets, never to this machine.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Disk is the most that the blobs of one instance may have. Default 1 GiB.
	Disk onpath.Size
	Log  *slog.Logger // default slog.Default()
}

// Driver implements onpath.Runtime.
type Driver struct {
	opt    Options
	log    *slog.Logger
	exits  *exithook.Watcher
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	stock  stock

	mu    sync.Mutex
	procs map[string]*process
	made  map[string]bool // created and not started
}

var (
	_ onpath.Runtime = (*Driver)(nil)
	_ onpath.Creator = (*Driver)(nil)
)

// New opens the driver.
func New(o Options) (*Driver, error) {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Cgroup == "" {
		o.Cgroup = "/onpath"
	}
	if o.MaxLog == 0 {
		o.MaxLog = 16 << 20
	}
	if o.Blocks == nil {
		o.Blocks = engine.Blocks
	}
	if o.Disk == 0 {
		o.Disk = 1 << 30
	}
	if o.Dial == nil {
		o.Dial = (&outdial.Dialer{Allowed: o.FetchTargets, Setting: "node.fetchTargets"}).DialContext
	}
	if o.Program == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("wasm runtime: %w", err)
		}
		o.Program = self
	}
	dir, err := filepath.Abs(o.Dir)
	if err == nil {
		o.Dir = dir
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("wasm runtime: %w", err)
	}
	d := &Driver{opt: o, log: o.Log.With("runtime", "wasm"), procs: map[string]*process{}, made: map[string]bool{}}
	d.stock.taken = make(chan struct{}, 1)
	d.ctx, d.cancel = context.WithCancel(context.Background())
	if err := d.endStock(); err != nil { // of a killed agent
		return nil, fmt.Errorf("wasm runtime: %w", err)
	}
	if d.exits, err = exithook.New(); err != nil {
		d.log.Info("the end of an engine is noticed when the kernel has cleared it away, not when it begins", "err", err)
	}
	d.wg.Go(func() { d.exits.Run(d.ctx) })
	d.wg.Go(d.dropOrphans) // of engines that crashed under an earlier agent
	return d, nil
}

var safeID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,75}$`)

func (d *Driver) check(r onpath.RunSpec) error {
	if !safeID.MatchString(r.ID) {
		return onpath.Errorf(onpath.CodeInvalid, "%q is no instance id: letters, digits, dot, dash and underscore, at most 76", r.ID)
	}
	if r.Spec.Wasm == nil {
		return onpath.Errorf(onpath.CodeUnsupported, "instance %s: the function is not of kind wasm", r.ID)
	}
	return d.offers(&r.Spec)
}

// offers refuses modules that use what is not offered here.
func (d *Driver) offers(s *onpath.FunctionSpec) error {
	for i := range s.Wasm.Modules {
		m := &s.Wasm.Modules[i]
		read, err := wasm.Read(m.Code)
		if err != nil {
			continue // the engine says what is wrong
		}
		for _, b := range read.Blocks() {
			if !slices.Contains(d.opt.Blocks, b) {
				return onpath.Errorf(onpath.CodeUnsupported,
					"module %s uses %s, which is not offered here (blocks in onpath.yaml)", m.Name, b)
			}
		}
	}
	return nil
}

func (d *Driver) dir(id string) string { return filepath.Join(d.opt.Dir, id) }

// socket is the path of an engine's control socket.
func (d *Driver) socket(id string) string { return filepath.Join(d.dir(id), "control") }

// Control is how to speak to an instance's engine.
func (d *Driver) Control(id string) control.Client { return control.Client{Path: d.socket(id)} }

func (d *Driver) lookup(id string) (*process, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, ok := d.procs[id]
	if !ok {
		return nil, onpath.Errorf(onpath.CodeNotFound, "there is no instance %s on this machine", id)
	}
	return p, nil
}

// Prepare implements onpath.Runtime: modules come with the plan, engines are started ahead.
func (d *Driver) Prepare(ctx context.Context, _ *onpath.FunctionSpec, _ func(string)) error {
	d.keepStock()
	return ctx.Err()
}

// Exec implements onpath.Runtime. An engine sees no program, and may start none.
func (d *Driver) Exec(_ context.Context, id string, _ onpath.ExecSpec) (int, error) {
	if _, err := d.lookup(id); err != nil {
		return -1, err
	}
	return -1, onpath.Errorf(onpath.CodeUnsupported, "instance %s runs WebAssembly: it has no programs to run", id)
}

// Logs implements onpath.Runtime.
func (d *Driver) Logs(ctx context.Context, id string, v onpath.LogView, follow bool, w io.Writer) error {
	p, err := d.lookup(id)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.ctx, cancel)()
	err = boundlog.Follow(ctx, d.dir(id), boundlog.View(v), follow, p.noted, w)
	switch {
	case errors.Is(err, os.ErrNotExist):
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

// Close implements onpath.Runtime: engines go on that have an instance.
func (d *Driver) Close() error {
	d.cancel()
	d.wg.Wait()
	return d.endStock()
}
