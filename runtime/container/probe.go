package container

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/onpath/onpath/internal/userns"
)

// Part is one thing that container functions need or can use.
type Part struct {
	Name     string // "containerd", "runc", "overlayfs", …
	Found    bool
	Detail   string // path and version, or what is lacking
	Required bool
}

// defaultSockets is where distributions and Docker have containerd listen.
var defaultSockets = []string{"/run/containerd/containerd.sock", "/run/docker/containerd/containerd.sock",
	"/run/k3s/containerd/containerd.sock"}

// Probe says what this machine has for container functions. It starts nothing.
func Probe(ctx context.Context) []Part {
	parts := []Part{
		probeBinary(ctx, "containerd", true, "--version"),
		probeBinary(ctx, "containerd-shim-runc-v2", true, "-v"),
		probeBinary(ctx, "runc", true, "--version"),
	}
	for _, s := range defaultSockets {
		if c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", s); err == nil {
			c.Close()
			parts = append(parts, Part{Name: "containerd socket", Found: true, Detail: s})
		} else if errors.Is(err, os.ErrPermission) {
			parts = append(parts, Part{Name: "containerd socket", Detail: s + ": only root may use it"})
		}
	}
	return append(parts, probeOverlay(), probeUsers(),
		Part{Name: "cgroups", Found: cgroupVersion() != "", Detail: cgroupVersion(), Required: true},
		Part{Name: "seccomp", Found: seccompWorks(),
			Detail: map[bool]string{true: "filters system calls", false: "the kernel cannot filter system calls"}[seccompWorks()]})
}

func probeBinary(ctx context.Context, name string, required bool, arg string) Part {
	p := Part{Name: name, Required: required}
	path, err := findBinary(name)
	if err != nil {
		p.Detail = "not installed"
		return p
	}
	p.Found, p.Detail = true, path
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if out, err := exec.CommandContext(ctx, path, arg).Output(); err == nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		for _, l := range lines {
			if strings.Contains(strings.ToLower(l), "version") || len(lines) == 1 {
				p.Detail += " (" + strings.Join(strings.Fields(l), " ") + ")"
				break
			}
		}
	}
	return p
}

func probeOverlay() Part {
	p := Part{Name: "overlayfs", Required: true, Detail: "the kernel does not list it; a module may be loaded on demand"}
	data, err := os.ReadFile("/proc/filesystems")
	if err == nil && strings.Contains(string(data), "\toverlay\n") {
		p.Found, p.Detail = true, "in the kernel"
	} else if path, _ := exec.LookPath("modprobe"); path != "" {
		p.Found = true
	}
	return p
}

// probeUsers looks where nodes keep containers if their configuration says nothing.
func probeUsers() Part {
	if err := userns.Possible("/var/lib"); err != nil {
		return Part{Name: "user namespaces",
			Detail: "root in a tenant's container is the machine's, without its capabilities: " + err.Error()}
	}
	return Part{Name: "user namespaces", Found: true, Detail: "root in a tenant's container is nobody outside"}
}

// cgroupVersion is "v2", "v1" or "hybrid (v1 controllers)"; empty without any.
func cgroupVersion() string {
	has := func(path string) bool { _, err := os.Stat(path); return err == nil }
	switch {
	case has("/sys/fs/cgroup/cgroup.controllers"):
		return "v2"
	case has("/sys/fs/cgroup/unified/cgroup.controllers"):
		return "hybrid (v1 controllers)"
	case has("/sys/fs/cgroup/memory"), has("/sys/fs/cgroup/cpu"):
		return "v1"
	}
	return ""
}
