package container

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sort"
	"strconv"
	"strings"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/pkg/oci"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/cpulimit"
)

const (
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	// maxPids of one instance: enough for a multi-process proxy, too little for a fork bomb.
	maxPids = 2048
	// maxFiles is wished for; a machine's hard limit may be lower and cannot be raised.
	maxFiles = 65536
	// oomScore of instances and what runs inside: out of memory, the kernel ends them
	// before anything of the machine's own. The agent, containerd, its shims and what
	// keep logs are the last to go; without it instances would be so as well.
	oomScore = 100
	// minMemory is what runc itself needs to set up a container, bytes.
	minMemory = 8 << 20
	// cgroupParent holds the cgroups of all instances.
	cgroupParent = "/onpath"
)

// imageConfig reads what the image says about running it.
func imageConfig(ctx context.Context, img containerd.Image) (ocispec.ImageConfig, error) {
	desc, err := img.Config(ctx)
	if err != nil {
		return ocispec.ImageConfig{}, fmt.Errorf("image %s: %w", img.Name(), err)
	}
	data, err := content.ReadBlob(ctx, img.ContentStore(), desc)
	if err != nil {
		return ocispec.ImageConfig{}, fmt.Errorf("image %s: %w", img.Name(), err)
	}
	var c ocispec.Image
	if err := json.Unmarshal(data, &c); err != nil {
		return ocispec.ImageConfig{}, fmt.Errorf("image %s: its configuration: %w", img.Name(), err)
	}
	return c.Config, nil
}

// command is what to run: the function's, else the image's.
func command(r onpath.RunSpec, image ocispec.ImageConfig) ([]string, error) {
	if c := r.Spec.Container.Command; len(c) > 0 {
		return c, nil
	}
	args := append(slices.Clone(image.Entrypoint), image.Cmd...)
	if len(args) == 0 {
		return nil, &onpath.Error{Code: onpath.CodeInvalid, Message: "neither the function nor its image says what to run",
			Remedy: "set container.command"}
	}
	return args, nil
}

func environment(r onpath.RunSpec, image ocispec.ImageConfig) []string {
	env := map[string]string{"PATH": defaultPath, "HOSTNAME": r.Hostname, onpath.NotifyVariable: "http://" + onpath.NotifyAddress}
	for _, e := range image.Env {
		k, v, _ := strings.Cut(e, "=")
		env[k] = v
	}
	for k, v := range r.Spec.Container.Env {
		env[k] = v
	}
	out := make([]string, 0, len(env))
	for k, v := range env {
		out = append(out, k+"="+v)
	}
	sort.Strings(out)
	return out
}

// spec makes the OCI runtime specification of an instance.
func (d *Driver) spec(ctx context.Context, r onpath.RunSpec, u *users, image ocispec.ImageConfig, args []string) (oci.SpecOpts, error) {
	c := r.Spec.Container
	caps, err := capabilities(c.Caps)
	if err != nil {
		return nil, err
	}
	for k := range c.Sysctls {
		if !strings.HasPrefix(k, "net.") {
			return nil, onpath.Errorf(onpath.CodeInvalid, "sysctl %s: only net.* can be set, in the instance's own namespace", k)
		}
	}
	cwd := c.WorkingDir
	if cwd == "" {
		cwd = image.WorkingDir
	}
	if cwd == "" {
		cwd = "/"
	}
	return func(ctx context.Context, client oci.Client, cc *containers.Container, s *oci.Spec) error {
		s.Version = "1.0.2" // what the oldest runc in use knows; nothing newer is asked for
		s.Hostname = r.Hostname
		p := s.Process
		p.Args, p.Env, p.Cwd = args, environment(r, image), cwd
		p.NoNewPrivileges = true
		p.OOMScoreAdj = new(instanceScore())
		files := fileLimit()
		p.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: files, Soft: files}}
		if image.User != "" {
			if err := u.withUser(image.User)(ctx, client, cc, s); err != nil {
				return &onpath.Error{Code: onpath.CodeInvalid,
					Message: fmt.Sprintf("the image wants to run as user %q: %v", image.User, err), Cause: err}
			}
		}
		setCapabilities(p, caps, c.Caps)
		s.Linux.Sysctl = c.Sysctls
		s.Linux.CgroupsPath = cgroupParent + "/" + r.ID
		// Everybody may write there: the kernel then watches the whole machine for the writer.
		s.Linux.ReadonlyPaths = append(s.Linux.ReadonlyPaths, "/proc/pressure")
		devices := s.Linux.Resources.Devices
		s.Linux.Resources = linuxResources(r.Spec.Resources, r.Awaited)
		s.Linux.Resources.Devices = devices
		s.Linux.Resources.Pids = &specs.LinuxPids{Limit: new(int64(maxPids))}
		for i, ns := range s.Linux.Namespaces {
			if ns.Type == specs.NetworkNamespace {
				s.Linux.Namespaces[i].Path = r.NetNS
			}
		}
		u.join(s)
		// The default /run would hide what the image and Files have there.
		opts := []oci.SpecOpts{oci.WithoutRunMount}
		for _, dev := range c.Devices {
			if dev != "tun" {
				return onpath.Errorf(onpath.CodeInvalid, "there is no device %q for functions (tun is the only one)", dev)
			}
			opts = append(opts, u.tun())
		}
		if len(r.Secrets) > 0 {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: onpath.SecretsFolder, Type: "tmpfs", Source: "tmpfs",
				Options: []string{"nosuid", "nodev", "noexec", "mode=0755", "size=8m"}})
		}
		if seccompWorks() {
			opts = append(opts, seccomp.WithDefaultProfile(), nativeCalls)
		}
		return oci.ApplyOpts(ctx, client, cc, s, opts...)
	}, nil
}

// instanceScore is oomScore, or our own where that is higher: who is started so may
// not be permitted to go below it.
func instanceScore() int {
	data, _ := os.ReadFile("/proc/self/oom_score_adj")
	own, _ := strconv.Atoi(strings.TrimSpace(string(data)))
	return max(own, oomScore)
}

// linuxResources translates limits; zero parts are unlimited. Disk is not limited here
// (overlayfs has no quota: disk.go); network is the data path's.
func linuxResources(r onpath.Resources, awaited bool) *specs.LinuxResources {
	out := &specs.LinuxResources{CPU: cpulimit.Of(r.CPU, awaited)}
	if r.Memory > 0 {
		limit := max(int64(r.Memory), minMemory)
		out.Memory = &specs.LinuxMemory{Limit: &limit}
		if swapAccounted() {
			out.Memory.Swap = &limit // memory and swap together: no swap
		}
	}
	return out
}

// swapAccounted says whether cgroups can limit swap here; asking where they
// cannot fails.
func swapAccounted() bool {
	for _, f := range []string{"/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes", "/sys/fs/cgroup/cgroup.controllers"} {
		if _, err := os.Stat(f); err == nil {
			return true
		}
	}
	return false
}

func seccompWorks() bool {
	_, err := os.Stat("/proc/sys/kernel/seccomp/actions_avail")
	return err == nil
}

// nativeCalls leaves of a seccomp profile the machine's own system calls, as the
// image is the machine's own kind: those of its 32-bit relatives end a process.
// runc works on each architecture anew, some 10 ms each at every start.
func nativeCalls(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
	own := map[string]specs.Arch{"amd64": specs.ArchX86_64, "arm64": specs.ArchAARCH64}[runtime.GOARCH]
	if own != "" && s.Linux.Seccomp != nil {
		s.Linux.Seccomp.Architectures = []specs.Arch{own}
	}
	return nil
}

// fileLimit is the number of open files that an instance may have; a limit
// above our own hard one could not be set.
func fileLimit() uint64 {
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err != nil || own.Max == 0 {
		return 1024
	}
	return min(own.Max, maxFiles)
}
