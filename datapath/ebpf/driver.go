// Package ebpf is the data path in the kernel: programs of bpf/ on tc, which
// classify packets, learn flows and pass packets between uplinks, instances and
// tunnels. Maps and links are pinned: traffic goes on while no process of onpath
// runs, and the next one takes them over.
//
// A driver works in the network namespace in which New was called. Several on
// one machine need different names and namespaces.
package ebpf

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/bpffs"
)

// DefaultPinPath is where maps and links are pinned, in a folder per driver.
const DefaultPinPath = "/sys/fs/bpf/onpath"

// Options of a driver.
type Options struct {
	// Name tells the drivers of one machine apart; default "default".
	Name string
	// PinPath must lie in a BPF file system, which is mounted if missing.
	PinPath string
	Log     *slog.Logger
	// Flows is the size of the table of established flows, in entries, by default
	// after the machine's memory; Pending that of each tenant's table of pending ones,
	// by default a sixteenth of that, 16,384 to 131,072, and of many tenants together no
	// more than Flows. They are rounded up to powers of two, take 152 bytes an entry at
	// once, and only matter when a table is made.
	Flows, Pending int
	// NoTCX uses clsact filters also where the kernel has tcx.
	NoTCX bool
}

func (o *Options) fill() error {
	if o.Name == "" {
		o.Name = "default"
	}
	if strings.ContainsAny(o.Name, "/. ") {
		return onpath.Errorf(onpath.CodeInvalid, "%q cannot name a data path: slashes, dots and blanks are not allowed", o.Name)
	}
	if o.PinPath == "" {
		o.PinPath = DefaultPinPath
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	for _, n := range []int{o.Flows, o.Pending} {
		if n < 0 || n > maxFlows {
			return onpath.Errorf(onpath.CodeInvalid, "a flow table cannot have %d entries, at most %d", n, maxFlows)
		}
	}
	return nil
}

func (o *Options) dir() string { return filepath.Join(o.PinPath, o.Name) }

// Driver is an onpath.Datapath.
type Driver struct {
	opts Options
	ns   *namespace
	coll *ebpf.Collection
	// succession waits for the first Apply; nil: the maps are those of the version
	// before, or its are not there any more.
	succession *succession
	att        *attachments
	puntPort

	mu       sync.Mutex // guards all below
	maps     *kernelMaps
	state    *state // what was applied; nil before the first Apply of this process
	slots    slots
	pending  *pending
	capturer *capturer
	fast     fastState
	// peersChecked is when the instances' devices were looked at last.
	peersChecked time.Time
	exits        *exits // nil until the first process is to be watched
	endless      bool   // the kernel cannot watch processes
	linked       map[onpath.VportID]*linked
	shards       map[uint32]shard          // the dispatchers in their places
	linkErrs     map[onpath.VportID]string // why functions are not linked
	readied      map[int]bool              // instance devices where route look-ups may begin
	watches      [maxWatches]watched
	counted      flowCount // by the last round over all entries
	closing      bool      // somebody sees to it that watches end
	alone        bool      // there are peers, but no device has the underlay's address
	closed       bool

	life   context.Context // of the loops
	spared time.Time       // flows may begin anew until spareTime after it
	round  time.Time       // when the numbers of generations began again
	stop   context.CancelFunc
	done   sync.WaitGroup
}

var _ onpath.Datapath = (*Driver)(nil)

// New opens the data path of that name in the calling thread's network
// namespace. What an earlier process left goes on as it was until Apply.
func New(opts Options) (*Driver, error) {
	if err := opts.fill(); err != nil {
		return nil, err
	}
	if err := rlimit.RemoveMemlock(); err != nil { // kernels before 5.11 count maps against it
		opts.Log.Debug("cannot raise the limit of locked memory", "error", err)
	}
	if err := bpffs.Need(opts.PinPath); err != nil {
		return nil, err
	}
	ns, err := currentNamespace()
	if err != nil {
		return nil, err
	}
	d := &Driver{opts: opts, ns: ns}
	d.puntPort.d, d.puntPort.made, d.puntPort.taken = d, make(chan struct{}, 1), map[onpath.VportID]uint32{}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.open(); err != nil {
		return nil, errors.Join(err, d.letGo(), ns.close())
	}
	return d, nil
}

// open loads the programs, takes over what is pinned, and starts the loops that
// age entries and follow the node's addresses. d.mu is held.
func (d *Driver) open() error {
	spec, err := objectSpec(d.opts)
	if err != nil {
		return err
	}
	if err := sizeLocals(spec, d.ns.nl); err != nil {
		return err
	}
	c, succession, err := loadObject(spec, d.opts)
	if err != nil {
		return err
	}
	d.coll, d.succession = c, succession
	if d.pending, err = openPending(c.Maps[pendingMap], spec.Maps[pendingMap].InnerMap, c.Maps["tenants"]); err != nil {
		return err
	}
	if d.opts.Pending == 0 {
		d.pending.most, d.pending.least = c.Maps[flowsMap].MaxEntries(), tableSize(perCPU*ebpf.MustPossibleCPU(), 0)
	}
	if d.maps, err = openMaps(c, spec); err != nil {
		return err
	}
	d.slots = recoverSlots(d.maps)
	d.state, d.counted = nil, flowCount{}
	d.shards = map[uint32]shard{}
	d.readied, d.linked, d.linkErrs = map[int]bool{}, map[onpath.VportID]*linked{}, map[onpath.VportID]string{}
	d.fast = fastState{value: d.maps.fasts.now[0]}
	d.fast.next, d.fast.begun = d.fast.value.Epoch, true
	if err := c.Maps["stages"].Put(stageResume, c.Programs[program]); err != nil {
		return fmt.Errorf("put the program in its place behind the functions: %w", err)
	}
	if err := c.Maps["stages"].Put(stagePunt, c.Programs[puntProgram]); err != nil {
		return fmt.Errorf("put the program of the punt port in its place: %w", err)
	}
	if err := d.forgetWatches(); err != nil {
		return err
	}
	err = d.ns.do(func() error {
		d.att, err = openAttachments(d.opts.dir(), d.ns, c.Programs, succession != nil)
		if d.att != nil && d.opts.NoTCX {
			d.att.noTCX = true
		}
		return err
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	d.life, d.stop = ctx, stop
	succession.beginEntries(ctx, &d.done, c.Maps[flowsMap])
	d.done.Go(func() { d.sweepLoop(ctx, c.Maps[natsMap], c.Maps[affinitiesMap]) })
	d.done.Go(func() { d.fastLoop(ctx) })
	if err := d.watchRoutes(ctx); err != nil {
		return err
	}
	return d.watchAddresses(ctx) // the last: it waits for the lock
}

// Close implements onpath.Datapath.
func (d *Driver) Close() error {
	if d.shut() {
		return errors.Join(d.letGo(), d.ns.close())
	}
	return nil
}

// shut marks the driver as closed; false if it was.
func (d *Driver) shut() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	was := d.closed
	d.closed = true
	return !was
}

// letGo ends the loops and closes all that is open; what is pinned stays.
func (d *Driver) letGo() error {
	if d.stop != nil {
		d.stop()
		d.done.Wait()
		d.stop = nil
	}
	if d.att != nil {
		d.att.close()
		d.att = nil
	}
	err := d.exits.close()
	d.exits = nil
	if d.pending != nil {
		d.pending.close()
		d.pending = nil
	}
	if d.maps != nil && d.maps.prefilter != nil {
		err = errors.Join(err, d.maps.prefilter.close())
	}
	if d.maps != nil && d.maps.tables != nil {
		err = errors.Join(err, d.maps.tables.close())
	}
	for _, l := range d.linked {
		l.close()
	}
	d.linked = nil
	if d.succession != nil {
		err = errors.Join(err, d.succession.abandon())
		d.succession = nil
	}
	if d.coll != nil {
		d.coll.Close()
		d.coll, d.maps = nil, nil
	}
	return err
}

// errClosed is what methods say after Close or Remove.
func (d *Driver) errClosed() error {
	return onpath.Errorf(onpath.CodeUnavailable, "the data path %s was closed", d.opts.Name)
}

// Remove implements onpath.Datapath. An Apply after it installs anew.
func (d *Driver) Remove(ctx context.Context) error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return d.errClosed()
	}
	stop := d.stop
	d.stop = nil
	d.mu.Unlock()
	if stop != nil {
		stop() // without the lock, which the loops take
		d.done.Wait()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.letGo()
	return errors.Join(err, remove(ctx, d.opts, d.ns))
}

// Installed reports whether there is something of the data path of that name on
// this machine, whichever process left it.
func Installed(opts Options) bool {
	if opts.fill() != nil {
		return false
	}
	left, err := os.ReadDir(opts.dir())
	return err == nil && len(left) > 0
}

// Names are of the data paths that are on this machine, whichever process left
// them, at a pin path; "" is the default.
func Names(pinPath string) (names []string) {
	if pinPath == "" {
		pinPath = DefaultPinPath
	}
	dirs, _ := os.ReadDir(pinPath)
	for _, d := range dirs {
		if Installed(Options{Name: d.Name(), PinPath: pinPath}) {
			names = append(names, d.Name())
		}
	}
	return names
}

// Remove takes the data path of that name off the calling thread's network
// namespace, whichever process left it, without loading anything.
func Remove(ctx context.Context, opts Options) error {
	if err := opts.fill(); err != nil {
		return err
	}
	if err := bpffs.Need(opts.PinPath); err != nil {
		return err
	}
	ns, err := currentNamespace()
	if err != nil {
		return err
	}
	defer ns.close()
	return remove(ctx, opts, ns)
}

func remove(ctx context.Context, opts Options, ns *namespace) error {
	return ns.do(func() error {
		var errs []error
		links, _ := filepath.Glob(filepath.Join(opts.dir(), "link-*"))
		for _, f := range links {
			errs = append(errs, removeLink(f))
			if a, ok := parseLinkFile(filepath.Base(f)); ok {
				errs = append(errs, a.setPromiscuous(ns.nl, false))
			}
		}
		devices, err := dump(ns.nl.LinkList)
		errs = append(errs, err)
		for _, l := range devices {
			errs = append(errs, ctx.Err(), removeFilters(ns.nl, l.Attrs().Index, nil))
		}
		errs = append(errs, removeTunnel(ns.nl), removePunt(ns.nl), giveBackPorts(opts.dir()))
		if err := os.RemoveAll(opts.dir()); err != nil {
			errs = append(errs, fmt.Errorf("unpin the data path: %w", err))
		}
		return errors.Join(errs...)
	})
}
