package ebpf_test

import (
	"context"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/bench/traffic"
	"github.com/onpath/onpath/internal/netnsrun"
)

const (
	// forged sources a second: half of them send one datagram each, half a SYN and a guess at
	// what acknowledges its reply.
	forgedSources = 100_000

	openConnections = 200
	newConnections  = 200 // a second
	mayTake         = time.Minute
)

// TestForgedSources: beside floods from forged sources, open connections through an element
// without state of its own stay, and new ones begin, at each kind of uplink.
func TestForgedSources(t *testing.T) {
	long := floodTime(t)
	if long == 0 {
		t.Skip("ONPATH_SOAK is not set; this floods three gateways for a minute each")
	}
	for _, at := range []struct {
		name    string
		options testbedOptions
		uplinks func(*onpath.DatapathConfig)
	}{
		{"router", testbedOptions{}, func(*onpath.DatapathConfig) {}},
		{"arm", testbedOptions{arm: true}, uplinks(onpath.Uplink{Name: "a", Device: "up0", Attach: onpath.AttachArm})},
		{"bridge", testbedOptions{bump: true}, bump()},
	} {
		t.Run(at.name, func(t *testing.T) {
			c := newTestbedWith(t, at.options)
			c.routed("gw", 16)
			c.apply(toServers(), func(cfg *onpath.DatapathConfig) {
				at.uplinks(cfg)
				cfg.Tenants = []onpath.TenantLimits{{Name: "town", MaxNewFlows: onpath.DefaultMaxNewFlows("town")}}
			}, element(16, 16))
			c.connectUnderFlood(long)
		})
	}
}

// connectUnderFlood floods the gateway, and opens connections through it.
func (c *testbed) connectUnderFlood(long time.Duration) {
	c.t.Helper()
	c.blackhole(filepath.Join(c.dir, "i16"), floodTo)
	// Without state of half-open connections, the server is not what is tested.
	c.in(c.server, func() error { return setting("ipv4/tcp_syncookies=2") })
	if c.options.bump { // replies to forged sources leave
		c.route(c.server, "eth0", netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr("10.1.0.2"))
	}
	at := netip.MustParseAddrPort("10.9.0.2:80")
	c.echoTCP(at)
	open := c.keepOpen(at)
	before := c.gateway()

	ctx, stop := context.WithCancel(c.t.Context())
	defer stop()
	var flood sync.WaitGroup
	var sent atomic.Uint64
	cpus := min(runtime.NumCPU(), 8)
	for i, s := range c.forgers(2 * cpus) { // at each CPU one of each kind, which handles what it sends
		j := traffic.Job{Order: traffic.Sequential, Rate: forgedSources / 2 / float64(cpus), Flows: traffic.Flows{
			Count: 1 << 26, From: netip.AddrFrom4([4]byte{byte(11 + i)}), To: floodTo, Port: 1024, ToPort: 9,
		}}
		if i >= cpus {
			j.Pairs, j.Rate, j.Flows.To, j.Flows.ToPort = true, 2*j.Rate, at.Addr(), at.Port()
		}
		flood.Go(func() {
			n, err := floodFrom(ctx, s, j, long)
			if err != nil {
				c.t.Errorf("flood: %v", err)
			}
			sent.Add(n)
		})
	}
	began, took := c.connect(at, long)
	flood.Wait()
	lost := open()

	after := c.gateway()
	if len(took) == 0 {
		c.t.Fatalf("none of %d connections came through, and of %d open ones %d are lost", began, openConnections, lost)
	}
	slices.Sort(took)
	c.t.Logf("%.0f forged frames a second of %.0f that were wanted; of %d new connections %d got an answer, the slowest after %v, "+
		"one of 100 after more than %v; %d of %d open ones lost",
		float64(sent.Load())/long.Seconds(), 1.5*forgedSources, began,
		len(took), took[len(took)-1], took[len(took)*99/100], lost, openConnections)
	c.t.Logf("tenant: %+v, dropped at the edge: %v", after.Tenants["town"], after.Vports[testbedEdge].Dropped)
	if len(took) != began || lost != 0 {
		c.t.Errorf("%d of %d new connections failed, and %d of %d open ones", began-len(took), began, lost, openConnections)
	}
	if n := after.Vports[testbedEdge].Dropped[onpath.DropNoStation] + after.Vports[16].Dropped[onpath.DropNoStation]; n != 0 {
		c.t.Errorf("%d packets were dropped because nobody knew any more where their ends lie", n)
	}
	if least := 0.9 * newConnections * long.Seconds(); float64(began) < least {
		c.t.Errorf("%d connections began, must be %.0f", began, least)
	}
	in := after.Vports[testbedEdge].In.Packets - before.Vports[testbedEdge].In.Packets
	if least := 0.8 * 1.5 * forgedSources * long.Seconds(); float64(in) < least {
		c.t.Errorf("this machine offered %d packets, which is less than %.0f and does not show what the flood does", in, least)
	}
}

// forgers are sources in the client's place, at one CPU after the other.
func (c *testbed) forgers(n int) (list []*traffic.Source) {
	c.t.Helper()
	s, err := traffic.NewSink(c.client, "eth0") // what a source needs on its device
	c.must(err)
	c.t.Cleanup(func() { s.Close() })
	ns, dev := c.nodes["gw"].ns, "up0"
	to := c.mac(ns, dev)
	if c.options.bump {
		to = c.mac(c.server, "eth0")
	}
	if c.options.arm {
		ns, dev = filepath.Join(c.dir, "switch"), "p1"
	}
	c.in(ns, func() error {
		if err := setGRO(dev); err != nil { // or what XDP sends vanishes
			return err
		}
		return setQueues(dev, runtime.NumCPU())
	})
	for i := range n {
		s, err := traffic.NewSource(c.client, "eth0", c.mac(c.client, "eth0"), to, i%runtime.NumCPU())
		c.must(err)
		c.t.Cleanup(func() { s.Close() })
		list = append(list, s)
	}
	return list
}

// echoTCP has the server send back what it is sent.
func (c *testbed) echoTCP(at netip.AddrPort) {
	c.t.Helper()
	c.accept("tcp4", at.String(), func(conn net.Conn) { io.Copy(conn, conn) })
}

// ask sends a byte and takes it back.
func ask(conn net.Conn) error {
	conn.SetDeadline(time.Now().Add(mayTake))
	b := []byte{1}
	if _, err := conn.Write(b); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, b)
	return err
}

// keepOpen opens connections that ask twice a second, each from an address of its own; the
// function it gives ends them, and tells how many were lost.
func (c *testbed) keepOpen(at netip.AddrPort) func() int64 {
	c.t.Helper()
	var lost atomic.Int64
	var all sync.WaitGroup
	done := make(chan struct{})
	for n := range openConnections {
		from := netip.AddrFrom4([4]byte{10, 1, 0, byte(10 + n)})
		c.setUp(end{ns: c.client, dev: "eth0", addrs: []string{from.String() + "/32"}})
		var conn net.Conn
		c.in(c.client, func() (err error) {
			d := net.Dialer{Timeout: mayTake, LocalAddr: &net.TCPAddr{IP: from.AsSlice()}}
			conn, err = d.Dial("tcp4", at.String())
			return err
		})
		all.Go(func() {
			defer conn.Close()
			for {
				if err := ask(conn); err != nil {
					c.t.Logf("the open connection from %v: %v", from, err)
					lost.Add(1)
					return
				}
				select {
				case <-done:
					return
				case <-time.After(500 * time.Millisecond):
				}
			}
		})
	}
	return func() int64 {
		close(done)
		all.Wait()
		return lost.Load()
	}
}

// connect opens connections at an even pace, each of which asks once, and tells how many, and
// how long each took that got its answer.
func (c *testbed) connect(at netip.AddrPort, long time.Duration) (began int, took []time.Duration) {
	var mu sync.Mutex
	var all sync.WaitGroup
	start := time.Now()
	const workers = 32
	for w := range workers {
		all.Go(func() {
			err := netnsrun.Do(c.client, func() error {
				for n := w; ; n += workers {
					due := start.Add(time.Duration(n) * time.Second / newConnections)
					if due.Sub(start) > long {
						return nil
					}
					time.Sleep(time.Until(due))
					from := time.Now()
					conn, err := net.DialTimeout("tcp4", at.String(), mayTake)
					if err == nil {
						err = ask(conn)
						conn.Close()
					}
					mu.Lock()
					began++
					if err == nil {
						took = append(took, time.Since(from))
					} else if began-len(took) < 5 {
						c.t.Logf("a new connection: %v", err)
					}
					mu.Unlock()
				}
			})
			if err != nil {
				c.t.Errorf("connect: %v", err)
			}
		})
	}
	all.Wait()
	return began, took
}
