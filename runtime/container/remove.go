package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"

	"github.com/onpath/onpath"
)

// Remove implements onpath.Runtime. The driver is closed by it.
func (d *Driver) Remove(ctx context.Context) error {
	all, err := d.Adopt(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range all {
		errs = append(errs, p.Stop(ctx, 0))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	left, err := d.client.ContainerService().List(d.scope(ctx))
	if err != nil {
		return unavailable("remove the container runtime", err)
	}
	if len(left) == 0 { // nobody else uses this namespace
		errs = append(errs, d.removeImages(ctx))
		if d.private != nil {
			d.cancel() // or keepContainerd would start it again
			d.wg.Wait()
			errs = append(errs, d.private.stop(ctx), d.private.remove())
		}
		removeCgroups()
	}
	errs = append(errs, d.Close())
	for _, dir := range []string{"instances", "fifo", "tmp"} {
		errs = append(errs, removeTree(filepath.Join(d.opt.StateDir, dir)))
	}
	_ = os.Remove(d.opt.StateDir) // if nothing of others is in it
	return errors.Join(errs...)
}

// removeImages deletes what we brought, and the namespace if that empties it.
func (d *Driver) removeImages(ctx context.Context) error {
	ctx = d.scope(ctx)
	list, err := d.client.ImageService().List(ctx)
	if err != nil {
		return unavailable("remove images", err)
	}
	for _, img := range list {
		if _, ours := img.Labels[ownerLabel]; !ours {
			continue
		}
		if err := d.client.ImageService().Delete(ctx, img.Name, images.SynchronousDelete()); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("remove image %s: %w", img.Name, err)
		}
	}
	if err := d.client.NamespaceService().Delete(ctx, d.opt.Namespace); err != nil && !errdefs.IsNotFound(err) {
		d.log.Info("the containerd namespace stays, since it is not empty", "namespace", d.opt.Namespace, "reason", err)
	}
	return nil
}

// remove deletes the private containerd's files; it must not run.
func (p *privateContainerd) remove() error {
	err := removeTree(p.dir)
	if dir := filepath.Dir(p.socket); dir != p.dir {
		err = errors.Join(err, removeTree(dir))
		_ = os.Remove(filepath.Dir(dir)) // /run/onpath, if empty
	}
	return err
}

// removeTree deletes a directory of ours with everything mounted below it.
func removeTree(dir string) error {
	if err := mount.UnmountRecursive(dir, 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	return os.RemoveAll(dir)
}

// staleAfter is how long a cgroup without a process must have been so to be one
// that somebody was killed over: runc puts a process into a new one at once.
const staleAfter = time.Minute

// removeCgroups deletes the parents of instances' cgroups that nobody uses, with
// what killed ones left in them.
func removeCgroups() {
	for _, pattern := range []string{"/sys/fs/cgroup" + cgroupParent, "/sys/fs/cgroup/*" + cgroupParent} {
		dirs, _ := filepath.Glob(pattern)
		for _, dir := range dirs {
			removeStale(dir, time.Now())
			_ = os.Remove(dir) // not empty: other drivers' instances are in it
		}
	}
}

// removeStale deletes the cgroups in dir that are old and have no process. The
// kernel refuses to remove one that has.
func removeStale(dir string, now time.Time) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if info, err := e.Info(); err == nil && e.IsDir() && now.Sub(info.ModTime()) > staleAfter {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

// sweep removes what starts and stops that were cut short left on disk: mounts
// and directories of instances that do not exist.
func (d *Driver) sweep(ctx context.Context, known map[string]onpath.Process) {
	entries, err := os.ReadDir(filepath.Join(d.opt.StateDir, "instances"))
	if err != nil {
		return
	}
	for _, e := range entries {
		d.mu.Lock()
		busy := d.starting[e.Name()] || d.procs[e.Name()] != nil
		d.mu.Unlock()
		if _, ok := known[e.Name()]; ok || busy {
			continue
		}
		if err := d.delete(ctx, e.Name()); err != nil {
			d.log.Warn("tidy up", "instance", e.Name(), "err", err)
		}
	}
}
