package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// rests is a container with an ebpf function around it, or not.
func rests(around bool, hops int) string {
	head := `apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: allows}
spec:
  state: none
  ebpf: {object: firewall, budget: 50us, config: {default: allow}}
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: rests}
spec:
  from: {hosts: client}
  to: {hosts: origin}
  through:
`
	hop := fmt.Sprintf("  - {function: hop, drain: 2s, instances: %d}\n", hops)
	if around {
		hop = "  - {function: allows, drain: 1s}\n" + hop
	}
	return head + hop
}

// TestRestingFlows: instances that drain go when their time is up though flows that
// rest, UDP and open TCP, lead to them on each of the chain's paths, the present one and
// those that have ended; a flow that goes on loses nothing when they go, and connections
// speak again afterwards.
func TestRestingFlows(t *testing.T) {
	ctx := need(t, 3*time.Minute)
	udp := udpEcho(t, "10.9.0.2")
	tcp := serveTCP(t, echo)
	var open []net.Conn
	rest := func() {
		for range 12 {
			c := dialUDP(t, "10.9.0.2", udp)
			t.Cleanup(func() { c.Close() })
			if err := ask(c, time.Minute); err != nil {
				t.Fatal(err)
			}
			d, err := dialTCP(t, "10.9.0.2", tcp.port, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { d.Close() })
			open = append(open, d)
			speak(t, d)
		}
	}
	file := filepath.Join(t.TempDir(), "rests.yaml")
	put := func(around bool, hops int) {
		if err := os.WriteFile(file, []byte(rests(around, hops)), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := testbed.Onpath(ctx, "apply", "-f", file, "--wait", "--timeout", "60s"); err != nil {
			t.Fatal(err)
		}
	}
	put(false, 3)
	rest()
	put(true, 3)
	rest()
	earlier := losses(ctx, t)
	s := startStream(t, "10.9.0.2", udp, 500)
	put(true, 1)
	gone(ctx, t, 2*time.Second)
	put(true, 3)
	rest()
	put(false, 2)
	rest()
	gone(ctx, t, 2*time.Second)
	noneLost(ctx, t, s, earlier)
	for _, c := range open {
		speak(t, c)
	}
	if _, err := testbed.Onpath(ctx, "delete", "-f", file); err != nil {
		t.Fatal(err)
	}
	gone(ctx, t, 2*time.Second)
	for _, c := range open {
		speak(t, c)
	}
}

// TestUndone: a change that nobody confirms is undone; the chain goes on with the
// instances that it had, and a flow that goes on loses nothing, neither then nor when
// the time to drain is over.
func TestUndone(t *testing.T) {
	ctx := need(t, 2*time.Minute)
	port := udpEcho(t, "10.9.0.2")
	file := filepath.Join(t.TempDir(), "undone.yaml")
	drains := strings.NewReplacer("drain: 1s", "drain: 4s", "drain: 2s", "drain: 4s")
	put := func(around bool, options ...string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(drains.Replace(rests(around, 2))), 0o644); err != nil {
			t.Fatal(err)
		}
		args := append([]string{"apply", "-f", file}, options...)
		if len(options) == 0 {
			args = append(args, "--wait", "--timeout", "60s")
		}
		if _, err := testbed.Onpath(ctx, args...); err != nil {
			t.Fatal(err)
		}
	}
	names := func() (all, serving []string) {
		list, _, err := api(t).List(ctx, onpath.KindInstance, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list {
			all = append(all, o.Meta().Name)
			if o.(*onpath.Instance).Spec.Draining.IsZero() {
				serving = append(serving, o.Meta().Name)
			}
		}
		slices.Sort(all)
		slices.Sort(serving)
		return all, serving
	}
	put(true)
	t.Cleanup(func() { remove(t, file, 0) })
	before, _ := names()
	earlier := losses(ctx, t)
	s := startStream(t, "10.9.0.2", port, 500)
	put(false, "--confirm", "3s")
	var serving []string
	err := testbed.WaitFor(ctx, "the change is in force", time.Minute, func() (bool, error) {
		_, serving = names()
		return len(serving) == len(before)-1, nil
	})
	if err != nil {
		t.Errorf("of %v serve %v: %v", before, serving, err)
	}
	err = testbed.WaitFor(ctx, "the change is undone", time.Minute, func() (bool, error) {
		_, serving = names()
		return len(serving) == len(before), nil
	})
	if err != nil {
		t.Error(err)
	}
	active(ctx, t, "rests")
	time.Sleep(5 * time.Second) // longer than the time to drain
	noneLost(ctx, t, s, earlier)
	if all, _ := names(); !slices.Equal(all, before) {
		t.Errorf("the instances were %v and are %v", before, all)
	}
}

// speak has the other end of a connection say something back.
func speak(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	b := []byte("hello")
	if _, err := c.Write(b); err != nil {
		t.Error(err)
	}
	if _, err := c.Read(b); err != nil {
		t.Errorf("%s: %v", c.LocalAddr(), err)
	}
}

// gone waits until no instance drains any more: for the time to drain, and what a busy
// machine takes to stop containers.
func gone(ctx context.Context, t *testing.T, drain time.Duration) {
	t.Helper()
	var left []string
	began := time.Now()
	err := testbed.WaitFor(ctx, "all that drains is gone", drain+8*time.Second, func() (bool, error) {
		list, _, err := api(t).List(ctx, onpath.KindInstance, "")
		left = left[:0]
		for _, o := range list {
			if i := o.(*onpath.Instance); !i.Spec.Draining.IsZero() {
				left = append(left, i.Metadata.Name+" on "+i.Spec.Node)
			}
		}
		return len(left) == 0, err
	})
	if err != nil {
		t.Errorf("%v: %s", err, strings.Join(left, ", "))
		return
	}
	t.Logf("gone after %s", time.Since(began).Round(100*time.Millisecond))
}
