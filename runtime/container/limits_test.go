package container

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/runtime/runtimetest"
)

var sleep = shell(runtimetest.Program{Does: runtimetest.Sleep})

func startSpec(t *testing.T, d *Driver, id string, spec onpath.FunctionSpec, netns string) onpath.Process {
	t.Helper()
	p, err := d.Start(t.Context(), onpath.RunSpec{ID: id, Spec: spec, NetNS: netns})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func inside(t *testing.T, d *Driver, id, script string) string {
	t.Helper()
	var out bytes.Buffer
	code, err := d.Exec(t.Context(), id, onpath.ExecSpec{Command: []string{"sh", "-c", script}, Stdout: &out, Stderr: &out})
	if err != nil || code != 0 {
		t.Fatalf("%s: code %d, %v: %s", script, code, err, out.String())
	}
	return strings.TrimSpace(out.String())
}

// cgroupFile reads a limit of an instance, from whichever version there is.
func cgroupFile(t *testing.T, id, v1file, v2file string) string {
	t.Helper()
	for _, f := range []string{"/sys/fs/cgroup" + cgroupParent + "/" + id + "/" + v2file, "/sys/fs/cgroup/" + strings.Split(v1file, ".")[0] + cgroupParent + "/" + id + "/" + v1file} {
		if data, err := os.ReadFile(f); err == nil {
			return strings.TrimSpace(string(data))
		}
	}
	t.Fatalf("no cgroup file %s or %s for %s", v1file, v2file, id)
	return ""
}

func TestLimitsFilesAndIsolation(t *testing.T) {
	d := open(t, machine(t))
	defer d.Close()
	ns := fmt.Sprintf("ot-container-%d", os.Getpid())
	if out, err := exec.Command("ip", "netns", "add", ns).CombinedOutput(); err != nil {
		t.Skipf("ip netns add: %v %s", err, out)
	}
	defer exec.Command("ip", "netns", "del", ns).Run()
	c := &onpath.ContainerSpec{
		Image: HostImage, Command: sleep, Caps: []string{"NET_ADMIN"}, Env: onpath.Env{"GREETING": "good day"}, WorkingDir: "/usr",
		Files:   map[string]onpath.File{"/etc/onpath/deep/a.conf": {Content: "a = 1\n", Mode: 0o640}, "/run/b": {Content: "b"}},
		Sysctls: map[string]string{"net.ipv4.ip_default_ttl": "33"},
	}
	if _, err := os.Stat("/dev/net/tun"); err == nil {
		c.Devices = []string{"tun"}
	}
	begin := time.Now()
	p := startSpec(t, d, "limits", onpath.FunctionSpec{Container: c, Resources: onpath.Resources{CPU: 250, Memory: 64 << 20}}, "/run/netns/"+ns)
	t.Logf("create to running: %v", time.Since(begin))
	if got := cgroupFile(t, "limits", "memory.limit_in_bytes", "memory.max"); got != strconv.Itoa(64<<20) {
		t.Errorf("memory limit %s", got)
	}
	if got := cgroupFile(t, "limits", "cpu.cfs_quota_us", "cpu.max"); !strings.HasPrefix(got, "25000") {
		t.Errorf("CPU quota %s", got)
	}
	shares, weight := sharesUnchanged*runtime.NumCPU(), min(weightUnchanged*runtime.NumCPU(), weightMost)
	if got := cgroupFile(t, ".", "cpu.shares", "cpu.weight"); got != strconv.Itoa(shares) && got != strconv.Itoa(weight) {
		t.Errorf("all instances together weigh %s", got)
	}
	if err := p.Resize(t.Context(), onpath.Resources{CPU: 1500, Memory: 128 << 20}); err != nil {
		t.Fatal(err)
	}
	if m, q := cgroupFile(t, "limits", "memory.limit_in_bytes", "memory.max"), cgroupFile(t, "limits", "cpu.cfs_quota_us", "cpu.max"); m != strconv.Itoa(128<<20) || !strings.HasPrefix(q, "150000") {
		t.Errorf("after resizing: memory %s, CPU %s", m, q)
	}
	for script, want := range map[string]string{
		"echo $GREETING; pwd":                                      "good day\n/usr",
		"cat /etc/onpath/deep/a.conf /run/b":                       "a = 1\nb",
		"stat -c %a /etc/onpath/deep/a.conf":                       "640",
		"hostname; cat /etc/hostname":                              "limits\nlimits",
		"cat /proc/sys/net/ipv4/ip_default_ttl":                    "33",
		"ip link add dummyveth type veth peer name dv2 && echo ok": "ok",
		// Standard error comes first: through its own pipe it could overtake.
		"exec 2>&1; (echo 1 > /proc/sys/kernel/printk) && echo bad || echo refused":                                         "sh: 1: cannot create /proc/sys/kernel/printk: Read-only file system\nrefused",
		"mount -t tmpfs t /mnt 2>/dev/null && echo bad || echo refused":                                                     "refused",
		"ls /root /tmp | grep -c ^[^/]; ls " + d.opt.StateDir + " 2>/dev/null | wc -l; cat /etc/shadow 2>/dev/null | wc -l": "0\n0\n0",
		"grep -c . /proc/1/cgroup > /dev/null; grep NoNewPrivs /proc/self/status | tr -d '\\t '":                            "NoNewPrivs:1",
		"grep ^Seccomp: /proc/self/status | tr -d '\\t '":                                                                   "Seccomp:2",
		"echo 'a = 1' > /etc/onpath/deep/a.conf && cp /run/b /run/c && mv /run/c /run/d && echo ok":                         "ok",
		"df /dev/shm | tail -1 | cut -d' ' -f1":                                                                             "shm",
		"touch /usr/bin/ours && echo ok":                                                                                    "ok",
	} {
		if got := inside(t, d, "limits", script); got != want {
			t.Errorf("%s: %q, want %q", script, got, want)
		}
	}
	if _, err := os.Stat("/usr/bin/ours"); err == nil {
		t.Error("what an instance writes reached the node's root file system")
	}
	if len(c.Devices) > 0 {
		if got := inside(t, d, "limits", "ip tuntap add tunx mode tun && echo ok"); got != "ok" {
			t.Errorf("tun: %s", got)
		}
	}
	want, _ := os.Stat("/run/netns/" + ns)
	got, _ := os.Stat(fmt.Sprintf("/proc/%d/ns/net", p.Pid()))
	if !os.SameFile(want, got) {
		t.Error("it did not join the network namespace")
	}
	if u, err := p.Usage(t.Context()); err != nil || u.CPU == 0 || u.Memory == 0 {
		t.Errorf("usage %+v, %v", u, err)
	}
	var out bytes.Buffer
	if code, err := d.Exec(t.Context(), "limits", onpath.ExecSpec{Command: []string{"sh", "-c", "tty; exit 9"}, TTY: true, Stdin: strings.NewReader(""), Stdout: &out}); code != 9 || err != nil || !strings.Contains(out.String(), "/dev/pts/") {
		t.Errorf("terminal: code %d, %v, %q", code, err, out.String())
	}
	out.Reset()
	if code, err := d.Exec(t.Context(), "limits", onpath.ExecSpec{Command: []string{"cat"}, TTY: true, Stdin: strings.NewReader("typed\n"), Stdout: &out}); code != 0 || err != nil || strings.Count(out.String(), "typed") != 2 {
		t.Errorf("typed at a terminal: code %d, %v, %q", code, err, out.String()) // once echoed, once by cat
	}
	if _, err := d.Exec(t.Context(), "limits", onpath.ExecSpec{Command: []string{"/no/such"}}); onpath.CodeOf(err) != onpath.CodeInvalid {
		t.Errorf("a missing command: %v", err)
	}
	if err := p.Stop(t.Context(), time.Second); err != nil {
		t.Fatal(err)
	}
	if dirs, _ := filepath.Glob("/sys/fs/cgroup/*" + cgroupParent + "/limits"); len(dirs) > 0 {
		t.Errorf("cgroups are left: %v", dirs)
	}
}

func TestRefusals(t *testing.T) {
	d := open(t, machine(t))
	defer d.Close()
	host := func(change func(*onpath.ContainerSpec)) onpath.FunctionSpec {
		c := &onpath.ContainerSpec{Image: HostImage, Command: sleep}
		change(c)
		return onpath.FunctionSpec{Container: c}
	}
	for what, tc := range map[string]struct {
		spec onpath.FunctionSpec
		code onpath.Code
		says string
	}{
		"capability":   {host(func(c *onpath.ContainerSpec) { c.Caps = []string{"SYS_ADMIN"} }), onpath.CodeForbidden, "SYS_ADMIN"},
		"device":       {host(func(c *onpath.ContainerSpec) { c.Devices = []string{"sda"} }), onpath.CodeInvalid, "sda"},
		"sysctl":       {host(func(c *onpath.ContainerSpec) { c.Sysctls = map[string]string{"kernel.panic": "1"} }), onpath.CodeInvalid, "kernel.panic"},
		"file":         {host(func(c *onpath.ContainerSpec) { c.Files = map[string]onpath.File{"/proc/x": {}} }), onpath.CodeInvalid, "/proc"},
		"command":      {host(func(c *onpath.ContainerSpec) { c.Command = []string{"/no/such/program"} }), onpath.CodeInvalid, "/no/such/program"},
		"no command":   {host(func(c *onpath.ContainerSpec) { c.Command = nil }), onpath.CodeInvalid, "what to run"},
		"no image":     {host(func(c *onpath.ContainerSpec) { c.Image = "/no/such.tar" }), onpath.CodeNotFound, "/no/such.tar"},
		"not an image": {host(func(c *onpath.ContainerSpec) { c.Image = "/etc/passwd" }), onpath.CodeInvalid, "/etc/passwd"},
	} {
		_, err := d.Start(t.Context(), onpath.RunSpec{ID: "refused", Spec: tc.spec})
		if onpath.CodeOf(err) != tc.code || !strings.Contains(fmt.Sprint(err), tc.says) {
			t.Errorf("%s: %v (%s)", what, err, onpath.CodeOf(err))
		}
	}
	left, err := d.Adopt(t.Context())
	if err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if files, _ := filepath.Glob(filepath.Join(d.opt.StateDir, "*", "refused*")); len(files) > 0 {
		t.Errorf("files are left: %v", files)
	}
	d.opt.HostImage = false
	_, err = d.Start(t.Context(), onpath.RunSpec{ID: "refused", Spec: host(func(*onpath.ContainerSpec) {})})
	if onpath.CodeOf(err) != onpath.CodeForbidden {
		t.Errorf("image host where it is not permitted: %v", err)
	}
}

// shellImage is a small image of the machine's own shell and a few tools.
func shellImage(t *testing.T, user string, more ...string) v1.Image {
	t.Helper()
	dir := t.TempDir()
	var files []string
	for _, bin := range append([]string{"sh", "cat", "sleep", "id", "ls"}, more...) {
		path, err := exec.LookPath(bin)
		if err != nil {
			t.Skipf("%s is not installed", bin)
		}
		files = append(files, path)
		out, _ := exec.Command("ldd", path).Output()
		for f := range strings.FieldsSeq(string(out)) {
			if strings.HasPrefix(f, "/") {
				files = append(files, f)
			}
		}
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		dst := filepath.Join(dir, f)
		if err := os.MkdirAll(filepath.Dir(dst), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dst, data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	_ = os.Symlink("usr/bin", filepath.Join(dir, "bin")) // unless the machine has both
	_ = os.MkdirAll(filepath.Join(dir, "etc"), 0o755)
	_ = os.WriteFile(filepath.Join(dir, "etc/passwd"), []byte("root:x:0:0::/:/bin/sh\nguest:x:1234:1234::/:/bin/sh\n"), 0o644)
	_ = os.WriteFile(filepath.Join(dir, "etc/group"), []byte("root:x:0:\nguest:x:1234:\n"), 0o644)
	_ = os.Symlink("/nowhere/../../../../etc", filepath.Join(dir, "trap")) // leads out of the image, if followed outside
	tarFile := filepath.Join(t.TempDir(), "layer.tar")
	if out, err := exec.Command("tar", "-C", dir, "-cf", tarFile, ".").CombinedOutput(); err != nil {
		t.Fatalf("tar: %v %s", err, out)
	}
	l, err := tarball.LayerFromFile(tarFile)
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		t.Fatal(err)
	}
	cf, _ := img.ConfigFile()
	cf = cf.DeepCopy()
	cf.OS, cf.Architecture = "linux", "amd64"
	cf.Config.Entrypoint, cf.Config.User, cf.Config.Env = sleep, user, []string{"FROM=image", "PATH=/usr/bin:/bin"}
	if img, err = mutate.ConfigFile(img, cf); err != nil {
		t.Fatal(err)
	}
	return img
}

// push sends an image to a registry.
func push(t *testing.T, repo string, img v1.Image) v1.Hash {
	t.Helper()
	send := func(method, url, kind string, body []byte) { send(t, method, url, kind, body) }
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		r, err := l.Compressed()
		if err != nil {
			t.Fatal(err)
		}
		data, _ := io.ReadAll(r)
		h, _ := l.Digest()
		send("POST", repo+"/blobs/uploads/?digest="+h.String(), "application/octet-stream", data)
	}
	config, _ := img.RawConfigFile()
	h, _ := img.ConfigName()
	send("POST", repo+"/blobs/uploads/?digest="+h.String(), "application/octet-stream", config)
	manifest, _ := img.RawManifest()
	kind, _ := img.MediaType()
	send("PUT", repo+"/manifests/1", string(kind), manifest)
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

func send(t *testing.T, method, url, kind string, body []byte) {
	t.Helper()
	r, _ := http.NewRequest(method, url, bytes.NewReader(body))
	r.Header.Set("Content-Type", kind)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		t.Fatalf("%s %s: %s", method, url, resp.Status)
	}
}

// TestImages runs the same image from a layout, an archive and a registry.
func TestImages(t *testing.T) {
	opt := machine(t)
	img := shellImage(t, "guest")
	dir := t.TempDir()
	lay := filepath.Join(dir, "layout")
	p, err := layout.Write(lay, empty.Index)
	if err == nil {
		err = p.AppendImage(img)
	}
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(dir, "image.tar")
	if out, err := exec.Command("tar", "-C", lay, "-cf", archive, ".").CombinedOutput(); err != nil {
		t.Fatalf("tar: %v %s", err, out)
	}
	server := httptest.NewServer(registry.New())
	defer server.Close()
	digest := push(t, server.URL+"/v2/tenant/shell", img)
	opt.Registry = func(host string) (Registry, bool) { return Registry{URL: server.URL}, host == "server.internal" }
	d := open(t, opt)
	defer d.Close()
	for i, image := range []string{lay, archive, "server.internal/tenant/shell@" + digest.String()} {
		spec := onpath.FunctionSpec{Container: &onpath.ContainerSpec{Image: image, Caps: []string{"NET_RAW"},
			Files: map[string]onpath.File{"/trap/onpath-test-file": {Content: "inside"}}}}
		var steps []string
		if err := d.Prepare(t.Context(), &spec, func(s string) { steps = append(steps, s) }); err != nil {
			t.Fatalf("%s: %v", image, err)
		}
		if again := len(steps); d.Prepare(t.Context(), &spec, func(s string) { steps = append(steps, s) }) != nil || len(steps) != again {
			t.Errorf("%s: prepared twice: %v", image, steps)
		}
		id := fmt.Sprint("image", i)
		begin := time.Now()
		p := startSpec(t, d, id, spec, "")
		t.Logf("%s: create to running %v", image, time.Since(begin))
		if got := inside(t, d, id, "id -u; echo $FROM; cat /etc/onpath-test-file"); got != "1234\nimage\ninside" {
			t.Errorf("%s: %q", image, got)
		}
		if status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid())); !strings.Contains(string(status), "CapEff:\t0000000000002000") {
			t.Errorf("%s: a user other than root must have what was asked for, and no more:\n%s", image, status)
		}
		if _, err := os.Stat("/etc/onpath-test-file"); err == nil {
			t.Fatal("a symbolic link of the image led out of it")
		}
		if err := p.Stop(t.Context(), 5*time.Second); err != nil {
			t.Error(err)
		}
	}
	for _, image := range []string{"server.internal/tenant/none@" + digest.String(), "server.internal/tenant/shell:2"} {
		err := d.Prepare(t.Context(), &onpath.FunctionSpec{Container: &onpath.ContainerSpec{Image: image}}, nil)
		if onpath.CodeOf(err) != onpath.CodeNotFound || !strings.Contains(err.Error(), image) {
			t.Errorf("%s: %v", image, err)
		}
	}
}

// TestContainerdDies: containers run on without it, their end is noticed, and a
// new containerd knows them.
func TestContainerdDies(t *testing.T) {
	d := open(t, machine(t))
	defer d.Close()
	spec := hostSpec(sleep)
	p, q := startSpec(t, d, "p", spec, ""), startSpec(t, d, "q", spec, "")
	before := d.private.pid()
	if err := syscall.Kill(before, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = syscall.Kill(p.Pid(), syscall.SIGKILL)
	select {
	case <-p.Exited():
	case <-time.After(time.Minute):
		t.Fatal("the end of an instance went unnoticed without containerd")
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if code, err := d.Exec(t.Context(), "q", onpath.ExecSpec{Command: []string{"sh", "-c", "exit 6"}}); err == nil && code == 6 {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("the new containerd does not know the instance: %d, %v", code, err)
		}
	}
	if after := d.private.pid(); after == before || after == 0 {
		t.Errorf("containerd is process %d, was %d", after, before)
	}
	if q.Pid() == 0 {
		t.Error("the other instance died with containerd")
	}
	for _, x := range []onpath.Process{p, q} {
		if err := x.Stop(t.Context(), time.Second); err != nil {
			t.Error(err)
		}
	}
}

// TestSharedContainerd: two agents of one machine keep apart.
func TestSharedContainerd(t *testing.T) {
	a := machine(t)
	b := a
	b.StateDir, b.Name, b.ContainerdDir = a.StateDir+"-b", "other", filepath.Join(a.StateDir, "containerd")
	t.Cleanup(func() { os.RemoveAll(b.StateDir) })
	da, db := open(t, a), open(t, b)
	defer da.Close()
	pa, pb := startSpec(t, da, "a", hostSpec(sleep), ""), startSpec(t, db, "b", hostSpec(sleep), "")
	found, err := db.Adopt(t.Context())
	if err != nil || len(found) != 1 || found["b"] != pb {
		t.Errorf("the second agent found %v, %v", found, err)
	}
	if err := db.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if pa.Pid() == 0 || da.private.pid() == 0 {
		t.Error("removing one agent's instances took the other's away")
	}
	if code, err := da.Exec(t.Context(), "a", onpath.ExecSpec{Command: []string{"true"}}); code != 0 || err != nil {
		t.Errorf("exec: %d, %v", code, err)
	}
}

// TestConfiguredContainerd: on a containerd that is not ours, only our namespace
// is touched, and it stays when we go.
func TestConfiguredContainerd(t *testing.T) {
	theirs := machine(t)
	theirs.Namespace = "theirs"
	them := open(t, theirs)
	defer them.Close()
	neighbour := startSpec(t, them, "neighbour", hostSpec(sleep), "")
	us := theirs
	us.Address, us.Namespace, us.StateDir = them.private.socket, "", theirs.StateDir+"-us"
	t.Cleanup(func() { os.RemoveAll(us.StateDir) })
	d := open(t, us)
	startSpec(t, d, "ours", hostSpec(sleep), "")
	if all, err := d.Adopt(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("found %v, %v", all, err)
	}
	if err := d.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	noLeftovers(t, us.StateDir)
	if neighbour.Pid() == 0 || them.private.pid() == 0 {
		t.Error("removing ours took the neighbour away")
	}
	if list, err := them.client.NamespaceService().List(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("namespaces left: %v, %v", list, err)
	}
	if err := neighbour.Stop(t.Context(), time.Second); err != nil {
		t.Error(err)
	}
}

// TestNoticed measures how long the end of an instance goes unnoticed.
func TestNoticed(t *testing.T) {
	d := open(t, machine(t))
	defer d.Close()
	best := time.Hour
	for i := range 5 {
		p := startSpec(t, d, fmt.Sprint("short", i), hostSpec(sleep), "")
		begin := time.Now()
		_ = syscall.Kill(p.Pid(), syscall.SIGKILL)
		<-p.Exited()
		best = min(best, time.Since(begin))
		if err := p.Stop(t.Context(), 0); err != nil {
			t.Error(err)
		}
	}
	t.Logf("noticed after %v", best)
	if best > 100*time.Millisecond && os.Getenv("ONPATH_SOAK") != "" { // 20 ms on an idle machine; others share this one
		t.Errorf("the end of an instance was noticed after %v at best", best)
	}
}

// TestLongPath: a unix socket's address has 108 bytes, a state directory may
// have more.
func TestLongPath(t *testing.T) {
	opt := machine(t)
	top := opt.StateDir
	opt.StateDir = filepath.Join(top, strings.Repeat("long/", 25)+"end")
	d := open(t, opt)
	startSpec(t, d, "long", hostSpec(sleep), "")
	if code, err := d.Exec(t.Context(), "long", onpath.ExecSpec{Command: []string{"true"}, Stdout: io.Discard}); code != 0 || err != nil {
		t.Errorf("exec: %d, %v", code, err)
	}
	if err := d.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	noLeftovers(t, opt.StateDir)
	_ = os.RemoveAll(filepath.Join(top, "long")) // the parents are the test's own
	if _, err := os.Stat(d.private.socket); err == nil {
		t.Errorf("%s is left", d.private.socket)
	}
}

// TestStateDirectoryName: a name that overlayfs cannot have is refused at the
// start, not with the first instance.
func TestStateDirectoryName(t *testing.T) {
	for _, dir := range []string{"/a,b", "/a:b", `/a\b`} {
		if _, err := New(t.Context(), Options{StateDir: dir}); onpath.CodeOf(err) != onpath.CodeInvalid || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v", dir, err)
		}
	}
}
