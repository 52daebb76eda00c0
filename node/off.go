package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node/base"
	"github.com/onpath/onpath/node/fault"
	"github.com/onpath/onpath/node/instance"
	"github.com/onpath/onpath/node/leases"
	"github.com/onpath/onpath/node/machine"
	"github.com/onpath/onpath/node/meter"
	"github.com/onpath/onpath/node/notify"
	"github.com/onpath/onpath/node/peers"
	"github.com/onpath/onpath/node/tunnel"
	"github.com/onpath/onpath/node/wiring"
)

// OffOptions is what Off needs. No agent may run with the same StateDir.
type OffOptions struct {
	// Name of the node; default: the one in the state folder.
	Name     string
	StateDir string
	// Parts that others keep on the machine, in the order in which they go: the
	// data path first, then the runtimes' instances.
	Parts []OffPart
	NetNS string // as in Options
	Log   *slog.Logger
}

// OffPart is something to be removed that the agent does not keep itself.
type OffPart struct {
	What string // "the data path"
	// Found says that there is something of it; if not, Remove is called all
	// the same, and not spoken of.
	Found  bool
	Remove func(ctx context.Context) error
}

// Owner is the name of the node whose agent keeps its state in the folder, as its
// plan says; "" if it never got one.
func Owner(stateDir string) (string, error) {
	saved, err := loadPlan(base.Dir(stateDir))
	if err != nil || saved == nil {
		return "", err
	}
	return saved.Node, nil
}

// Off takes everything of a node off this machine, with all else dead: first
// the data path, so that traffic is ordinary again, then the instances, their
// devices and namespaces, and the state. It says what it removed, in words, and
// goes on after errors. Doing it again does no harm.
func Off(ctx context.Context, o OffOptions) (removed []string, err error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	dir, err := filepath.Abs(o.StateDir)
	if err != nil {
		return nil, fmt.Errorf("find the state folder: %w", err)
	}
	st := base.Dir(dir)
	if _, err := os.Stat(dir); err == nil {
		unlock, err := st.Lock()
		if err != nil {
			return nil, err
		}
		defer unlock()
	}
	var wire []string
	if saved, err := loadPlan(st); err == nil && saved != nil {
		o.Name = cmp.Or(o.Name, saved.Node)
		wire = wireOf(o.NetNS, cmp.Or(saved.InForce, saved.Wanted))
	}
	off := off{o: o, dir: st, wirer: wiring.Wirer{Node: o.Name, NetNS: o.NetNS, Dir: st, Log: o.Log}}
	for _, p := range o.Parts {
		off.step(p.Found, p.What, func() error { return p.Remove(ctx) })
	}
	off.guard()
	off.tunnels()
	off.wires()
	off.folder()
	if len(wire) > 0 {
		o.Log.Warn("nothing crosses between these devices any more: only the data path joined them; put them into a bridge of the kernel if traffic is to cross", "devices", strings.Join(wire, ", "))
	}
	return off.removed, errors.Join(off.errs...)
}

// wireOf are the devices of a bridge that the data path alone joins, none if the kernel
// does, too.
func wireOf(netNS string, p *onpath.NodePlan) (devices []string) {
	if p == nil || p.Datapath.Edge == nil {
		return nil
	}
	h, err := wiring.Open(netNS)
	if err != nil {
		return nil // there is nothing to say, and Off goes on with all else dead
	}
	defer h.Close()
	masters := map[int]bool{}
	for _, u := range p.Datapath.Edge.Uplinks {
		if l, err := h.LinkByName(u.Device); err == nil && u.Attach == onpath.AttachBridge {
			devices = append(devices, u.Device)
			masters[l.Attrs().MasterIndex] = true
		}
	}
	if len(masters) == 1 && !masters[0] {
		return nil // in one bridge of the kernel
	}
	return devices
}

type off struct {
	o       OffOptions
	dir     base.Dir
	wirer   wiring.Wirer
	removed []string
	errs    []error
}

func (f *off) step(found bool, what string, fn func() error) {
	if err := fn(); err != nil {
		f.errs = append(f.errs, fmt.Errorf("remove %s: %w", what, err))
		return
	}
	if !found {
		return
	}
	f.removed = append(f.removed, what)
	f.o.Log.Info("removed", "what", what)
}

// guard removes what closes uplinks.
func (f *off) guard() {
	found, err := machine.RemoveGuard(f.o.NetNS)
	if _, held := os.Stat(machine.HeldFile(f.dir)); held != nil && !found {
		return // a kernel without nftables needs none
	}
	f.step(found, "the guard of its uplinks (table inet "+machine.GuardTable+")", func() error { return err })
}

// tunnels removes the device of WireGuard, its process and its key.
func (f *off) tunnels() {
	found, err := tunnel.Remove(f.dir, f.o.NetNS)
	f.step(found, "the tunnels by WireGuard (device "+onpath.WireGuardDevice+")", func() error { return err })
}

// wires removes devices and namespaces, found by record, by alias and by name.
func (f *off) wires() {
	records, err := instance.Records(f.dir)
	if err != nil {
		f.errs = append(f.errs, err)
	}
	if f.o.Name != "" {
		devices, err := f.wirer.Devices()
		if err != nil {
			f.errs = append(f.errs, err)
		}
		for name := range devices {
			f.step(true, "device "+name, func() error { return f.wirer.DeleteDevice(name) })
		}
	}
	names, err := os.ReadDir(f.dir.Namespaces())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.errs = append(f.errs, err)
	}
	for _, n := range names {
		if _, ok := records[n.Name()]; !ok {
			if records == nil {
				records = map[string]instance.Record{}
			}
			records[n.Name()] = instance.Record{ID: n.Name()}
		}
	}
	for id, rec := range records {
		f.step(true, "network namespace of instance "+id, func() error { return f.wirer.Unwire(id, rec.Vports) })
	}
}

// folder removes what the agent keeps, with the certificate of its join: a node
// that comes back joins anew. Other files in the folder stay.
func (f *off) folder() {
	if len(f.errs) > 0 {
		return // the records are needed to try again
	}
	if _, err := os.Stat(string(f.dir)); err != nil {
		return
	}
	f.step(true, "the state in "+string(f.dir), func() error {
		errs := []error{fault.EndAll(f.dir)} // while it is known what they stopped
		kept := []string{planFile(f.dir), meter.File(f.dir), peers.LostFile(f.dir), machine.HeldFile(f.dir), leases.File(f.dir),
			f.dir.Records(), f.dir.Namespaces(),
			f.dir.Faults(), f.dir.Identity(), notify.Dir(f.dir), f.dir.File("lock")}
		for _, p := range kept {
			errs = append(errs, os.RemoveAll(p))
		}
		if err := os.Remove(string(f.dir)); err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
}
