package container

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// maxSocketPath keeps clear of the 108 bytes that a unix socket's address may
// have; containerd appends ".ttrpc" to its own.
const maxSocketPath = 100

// privateContainerd is a containerd of our own: own root, state, socket and
// configuration. It runs in a session of its own, so that it outlives the agent.
type privateContainerd struct {
	dir    string
	socket string
	log    *slog.Logger
}

func newPrivate(opt Options, log *slog.Logger) *privateContainerd {
	p := &privateContainerd{dir: opt.ContainerdDir, log: log}
	p.socket = filepath.Join(p.dir, "containerd.sock")
	if len(p.socket)+len(".ttrpc") > maxSocketPath {
		sum := sha256.Sum256([]byte(p.dir))
		p.socket = filepath.Join("/run/onpath", hex.EncodeToString(sum[:6]), "containerd.sock")
	}
	return p
}

func (p *privateContainerd) file(name string) string { return filepath.Join(p.dir, name) }

// ensure starts containerd unless it runs; several agents may call it at once.
func (p *privateContainerd) ensure(ctx context.Context) error {
	if p.answers() {
		return nil
	}
	for _, dir := range []string{p.dir, p.file("tmp"), filepath.Dir(p.socket)} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return fmt.Errorf("private containerd: %w", err)
		}
	}
	unlock, err := lockFile(ctx, p.file("lock"))
	if err != nil {
		return fmt.Errorf("private containerd: %w", err)
	}
	defer unlock()
	if p.answers() {
		return nil
	}
	gone := func() bool { return p.pid() == 0 }
	if gone() {
		ended, err := p.start()
		if err != nil {
			return err
		}
		gone = func() bool { // a child in the middle of its exec has no command line yet
			select {
			case <-ended:
				return true
			default:
				return false
			}
		}
	}
	return p.await(ctx, gone, 20*time.Second)
}

func (p *privateContainerd) answers() bool {
	c, err := net.DialTimeout("unix", p.socket, time.Second)
	if err != nil {
		return false
	}
	c.Close()
	return true
}

func (p *privateContainerd) await(ctx context.Context, gone func() bool, limit time.Duration) error {
	deadline := time.Now().Add(limit)
	for !p.answers() {
		if gone() || time.Now().After(deadline) {
			return &onpath.Error{Code: onpath.CodeUnavailable, Message: "the private containerd did not come up: " + p.lastLog(),
				Remedy: "see " + p.file("containerd.log")}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// pid is the process id of the containerd that runs with our configuration; 0 if none.
func (p *privateContainerd) pid() int {
	data, err := os.ReadFile(p.file("containerd.pid"))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0
	}
	// The number may have been given to another process since.
	if !bytes.Contains(commandLine(pid), []byte(p.file("config.toml"))) {
		return 0
	}
	return pid
}

// commandLine of a process; empty if there is none. A process in the middle of
// its exec has none for a moment, which does not mean that it is gone.
func commandLine(pid int) []byte {
	for range 50 {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || len(line) > 0 {
			return line
		}
		if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err != nil || exe == "" {
			return nil // a zombie or a kernel thread
		}
		time.Sleep(2 * time.Millisecond)
	}
	return nil
}

// start gives a channel that is closed when the process ends.
func (p *privateContainerd) start() (ended <-chan struct{}, err error) {
	binary, err := findBinary("containerd")
	if err != nil {
		return nil, &onpath.Error{Code: onpath.CodeUnsupported,
			Message: "container functions need containerd and runc, and containerd is not installed",
			Remedy:  "install the package containerd, or name a running one's socket", Cause: err}
	}
	if err := os.WriteFile(p.file("config.toml"), []byte(p.config()), 0o600); err != nil {
		return nil, fmt.Errorf("private containerd: %w", err)
	}
	out, err := os.OpenFile(p.file("containerd.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("private containerd: %w", err)
	}
	defer out.Close()
	if info, err := out.Stat(); err == nil && info.Size() > 4<<20 {
		_ = out.Truncate(0) // only its own messages; an old log is not worth keeping
	}
	cmd := exec.Command(binary, "--config", p.file("config.toml"))
	cmd.Dir = "/"
	// shims inherit it: what killed ones leave goes with us
	cmd.Env = []string{"PATH=" + searchPath(), "HOME=/root", "TMPDIR=" + p.file("tmp")}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start private containerd: %w", err)
	}
	if err := os.WriteFile(p.file("containerd.pid"), []byte(strconv.Itoa(cmd.Process.Pid)), 0o600); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, fmt.Errorf("private containerd: %w", err)
	}
	reaped := make(chan struct{})
	go func() { // it may end before the agent does
		_ = cmd.Wait()
		close(reaped)
	}()
	p.log.Info("started a private containerd", "pid", cmd.Process.Pid, "dir", p.dir)
	return reaped, nil
}

// config names what is disabled: everything that listens, scans the machine or
// writes outside our directory.
func (p *privateContainerd) config() string {
	disabled := []string{
		"io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime",
		"io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt", "io.containerd.internal.v1.tracing",
		"io.containerd.tracing.processor.v1.otlp",
		"io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
		"io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.erofs",
	}
	return fmt.Sprintf("version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [\"%s\"]\n\n[grpc]\n  address = %q\n\n[debug]\n  level "+
		"= \"warn\"\n",
		p.file("root"), p.file("state"), strings.Join(disabled, `", "`), p.socket)
}

func (p *privateContainerd) lastLog() string {
	data, err := os.ReadFile(p.file("containerd.log"))
	if err != nil || len(data) == 0 {
		return "it said nothing"
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return lines[len(lines)-1]
}

// stop ends containerd; its shims and containers must be gone before.
func (p *privateContainerd) stop(ctx context.Context) error {
	unlock, err := lockFile(ctx, p.file("lock"))
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	defer unlock()
	pid := p.pid()
	if pid == 0 {
		return nil
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("stop private containerd: %w", err)
		}
		for range 250 {
			if p.pid() == 0 {
				return nil
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	return fmt.Errorf("the private containerd (process %d) does not end", pid)
}

// keepContainerd restarts the private containerd whenever it ends. Containers
// run on meanwhile.
func (d *Driver) keepContainerd(ctx context.Context) {
	for wait := 100 * time.Millisecond; ; {
		if pid := d.private.pid(); pid != 0 {
			if waitPid(ctx, pid) == nil {
				wait = 100 * time.Millisecond
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if d.private.answers() {
			continue
		}
		d.log.Warn("the private containerd has ended; starting it again")
		if err := d.private.ensure(ctx); err != nil && ctx.Err() == nil {
			d.log.Error("private containerd", "err", err)
			wait = min(2*wait, 10*time.Second)
		}
	}
}

// lockFile takes an exclusive lock that ends with the process.
func lockFile(ctx context.Context, path string) (func(), error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// searchPath is the agent's PATH with the places where sudo, cron and minimal
// environments forget to look.
func searchPath() string {
	path := os.Getenv("PATH")
	for _, dir := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		if !strings.Contains(":"+path+":", ":"+dir+":") {
			path += ":" + dir
		}
	}
	return strings.TrimPrefix(path, ":")
}

func findBinary(name string) (string, error) {
	for _, dir := range filepath.SplitList(searchPath()) {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not in %s", name, searchPath())
}
