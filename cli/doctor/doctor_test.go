package doctor

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func machine(t *testing.T, files map[string]string) Machine {
	t.Helper()
	root := t.TempDir()
	for p, text := range files {
		p = filepath.Join(root, p)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return Machine{Root: root, Data: "/var/lib/onpath"}
}

func TestChecksReadTheMachine(t *testing.T) {
	for _, c := range []struct {
		name   string
		check  Check
		files  map[string]string
		status Status
		detail string
	}{
		{"old kernel", kernel, map[string]string{"/proc/sys/kernel/osrelease": "5.10.0-28-amd64"}, Lack, "Linux 5.10.0"},
		{"least kernel", kernel, map[string]string{"/proc/sys/kernel/osrelease": "5.15.0"}, OK, "Linux 5.15.0"},
		{"new kernel", kernel, map[string]string{"/proc/sys/kernel/osrelease": "6.18.3+"}, OK, "Linux 6.18.3"},
		{"odd kernel", kernel, map[string]string{"/proc/sys/kernel/osrelease": "next"}, Warn, "unknown"},
		{"no capabilities", privileges, map[string]string{"/proc/self/status": "Name:\tx\nCapEff:\t0000000000000000\n"}, Lack, "CAP_NET_ADMIN"},
		{"all capabilities", privileges, map[string]string{"/proc/self/status": "CapEff:\t000001ffffffffff\n"}, OK, "root"},
		{"no BTF", btf, nil, Warn, "works without"},
		{"BTF", btf, map[string]string{"/sys/kernel/btf/vmlinux": ""}, OK, "vmlinux"},
		{"no bpffs", bpffs, nil, Lack, "not there"},
		{"bpffs not mounted", bpffs, map[string]string{"/sys/fs/bpf/x": ""}, Warn, "not mounted"},
		{"no cgroups", cgroups, nil, Lack, "not there"},
		{"cgroups 1", cgroups, map[string]string{"/sys/fs/cgroup/cpu/x": "", "/sys/fs/cgroup/memory/x": ""}, OK, "version 1"},
		{"cgroups 1 without memory", cgroups, map[string]string{"/sys/fs/cgroup/cpu/x": ""}, Warn, "controller memory"},
		{"no forwarding", forwarding, map[string]string{"/proc/sys/net/ipv4/ip_forward": "0", "/proc/sys/net/ipv6/conf/all/forwarding": "1"}, Warn, "IPv4 off, IPv6 on"},
		{"forwarding", forwarding, map[string]string{"/proc/sys/net/ipv4/ip_forward": "1"}, OK, "on"},
		{"little memory", memory, map[string]string{"/proc/meminfo": "MemTotal: 1048576 kB\nMemAvailable: 524288 kB\n"}, Warn, "512 MiB free of 1 GiB"},
		{"memory", memory, map[string]string{"/proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n"}, OK, "4 GiB free of 8 GiB"},
	} {
		t.Run(c.name, func(t *testing.T) {
			rs := c.check(t.Context(), machine(t, c.files))
			if len(rs) != 1 || rs[0].Status != c.status || !strings.Contains(rs[0].Detail, c.detail) {
				t.Errorf("got %+v, want %s with %q", rs, c.status, c.detail)
			}
			if rs[0].Status == Lack && rs[0].Remedy == "" {
				t.Error("lacks something and does not say what to do")
			}
		})
	}
}

// TestThisMachine runs everything, and checks that nothing of it stays.
func TestThisMachine(t *testing.T) {
	before := links(t)
	list := Run(t.Context(), Machine{Data: t.TempDir()}, Checks())
	seen := map[string]bool{}
	for _, r := range list {
		if seen[r.Name] || r.Name == "" || r.Detail == "" {
			t.Errorf("%+v", r)
		}
		seen[r.Name] = true
		t.Logf("%-20s %-5s %s; %s", r.Name, r.Status, r.Detail, r.Remedy)
	}
	if os.Geteuid() == 0 && !seen["tcx"] {
		t.Error("no answer about tcx")
	}
	if after := links(t); after != before {
		t.Errorf("devices before: %s; after: %s", before, after)
	}
}

func links(t *testing.T) string {
	t.Helper()
	entries, err := os.ReadDir("/sys/class/net")
	if err != nil {
		t.Skip("/sys/class/net is not there")
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "d") {
			names = append(names, e.Name())
		}
	}
	return strings.Join(names, " ")
}

func TestSlowCheckIsAWarning(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	list := Run(ctx, Machine{}, []Check{func(ctx context.Context, _ Machine) []Result {
		<-ctx.Done()
		time.Sleep(50 * time.Millisecond)
		return nil
	}})
	if len(list) != 1 || list[0].Status != Warn {
		t.Errorf("got %+v", list)
	}
	if Worst(list) != Warn || Worst(nil) != OK || Worst([]Result{{Status: Warn}, {Status: Lack}, {Status: OK}}) != Lack {
		t.Error("Worst is wrong")
	}
}

func TestFeatureResult(t *testing.T) {
	f := feature{name: "x", status: Warn, without: "less", remedy: "more"}
	if r := f.result(unix.EPERM); r.Status != Warn || !strings.Contains(r.Remedy, "root") {
		t.Errorf("got %+v", r)
	}
	if r := f.result(unix.ENOENT); r.Remedy != "more" {
		t.Errorf("got %+v", r)
	}
}
