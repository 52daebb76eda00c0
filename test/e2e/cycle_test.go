package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/testprogram"
)

var nodes = []string{"gw1", "n1", "n2", "n3"}

// TestTwentyCycles: applying and deleting a chain twenty times under traffic
// leaves nothing behind, on the nodes, in containerd, in the kernel, in the
// store.
func TestTwentyCycles(t *testing.T) {
	ctx := need(t, 6*time.Minute)
	port := udpEcho(t, "10.9.0.2")
	file, err := filepath.Abs("testdata/three.yaml")
	if err != nil {
		t.Fatal(err)
	}
	cycle := func() {
		if err := stage.Apply(ctx, file); err != nil {
			t.Fatal(err)
		}
		active(ctx, t, "three")
		c := dialUDP(t, "10.9.0.2", port)
		defer c.Close()
		if err := ask(c, 2*time.Second); err != nil {
			t.Error("through the chain:", err)
		}
		remove(t, file, 0)
	}
	cycle() // what is made once and stays, such as the tunnel device, is made now
	before := everything(ctx, t)
	earlier := losses(ctx, t)
	s := startStream(t, "10.9.0.2", port, 500)
	for range 20 {
		begun := time.Now()
		cycle()
		if took := time.Since(begun); took > 20*time.Second {
			t.Errorf("a cycle took %v: something waited in vain", took)
		}
	}
	// The flow moves forty times, into the chain and out of it.
	noneLost(ctx, t, s, earlier)
	var left []string
	err = stage.WaitFor(ctx, "nothing is left", 15*time.Second, func() (bool, error) {
		left = left[:0]
		for thing := range everything(ctx, t) {
			if !before[thing] {
				left = append(left, thing)
			}
		}
		return len(left) == 0, nil
	})
	if err != nil {
		slices.Sort(left)
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}

// TestElementsGo: live flows of a chain that loses an element, and of one that is
// deleted while its elements may drain for different times, lose nothing.
func TestElementsGo(t *testing.T) {
	ctx := need(t, 4*time.Minute)
	const (
		head = "apiVersion: onpath/v1alpha1\nkind: Chain\nmetadata: {name: shrinks}\nspec:\n  from: {hosts: client}\n  to: {hosts: origin}\n  through:\n"
		hop  = "  - {function: hop, drain: 1s, place: {nodes: {name: n1}}}\n"
		bump = "  - {function: bump, drain: 2s, place: {nodes: {name: n2}}}\n"
	)
	port := udpEcho(t, "10.9.0.2")
	file := filepath.Join(t.TempDir(), "shrinks.yaml")
	put := func(elements string) {
		if err := os.WriteFile(file, []byte(head+elements), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := stage.Apply(ctx, file); err != nil {
			t.Fatal(err)
		}
		active(ctx, t, "shrinks")
	}
	put(hop + bump)
	earlier := losses(ctx, t)
	s := startStream(t, "10.9.0.2", port, rate)
	rounds := 1
	if os.Getenv("ONPATH_SOAK") != "" {
		rounds = 10
	}
	for range rounds {
		for _, elements := range []string{bump, hop + bump, hop, bump + hop} {
			time.Sleep(500 * time.Millisecond)
			put(elements)
			time.Sleep(3 * time.Second) // longer than all drains
		}
	}
	remove(t, file, 0)
	noneLost(ctx, t, s, earlier)
}

// everything that a chain may leave: one line each. Of what is only counted, the
// line has the count.
func everything(ctx context.Context, t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, n := range nodes {
		pid := stage.Pid(n)
		for _, l := range strings.Split(run(ctx, t, n, "ip", "-br", "link"), "\n") {
			if f := strings.Fields(l); len(f) > 0 {
				all[n+" link "+f[0]] = true
			}
		}
		mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mounts", pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range strings.Split(string(mounts), "\n") {
			if f := strings.Fields(l); len(f) > 1 {
				all[n+" mount "+f[1]] = true
			}
		}
		pins, _ := filepath.Glob(fmt.Sprintf("/proc/%d/root/sys/fs/bpf/onpath/*/*", pid))
		for _, p := range pins {
			all[n+" pin "+filepath.Base(p)] = true
		}
		for _, dir := range []string{"netns", "instances"} {
			files, _ := os.ReadDir(fmt.Sprintf("/proc/%d/root/var/lib/onpath/node/%s", pid, dir))
			for _, f := range files {
				all[n+" "+dir+" "+f.Name()] = true
			}
		}
		if n == "gw1" {
			continue // runs no containers
		}
		for _, kind := range []string{"containers", "tasks", "snapshots"} {
			out := run(ctx, t, n, "ctr", "-a", "/var/lib/onpath/node/container/containerd/containerd.sock", "-n", "onpath", kind, "ls")
			for _, l := range strings.Split(out, "\n")[1:] {
				if f := strings.Fields(l); len(f) > 0 {
					all[n+" "+kind+" "+f[0]] = true
				}
			}
		}
	}
	for _, k := range onpath.Kinds() {
		if k == onpath.KindEvent {
			continue
		}
		list, _, err := api(t).List(ctx, k, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list {
			all["store "+onpath.KeyOf(o).String()] = true
		}
	}
	all["shims "+strconv.Itoa(shims())] = true
	return all
}

// shims is the number of containerd shims in the stage's hosts.
func shims() (n int) {
	var hosts []string
	for _, name := range nodes {
		if l, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", stage.Pid(name))); err == nil {
			hosts = append(hosts, l)
		}
	}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		comm, err := os.ReadFile(d + "/comm")
		mnt, _ := os.Readlink(d + "/ns/mnt")
		if err == nil && strings.HasPrefix(string(comm), "containerd-shim") && slices.Contains(hosts, mnt) {
			n++
		}
	}
	return n
}

// TestUpgrade: a newer build of the agent takes over on every node, and of the
// server, under traffic, and loses nothing.
func TestUpgrade(t *testing.T) {
	ctx := need(t, 3*time.Minute)
	next := nextBuild(ctx, t)
	apply(ctx, t, strings.Replace(pairChain, "LOST", "none: drop", 1))
	active(ctx, t, "failing")
	ready(ctx, t, 2)
	port := udpEcho(t, "10.9.0.2")
	earlier := losses(ctx, t)
	s := startStream(t, "10.9.0.2", port, rate)
	time.Sleep(500 * time.Millisecond)
	old := stage.Use(next)
	defer stage.Use(old)
	for _, name := range append([]string{"server"}, nodes...) {
		if err := stage.Kill(name, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		var err error
		if name == "server" {
			err = stage.StartServer(ctx)
		} else {
			err = stage.StartNode(ctx, name)
		}
		if err != nil {
			t.Fatal(err)
		}
		if name != "server" {
			runsVersion(ctx, t, name, "next")
		}
	}
	time.Sleep(time.Second)
	noneLost(ctx, t, s, earlier)
}

// runsVersion waits until the server has heard it from the node.
func runsVersion(ctx context.Context, t *testing.T, name, version string) {
	t.Helper()
	var node onpath.Node
	err := stage.WaitFor(ctx, name+" runs version "+version, 5*time.Second, func() (bool, error) {
		err := stage.Get(ctx, &node, "nodes", name)
		return node.Status.Version == version, err
	})
	if err != nil {
		t.Errorf("%v; it says %q", err, node.Status.Version)
	}
}

// nextBuild is the program with another version, beside the one that the stage
// runs, where the hosts see it.
func nextBuild(ctx context.Context, t *testing.T) string {
	t.Helper()
	bin := stage.Bin() + "-next"
	if _, err := os.Stat(bin); err == nil {
		return bin
	}
	err := testprogram.Build(ctx, bin, "next")
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("needs Go, or " + bin + ", to have a newer build to upgrade to")
	}
	if err != nil {
		t.Fatal(err)
	}
	return bin
}
