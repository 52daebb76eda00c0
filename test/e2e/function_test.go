package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// functionYAML is an ebpf firewall before a container and one behind it. The rules
// stand in the chain's first function.
func functionYAML(rules string) string {
	var b strings.Builder
	for _, r := range strings.Split(rules, "\n") {
		b.WriteString("        " + r + "\n")
	}
	return fmt.Sprintf(`
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: filter}
spec:
  state: none
  ebpf:
    object: firewall
    budget: 50us
    config:
      default: allow
      rules: |
%s
---
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: guard}
spec:
  state: none
  ebpf:
    object: firewall
    budget: 50us
    config: {established: "true"}
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: inline}
spec:
  from: {hosts: client}
  to: {hosts: origin}
  through:
  - {function: filter, drain: 1s}
  - {function: hop, drain: 1s, place: {nodes: {name: n1}}}
  - {function: guard, drain: 1s}
`, b.String())
}

// TestFunctions: ebpf firewall, container on another node, ebpf firewall; a change
// of the rules under traffic loses nothing.
func TestFunctions(t *testing.T) {
	ctx := need(t, 3*time.Minute)
	apply(ctx, t, functionYAML("drop udp from 192.0.2.0/24"))
	active(ctx, t, "inline")
	s := serveTCP(t, echo)
	for _, to := range []string{"10.9.0.2", "fd09::2"} {
		transfer(t, s, to, 8<<20)
		run(ctx, t, "client", "ping", "-c2", "-i0.2", "-W2", to)
	}
	port := udpEcho(t, "10.9.0.2")
	c := dialUDP(t, "10.9.0.2", port)
	defer c.Close()

	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		asked := 0
		for {
			select {
			case <-stop:
				t.Logf("%d datagrams went there and back while rules changed", asked)
				done <- nil
				return
			default:
			}
			if err := ask(c, time.Minute); err != nil {
				done <- fmt.Errorf("datagram %d: %w", asked, err)
				return
			}
			asked++
		}
	}()
	for n := range 10 {
		rules := []string{"drop udp from 192.0.2.0/24"}
		for i := range 50 * n {
			rules = append(rules, fmt.Sprintf("drop tcp from 10.200.%d.%d to any port %d", i/250, i%250, 1000+n))
		}
		apply(ctx, t, functionYAML(strings.Join(rules, "\n")))
		time.Sleep(300 * time.Millisecond)
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}

	apply(ctx, t, functionYAML(fmt.Sprintf("refuse udp to 10.9.0.2 port %d", port)))
	err := testbed.WaitFor(ctx, "the new rule bites", time.Minute, func() (bool, error) { return ask(c, 300*time.Millisecond) != nil, nil })
	if err != nil {
		t.Fatal(err)
	}
	counters := countersOf(ctx, t, api(t), "gw1")
	var all onpath.FunctionCounters
	for _, f := range counters.Functions {
		all.Passed.Packets += f.Passed.Packets
		all.Answered.Packets += f.Answered.Packets
	}
	if all.Passed.Packets == 0 || all.Answered.Packets == 0 {
		t.Errorf("the functions count %+v, must have passed and answered packets", counters.Functions)
	}
	for id, v := range counters.Vports {
		if n := v.Dropped[onpath.DropNoTable] + v.Dropped[onpath.DropLoop]; n != 0 {
			t.Errorf("vport %d dropped %d packets for want of a table", id, n)
		}
	}
}

// TestFunctionBudget: a function whose packets take longer than its budget leaves
// the path like a failed instance, says so, and traffic goes on past it.
func TestFunctionBudget(t *testing.T) {
	ctx := need(t, 2*time.Minute)
	yaml := func(budget string) string {
		return fmt.Sprintf(`
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: slow}
spec:
  state: none
  ebpf:
    object: firewall
    budget: %s
    config: {rules: "drop udp from 192.0.2.0/24"}
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: slow}
spec:
  from: {hosts: client}
  to: {hosts: origin}
  through: [{function: slow, none: bypass, drain: 1s}]
`, budget)
	}
	apply(ctx, t, yaml("50ns"))
	active(ctx, t, "slow")
	c := dialUDP(t, "10.9.0.2", udpEcho(t, "10.9.0.2"))
	defer c.Close()
	asked := 0
	said := ""
	err := testbed.WaitFor(ctx, "the function leaves the path", time.Minute, func() (bool, error) {
		for range 5000 {
			if err := ask(c, 2*time.Second); err != nil {
				return false, fmt.Errorf("datagram %d: %w", asked, err)
			}
			asked++
		}
		list, err := testbed.Instances(ctx)
		if err != nil {
			return false, err
		}
		for _, i := range list {
			if said = i.Status.Message; i.Spec.Deployment == "slow" || strings.Contains(i.Spec.Deployment, "slow") {
				return i.Status.State != onpath.InstanceReady && strings.Contains(said, "budget"), nil
			}
		}
		return false, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("after %d datagrams: %s", asked, said)
	before := passedBy(ctx, t)
	for range 100 {
		if err := ask(c, 2*time.Second); err != nil {
			t.Fatalf("past a function that is out of service: %v", err)
		}
	}
	if after := passedBy(ctx, t); after != before {
		t.Errorf("the function was given %d packets after it left the path", after-before)
	}
}

// passedBy tells how many packets gw1's functions passed.
func passedBy(ctx context.Context, t *testing.T) (n uint64) {
	t.Helper()
	for _, f := range countersOf(ctx, t, api(t), "gw1").Functions {
		n += f.Passed.Packets
	}
	return n
}

// TestBlocklist: a list of 100,000 addresses in a file reaches the firewall on the node,
// which says how many are in force; another list takes its place. While lists follow each other
// no packet to an address passes that all of them have, and none is lost to one that none has.
func TestBlocklist(t *testing.T) {
	ctx := need(t, 10*time.Minute)
	file := filepath.Join(t.TempDir(), "list.txt")
	blocklist := func(first string, from, entries int) {
		t.Helper()
		var list strings.Builder
		list.WriteString("# addresses and how many lists have them\n" + first + "\t5\n")
		for i := from; i < from+entries-strings.Count(first, "\n")-1; i++ {
			fmt.Fprintf(&list, "172.%d.%d.%d\t%d\n", 16+i>>16, i>>8&0xff, i&0xff, i%9)
		}
		if err := os.WriteFile(file, []byte(list.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		apply(ctx, t, fmt.Sprintf(`
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: filter}
spec:
  state: none
  ebpf: {object: firewall, budget: 50us, files: {blocklist: {fromFile: %q}}}
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: listed}
spec: {from: {hosts: client}, to: {hosts: origin}, through: [{function: filter, drain: 1s}]}
`, file))
	}
	tells := func(entries int) {
		t.Helper()
		err := testbed.WaitFor(ctx, "the instance tells of its list", time.Minute, func() (bool, error) {
			instances, _, err := api(t).List(ctx, onpath.KindInstance, "")
			for _, o := range instances {
				for _, l := range o.(*onpath.Instance).Status.Lists {
					if l.Type == "blocklist" && strings.Contains(l.Message, fmt.Sprint(entries, " entries")) {
						return true, err
					}
				}
			}
			return false, err
		})
		if err != nil {
			t.Error(err)
		}
	}
	const others = "203.0.113.9\nfd09::2"
	blocklist(others, 0, 100_000)
	active(ctx, t, "listed")
	port := udpEcho(t, "10.9.0.2")
	c := dialUDP(t, "10.9.0.2", port)
	defer c.Close()
	if err := ask(c, time.Minute); err != nil {
		t.Fatalf("what is not in the list: %v", err)
	}
	tells(100_000)

	var came atomic.Int64
	var listed *net.UDPConn
	in(t, "origin", func() (err error) {
		listed, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP("fd09::2")})
		return err
	})
	defer listed.Close()
	go func() {
		for b := make([]byte, 64); ; came.Add(1) {
			if _, _, err := listed.ReadFromUDPAddrPort(b); err != nil {
				return
			}
		}
	}()
	free, blocked := startStream(t, "10.9.0.2", port, 2000), startStream(t, "fd09::2", listed.LocalAddr().(*net.UDPAddr).Port, 2000)
	rounds := 1
	if os.Getenv("ONPATH_SOAK") != "" {
		rounds = 20
	}
	flowing := func() {
		t.Helper()
		was := [2]uint64{free.sent.Load(), blocked.sent.Load()}
		if err := testbed.WaitFor(ctx, "both streams send 500 packets more", time.Minute, func() (bool, error) {
			return free.sent.Load() >= was[0]+500 && blocked.sent.Load() >= was[1]+500, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	for n := range rounds {
		half := 1 - n%2 // of what is listed others are
		flowing()
		blocklist(others, 50_000*half, 100_000-half)
		tells(100_000 - half)
		flowing()
	}
	tries, passed := blocked.sent.Load(), came.Load()
	sent, lost, longest := free.end()
	t.Logf("while %d lists followed each other, %d of %d packets to an address that is not listed were lost (%s without any at most), "+
		"and %d of %d to a listed one passed", rounds, lost, sent, longest, passed, tries)
	if lost > 0 || passed > 0 {
		t.Error("the lists did not follow each other without a gap")
	}

	blocklist("10.9.0.2", 0, 100_000)
	err := testbed.WaitFor(ctx, "the new list bites, and frees the address that was listed", time.Minute, func() (bool, error) {
		return ask(c, 300*time.Millisecond) != nil && came.Load() > 0, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	close(blocked.stop)
}

// TestManyHosts: a chain takes up the traffic of 100,000 hosts that a file names, and no
// other traffic.
func TestManyHosts(t *testing.T) {
	ctx := need(t, 2*time.Minute)
	file := filepath.Join(t.TempDir(), "hosts.txt")
	hosts := func(first string) {
		t.Helper()
		var list strings.Builder
		list.WriteString("# addresses\n" + first + "\n")
		for i := range 100_000 - 1 {
			fmt.Fprintf(&list, "172.%d.%d.%d\n", 16+i>>16, i>>8&0xff, i&0xff)
		}
		if err := os.WriteFile(file, []byte(list.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		apply(ctx, t, fmt.Sprintf(`
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: filter}
spec:
  state: none
  ebpf: {object: firewall, budget: 50us, config: {default: drop}}
---
apiVersion: onpath/v1alpha1
kind: Hosts
metadata: {name: many}
spec: {fromFile: %q}
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: many}
spec: {from: {hosts: client}, to: {hosts: many}, through: [{function: filter, drain: 1s}]}
`, file))
		t.Logf("apply took %s", time.Since(began))
	}
	hosts("203.0.113.9")
	active(ctx, t, "many")
	c := dialUDP(t, "10.9.0.2", udpEcho(t, "10.9.0.2"))
	defer c.Close()
	if err := ask(c, time.Minute); err != nil {
		t.Fatalf("a host that the chain does not name: %v", err)
	}
	hosts("10.9.0.2")
	err := testbed.WaitFor(ctx, "the chain has the new host", time.Minute, func() (bool, error) { return ask(c, 300*time.Millisecond) != nil, nil })
	if err != nil {
		t.Fatal(err)
	}
}
