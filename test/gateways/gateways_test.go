// Package pair runs two gateways of one cloudlet in an emulated network, real
// traffic between them that comes in at one and is answered through the other, and
// the death of one.
package gateways

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onpath/onpath/demo"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/internal/testprogram"
	"github.com/onpath/onpath/lab"
)

// connections run while a gateway dies; bound is how long each may be silent,
// with the change of routes.
const (
	connections = 50
	bound       = time.Second // of a machine that does nothing else: held against in make soak
)

func tooLong(d time.Duration) bool { return d > bound && os.Getenv("ONPATH_SOAK") != "" }

// setUp brings the network, the server and the nodes up, and the chain.
func setUp(ctx context.Context, t *testing.T) *demo.Testbed {
	t.Helper()
	return setUpWith(ctx, t, testprogram.Path(t))
}

// setUpWith has a program of the caller's run in it.
func setUpWith(ctx context.Context, t *testing.T, bin string) *demo.Testbed {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root for network namespaces, eBPF and containers")
	}
	for _, p := range []string{"containerd", "runc", "ip"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skip("needs the program " + p)
		}
	}
	topology, err := lab.ParseFile("testdata/lab.yaml")
	if err != nil {
		t.Fatal(err)
	}
	topology.Name = fmt.Sprintf("pair-%d", os.Getpid())
	spec := demo.TestbedSpec{Topology: topology, Bin: bin, Dir: t.TempDir(), HostImage: true,
		Server: demo.TestbedNode{Host: "server", Address: "10.255.0.10"}}
	for name, address := range map[string]string{"gw1": "10.255.0.1", "gw2": "10.255.0.2", "n1": "10.255.0.11"} {
		spec.Nodes = append(spec.Nodes, demo.TestbedNode{Name: name, Host: name, Address: address, Cloudlet: "pop"})
	}
	s, err := demo.SetUp(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, name := range []string{"server", "gw1", "gw2", "n1"} {
				log := s.Log(name)
				t.Logf("--- end of %s.log\n%s", name, log[max(0, len(log)-4000):])
			}
		}
		if err := s.TearDown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := s.Apply(ctx, "testdata/objects.yaml"); err != nil {
		t.Fatal(err)
	}
	if err := s.WaitActive(ctx, "web", time.Minute, nil); err != nil {
		t.Fatal(err)
	}
	return s
}

// dial opens the connections, from client to an origin that sends all back.
func dial(t *testing.T, s *demo.Testbed) (conns []net.Conn) {
	t.Helper()
	var l *net.TCPListener
	err := netnsrun.Do(s.Lab.NetNS("origin"), func() (err error) {
		l, err = net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(10, 9, 0, 2)})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); _, _ = io.Copy(c, c) }()
		}
	}()
	for range connections {
		var c net.Conn
		err := netnsrun.Do(s.Lab.NetNS("client"), func() (err error) {
			c, err = net.DialTimeout("tcp", l.Addr().String(), time.Minute)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	return conns
}

// route has a host send everything by way of a gateway.
func route(ctx context.Context, t *testing.T, s *demo.Testbed, host, via string) {
	t.Helper()
	if out, err := s.Lab.Exec(ctx, host, "ip", "route", "replace", "default", "via", via); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// talk sends random bytes and compares what comes back until stop is closed. It
// gives the longest time that one answer took.
func talk(c net.Conn, seed byte, stop <-chan struct{}, bytesBack *atomic.Int64) (longest time.Duration, err error) {
	defer c.Close()
	random := rand.NewChaCha8([32]byte{seed})
	out, in := make([]byte, 4096), make([]byte, 4096)
	for {
		select {
		case <-stop:
			return longest, nil
		case <-time.After(5 * time.Millisecond):
		}
		_, _ = random.Read(out)
		began := time.Now()
		_ = c.SetDeadline(began.Add(time.Minute))
		if _, err := c.Write(out); err != nil {
			return longest, err
		}
		if _, err := io.ReadFull(c, in); err != nil {
			return longest, err
		}
		if !bytes.Equal(out, in) {
			return longest, fmt.Errorf("other bytes came back than were sent")
		}
		longest = max(longest, time.Since(began))
		bytesBack.Add(int64(len(in)))
	}
}

// TestGatewayKilled: a gateway dies where requests come in, and answers too or at
// the other one. Routes move to the other: every connection goes on.
func TestGatewayKilled(t *testing.T) {
	for name, answers := range map[string]string{"asymmetric": "10.9.0.3", "symmetric": "10.9.0.1"} {
		t.Run(name, func(t *testing.T) { gatewayKilled(t, answers) })
	}
}

// TestTiersAsymmetric: an operator's chain and a tenant's over the same traffic, whose
// requests come in at one gateway and whose answers at the other. Both directions cross
// both, from the moment on that the chains are said to be in place: the walls in them
// drop what belongs to no connection that they saw begin.
func TestTiersAsymmetric(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	s := setUp(ctx, t)
	route(ctx, t, s, "origin", "10.9.0.3")
	if out, err := s.Onpath(ctx, "apply", "-f", "testdata/tiers.yaml", "--wait"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var back atomic.Int64
	for i, c := range dial(t, s) {
		wg.Go(func() {
			if _, err := talk(c, byte(i), stop, &back); err != nil {
				t.Errorf("connection %d: %v", i, err)
			}
		})
	}
	out, err := s.Lab.Exec(ctx, "client", "ping", "-c", "20", "-i", "0.1", "10.9.0.2")
	if n := bytes.Count(out, []byte("ttl=61 ")); err != nil || n != 20 { // 64, two walls, a gateway
		t.Errorf("%d of 20 answers crossed both walls: %v\n%s", n, err, out)
	}
	close(stop)
	wg.Wait()
	if back.Load() == 0 {
		t.Error("nothing came back")
	}
}

// gatewayKilled has the origin answer by way of the gateway with that address.
func gatewayKilled(t *testing.T, answers string) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	s := setUp(ctx, t)
	route(ctx, t, s, "origin", answers)
	conns := dial(t, s)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var back atomic.Int64
	const flows = 8
	gaps, errs := make([]time.Duration, len(conns)), make([]error, len(conns))
	for i, c := range conns {
		wg.Go(func() { gaps[i], errs[i] = talk(c, byte(i), stop, &back) })
	}
	g, err := s.Lab.StartGauge(lab.GaugeSpec{From: "client", To: "origin", Address: netip.MustParseAddr("10.9.0.2"), Flows: flows, PerSecond: 200})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second)
	before := back.Load()
	if _, err := s.Lab.KillHost("gw1", 30*time.Second); err != nil {
		t.Fatal(err)
	}
	route(ctx, t, s, "client", "10.1.0.3")
	route(ctx, t, s, "origin", "10.9.0.3")
	time.Sleep(time.Second)
	for flow := range flows {
		before := g.Delivered(flow)
		err := s.WaitFor(ctx, "a flow goes on", time.Minute, func() (bool, error) { return g.Delivered(flow) > before+100, nil })
		if err != nil {
			t.Error(err)
		}
	}
	close(stop)
	wg.Wait()
	r, err := g.Stop(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("longest blackout of %d flows %s, %d of %d packets lost; %d bytes came back before, %d after",
		len(r.Flows), time.Duration(r.Blackout).Round(time.Millisecond), r.Lost, r.Sent, before, back.Load()-before)
	if tooLong(time.Duration(r.Blackout)) {
		t.Errorf("a flow was silent for %s; at most %s is promised", time.Duration(r.Blackout), bound)
	}
	for _, f := range r.Flows {
		if f.Silent || f.Lost == f.Sent {
			t.Errorf("the flow from port %d does not go on: %d of %d packets lost", f.Port, f.Lost, f.Sent)
		}
	}
	var longest time.Duration
	for i := range conns {
		longest = max(longest, gaps[i])
		if errs[i] != nil {
			t.Errorf("connection %d: %v", i, errs[i])
		}
	}
	t.Logf("the longest answer of %d connections took %s", len(conns), longest.Round(time.Millisecond))
	if back.Load() == before {
		t.Error("nothing came back after the gateway died")
	}
}
