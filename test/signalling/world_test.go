// Package signalling runs publishers who send signed messages toward a user, through two
// real nodes on the way: what is installed, for IPv4 and IPv6, and what is refused.
package signalling

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/demo"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/internal/signalling"
	"github.com/onpath/onpath/internal/testprogram"
	"github.com/onpath/onpath/lab"
	"github.com/onpath/onpath/signal/nslp"
)

var (
	publisherKey = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, 32))
	strangerKey  = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{2}, 32))
)

// ends are the addresses of a publisher and of a user.
type ends struct{ publisher, user netip.Addr }

var (
	v4 = ends{netip.MustParseAddr("10.9.0.2"), netip.MustParseAddr("10.1.0.11")}
	v6 = ends{netip.MustParseAddr("2001:db8:9::2"), netip.MustParseAddr("2001:db8:1::11")}
)

const password = "once and not again"

// world is the network with what runs at the publisher's: a web server, an echo at UDP port
// 5060, and where NetMonitor sends what it counts.
type world struct {
	*demo.Testbed
	t       *testing.T
	nodes   uplinks
	module  []byte
	forging []byte            // sends in others' names
	with    map[string]string // nodes that are in another's cloudlet, and whose
	over    chan struct{}     // ends what is slow
	counted atomic.Int64      // datagrams of NetMonitor's
	known   *signalling.Nodes
}

// uplinks are those of the nodes of a network in testdata.
type uplinks map[string][]string

var onOneWay = uplinks{"gw1": {"core", "east"}, "gw2": {"west", "access"}}

// setUp makes the network with two nodes on the way to the user, who lend a half each.
func setUp(ctx context.Context, t *testing.T) *world {
	t.Helper()
	w := setUpIn(ctx, t, "lab", onOneWay)
	w.operate(ctx, "50%", "50%")
	return w
}

func setUpIn(ctx context.Context, t *testing.T, network string, nodes uplinks) *world {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root for network namespaces, eBPF and containers")
	}
	topology, err := lab.ParseFile("testdata/" + network + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	topology.Name = fmt.Sprintf("signalling-%d", os.Getpid())
	w := &world{t: t, nodes: nodes, over: make(chan struct{})}
	if w.known, err = signalling.OpenNodes(filepath.Join(t.TempDir(), "nodes")); err != nil {
		t.Fatal(err)
	}
	if w.module, err = os.ReadFile("../../functions/netmonitor/netmonitor.wasm"); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(config, []byte("node: {moduleSources: [10.9.0.0/24, '2001:db8:9::/64']}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	server := filepath.Join(t.TempDir(), "server.yaml")
	if err := os.WriteFile(server, []byte(pools), 0o644); err != nil {
		t.Fatal(err)
	}
	spec := demo.TestbedSpec{
		Topology: topology, Bin: testprogram.Path(t), Dir: t.TempDir(),
		Server: demo.TestbedNode{Host: "operator", Address: "10.255.0.10"}, ServerConfig: server, NodeConfig: config,
	}
	for _, n := range w.names() {
		spec.Nodes = append(spec.Nodes, demo.TestbedNode{Name: n, Host: n, Address: underlay(n), Cloudlet: n})
	}
	if w.Testbed, err = demo.SetUp(ctx, spec); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, name := range append(w.names(), "server") {
				log := w.Log(name)
				t.Logf("--- end of %s.log\n%s", name, log[max(0, len(log)-4000):])
			}
		}
		if err := w.TearDown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	w.serve()
	t.Cleanup(func() { close(w.over) })
	return w
}

func (w *world) names() []string { return slices.Sorted(maps.Keys(w.nodes)) }

func underlay(node string) string { return "10.255.0." + strings.TrimPrefix(node, "gw") }

// operate has the operator lend, each node in its way, in the order of their names.
func (w *world) operate(ctx context.Context, shares ...string) {
	w.t.Helper()
	text := fmt.Sprintf(`
apiVersion: onpath/v1alpha1
kind: Tenant
metadata: {name: voice}
spec: {addresses: [10.9.0.0/24, "2001:db8:9::/64"], keys: [%s]}
`, base64.StdEncoding.EncodeToString(publisherKey.Public().(ed25519.PublicKey)))
	for i, name := range w.names() {
		text += fmt.Sprintf(`---
apiVersion: onpath/v1alpha1
kind: Node
metadata: {name: %s}
spec:
  cloudlet: %s
  underlay: {address: %s}
  leases: {share: %s}
  uplinks:
`, name, cmp.Or(w.with[name], name), underlay(name), shares[i])
		for _, u := range w.nodes[name] {
			text += fmt.Sprintf("  - {name: %s, device: %[1]s, attach: router}\n", u)
		}
	}
	w.apply(ctx, text)
}

func (w *world) apply(ctx context.Context, text string) {
	w.t.Helper()
	if err := w.Apply(ctx, w.file("objects.yaml", text)); err != nil {
		w.t.Fatal(err)
	}
}

// file is a new one with a text.
func (w *world) file(name, text string) string {
	w.t.Helper()
	file := filepath.Join(w.t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return file
}

// serve starts what runs at the publisher's.
func (w *world) serve() {
	w.t.Helper()
	err := netnsrun.Do(w.Lab.NetNS("publisher"), func() error {
		for _, port := range []int{80, 8080} {
			l, err := net.ListenTCP("tcp", &net.TCPAddr{Port: port})
			if err != nil {
				return err
			}
			s := &http.Server{Handler: http.HandlerFunc(w.web)}
			go func() { _ = s.Serve(l) }()
			w.t.Cleanup(func() { _ = s.Close() })
		}
		for port, meet := range map[int]func(*net.UDPConn, []byte, netip.AddrPort){
			5060: func(c *net.UDPConn, b []byte, from netip.AddrPort) { _, _ = c.WriteToUDPAddrPort(b, from) },
			5678: func(*net.UDPConn, []byte, netip.AddrPort) { w.counted.Add(1) },
		} {
			c, err := net.ListenUDP("udp", &net.UDPAddr{Port: port})
			if err != nil {
				return err
			}
			w.t.Cleanup(func() { _ = c.Close() })
			go func() {
				b := make([]byte, 2048)
				for {
					n, from, err := c.ReadFromUDPAddrPort(b)
					if err != nil {
						return
					}
					meet(c, b[:n], from)
				}
			}()
		}
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) web(rw http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/forge":
		_, _ = rw.Write(w.forging)
	case strings.HasPrefix(r.URL.Path, "/module"):
		_, _ = rw.Write(w.module)
	case r.URL.Path == "/large":
		_, _ = rw.Write(make([]byte, onpath.MaxModuleBytes+1))
	case r.URL.Path == "/slow":
		rw.WriteHeader(http.StatusOK)
		rw.(http.Flusher).Flush()
		<-w.over
	case r.URL.Path == onpath.ClaimPath:
		_, _ = io.WriteString(rw, password+"\n")
	default:
		http.NotFound(rw, r)
	}
}

// setup is a request to have NetMonitor for what goes to an end's publisher.
func (w *world) setup(e ends, name string) *nslp.Message {
	return &nslp.Message{
		Type: nslp.Setup, Module: name, FilterPort: 5060, FilterProtocol: "udp", FilterTo: []netip.Prefix{hostPrefix(e.publisher)},
		Properties: []string{"collector=" + e.publisher.String(), "port=5678"}, TTL: time.Minute,
		URL: "http://" + netip.AddrPortFrom(e.publisher, 8080).String() + "/module", Hash: nslp.HashOf(w.module),
		Flow: nslp.Flow{Source: e.publisher, Destination: e.user},
	}
}

func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// send sends a request toward a user, and gives the answers as NODE STATE REASON.
func (w *world) send(ctx context.Context, e ends, m *nslp.Message, sign bool, key ed25519.PrivateKey) (said []string, err error) {
	o := signalling.Options{Toward: e.user, Key: key, Timeout: 10 * time.Second, NetNS: w.Lab.NetNS("publisher"), Nodes: w.known}
	var r *nslp.Message
	if sign {
		r, err = signalling.Request(ctx, m, o)
	} else {
		r, err = signalling.Send(ctx, m, o)
	}
	if err != nil {
		return nil, err
	}
	for _, n := range r.Stack {
		said = append(said, strings.TrimSpace(n.Node+" "+n.State+" "+n.Reason))
	}
	return said, nil
}

// ask sends a request of the publisher's until the answers are as they should be in the end.
func (w *world) ask(ctx context.Context, e ends, m *nslp.Message, want string) {
	w.t.Helper()
	var last string
	err := w.WaitFor(ctx, want, time.Minute, func() (bool, error) {
		said, err := w.send(ctx, e, m, true, publisherKey)
		last = fmt.Sprint(strings.Join(said, ", "), " ", err)
		return strings.Join(said, ", ") == want, ctx.Err()
	})
	if err != nil {
		w.t.Fatalf("%s of %s toward %s: %s, want %s", m.Type, m.Module, e.user, last, want)
	}
}

// pass sends datagrams from the user to the publisher's port 5060, and counts the echoes.
func (w *world) pass(e ends, n int) (back int) {
	w.t.Helper()
	var c net.Conn
	err := netnsrun.Do(w.Lab.NetNS("user"), func() (err error) {
		c, err = net.Dial("udp", netip.AddrPortFrom(e.publisher, 5060).String())
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	b := make([]byte, 64)
	for range n {
		_, _ = c.Write([]byte("are you there?"))
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := c.Read(b); err == nil {
			back++
		}
	}
	return back
}
