package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// thing is something that a chain may leave: where it is, what it is called, of which
// kind.
type thing struct{ where, kind, name string }

// census is how many there are of each thing.
type census map[thing]int

// everything that a chain may leave of which the instances ran.
func everything(ctx context.Context, t *testing.T, ran []string) census {
	t.Helper()
	c := census{}
	for _, n := range nodes {
		c.files(ctx, t, n)
		if n != "gw1" { // it runs no containers
			c.containers(ctx, t, n)
		}
		c.processes(t, n)
	}
	c.cgroups(ran)
	for _, k := range onpath.Kinds() {
		if k == onpath.KindEvent {
			continue
		}
		list, _, err := api(t).List(ctx, k, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list {
			c[thing{"the store", "object", onpath.KeyOf(o).String()}]++
		}
	}
	return c
}

// atRest is everything when it does not change any more.
func atRest(ctx context.Context, t *testing.T, ran []string) (now census) {
	t.Helper()
	now = everything(ctx, t, ran)
	err := testbed.WaitFor(ctx, "nothing changes", time.Minute, func() (bool, error) {
		time.Sleep(time.Second)
		last := now
		now = everything(ctx, t, ran)
		return maps.Equal(last, now), nil
	})
	if err != nil {
		t.Error(err)
	}
	return now
}

// beyond is what there is more of than there was before, a line each.
func (c census) beyond(before census) (more []string) {
	for k, n := range c {
		if n > before[k] {
			more = append(more, fmt.Sprintf("%s: %s %s (%d, before %d)", k.where, k.kind, k.name, n, before[k]))
		}
	}
	slices.Sort(more)
	return more
}

// shows are the kinds of things that every running chain of containers is made of.
// Their image being the host, they bring no images, leases and content, and their file
// systems are no snapshots; pins and links there are only where the kernel has tcx.
var shows = []string{"link", "mount", "netns", "instances", "container", "task", "process", "descriptor", "cgroup", "BPF map", "object"}

// sees fails the test unless there is more of each kind while a chain runs: what is not
// seen then is not seen either when it is left.
func (c census) sees(t *testing.T, running census) {
	t.Helper()
	more := map[string]bool{}
	for k, n := range running {
		if n > c[k] {
			more[k.kind] = true
		}
	}
	for _, kind := range shows {
		if !more[kind] {
			t.Errorf("a running chain has no %s more than none", kind)
		}
	}
}

// files adds a node's devices, mounts, pins and folders of instances.
func (c census) files(ctx context.Context, t *testing.T, n string) {
	t.Helper()
	pid := testbed.Pid(n)
	for l := range strings.Lines(run(ctx, t, n, "ip", "-br", "link")) {
		if f := strings.Fields(l); len(f) > 0 {
			c[thing{n, "link", f[0]}]++
		}
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mounts", pid))
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(string(mounts)) {
		if f := strings.Fields(l); len(f) > 1 {
			c[thing{n, "mount", f[1]}]++
		}
	}
	pins, _ := filepath.Glob(fmt.Sprintf("/proc/%d/root/sys/fs/bpf/onpath/*/*", pid))
	for _, p := range pins {
		c[thing{n, "pin", filepath.Base(p)}]++
	}
	for _, dir := range []string{"netns", "instances"} {
		files, _ := os.ReadDir(fmt.Sprintf("/proc/%d/root/var/lib/onpath/node/%s", pid, dir))
		for _, f := range files {
			c[thing{n, dir, f.Name()}]++
		}
	}
}

// containers adds what a node's containerd knows.
func (c census) containers(ctx context.Context, t *testing.T, n string) {
	t.Helper()
	for _, kind := range []string{"container", "task", "snapshot", "image", "lease"} {
		out := ctr(ctx, t, n, kind+"s", "ls")
		for _, l := range strings.Split(out, "\n")[1:] {
			if f := strings.Fields(l); len(f) > 0 {
				c[thing{n, kind, f[0]}]++
			}
		}
	}
	for _, digest := range strings.Fields(ctr(ctx, t, n, "content", "ls", "-q")) {
		c[thing{n, "content", digest}]++
	}
}

func ctr(ctx context.Context, t *testing.T, n string, args ...string) string {
	t.Helper()
	return run(ctx, t, n, append([]string{"ctr", "-a", "/var/lib/onpath/node/container/containerd/containerd.sock", "-n", "onpath"}, args...)...)
}

// processes adds the programs that run in a node, but those in containers, and what
// they have in the kernel.
func (c census) processes(t *testing.T, n string) {
	t.Helper()
	host, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", testbed.Pid(n)))
	if err != nil {
		t.Fatal(err)
	}
	h := newHeld(t)
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		mnt, _ := os.Readlink(d + "/ns/mnt")
		line, err := os.ReadFile(d + "/cmdline")
		if mnt != host || err != nil || len(line) == 0 {
			continue
		}
		words := strings.Split(string(line), "\x00")
		name := filepath.Base(words[0])
		if len(words) > 1 && strings.HasPrefix(name, "onpath") { // its role
			name += " " + words[1]
		}
		c[thing{n, "process", name}]++
		h.by(d)
		c.open(n, name, d)
	}
	h.count(c, n)
}

// open adds what a process has open of the kernel's own things, such as handles of
// processes, and of network namespaces. Connections come and go.
func (c census) open(n, name, proc string) {
	files, _ := filepath.Glob(proc + "/fd/*")
	for _, f := range files {
		to, _ := os.Readlink(f)
		if what, ok := strings.CutPrefix(to, "anon_inode:"); ok {
			c[thing{n, "descriptor", what + " of " + name}]++
		} else if strings.HasPrefix(to, "net:[") {
			c[thing{n, "descriptor", "[net] of " + name}]++
		}
	}
}

// cgroups adds those of instances, which all nodes on the machine have in one place.
func (c census) cgroups(ran []string) {
	for _, parent := range []string{"/sys/fs/cgroup/onpath/", "/sys/fs/cgroup/*/onpath/"} {
		for _, name := range ran {
			found, _ := filepath.Glob(parent + onpath.DefaultTenant + "-" + name + "-*")
			for _, dir := range found {
				c[thing{"the machine", "cgroup", dir}]++
			}
		}
	}
}
