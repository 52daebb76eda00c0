package e2e

import (
	"context"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/lab"
)

// gauge measures flows from client to origin.
func gauge(t *testing.T, flows, perSecond int) *lab.Gauge {
	t.Helper()
	g, err := testbed.Lab.StartGauge(lab.GaugeSpec{
		From: "client", To: "origin", Address: netip.MustParseAddr("10.9.0.2"), Flows: flows, PerSecond: perSecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// blackout ends a gauge and holds it against the bound.
func blackout(ctx context.Context, t *testing.T, g *lab.Gauge, what string, bound time.Duration) {
	t.Helper()
	r, err := g.Stop(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: longest blackout of %d flows %s, longest time without a packet that came through %s, %d of %d packets lost", what, len(r.Flows),
		time.Duration(r.Blackout).Round(time.Millisecond), time.Duration(r.Gap).Round(time.Millisecond), r.Lost, r.Sent)
	for _, f := range r.Flows {
		if f.Silent || f.Lost == f.Sent {
			t.Errorf("%s: the flow from port %d does not go on: %d of %d packets lost", what, f.Port, f.Lost, f.Sent)
		}
	}
	promised(t, what+": the longest silence of a flow", time.Duration(r.Blackout), bound)
}

// carrierOf is the instance that carries the first of a gauge's flows.
func carrierOf(ctx context.Context, t *testing.T, g *lab.Gauge) onpath.Instance {
	t.Helper()
	time.Sleep(500 * time.Millisecond)
	return serving(ctx, t, g.Tuples()[0])
}

// TestNodeLostWithoutServer: a node whose link is cut, and one that dies, with
// the server dead: the gateway re-picks by itself, and takes the node back only
// after it has answered.
func TestNodeLostWithoutServer(t *testing.T) {
	ctx := need(t, 3*time.Minute)
	apply(ctx, t, strings.Replace(pairChain, "LOST", "lost: repick", 1))
	active(ctx, t, "failing")
	ready(ctx, t, 2)
	for _, fault := range []string{"cut-link", "kill-node"} {
		t.Run(fault, func(t *testing.T) {
			g := gauge(t, 8, 500)
			victim := carrierOf(ctx, t, g)
			if err := testbed.Kill("server", syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			time.Sleep(200 * time.Millisecond)
			link, err := testbed.Lab.FindLink(victim.Spec.Node + ":underlay")
			if err != nil {
				t.Fatal(err)
			}
			fail := func(lasts time.Duration) {
				t.Helper()
				if fault == "cut-link" {
					err = testbed.Lab.Cut(link, lasts)
				} else {
					_, err = testbed.Lab.KillHost(victim.Spec.Node, lasts)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			fail(time.Minute)
			goesOn(ctx, t, g, 0)
			fail(0)
			time.Sleep(time.Second)
			blackout(ctx, t, g, fault, 300*time.Millisecond)
			if err := testbed.StartServer(ctx); err != nil {
				t.Fatal(err)
			}
			if fault == "kill-node" { // its power is back
				if err := testbed.StartNode(ctx, victim.Spec.Node); err != nil {
					t.Fatal(err)
				}
			}
			allConnected(ctx, t)
			ready(ctx, t, 2)
			told(ctx, t, "PeerLost", victim.Spec.Node)
			told(ctx, t, "PeerBack", victim.Spec.Node)
		})
	}
}

// goesOn waits until a flow of a gauge goes on: until packets are delivered that were sent from
// now on.
func goesOn(ctx context.Context, t *testing.T, g *lab.Gauge, flow int) {
	t.Helper()
	const more = 200
	before := g.Delivered(flow)
	err := testbed.WaitFor(ctx, "the flow goes on", time.Minute, func() (bool, error) { return g.Delivered(flow) > before+more, nil })
	if err != nil {
		t.Fatal(err)
	}
}

// allConnected waits until all nodes have found the server.
func allConnected(ctx context.Context, t *testing.T) {
	t.Helper()
	err := testbed.WaitFor(ctx, "all nodes have found the server", time.Minute, func() (bool, error) {
		list, err := api(t).Counters(ctx, "")
		return err == nil && len(list.Nodes) == len(nodes) && len(list.Away) == 0, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// told waits for an event about a node.
func told(ctx context.Context, t *testing.T, reason, node string) {
	t.Helper()
	err := testbed.WaitFor(ctx, "an event "+reason+" tells of "+node, time.Minute, func() (bool, error) {
		var list []onpath.Event
		err := testbed.Get(ctx, &list, "events")
		for _, e := range list {
			if e.Spec.Reason == reason && strings.Contains(e.Spec.About, node) {
				return true, nil
			}
		}
		return false, err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestInstanceBlackout: a killed and a stopped instance, with the server alive
// and dead.
func TestInstanceBlackout(t *testing.T) {
	idle(t)
	ctx := need(t, 3*time.Minute)
	needPython(t)
	apply(ctx, t, relays)
	active(ctx, t, "relayed")
	ready(ctx, t, 2)
	for _, c := range []struct {
		name   string
		server bool
		signal syscall.Signal
		bound  time.Duration
	}{
		{"kill", true, syscall.SIGKILL, 50 * time.Millisecond},
		{"kill without server", false, syscall.SIGKILL, 50 * time.Millisecond},
		{"stall", true, syscall.SIGSTOP, 300 * time.Millisecond},
		{"stall without server", false, syscall.SIGSTOP, 300 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := gauge(t, 8, 200)
			victim := carrierOf(ctx, t, g)
			pid := instancePid(t, victim)
			if !c.server {
				if err := testbed.Kill("server", syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				time.Sleep(200 * time.Millisecond)
			}
			if err := syscall.Kill(pid, c.signal); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			if c.signal == syscall.SIGSTOP {
				_ = syscall.Kill(pid, syscall.SIGCONT)
			}
			time.Sleep(time.Second)
			blackout(ctx, t, g, c.name, c.bound)
			if !c.server {
				if err := testbed.StartServer(ctx); err != nil {
					t.Fatal(err)
				}
				allConnected(ctx, t)
			}
			ready(ctx, t, 2)
		})
	}
}

func needPython(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("needs the program python3, for functions in user space")
	}
}

// relays pass packets in user space: a program that dies or stops passes none.
const relays = `
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: relay}
spec:
  container:
    image: host
    attach: bridged
    addresses: none
    capabilities: [NET_RAW, NET_ADMIN, SYS_NICE]
    command:
    - python3
    - -c
    - |
      import os, select, signal, socket, sys
      signal.signal(signal.SIGTERM, lambda *_: sys.exit())
      try:
          os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
      except OSError:
          os.setpriority(os.PRIO_PROCESS, 0, -20)
      a, b = (socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3)) for _ in range(2))
      for s in a, b:
          s.setsockopt(263, 15, 1)  # PACKET_VNET_HDR: checksums may be partial
          s.setsockopt(1, 33, 8 << 20)  # SO_RCVBUFFORCE: late is not lost
      a.bind(('eth0', 0)); b.bind(('eth1', 0))
      open('/run/ready', 'w').close()
      while True:
          for s in select.select([a, b], [], [])[0]:
              data, addr = s.recvfrom(65536)
              if addr[2] != 4:
                  (b if s is a else a).send(data)
  state: none
  packets: keep
  resources: {cpu: 500m} # of a tenth of a CPU, it would wait for the rest of each 100 ms
  health: {exec: [test, -e, /run/ready], every: 100ms}
---
apiVersion: onpath/v1alpha1
kind: Deployment
metadata: {name: relays}
spec: {function: relay, instances: 2, drain: 1s}
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: relayed}
spec:
  from: {hosts: client}
  to: {hosts: origin}
  through: [{deployment: relays, lost: repick}]
`

// probedInstances are asked as often as 300 ms of blackout take, and by a command.
const probedInstances = `
---
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: asked-by-tcp}
spec:
  container:
    image: host
    attach: routed
    addresses: private
    command:
    - python3
    - -c
    - |
      import signal, socket, sys
      signal.signal(signal.SIGTERM, lambda *_: sys.exit())
      s = socket.create_server(('', 3129))
      while True:
          s.accept()[0].close()
  state: terminates
  packets: originate
  health: {tcp: 3129, every: 75ms, failures: 2}
---
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: asked-by-command}
spec:
  container: {image: host, attach: routed, addresses: none, command: [sh, -c, "touch /run/ready; trap 'exit 0' TERM; sleep infinity & wait"]}
  state: none
  packets: keep
  health: {exec: [test, -e, /run/ready], every: 1s}
---
apiVersion: onpath/v1alpha1
kind: Deployment
metadata: {name: asked-by-tcp}
spec: {function: asked-by-tcp, instances: 2, drain: 1s}
---
apiVersion: onpath/v1alpha1
kind: Deployment
metadata: {name: asked-by-command}
spec: {function: asked-by-command, instances: 2, drain: 1s}
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: asked}
spec:
  priority: 1
  from: {hosts: client}
  to: {hosts: origin}
  select: [{protocol: tcp, destinationPorts: ["80"]}]
  through:
  - {deployment: asked-by-command, lost: repick}
  - {deployment: asked-by-tcp, lost: reset}
`

// TestNoFalseAlarm: all processors busy, no peer or instance is called lost.
// ONPATH_SOAK makes it last: 10m is what is promised.
func TestNoFalseAlarm(t *testing.T) {
	span := soak(t, 5*time.Second)
	ctx := need(t, span+3*time.Minute)
	needPython(t)
	apply(ctx, t, strings.Replace(pairChain, "LOST", "lost: repick", 1)+probedInstances)
	active(ctx, t, "failing")
	active(ctx, t, "asked")
	ready(ctx, t, 6)
	before := alarms(ctx, t)
	stop := burn(t)
	time.Sleep(span)
	stop()
	time.Sleep(time.Second)
	if n := alarms(ctx, t) - before; n > 0 {
		t.Errorf("%d false alarms in %s at full CPU", n, span)
	}
}

// alarms counts the events that tell of a loss.
func alarms(ctx context.Context, t *testing.T) (n int) {
	t.Helper()
	var list []onpath.Event
	if err := testbed.Get(ctx, &list, "events"); err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		switch e.Spec.Reason {
		case "PeerLost", "ProbeFailed", "Stalled", "Exited", "Killed":
			n += max(e.Spec.Count, 1)
		}
	}
	return n
}

// burn keeps all processors busy, each with two processes, until the returned
// function is called.
func burn(t *testing.T) (stop func()) {
	t.Helper()
	out, err := exec.Command("nproc").Output()
	if err != nil {
		t.Skip("needs the program nproc")
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(out)))
	ctx, cancel := context.WithCancel(t.Context())
	var all []*exec.Cmd
	for range 2 * n {
		c := exec.CommandContext(ctx, "sh", "-c", "while :; do :; done")
		if err := c.Start(); err != nil {
			cancel()
			t.Fatal(err)
		}
		all = append(all, c)
	}
	return func() {
		cancel()
		for _, c := range all {
			_ = c.Wait()
		}
	}
}
