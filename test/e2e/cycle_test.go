package e2e

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/testprogram"
)

var nodes = []string{"gw1", "n1", "n2", "n3"}

// TestCycles: applying and deleting a chain again and again under traffic
// leaves nothing behind, on the nodes, in containerd, in the kernel, in the
// store.
func TestCycles(t *testing.T) {
	cycles := 5
	if os.Getenv("ONPATH_SOAK") != "" {
		cycles = 20
	}
	ctx := need(t, 6*time.Minute)
	port := udpEcho(t, "10.9.0.2")
	file, err := filepath.Abs("testdata/three.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var ran []string // instances
	cycle := func(meanwhile func()) {
		if err := testbed.Apply(ctx, file); err != nil {
			t.Fatal(err)
		}
		active(ctx, t, "three")
		c := dialUDP(t, "10.9.0.2", port)
		defer c.Close()
		if err := ask(c, time.Minute); err != nil {
			t.Error("through the chain:", err)
		}
		list, err := testbed.Instances(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range list {
			ran = append(ran, i.Metadata.Name)
		}
		meanwhile()
		remove(t, file, 0)
	}
	nothing := func() {}
	cycle(nothing) // what is made once and stays, such as the tunnel device, is made now
	before := atRest(ctx, t, ran)
	cycle(func() { before.sees(t, everything(ctx, t, ran)) })
	earlier := losses(ctx, t)
	s := startStream(t, "10.9.0.2", port, 500)
	for range cycles {
		begun := time.Now()
		cycle(nothing)
		if took := time.Since(begun); took > 20*time.Second {
			t.Errorf("a cycle took %v: something waited in vain", took)
		}
	}
	// The flow moves into the chain and out of it in each cycle.
	noneLost(ctx, t, s, earlier)
	var left []string
	err = testbed.WaitFor(ctx, "nothing is left", time.Minute, func() (bool, error) {
		left = everything(ctx, t, ran).beyond(before)
		return len(left) == 0, nil
	})
	if err != nil {
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
		if err := testbed.Apply(ctx, file); err != nil {
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
	s := startStream(t, "10.9.0.2", port, modest())
	time.Sleep(500 * time.Millisecond)
	old := testbed.Use(next)
	defer testbed.Use(old)
	for _, name := range append([]string{"server"}, nodes...) {
		if err := testbed.Kill(name, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		var err error
		if name == "server" {
			err = testbed.StartServer(ctx)
		} else {
			err = testbed.StartNode(ctx, name)
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
	err := testbed.WaitFor(ctx, name+" runs version "+version, time.Minute, func() (bool, error) {
		err := testbed.Get(ctx, &node, "nodes", name)
		return node.Status.Version == version, err
	})
	if err != nil {
		t.Errorf("%v; it says %q", err, node.Status.Version)
	}
}

// nextBuild is the program with another version, beside the one that the testbed
// runs, where the hosts see it.
func nextBuild(ctx context.Context, t *testing.T) string {
	t.Helper()
	bin := testbed.Bin() + "-next"
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
