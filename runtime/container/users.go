package container

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/userns"
)

// users are an instance's own: the user namespace that its network namespace belongs to.
// A nil one is the machine's.
type users struct {
	namespace *os.File // open while the instance is made
	first     uint32   // the machine's id of root in it
	dir       string   // where its root file system is mounted
	uid       uint32   // of its program
}

// usersOf finds an instance's own users, if it has some.
func (d *Driver) usersOf(r onpath.RunSpec) (*users, error) {
	f, first, err := userns.Owner(r.NetNS)
	if f == nil || err != nil {
		return nil, err
	}
	return &users{namespace: f, first: first, dir: d.rootDir(r.ID)}, nil
}

func (u *users) close() {
	if u != nil {
		u.namespace.Close()
	}
}

// root is the machine's id of the instance's root.
func (u *users) root() uint32 {
	if u == nil {
		return 0
	}
	return u.first
}

// rootDir is where the root file system of an instance with own users is mounted.
func (d *Driver) rootDir(id string) string { return filepath.Join(d.instanceDir(id), "root") }

// keep adds what has containerd keep a snapshot that its container does not name.
func (u *users) keep(labels map[string]string) map[string]string {
	if u != nil {
		labels["containerd.io/gc.root"] = time.Now().UTC().Format(time.RFC3339)
	}
	return labels
}

// mount mounts the layers with the owners shifted, for as long as the instance lives, and
// says how to have them: a containerd of before 2.0 does not shift by itself.
func (u *users) mount(layers []mount.Mount) ([]mount.Mount, error) {
	if err := os.Mkdir(u.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	ids := userns.Mapping(u.first)
	for i := range layers {
		layers[i].Options = append(slices.Clone(layers[i].Options), "uidmap="+ids, "gidmap="+ids)
	}
	if err := mount.All(layers, u.dir); err != nil {
		return nil, fmt.Errorf("root file system with users of its own: %w", err)
	}
	if err := os.Chown(u.dir, int(u.first), int(u.first)); err != nil {
		return nil, err
	}
	return []mount.Mount{{Type: "bind", Source: u.dir, Options: []string{"rbind", "rw"}}}, nil
}

// withUser is oci.WithUser; names are looked up in the mounted root file system.
func (u *users) withUser(name string) oci.SpecOpts {
	if u == nil {
		return oci.WithUser(name)
	}
	return func(ctx context.Context, client oci.Client, c *containers.Container, s *oci.Spec) error {
		root := s.Root.Path
		s.Root.Path = u.dir
		defer func() { s.Root.Path = root }()
		return oci.WithUser(name)(ctx, client, c, s)
	}
}

// tunNode is the device by which a program makes tun interfaces, in its own network.
const tunNode, tunMajor, tunMinor = "/dev/net/tun", 10, 200

// tun gives the instance that device. The machine's own node may be for root alone.
func (u *users) tun() oci.SpecOpts {
	if u == nil {
		return oci.WithLinuxDevice(tunNode, "rwm")
	}
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		node := filepath.Join(filepath.Dir(u.dir), "tun")
		err := unix.Mknod(node, unix.S_IFCHR, int(unix.Mkdev(tunMajor, tunMinor)))
		if err == nil {
			err = os.Chmod(node, 0o666)
		}
		if err != nil {
			return fmt.Errorf("make the instance's %s: %w", tunNode, err)
		}
		s.Mounts = append(s.Mounts, specs.Mount{Destination: tunNode, Type: "bind", Source: node, Options: []string{"bind", "rw"}})
		s.Linux.Resources.Devices = append(s.Linux.Resources.Devices, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Access: "rwm",
			Major: new(int64(tunMajor)), Minor: new(int64(tunMinor))})
		return nil
	}
}

// join has the instance join its namespace.
func (u *users) join(s *oci.Spec) {
	if u == nil {
		return
	}
	u.uid = s.Process.User.UID
	if !boundingSet()["CAP_SYS_RESOURCE"] { // who limits other users' processes needs it: they keep containerd's limits
		s.Process.Rlimits = nil
	}
	s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace,
		Path: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), u.namespace.Fd())})
	ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: u.first, Size: userns.Size}}
	s.Linux.UIDMappings, s.Linux.GIDMappings = ids, ids
}

// ownOutput gives the program of an instance the pipes of its output, which it may want to
// open anew as /dev/stdout.
func (u *users) ownOutput(pid int) error {
	if u == nil {
		return nil
	}
	for fd := 1; fd <= 2; fd++ {
		if err := os.Chown(fmt.Sprintf("/proc/%d/fd/%d", pid, fd), int(u.first+u.uid), -1); err != nil {
			return fmt.Errorf("output of the instance: %w", err)
		}
	}
	return nil
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
