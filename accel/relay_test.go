package accel

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/lab"
	"golang.org/x/sys/unix"
)

// network is client ── r1 ── r2 ── r3 ── origin; the round trip is four times leg.
const network = `name: NAME
hosts:
  client: {routes: auto, interfaces: {eth0: [10.1.0.2/24]}, sysctls: {net.ipv4.tcp_no_metrics_save: "1"}}
  r1: {routes: auto, forwarding: on, interfaces: {west: [10.1.0.1/24], east: [10.1.1.1/24]}, sysctls: {net.ipv4.tcp_fastopen: "3", net.ipv4.tcp_no_metrics_save: "1"}}
  r2: {routes: auto, forwarding: on, interfaces: {west: [10.1.1.2/24], east: [10.1.2.1/24]}, sysctls: {net.ipv4.tcp_fastopen: "3", net.ipv4.tcp_no_metrics_save: "1"}}
  r3: {routes: auto, forwarding: on, interfaces: {west: [10.1.2.2/24], east: [10.1.3.1/24]}, sysctls: {net.ipv4.tcp_fastopen: "3", net.ipv4.tcp_no_metrics_save: "1"}}
  origin: {routes: auto, interfaces: {eth0: [10.1.3.2/24]}, sysctls: {net.ipv4.tcp_no_metrics_save: "1"}}
links:
- {a: "client:eth0", b: "r1:west"LINK}
- {a: "r1:east", b: "r2:west"LINK}
- {a: "r2:east", b: "r3:west"LINK}
- {a: "r3:east", b: "origin:eth0"LINK}
`

var (
	testOrigin = netip.MustParseAddrPort("10.1.3.2:80")
	testNodes  = map[string]netip.AddrPort{
		"r1": netip.MustParseAddrPort("10.1.1.1:4799"),
		"r2": netip.MustParseAddrPort("10.1.1.2:4799"),
		"r3": netip.MustParseAddrPort("10.1.2.2:4799"),
	}
	testSecret = []byte("a secret of the test's own, long")
)

type world struct {
	t    *testing.T
	lab  *lab.Lab
	self map[string]*Relay
}

func build(t *testing.T, link string) *world {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	name := fmt.Sprintf("accel%d", os.Getpid())
	text := strings.NewReplacer("NAME", name, "LINK", link).Replace(network)
	topology, err := lab.Parse(strings.NewReader(text), "network")
	if err != nil {
		t.Fatal(err)
	}
	l, err := lab.Up(t.Context(), topology, lab.Options{StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Down(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return &world{t: t, lab: l, self: map[string]*Relay{}}
}

// fixed sends every connection along one chain.
type fixed Route

func (f fixed) Route(netip.AddrPort, netip.AddrPort) (Route, error) { return Route(f), nil }

// relay starts a node's relay; every node takes legs, r1 takes clients' connections too.
func (w *world) relay(host string, route *fixed, change func(*Config)) *Relay {
	w.t.Helper()
	cfg := Config{Secret: testSecret, Self: testNodes[host].Addr(), Log: slog.New(slog.NewTextHandler(w.t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
		Enter:  func(f func() error) error { return netnsrun.Do(w.lab.NetNS(host), f) },
		Origin: func(string, netip.AddrPort) error { return nil }}
	if route != nil {
		cfg.Router = route
	}
	if change != nil {
		change(&cfg)
	}
	enter := cfg.Enter
	r, err := New(entered(cfg, enter))
	if err != nil {
		w.t.Fatal(err)
	}
	var relays *net.TCPListener
	var in *Interceptor
	if err := enter(func() (err error) {
		if relays, err = ListenRelays(testNodes[host]); err != nil || route == nil {
			return err
		}
		in, err = Intercept("west", r.wait.Load(), r.SYN)
		return err
	}); err != nil {
		w.t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() { _ = r.ServeRelays(relays) })
	if in != nil {
		served.Go(func() { _ = r.Serve(in) })
	}
	w.t.Cleanup(func() {
		relays.Close()
		if in != nil {
			_ = enter(in.Close)
		}
		served.Wait()
		r.Close()
	})
	w.self[host] = r
	return r
}

// entered has all legs of a relay begin in its host: in the test all hosts are one process.
func entered(cfg Config, enter func(func() error) error) Config {
	cfg.dialIn = enter
	return cfg
}

// cubic is the congestion control that the paper measured with.
func cubic(_, _ string, c syscall.RawConn) error {
	return control(c, func(fd int) error { return unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic") })
}

// serve runs the origin: it reads eight bytes of size and sends as many bytes as they say.
func (w *world) serve(handle func(net.Conn)) { w.t.Helper(); w.serveAt(testOrigin, handle) }

func (w *world) serveAt(at netip.AddrPort, handle func(net.Conn)) {
	w.t.Helper()
	var l net.Listener
	lc := net.ListenConfig{Control: cubic}
	lc.SetMultipathTCP(false)
	if err := netnsrun.Do(w.lab.NetNS("origin"), func() (err error) {
		l, err = lc.Listen(w.t.Context(), "tcp", at.String())
		return err
	}); err != nil {
		w.t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() { defer c.Close(); handle(c) })
		}
	})
	w.t.Cleanup(func() { l.Close(); work.Wait() })
}

func (w *world) dial() (net.Conn, error) {
	var c net.Conn
	err := netnsrun.Do(w.lab.NetNS("client"), func() (err error) {
		d := net.Dialer{Timeout: time.Minute, Control: cubic}
		c, err = d.Dial("tcp", testOrigin.String())
		return err
	})
	return c, err
}

func send(c net.Conn) {
	var size [8]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return
	}
	_, _ = c.Write(make([]byte, binary.BigEndian.Uint64(size[:])))
}

// fetch returns how long a transfer takes from the SYN to the last byte.
func (w *world) fetch(size int64) time.Duration {
	w.t.Helper()
	start := time.Now()
	c, err := w.dial()
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write(binary.BigEndian.AppendUint64(nil, uint64(size))); err != nil {
		w.t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, c); err != nil || n != size {
		w.t.Fatalf("%d of %d bytes: %v", n, size, err)
	}
	return time.Since(start)
}

func TestChains(t *testing.T) {
	w := build(t, ", delay: 10ms")
	w.serve(send)
	direct := w.fetch(500_000)
	for _, h := range []string{"r2", "r3"} {
		w.relay(h, nil, nil)
	}
	r1 := w.relay("r1", &fixed{Tenant: "acme", Congestion: "cubic", Next: []netip.AddrPort{testNodes["r2"], testNodes["r3"]}}, nil)
	three := w.fetch(500_000)
	t.Logf("500 kB over 80 ms: direct %v, by three relays %v", direct, three)
	s := r1.Stats()
	if s.Opened != 1 || s.Refused != 0 || s.Tenants["acme"].ToClient != 500_000 {
		t.Errorf("the first relay counts %+v", s)
	}
	if w.self["r3"].Stats().Opened != 1 {
		t.Error("the third relay relayed nothing")
	}
}

// dialFrom connects from a port that other connections of the client may have, too.
func (w *world) dialFrom(port int, to netip.AddrPort) (c net.Conn, err error) {
	err = netnsrun.Do(w.lab.NetNS("client"), func() (err error) {
		d := net.Dialer{Timeout: time.Minute, LocalAddr: &net.TCPAddr{IP: net.IPv4(10, 1, 0, 2), Port: port},
			Control: func(_, _ string, c syscall.RawConn) error {
				return control(c, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
			}}
		c, err = d.Dial("tcp", to.String())
		return err
	})
	return c, err
}

// TestTransparent: with a relay on the path, the origin sees the client's own address, also
// where the client has one port for two origins.
func TestTransparent(t *testing.T) {
	w := build(t, "")
	peer := make(chan net.Addr, 1)
	origins := []netip.AddrPort{testOrigin, netip.AddrPortFrom(testOrigin.Addr(), 81)}
	for _, at := range origins {
		w.serveAt(at, func(c net.Conn) { peer <- c.RemoteAddr(); send(c) })
	}
	w.relay("r1", &fixed{Transparent: true}, nil)
	// An instance has one device; this router gets the origin's answers by another.
	if out, err := w.lab.Exec(t.Context(), "r1", "ip", "rule", "add", "iif", "east", "lookup", strconv.Itoa(interceptTable)); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, at := range origins {
		c, err := w.dialFrom(5000, at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = c.Write(binary.BigEndian.AppendUint64(nil, 3))
		if got, err := io.ReadAll(c); err != nil || len(got) != 3 {
			t.Fatal(at, got, err)
		}
		if got := <-peer; got.String() != c.LocalAddr().String() {
			t.Errorf("the origin saw %v, the client is %v", got, c.LocalAddr())
		}
	}
}

// TestBytes closes and resets many connections at random instants: what arrives is a prefix
// of what was sent, all of it after a proper end, and an error is an error at both ends.
func TestBytes(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	w := build(t, ", delay: 1ms, jitter: 500us, loss: 0.5%") // jitter reorders
	w.serve(func(c net.Conn) { _, _ = io.Copy(c, c); _ = c.(*net.TCPConn).CloseWrite() })
	w.relay("r2", nil, nil)
	w.relay("r1", &fixed{Next: []netip.AddrPort{testNodes["r2"]}}, nil)
	connections := 100
	if os.Getenv("ONPATH_SOAK") != "" {
		connections = 1000
	}
	w.echoes(t, seed, connections, 400_000)
}

// echoes has so many connections, twenty at once, send up to most bytes each.
func (w *world) echoes(t *testing.T, seed uint64, connections, most int) {
	t.Helper()
	var wait sync.WaitGroup
	slots := make(chan struct{}, 20)
	for i := range connections {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			if err := w.echo(rng, most); err != nil {
				t.Errorf("connection %d: %v", i, err)
			}
		})
	}
	wait.Wait()
}

// echo sends up to most random bytes and holds what comes back against them.
func (w *world) echo(rng *rand.Rand, most int) error {
	c, err := w.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	sent := make([]byte, rng.IntN(most))
	for i := range sent {
		sent[i] = byte(rng.Uint32())
	}
	cut := -1
	if rng.IntN(3) == 0 && len(sent) > 0 {
		cut = rng.IntN(len(sent))
	}
	go func() {
		rest := sent
		for len(rest) > 0 {
			n := min(1+rng.IntN(20_000), len(rest))
			if _, err := c.Write(rest[:n]); err != nil {
				return
			}
			rest = rest[n:]
		}
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	if cut >= 0 { // the reader goes away in the middle, by RST
		got := make([]byte, cut)
		if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, sent[:cut]) {
			return fmt.Errorf("before the cut: %d bytes, %v", cut, err)
		}
		return c.(*net.TCPConn).SetLinger(0)
	}
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, sent) {
		return fmt.Errorf("%d bytes of %d came back: %v", len(got), len(sent), err)
	}
	return nil
}

// TestRefused: who cannot sign opens nothing, and is reset.
func TestRefused(t *testing.T) {
	w := build(t, "")
	origin := make(chan struct{}, 10)
	w.serve(func(net.Conn) { origin <- struct{}{} })
	r := w.relay("r1", nil, func(c *Config) {
		c.Origin = func(tenant string, _ netip.AddrPort) error {
			if tenant != "acme" {
				return errors.New("not for this tenant")
			}
			return nil
		}
	})
	h := header{client: netip.MustParseAddrPort("10.1.0.2:1"), origin: testOrigin, tenant: "acme", nonce: [nonceSize]byte{1}}
	good, err := h.encode(testSecret, testNodes["r1"].Addr())
	if err != nil {
		t.Fatal(err)
	}
	foreign, _ := h.encode([]byte("another secret of this length"), testNodes["r1"].Addr())
	elsewhere, _ := h.encode(testSecret, testNodes["r2"].Addr())
	changed := bytes.Clone(good)
	changed[fixedHeader+4]++
	h.tenant, h.nonce[1] = "evil", 2
	other, _ := h.encode(testSecret, testNodes["r1"].Addr())
	cases := []struct {
		name  string
		bytes []byte
		taken bool
	}{
		{"signed", good, true}, {"used before", good, false}, {"another secret", foreign, false},
		{"for another node", elsewhere, false}, {"a changed address", changed, false}, {"another tenant", other, false},
		{"not a header", []byte("GET / HTTP/1.1\r\nHost: example.net\r\n\r\n"), false}, {"cut off", good[:40], false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			before := r.Stats()
			var conn net.Conn
			if err := netnsrun.Do(w.lab.NetNS("client"), func() (err error) {
				conn, err = net.Dial("tcp", testNodes["r1"].String())
				return err
			}); err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_, _ = conn.Write(c.bytes)
			_ = conn.(*net.TCPConn).CloseWrite()
			_, err := io.ReadAll(conn)
			after := r.Stats()
			if (err == nil) != c.taken || (after.Opened > before.Opened) != c.taken || (after.Refused == before.Refused) != c.taken {
				t.Errorf("read: %v; counted %+v after %+v", err, after, before)
			}
		})
	}
}
