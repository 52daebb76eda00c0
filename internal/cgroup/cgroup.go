// Package cgroup makes control groups of either version.
package cgroup

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
)

const v2Mount = "/sys/fs/cgroup"

// Group is a control group.
type Group struct {
	path string
	v1   cgroup1.Cgroup
	v2   *cgroup2.Manager
}

// New makes a group, whose path is that below the root of all.
func New(path string, r *specs.LinuxResources) (*Group, error) {
	c := &Group{path: path}
	var err error
	if cgroups.Mode() == cgroups.Unified {
		c.v2, err = cgroup2.NewManager(v2Mount, path, cgroup2.ToResources(r))
	} else {
		c.v1, err = cgroup1.New(cgroup1.StaticPath(path), r)
	}
	if err != nil {
		return nil, fmt.Errorf("make the control group %s: %w", path, err)
	}
	return c, nil
}

// Open finds a group that is there; nil: it is not.
func Open(path string) *Group {
	c := &Group{path: path}
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

// Add puts a process into the group.
func (c *Group) Add(pid int) error {
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

var errGone = errors.New("it has no control group any more")

// Update sets what the group may use.
func (c *Group) Update(r *specs.LinuxResources) error {
	switch {
	case c == nil:
		return errGone
	case c.v2 != nil:
		return c.v2.Update(cgroup2.ToResources(r))
	}
	return c.v1.Update(r)
}

// Usage is what the group has taken of processors, and takes of memory, bytes.
func (c *Group) Usage() (cpu time.Duration, memory uint64, err error) {
	if c == nil {
		return 0, 0, errGone
	}
	if c.v2 != nil {
		m, err := c.v2.Stat()
		if err != nil {
			return 0, 0, err
		}
		return time.Duration(m.GetCPU().GetUsageUsec()) * time.Microsecond, m.GetMemory().GetUsage(), nil
	}
	m, err := c.v1.Stat(cgroup1.IgnoreNotExist)
	if err != nil {
		return 0, 0, err
	}
	return time.Duration(m.GetCPU().GetUsage().GetTotal()), m.GetMemory().GetUsage().GetUsage(), nil
}

// Remove deletes the group; its last process may still be on its way out.
func (c *Group) Remove() (err error) {
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

// RemoveParent deletes the parent of all groups, where nobody else has one in it.
func RemoveParent(path string) {
	dirs, _ := filepath.Glob(v2Mount + "/*" + path) // of version 1: one for each controller
	for _, dir := range append(dirs, v2Mount+path) {
		_ = os.Remove(dir)
	}
}
