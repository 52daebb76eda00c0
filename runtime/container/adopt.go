package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"

	"github.com/onpath/onpath"
)

// Adopt implements onpath.Runtime.
func (d *Driver) Adopt(ctx context.Context) (map[string]onpath.Process, error) {
	sctx := d.scope(ctx)
	list, err := d.client.ContainerService().List(sctx, fmt.Sprintf("labels.%q==%q", ownerLabel, d.opt.Name))
	if err != nil {
		return nil, unavailable("find instances", err)
	}
	out := map[string]onpath.Process{}
	for _, c := range list {
		d.mu.Lock()
		known, starting := d.procs[c.ID], d.starting[c.ID]
		d.mu.Unlock()
		if starting {
			continue
		}
		if known != nil {
			out[c.ID] = known
			continue
		}
		d.finishBegin(c.ID)
		p, err := d.adoptOne(sctx, c.ID, c.Labels)
		if err != nil {
			return nil, err
		}
		out[c.ID] = p
	}
	d.sweep(sctx, out)
	return out, nil
}

// adoptOne takes over one container. Without a task (after a reboot, or where a
// start was cut short) it has ended.
func (d *Driver) adoptOne(ctx context.Context, id string, stored map[string]string) (*process, error) {
	p := newProcess(d, id, userLabels(stored), 0)
	close(p.taken)
	disk, _ := strconv.ParseInt(stored[diskLabel], 10, 64) // one of an earlier version does not say
	p.disk = onpath.Size(disk)
	ended := func(code int, at time.Time) *process {
		p.end(code, at)
		d.mu.Lock()
		d.procs[id] = p
		d.mu.Unlock()
		return p
	}
	t, err := d.task(ctx, id)
	if errdefs.IsNotFound(err) {
		return ended(unknownExit, time.Now()), nil
	}
	pid := 0
	if err == nil {
		pid = int(t.Pid())
	}
	if pid == 0 { // nobody tells; its shim may be busy with a containerd that has just come back
		pid = initOf(id)
	}
	if pid == 0 && err != nil {
		return nil, unavailable("adopt instance "+id, err)
	}
	w, err := watchPid(pid)
	if errors.Is(err, os.ErrProcessDone) {
		return ended(d.exitOf(ctx, id)), nil
	}
	if err != nil {
		return nil, fmt.Errorf("adopt instance %s: %w", id, err)
	}
	// Asked after the watch is set: else the number could already be another process's.
	state, err := d.stateOf(ctx, t, id, pid)
	if err != nil || state != containerd.Running {
		w.file.Close()
	}
	switch {
	case err != nil:
		return nil, err
	case state == containerd.Running:
		p.pid = pid
		d.adopt(p, w)
		return p, nil
	case state == containerd.Created: // a start was cut short
		return ended(unknownExit, time.Now()), nil
	}
	return ended(d.exitOf(ctx, id)), nil
}

func userLabels(stored map[string]string) map[string]string {
	labels := map[string]string{}
	for k, v := range stored {
		if name, ours := strings.CutPrefix(k, userLabel); ours && name != "" {
			labels[name] = v
		}
	}
	return labels
}

// stateOf is what containerd says of a task, or, where it only says that it does not
// know, because the task's shim did not answer it in time, what the kernel does.
func (d *Driver) stateOf(ctx context.Context, t containerd.Task, id string, pid int) (containerd.ProcessStatus, error) {
	var err error
	if t != nil {
		var s containerd.Status
		if s, err = t.Status(ctx); err == nil && s.Status != containerd.Unknown {
			return s.Status, nil
		}
		if errdefs.IsNotFound(err) {
			return containerd.Stopped, nil
		}
	}
	if initOf(id) == pid {
		return containerd.Running, nil
	}
	if err == nil {
		err = errors.New("it does not know its state")
	}
	return containerd.Unknown, unavailable("adopt instance "+id, err)
}

// initOf is the first process of an instance that lives, by its cgroup, or 0.
func initOf(id string) int {
	path := filepath.Join(cgroupParent, id, "cgroup.procs")
	for _, pattern := range []string{"/sys/fs/cgroup" + path, "/sys/fs/cgroup/*" + path} {
		files, _ := filepath.Glob(pattern)
		for _, f := range files {
			data, _ := os.ReadFile(f)
			for _, field := range strings.Fields(string(data)) {
				if pid, err := strconv.Atoi(field); err == nil && isInit(pid) {
					return pid
				}
			}
		}
	}
	return 0
}

// isInit reports whether a process is the first one of its namespace, and lives.
func isInit(pid int) bool {
	status := procStatus(strconv.Itoa(pid))
	if state := status["State"]; state == "" || strings.ContainsAny(state[:1], "ZX") {
		return false
	}
	ids := strings.Fields(status["NSpid"]) // in each namespace, from the outermost
	return len(ids) > 1 && ids[len(ids)-1] == "1"
}
