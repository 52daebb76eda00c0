package functions

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"
)

// network is client — router — server in namespaces of their own, with an
// instance's namespace hanging off the router, as a node would wire it:
//
//	client c0 10.1.0.2 ── cr router rs ── s0 10.9.0.2 server
//	                          │ f0 (and f1)
//	                     fn eth0 (and eth1)
type network struct {
	t                          *testing.T
	client, router, server, fn string
}

const (
	clientIP, serverIP   = "10.1.0.2", "10.9.0.2"
	clientIP6, serverIP6 = "fd01::2", "fd09::2"
	instanceMAC, hostMAC = "02:6f:70:00:00:07", "02:6f:50:00:00:07"
)

func run(t *testing.T, format string, args ...any) string {
	t.Helper()
	line := fmt.Sprintf(format, args...)
	out, err := exec.Command("sh", "-c", line).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return string(out)
}

func newNetwork(t *testing.T, bridged bool) *network {
	t.Helper()
	prefix := fmt.Sprintf("ot-functions-%d-%d-", os.Getpid(), time.Now().UnixNano()%1e6)
	n := &network{t, prefix + "c", prefix + "r", prefix + "s", prefix + "f"}
	for _, ns := range []string{n.client, n.router, n.server, n.fn} {
		run(t, "ip netns add %s && ip -n %s link set lo up", ns, ns)
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", ns).Run() })
		for _, s := range []string{"net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.default.rp_filter=0", "net.ipv6.conf.default.accept_dad=0",
			"net.ipv6.conf.default.accept_ra=0", "net.ipv4.conf.all.send_redirects=0", "net.ipv4.conf.default.send_redirects=0"} {
			run(t, "ip netns exec %s sysctl -qw %s", ns, s)
		}
	}
	for _, ns := range []string{n.router, n.fn} {
		run(t, "ip netns exec %s sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1", ns)
	}
	n.wire(n.client, "c0", "cr", "10.1.0", "fd01::")
	n.wire(n.server, "s0", "rs", "10.9.0", "fd09::")
	if bridged {
		n.attachBridged()
	} else {
		n.attachRouted()
	}
	return n
}

// wire joins an end point to the router: .2 is the end, .1 the router.
func (n *network) wire(end, dev, peer, net4, net6 string) {
	run(n.t, "ip -n %[1]s link add %[2]s type veth peer name %[3]s netns %[4]s", end, dev, peer, n.router)
	run(n.t, "ip -n %s addr add %s.2/24 dev %s && ip -n %s addr add %s2/64 dev %s nodad", end, net4, dev, end, net6, dev)
	run(n.t, "ip -n %s addr add %s.1/24 dev %s && ip -n %s addr add %s1/64 dev %s nodad", n.router, net4, peer, n.router, net6, peer)
	run(n.t, "ip -n %s link set %s up && ip -n %s link set %s up", end, dev, n.router, peer)
	run(n.t, "ip -n %s route add default via %s.1 && ip -n %s -6 route add default via %s1", end, net4, end, net6)
}

// attachRouted sends both directions through the instance's one device.
func (n *network) attachRouted() {
	run(n.t, "ip -n %s link add f0 address %s type veth peer name eth0 address %s netns %s", n.router, hostMAC, instanceMAC, n.fn)
	run(n.t, "ip -n %s link set f0 up && ip -n %s link set eth0 up", n.router, n.fn)
	run(n.t, "ip -n %s route add default via 169.254.1.1 dev eth0 onlink && ip -n %s -6 route add default via fe80::1 dev eth0 onlink", n.fn, n.fn)
	run(n.t, "ip -n %[1]s neigh add 169.254.1.1 lladdr %[2]s dev eth0 nud permanent && ip -n %[1]s neigh add fe80::1 lladdr %[2]s dev eth0 nud permanent", n.fn, hostMAC)
	run(n.t, "ip -n %[1]s neigh add 169.254.1.2 lladdr %[2]s dev f0 nud permanent && ip -n %[1]s neigh add fe80::2 lladdr %[2]s dev f0 nud permanent", n.router, instanceMAC)
	for _, f := range []struct{ flag, via string }{{"-4", "169.254.1.2"}, {"-6", "fe80::2"}} {
		run(n.t, "ip -n %s %s route add default via %s dev f0 onlink table 10", n.router, f.flag, f.via)
		for _, in := range []string{"cr", "rs"} {
			run(n.t, "ip -n %s %s rule add iif %s lookup 10", n.router, f.flag, in)
		}
	}
}

// attachBridged puts the instance between two router devices of one subnet's
// link: the server's wire is cut, and the instance bridges the halves.
func (n *network) attachBridged() {
	run(n.t, "ip -n %s link add f0 type veth peer name eth0 netns %s", n.router, n.fn)
	run(n.t, "ip -n %s link add f1 type veth peer name eth1 netns %s", n.router, n.fn)
	// f0 takes over rs's addresses; rs is bridged to f1.
	run(n.t, "ip -n %[1]s addr flush dev rs && ip -n %[1]s addr add 10.9.0.1/24 dev f0 && ip -n %[1]s addr add fd09::1/64 dev f0 nodad", n.router)
	run(n.t, "ip -n %[1]s link add xb type bridge && ip -n %[1]s link set rs master xb && ip -n %[1]s link set f1 master xb && ip -n %[1]s link set xb up", n.router)
	run(n.t, "ip -n %[1]s link set f0 up && ip -n %[1]s link set f1 up", n.router)
}

// mirror undoes the steering and sends the instance copies of both directions.
func (n *network) mirror() {
	for _, in := range []string{"cr", "rs"} {
		run(n.t, "ip -n %[1]s -4 rule del iif %[2]s lookup 10 && ip -n %[1]s -6 rule del iif %[2]s lookup 10", n.router, in)
	}
	run(n.t, "ip -n %s route add 169.254.1.2/32 dev f0", n.router)
	run(n.t, `ip netns exec %s nft 'table ip mirror { chain p { type filter hook prerouting priority mangle; iif { cr, rs } dup to 169.254.1.2 device "f0"; }; }'`, n.router)
}

// in runs f on a thread in the namespace.
func in[T any](t *testing.T, ns string, f func() (T, error)) (T, error) {
	t.Helper()
	type result struct {
		v   T
		err error
	}
	ch := make(chan result)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine: it is not given back
		var r result
		h, err := netns.GetFromName(ns)
		if err == nil {
			defer h.Close()
			err = netns.Set(h)
		}
		if r.err = err; err == nil {
			r.v, r.err = f()
		}
		ch <- r
	}()
	r := <-ch
	return r.v, r.err
}

// serve runs an HTTP server in the server's namespace; seen gets the address of
// each request's client.
func (n *network) serve(port int, handler http.Handler) {
	n.t.Helper()
	l, err := in(n.t, n.server, func() (net.Listener, error) { return net.Listen("tcp", fmt.Sprintf(":%d", port)) })
	if err != nil {
		n.t.Fatal(err)
	}
	s := &http.Server{Handler: handler}
	go s.Serve(l)
	n.t.Cleanup(func() { s.Close() })
}

// httpClient dials from the client's namespace, one connection per request.
func (n *network) httpClient(timeout time.Duration) *http.Client {
	return &http.Client{Timeout: timeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return in(n.t, n.client, func() (net.Conn, error) { return (&net.Dialer{Timeout: timeout}).DialContext(ctx, network, addr) })
		},
	}}
}

func (n *network) get(url string, timeout time.Duration) (string, http.Header, error) {
	r, err := n.httpClient(timeout).Get(url)
	if err != nil {
		return "", nil, err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	return string(body), r.Header, err
}

// eventually tries until ok or the limit is over.
func eventually(t *testing.T, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", limit, what)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func url(host string, port int, path string) string {
	return "http://" + net.JoinHostPort(host, fmt.Sprint(port)) + path
}

func contains(s string, parts ...string) bool {
	for _, p := range parts {
		if !strings.Contains(s, p) {
			return false
		}
	}
	return true
}
