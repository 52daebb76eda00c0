package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"

	"github.com/onpath/onpath"
)

// Labels on our containers, snapshots and images.
const (
	ownerLabel = "onpath.io/owner" // Options.Name
	userLabel  = "onpath.io/label."
	diskLabel  = "onpath.io/disk"
	imageLabel = "onpath.io/image"
)

// cleanupTime is how long tidying up may take after the caller has given up.
const cleanupTime = 20 * time.Second

// claim makes sure that no instance of that id exists or is being started.
func (d *Driver) claim(ctx context.Context, id string) (func(), error) {
	exists := onpath.Errorf(onpath.CodeExists, "instance %s exists already", id)
	release := func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.starting, id)
	}
	d.mu.Lock()
	taken := d.starting[id] || d.procs[id] != nil
	if !taken {
		d.starting[id] = true
	}
	d.mu.Unlock()
	if taken {
		return nil, exists
	}
	_, err := d.client.ContainerService().Get(d.scope(ctx), id)
	if errdefs.IsNotFound(err) {
		return release, nil
	}
	release()
	if err == nil {
		return nil, exists
	}
	return nil, unavailable("look for instance "+id, err)
}

// rootfs makes the writable root of an instance and says how it is mounted.
func (d *Driver) rootfs(ctx context.Context, r onpath.RunSpec, u *users, img containerd.Image) ([]mount.Mount,
	[]containerd.NewContainerOpts, error) {
	if img == nil {
		m, err := d.hostRoot(r)
		return m, nil, err
	}
	sn := d.client.SnapshotService(d.opt.Snapshotter)
	ids, err := img.RootFS(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("image %s: %w", img.Name(), err)
	}
	label := snapshots.WithLabels(u.keep(map[string]string{ownerLabel: d.opt.Name}))
	m, err := sn.Prepare(ctx, r.ID, chainID(ids), label)
	if errdefs.IsAlreadyExists(err) { // left by a start that was cut short: its container does not exist
		if err = sn.Remove(ctx, r.ID); err == nil {
			m, err = sn.Prepare(ctx, r.ID, chainID(ids), label)
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("root file system of image %s: %w", img.Name(), err)
	}
	if u != nil {
		m, err := u.mount(m)
		return m, []containerd.NewContainerOpts{containerd.WithImage(img)}, err
	}
	return m, []containerd.NewContainerOpts{containerd.WithSnapshotter(d.opt.Snapshotter), containerd.WithSnapshot(r.ID),
		containerd.WithImage(img)}, nil
}

// fill mounts the new root for a moment and writes the instance's files.
func (d *Driver) fill(ctx context.Context, r onpath.RunSpec, u *users, root []mount.Mount) error {
	dir := filepath.Join(d.opt.StateDir, "tmp", r.ID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	defer os.Remove(dir)
	if err := mount.All(root, dir); err != nil {
		return fmt.Errorf("mount the root file system of %s: %w", r.ID, err)
	}
	err := writeFiles(dir, u.root(), r)
	return errors.Join(err, mount.UnmountAll(dir, 0))
}

// discard removes whatever a failed start left.
func (d *Driver) discard(id string) {
	ctx, cancel := context.WithTimeout(d.scope(context.Background()), cleanupTime)
	defer cancel()
	if err := d.delete(ctx, id); err != nil {
		d.log.Error("tidy up after a failed start", "instance", id, "err", err)
	}
}

// delete removes task, container, snapshot, mounts, logs of an instance, as far
// as they exist.
func (d *Driver) delete(ctx context.Context, id string) error {
	var errs []error
	keep := func(what string, err error) {
		if err != nil && !errdefs.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("%s of %s: %w", what, id, err))
		}
	}
	c, err := d.client.LoadContainer(ctx, id)
	keep("container", err)
	if err == nil {
		if t, err := c.Task(ctx, nil); err == nil {
			_, err = t.Delete(ctx, containerd.WithProcessKill)
			keep("task", err)
		} else {
			keep("task", err)
		}
		keep("container", c.Delete(ctx))
	}
	// Before the layers that are mounted below.
	if dir := d.rootDir(id); isDir(dir) {
		keep("root file system", mount.UnmountAll(dir, 0))
	}
	keep("snapshot", d.client.SnapshotService(d.opt.Snapshotter).Remove(ctx, id))
	for _, dir := range []string{filepath.Join(d.opt.StateDir, "tmp", id), d.hostDir(id)} {
		if _, err := os.Stat(dir); err == nil {
			keep("mount", mount.UnmountAll(dir, 0))
		}
	}
	if len(errs) == 0 {
		_ = os.Remove(filepath.Join(d.opt.StateDir, "tmp", id))
		keep("files", os.RemoveAll(d.instanceDir(id)))
	}
	return errors.Join(errs...)
}

// startError says in words why an instance does not start.
func startError(err error) error {
	var known *onpath.Error
	if errors.As(err, &known) {
		return known
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	text := err.Error()
	code := onpath.CodeInternal
	switch {
	case strings.Contains(text, "executable file not found"),
		strings.Contains(text, "no such file or directory") && strings.Contains(text, "exec"),
		strings.Contains(text, "permission denied") && strings.Contains(text, "exec"):
		code = onpath.CodeInvalid
	case errdefs.IsUnavailable(err):
		code = onpath.CodeUnavailable
	case errdefs.IsAlreadyExists(err):
		code = onpath.CodeExists
	}
	// runc's messages name its own steps; the last part is the reason.
	if i := strings.LastIndex(text, "unable to start container process: "); i >= 0 {
		text = text[i+len("unable to start container process: "):]
	}
	return &onpath.Error{Code: code, Message: "cannot start: " + inWords(strings.TrimSuffix(text, ": unknown")), Cause: err}
}

func unavailable(what string, err error) error {
	return &onpath.Error{Code: onpath.CodeUnavailable, Message: what + ": containerd: " + err.Error(), Cause: err}
}
