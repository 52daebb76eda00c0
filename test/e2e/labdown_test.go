package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onpath/onpath/lab"
)

// oneHost is a lab of a router and two neighbours; MOUNTS is the router's.
const oneHost = `
hosts:
  left: {interfaces: {eth0: [10.0.1.2/24]}, routes: auto}
  right: {interfaces: {eth0: [10.0.2.2/24]}, routes: auto}
  router:
    forwarding: on
    MOUNTS
    interfaces: {left: [10.0.1.1/24], right: [10.0.2.1/24]}
links:
- {a: "left:eth0", b: "router:left"}
- {a: "right:eth0", b: "router:right"}
`

// asleep runs as long as the instance; nothing else on the machine is called so.
const asleep = `
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: asleep}
spec: {container: {image: host, command: [sleep, "PERIOD"]}}
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: left-behind}
spec: {from: any, to: {prefixes: [10.0.2.0/24]}, through: [{function: asleep}]}
`

// TestLabDownTakesNodesOff: what an agent started in a lab's host, pins in the
// machine's /sys/fs/bpf, folders, and containers in namespaces of their own, goes
// with the lab, whether its agent runs or was killed.
func TestLabDownTakesNodesOff(t *testing.T) {
	for name, c := range map[string]struct {
		mounts string
		killed bool
	}{
		"shared":  {mounts: "mounts: shared"},
		"killed":  {mounts: "mounts: shared", killed: true},
		"private": {mounts: "mounts: private", killed: true},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := need(t, time.Minute)
			dir := t.TempDir()
			bin := testbed.Bin()
			if c.mounts != "mounts: shared" {
				c.mounts += fmt.Sprintf("\n    share: [%q, %q]", dir, filepath.Dir(bin))
			}
			node := fmt.Sprintf("left-behind-%d", os.Getpid())
			l := labOf(ctx, t, node, strings.Replace(oneHost, "MOUNTS", c.mounts, 1))
			period := fmt.Sprint(1_000_000 + os.Getpid())
			up := upWithChain(ctx, t, l, node, dir, period)
			if c.killed {
				if err := up.Process.Signal(syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				_ = up.Wait()
				halfWritten(t, filepath.Join(dir, "state", "node"))
			}
			if out, err := exec.CommandContext(ctx, bin, "lab", "down", node).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if n := running("sleep", period); n != 0 {
				t.Errorf("%d instances run on", n)
			}
			left, _ := filepath.Glob(filepath.Join(dir, "state", "node", "*"))
			if _, err := os.Stat("/sys/fs/bpf/onpath/" + node); err == nil {
				left = append(left, "/sys/fs/bpf/onpath/"+node)
			}
			if len(left) > 0 {
				t.Errorf("left: %v", left)
			}
			if n := running("containerd", filepath.Join(dir, "state")); n != 0 {
				t.Errorf("%d processes of containerd run on", n)
			}
		})
	}
}

// halfWritten leaves what an agent that was killed while it wrote its files leaves.
func halfWritten(t *testing.T, state string) {
	t.Helper()
	for _, f := range []string{".plan.json.new-1", "instances/.left.json.new-23"} {
		if err := os.WriteFile(filepath.Join(state, f), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// upWithChain starts server and agent in a lab's router, with a chain whose
// function sleeps for the period, and waits until it does.
func upWithChain(ctx context.Context, t *testing.T, l *lab.Lab, node, dir, period string) *exec.Cmd {
	t.Helper()
	bin := testbed.Bin()
	up := l.Command("router", bin, "up", "--name", node, "--state-dir", filepath.Join(dir, "state"), "--socket", filepath.Join(dir, "s"), "--host-image", "--uplink", "left", "--uplink", "right")
	var log strings.Builder
	up.Stdout, up.Stderr = &log, &log
	if err := up.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = up.Process.Kill() // if the test has not
		_ = up.Wait()
		if t.Failed() {
			t.Log(tail(log.String(), 40))
		}
	})
	file := filepath.Join(dir, "chain.yaml")
	if err := os.WriteFile(file, []byte(strings.Replace(asleep, "PERIOD", period, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	applyWhenUp(ctx, t, bin, filepath.Join(dir, "s"), file)
	if n := running("sleep", period); n != 1 {
		t.Fatalf("%d instances run", n)
	}
	return up
}

// TestNodeOffOfAnother: node off with another node's name, or in another network
// namespace, touches nothing: instances without their data path, or the other way
// round, would lead traffic nowhere. Without a name it knows whose folder it is.
func TestNodeOffOfAnother(t *testing.T) {
	ctx := need(t, time.Minute)
	dir := t.TempDir()
	node := fmt.Sprintf("another-%d", os.Getpid())
	l := labOf(ctx, t, node, strings.Replace(oneHost, "MOUNTS", "mounts: shared", 1))
	period := fmt.Sprint(2_000_000 + os.Getpid())
	up := upWithChain(ctx, t, l, node, dir, period)
	if err := up.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = up.Wait()
	state := filepath.Join(dir, "state", "node")
	pinned := func() bool {
		_, err := os.Stat("/sys/fs/bpf/onpath/" + node)
		return err == nil
	}
	for what, off := range map[string]*exec.Cmd{
		"is of node " + node:           l.Command("router", testbed.Bin(), "node", "off", "--state-dir", state, "--name", "nosuch"),
		"in another network namespace": exec.CommandContext(ctx, testbed.Bin(), "node", "off", "--state-dir", state),
	} {
		out, err := off.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(string(out), what) {
			t.Errorf("%q expected with exit code 2, got %v: %s", what, err, out)
		}
		if !pinned() || running("sleep", period) != 1 {
			t.Fatal("something was taken away")
		}
	}
	if out, err := l.Command("router", testbed.Bin(), "node", "off", "--state-dir", state).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if n := running("sleep", period); pinned() || n != 0 {
		t.Errorf("left after node off: data path %t, %d instances", pinned(), n)
	}
}

// labOf makes a lab of that name, and takes it down if the test does not.
func labOf(ctx context.Context, t *testing.T, name, yaml string) *lab.Lab {
	t.Helper()
	file := filepath.Join(t.TempDir(), "lab.yaml")
	if err := os.WriteFile(file, []byte("name: "+name+yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	topology, err := lab.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	l, err := lab.Up(ctx, topology, lab.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if again, err := lab.Open("", name); err == nil {
			if err := again.Down(context.Background()); err != nil {
				t.Error(err)
			}
		}
	})
	return l
}

// applyWhenUp applies a file as soon as the server answers, and waits for it.
func applyWhenUp(ctx context.Context, t *testing.T, bin, socket, file string) {
	t.Helper()
	for {
		out, err := exec.CommandContext(ctx, bin, "apply", "-f", file, "--wait", "--server", "unix://"+socket).CombinedOutput()
		if err == nil {
			return
		}
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 4 && exit.ExitCode() != 10 || ctx.Err() != nil { // cannot be reached now; has no node yet
			t.Fatalf("%v: %s", err, out)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// running counts the processes whose command line has all words.
func running(words ...string) (n int) {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
processes:
	for _, f := range lines {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		for _, w := range words {
			if !strings.Contains(string(b), w) {
				continue processes
			}
		}
		n++
	}
	return n
}
