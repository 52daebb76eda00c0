package attach_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/onpath/onpath/internal/netnsrun"
)

// image writes an image that has the program sleep alone, and gives its folder.
func image(t *testing.T) string {
	t.Helper()
	dir, out := t.TempDir(), filepath.Join(t.TempDir(), "sleeps")
	program, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip("needs the program sleep")
	}
	libraries, _ := exec.Command("ldd", program).Output()
	for _, f := range append(strings.Fields(string(libraries)), program) {
		if !strings.HasPrefix(f, "/") {
			continue
		}
		to := filepath.Join(dir, f)
		data, err := os.ReadFile(f)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(to), 0o755)
		}
		if err == nil {
			err = os.WriteFile(to, data, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	layer := filepath.Join(t.TempDir(), "layer.tar")
	if out, err := exec.Command("tar", "-C", dir, "-cf", layer, ".").CombinedOutput(); err != nil {
		t.Fatalf("tar: %v %s", err, out)
	}
	l, err := tarball.LayerFromFile(layer)
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config.OS, config.Architecture = "linux", "amd64"
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	p, err := layout.Write(out, empty.Index)
	if err == nil {
		err = p.AppendImage(img)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// through has all traffic of machines cross one instance of a function from an image, without
// which it is dropped.
func (c *cloud) through(ctx context.Context, place string, machines ...string) {
	c.t.Helper()
	text := fmt.Sprintf(`apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: sleeps}
spec: {container: {image: %q, command: [sleep, "100000"]}}
`, image(c.t))
	for _, m := range machines {
		text += fmt.Sprintf(`---
apiVersion: onpath/v1alpha1
kind: Hosts
metadata: {name: %[1]s}
spec: {node: %[1]s}
`, m)
	}
	for _, m := range machines {
		text += fmt.Sprintf(`---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: all-%[1]s}
spec: {from: {hosts: %[1]s}, to: any, through: [{deployment: sleeps, none: drop}]}
`, m)
	}
	text += fmt.Sprintf(`---
apiVersion: onpath/v1alpha1
kind: Deployment
metadata: {name: sleeps}
spec: {function: sleeps, instances: 1, place: %s}
`, place)
	file := filepath.Join(c.t.TempDir(), "chain.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.must(ctx, "apply", "-f", file, "--wait")
}

// reaches asks the client from a machine, once.
func (c *cloud) reaches(host string) error {
	return netnsrun.Do(c.Lab.NetNS(host), func() error {
		conn, err := net.DialTimeout("tcp", "192.0.2.10:7000", time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		if _, err = conn.Write([]byte("x")); err == nil {
			_, err = io.ReadFull(conn, make([]byte, 1))
		}
		return err
	})
}

// powerless has a machine lose all but its disk: processes, devices, pins, namespaces.
func (c *cloud) powerless(ctx context.Context, host string) {
	c.t.Helper()
	mounts, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", c.Pid(host)))
	if err != nil {
		c.t.Fatal(err)
	}
	if err := c.Kill(host, syscall.SIGKILL); err != nil {
		c.t.Fatal(err)
	}
	parents, dying := map[int]int{}, map[int]bool{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(d))
		stat, _ := os.ReadFile(d + "/stat")
		if _, after, ok := strings.Cut(string(stat), ") "); ok {
			parents[pid], _ = strconv.Atoi(strings.Fields(after)[1])
		}
		in, _ := os.Readlink(d + "/ns/mnt")
		line, _ := os.ReadFile(d + "/cmdline")
		name := filepath.Base(strings.Split(string(line), "\x00")[0])
		if in == mounts && (strings.HasPrefix(name, "containerd") || strings.HasPrefix(name, "onpath")) {
			dying[pid] = true
		}
	}
	for pid := range parents {
		for p := pid; p > 1; p = parents[p] {
			if dying[p] {
				dying[pid] = true
				break
			}
		}
	}
	for pid := range dying {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	out, err := c.Exec(ctx, host, "sh", "-c", `
		for l in $(ip -o link | cut -d: -f2 | cut -d@ -f1); do case $l in lo|eth0) ;; *) ip link del "$l" 2>/dev/null || true ;; esac; done
		rm -rf /sys/fs/bpf/onpath
		tc qdisc del dev eth0 clsact 2>/dev/null || true
		ip link set dev eth0 xdp off 2>/dev/null || true
		nft flush ruleset
		for f in /var/lib/onpath/node/netns/*; do umount "$f" 2>/dev/null || true; done
		sed -i 's/"boot":"[^"]*"/"boot":"another"/' /var/lib/onpath/node/instances/*.json
		ls /var/lib/onpath/node/netns /var/lib/onpath/node/instances`)
	if err != nil {
		c.t.Fatalf("%v: %s", err, out)
	}
}

// TestRestartBehindOwnChain: a machine of which a chain drops all without its instance starts
// anew while neither the server nor its registry answers. The image is on its disk, so that the
// instance runs again within seconds, and with it the machine's traffic.
func TestRestartBehindOwnChain(t *testing.T) {
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set; it starts a machine anew, which takes half a minute")
	}
	c, ctx := newCloud(t, 4*time.Minute)
	c.echo("client", "192.0.2.10:7000")
	c.through(ctx, "{nodes: {name: vm1}}", "vm1")
	c.crosses(ctx, "vm1", "vm1", 10*time.Second)
	if err := c.Kill("server", syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	c.powerless(ctx, "vm1")
	began := time.Now()
	err := c.Start("vm1-anew", "vm1", c.Bin(), "node", "--config", "/dev/null", "--name", "vm1", "--underlay", "10.20.0.11",
		"--server", "https://10.20.0.10:7443", "--host-image", "--attach", "host", "--cloudlet", "cloud")
	if err != nil {
		t.Fatal(err)
	}
	c.crosses(ctx, "vm1", "vm1", 20*time.Second)
	t.Logf("the machine's traffic crosses its chain %s after its agent began anew", time.Since(began).Round(100*time.Millisecond))
	if err := errors.Join(c.StartServer(ctx), c.Kill("vm1-anew", syscall.SIGTERM)); err != nil {
		t.Fatal(err)
	}
}

// crosses waits until a machine's traffic gets through, and crosses an instance at a node.
func (c *cloud) crosses(ctx context.Context, host, node string, limit time.Duration) {
	c.t.Helper()
	var last error
	count := func() (sum int) {
		out, _ := c.Exec(ctx, node, "sh", "-c", "cat /sys/class/net/op*/statistics/rx_packets")
		for n := range strings.FieldsSeq(string(out)) {
			packets, _ := strconv.Atoi(n)
			sum += packets
		}
		return sum
	}
	err := c.WaitFor(ctx, host+" reaches the client through its instance", limit, func() (bool, error) {
		before := count()
		last = c.reaches(host)
		return last == nil && count() >= before+6, nil // of a connection, both ways
	})
	if err != nil {
		c.t.Fatalf("%v: %v", err, last)
	}
}

// TestAttachedMachineDies: of two attached machines, each with a chain that drops all without
// its instance, the one dies where the instance of both runs. The other fetches the image, which
// it does not have, past its own chain, and goes on.
func TestAttachedMachineDies(t *testing.T) {
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set; a node is given up after half a minute")
	}
	c, ctx := newCloud(t, 5*time.Minute)
	c.echo("client", "192.0.2.10:7000")
	if err := c.Kill("vm3", syscall.SIGKILL); err != nil { // it shall not help
		t.Fatal(err)
	}
	c.through(ctx, "{cloudlets: [cloud]}", "vm1", "vm2")
	list, err := c.Instances(ctx)
	if err != nil || len(list) != 1 {
		t.Fatalf("%d instances, %v", len(list), err)
	}
	dies := list[0].Spec.Node
	lives := map[string]string{"vm1": "vm2", "vm2": "vm1"}[dies]
	c.crosses(ctx, lives, dies, 10*time.Second)
	c.powerless(ctx, dies)
	if out, err := c.Exec(ctx, dies, "ip", "link", "set", "eth0", "down"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	began := time.Now()
	c.crosses(ctx, lives, lives, 2*time.Minute)
	t.Logf("%s goes on %s after %s died", lives, time.Since(began).Round(100*time.Millisecond), dies)
}
