package node_test

import (
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
)

// nsOf is the namespace of the one instance of that name.
func (b *fixture) nsOf(name string) string {
	b.t.Helper()
	return filepath.Join(b.dir, "netns", b.id(name))
}

func sysctl(t *testing.T, ns, key, value string) {
	t.Helper()
	err := netnsrun.Do(ns, func() error {
		return os.WriteFile("/proc/sys/"+strings.ReplaceAll(key, ".", "/"), []byte(value), 0)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func readSysctl(t *testing.T, ns, key string) string {
	t.Helper()
	var data []byte
	err := netnsrun.Do(ns, func() (err error) {
		data, err = os.ReadFile("/proc/sys/" + strings.ReplaceAll(key, ".", "/"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

// station is an end point in a namespace of its own, linked to the host.
func (b *fixture) station(name, device string, host, own []string) string {
	b.t.Helper()
	path := filepath.Join(filepath.Dir(b.host), name)
	if err := netnsrun.Create(path); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		if err := netnsrun.Remove(path); err != nil {
			b.t.Error(err)
		}
	})
	ns, err := netns.GetFromPath(path)
	if err != nil {
		b.t.Fatal(err)
	}
	defer ns.Close()
	h, in := b.netlink(b.host), b.netlink(path)
	defer h.Close()
	defer in.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = device
	must(b.t, h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(ns))}))
	sysctl(b.t, b.host, "net.ipv6.conf."+device+".accept_dad", "0")
	sysctl(b.t, path, "net.ipv6.conf.eth0.accept_dad", "0")
	address(b.t, h, device, host)
	address(b.t, in, "eth0", own)
	eth, err := in.LinkByName("eth0")
	must(b.t, err)
	for _, p := range host {
		gw := netip.MustParsePrefix(p).Addr()
		zero := &net.IPNet{IP: make(net.IP, gw.BitLen()/8), Mask: net.CIDRMask(0, gw.BitLen())}
		must(b.t, in.RouteAdd(&netlink.Route{LinkIndex: eth.Attrs().Index, Gw: gw.AsSlice(), Dst: zero}))
	}
	return path
}

func address(t *testing.T, h *netlink.Handle, device string, all []string) {
	t.Helper()
	l, err := h.LinkByName(device)
	must(t, err)
	must(t, h.LinkSetUp(l))
	for _, p := range all {
		a, err := netlink.ParseAddr(p)
		must(t, err)
		a.Flags |= unix.IFA_F_NODAD
		must(t, h.AddrAdd(l, a))
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// diverted makes the host's kernel do what the data path does: what comes from
// the client goes to the instance's device, to the instance's MAC.
func (b *fixture) diverted(v onpath.VportID, from string) {
	b.t.Helper()
	h := b.netlink(b.host)
	defer h.Close()
	l, err := h.LinkByName(onpath.DeviceName(v))
	must(b.t, err)
	mac, err := net.ParseMAC(onpath.InstanceMAC(v))
	must(b.t, err)
	for _, gw := range []string{"192.0.2.1", "fe80::99"} {
		ip := netip.MustParseAddr(gw)
		family, rule := netlink.FAMILY_V4, netlink.NewRule()
		if ip.Is6() {
			family = netlink.FAMILY_V6
		}
		must(b.t, h.NeighAdd(&netlink.Neigh{LinkIndex: l.Attrs().Index, Family: family, State: netlink.NUD_PERMANENT, IP: ip.AsSlice(), HardwareAddr: mac}))
		zero := &net.IPNet{IP: make(net.IP, ip.BitLen()/8), Mask: net.CIDRMask(0, ip.BitLen())}
		must(b.t, h.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: ip.AsSlice(), Dst: zero, Table: 100, Flags: int(netlink.FLAG_ONLINK)}))
		rule.IifName, rule.Table, rule.Family = from, 100, family
		must(b.t, h.RuleAdd(rule))
	}
}

// Real packets, IPv4 and IPv6, go from a client into the instance's namespace,
// out of it and on to a server, and TCP carries a megabyte.
func TestTrafficCrossesRoutedInstance(t *testing.T) {
	b := newFixture(t)
	client := b.station("client", "cl0", []string{"10.1.0.1/24", "2001:db8:1::1/64"}, []string{"10.1.0.2/24", "2001:db8:1::2/64"})
	server := b.station("server", "sv0", []string{"10.2.0.1/24", "2001:db8:2::1/64"}, []string{"10.2.0.2/24", "2001:db8:2::2/64"})
	for _, k := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
		sysctl(t, b.host, k, "1")
	}
	for _, k := range []string{"all", "cl0", "sv0"} {
		sysctl(t, b.host, "net.ipv4.conf."+k+".rp_filter", "0")
	}
	r := b.run()
	r.plan(planOf(1, routed("web", 16, "10.9.0.5/24", "fd00::5/64")))
	r.untilState("web", onpath.InstanceReady)
	sysctl(t, b.host, "net.ipv4.conf.op000010.rp_filter", "0")
	b.diverted(16, "cl0")

	for _, addr := range []string{"10.2.0.2", "2001:db8:2::2"} {
		before := b.received("op000010")
		if n := transfer(t, client, server, addr, 1<<20); n != 1<<20 {
			t.Errorf("%s: %d bytes arrived, want %d", addr, n, 1<<20)
		}
		if got := b.received("op000010") - before; got < 1<<20 {
			t.Errorf("%s: the instance sent on %d bytes; the transfer went past it", addr, got)
		}
	}

	// Its own addresses answer, and nothing in the namespace says otherwise.
	in := b.nsOf("web")
	h := b.netlink(in)
	defer h.Close()
	eth, err := h.LinkByName("eth0")
	must(t, err)
	if got := eth.Attrs().HardwareAddr.String(); got != onpath.InstanceMAC(16) {
		t.Errorf("eth0 has %s, want %s", got, onpath.InstanceMAC(16))
	}
	if eth.Attrs().MTU != 1400 {
		t.Errorf("eth0 has MTU %d, want 1400", eth.Attrs().MTU)
	}
	routes, err := h.RouteList(eth, netlink.FAMILY_V4)
	must(t, err)
	if len(routes) != 1 || routes[0].Gw.String() != "169.254.1.1" {
		t.Errorf("eth0 has routes %v, want the default one alone", routes)
	}
	for key, want := range map[string]string{
		"net.ipv4.ip_forward": "1", "net.ipv6.conf.all.forwarding": "1", "net.ipv4.conf.eth0.rp_filter": "0",
		"net.ipv4.conf.all.rp_filter": "0", "net.ipv4.conf.eth0.send_redirects": "0", "net.ipv6.conf.eth0.accept_ra": "0",
	} {
		if got := readSysctl(t, in, key); got != want {
			t.Errorf("%s is %s, want %s", key, got, want)
		}
	}
}

// received is how many bytes came out of the instance.
func (b *fixture) received(device string) uint64 {
	for _, l := range b.links() {
		if l.Attrs().Name == device {
			return l.Attrs().Statistics.RxBytes
		}
	}
	b.t.Fatalf("no device %s", device)
	return 0
}

// transfer sends size bytes by TCP and says how many arrived.
func transfer(t *testing.T, client, server, addr string, size int) (n int64) {
	t.Helper()
	var l net.Listener
	must(t, netnsrun.Do(server, func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(addr, "0"))
		return err
	}))
	defer l.Close()
	arrived := make(chan int64, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			arrived <- -1
			return
		}
		defer c.Close()
		n, _ := io.Copy(io.Discard, c)
		arrived <- n
	}()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var c net.Conn
	must(t, netnsrun.Do(client, func() (err error) {
		c, err = (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
		return err
	}))
	if _, err := c.Write(make([]byte, size)); err != nil {
		t.Error(err)
	}
	c.Close()
	return <-arrived
}

func TestBridgedInstanceHasTwoSides(t *testing.T) {
	b := newFixture(t)
	r := b.run()
	in := routed("bump", 32)
	in.Back = 33
	in.Spec.Container.Attach = onpath.Bridged
	in.Spec.Container.Sysctls = map[string]string{"net.ipv4.conf.eth1.arp_ignore": "2"}
	r.plan(planOf(1, in))
	r.untilState("bump", onpath.InstanceReady)
	if b.path.state(32) != onpath.VportUp || b.path.state(33) != onpath.VportUp {
		t.Error("both sides take packets")
	}
	ns := b.nsOf("bump")
	h := b.netlink(ns)
	defer h.Close()
	for name, v := range map[string]onpath.VportID{"eth0": 32, "eth1": 33} {
		l, err := h.LinkByName(name)
		must(t, err)
		if l.Attrs().HardwareAddr.String() != onpath.InstanceMAC(v) || l.Attrs().Flags&net.FlagUp == 0 {
			t.Errorf("%s is %+v, want %s, up", name, l.Attrs(), onpath.InstanceMAC(v))
		}
		addrs, err := h.AddrList(l, netlink.FAMILY_ALL)
		must(t, err)
		if len(addrs) != 0 {
			t.Errorf("%s has addresses %v, want none", name, addrs)
		}
	}
	if got := readSysctl(t, ns, "net.ipv4.conf.eth1.arp_ignore"); got != "2" {
		t.Errorf("the function's own sysctl is %s, want 2", got)
	}
	if got := readSysctl(t, ns, "net.ipv4.ip_forward"); got != "0" {
		t.Errorf("a bump in the wire does not route; ip_forward is %s", got)
	}
	b.machine.Kill(b.id("bump"), 1)
	b.until("both sides close", func() bool {
		return strings.Contains(strings.Join(b.recorder.all(), "\n"), "[32:closed 33:closed]\nstart bump\napply 1 [32:up 33:up]\napply 1 [32:closed 33:closed]")
	})
	r.plan(planOf(2))
	b.gone()
}

// Somebody deletes the device of a living instance: it is made again.
func TestDeviceIsMadeAgain(t *testing.T) {
	b := newFixture(t)
	r := b.run()
	r.plan(planOf(1, routed("web", 16, "10.9.0.5/24")))
	r.untilState("web", onpath.InstanceReady)
	old := b.index("op000010")
	h := b.netlink(b.host)
	defer h.Close()
	l, err := h.LinkByName("op000010")
	must(t, err)
	must(t, h.LinkDel(l))
	b.until("the device is back", func() bool {
		l, err := h.LinkByName("op000010")
		return err == nil && l.Attrs().Index != old && l.Attrs().Flags&net.FlagUp != 0
	})
	b.until("the data path was told, though its configuration is the same", func() bool { return b.recorder.count("apply 1 [16:up]") >= 2 })
	if b.recorder.count("start web") != 1 {
		t.Error("the process was started again")
	}
}

func TestProbeTCP(t *testing.T) {
	b := newFixture(t)
	r := b.run()
	in := routed("web", 16, "10.9.0.5/24")
	in.Spec.Health = onpath.Health{TCP: 3128, Every: onpath.Duration(20 * time.Millisecond), Failures: 2}
	r.plan(planOf(1, in))
	b.until("it runs", func() bool { return len(b.machine.Running()) == 1 })
	b.until("it waits for the probe", func() bool {
		got, _ := r.server.instance("web")
		return got.State == onpath.InstanceStarting && strings.Contains(got.Message, "port 3128")
	})
	if s := b.path.state(16); s != onpath.VportClosed {
		t.Errorf("vport is %q before the first success, want closed", s)
	}
	for range 2 { // comes, goes, comes
		var l net.Listener
		must(t, netnsrun.Do(b.nsOf("web"), func() (err error) {
			l, err = net.Listen("tcp", "10.9.0.5:3128") // its own address only
			return err
		}))
		r.untilState("web", onpath.InstanceReady)
		if s := b.path.state(16); s != onpath.VportUp {
			t.Errorf("vport is %q when ready, want up", s)
		}
		l.Close()
		r.untilState("web", onpath.InstanceUnready)
		if s := b.path.state(16); s != onpath.VportClosed {
			t.Errorf("vport is %q when unready, want closed", s)
		}
	}
	if b.recorder.count("start web") != 1 {
		t.Error("a failing probe is no reason to restart at once")
	}
}

// An instance that never gets ready is started anew when its time is over.
func TestStartTimeout(t *testing.T) {
	b := newFixture(t)
	r := b.run()
	in := routed("web", 16)
	in.Spec.Health = onpath.Health{Exec: []string{"exit", "3"}, Every: onpath.Duration(10 * time.Millisecond), Start: onpath.Duration(50 * time.Millisecond)}
	r.plan(planOf(1, in))
	b.until("it is started anew", func() bool { return b.recorder.count("start web") == 2 })
	got, _ := r.server.instance("web")
	if got.Restarts == 0 {
		t.Error("the restart is not counted")
	}
	if b.path.state(16) != onpath.VportClosed {
		t.Error("open without ever having been ready")
	}
}

// TestPortsAreShared: instances that speak with their clients' addresses call the
// same server from different ports, and the function's own setting wins.
func TestPortsAreShared(t *testing.T) {
	b := newFixture(t)
	r := b.run()
	var instances []onpath.InstancePlan
	for n, name := range []string{"one", "two", "own"} {
		in := routed(name, onpath.VportID(31+n))
		in.Spec.Packets = onpath.PacketsOriginate
		instances = append(instances, in)
	}
	instances[2].Spec.Container.Sysctls = map[string]string{"net.ipv4.ip_local_port_range": "40000\t50000"}
	instances = append(instances, routed("plain", 34))
	r.plan(planOf(1, instances...))
	for name, want := range map[string]string{
		"one": "62464\t65535", "two": "16384\t19455", "own": "40000\t50000", "plain": "32768\t60999",
	} {
		r.untilState(name, onpath.InstanceReady)
		if got := readSysctl(t, b.nsOf(name), "net.ipv4.ip_local_port_range"); got != want {
			t.Errorf("%s takes its ports from %q, must from %q", name, got, want)
		}
	}
}
