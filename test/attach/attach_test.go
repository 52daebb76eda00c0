// Package attach_test puts functions before a machine in a network that nobody can program
// (GNFC, Figure 1), while connections run, and has a browser do the same.
package attach_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/onpath/onpath/demo"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/internal/testprogram"
	"github.com/onpath/onpath/lab"
)

// cloud is three machines at one switch, of which vm1 and vm2 are attached, and a client.
type cloud struct {
	*demo.Testbed
	t *testing.T
}

func newCloud(t *testing.T, limit time.Duration) (*cloud, context.Context) {
	t.Helper()
	topology, err := lab.ParseFile("../../examples/lab/attach.yaml")
	if err != nil {
		t.Fatal(err)
	}
	topology.Name = fmt.Sprintf("attach-%d", os.Getpid())
	spec := demo.TestbedSpec{Topology: topology, Server: demo.TestbedNode{Host: "server", Address: "10.20.0.10"}}
	for i, name := range []string{"vm1", "vm2", "vm3"} {
		spec.Nodes = append(spec.Nodes, demo.TestbedNode{Name: name, Host: name, Address: fmt.Sprintf("10.20.0.%d", 11+i),
			Cloudlet: "cloud", AttachHost: name != "vm3"})
	}
	return setUp(t, spec, limit)
}

func setUp(t *testing.T, spec demo.TestbedSpec, limit time.Duration) (*cloud, context.Context) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root for network namespaces, eBPF and containers")
	}
	for _, p := range []string{"containerd", "runc", "nft", "ip", "iperf3"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skip("needs the program " + p)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	dir, err := os.MkdirTemp("", "onpath-attach-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	spec.Bin, spec.Dir, spec.HostImage = testprogram.Path(t), dir, true
	testbed, err := demo.SetUp(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	c := &cloud{Testbed: testbed, t: t}
	t.Cleanup(func() {
		if t.Failed() {
			for _, name := range []string{"server", "vm1", "vm2", "vm3", "m0", "m1", "fn", "console"} {
				t.Logf("--- end of %s.log\n%s", name, c.Log(name))
			}
		}
		if err := testbed.TearDown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c, ctx
}

// must runs a command against the cloud's server.
func (c *cloud) must(ctx context.Context, args ...string) string {
	c.t.Helper()
	out, err := c.Onpath(ctx, args...)
	if err != nil {
		c.t.Fatal(err)
	}
	return string(out)
}

// found is what there is in a machine of devices, rules and routes.
func (c *cloud) found(ctx context.Context, host string) string {
	c.t.Helper()
	out, err := c.Exec(ctx, host, "sh", "-c", "ip -o link | cut -d: -f2 | cut -d@ -f1; ip rule; ip -6 rule; ip route show table all; nft list ruleset")
	if err != nil {
		c.t.Fatal(err, string(out))
	}
	return string(out)
}

// conversation is a TCP connection whose two ends say the same to each other again and again.
type conversation struct {
	conn  net.Conn
	every time.Duration
	turns atomic.Int64
}

// echo answers in a machine until the test ends.
func (c *cloud) echo(host, address string) {
	var l net.Listener
	err := netnsrun.Do(c.Lab.NetNS(host), func() (err error) { l, err = net.Listen("tcp", address); return err })
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer conn.Close(); _, _ = io.Copy(conn, conn) }()
		}
	}()
}

func (c *cloud) converse(host, address string, every time.Duration) *conversation {
	c.t.Helper()
	v := &conversation{every: every}
	err := netnsrun.Do(c.Lab.NetNS(host), func() (err error) { v.conn, err = net.DialTimeout("tcp", address, time.Minute); return err })
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = v.conn.Close() })
	return v
}

// turn says something and wants it back.
func (v *conversation) turn(r *bufio.Reader) error {
	said := fmt.Sprintf("%s turn %d\n", strings.Repeat("x", 500), v.turns.Load())
	_ = v.conn.SetDeadline(time.Now().Add(time.Minute))
	if _, err := v.conn.Write([]byte(said)); err != nil {
		return err
	}
	got, err := r.ReadString('\n')
	if err == nil && got != said {
		err = fmt.Errorf("said %q and got %q", said[500:], got)
	}
	v.turns.Add(1)
	return err
}

// run takes turns until over is closed, and one more after it.
func (v *conversation) run(over <-chan struct{}) error {
	r := bufio.NewReader(v.conn)
	for {
		if err := v.turn(r); err != nil {
			return fmt.Errorf("after %d turns: %w", v.turns.Load(), err)
		}
		select {
		case <-over:
			return v.turn(r)
		case <-time.After(v.every):
		}
	}
}

// cycles is how often all is attached and detached.
const cycles = 20

// TestAttach: GNFC's four functions are attached and detached twenty times while 50 busy and
// 50 idle connections and iperf3 run, the last time for so long that what ran already is
// taken, too; none breaks, and nothing is left.
func TestAttach(t *testing.T) {
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set; it takes five minutes and needs the images")
	}
	c, ctx := newCloud(t, 12*time.Minute)
	for _, name := range []string{"firewall", "ids", "bridge", "shaper"} {
		c.must(ctx, "apply", "-f", filepath.Join("../../functions", name, "function.yaml"))
	}
	before := map[string]string{}
	for _, host := range []string{"vm1", "vm2", "vm3"} {
		before[host] = c.found(ctx, host)
	}
	c.echo("vm1", "10.20.0.11:7000")
	over := make(chan struct{})
	var wg sync.WaitGroup
	var busy, idle []*conversation
	for i := range 100 {
		every, list := 100*time.Millisecond, &busy
		if i%2 == 1 {
			every, list = 20*time.Minute, &idle
		}
		v := c.converse([]string{"client", "vm2"}[i/50], "10.20.0.11:7000", every)
		*list = append(*list, v)
		wg.Go(func() {
			if err := v.run(over); err != nil {
				t.Errorf("connection %d (%v) broke: %v", i, v.conn.LocalAddr(), err)
			}
		})
	}
	streams := []*stream{c.iperf(ctx, "client", "vm1", "10.20.0.11", "5201", "10M"), c.iperf(ctx, "vm2", "vm1", "10.20.0.11", "5202", "10M")}
	var took []time.Duration
	for i := range cycles {
		began := time.Now()
		c.must(ctx, "attach", "vm1", "--through", "shaper,bridge,firewall", "--place", "name=vm3")
		c.must(ctx, "attach", "vm1", "--through", "ids", "--copy", "--place", "name=vm3")
		took = append(took, time.Since(began))
		time.Sleep(time.Second)
		if i == cycles-1 {
			time.Sleep(70 * time.Second) // running connections are taken after a minute
			c.crossed(ctx)
		}
		c.must(ctx, "detach", "vm1")
		time.Sleep(time.Second)
	}
	c.gone(ctx, before)
	close(over)
	wg.Wait()
	turns := int64(0)
	for _, v := range busy {
		turns += v.turns.Load()
	}
	for _, s := range streams {
		s.end(t)
	}
	t.Logf("%d cycles, attached within %v to %v; %d turns of %d busy connections, %d idle ones", cycles, min(took[0], took[1]), took[len(took)-1],
		turns, len(busy), len(idle))
}

// crossed wants busy connections to cross the firewall.
func (c *cloud) crossed(ctx context.Context) {
	c.t.Helper()
	out := c.must(ctx, "trace", "10.20.0.12", "10.20.0.11", "-p", "tcp/7000", "-o", "json")
	if !strings.Contains(out, "attached-vm1-firewall") {
		c.t.Errorf("the firewall is not on the way: %s", out)
	}
}

// gone waits until detaching has left no object, device, rule or route.
func (c *cloud) gone(ctx context.Context, before map[string]string) {
	c.t.Helper()
	err := c.WaitFor(ctx, "instances are gone", 2*time.Minute, func() (bool, error) {
		list, err := c.Instances(ctx)
		return len(list) == 0, err
	})
	if err != nil {
		c.t.Fatal(err)
	}
	for host, was := range before {
		err := c.WaitFor(ctx, "host "+host+" is as it was", time.Minute, func() (bool, error) { return c.found(ctx, host) == was, nil })
		if err != nil {
			c.t.Errorf("%v: it had\n%s\nand has\n%s", err, was, c.found(ctx, host))
		}
	}
}

// stream is iperf3 from a host to another.
type stream struct {
	host string
	cmd  *exec.Cmd
	out  bytes.Buffer
	over chan error
}

func (c *cloud) iperf(ctx context.Context, host, to, address, port, rate string) *stream {
	c.t.Helper()
	if err := c.Start("iperf3-"+host, to, "iperf3", "-s", "-p", port); err != nil {
		c.t.Fatal(err)
	}
	s := &stream{host: host, over: make(chan error, 1)}
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		s.cmd = c.Lab.Command(host, "iperf3", "-c", address, "-p", port, "-b", rate, "-t", "0", "-i", "1", "--forceflush")
		s.out.Reset()
		s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.out
		if err := s.cmd.Start(); err != nil {
			c.t.Fatal(err)
		}
		go func(cmd *exec.Cmd) { s.over <- cmd.Wait() }(s.cmd)
		select {
		case err := <-s.over:
			if time.Now().After(end) || ctx.Err() != nil {
				c.t.Fatal(err, s.out.String())
			}
		case <-time.After(500 * time.Millisecond):
			return s
		}
	}
}

// end ends the stream, which must run until then and still carry something.
func (s *stream) end(t *testing.T) {
	t.Helper()
	select {
	case err := <-s.over:
		t.Errorf("iperf3 of %s ended before: %v\n%s", s.host, err, s.out.String())
		return
	default:
	}
	_ = s.cmd.Process.Signal(syscall.SIGINT)
	<-s.over
	lines, still := strings.Split(strings.TrimSpace(s.out.String()), "\n"), 0
	for _, l := range lines {
		if strings.Contains(l, " 0.00 bits/sec") {
			still++
		}
	}
	t.Logf("iperf3 of %s: %d lines, %d seconds without a byte; at the end: %s", s.host, len(lines), still, lines[len(lines)-1])
}
