package demo

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/ociimage"
	"github.com/onpath/onpath/internal/packet"
)

// HostileSpec is what a program in a container tries against all else.
type HostileSpec struct {
	Escape bool     `json:"escape,omitempty"` // to reach the machine through its kernel
	Reach  []string `json:"reach,omitempty"`  // to connect to: HOST:PORT by TCP, or @NAME of a unix socket
	Fork   bool     `json:"fork,omitempty"`
	Frames [][]byte `json:"frames,omitempty"` // to send out of eth0
	Each   int      `json:"each,omitempty"`   // so many times
	Fill   string   `json:"fill,omitempty"`   // a file to write until the disk is full
}

// HostileResult is what came of it.
type HostileResult struct {
	Tried   int      `json:"tried"`             // ways out, and addresses
	Through []string `json:"through,omitempty"` // those that were not refused
	// Processes that there could be, until there could be no more for a reason.
	Processes int    `json:"processes,omitempty"`
	Stopped   string `json:"stopped,omitempty"`
	Sent      int    `json:"sent,omitempty"` // frames
}

// RunHostile tries all of it, in a container whose image ociimage.WriteProgram wrote: on a
// machine of somebody's, as root, much of it would succeed.
func RunHostile(ctx context.Context, s HostileSpec) (r HostileResult, err error) {
	if own, err := os.Executable(); err != nil || own != ociimage.Program {
		return r, onpath.Errorf(onpath.CodeForbidden, "this attacks the machine that it runs on; onpath demo trust runs it in a container")
	}
	if s.Escape {
		ways := waysOut()
		for _, name := range slices.Sorted(maps.Keys(ways)) {
			r.note(name, ways[name]())
		}
	}
	r.reach(ctx, s.Reach)
	if s.Fork {
		r.Processes, r.Stopped = forkBomb()
	}
	if s.Fill != "" {
		r.note("fill the disk", fill(ctx, s.Fill))
	}
	if len(s.Frames) > 0 {
		r.Sent, err = sendFrames(ctx, s.Frames, s.Each)
	}
	return r, err
}

// note counts a try. What the kernel answers from behind its doors came through them.
func (r *HostileResult) note(what string, err error) {
	r.Tried++
	for _, refusal := range []error{fs.ErrPermission, fs.ErrNotExist, unix.EROFS, unix.ENOSYS} {
		if errors.Is(err, refusal) {
			return
		}
	}
	r.Through = append(r.Through, fmt.Sprintf("%s (%v)", what, err))
}

// waysOut lead from a container into its machine, where they are open.
func waysOut() map[string]func() error {
	system := func(n uintptr, args ...uintptr) func() error {
		return func() error {
			var a [6]uintptr
			copy(a[:], args)
			if _, _, errno := unix.Syscall6(n, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
				return errno
			}
			return nil
		}
	}
	write := func(file, text string) func() error {
		return func() error { return os.WriteFile(file, []byte(text), 0) }
	}
	device := func(kind, major, minor uint32) func() error {
		return func() error {
			node := fmt.Sprintf("/device-%d-%d-%d", kind, major, minor)
			defer os.Remove(node)
			if err := unix.Mknod(node, kind|0o600, int(unix.Mkdev(major, minor))); err != nil {
				return err
			}
			f, err := os.OpenFile(node, os.O_RDWR, 0)
			if err == nil {
				f.Close()
			}
			return err
		}
	}
	enter := func(kind string, flag int) func() error {
		return func() error {
			f, err := os.Open("/proc/1/ns/" + kind)
			if err != nil {
				return err
			}
			defer f.Close()
			return unix.Setns(int(f.Fd()), flag)
		}
	}
	ways := map[string]func() error{
		"mount a file system":                func() error { return unix.Mount("t", "/proc", "tmpfs", 0, "") },
		"mount the folder of control groups": func() error { return unix.Mount("c", "/tmp", "cgroup", 0, "memory") },
		"unmount what covers the kernel":     func() error { return unix.Unmount("/proc/sys", unix.MNT_DETACH) },
		"write over a mount":                 func() error { return unix.Mount("", "/sys", "", unix.MS_REMOUNT|unix.MS_BIND, "") },
		"another root":                       func() error { return unix.PivotRoot("/", "/tmp") },
		"the machine's memory":               device(unix.S_IFCHR, 1, 1),
		"the kernel's messages":              device(unix.S_IFCHR, 1, 11),
		"what the kernel runs on a crash":    write("/proc/sys/kernel/core_pattern", "|/x"),
		"what the kernel runs for modules":   write("/proc/sys/kernel/modprobe", "/x"),
		"sysrq":                              write("/proc/sysrq-trigger", "h"),
		"what runs when a group is empty":    write("/sys/fs/cgroup/memory/release_agent", "/x"),
		"a control group":                    func() error { return os.Mkdir("/sys/fs/cgroup/out", 0o700) },
		"all memory of the kernel":           kernelMemory,
		"what may be written of the kernel":  writable,
		"the machine's processes":            hostProcesses,
		"the machine's files":                func() error { _, err := os.ReadDir("/proc/1/root/var/lib/onpath"); return err },
		"a file by its number": func() error {
			_, err := unix.OpenByHandleAt(unix.AT_FDCWD, unix.NewFileHandle(1, []byte{2, 0, 0, 0, 0, 0, 0, 0}), unix.O_RDONLY)
			return err
		},
		"users of its own":        system(unix.SYS_UNSHARE, unix.CLONE_NEWUSER),
		"mounts of its own":       system(unix.SYS_UNSHARE, unix.CLONE_NEWNS),
		"a network of its own":    system(unix.SYS_UNSHARE, unix.CLONE_NEWNET),
		"mounts of another":       enter("mnt", unix.CLONE_NEWNS),
		"a network of another":    enter("net", unix.CLONE_NEWNET),
		"users of another":        enter("user", unix.CLONE_NEWUSER),
		"bpf":                     system(unix.SYS_BPF, 0),
		"counters of the machine": system(unix.SYS_PERF_EVENT_OPEN, 0, ^uintptr(0), 0, ^uintptr(0), 0),
		"a module of the kernel":  func() error { return unix.InitModule([]byte("x"), "") },
		"a module from a file":    func() error { return unix.FinitModule(0, "", 0) },
		"another kernel":          system(unix.SYS_KEXEC_LOAD),
		"the end of the machine":  system(unix.SYS_REBOOT, 1, 2, 3), // with numbers that mean nothing
		"keys of the kernel":      system(unix.SYS_KEYCTL, 0, ^uintptr(3), 0),
		"swap space":              system(unix.SYS_SWAPOFF, 0),
		"the machine's clock":     func() error { return unix.Settimeofday(&unix.Timeval{Sec: 1}) },
		"the machine's name":      func() error { return unix.Sethostname([]byte("x")) },
		"priority over others":    func() error { return unix.Setpriority(unix.PRIO_PROCESS, 0, -20) },
		"more open files than it may have": func() error {
			var own unix.Rlimit
			if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err != nil {
				return err
			}
			own.Max++
			return unix.Setrlimit(unix.RLIMIT_NOFILE, &own)
		},
	}
	for name, d := range disks() {
		ways["the disk "+name] = device(unix.S_IFBLK, d[0], d[1])
	}
	return ways
}

// disks are the machine's, as far as a container is told of them.
func disks() map[string][2]uint32 {
	out := map[string][2]uint32{"vda": {254, 0}, "sda": {8, 0}}
	f, err := os.Open("/proc/partitions")
	if err != nil {
		return out
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var major, minor, blocks uint32
		var name string
		if n, _ := fmt.Sscan(s.Text(), &major, &minor, &blocks, &name); n == 4 {
			out[name] = [2]uint32{major, minor}
		}
	}
	return out
}

// ofProcess are files of processes, which are their users'.
var ofProcess = regexp.MustCompile("^/proc/([0-9]+|self|thread-self|net|mounts|tty)$")

// writable opens every file of /proc and /sys for writing, and writes nothing.
func writable() error {
	for _, top := range []string{"/proc", "/sys"} {
		err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return nil // it is not even listed
			case ofProcess.MatchString(path):
				if d.IsDir() {
					return fs.SkipDir
				}
				return nil
			case !d.Type().IsRegular():
				return nil
			}
			f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
			if err != nil {
				return nil
			}
			defer f.Close()
			if i, err := f.Stat(); err != nil || !i.Mode().IsRegular() {
				return nil // covered with /dev/null
			}
			return errors.New(path)
		})
		if err != nil {
			return err
		}
	}
	return fs.ErrPermission
}

// kernelMemory reads what is not covered with /dev/null.
func kernelMemory() error {
	f, err := os.Open("/proc/kcore")
	if err != nil {
		return err
	}
	defer f.Close()
	if n, _ := f.Read(make([]byte, 4)); n == 0 {
		return fs.ErrNotExist
	}
	return nil
}

// hostProcesses looks for the kernel's own threads, which only the machine itself shows.
func hostProcesses() error {
	names, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, n := range names {
		if b, _ := os.ReadFile(n); strings.HasPrefix(string(b), "kthreadd") {
			return errors.New(n)
		}
	}
	return fs.ErrNotExist
}

// reach tries to connect.
func (r *HostileResult) reach(ctx context.Context, list []string) {
	errs := make([]error, len(list))
	var wg sync.WaitGroup
	for i, a := range list {
		wg.Go(func() {
			network := "tcp"
			if strings.HasPrefix(a, "@") {
				network = "unix"
			}
			c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, network, a)
			if errs[i] = err; err == nil {
				c.Close()
			}
		})
	}
	wg.Wait()
	r.Tried += len(list)
	for i, a := range list {
		if errs[i] == nil {
			r.Through = append(r.Through, a)
		}
	}
}

// mostProcesses is where a fork bomb gives up.
const mostProcesses = 10_000

// forkBomb makes processes until there can be no more, and ends them.
func forkBomb() (most int, why string) {
	var made []int
	for len(made) < mostProcesses {
		pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if errno == 0 && pid == 0 { // the new one does nothing but wait: it has no Go runtime
			for {
				unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
			}
		}
		if errno != 0 {
			why = errno.Error()
			break
		}
		made = append(made, int(pid))
	}
	for _, pid := range made {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	for _, pid := range made {
		_, _ = unix.Wait4(pid, nil, 0, nil)
	}
	return len(made), why
}

// mostFilled is where filling a disk gives up.
const mostFilled = 1 << 30

// fill writes a file until there is no room, and leaves it so for a while.
func fill(ctx context.Context, path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, 1<<20)
	for n := 0; n < mostFilled; n += len(b) {
		if _, err := f.Write(b); err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Second):
			}
			return err
		}
	}
	return nil
}

// sendFrames sends each frame so often.
func sendFrames(ctx context.Context, frames [][]byte, each int) (sent int, err error) {
	fd, err := packetSocket("eth0")
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	for range each {
		for _, f := range frames {
			if err := ctx.Err(); err != nil {
				return sent, err
			}
			if _, err := unix.Write(fd, append(make([]byte, vnetHeader), f...)); err != nil {
				return sent, fmt.Errorf("send: %w", err)
			}
			sent++
			time.Sleep(time.Millisecond / 4)
		}
	}
	return sent, nil
}

// forged is an Ethernet frame with a UDP datagram of IPv4.
func forged(to, from net.HardwareAddr, src, dst netip.AddrPort, payload string) []byte {
	f := slices.Concat(to, from, []byte{0x08, 0x00})
	ip := make([]byte, 28, 28+len(payload))
	ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(ip[2:], uint16(28+len(payload)))
	copy(ip[12:], src.Addr().AsSlice())
	copy(ip[16:], dst.Addr().AsSlice())
	binary.BigEndian.PutUint16(ip[10:], ^packet.Sum(0, ip[:20]))
	binary.BigEndian.PutUint16(ip[20:], src.Port())
	binary.BigEndian.PutUint16(ip[22:], dst.Port())
	binary.BigEndian.PutUint16(ip[24:], uint16(8+len(payload)))
	return slices.Concat(f, ip, []byte(payload))
}

// claimedARP is an answer to everybody that an address is at from.
func claimedARP(from net.HardwareAddr, address netip.Addr, trailer string) []byte {
	all := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	a := address.AsSlice()
	return slices.Concat(all, from, []byte{0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 2}, from, a, all, a, []byte(trailer))
}
