package doctor

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// What onpath needs at least.
const (
	minMajor, minMinor = 5, 15
	minMemory          = onpath.Size(1 << 30)
	minDisk            = onpath.Size(2 << 30)
	minFiles           = 4096
)

func (m Machine) path(p string) string { return filepath.Join("/", m.Root, p) }

func (m Machine) read(p string) string {
	b, err := os.ReadFile(m.path(p))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func kernel(_ context.Context, m Machine) []Result {
	release := m.read("/proc/sys/kernel/osrelease")
	r := Result{Name: "kernel", Status: OK, Detail: "Linux " + release + " on " + runtime.GOARCH}
	if major, minor, ok := version(release); !ok {
		r.Status, r.Detail = Warn, "version unknown"
	} else if major < minMajor || major == minMajor && minor < minMinor {
		r.Status, r.Remedy = Lack, fmt.Sprintf("install Linux %d.%d or later", minMajor, minMinor)
	}
	return []Result{r}
}

// version reads the first two numbers of a kernel release.
func version(release string) (major, minor int, ok bool) {
	_, err := fmt.Sscanf(release, "%d.%d", &major, &minor)
	return major, minor, err == nil
}

// The capabilities that server and node use, by number.
var needed = []struct {
	name string
	bit  uint
}{{"CAP_NET_ADMIN", 12}, {"CAP_SYS_ADMIN", 21}, {"CAP_BPF", 39}, {"CAP_NET_RAW", 13}}

func privileges(_ context.Context, m Machine) []Result {
	r := Result{Name: "privileges", Status: OK, Detail: "root with all needed capabilities"}
	var effective uint64
	for line := range strings.Lines(m.read("/proc/self/status")) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			effective, _ = strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
		}
	}
	var lacking []string
	for _, c := range needed {
		if effective&(1<<c.bit) == 0 {
			lacking = append(lacking, c.name)
		}
	}
	if len(lacking) > 0 {
		r.Status, r.Detail, r.Remedy = Lack, "without "+strings.Join(lacking, ", "), "run as root (sudo), outside of containers"
	}
	return []Result{r}
}

func btf(_ context.Context, m Machine) []Result {
	r := Result{Name: "BTF", Status: OK, Detail: "/sys/kernel/btf/vmlinux"}
	if _, err := os.Stat(m.path("/sys/kernel/btf/vmlinux")); err != nil {
		r.Status, r.Detail = Warn, "the kernel does not describe its types; onpath works without"
	}
	return []Result{r}
}

func bpffs(_ context.Context, m Machine) []Result {
	const where = "/sys/fs/bpf"
	r := Result{Name: "bpffs", Status: OK, Detail: "mounted at " + where}
	var st unix.Statfs_t
	switch err := unix.Statfs(m.path(where), &st); {
	case err != nil:
		r.Status, r.Detail, r.Remedy = Lack, where+" is not there", "use a kernel with CONFIG_BPF_SYSCALL"
	case st.Type != unix.BPF_FS_MAGIC:
		r.Status, r.Detail, r.Remedy = Warn, "not mounted at "+where, "onpath node mounts it; for good: mount -t bpf bpf "+where
	}
	return []Result{r}
}

func cgroups(_ context.Context, m Machine) []Result {
	r := Result{Name: "cgroups", Status: OK}
	var st unix.Statfs_t
	err := unix.Statfs(m.path("/sys/fs/cgroup"), &st)
	switch {
	case err != nil:
		r.Status, r.Detail, r.Remedy = Lack, "/sys/fs/cgroup is not there", "mount cgroup2 there"
	case st.Type == unix.CGROUP2_SUPER_MAGIC:
		r.Detail = "version 2"
		if have := strings.Fields(m.read("/sys/fs/cgroup/cgroup.controllers")); !contains(have, "cpu", "memory") {
			r.Status, r.Detail, r.Remedy = Warn, "version 2 without the controllers cpu and memory",
				"limits of instances cannot be kept; enable the controllers at boot"
		}
	default:
		r.Detail = "version 1"
		for _, c := range []string{"cpu", "memory"} {
			if _, err := os.Stat(m.path("/sys/fs/cgroup/" + c)); err != nil {
				r.Status, r.Detail, r.Remedy = Warn, "version 1 without controller "+c,
					"limits of instances cannot be kept; mount the controller"
			}
		}
	}
	return []Result{r}
}

func contains(have []string, want ...string) bool {
	for _, w := range want {
		found := false
		for _, h := range have {
			found = found || h == w
		}
		if !found {
			return false
		}
	}
	return true
}

// forwarding matters on gateways whose uplinks are attached as routers.
func forwarding(_ context.Context, m Machine) []Result {
	four, six := m.read("/proc/sys/net/ipv4/ip_forward"), m.read("/proc/sys/net/ipv6/conf/all/forwarding")
	if four == "1" && (six == "1" || six == "") {
		return []Result{{Name: "forwarding", Status: OK, Detail: "IPv4 and IPv6 on"}}
	}
	return []Result{{Name: "forwarding", Status: Warn, Detail: fmt.Sprintf("IPv4 %s, IPv6 %s", onOff(four), onOff(six)),
		Remedy: "only gateways with attach: router need it: sysctl -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1"}}
}

func onOff(s string) string {
	if s == "1" {
		return "on"
	}
	return "off"
}

func limits(_ context.Context, _ Machine) []Result {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return []Result{{Name: "open files", Status: Warn, Detail: err.Error()}}
	}
	r := Result{Name: "open files", Status: OK, Detail: fmt.Sprintf("limit %d, at most %d", l.Cur, l.Max)}
	if l.Max < minFiles {
		r.Status, r.Remedy = Warn, fmt.Sprintf("raise the hard limit to %d or more (LimitNOFILE= in a unit)", minFiles)
	}
	return []Result{r}
}

func memory(_ context.Context, m Machine) []Result {
	total, available := meminfo(m.read("/proc/meminfo"))
	r := Result{Name: "memory", Status: OK, Detail: fmt.Sprintf("%s free of %s", human(available), human(total))}
	if available < minMemory {
		r.Status, r.Remedy = Warn, fmt.Sprintf("instances need what is left above some 200 MiB; %s free are recommended", minMemory)
	}
	return []Result{r}
}

func meminfo(text string) (total, available onpath.Size) {
	in := bufio.NewScanner(strings.NewReader(text))
	for in.Scan() {
		f := strings.Fields(in.Text())
		if len(f) < 2 {
			continue
		}
		kib, _ := strconv.ParseInt(f[1], 10, 64)
		switch f[0] {
		case "MemTotal:":
			total = onpath.Size(kib << 10)
		case "MemAvailable:":
			available = onpath.Size(kib << 10)
		}
	}
	return total, available
}

func disk(_ context.Context, m Machine) []Result {
	at := m.Data
	var st unix.Statfs_t
	for ; unix.Statfs(m.path(at), &st) != nil; at = filepath.Dir(at) {
		if at == "/" || at == "." || at == "" {
			return []Result{{Name: "disk", Status: Warn, Detail: "cannot be measured"}}
		}
	}
	free := onpath.Size(int64(st.Bavail) * st.Bsize)
	r := Result{Name: "disk", Status: OK, Detail: fmt.Sprintf("%s free for %s", human(free), m.Data)}
	if free < minDisk {
		r.Status, r.Remedy = Warn, fmt.Sprintf("%s are recommended: images, the store, logs", minDisk)
	}
	return []Result{r}
}

// human rounds to three digits.
func human(s onpath.Size) string {
	v, unit := float64(s), "B"
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if v < 1024 {
			break
		}
		v, unit = v/1024, u
	}
	return fmt.Sprintf("%.3g %s", v, unit)
}
