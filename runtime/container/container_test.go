package container

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/runtime/runtimetest"
)

// machine is a state directory with its private containerd, gone after the test.
func machine(t *testing.T) Options {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("container tests need root")
	}
	for _, p := range Probe(t.Context()) {
		if p.Required && !p.Found {
			t.Skipf("container tests need %s: %s", p.Name, p.Detail)
		}
	}
	dir, err := os.MkdirTemp("/tmp", fmt.Sprintf("ot-container-%d-", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	opt := Options{StateDir: dir, Name: "test", HostImage: true, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	t.Cleanup(func() {
		d, err := New(context.Background(), opt)
		if err != nil {
			t.Errorf("clean up: %v", err)
			return
		}
		if err := d.Remove(context.Background()); err != nil {
			t.Errorf("clean up: %v", err)
		}
		noLeftovers(t, dir)
	})
	return opt
}

// noLeftovers fails if a mount, process, cgroup or file of the machine is left.
func noLeftovers(t *testing.T, dir string) {
	t.Helper()
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	if strings.Contains(string(mounts), dir) {
		t.Errorf("a mount below %s is left", dir)
	}
	if _, err := os.Stat(dir); err == nil {
		out, _ := exec.Command("find", dir).Output()
		t.Errorf("files are left:\n%s", out)
	}
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range procs {
		if c, _ := os.ReadFile(p); strings.Contains(string(c), dir) {
			t.Errorf("a process is left: %s %q", p, c)
		}
	}
}

func open(t *testing.T, opt Options) *Driver {
	t.Helper()
	d, err := New(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func shell(p runtimetest.Program) []string {
	sh := func(script string) []string { return []string{"/bin/sh", "-c", script} }
	const sleep = "trap 'exit 0' TERM; while :; do sleep 1000 & wait; done"
	switch p.Does {
	case runtimetest.Stubborn:
		return sh("trap '' TERM; while :; do sleep 1000; done")
	case runtimetest.Deaf:
		return []string{"/bin/sleep", "1000"}
	case runtimetest.Exit:
		return sh(fmt.Sprintf("exit %d", p.Code))
	case runtimetest.Print:
		return sh("cat <<E\n" + p.Text + "\nE\n" + sleep)
	case runtimetest.Cat:
		return []string{"cat"}
	}
	return sh(sleep)
}

func hostSpec(command []string) onpath.FunctionSpec {
	return onpath.FunctionSpec{
		Container: &onpath.ContainerSpec{Image: HostImage, Command: command},
		Resources: onpath.Resources{CPU: 500, Memory: 64 << 20},
	}
}

func TestExam(t *testing.T) {
	opt := machine(t)
	runtimetest.Run(t, runtimetest.Subject{
		Open:    func(t *testing.T) onpath.Runtime { return open(t, opt) },
		Spec:    hostSpec,
		Command: shell,
		Kill: func(t *testing.T, p onpath.Process) {
			if err := syscall.Kill(p.Pid(), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		},
		Noticed: 2 * time.Second,
	})
}
