package ebpf_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
)

// uplinks replaces the gateway's.
func uplinks(us ...onpath.Uplink) func(*onpath.DatapathConfig) {
	return func(cfg *onpath.DatapathConfig) {
		if cfg.Edge != nil {
			cfg.Edge.Uplinks = us
		}
	}
}

func bump() func(*onpath.DatapathConfig) {
	return uplinks(onpath.Uplink{Name: "a", Device: "up0", Attach: onpath.AttachBridge, Side: onpath.SideAccess},
		onpath.Uplink{Name: "c", Device: "up1", Attach: onpath.AttachBridge, Side: onpath.SideCore})
}

// TestBridge: neighbours on both sides of a gateway without addresses reach each
// other through a chain, and what no chain selects crosses as it is.
func TestBridge(t *testing.T) {
	t.Parallel()
	for _, kernel := range []bool{false, true} {
		t.Run(fmt.Sprintf("kernel-bridge=%v", kernel), func(t *testing.T) {
			c := newTestbedWith(t, testbedOptions{bump: true, noTCX: kernel})
			gw := c.nodes["gw"]
			if kernel {
				c.bridge(gw.ns, "up0", "up1")
			}
			c.routed("gw", 16)
			c.bridged("n2", 17, 18)
			c.serve("tcp4", "10.9.0.2:80")
			c.serve("tcp6", "[2001:db8:9::2]:80")
			match := toServers()
			match.Protocol = []uint8{unix.IPPROTO_TCP}
			c.apply(match, bump(), element(16, 16), element(17, 18))
			for _, addr := range []string{"10.9.0.2:80", "[2001:db8:9::2]:80"} {
				before := [2]uint64{c.out("gw", 16), c.out("n2", 17)}
				c.transfer(addr, 4<<20)
				if a, b := c.out("gw", 16)-before[0], c.out("n2", 17)-before[1]; a < 2900 || b < 2900 {
					t.Errorf("%s: the instances got %d and %d packets, must be over 2900", addr, a, b)
				}
			}
			before := c.out("gw", 16)
			c.echo(c.client, c.server, "10.9.0.2:7")
			if got := c.out("gw", 16); got != before {
				t.Errorf("instance 16 got %d packets that no chain selects", got-before)
			}
			if !kernel {
				if !c.promiscuous(gw.ns, "up0") {
					t.Error("up0 does not take frames for others")
				}
				c.must(gw.dp.Remove(t.Context()))
				if c.promiscuous(gw.ns, "up0") {
					t.Error("up0 takes frames for others after Remove")
				}
			}
		})
	}
}

// TestBridgeTag: a tag is on the frames again when they leave.
func TestBridgeTag(t *testing.T) {
	c := newTestbedWith(t, testbedOptions{bump: true})
	for ns, addr := range map[string]string{c.client: "10.101.0.2/16", c.server: "10.101.0.9/16"} {
		err := netnsrun.Do(ns, func() error {
			l, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			attrs := netlink.NewLinkAttrs()
			attrs.Name, attrs.ParentIndex = "tagged", l.Attrs().Index
			return netlink.LinkAdd(&netlink.Vlan{LinkAttrs: attrs, VlanId: 5})
		})
		if err != nil {
			t.Skipf("needs a kernel with VLAN devices: %v", err)
		}
		c.setUp(end{ns: ns, dev: "tagged", addrs: []string{addr}})
	}
	c.routed("gw", 16)
	c.serve("tcp4", "10.101.0.9:80")
	c.apply(onpath.Match{Dst: []netip.Prefix{netip.MustParsePrefix("10.101.0.9/32")}}, bump(), element(16, 16))
	c.transfer("10.101.0.9:80", 1<<20)
	if got := c.out("gw", 16); got < 700 {
		t.Errorf("instance 16 got %d packets, must be over 700", got)
	}
}

// TestVLANUplink: where uplinks are VLAN devices, all that a chain selects crosses its
// instance, in both directions, and nothing gets through while that takes nothing.
func TestVLANUplink(t *testing.T) {
	c := newTestbedWith(t, testbedOptions{vlan: true})
	c.routed("gw", 16)
	for _, addr := range []string{"10.9.0.2:80", "[2001:db8:9::2]:80"} {
		c.serve("tcp", addr)
	}
	c.apply(onpath.Match{Protocol: []uint8{6}}, nil, element(16, 16))
	for _, addr := range []string{"10.9.0.2:80", "[2001:db8:9::2]:80"} {
		before := c.out("gw", 16)
		c.transfer(addr, 1<<20)
		if got := c.out("gw", 16) - before; got < 700 {
			t.Errorf("%s: the instance got %d packets, must be over 700", addr, got)
		}
	}
	c.instances[0].State = onpath.VportClosed
	c.apply(onpath.Match{Protocol: []uint8{6}}, nil, element(16, 16))
	for _, addr := range []string{"10.9.0.2:80", "[2001:db8:9::2]:80"} {
		err := netnsrun.Do(c.client, func() error {
			conn, err := net.DialTimeout("tcp", addr, time.Second)
			if err == nil {
				conn.Close()
			}
			return err
		})
		if err == nil {
			t.Errorf("%s: a connection gets through that the chain would drop", addr)
		}
	}
}

// TestBridgeNoStation: what came in at a bridge does not leave by the machine's routes when
// its station was forgotten, behind an instance.
func TestBridgeNoStation(t *testing.T) {
	t.Parallel()
	c := newTestbedWith(t, testbedOptions{bump: true})
	gw := c.nodes["gw"]
	management := netip.MustParseAddr("10.255.0.2")
	c.route(gw.ns, "under0", netip.MustParsePrefix("0.0.0.0/0"), management)
	c.neighbour(gw.ns, "under0", management, c.mac(c.nodes["n2"].ns, "under0").String())
	c.routed("gw", 16)
	c.slow(16, 100*time.Millisecond, 200*time.Millisecond)
	c.apply(toServers(), bump(), element(16, 16))
	out := c.socket(c.nodes["n2"].ns, "under0")
	send := c.udp(c.client, "10.1.0.2:5000", "10.9.0.2:9")
	dropped := func() uint64 {
		counters, err := gw.dp.Counters(t.Context())
		c.must(err)
		return counters.Vports[testbedEdge].Dropped[onpath.DropNoStation] + counters.Vports[16].Dropped[onpath.DropNoStation]
	}
	for until := time.Now().Add(time.Minute); dropped() < 5 && time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		send()
		c.must(gw.dp.ForgetStations()) // of what is in the instance now
	}
	if n := dropped(); n < 5 {
		t.Errorf("%d packets were dropped for want of a station, must be 5 at least", n)
		c.dump()
	}
	for _, p := range packets(out) {
		if len(p) >= 34 && netip.AddrFrom4([4]byte(p[30:34])) == netip.MustParseAddr("10.9.0.2") {
			t.Fatalf("a packet left by the management network: %x", p)
		}
	}
}

// TestBridgeStationsTaken: where others have taken the places of a flow's stations, as in a
// flood, its next packet in either direction leaves all the same, within the same second too.
func TestBridgeStationsTaken(t *testing.T) {
	t.Parallel()
	c := newTestbedWith(t, testbedOptions{bump: true})
	c.routed("gw", 16)
	c.apply(toServers(), bump(), element(16, 16))
	from, to := &net.UDPAddr{IP: net.IPv4(10, 1, 0, 2), Port: 5000}, &net.UDPAddr{IP: net.IPv4(10, 9, 0, 2), Port: 9}
	client, server := c.unsummed(c.client, from), c.unsummed(c.server, to)
	pass := func(n int, src, dst *net.UDPConn, at *net.UDPAddr) {
		t.Helper()
		c.must(c.nodes["gw"].dp.ForgetStations())
		if _, err := src.WriteToUDP([]byte{byte(n)}, at); err != nil {
			t.Fatal(err)
		}
		dst.SetReadDeadline(time.Now().Add(time.Minute))
		if _, _, err := dst.ReadFromUDP(make([]byte, 8)); err != nil {
			c.dump()
			t.Fatalf("packet %d did not arrive: %v", n, err)
		}
	}
	for n := range 20 {
		pass(2*n, client, server, to)
		pass(2*n+1, server, client, from)
	}
}

// TestBridgeTwoTags: frames with two tags cross a bridge as they are, but not past a chain
// that nothing may pass by.
func TestBridgeTwoTags(t *testing.T) {
	t.Parallel()
	c := newTestbedWith(t, testbedOptions{bump: true})
	c.routed("gw", 16)
	match := toServers()
	match.Protocol = []uint8{unix.IPPROTO_UDP}
	from, to := c.socket(c.client, "eth0"), c.socket(c.server, "eth0")
	inner := datagram(1)
	frame := append(append([]byte{}, c.mac(c.server, "eth0")...), c.mac(c.client, "eth0")...)
	frame = append(append(frame, 0x81, 0, 0, 5, 0x81, 0, 0, 6, 8, 0), inner...)
	other := bytes.Clone(frame)
	other[22+9] = unix.IPPROTO_TCP // which no chain selects
	for _, strict := range []bool{false, true} {
		edit := bump()
		c.apply(match, func(cfg *onpath.DatapathConfig) { edit(cfg); cfg.Paths[0].Strict = strict }, element(16, 16))
		crosses := func(frame []byte, must bool) bool {
			_, err := unix.Write(from, frame)
			c.must(err)
			wait := 500 * time.Millisecond
			if must {
				wait = time.Minute
			}
			for until := time.Now().Add(wait); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
				b := make([]byte, 2048)
				for {
					n, _, err := unix.Recvfrom(to, b, unix.MSG_DONTWAIT)
					if err != nil {
						break
					}
					if bytes.Contains(b[:n], frame[22:]) {
						return true
					}
				}
			}
			return false
		}
		if got := crosses(frame, !strict); got == strict {
			t.Errorf("strict %v: that a frame with two tags crosses is %v", strict, got)
		}
		if !crosses(other, true) {
			t.Errorf("strict %v: a frame with two tags that no chain selects does not cross", strict)
		}
	}
	counters, err := c.nodes["gw"].dp.Counters(t.Context())
	c.must(err)
	if n := counters.Vports[testbedEdge].Dropped[onpath.DropUnclassified]; n != 1 {
		t.Errorf("%d frames are counted as dropped, must be 1", n)
	}
}

// TestHost: what this machine's sockets send and get passes a chain. Its device
// checks sources strictly and does not forward.
func TestHost(t *testing.T) {
	t.Parallel()
	for _, noTCX := range []bool{false, true} {
		t.Run(fmt.Sprintf("noTCX=%v", noTCX), func(t *testing.T) {
			c := newTestbedWith(t, testbedOptions{noTCX: noTCX})
			gw := c.nodes["gw"]
			c.in(gw.ns, func() error {
				for _, s := range []string{"ipv4/conf/up1/forwarding=0", "ipv4/conf/up1/rp_filter=1"} {
					if err := setting(s); err != nil {
						return err
					}
				}
				return nil
			})
			c.routed("gw", 16)
			c.bridged("n2", 17, 18)
			host := uplinks(onpath.Uplink{Name: "own", Device: "up1", Attach: onpath.AttachHost})
			c.serve("tcp4", "10.9.0.2:80")
			c.apply(onpath.Match{Dst: []netip.Prefix{netip.MustParsePrefix("10.9.0.2/32")}}, host, element(16, 16), element(17, 18))
			outside := c.client
			c.client = gw.ns
			c.transfer("10.9.0.2:80", 4<<20)
			if a, b := c.out("gw", 16), c.out("n2", 17); a < 2900 || b < 2900 {
				t.Errorf("the instances got %d and %d packets, must be over 2900", a, b)
			}
			c.pathMTU(gw.ns, "10.9.0.2:9", testbedMTU)

			// The transit of the same machine is not its own traffic.
			before := c.out("gw", 16)
			c.client = outside
			c.in(gw.ns, func() error { return setting("ipv4/conf/up1/forwarding=1") })
			c.transfer("10.9.0.2:80", 1000)
			if got := c.out("gw", 16); got != before {
				t.Errorf("instance 16 got %d packets of others", got-before)
			}

			// The other way: the server connects to this machine.
			c.client, c.server = c.server, gw.ns
			c.serve("tcp4", "10.9.0.1:80")
			c.apply(onpath.Match{Dst: []netip.Prefix{netip.MustParsePrefix("10.9.0.1/32")}}, host, element(16, 16), element(17, 18))
			before = c.out("n2", 17)
			c.transfer("10.9.0.1:80", 4<<20)
			if got := c.out("n2", 17) - before; got < 2900 {
				t.Errorf("instance 17 got %d packets, must be over 2900", got)
			}
		})
	}
}

// TestHostUnderlay: where the underlay is the device of this machine's own traffic, tunnel
// packets pass it untouched in both directions, though the chain selects them.
func TestHostUnderlay(t *testing.T) {
	t.Parallel()
	c := newTestbed(t)
	c.routed("n2", 17)
	c.client, c.server = c.nodes["gw"].ns, c.nodes["n2"].ns
	c.serve("tcp4", "10.255.0.2:80")
	c.apply(onpath.Match{Dst: []netip.Prefix{netip.MustParsePrefix("10.255.0.2/32")}},
		uplinks(onpath.Uplink{Name: "own", Device: "under0", Attach: onpath.AttachHost}), element(17, 17))
	c.transfer("10.255.0.2:80", 4<<20)
	if n := c.out("n2", 17); n < 2900 {
		t.Errorf("the instance got %d packets, must be over 2900", n)
	}
	for _, name := range []string{"gw", "n2"} {
		n := c.nodes[name]
		c.must(n.dp.Flows(t.Context(), onpath.FlowFilter{}, func(e onpath.FlowEntry) bool {
			if e.Tuple.Protocol == unix.IPPROTO_UDP {
				t.Errorf("%s has an entry for tunnel packets: %v", name, e.Tuple)
			}
			return true
		}))
	}
}

// TestTap: copies reach inline and mirrored elements, here and elsewhere, and
// nothing comes back or goes on.
func TestTap(t *testing.T) {
	t.Parallel()
	c := newTestbed(t)
	gw := c.nodes["gw"]
	c.routed("gw", 16)
	c.routed("n2", 17)
	c.neighbour(c.client, "eth0", netip.MustParseAddr("10.1.0.1"), "02:00:00:00:00:99") // not the gateway
	tap := uplinks(onpath.Uplink{Name: "copies", Device: "up0", Attach: onpath.AttachTap})
	edit := func(cfg *onpath.DatapathConfig) {
		tap(cfg)
		mirrored(cfg, 0)
		cfg.Paths[0].MTU = 0
	}
	c.instances[0].Mirror = true
	c.apply(toServers(), edit, element(16, 16), element(17, 17))
	came, went := c.socket(c.client, "eth0"), c.socket(c.server, "eth0")
	send := c.udp(c.client, "10.1.0.2:5000", "10.9.0.2:9")
	for range 10 {
		send()
	}
	for until := time.Now().Add(time.Minute); c.out("n2", 17) < 10 && time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
	}
	if a, b := c.out("gw", 16), c.out("n2", 17); a != 10 || b != 10 {
		t.Errorf("the instances got %d and %d copies, must have 10 each", a, b)
		c.dump()
	}
	if a, b := packets(came), packets(went); len(a)+len(b) > 0 {
		t.Errorf("came back: %x; went on: %x", a, b)
	}
	if !c.promiscuous(gw.ns, "up0") {
		t.Error("up0 does not take frames for others")
	}
}

// TestMirrorRepick: another mirror takes over the flows of one that closed.
func TestMirrorRepick(t *testing.T) {
	t.Parallel()
	c := newTestbed(t)
	c.routed("gw", 16)
	c.routed("n2", 17)
	c.routed("gw", 18)
	c.instances[0].Mirror, c.instances[1].Mirror = true, true
	edit := func(cfg *onpath.DatapathConfig) { mirrored(cfg, 0) }
	c.apply(toServers(), edit, element(16, 16, 17, 17), element(18, 18))
	copies := map[onpath.VportID]func() uint64{
		16: func() uint64 { return c.out("gw", 16) }, 17: func() uint64 { return c.out("n2", 17) },
	}
	send := c.udp(c.client, "10.1.0.2:5000", "10.9.0.2:9")
	victim, other := onpath.VportID(0), onpath.VportID(0)
	for until := time.Now().Add(time.Minute); victim == 0 && time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		send()
		if copies[16]() > 0 {
			victim, other = 16, 17
		} else if copies[17]() > 0 {
			victim, other = 17, 16
		}
	}
	if victim == 0 {
		t.Fatal("no mirror got anything")
	}
	for i := range c.instances {
		if c.instances[i].ID == victim {
			c.instances[i].State = onpath.VportClosed
		}
	}
	c.apply(toServers(), edit, element(16, 16, 17, 17), element(18, 18))
	through := c.out("gw", 18)
	for until := time.Now().Add(time.Minute); copies[other]() == 0 && time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		send()
	}
	if copies[other]() == 0 {
		t.Errorf("mirror %d got nothing after %d had closed", other, victim)
		c.dump()
	}
	if c.out("gw", 18) == through {
		t.Error("the inline element got nothing meanwhile")
	}
}

// mirrored makes an element of the testbed's chain a mirror, in both directions.
func mirrored(cfg *onpath.DatapathConfig, element int) {
	for i := range cfg.Groups {
		if _, e, _ := cfg.Groups[i].ID.Split(); e == element {
			cfg.Groups[i].Mode, cfg.Groups[i].None = onpath.ModeMirror, onpath.NoneBypass
		}
	}
}

// udp gives a function that sends one datagram from a fixed port.
func (c *testbed) udp(ns, from, to string) func() {
	c.t.Helper()
	var conn net.Conn
	c.in(ns, func() (err error) {
		local := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(from))
		conn, err = net.DialUDP("udp", local, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(to)))
		return err
	})
	c.t.Cleanup(func() { conn.Close() })
	return func() {
		c.t.Helper()
		if _, err := conn.Write([]byte("datagram")); err != nil {
			c.t.Logf("send: %v", err) // an ICMP error about the one before
		}
	}
}

// echo sends a datagram and waits for it to come back.
func (c *testbed) echo(from, to, addr string) {
	c.t.Helper()
	var far net.PacketConn
	c.in(to, func() (err error) {
		far, err = net.ListenPacket("udp", addr)
		return err
	})
	defer far.Close()
	go func() {
		b := make([]byte, 100)
		for {
			n, a, err := far.ReadFrom(b)
			if err != nil {
				return
			}
			far.WriteTo(b[:n], a)
		}
	}()
	var near net.Conn
	c.in(from, func() (err error) {
		near, err = net.Dial("udp", addr)
		return err
	})
	defer near.Close()
	near.SetDeadline(time.Now().Add(time.Minute))
	if _, err := near.Write([]byte("hello")); err != nil {
		c.t.Errorf("send to %s: %v", addr, err)
	}
	if _, err := near.Read(make([]byte, 100)); err != nil {
		c.t.Errorf("no answer from %s: %v", addr, err)
	}
}

// pathMTU expects that a machine's sockets learn a path's MTU.
func (c *testbed) pathMTU(ns, addr string, want int) {
	c.t.Helper()
	var conn net.Conn
	c.in(ns, func() (err error) {
		conn, err = net.Dial("udp4", addr)
		return err
	})
	defer conn.Close()
	raw, err := conn.(*net.UDPConn).SyscallConn()
	c.must(err)
	got := 0
	for until := time.Now().Add(time.Minute); got != want && time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		raw.Control(func(fd uintptr) {
			unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
			got, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU)
		})
		c.must(err)
		conn.Write(make([]byte, max(1472, want))) // more than fits
	}
	if got != want {
		c.t.Errorf("the MTU of the path to %s is %d, must be %d", addr, got, want)
	}
}

// bridge joins devices by a bridge of the kernel.
func (c *testbed) bridge(ns string, devices ...string) {
	c.t.Helper()
	c.in(ns, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "br0"
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return err
		}
		br, err := netlink.LinkByName("br0")
		if err != nil {
			return err
		}
		for _, dev := range devices {
			l, err := netlink.LinkByName(dev)
			if err != nil {
				return err
			}
			if err := netlink.LinkSetMaster(l, br); err != nil {
				return err
			}
		}
		return netlink.LinkSetUp(br)
	})
}

func (c *testbed) link(ns, dev string) (attrs netlink.LinkAttrs) {
	c.t.Helper()
	c.in(ns, func() error {
		l, err := netlink.LinkByName(dev)
		if err == nil {
			attrs = *l.Attrs()
		}
		return err
	})
	return attrs
}

func (c *testbed) promiscuous(ns, dev string) bool {
	c.t.Helper()
	return c.link(ns, dev).RawFlags&unix.IFF_PROMISC != 0
}

// packets gives what a socket has got of IPv4: machines look for neighbours at any
// time.
func packets(fd int) (list [][]byte) {
	b := make([]byte, 2048)
	for {
		n, _, err := unix.Recvfrom(fd, b, unix.MSG_DONTWAIT)
		if err != nil {
			return list
		}
		if n > 14 && binary.BigEndian.Uint16(b[12:]) == unix.ETH_P_IP {
			list = append(list, bytes.Clone(b[:n]))
		}
	}
}
