package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/session"
)

// rate of the sequence-numbered UDP in tests where something may be lost, packets
// per second.
const rate = 5000

// modest is the rate where nothing may be lost though other tests run beside.
func modest() int {
	if os.Getenv("ONPATH_SOAK") != "" {
		return rate
	}
	return 1000
}

const pairChain = `
apiVersion: onpath/v1alpha1
kind: Deployment
metadata: {name: pair}
spec: {function: hop, instances: 2, drain: 1s}
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: failing}
spec:
  from: {hosts: client}
  to: {hosts: origin}
  through: [{deployment: pair, LOST}]
`

// TestServerAndAgentKilled: kill -9 of the server and of every agent loses
// nothing of sequence-numbered UDP at the highest rate that lost nothing before;
// what runs is adopted, not restarted.
func TestServerAndAgentKilled(t *testing.T) {
	limit, hold := 3*time.Minute, 3*time.Second
	if os.Getenv("ONPATH_SOAK") != "" {
		limit, hold = 20*time.Minute, time.Minute
	}
	ctx := need(t, limit)
	apply(ctx, t, strings.Replace(pairChain, "LOST", "none: drop", 1))
	active(ctx, t, "failing")
	ready(ctx, t, 2)
	before, err := testbed.Instances(ctx)
	if err != nil {
		t.Fatal(err)
	}
	port := udpEcho(t, "10.9.0.2")
	s, perSecond := steady(t, "10.9.0.2", port, hold)
	t.Logf("nothing was lost for %s at %d packets per second", hold, perSecond)
	earlier := losses(ctx, t)
	for _, victim := range []string{"server", "gw1", "n1", "n2", "n3"} {
		if err := testbed.Kill(victim, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		time.Sleep(500 * time.Millisecond)
		if victim == "server" {
			err = testbed.StartServer(ctx)
		} else {
			err = testbed.StartNode(ctx, victim)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(2 * time.Second)
	noneLost(ctx, t, s, earlier)
	after, err := testbed.Instances(ctx)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]int{}
	for _, i := range before {
		names[i.Metadata.Name] = i.Status.Restarts
	}
	for _, i := range after {
		if r, ok := names[i.Metadata.Name]; !ok || i.Status.Restarts != r || i.Status.State != onpath.InstanceReady {
			t.Errorf("instance %s was not adopted: %+v, restarts before %d", i.Metadata.Name, i.Status, r)
		}
	}
	if len(after) != len(before) {
		t.Errorf("%d instances before, %d after", len(before), len(after))
	}
}

// killInstance ends the processes of an instance with SIGKILL: the container's
// first process, found as the only member of its network namespace's users.
func killInstance(ctx context.Context, t *testing.T, i onpath.Instance) {
	t.Helper()
	pid := instancePid(t, i)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// stateOf is what an instance has in a folder of its node's state.
func stateOf(t *testing.T, i onpath.Instance, folder string) (path string, ok bool) {
	t.Helper()
	list, err := filepath.Glob(fmt.Sprintf("/proc/%d/root/var/lib/onpath/node/%s/%s-%s-*", testbed.Pid(i.Spec.Node), folder, i.Metadata.Tenant, i.Metadata.Name))
	if err != nil || len(list) > 1 {
		t.Fatalf("%s has %v: %v", i.Metadata.Name, list, err)
	}
	return strings.Join(list, ""), len(list) == 1
}

// instancePid finds an engine by what its node notes, and the first process of a container
// as pid 1 of a pid namespace whose network namespace has the instance's device (by its
// MAC address).
func instancePid(t *testing.T, i onpath.Instance) int {
	t.Helper()
	if dir, ok := stateOf(t, i, "wasm"); ok {
		var pid int
		b, err := os.ReadFile(filepath.Join(dir, "pid"))
		if _, scan := fmt.Sscan(string(b), &pid); err != nil || scan != nil {
			t.Fatalf("%s: %q, %v, %v", dir, b, err, scan)
		}
		return pid
	}
	mac := onpath.InstanceMAC(i.Spec.Vport)
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		status, err := os.ReadFile(d + "/status")
		if err != nil || !strings.Contains(string(status), "\nNSpid:") {
			continue
		}
		line := lineWith(string(status), "NSpid:")
		if f := strings.Fields(line); len(f) < 3 || f[len(f)-1] != "1" {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(d))
		found := false
		_ = doIn(d+"/ns/net", func() error {
			links, err := net.Interfaces()
			for _, l := range links {
				found = found || l.HardwareAddr.String() == mac
			}
			return err
		})
		if found {
			return pid
		}
	}
	t.Fatalf("no process of instance %s was found", i.Metadata.Name)
	return 0
}

// serving is the instance that carries the client's flow of a connection.
func serving(ctx context.Context, t *testing.T, tuple onpath.Tuple) onpath.Instance {
	t.Helper()
	list, err := testbed.Instances(ctx)
	if err != nil {
		t.Fatal(err)
	}
	choices := nextOf(ctx, t, tuple)
	for _, i := range list {
		if i.Spec.Vport == choices {
			return i
		}
	}
	t.Fatalf("no instance has vport %d, where the flow goes", choices)
	return onpath.Instance{}
}

// TestInstanceKilledRepick: the flows of a dead instance go on through another,
// and it is started again.
func TestInstanceKilledRepick(t *testing.T) {
	ctx := need(t, 2*time.Minute)
	apply(ctx, t, strings.Replace(pairChain, "LOST", "lost: repick", 1))
	active(ctx, t, "failing")
	ready(ctx, t, 2)
	port := udpEcho(t, "10.9.0.2")
	s := startStream(t, "10.9.0.2", port, rate)
	time.Sleep(500 * time.Millisecond)
	victim := serving(ctx, t, tupleOf(s.conn, 17))
	killInstance(ctx, t, victim)
	passes(ctx, t, s)
	sent, lost, longest := s.end()
	t.Logf("%d sent, %d lost, longest silence %s", sent, lost, longest)
	promised(t, "the longest silence", longest, 300*time.Millisecond)
	restarted(ctx, t, victim.Metadata.Name)
}

// passes waits until a hundred packets that were sent from now on are answered, and gives the
// number of the last one sent by then.
func passes(ctx context.Context, t *testing.T, s *stream) uint64 {
	t.Helper()
	from, sent := s.sent.Load(), uint64(0)
	err := testbed.WaitFor(ctx, "the stream goes on", time.Minute, func() (bool, error) {
		sent = s.sent.Load()
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.answered(from, sent) > 100, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return sent
}

// restarted waits until the instance is ready again, and looks for the story in
// the events.
func restarted(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	err := testbed.WaitFor(ctx, "the instance runs again", time.Minute, func() (bool, error) {
		list, err := testbed.Instances(ctx)
		for _, i := range list {
			if i.Metadata.Name == name && i.Status.State == onpath.InstanceReady && i.Status.Restarts > 0 {
				return true, nil
			}
		}
		return false, err
	})
	if err != nil {
		t.Error(err)
	}
	err = testbed.WaitFor(ctx, "an event tells of it", time.Minute, func() (bool, error) {
		var list []onpath.Event
		err := testbed.Get(ctx, &list, "events")
		for _, e := range list {
			if strings.HasSuffix(e.Spec.About, "/"+name) && e.Spec.Reason == "Exited" && strings.HasPrefix(e.Spec.Message, "killed by signal 9 (SIGKILL)") {
				return true, nil
			}
		}
		return false, err
	})
	if err != nil {
		t.Error(err)
	}
}

const singleChain = `
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: single}
spec:
  from: {hosts: client}
  to: {hosts: origin}
  through: [{function: hop, drain: 1s, NONE}]
`

// gatedChain has an instance that is ready when the test opens it, by a file.
const gatedChain = `
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: gated}
spec:
  container: {image: host, command: [sh, -c, "trap 'exit 0' TERM; sleep infinity & wait"], attach: routed, addresses: none}
  state: none
  packets: keep
  health: {exec: [test, -e, /run/open], every: 100ms}
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: single}
spec:
  from: {hosts: client}
  to: {hosts: origin}
  through: [{function: gated, drain: 1s, NONE}]
`

// TestInstanceKilledNone: with no instance left, bypass lets traffic flow on
// within 200 ms and drop lets nothing pass, also when the program runs again, until
// the instance is ready.
func TestInstanceKilledNone(t *testing.T) {
	for _, none := range []string{"bypass", "drop"} {
		t.Run(none, func(t *testing.T) {
			ctx := need(t, 2*time.Minute)
			apply(ctx, t, strings.Replace(gatedChain, "NONE", "none: "+none, 1))
			runIn(ctx, t, "single-gated", "touch", "/run/open")
			active(ctx, t, "single")
			port := udpEcho(t, "10.9.0.2")
			s := startStream(t, "10.9.0.2", port, rate)
			time.Sleep(500 * time.Millisecond)
			victim := serving(ctx, t, tupleOf(s.conn, 17))
			killInstance(ctx, t, victim)
			awaitClosed()
			closed := s.sent.Load() // these may be under way yet
			awaitRestart(ctx, t, victim.Metadata.Name)
			runIn(ctx, t, "single-gated", "true")
			time.Sleep(500 * time.Millisecond)
			shut := s.sent.Load()
			time.Sleep(100 * time.Millisecond) // none of these is under way any more
			runIn(ctx, t, "single-gated", "touch", "/run/open")
			restarted(ctx, t, victim.Metadata.Name)
			again := passes(ctx, t, s)
			time.Sleep(500 * time.Millisecond)
			sent, lost, longest := s.end()
			passed := s.answered(closed, shut)
			t.Logf("%d sent, %d lost, longest silence %s; %d of %d were answered while there was no instance", sent, lost, longest, passed, shut-closed)
			if none == "bypass" {
				promised(t, "the longest silence", longest, 200*time.Millisecond)
			}
			if none == "drop" && passed > 0 {
				t.Errorf("%d of %d packets passed while there was no instance", passed, shut-closed)
			}
			if n := s.answered(again, sent); n != sent-again {
				t.Errorf("%d of %d packets passed when the instance was ready again", n, sent-again)
			}
		})
	}
}

// awaitClosed returns when an instance that has just been killed takes no packets. The
// kernel sees to that before the killer goes on; where it has no type information, the
// agent does it.
func awaitClosed() {
	if _, err := os.Stat("/sys/kernel/btf/vmlinux"); err != nil {
		time.Sleep(50 * time.Millisecond)
	}
}

// awaitRestart waits until the end of an instance's program has been counted.
func awaitRestart(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	err := testbed.WaitFor(ctx, "the program is started again", time.Minute, func() (bool, error) {
		list, err := testbed.Instances(ctx)
		return slices.ContainsFunc(list, func(i onpath.Instance) bool {
			return i.Metadata.Name == name && i.Status.Restarts > 0
		}), err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// runIn runs a command in the only instance of a deployment, as soon as its program runs.
func runIn(ctx context.Context, t *testing.T, deployment string, command ...string) {
	t.Helper()
	a, last := api(t), ""
	err := testbed.WaitFor(ctx, "an instance of "+deployment+" runs "+strings.Join(command, " "), time.Minute, func() (bool, error) {
		list, err := testbed.Instances(ctx)
		for _, i := range list {
			if i.Spec.Deployment != deployment {
				continue
			}
			var text bytes.Buffer
			code, err := a.Exec(ctx, i.Metadata.Tenant, i.Metadata.Name, command, false, session.ExecIO{Stdout: &text, Stderr: &text})
			last = fmt.Sprintf("%d, %v, %s", code, err, text.String())
			return err == nil && code == 0, nil
		}
		return false, err
	})
	if err != nil {
		t.Fatalf("%v: %s", err, last)
	}
}

// TestInstanceKilledReset: clients of a dead instance get a RST, and new
// connections work within 500 ms.
func TestInstanceKilledReset(t *testing.T) {
	ctx := need(t, 2*time.Minute)
	apply(ctx, t, strings.Replace(pairChain, "LOST", "lost: reset", 1))
	active(ctx, t, "failing")
	ready(ctx, t, 2)
	srv := serveTCP(t, echo)
	c, err := dialTCP(t, "10.9.0.2", srv.port, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b := make([]byte, 1)
	if err := pingPong(c, b); err != nil {
		t.Fatal(err)
	}
	killInstance(ctx, t, serving(ctx, t, tupleOf(c, 6)))
	killed := time.Now()
	var reset error
	for time.Since(killed) < time.Minute && reset == nil {
		reset = pingPong(c, b)
		time.Sleep(5 * time.Millisecond)
	}
	if !errors.Is(reset, syscall.ECONNRESET) && !errors.Is(reset, syscall.EPIPE) {
		t.Errorf("the old connection ended with %v, not with a reset", reset)
	}
	t.Logf("reset after %s", time.Since(killed).Round(time.Millisecond))
	n, err := dialTCP(t, "10.9.0.2", srv.port, time.Minute)
	if err != nil {
		t.Fatal("a new connection after the reset:", err)
	}
	defer n.Close()
	if err := pingPong(n, b); err != nil {
		t.Error("a new connection after the reset:", err)
	}
	promised(t, "the first new connection", time.Since(killed), 500*time.Millisecond)
}

func pingPong(c *net.TCPConn, b []byte) error {
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := c.Write([]byte{1}); err != nil {
		return err
	}
	_, err := c.Read(b)
	return err
}

// TestChangesUnderTraffic: scaling, another chain, draining a node and deleting
// lose no packet of flows that need not move.
func TestChangesUnderTraffic(t *testing.T) {
	ctx := need(t, 4*time.Minute)
	spread := func(n int) string { return strings.Replace(spreadChain, "COUNT", strconv.Itoa(n), 1) }
	apply(ctx, t, spread(2))
	active(ctx, t, "spread")
	ready(ctx, t, 2)
	port := udpEcho(t, "10.9.0.2")
	earlier := losses(ctx, t)
	s := startStream(t, "10.9.0.2", port, modest())
	time.Sleep(500 * time.Millisecond)
	carrier := serving(ctx, t, tupleOf(s.conn, 17)).Spec.Node

	apply(ctx, t, spread(4))
	ready(ctx, t, 4)
	apply(ctx, t, `
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: other}
spec:
  priority: 5
  from: {hosts: client}
  to: {hosts: origin}
  select: [{protocol: udp, destinationPorts: ["9"]}]
  through: [{function: hop, drain: 1s}]
`)
	active(ctx, t, "other")
	for _, n := range []string{"n1", "n2", "n3"} {
		if n == carrier {
			continue
		}
		if _, err := testbed.Onpath(ctx, "drain", n); err != nil {
			t.Fatal(err)
		}
		if _, err := testbed.Onpath(ctx, "uncordon", n); err != nil {
			t.Fatal(err)
		}
		break
	}
	time.Sleep(3 * time.Second)
	noneLost(ctx, t, s, earlier)
}

// TestBrokenFunctions: an image that does not exist, a program that exits at
// once, two programs that want the same port, no room: the chain's status says which, and other chains go on.
func TestBrokenFunctions(t *testing.T) {
	ctx := need(t, 2*time.Minute)
	apply(ctx, t, strings.Replace(singleChain, "NONE", "none: drop", 1))
	active(ctx, t, "single")
	port := udpEcho(t, "10.9.0.2")
	// What the status says must not be in the objects' names, which it says too.
	for i, c := range []struct{ what, container, resources, condition, want, printed string }{
		{"no image", "image: registry.invalid/nothing:1, attach: routed", "", "Ready", "image registry.invalid/nothing:1 cannot be pulled: ", ""},
		{"exits", "image: host, command: [\"false\"], attach: routed", "", "Ready", "exited with code 1", ""},
		{"no program", "image: host, command: [/no/such/program], attach: routed", "", "Ready", "cannot start: there is no program /no/such/program", ""},
		{"port in use", "image: host, command: [sh, -c, \"iperf3 -s >/dev/null & sleep 0.3; exec iperf3 -s 2>&1\"], attach: routed", "", "Ready", "exited with code 1", "Address already in use"},
		{"no room", "image: host, command: [sleep, infinity], attach: routed", "resources: {cpu: 900}", "Placed", "no node of cloudlet pop has room for 900 CPU", ""},
	} {
		t.Run(c.what, func(t *testing.T) {
			chain := fmt.Sprintf("c%d", i)
			apply(ctx, t, fmt.Sprintf(`
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: f%[1]d}
spec:
  container: {%[2]s}
  %[3]s
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: %[4]s}
spec:
  priority: 7
  from: {hosts: client}
  to: {hosts: origin}
  select: [{protocol: tcp, destinationPorts: ["%[5]d"]}]
  through: [{function: f%[1]d, drain: 1s}]
`, i, c.container, c.resources, chain, 7000+i))
			blames(ctx, t, chain, c.condition, c.want)
			printed(ctx, t, c.printed)
			u := dialUDP(t, "10.9.0.2", port)
			defer u.Close()
			if err := ask(u, time.Minute); err != nil {
				t.Error("the other chain does not go on:", err)
			}
		})
	}
}

// printed waits until an instance's status has what its program wrote before it ended.
func printed(ctx context.Context, t *testing.T, words string) {
	t.Helper()
	err := testbed.WaitFor(ctx, "an instance printed: "+words, time.Minute, func() (bool, error) {
		list, err := testbed.Instances(ctx)
		return words == "" || slices.ContainsFunc(list, func(i onpath.Instance) bool { return strings.Contains(i.Status.Printed, words) }), err
	})
	if err != nil {
		t.Error(err)
	}
}

// blames waits until a condition of the chain is false and says why in these words.
func blames(ctx context.Context, t *testing.T, chain, condition, words string) {
	t.Helper()
	var c onpath.Chain
	err := testbed.WaitFor(ctx, "condition "+condition+" of the chain is false and says: "+words, time.Minute, func() (bool, error) {
		err := testbed.Get(ctx, &c, "chains", chain)
		return slices.ContainsFunc(c.Status.Conditions, func(s onpath.Condition) bool {
			return s.Type == condition && s.Status == onpath.False && strings.Contains(s.Message, words)
		}), err
	})
	if err != nil {
		t.Errorf("%v; it is %+v", err, c.Status.Conditions)
	}
}

// single begins the chain of one element, and gives the node of its only instance and
// the port of an echo behind it.
func single(ctx context.Context, t *testing.T) (node string, port int) {
	t.Helper()
	apply(ctx, t, strings.Replace(singleChain, "NONE", "none: drop", 1))
	active(ctx, t, "single")
	list, err := testbed.Instances(ctx)
	if err != nil || len(list) != 1 {
		t.Fatalf("instances: %+v, %v", list, err)
	}
	return list[0].Spec.Node, udpEcho(t, "10.9.0.2")
}

// TestAgentAway: a node whose agent stays away keeps its traffic, for longer
// than it takes to call the node away, and over a restart of the server; also a chain
// that is deleted and applied again meanwhile.
func TestAgentAway(t *testing.T) {
	ctx := need(t, 2*time.Minute)
	name, port := single(ctx, t)
	earlier := losses(ctx, t)
	s := startStream(t, "10.9.0.2", port, 1000)
	if err := testbed.Kill(name, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	var node onpath.Node
	err := testbed.WaitFor(ctx, "the node is called away", time.Minute, func() (bool, error) {
		err := testbed.Get(ctx, &node, "nodes", name)
		return err == nil && !node.Status.Ready, err
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "again.yaml")
	if err := os.WriteFile(file, []byte(strings.Replace(singleChain, "NONE", "none: drop", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := testbed.Onpath(ctx, "delete", "-f", file); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	time.Sleep(2 * time.Second)
	if err := testbed.Apply(ctx, file); err != nil {
		t.Fatal(err)
	}
	active(ctx, t, "single")
	for range 20 {
		c := dialUDP(t, "10.9.0.2", port)
		if err := ask(c, time.Minute); err != nil {
			t.Error("a new flow through what was deleted and applied again:", err)
		}
		c.Close()
		time.Sleep(50 * time.Millisecond)
	}
	if err := testbed.Kill("server", syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := testbed.StartServer(ctx); err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Second) // past the time that the new server waits for nodes
	if err := testbed.StartNode(ctx, name); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	noneLost(ctx, t, s, earlier)
}
