package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// hostSize bounds what an instance with image: host may write, bytes.
const hostSize = 64 << 20

// hostDir holds the overlay of an instance with image: host.
func (d *Driver) hostDir(id string) string { return filepath.Join(d.instanceDir(id), "host") }

// hostRoot lays an overlay over the node's root file system. An overlay's lower
// layer does not cross mounts, so /proc, /sys and everything mounted below stay
// out. What is written goes to memory: an upper layer on the very file system
// that is the lower one is refused by some kernels.
func (d *Driver) hostRoot(r onpath.RunSpec) ([]mount.Mount, error) {
	dir := d.hostDir(r.ID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	size := int64(r.Spec.Resources.Disk)
	if size <= 0 {
		size = hostSize
	}
	tmpfs := mount.Mount{Type: "tmpfs", Source: "tmpfs", Options: []string{fmt.Sprintf("size=%d", size), "mode=700", "nodev"}}
	if err := tmpfs.Mount(dir); err != nil {
		return nil, fmt.Errorf("overlay of the node's root file system: %w", err)
	}
	upper, work := filepath.Join(dir, "upper"), filepath.Join(dir, "work")
	for _, sub := range []string{upper, work} {
		if err := os.Mkdir(sub, 0o755); err != nil {
			return nil, err
		}
	}
	if err := d.hideHost(upper); err != nil {
		return nil, fmt.Errorf("overlay of the node's root file system: %w", err)
	}
	return []mount.Mount{{Type: "overlay", Source: "overlay", Options: []string{"lowerdir=/", "upperdir=" + upper, "workdir=" + work}}}, nil
}

// hideHost empties, in the upper layer, what is not for instances: what other
// programs have running, and what is secret.
func (d *Driver) hideHost(upper string) error {
	hidden := append([]string{"/run", "/tmp", "/var/tmp", "/root", "/home", d.opt.StateDir, d.opt.ContainerdDir}, d.opt.Hide...)
	for i, dir := range hidden {
		if info, err := os.Lstat(dir); err != nil || !info.IsDir() || covered(dir, hidden[:i]) {
			continue
		}
		mode := os.FileMode(0o755)
		if strings.HasSuffix(dir, "/tmp") {
			mode = 0o777 | os.ModeSticky
		}
		if err := hideDir(upper, filepath.Clean(dir), mode); err != nil {
			return fmt.Errorf("hide %s: %w", dir, err)
		}
	}
	for _, file := range []string{"/etc/shadow", "/etc/gshadow"} {
		if _, err := os.Lstat(file); err != nil {
			continue
		}
		if err := copyUp(upper, filepath.Dir(file)); err != nil {
			return err
		}
		// A whiteout of overlayfs: a character device 0:0.
		if err := unix.Mknod(upper+file, unix.S_IFCHR, 0); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("hide %s: %w", file, err)
		}
	}
	return nil
}

// hideDir makes an empty directory that hides the lower one.
func hideDir(upper, dir string, mode os.FileMode) error {
	if err := copyUp(upper, filepath.Dir(dir)); err != nil {
		return err
	}
	if err := os.Mkdir(upper+dir, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := os.Chmod(upper+dir, mode); err != nil {
		return err
	}
	return unix.Setxattr(upper+dir, "trusted.overlay.opaque", []byte("y"), 0)
}

// copyUp makes dir in the upper layer as it is below, so that the two merge.
func copyUp(upper, dir string) error {
	if dir == "/" {
		return nil
	}
	if err := copyUp(upper, filepath.Dir(dir)); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return err
	}
	if err := os.Mkdir(upper+dir, 0o700); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	}
	if err := os.Chown(upper+dir, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	return unix.Chmod(upper+dir, st.Mode&0o7777)
}

func covered(dir string, by []string) bool {
	return slices.ContainsFunc(by, func(b string) bool { return dir == b || strings.HasPrefix(dir, b+"/") })
}
