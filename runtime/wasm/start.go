package wasm

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/engine"
	"github.com/onpath/onpath/engine/control"
	"github.com/onpath/onpath/internal/keeper"
	"github.com/onpath/onpath/internal/netnsrun"
)

// record is what an agent must know of an instance that an earlier one started.
type record struct {
	ID      string              `json:"id"`
	Labels  map[string]string   `json:"labels"`
	Spec    onpath.FunctionSpec `json:"spec"`
	NetNS   string              `json:"netns"`
	Started bool                `json:"started"`
}

const recordFile = "instance.json"

func (d *Driver) save(r record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	tmp := filepath.Join(d.dir(r.ID), recordFile+".new")
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(d.dir(r.ID), recordFile))
}

// created is an engine whose process waits.
type created struct {
	d *Driver
	r onpath.RunSpec
	k *keeper.Keeper
	c *cgroup
}

// Create implements onpath.Creator.
func (d *Driver) Create(ctx context.Context, r onpath.RunSpec) (onpath.Created, error) {
	if err := d.check(r); err != nil {
		return nil, err
	}
	d.mu.Lock()
	if d.procs[r.ID] != nil || d.made[r.ID] {
		d.mu.Unlock()
		return nil, onpath.Errorf(onpath.CodeExists, "instance %s exists already", r.ID)
	}
	d.made[r.ID] = true
	d.mu.Unlock()
	c := &created{d: d, r: r}
	if err := c.make(); err != nil {
		_ = c.Discard(ctx)
		return nil, fmt.Errorf("make instance %s: %w", r.ID, err)
	}
	return c, nil
}

// Instances' user numbers, above those that people and services have.
const (
	firstUID = 0x6f00_0000
	uids     = 1 << 24
)

// user is the user number of a tenant's engines.
func user(labels map[string]string, id string) int {
	who := labels["tenant"]
	if who == "" {
		who = id
	}
	sum := sha256.Sum256([]byte(who))
	return firstUID + int(binary.BigEndian.Uint32(sum[:4])%uids)
}

func (c *created) make() error {
	d, id := c.d, c.r.ID
	if err := os.RemoveAll(d.dir(id)); err != nil { // of one whose maker died
		return err
	}
	if err := os.MkdirAll(filepath.Join(d.dir(id), "empty"), 0o711); err != nil {
		return err
	}
	if err := d.save(record{ID: id, Labels: c.r.Labels, Spec: c.r.Spec, NetNS: c.r.NetNS}); err != nil {
		return err
	}
	listener, err := listen(d.socket(id))
	if err != nil {
		return err
	}
	defer listener.Close()
	if c.c, err = newCgroup(filepath.Join(d.opt.Cgroup, id), c.r.Spec.Resources); err != nil {
		return err
	}
	uid := user(c.r.Labels, id)
	p := engine.Process{Control: 3, Empty: filepath.Join(d.dir(id), "empty"), UID: uid, GID: uid, Memory: int64(c.r.Spec.Resources.Memory)}
	order := keeper.Order{Program: d.opt.Program, Args: p.Arguments(), MaxLog: d.opt.MaxLog}
	c.k, err = keeper.Start(d.dir(id), order, listener, func(cmd *exec.Cmd) error {
		return netnsrun.Do(c.r.NetNS, cmd.Start)
	})
	if err != nil {
		return err
	}
	return c.c.add(c.k.Pid)
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

// Start implements onpath.Created.
func (c *created) Start(ctx context.Context) (onpath.Process, error) {
	p, err := c.start(ctx)
	if err != nil {
		_ = c.Discard(context.WithoutCancel(ctx))
		return nil, fmt.Errorf("start instance %s: %w", c.r.ID, err)
	}
	return p, nil
}

func (c *created) start(ctx context.Context) (*process, error) {
	d := c.d
	pid, err := c.k.Begin()
	if err != nil {
		return nil, err
	}
	p := d.newProcess(record{ID: c.r.ID, Labels: c.r.Labels, Spec: c.r.Spec, NetNS: c.r.NetNS, Started: true}, c.c)
	p.watch(pid)
	// What the engine tells may take as long as modules take to compile; what it is told
	// anew by the next agent, if this one ends meanwhile, is the same.
	if err := c.equip(ctx, p); err != nil {
		select {
		case <-p.done: // and the log says why
			if code, _ := p.Exit(); code >= 0 {
				err = nil
			}
		default:
		}
		if err != nil {
			return nil, errors.Join(err, p.kill())
		}
	}
	if err := d.save(p.record); err != nil {
		return nil, errors.Join(err, p.kill())
	}
	d.mu.Lock()
	delete(d.made, c.r.ID)
	d.procs[c.r.ID] = p
	d.mu.Unlock()
	return p, nil
}

// equip has the engine run its modules, and then take packets.
func (c *created) equip(ctx context.Context, p *process) error {
	client := c.d.Control(c.r.ID)
	if err := client.Set(ctx, configOf(&c.r.Spec)); err != nil {
		return err
	}
	if c.r.NetNS == "" {
		return nil
	}
	dev, files, err := openDevice(c.r.NetNS, c.r.Spec.Wasm.Ports)
	if err != nil {
		return err
	}
	defer closeAll(files)
	return client.Attach(ctx, dev, files)
}

// configOf is what an engine is told of a function.
func configOf(s *onpath.FunctionSpec) control.Config {
	return control.Config{Modules: s.Wasm.Modules, Packets: s.Packets, Emit: s.Wasm.Emit}
}

// Discard implements onpath.Created.
func (c *created) Discard(context.Context) error {
	if c.k != nil {
		c.k.Cancel()
	}
	err := c.c.remove()
	err = errors.Join(err, os.RemoveAll(c.d.dir(c.r.ID)))
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	delete(c.d.made, c.r.ID)
	return err
}

// Start implements onpath.Runtime.
func (d *Driver) Start(ctx context.Context, r onpath.RunSpec) (onpath.Process, error) {
	c, err := d.Create(ctx, r)
	if err != nil {
		return nil, err
	}
	return c.Start(ctx)
}

func (d *Driver) load(id string) (r record, err error) {
	b, err := os.ReadFile(filepath.Join(d.dir(id), recordFile))
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	return r, err
}
