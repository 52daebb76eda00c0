package wiring

import (
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/node/base"
)

// TestStretchLeadsToPartner: two instances on nodes with a router between reach each other's
// own addresses, of both IP versions, with data of more than one packet; after another
// partner came they reach that one.
func TestStretchLeadsToPartner(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to make network namespaces")
	}
	dir := t.TempDir()
	router := namespace(t, filepath.Join(dir, "router"))
	var hosts []Wirer
	for i, n := range []string{"n1", "n2", "n3"} {
		host := namespace(t, filepath.Join(dir, n))
		join(t, router, host, i+1)
		if err := os.MkdirAll(filepath.Join(dir, n+".state", "netns"), 0o755); err != nil {
			t.Fatal(err)
		}
		hosts = append(hosts, Wirer{Node: n, NetNS: host, Dir: base.Dir(filepath.Join(dir, n+".state")), Log: slog.New(slog.DiscardHandler)})
	}
	if err := netnsrun.Do(router, func() error { return (Sysctl{"net.ipv4.ip_forward", "1"}).Set() }); err != nil {
		t.Fatal(err)
	}
	own := func(i int) []netip.Prefix {
		return []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{100, 100, 0, byte(i + 1)}), 16),
			netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(i + 1)}), 64)}
	}
	underlay := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 9, byte(i + 1), 2}) }
	wire := func(i, partner int, side string) string {
		t.Helper()
		w := Wiring{ID: "half", Attach: onpath.Routed, Vport: onpath.VportID(i + 1), Addresses: own(i), MTU: 1500}
		w.Pair = &onpath.Pair{Number: 1, Side: side, Link: 77,
			Local: underlay(i), Remote: underlay(partner), MTU: onpath.StretchMTU(1500, underlay(i))}
		for _, p := range own(partner) {
			w.Pair.Addresses = append(w.Pair.Addresses, p.Addr())
		}
		for range 2 { // twice is as once
			if _, err := hosts[i].Wire(t.Context(), w, "", 0); err != nil {
				t.Fatal(err)
			}
		}
		t.Cleanup(func() {
			if err := hosts[i].Unwire("half", []onpath.VportID{w.Vport}); err != nil {
				t.Error(err)
			}
		})
		return hosts[i].Dir.NetNS("half")
	}
	a, b := wire(0, 1, onpath.PairA), wire(1, 0, onpath.PairB)
	for _, p := range own(1) {
		exchange(t, a, b, p.Addr())
	}
	c := wire(2, 0, onpath.PairB)
	a = wire(0, 2, onpath.PairA)
	for _, p := range own(2) {
		exchange(t, a, c, p.Addr())
	}
}

func namespace(t *testing.T, path string) string {
	t.Helper()
	if err := netnsrun.Create(path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netnsrun.Remove(path); err != nil {
			t.Error(err)
		}
	})
	return path
}

// join connects a host with the router, by the network 10.9.N.0/24.
func join(t *testing.T, router, host string, n int) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	r, err := Open(router)
	must(err)
	defer r.Close()
	h, err := Open(host)
	must(err)
	defer h.Close()
	ns, err := netns.GetFromPath(host)
	must(err)
	defer ns.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "to" + string(rune('0'+n))
	must(r.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(ns))}))
	for k, x := range []*netlink.Handle{r, h} {
		l, err := x.LinkByName([]string{attrs.Name, "eth0"}[k])
		must(err)
		must(x.AddrAdd(l, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 9, byte(n), byte(k+1)), Mask: net.CIDRMask(24, 32)}}))
		must(x.LinkSetUp(l))
	}
	must(h.RouteAdd(&netlink.Route{Gw: net.IPv4(10, 9, byte(n), 1)}))
}

// exchange sends a megabyte from one namespace to an address in another one.
func exchange(t *testing.T, from, to string, at netip.Addr) {
	t.Helper()
	var l net.Listener
	if err := netnsrun.Do(to, func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(at, 7000).String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := make(chan int64, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			got <- -1
			return
		}
		defer c.Close()
		n, _ := io.Copy(io.Discard, c)
		got <- n
	}()
	var c net.Conn
	if err := netnsrun.Do(from, func() (err error) {
		c, err = net.DialTimeout("tcp", l.Addr().String(), time.Minute)
		return err
	}); err != nil {
		t.Fatalf("%s is not reached: %v", at, err)
	}
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := c.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	c.Close()
	if n := <-got; n != 1<<20 {
		t.Errorf("%d bytes came to %s", n, at)
	}
}
