package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestSecondAgent: a second agent of a node, one of another name, and onpath node off,
// with a state folder of their own, are refused beside the one that runs, and no packet
// is lost.
func TestSecondAgent(t *testing.T) {
	ctx := need(t, time.Minute)
	name, port := single(ctx, t)
	earlier := losses(ctx, t)
	s := startStream(t, "10.9.0.2", port, 1000)
	const folder = "/var/lib/onpath/second"
	for _, args := range [][]string{
		{"node", "--config", "/dev/null", "--name", name, "--state-dir", folder, "--server", testbed.Socket()},
		{"node", "off", "--config", "/dev/null", "--name", name, "--state-dir", folder},
	} {
		// With the host's mounts, and with a BPF file system of its own.
		for _, before := range [][]string{{"env"}, {"unshare", "--mount", "sh", "-c", `mount -t bpf bpf /sys/fs/bpf && exec "$@"`, "sh"}} {
			command := slices.Concat(before[1:], []string{testbed.Bin()}, args)
			out, err := testbed.Lab.Command(name, before[0], command...).CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 5 || !strings.Contains(string(out), "an agent of node "+name+" runs in this network namespace (process ") {
				t.Errorf("%v %v: %v: %s", before, args, err, out)
			}
		}
	}
	another := testbed.Lab.Command(name, testbed.Bin(), "node", "--config", "/dev/null", "--name", "another", "--state-dir", folder, "--server", testbed.Socket())
	out, err := another.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 5 || !strings.Contains(string(out), "node "+name+" is in this network namespace already") {
		t.Errorf("an agent of another name: %v: %s", err, out)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d/root%s", testbed.Pid(name), folder)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a refused agent left %s (%v)", folder, err)
	}
	time.Sleep(time.Second)
	noneLost(ctx, t, s, earlier)
}
