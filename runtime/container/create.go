package container

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/mount"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/onpath/onpath"
)

var _ onpath.Creator = (*Driver)(nil)

// Start implements onpath.Runtime.
func (d *Driver) Start(ctx context.Context, r onpath.RunSpec) (onpath.Process, error) {
	c, err := d.Create(ctx, r)
	if err != nil {
		return nil, err
	}
	return c.Start(ctx)
}

// created is a container with its task: runc has made namespaces, cgroups and
// mounts, and its init waits to become the program.
type created struct {
	d       *Driver
	r       onpath.RunSpec
	task    containerd.Task
	proc    *process
	watch   *pidWatch
	users   *users // nil: the machine's
	release func() // of the claim on the id
}

// Create implements onpath.Creator.
func (d *Driver) Create(ctx context.Context, r onpath.RunSpec) (onpath.Created, error) {
	if err := checkRun(r); err != nil {
		return nil, err
	}
	if r.Hostname == "" {
		r.Hostname = strings.NewReplacer("_", "-", ".", "-").Replace(r.ID)
	}
	if len(r.Hostname) > 63 {
		r.Hostname = r.Hostname[:63]
	}
	release, err := d.claim(ctx, r.ID)
	if err != nil {
		return nil, err
	}
	img, err := d.image(ctx, r.Spec.Container.Image, func(string) {})
	if err != nil {
		release()
		return nil, err
	}
	c := &created{d: d, r: r, release: release}
	if err := c.make(d.scope(ctx), img); err != nil {
		d.discard(r.ID)
		release()
		return nil, startError(err)
	}
	return c, nil
}

// make makes container and task.
func (c *created) make(ctx context.Context, img containerd.Image) error {
	var err error
	if img != nil {
		if c.users, err = c.d.usersOf(c.r); err != nil {
			return err
		}
		defer c.users.close()
	}
	container, root, err := c.container(ctx, img)
	if err != nil {
		return err
	}
	if err := c.d.fill(ctx, c.r, c.users, root); err != nil {
		return err
	}
	var opts []containerd.NewTaskOpts
	if img == nil || c.users != nil {
		opts = append(opts, containerd.WithRootFS(root))
	}
	output, err := c.d.logTo(c.r.ID)
	if err != nil {
		return err
	}
	if c.task, err = container.NewTask(ctx, output, opts...); err != nil {
		return err
	}
	if err := c.users.ownOutput(int(c.task.Pid())); err != nil {
		return err
	}
	if err := writeSecrets(int(c.task.Pid()), c.users.root(), c.r.Secrets); err != nil {
		return err
	}
	c.r.Secrets = nil // the process has them
	weighParent()
	c.proc = newProcess(c.d, c.r.ID, c.r.Labels, int(c.task.Pid()))
	c.proc.disk = c.r.Spec.Resources.Disk
	// Watching begins before the program does: no end can be missed.
	if c.watch, err = watchPid(c.proc.pid); err != nil {
		return fmt.Errorf("watch process %d: %w", c.proc.pid, err)
	}
	return nil
}

// container makes root file system and container.
func (c *created) container(ctx context.Context, img containerd.Image) (containerd.Container, []mount.Mount, error) {
	d, r := c.d, c.r
	var config ocispec.ImageConfig
	if img != nil { // nothing half made is collected before the container refers to it
		leased, done, err := d.client.WithLease(ctx)
		if err != nil {
			return nil, nil, unavailable("start instance", err)
		}
		defer done(context.WithoutCancel(leased))
		ctx = leased
		if config, err = imageConfig(ctx, img); err != nil {
			return nil, nil, err
		}
	}
	if err := os.MkdirAll(d.instanceDir(r.ID), 0o700); err != nil {
		return nil, nil, err
	}
	args, err := command(r, config)
	if err != nil {
		return nil, nil, err
	}
	root, opts, err := d.rootfs(ctx, r, c.users, img)
	if err != nil {
		return nil, nil, err
	}
	spec, err := d.spec(ctx, r, c.users, config, args)
	if err != nil {
		return nil, nil, err
	}
	labels := map[string]string{ownerLabel: d.opt.Name, imageLabel: r.Spec.Container.Image,
		diskLabel: strconv.FormatInt(int64(r.Spec.Resources.Disk), 10)}
	for k, v := range r.Labels {
		labels[userLabel+k] = v
	}
	opts = append(opts, containerd.WithContainerLabels(labels), containerd.WithRuntime("io.containerd.runc.v2", nil),
		containerd.WithNewSpec(spec))
	made, err := d.client.NewContainer(ctx, r.ID, opts...)
	return made, root, err
}

// Start implements onpath.Created.
func (c *created) Start(ctx context.Context) (onpath.Process, error) {
	defer c.release()
	if err := c.begin(c.d.scope(ctx)); err != nil {
		c.watch.file.Close()
		c.d.discard(c.r.ID)
		return nil, startError(err)
	}
	c.d.adopt(c.proc, c.watch)
	return c.proc, nil
}

// Discard implements onpath.Created.
func (c *created) Discard(ctx context.Context) error {
	defer c.release()
	c.watch.file.Close()
	if err := c.d.delete(c.d.scope(ctx), c.r.ID); err != nil {
		return fmt.Errorf("discard instance: %w", err)
	}
	return nil
}
