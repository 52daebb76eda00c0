package e2e

import (
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestSecondAgent: a second agent of a node, and onpath node off, with a state
// folder of their own are refused beside the one that runs, and no packet is lost.
func TestSecondAgent(t *testing.T) {
	ctx := need(t, time.Minute)
	apply(ctx, t, strings.Replace(singleChain, "NONE", "none: drop", 1))
	active(ctx, t, "single")
	list, err := stage.Instances(ctx)
	if err != nil || len(list) != 1 {
		t.Fatalf("instances: %+v, %v", list, err)
	}
	name := list[0].Spec.Node
	port := udpEcho(t, "10.9.0.2")
	earlier := losses(ctx, t)
	s := startStream(t, "10.9.0.2", port, 1000)
	const folder = "/var/lib/onpath/second"
	for _, args := range [][]string{
		{"node", "--config", "/dev/null", "--name", name, "--state-dir", folder, "--server", stage.Socket()},
		{"node", "off", "--config", "/dev/null", "--name", name, "--state-dir", folder},
	} {
		// With the host's mounts, and with a BPF file system of its own.
		for _, before := range [][]string{{"env"}, {"unshare", "--mount", "sh", "-c", `mount -t bpf bpf /sys/fs/bpf && exec "$@"`, "sh"}} {
			command := slices.Concat(before[1:], []string{stage.Bin()}, args)
			out, err := stage.Lab.Command(name, before[0], command...).CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 5 || !strings.Contains(string(out), "an agent of node "+name+" runs in this network namespace (process ") {
				t.Errorf("%v %v: %v: %s", before, args, err, out)
			}
		}
	}
	if out := run(ctx, t, name, "sh", "-c", "ls -d "+folder+" || true"); strings.HasPrefix(out, "/") {
		t.Errorf("a refused agent left %s", out)
	}
	time.Sleep(time.Second)
	noneLost(ctx, t, s, earlier)
}
