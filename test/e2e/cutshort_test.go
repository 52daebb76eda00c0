package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/config"
)

// follower is a command of ours that goes on until something ends it. It runs beside
// the server, whose socket is found again when that is back.
type follower struct {
	cmd       *exec.Cmd
	out, errs bytes.Buffer
	ended     chan error
}

func follow(t *testing.T, args ...string) *follower {
	t.Helper()
	f := &follower{ended: make(chan error, 1)}
	f.cmd = testbed.Lab.Command("server", testbed.Bin(), append([]string{"--server", "unix://" + config.DefaultSocket}, args...)...)
	f.cmd.Stdout, f.cmd.Stderr = &f.out, &f.errs
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { f.ended <- f.cmd.Wait() }()
	t.Cleanup(func() { _ = f.cmd.Process.Kill() })
	return f
}

// code waits for the end, and gives its exit code; -1 if it goes on.
func (f *follower) code(limit time.Duration) int {
	select {
	case err := <-f.ended:
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return exit.ExitCode()
		}
		return 0
	case <-time.After(limit):
		return -1
	}
}

// TestCutShort: a stream that an agent's or the server's end cuts off ends with code 4
// and says so, a capture with a whole packet; what connects again goes on; and nothing
// that rests on a gateway without its agent is proved live.
func TestCutShort(t *testing.T) {
	ctx := need(t, 3*time.Minute)
	name, port := single(ctx, t)
	list, err := testbed.Instances(ctx)
	if err != nil {
		t.Fatal(err)
	}
	instance := list[0].Metadata.Name
	s := startStream(t, "10.9.0.2", port, 2000)
	defer s.end()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		t.Run("agent "+sig.String(), func(t *testing.T) { cutShort(ctx, t, name, sig, instance, port) })
		t.Run("server "+sig.String(), func(t *testing.T) { cutShort(ctx, t, "server", sig, instance, port) })
	}
	if err := testbed.Kill("gw1", syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	var out []byte
	err = testbed.WaitFor(ctx, "the gateway's session is gone", time.Minute, func() (bool, error) {
		out, err = testbed.Onpath(ctx, "verify", "--live")
		return err != nil, nil
	})
	var exit *exec.ExitError
	if err != nil || !strings.Contains(string(out), "\nunproven on the rules in force") || !strings.Contains(string(out), "of what comes in at gateway gw1 nothing is known") {
		t.Errorf("verify --live without the gateway's agent: %v\n%s", err, out)
	}
	if _, err := testbed.Onpath(ctx, "verify", "--live"); !errors.As(err, &exit) || exit.ExitCode() != 4 || !strings.Contains(err.Error(), "what rests on node gw1 is not proved") {
		t.Errorf("verify --live without the gateway's agent: %v", err)
	}
	if out, err := testbed.Onpath(ctx, "verify"); err != nil || !strings.Contains(string(out), "\nproved on the planned rules") {
		t.Errorf("verify without the gateway's agent: %v\n%s", err, out)
	}
	if err := testbed.StartNode(ctx, "gw1"); err != nil {
		t.Fatal(err)
	}
	if out, err := testbed.Onpath(ctx, "verify", "--live"); err != nil || !strings.Contains(string(out), "\nproved on the rules in force") {
		t.Errorf("verify --live with the agent back: %v\n%s", err, out)
	}
}

func cutShort(ctx context.Context, t *testing.T, victim string, sig syscall.Signal, instance string, port int) {
	streams := map[string]*follower{
		"capture": follow(t, "capture", instance, "-w", "-"),
		"logs":    follow(t, "logs", "-f", instance),
	}
	want := "node " + victim + " went away during "
	again := map[string]*follower{}
	if victim == "server" {
		want = ""
		streams["trace --watch"] = follow(t, "trace", "--watch", "10.1.0.2", "10.9.0.2", "-p", fmt.Sprintf("udp/%d", port), "-o", "json")
		again["events -f"] = follow(t, "events", "-f", "-o", "json")
		again["watch"] = follow(t, "watch", "nodes", "-o", "json")
		again["get --watch"] = follow(t, "get", "nodes", "--watch", "-o", "json")
	}
	time.Sleep(2 * time.Second)
	for what, f := range streams {
		if code := f.code(0); code >= 0 {
			t.Fatalf("%s has ended already with code %d: %s", what, code, f.errs.String())
		}
	}
	if err := testbed.Kill(victim, sig); err != nil {
		t.Fatal(err)
	}
	for what, f := range streams {
		text := want
		if want != "" {
			text += what
		}
		if code := f.code(15 * time.Second); code != 4 || !strings.Contains(f.errs.String(), "onpath: ") || !strings.Contains(f.errs.String(), text) {
			t.Errorf("%s: exit code %d, and it says %q", what, code, f.errs.String())
		}
	}
	packets(t, streams["capture"].out.Bytes())
	if victim != "server" {
		if err := testbed.StartNode(ctx, victim); err != nil {
			t.Fatal(err)
		}
		return
	}
	if err := testbed.StartServer(ctx); err != nil {
		t.Fatal(err)
	}
	allConnected(ctx, t)
	if err := testbed.WaitFor(ctx, "the nodes are ready", time.Minute, func() (bool, error) {
		var n onpath.Node
		err := testbed.Get(ctx, &n, "nodes", "gw1")
		return err == nil && n.Status.Ready, err
	}); err != nil {
		t.Fatal(err)
	}
	for what, f := range again {
		if code := f.code(time.Second); code >= 0 {
			t.Errorf("%s did not connect again: exit code %d, and it says %q", what, code, f.errs.String())
		}
	}
}

// packets checks that a capture is whole blocks, with some packets in them.
func packets(t *testing.T, b []byte) {
	t.Helper()
	n, whole := 0, len(b)
	for len(b) >= 12 {
		size := int(binary.LittleEndian.Uint32(b[4:]))
		if size < 12 || size > len(b) {
			break
		}
		if binary.LittleEndian.Uint32(b) == 6 {
			n++
		}
		b = b[size:]
	}
	if n < 100 || len(b) > 0 {
		t.Errorf("the capture of %d bytes has %d packets, and %d bytes of half a block", whole, n, len(b))
	}
}
