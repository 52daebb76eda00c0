package wasm

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/engine"
	"github.com/onpath/onpath/engine/keeper"
	"github.com/onpath/onpath/internal/cgroup"
)

// Engines are started ahead, isolated, and wait for an instance: what an instance then takes
// is telling one what it runs. An engine serves one instance, and ends with it.
const (
	// inStock is how many wait, once instances are made here.
	inStock = 2
	// refillAfter is how long others have the processor after one was taken.
	refillAfter = 500 * time.Millisecond
	// waiting begins the names of engines that wait, and of control groups; no instance's
	// does.
	waiting = ".engine-"
	// emptyRoot is a folder on which each engine mounts its root, for itself.
	emptyRoot = ".empty"
)

// idle is an engine without an instance.
type idle struct {
	d      *Driver
	name   string // of its folder, in which it is until an instance takes it, and of its control group
	pid    int
	cgroup *cgroup.Group
}

// Instances' user numbers, above those that people and services have.
const (
	firstUID = 0x6f00_0000
	uids     = 1 << 24
)

// user is the user number of an engine, which nobody else has.
func user(name string) int {
	sum := sha256.Sum256([]byte(name))
	return firstUID + int(binary.BigEndian.Uint32(sum[:4])%uids)
}

// engine starts one.
func (d *Driver) engine() (_ *idle, err error) {
	i := &idle{d: d, name: waiting + strings.ToLower(rand.Text()[:12])}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start an engine: %w", err), i.discard())
		}
	}()
	dir := d.dir(i.name)
	if err := errors.Join(os.Mkdir(dir, 0o711), os.MkdirAll(d.dir(emptyRoot), 0o711)); err != nil {
		return nil, err
	}
	listener, err := listen(d.socket(i.name))
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	if i.cgroup, err = cgroup.New(filepath.Join(d.opt.Cgroup, i.name), linuxResources(onpath.Resources{}, false)); err != nil {
		return nil, err
	}
	uid := user(i.name)
	p := engine.Process{Control: 3, Empty: d.dir(emptyRoot), UID: uid, GID: uid}
	k, err := keeper.Start(dir, keeper.Order{Program: d.opt.Program, Args: p.Arguments(), MaxLog: d.opt.MaxLog}, listener)
	if err != nil {
		return nil, err
	}
	if err := i.cgroup.Add(k.Pid); err != nil {
		k.Cancel()
		return nil, err
	}
	i.pid, err = k.Begin()
	return i, err
}

// listen makes the control socket, which only root may reach.
func listen(path string) (*os.File, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, err
	}
	return l.File()
}

// discard ends an engine that no instance has.
func (i *idle) discard() error {
	if pid := keeper.Running(i.d.dir(i.name)); pid != 0 {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	return errors.Join(i.cgroup.Remove(), os.RemoveAll(i.d.dir(i.name)))
}

// stock are the engines that wait.
type stock struct {
	sync.Mutex // held also while one is started: who needs one waits for it
	waits      []*idle
	taken      chan struct{}
	begin      sync.Once
}

// take gives an engine that waits, or starts one.
func (d *Driver) take() (*idle, error) {
	d.stock.Lock()
	defer d.stock.Unlock()
	defer kick(d.stock.taken)
	for len(d.stock.waits) > 0 {
		i := d.stock.waits[0]
		d.stock.waits = d.stock.waits[1:]
		if keeper.Running(d.dir(i.name)) == i.pid {
			return i, nil
		}
		if err := i.discard(); err != nil { // something has ended it
			return nil, err
		}
	}
	return d.engine()
}

// Stocked waits until the engines that are started ahead all wait and answer.
func (d *Driver) Stocked(ctx context.Context) error {
	for {
		d.stock.Lock()
		waits := slices.Clone(d.stock.waits)
		d.stock.Unlock()
		ready := len(waits) == inStock
		for _, i := range waits {
			if _, err := d.Control(i.name).Status(ctx); err != nil {
				ready = false // an instance took it meanwhile
			}
		}
		if ready {
			return nil
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// keepStock starts engines ahead from now on, as long as the driver is open.
func (d *Driver) keepStock() {
	d.stock.begin.Do(func() { d.wg.Go(d.fill) })
}

func (d *Driver) fill() {
	for d.ctx.Err() == nil {
		if enough := d.add(); enough {
			select {
			case <-d.stock.taken:
			case <-d.ctx.Done():
			}
		}
		select {
		case <-time.After(refillAfter):
		case <-d.ctx.Done():
		}
	}
}

// add starts one engine, unless enough wait. Where it fails, an instance says why that needs
// one.
func (d *Driver) add() (enough bool) {
	d.stock.Lock()
	defer d.stock.Unlock()
	if len(d.stock.waits) >= inStock || d.ctx.Err() != nil {
		return true
	}
	i, err := d.engine()
	if err != nil {
		d.log.Warn("no engine can be started ahead", "err", err)
		return true
	}
	d.stock.waits = append(d.stock.waits, i)
	return false
}

// endStock ends all engines that wait, also those that an agent left which was killed.
func (d *Driver) endStock() error {
	d.stock.Lock()
	defer d.stock.Unlock()
	d.stock.waits = nil
	left, err := filepath.Glob(d.dir(waiting + "*"))
	errs := []error{err}
	for _, dir := range left {
		name := filepath.Base(dir)
		i := &idle{d: d, name: name, cgroup: cgroup.Open(filepath.Join(d.opt.Cgroup, name))}
		errs = append(errs, i.discard())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("end the engines that wait: %w", err)
	}
	return nil
}
