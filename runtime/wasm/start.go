package wasm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/engine/control"
	"github.com/onpath/onpath/internal/netnsrun"
)

// record is what an agent must know of an instance that an earlier one started.
type record struct {
	ID     string              `json:"id"`
	Labels map[string]string   `json:"labels"`
	Spec   onpath.FunctionSpec `json:"spec"`
	// NetNS is the path of the network namespace that its packets come from, Namespace what
	// was there; the engine itself is in one of its own.
	NetNS     string `json:"netns"`
	Namespace string `json:"namespace,omitempty"`
	// Cgroup is the name of its control group; empty: ID.
	Cgroup string `json:"cgroup,omitempty"`
	// Started: it was told what it runs.
	Started bool `json:"started"`
}

const recordFile = "instance.json"

// save writes a record into a folder.
func (d *Driver) save(folder string, r record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	tmp := filepath.Join(d.dir(folder), recordFile+".new")
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(d.dir(folder), recordFile))
}

// created is an instance that has no engine yet.
type created struct {
	d *Driver
	r onpath.RunSpec
}

// Create implements onpath.Creator.
func (d *Driver) Create(ctx context.Context, r onpath.RunSpec) (onpath.Created, error) {
	if err := d.check(r); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.procs[r.ID] != nil || d.made[r.ID] {
		return nil, onpath.Errorf(onpath.CodeExists, "instance %s exists already", r.ID)
	}
	d.made[r.ID] = true
	return &created{d: d, r: r}, nil
}

// Start implements onpath.Created.
func (c *created) Start(ctx context.Context) (onpath.Process, error) {
	defer func() { _ = c.Discard(ctx) }()
	p, err := c.start(ctx)
	if err != nil {
		return nil, fmt.Errorf("start instance %s: %w", c.r.ID, err)
	}
	return p, nil
}

func (c *created) start(ctx context.Context) (*process, error) {
	d := c.d
	e, err := d.take()
	if err != nil {
		return nil, err
	}
	p, err := c.give(e)
	if err != nil {
		return nil, errors.Join(err, e.discard())
	}
	// What the engine tells may take as long as modules take to compile.
	if err := c.equip(ctx); err != nil {
		select {
		case <-p.done: // and the log says why
			if code, _ := p.Exit(); code >= 0 {
				err = nil
			}
		default:
		}
		if err != nil {
			return nil, errors.Join(err, p.Stop(context.WithoutCancel(ctx), 0))
		}
	}
	p.record.Started = true
	if err := d.save(c.r.ID, p.record); err != nil {
		return nil, errors.Join(err, p.Stop(context.WithoutCancel(ctx), 0))
	}
	d.mu.Lock()
	d.procs[c.r.ID] = p
	d.mu.Unlock()
	return p, nil
}

// give makes an engine the instance's. Until it has its modules, who adopts it ends it.
func (c *created) give(e *idle) (*process, error) {
	d, r := c.d, record{ID: c.r.ID, Labels: c.r.Labels, Spec: c.r.Spec, NetNS: c.r.NetNS, Cgroup: e.name}
	var err error
	if r.Namespace, err = netnsrun.Identity(c.r.NetNS); err != nil {
		return nil, err
	}
	if err := e.cgroup.Update(linuxResources(c.r.Spec.Resources, c.r.Awaited)); err != nil {
		return nil, err
	}
	if err := d.save(e.name, r); err != nil {
		return nil, err
	}
	if err := os.RemoveAll(d.dir(c.r.ID)); err != nil { // of one whose maker died
		return nil, err
	}
	if err := os.Rename(d.dir(e.name), d.dir(c.r.ID)); err != nil {
		return nil, err
	}
	p := d.newProcess(r, e.cgroup)
	p.watch(e.pid)
	return p, nil
}

// equip has the engine run its modules, and then take packets by a device that is opened
// while it compiles them.
func (c *created) equip(ctx context.Context) error {
	client := c.d.Control(c.r.ID)
	if err := c.d.giveDisk(ctx, &record{ID: c.r.ID, Labels: c.r.Labels}, &c.r.Spec); err != nil {
		return err
	}
	if c.r.NetNS == "" {
		return client.Set(ctx, configOf(&c.r.Spec))
	}
	set := make(chan error, 1)
	go func() { set <- client.Set(ctx, configOf(&c.r.Spec)) }()
	dev, files, err := openDevice(c.r.NetNS, c.r.Spec.Wasm.Served())
	defer closeAll(files)
	if err := errors.Join(<-set, err); err != nil {
		return err
	}
	return client.Attach(ctx, dev, files)
}

// configOf is what an engine is told of a function.
func configOf(s *onpath.FunctionSpec) control.Config {
	return control.Config{Modules: s.Wasm.Modules, Packets: s.Packets, Emit: s.Wasm.Emit, Memory: s.Resources.Memory}
}

// Discard implements onpath.Created.
func (c *created) Discard(context.Context) error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	delete(c.d.made, c.r.ID)
	return nil
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

func kick(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
