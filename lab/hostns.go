package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Paths that a host with private mounts has for itself, empty at first. Those
// of optional exist only on machines that have such a program.
var (
	ownPaths      = []string{"/run", "/tmp", "/dev/shm", "/var/lib/onpath"}
	optionalPaths = []string{"/var/tmp", "/var/lib/containerd"}
)

// Mounts below /sys that belong to the machine and stay visible.
var keptOfSys = []string{"/sys/fs/cgroup", "/sys/kernel/debug", "/sys/kernel/tracing", "/sys/kernel/security", "/sys/kernel/btf"}

// hostOrder tells the helper what to prepare.
type hostOrder struct {
	Private  bool
	OwnPaths []string
	Share    []string
	Hidden   []string // mounts at and below these are not for the host
	CPU      int      // number of the processor to work on, from 1; 0: any
}

// makeNamespaces makes the namespaces of a node and binds them to files.
//
// The kernel lets a mount namespace be bound only within one of a lower number,
// and newer kernels deal out these numbers to processors in lots. Where this
// process is in a mount namespace of its own (a container, a service with
// private mounts), the new one's number may be the lower; on the processor
// where ours was made it never is.
func makeNamespaces(ctx context.Context, d directory, node string, order hostOrder) error {
	err := tryNamespaces(ctx, d, node, order)
	if !order.Private || !errors.Is(err, unix.EINVAL) {
		return err
	}
	var allowed unix.CPUSet
	if unix.SchedGetaffinity(0, &allowed) != nil {
		return err
	}
	for cpu := range len(allowed) * strconv.IntSize {
		if !allowed.IsSet(cpu) {
			continue
		}
		order.CPU = cpu + 1
		if again := tryNamespaces(ctx, d, node, order); again == nil || !errors.Is(again, unix.EINVAL) {
			return again
		}
	}
	return err
}

// tryNamespaces leaves no files behind if it fails. A helper process makes the
// namespaces, because threads of ours must not be left inside.
func tryNamespaces(ctx context.Context, d directory, node string, order hostOrder) error {
	b, err := json.Marshal(order)
	if err != nil {
		return fmt.Errorf("lab: host %s: %w", node, err)
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Args = []string{nameHost, string(b)}
	cmd.Dir = "/"
	var complaint strings.Builder
	cmd.Stderr = &complaint
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		return fmt.Errorf("lab: host %s: %w", node, err)
	}
	defer func() { in.Close(); _ = cmd.Wait() }()
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
		in.Close()
		_ = cmd.Wait()
		return fmt.Errorf("lab: host %s: %s", node, strings.TrimSpace(complaint.String()))
	}
	proc := "/proc/" + strconv.Itoa(cmd.Process.Pid) + "/ns/"
	if err := bindFile(proc+"net", d.net(node)); err != nil || !order.Private {
		return err
	}
	if err := bindFile(proc+"mnt", d.mnt(node)); err != nil {
		return errors.Join(err, unix.Unmount(d.net(node), unix.MNT_DETACH), os.Remove(d.net(node)))
	}
	return nil
}

func bindFile(from, to string) error {
	f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_RDONLY|unix.O_CLOEXEC, 0o444)
	if err != nil {
		return fmt.Errorf("lab: namespace file: %w", err)
	}
	f.Close()
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return errors.Join(fmt.Errorf("lab: bind namespace to %s: %w", to, err), os.Remove(to))
	}
	return nil
}

// hostMain is the helper: it makes the namespaces, says so by one byte, and
// ends when its standard input does.
func hostMain(args []string) error {
	var order hostOrder
	if len(args) != 1 || json.Unmarshal([]byte(args[0]), &order) != nil {
		return errors.New("helper called by hand")
	}
	if order.CPU > 0 {
		var one unix.CPUSet
		one.Set(order.CPU - 1)
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			return fmt.Errorf("work on processor %d: %w", order.CPU-1, err)
		}
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("new network namespace: %w", err)
	}
	if order.Private {
		if err := privateMounts(order); err != nil {
			return err
		}
	}
	if _, err := os.Stdout.Write([]byte{1}); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// privateMounts gives the process a mount namespace in which nothing that it
// mounts or writes at its own paths is seen elsewhere.
func privateMounts(order hostOrder) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("new mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	kept, err := cloneMounts(order.Share, true)
	if err != nil {
		return err
	}
	ofSys, err := cloneMounts(keptOfSys, false)
	if err != nil {
		return err
	}
	// Copies of other labs' and hosts' mounts would keep these alive.
	if err := detach(append([]string{"/run/netns"}, order.Hidden...)); err != nil {
		return err
	}
	own, err := existing(order.OwnPaths)
	if err != nil {
		return err
	}
	if err := detach(own); err != nil {
		return err
	}
	for _, p := range own {
		mode, flags := "mode=0755", uintptr(0)
		if strings.HasSuffix(p, "tmp") || p == "/dev/shm" {
			mode, flags = "mode=1777", unix.MS_NOSUID|unix.MS_NODEV
		}
		if err := unix.Mount("onpath-lab", p, "tmpfs", flags, mode); err != nil {
			return fmt.Errorf("mount on %s: %w", p, err)
		}
	}
	if err := newSys(ofSys); err != nil {
		return err
	}
	return attachMounts(kept)
}

// existing is the list of paths to make the host's own. /var/lib/onpath is
// made if it is missing, because it has to be there to be mounted on.
func existing(more []string) ([]string, error) {
	if err := os.MkdirAll("/var/lib/onpath", 0o755); err != nil {
		return nil, err
	}
	paths := slices.Clone(ownPaths)
	for _, p := range optionalPaths {
		if st, err := os.Stat(p); err == nil && st.IsDir() {
			paths = append(paths, p)
		}
	}
	for _, p := range more {
		if slices.Contains(paths, p) {
			continue
		}
		if st, err := os.Stat(p); err != nil || !st.IsDir() {
			return nil, fmt.Errorf("private path %s is not a directory of this machine; make it first", p)
		}
		paths = append(paths, p)
	}
	slices.Sort(paths) // what is above is mounted first
	return paths, nil
}

// clone is a copy of a mount that can be attached again.
type clone struct {
	path string
	fd   int
	file bool
}

// cloneMounts copies what is mounted at the paths, with all below. Those that
// are missing are an error only if they must be there.
func cloneMounts(paths []string, must bool) ([]clone, error) {
	var out []clone
	for _, p := range paths {
		st, err := os.Stat(p)
		if err != nil && must {
			return nil, fmt.Errorf("shared path %s is not there", p)
		}
		if err != nil {
			continue
		}
		fd, err := unix.OpenTree(unix.AT_FDCWD, p, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if err != nil {
			return nil, fmt.Errorf("copy the mounts at %s: %w", p, err)
		}
		out = append(out, clone{p, fd, !st.IsDir()})
	}
	return out, nil
}

func attachMounts(clones []clone) error {
	for _, c := range clones {
		if err := mountPoint(c); err != nil {
			return fmt.Errorf("share %s: %w", c.path, err)
		}
		if err := unix.MoveMount(c.fd, "", unix.AT_FDCWD, c.path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("share %s: %w", c.path, err)
		}
		unix.Close(c.fd)
	}
	return nil
}

func mountPoint(c clone) error {
	if _, err := os.Stat(c.path); err == nil {
		return nil
	}
	if !c.file {
		return os.MkdirAll(c.path, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(c.path), 0o755); err != nil {
		return err
	}
	f, err := os.Create(c.path)
	if err != nil {
		return err
	}
	return f.Close()
}

// newSys mounts the /sys of the new network namespace, with an own bpffs and
// with the machine's cgroups.
func newSys(kept []clone) error {
	if err := detach([]string{"/sys"}); err != nil {
		return err
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	// A path that is no mount point of its own is part of sysfs and new already.
	kept = slices.DeleteFunc(kept, func(c clone) bool { return !isMountRoot(c.fd) })
	if err := attachMounts(kept); err != nil {
		return err
	}
	if _, err := os.Stat("/sys/fs/bpf"); err != nil {
		return nil // a kernel without BPF
	}
	if err := unix.Mount("bpf", "/sys/fs/bpf", "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return fmt.Errorf("mount /sys/fs/bpf: %w", err)
	}
	return nil
}

// isMountRoot reports whether the clone's file system is another than sysfs.
func isMountRoot(fd int) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(fd, &st) == nil && st.Type != unix.SYSFS_MAGIC
}

// detach unmounts all that is mounted at and below the paths, in the mount
// namespace of the calling thread.
func detach(paths []string) error {
	points, err := mountPoints()
	if err != nil {
		return err
	}
	for _, at := range slices.Backward(points) {
		if !slices.ContainsFunc(paths, func(p string) bool { return at == p || strings.HasPrefix(at, p+"/") }) {
			continue
		}
		if err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmount %s: %w", at, err)
		}
	}
	return nil
}

// mountPoints are the mount points of the calling thread's namespace, in the
// order in which they were mounted.
func mountPoints() ([]string, error) {
	f, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	defer f.Close()
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var out []string
	for s := bufio.NewScanner(f); s.Scan(); {
		if fields := strings.Fields(s.Text()); len(fields) > 4 {
			out = append(out, unescape.Replace(fields[4]))
		}
	}
	return out, nil
}
