package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/accel"
	"github.com/onpath/onpath/bench/testnet"
	"github.com/onpath/onpath/internal/netnsrun"
)

const (
	relayCase  = "1 connection, 2 Gbit/s"
	relayFree  = "1 connection, as fast as the CPU"
	relayFirst = "connections one after the other"
	relayMany  = "1,000 connections at once, 64 KiB there and back"

	metricConnect   = "connected"  // µs from the SYN
	metricFirstByte = "first byte" // likewise
	metricAll       = "all"        // ms until the last has ended

	relayDirect, relayOnpath, relayCopy, relayHAProxy = "direct", "onpath", "copy", "haproxy"
)

// relayLink is the link on the way to the server, bytes a second: 2 Gbit/s.
const relayLink = 250_000_000

func relayBenchmark() Benchmark {
	return Benchmark{
		Name: "relay", rounds: 2, cost: cost{4 * time.Second, 40 * time.Second},
		Question: "what does a TCP relay on one CPU cost, beside plain forwarding, HAProxy that splices, " +
			"and a program that copies by read and write?",
		Targets: []Target{
			{Text: "throughput: ≥ 0.97 of plain forwarding", Case: relayCase, Contestant: relayOnpath,
				Metric: MetricThroughput, Of: relayDirect, Min: 0.97},
			{Text: "CPU per byte: ≤ 1.2 × HAProxy's", Case: relayCase, Contestant: relayOnpath,
				Metric: MetricCPU, Of: relayHAProxy, Max: 1.2},
			{Text: "as fast as the CPU: CPU per byte ≤ 1.2 × HAProxy's", Case: relayFree, Contestant: relayOnpath,
				Metric: MetricCPU, Of: relayHAProxy, Max: 1.2},
			{Text: "first byte: not after HAProxy's", Case: relayFirst, Contestant: relayOnpath,
				Metric: metricFirstByte, Of: relayHAProxy, Max: 1},
			{Text: "client's leg 20 ms, throughput: ≥ 0.97 of plain forwarding", Case: relayFar, Contestant: relayOnpath,
				Metric: MetricThroughput, Of: relayDirect, Min: 0.97},
			{Text: "client's leg 20 ms, connected: within its round trip + 5 ms", Case: relayFarFirst, Contestant: relayOnpath,
				Metric: metricConnect, Max: 25_000},
			{Text: "client's leg 20 ms, first byte: within two round trips + 10 ms", Case: relayFarFirst, Contestant: relayOnpath,
				Metric: metricFirstByte, Max: 50_000},
			{Text: "client's leg 20 ms, first byte: not after HAProxy's", Case: relayFarFirst, Contestant: relayOnpath,
				Metric: metricFirstByte, Of: relayHAProxy, Max: 1},
			{Text: "as fast as the CPU: not below the copying program", Case: relayFree, Contestant: relayOnpath,
				Metric: MetricThroughput, Of: relayCopy, Min: 1},
			{Text: "first byte: not after the copying program's", Case: relayFirst, Contestant: relayOnpath,
				Metric: metricFirstByte, Of: relayCopy, Max: 1},
		},
		run: runRelay,
	}
}

func runRelay(ctx context.Context, r *Run) error {
	if r.Program == "" {
		r.skip(relayOnpath, "it runs the onpath program, which was not named")
		return nil
	}
	makers := []siteMaker{
		{relayDirect, func(_ context.Context, _ *Run, t *site) error { return testnet.Set(t.gateway, "ipv4/ip_forward=1") }},
		{relayOnpath, wireRelay}, {relayHAProxy, wireHAProxy}, {relayCopy, wireCopy},
	}
	for first := 0; first < r.Rounds(); first += buildRounds {
		if err := r.relayRounds(ctx, makers, first, min(buildRounds, r.Rounds()-first)); err != nil {
			return err
		}
	}
	return r.farRounds(ctx, withoutCopy(makers))
}

// relaySites makes a site for each contestant, and leaves out those that this machine lacks.
func (r *Run) relaySites(ctx context.Context, build func(name string) (*site, error), makers []siteMaker) (list []deployment, err error) {
	for _, m := range makers {
		t, err := build(m.name)
		if err != nil {
			return list, err
		}
		err = errors.Join(t.echo(), t.useCubic(), m.wire(ctx, r, t))
		var lack lacking
		if errors.As(err, &lack) {
			if err := t.Close(); err != nil {
				return list, err
			}
			r.skip(m.name, string(lack))
			continue
		}
		list = append(list, deployment{m.name, t})
		if err == nil {
			err = t.open(ctx)
		}
		if err != nil {
			return list, fmt.Errorf("%s: %w", m.name, err)
		}
	}
	return list, nil
}

func closeSites(list []deployment) (err error) {
	for _, d := range list {
		err = errors.Join(err, d.Close())
	}
	return err
}

func (r *Run) relayRounds(ctx context.Context, makers []siteMaker, first, rounds int) (err error) {
	list, err := r.relaySites(ctx, r.newSite, makers)
	defer func() { err = errors.Join(err, closeSites(list)) }()
	if err != nil {
		return err
	}
	for round := first; round < first+rounds; round++ {
		r.say("round %d of %d", round+1, r.Rounds())
		if err := r.streamRound(ctx, relayFree, round, list); err != nil {
			return err
		}
		for _, d := range list {
			if err := d.limit(netlink.QdiscAdd); err != nil {
				return err
			}
		}
		if err := r.streamRound(ctx, relayCase, round, list); err != nil {
			return err
		}
		for _, d := range list {
			if err := d.limit(netlink.QdiscDel); err != nil {
				return err
			}
		}
		err := backAndForth(ctx, round, list, func(d deployment) error {
			_, took, err := d.firstBytes(pick(r, 200, 20))
			if err != nil {
				return fmt.Errorf("%s: %w", d.name, err)
			}
			r.sample(relayFirst, d.name, metricFirstByte, unitMicroseconds, round, micros(took))
			if d.name == relayCopy { // which has two threads for each connection
				return nil
			}
			all, err := d.together(pick(r, 1000, 50))
			if err != nil {
				return fmt.Errorf("%s: %w", d.name, err)
			}
			r.sample(relayMany, d.name, metricAll, "ms", round, float64(all)/1e6)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// useCubic has the gateway's own connections use what the client's does.
func (t *site) useCubic() error {
	return netnsrun.Do(t.gateway, func() error {
		routes, err := netlink.RouteList(nil, unix.AF_INET)
		for i := range routes {
			routes[i].Congctl = "cubic"
			err = errors.Join(err, netlink.RouteReplace(&routes[i]))
		}
		return err
	})
}

// limit has the link to the server be a slow one, or not.
func (t *site) limit(change func(netlink.Qdisc) error) error {
	return netnsrun.Do(t.gateway, func() error {
		l, err := netlink.LinkByName(devOut)
		if err != nil {
			return err
		}
		return change(&netlink.Tbf{
			QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
			Rate:       relayLink, Limit: 4 << 20, Buffer: 1 << 20,
		})
	})
}

// siteEcho is where the server says a byte and then gives back what it gets.
var siteEcho = netip.MustParseAddrPort("10.9.0.2:5003")

func (t *site) echo() error {
	return t.serve(siteEcho, func(c net.Conn) {
		if _, err := c.Write([]byte{1}); err == nil {
			_, _ = io.Copy(c, c)
		}
	})
}

// hello connects to the server and reads its first byte; it says when it was connected.
func (t *site) hello() (c *net.TCPConn, at time.Time, err error) {
	err = netnsrun.Do(t.client, func() error {
		x, err := net.DialTimeout("tcp", siteEcho.String(), 10*time.Second)
		if err == nil {
			c, at = x.(*net.TCPConn), time.Now()
		}
		return err
	})
	if err != nil {
		return nil, at, err
	}
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err = io.ReadFull(c, make([]byte, 1)); err != nil {
		c.Close()
	}
	return c, at, err
}

// firstBytes are the medians of n connections, one after the other, from the SYN.
func (t *site) firstBytes(n int) (connected, first time.Duration, err error) {
	var all [2][]time.Duration
	for range n {
		began := time.Now()
		c, at, err := t.hello()
		if err != nil {
			return 0, 0, err
		}
		all[0], all[1] = append(all[0], at.Sub(began)), append(all[1], time.Since(began))
		c.Close()
	}
	slices.Sort(all[0])
	slices.Sort(all[1])
	return all[0][n/2], all[1][n/2], nil
}

// together has n connections move bytes there and back at once, and compares them.
func (t *site) together(n int) (took time.Duration, err error) {
	began, done := time.Now(), make(chan error, n)
	for i := range n {
		go func() {
			done <- func() error {
				c, _, err := t.hello()
				if err != nil {
					return err
				}
				defer c.Close()
				want := bytes.Repeat([]byte(fmt.Sprintf("%07d\n", i)), 8<<10)
				go func() {
					_, _ = c.Write(want)
					_ = c.CloseWrite()
				}()
				got, err := io.ReadAll(c)
				if err == nil && !bytes.Equal(got, want) {
					err = fmt.Errorf("connection %d: %d bytes came back that are not the %d sent", i, len(got), len(want))
				}
				return err
			}()
		}()
	}
	for range n {
		err = errors.Join(err, <-done)
	}
	return time.Since(began), err
}

// wireRelay has the program's relay take over what the gateway gets.
func wireRelay(ctx context.Context, r *Run, t *site) error {
	socket := filepath.Join(t.Dir(), "relay.sock")
	cmd := exec.CommandContext(ctx, r.Program, "relay", "--socket", socket)
	if err := cmd.Start(); err != nil {
		return err
	}
	t.After(func() error {
		err := cmd.Process.Kill()
		_ = cmd.Wait()
		return err
	})
	is := accel.Instance{Tenant: "bench", NetNS: t.gateway, Device: devIn, Work: &onpath.RelayWork{
		Listen: netip.MustParseAddrPort("127.0.0.1:0"), Secret: "of this benchmark alone", Congestion: "cubic",
	}}
	for _, a := range []netip.AddrPort{siteServer, siteBell, siteEcho} {
		is.Work.Origins = append(is.Work.Origins, onpath.RelayOrigin{Address: a, Size: 1 << 20})
	}
	body, err := json.Marshal(is)
	if err != nil {
		return err
	}
	relay := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	defer relay.CloseIdleConnections()
	for until := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://relay/instances/bench", bytes.NewReader(body))
		if err != nil {
			return err
		}
		res, err := relay.Do(req)
		if err == nil {
			defer res.Body.Close()
			if why, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusOK {
				return fmt.Errorf("the relay refuses: %s", bytes.TrimSpace(why))
			}
			break
		}
		if time.Now().After(until) {
			return fmt.Errorf("the relay does not answer: %w", err)
		}
	}
	// Behind the relay the server sees the client's address: its answers are the relay's, too.
	err = netnsrun.Do(t.gateway, func() error {
		rules, err := netlink.RuleList(unix.AF_INET)
		for _, rule := range rules {
			if rule.IifName == devIn {
				rule.IifName = devOut
				return netlink.RuleAdd(&rule)
			}
		}
		return errors.Join(err, errors.New("the relay has written no rule for what comes in"))
	})
	return errors.Join(err, pinProcess(cmd.Process.Pid, t.cpu))
}

// wireCopy has threads read and write what the gateway gets, two for each connection.
func wireCopy(_ context.Context, _ *Run, t *site) error {
	var in *accel.Interceptor
	err := netnsrun.Do(t.gateway, func() (err error) {
		in, err = accel.Intercept(devIn, false, func(accel.SYN) {})
		return err
	})
	if err != nil {
		return err
	}
	t.After(func() error { return netnsrun.Do(t.gateway, in.Close) })
	go func() {
		for {
			near, err := in.Listener.AcceptTCP()
			if err != nil {
				return
			}
			go t.copyBoth(near)
		}
	}()
	return nil
}

func (t *site) copyBoth(near *net.TCPConn) {
	var far net.Conn
	err := netnsrun.Do(t.gateway, func() (err error) {
		far, err = net.Dial("tcp", near.LocalAddr().String())
		return err
	})
	if err != nil {
		near.Close()
		return
	}
	_ = near.SetLinger(-1) // as sockets end that are no relay's
	defer near.Close()
	defer far.Close()
	done := make(chan error, 2)
	for _, way := range [2][2]*net.TCPConn{{near, far.(*net.TCPConn)}, {far.(*net.TCPConn), near}} {
		go func() { done <- onCPU(t.gateway, t.cpu, func() error { return copyBytes(way[0], way[1]) }) }()
	}
	<-done
	<-done
}

// copyBytes reads and writes, with blocking sockets, until the end.
func copyBytes(from, to *net.TCPConn) error {
	in, err := from.File()
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := to.File()
	if err != nil {
		return err
	}
	defer out.Close()
	b := make([]byte, 64<<10)
	for src, dst := int(in.Fd()), int(out.Fd()); ; { // Fd makes them blocking
		n, err := unix.Read(src, b)
		if n <= 0 || err != nil {
			return errors.Join(err, to.CloseWrite())
		}
		for sent := 0; sent < n; {
			k, err := unix.Write(dst, b[sent:n])
			if err != nil {
				return err
			}
			sent += k
		}
	}
}
