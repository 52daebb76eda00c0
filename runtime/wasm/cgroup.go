package wasm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/cpulimit"
)

const (
	minMemory = 24 << 20
	maxPids   = 128
	v2Mount   = "/sys/fs/cgroup"
)

// cgroup is the control group of an instance, of either version.
type cgroup struct {
	path string
	v1   cgroup1.Cgroup
	v2   *cgroup2.Manager
}

func linuxResources(r onpath.Resources, awaited bool) *specs.LinuxResources {
	out := &specs.LinuxResources{CPU: cpulimit.Of(r.CPU, awaited), Pids: &specs.LinuxPids{Limit: new(int64(maxPids))}}
	if r.Memory > 0 {
		limit := max(int64(r.Memory), minMemory)
		out.Memory = &specs.LinuxMemory{Limit: &limit}
	}
	return out
}

func newCgroup(path string, r onpath.Resources) (*cgroup, error) {
	c := &cgroup{path: path}
	var err error
	if cgroups.Mode() == cgroups.Unified {
		c.v2, err = cgroup2.NewManager(v2Mount, path, cgroup2.ToResources(linuxResources(r, false)))
	} else {
		c.v1, err = cgroup1.New(cgroup1.StaticPath(path), linuxResources(r, false))
	}
	if err != nil {
		return nil, fmt.Errorf("make the control group %s: %w", path, err)
	}
	return c, nil
}

// openCgroup finds one that is there; nil if it is not.
func openCgroup(path string) *cgroup {
	c := &cgroup{path: path}
	var err error
	if cgroups.Mode() == cgroups.Unified {
		c.v2, err = cgroup2.Load(path)
	} else {
		c.v1, err = cgroup1.Load(cgroup1.StaticPath(path))
	}
	if err != nil {
		return nil
	}
	return c
}

func (c *cgroup) add(pid int) error {
	var err error
	if c.v2 != nil {
		err = c.v2.AddProc(uint64(pid))
	} else {
		err = c.v1.AddProc(uint64(pid))
	}
	if err != nil {
		return fmt.Errorf("put process %d into control group %s: %w", pid, c.path, err)
	}
	return nil
}

// resize sets what the group may use; awaited: packets wait for its instance.
func (c *cgroup) resize(r onpath.Resources, awaited bool) error {
	if c == nil {
		return fmt.Errorf("it has no control group any more")
	}
	if c.v2 != nil {
		return c.v2.Update(cgroup2.ToResources(linuxResources(r, awaited)))
	}
	return c.v1.Update(linuxResources(r, awaited))
}

func (c *cgroup) usage() (u onpath.Usage, err error) {
	if c == nil {
		return u, fmt.Errorf("it has no control group any more")
	}
	if c.v2 != nil {
		m, err := c.v2.Stat()
		if err != nil {
			return u, err
		}
		return onpath.Usage{CPU: time.Duration(m.GetCPU().GetUsageUsec()) * time.Microsecond,
			Memory: onpath.Size(m.GetMemory().GetUsage())}, nil
	}
	m, err := c.v1.Stat(cgroup1.IgnoreNotExist)
	if err != nil {
		return u, err
	}
	return onpath.Usage{CPU: time.Duration(m.GetCPU().GetUsage().GetTotal()), Memory: onpath.Size(m.GetMemory().GetUsage().GetUsage())}, nil
}

// remove deletes the group; its last process may still be on its way out.
func (c *cgroup) remove() (err error) {
	if c == nil {
		return nil
	}
	for range 200 {
		if c.v2 != nil {
			err = c.v2.Delete()
		} else {
			err = c.v1.Delete()
		}
		if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, cgroup1.ErrCgroupDeleted) || errors.Is(err, os.ErrNotExist) {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("delete the control group %s: %w", c.path, err)
}

// removeParent deletes the parent of all groups, where nobody else has one in it.
func removeParent(path string) {
	dirs, _ := filepath.Glob(v2Mount + "/*" + path) // of version 1: one for each controller
	for _, dir := range append(dirs, v2Mount+path) {
		_ = os.Remove(dir)
	}
}
