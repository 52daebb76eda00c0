package e2e

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/api/wire"
)

// TestThreeContainers: one routed, one bridged, one that rewrites destination
// addresses, on three nodes, carry TCP, UDP and ping, both IP versions.
func TestThreeContainers(t *testing.T) {
	ctx := need(t, 3*time.Minute)
	applied := time.Now()
	applyFile(ctx, t, "testdata/three.yaml")
	active(ctx, t, "three")
	t.Logf("from apply to active: %s", time.Since(applied).Round(time.Millisecond))
	s := serveTCP(t, echo)
	for _, to := range []string{"10.9.0.100", "fd09::100", "10.9.0.2", "fd09::2"} {
		t.Run("to "+to, func(t *testing.T) {
			run(ctx, t, "client", "ping", "-c3", "-i0.2", "-W2", to)
			size := int64(1 << 20)
			if strings.HasSuffix(to, "100") {
				size = 100 << 20
			}
			from := transfer(t, s, to, size)
			if got := s.lastCaller(); got != from || got.Addr() != clientAddress(to) {
				t.Errorf("the origin saw %s instead of the client's own address %s and port %s", got, clientAddress(to), from)
			}
			own := map[bool]string{true: "fd09::2", false: "10.9.0.2"}[strings.Contains(to, ":")]
			port := udpEcho(t, own)
			c := dialUDP(t, to, port)
			defer c.Close()
			for range 10 {
				if err := ask(c, time.Minute); err != nil {
					t.Fatal("UDP:", err)
				}
			}
		})
	}
	t.Run("iperf3", func(t *testing.T) {
		if err := testbed.Start("iperf3", "origin", "iperf3", "-s"); err != nil {
			t.Fatal(err)
		}
		if err := testbed.WaitFor(ctx, "iperf3 listens", time.Minute, func() (bool, error) {
			return strings.TrimSpace(run(ctx, t, "origin", "ss", "-Hltn", "sport = :5201")) != "", nil
		}); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{}, {"-R"}} {
			out := run(ctx, t, "client", append([]string{"iperf3", "-c", "10.9.0.100", "-n", "20M", "-f", "m"}, args...)...)
			t.Log(lineWith(out, "receiver"))
		}
	})
	t.Run("trace", func(t *testing.T) {
		out, err := testbed.Onpath(ctx, "trace", "10.1.0.2", "10.9.0.100", "-p", "tcp/"+strconv.Itoa(s.port))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"n1", "n2", "n3", "three-hop", "three-bump", "three-dnat"} {
			if !strings.Contains(string(out), want) {
				t.Errorf("the trace does not name %s:\n%s", want, out)
			}
		}
	})
}

func clientAddress(to string) netip.Addr {
	if strings.Contains(to, ":") {
		return netip.MustParseAddr("fd01::2")
	}
	return netip.MustParseAddr("10.1.0.2")
}

func lineWith(text, word string) string {
	for _, l := range strings.Split(text, "\n") {
		if strings.Contains(l, word) {
			return l
		}
	}
	return ""
}

// TestUntouched: what no chain selects raises the kernel's forwarding counter by
// exactly the packets sent, and no counter of onpath.
func TestUntouched(t *testing.T) {
	ctx := need(t, time.Minute)
	apply(ctx, t, `
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: dns}
spec:
  from: {hosts: client}
  to: {hosts: origin}
  select: [{protocol: udp, destinationPorts: ["53"]}]
  through: [{function: hop, drain: 1s}]
`)
	active(ctx, t, "dns")
	port := udpEcho(t, "10.9.0.2")
	c := dialUDP(t, "10.9.0.2", port)
	defer c.Close()
	if err := ask(c, time.Minute); err != nil { // neighbours are resolved
		t.Fatal(err)
	}
	a := api(t)
	before, forwarded := countersOf(ctx, t, a, "gw1"), forwardedBy(ctx, t, "gw1")
	const packets = 500
	for range packets {
		if err := ask(c, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	after := countersOf(ctx, t, a, "gw1")
	if got := forwardedBy(ctx, t, "gw1") - forwarded; got != 2*packets {
		t.Errorf("the kernel forwarded %d packets, not %d", got, 2*packets)
	}
	for id, v := range after.Vports {
		if w := before.Vports[id]; v.In != w.In || v.Out != w.Out || len(v.Dropped) != len(w.Dropped) {
			t.Errorf("vport %d counted what no chain selects: before %+v, after %+v", id, w, v)
		}
	}
	if after.Learned != before.Learned {
		t.Errorf("%d flow entries were written", after.Learned-before.Learned)
	}
}

func countersOf(ctx context.Context, t *testing.T, a *client.Client, node string) onpath.Counters {
	t.Helper()
	all, err := a.Counters(ctx, node)
	if err != nil {
		t.Fatal(err)
	}
	c, ok := all.Nodes[node]
	if !ok {
		t.Fatalf("node %s gave no counters: %+v", node, all)
	}
	return c
}

// forwardedBy is how many IPv4 packets the host's kernel forwarded by itself.
func forwardedBy(ctx context.Context, t *testing.T, host string) int {
	t.Helper()
	lines := strings.Split(run(ctx, t, host, "grep", "^Ip:", "/proc/net/snmp"), "\n")
	names, values := strings.Fields(lines[0]), strings.Fields(lines[1])
	for i, n := range names {
		if n == "ForwDatagrams" {
			v, err := strconv.Atoi(values[i])
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatal("no ForwDatagrams in /proc/net/snmp")
	return 0
}

const spreadChain = `
apiVersion: onpath/v1alpha1
kind: Deployment
metadata: {name: many}
spec: {function: hop, instances: COUNT, drain: 1s}
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: spread}
spec:
  from: {hosts: client}
  to: {hosts: origin}
  through: [{deployment: many}]
`

// TestManyFlows: 10,000 flows over three instances keep to theirs in both
// directions, in equal shares; a fourth moves none, removing one of the three all of
// its own, to instances that stay, and no others.
func TestManyFlows(t *testing.T) {
	ctx := need(t, 4*time.Minute)
	apply(ctx, t, strings.Replace(spreadChain, "COUNT", "3", 1))
	active(ctx, t, "spread")
	ready(ctx, t, 3)
	port := udpEcho(t, "10.9.0.2")
	const flows = 10_000
	send := openFlows(t, flows, port)
	send()
	a := api(t)
	first := forwardChoices(ctx, t, a)
	if len(first) < flows {
		t.Fatalf("%d of %d flows have an entry at the edge", len(first), flows)
	}
	shares := map[onpath.VportID]int{}
	for _, v := range first {
		shares[v]++
	}
	t.Logf("shares: %v", shares)
	for v, n := range shares {
		if n < flows/3*9/10 || n > flows/3*11/10 {
			t.Errorf("vport %d got %d of %d flows", v, n, flows)
		}
	}
	apply(ctx, t, strings.Replace(spreadChain, "COUNT", "4", 1))
	ready(ctx, t, 4)
	time.Sleep(200 * time.Millisecond)
	send()
	moved(t, first, forwardChoices(ctx, t, a), nil)

	// The fourth goes first: it has none of the flows.
	apply(ctx, t, strings.Replace(spreadChain, "COUNT", "2", 1))
	left := map[onpath.VportID]bool{}
	if err := testbed.WaitFor(ctx, "two instances are drained", time.Minute, func() (bool, error) {
		list, err := testbed.Instances(ctx)
		clear(left)
		for _, i := range list {
			left[i.Spec.Vport] = true
		}
		return len(list) == 2, err
	}); err != nil {
		t.Fatal(err)
	}
	gone := map[onpath.VportID]bool{}
	for v := range shares {
		if !left[v] {
			gone[v] = true
		}
	}
	if len(gone) != 1 {
		t.Fatalf("of the three instances with flows %d are gone, must be one: %v of %v are left", len(gone), left, shares)
	}
	send()
	last := forwardChoices(ctx, t, a)
	moved(t, first, last, gone)
	took := map[onpath.VportID]int{}
	for p, v := range first {
		if gone[v] {
			took[last[p]]++
		}
	}
	t.Logf("took over, by vport: %v", took)
	for v, n := range took {
		if !left[v] {
			t.Errorf("%d flows of the instance that is gone lead to vport %d, which is none of %v", n, v, left)
		}
	}
}

// openFlows opens sockets of the client in rounds that fit the limit of open
// files, and returns a function that sends one datagram over each flow. Source
// ports are chosen, so that a flow is the same in each round.
func openFlows(t *testing.T, n, port int) func() {
	return func() {
		t.Helper()
		to := &net.UDPAddr{IP: net.ParseIP("10.9.0.2"), Port: port}
		failed := 0
		for i := range n {
			var c *net.UDPConn
			in(t, "client", func() (err error) {
				c, err = net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP("10.1.0.2"), Port: 20000 + i}, to)
				return err
			})
			// A flow lives once a packet follows its first answer.
			for range 2 {
				if ask(c, time.Minute) != nil {
					failed++
				}
			}
			c.Close()
		}
		if failed > 0 {
			t.Errorf("%d of %d datagrams got no answer", failed, n)
		}
	}
}

// forwardChoices maps the client's port to the instance that the gateway chose.
func forwardChoices(ctx context.Context, t *testing.T, a *client.Client) map[uint16]onpath.VportID {
	t.Helper()
	out := map[uint16]onpath.VportID{}
	back := map[uint16]onpath.VportID{}
	err := a.Flows(ctx, client.FlowsOf{Node: "gw1"}, func(f wire.Flow) bool {
		switch {
		case f.Entry.Tuple.Protocol != 17 || f.Entry.Kind != onpath.NextVport:
		case f.Entry.Tuple.SrcPort >= 20000 && f.Entry.Tuple.SrcPort < 30000:
			out[f.Entry.Tuple.SrcPort] = f.Entry.Next
		case f.Entry.Tuple.DstPort >= 20000 && f.Entry.Tuple.DstPort < 30000:
			back[f.Entry.Tuple.DstPort] = f.Entry.Next
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	differ := 0
	for p, v := range out {
		if back[p] != v {
			differ++
		}
	}
	if differ > 0 {
		t.Errorf("%d flows meet another instance on the way back, or none", differ)
	}
	return out
}

// moved checks that flows stayed, but those of instances that are gone.
func moved(t *testing.T, before, after map[uint16]onpath.VportID, gone map[onpath.VportID]bool) {
	t.Helper()
	wrong := 0
	for p, v := range before {
		if gone[v] == (after[p] == v) {
			wrong++
		}
	}
	if wrong > 0 {
		t.Errorf("%d of %d flows moved that need not have, or stayed at an instance that is gone", wrong, len(before))
	}
}

// ready waits for n ready instances.
func ready(ctx context.Context, t *testing.T, n int) {
	t.Helper()
	err := testbed.WaitFor(ctx, strconv.Itoa(n)+" instances are ready", time.Minute, func() (bool, error) {
		list, err := testbed.Instances(ctx)
		count := 0
		for _, i := range list {
			if i.Status.State == onpath.InstanceReady && i.Spec.Draining.IsZero() {
				count++
			}
		}
		return count == n, err
	})
	if err != nil {
		t.Fatal(err)
	}
}
