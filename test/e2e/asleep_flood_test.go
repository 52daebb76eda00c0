package e2e

import (
	"context"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onpath/onpath/bench/traffic"
)

// awakeYAML is a chain beside asleepYAML's, through a container on the same machine that does
// not sleep.
const awakeYAML = `
---
apiVersion: onpath/v1alpha1
kind: Deployment
metadata: {name: awake}
spec:
  function: napper
  place: {cloudlets: [pop], nodes: {name: n1}}
  drain: 1s
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: awake}
spec:
  from: {hosts: client}
  to: {hosts: origin}
  select: [{protocol: udp}]
  through:
  - {deployment: awake}
`

// TestAsleepFlood: 100,000 SYNs a second start a sleeping instance once, what the agent keeps
// of them is bounded, and a flow through an instance beside it loses nothing.
func TestAsleepFlood(t *testing.T) {
	idle(t)
	ctx := need(t, 3*time.Minute)
	s, port := serveTCP(t, echo), udpEcho(t, "10.9.0.2")
	schedulable := func(ctx context.Context, command string) {
		if out, err := testbed.Onpath(ctx, command, "gw1"); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
	schedulable(ctx, "uncordon")
	t.Cleanup(func() { schedulable(context.WithoutCancel(ctx), "cordon") })
	text := strings.Replace(asleepYAML, "from: {hosts: client}", "from: {prefixes: [10.1.0.0/24, "+floodFrom.String()+"]}", 1)
	text = strings.TrimRight(text, "\n") + "\n  select: [{protocol: tcp}]\n" + awakeYAML
	apply(ctx, t, strings.ReplaceAll(text, "name: n1", "name: gw1"))
	active(ctx, t, "nap")
	active(ctx, t, "awake")
	if err := testbed.WaitFor(ctx, "the instance sleeps", time.Minute, func() (bool, error) { return napping(ctx) }); err != nil {
		t.Fatal(err)
	}
	other := startStream(t, "10.9.0.2", port, 1000)
	time.Sleep(time.Second)
	flood := flooder(ctx, t)
	agent := strconv.Itoa(testbed.Pid("gw1"))
	woken, before := strings.Count(testbed.Log("gw1"), "reason=Woken"), memory(t, agent)
	const perSecond, seconds = 100_000, 10
	rate := flood(perSecond*11/10, seconds*time.Second) // a source on a busy CPU falls behind
	grown := memory(t, agent) - before
	sent, lost, longest := other.end()
	t.Logf("%.0f SYNs/s for %d s; the agent's memory grew by %d KiB", rate, seconds, grown)
	t.Logf("of %d datagrams beside them %d were lost, the longest time without one %s", sent, lost, longest)
	if rate < perSecond {
		t.Errorf("%.0f SYNs/s came to the gateway, must be %d", rate, perSecond)
	}
	if lost != 0 {
		t.Errorf("a flow beside the flood lost %d of %d: %s", lost, sent, other.when())
	}
	if grown > 32<<10 {
		t.Errorf("the agent's memory grew by %d KiB", grown)
	}
	if n := strings.Count(testbed.Log("gw1"), "reason=Woken") - woken; n != 1 {
		t.Errorf("the instance was started %d times", n)
	}
	c, err := dialTCP(t, "10.9.0.2", s.port, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// memory is what a process has had of its own at most, KiB.
func memory(t *testing.T, pid string) int {
	t.Helper()
	status, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "VmHWM:" {
			n, _ := strconv.Atoi(f[1])
			return n
		}
	}
	t.Fatal("the kernel does not tell VmHWM")
	return 0
}

// floodFrom are the addresses that SYNs come from. Origin has no way to them: it sends nothing
// back.
var floodFrom = netip.MustParsePrefix("10.16.0.0/12")

// flooder is a source of SYNs in the kernel, in the client's place, one on each of two CPUs. It
// gives how many of them a second came to the gateway.
func flooder(ctx context.Context, t *testing.T) (flood func(perSecond int, long time.Duration) float64) {
	t.Helper()
	run(ctx, t, "origin", "ip", "route", "add", "blackhole", floodFrom.String())
	t.Cleanup(func() {
		run(context.WithoutCancel(ctx), t, "origin", "ip", "route", "del", "blackhole", floodFrom.String())
	})
	mac := func(host, device string) (mac net.HardwareAddr) {
		in(t, host, func() error {
			d, err := net.InterfaceByName(device)
			if err == nil {
				mac = d.HardwareAddr
			}
			return err
		})
		return mac
	}
	ns, from, to := testbed.Lab.NetNS("client"), mac("client", "eth0"), mac("gw1", "access")
	sink, err := traffic.NewSink(ns, "eth0") // what a source needs on its device
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sink.Close() })
	run(ctx, t, "gw1", "ethtool", "-K", "access", "gro", "on") // or what XDP sends vanishes
	run(ctx, t, "gw1", "ethtool", "-L", "access", "rx", strconv.Itoa(runtime.NumCPU()), "tx", "1")
	var sources []*traffic.Source
	for cpu := range min(2, runtime.NumCPU()) {
		s, err := traffic.NewSource(ns, "eth0", from, to, cpu)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		sources = append(sources, s)
	}
	came := func() int {
		n, err := strconv.Atoi(strings.TrimSpace(run(ctx, t, "gw1", "awk", `$1 == "access:" {print $3}`, "/proc/net/dev")))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return func(perSecond int, long time.Duration) float64 {
		t.Helper()
		before, origin := came(), netip.MustParseAddr("10.9.0.2")
		took := make([]time.Duration, len(sources))
		var all sync.WaitGroup
		for i, s := range sources {
			n := 1 << 19 // flows: no two sources have one in common
			flows := traffic.Flows{First: i * n, Count: n, From: floodFrom.Addr(), To: origin, Port: 1024, ToPort: 100}
			job := traffic.Job{SYNs: true, Order: traffic.Sequential, Rate: float64(perSecond / len(sources)), Time: long, Flows: flows}
			all.Go(func() {
				sent, err := s.Run(ctx, job)
				if err != nil {
					t.Error(err)
				}
				took[i] = sent.Time
			})
		}
		all.Wait()
		return float64(came()-before) / slices.Max(took).Seconds()
	}
}
