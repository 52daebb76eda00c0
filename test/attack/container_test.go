package attack_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/ociimage"
	"github.com/onpath/onpath/demo"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/internal/testprogram"
	"github.com/onpath/onpath/lab"
)

const forgedMark = "forged:"

// stage is a lab with a stranger's container, and neighbours.
type stage struct {
	*demo.Testbed
	t    *testing.T
	in   *onpath.Instance // the stranger's
	shop *onpath.Instance
}

func newStage(t *testing.T) *stage {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root for network namespaces and containers")
	}
	topology, err := lab.ParseFile("testdata/lab.yaml")
	if err != nil {
		t.Fatal(err)
	}
	topology.Name = fmt.Sprintf("attack-%d", os.Getpid())
	dir := t.TempDir()
	spec := demo.TestbedSpec{Topology: topology, Bin: testprogram.Path(t), Dir: dir, Progress: func(s string) { t.Log(s) },
		Server: demo.TestbedNode{Host: "server", Address: "10.255.0.10"},
		Nodes:  []demo.TestbedNode{{Name: "gw1", Host: "gw1", Address: "10.255.0.1", Cloudlet: "pop"}}}
	s := &stage{t: t}
	if s.Testbed, err = demo.SetUp(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the node said:\n%s", s.Log("gw1"))
		}
		if err := s.TearDown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	objects, err := os.ReadFile("testdata/objects.yaml")
	file := filepath.Join(dir, "objects.yaml")
	if err == nil {
		err = os.WriteFile(file, objects, 0o600)
	}
	if err == nil {
		err = ociimage.WriteProgram(filepath.Join(dir, "program"), s.Bin())
	}
	if err == nil {
		err = s.Apply(t.Context(), file)
	}
	if err == nil { // a disk that can be filled
		_, err = s.Exec(t.Context(), "gw1", "mount", "-o", "remount,size=400m", "/var/lib/onpath")
	}
	if err == nil {
		err = s.WaitActive(t.Context(), "stranger/own", time.Minute, nil)
	}
	if err == nil {
		err = s.WaitFor(t.Context(), "both instances are ready", time.Minute, s.ready)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *stage) ready() (bool, error) {
	list, err := s.Instances(s.t.Context())
	for i := range list {
		switch in := &list[i]; {
		case in.Status.State != onpath.InstanceReady:
		case in.Metadata.Tenant == "stranger":
			s.in = in
		default:
			s.shop = in
		}
	}
	return s.in != nil && s.shop != nil, err
}

// tries has the stranger's container attack.
func (s *stage) tries(spec demo.HostileSpec) (r demo.HostileResult) {
	s.t.Helper()
	text, err := json.Marshal(spec)
	if err != nil {
		s.t.Fatal(err)
	}
	out, err := s.Onpath(s.t.Context(), "exec", "stranger/"+s.in.Metadata.Name, "--", "/program", "demo", "hostile", string(text))
	if err == nil {
		err = json.Unmarshal(out, &r)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	for _, what := range r.Through {
		s.t.Errorf("came through: %s", what)
	}
	return r
}

// inHost is netnsrun.Do in a host of the lab.
func (s *stage) inHost(host string, fn func() error) {
	s.t.Helper()
	if err := netnsrun.Do(s.Lab.NetNS(host), fn); err != nil {
		s.t.Fatal(err)
	}
}

// listen opens what others reach, and the stranger must not.
func (s *stage) listen(host, network, address string) {
	s.t.Helper()
	s.inHost(host, func() error {
		l, err := net.Listen(network, address)
		if err == nil {
			s.t.Cleanup(func() { l.Close() })
		}
		return err
	})
}

// reached fails unless an address answers in a host.
func (s *stage) reached(host, network, address string) {
	s.t.Helper()
	s.inHost(host, func() error {
		c, err := net.DialTimeout(network, address, 5*time.Second)
		if err == nil {
			c.Close()
		}
		return err
	})
}

// TestFromContainer: whatever a stranger's container tries against its machine, the server
// and its neighbours is refused or contained, and the neighbours lose nothing meanwhile.
func TestFromContainer(t *testing.T) {
	s := newStage(t)
	ctx := t.Context()
	if _, err := s.Exec(ctx, "gw1", "ip", "address", "add", "169.254.169.254/32", "dev", "lo"); err != nil {
		t.Fatal(err)
	}
	s.listen("gw1", "tcp", ":2222")
	s.listen("gw1", "unix", "@onpath-attack")
	s.listen("neighbour", "tcp", ":80")
	s.reached("client", "tcp", "10.9.0.3:80")
	s.reached("client", "tcp", "10.9.0.1:2222")
	s.reached("gw1", "tcp", "169.254.169.254:2222")
	s.reached("gw1", "unix", "@onpath-attack")
	s.reached("gw1", "tcp", "10.255.0.10:7443")

	s.inHost("neighbour", func() error {
		c, err := net.ListenPacket("udp", "10.9.0.3:9000")
		if err != nil {
			return err
		}
		t.Cleanup(func() { c.Close() })
		go echo(c)
		return nil
	})
	var stop []func() map[string]int
	for host, devices := range map[string][]string{"gw1": {"access", "core", "underlay"}, "client": {"eth0"},
		"neighbour": {"eth0"}, "server": {"underlay"}} {
		end, err := demo.Hear(s.Lab.NetNS(host), forgedMark, devices...)
		if err != nil {
			t.Fatal(err)
		}
		stop = append(stop, end)
	}
	s.inHost("client", func() error { // is heard at four devices
		c, err := net.Dial("udp", "10.9.0.3:9")
		if err == nil {
			_, err = c.Write([]byte(forgedMark + "ordinary "))
			c.Close()
		}
		return err
	})
	streaming, end := context.WithCancel(ctx)
	stream := make(chan demo.NumbersResult, 1)
	go func() {
		var r demo.NumbersResult
		err := netnsrun.Do(s.Lab.NetNS("client"), func() (err error) {
			r, err = demo.RunNumbers(streaming, demo.NumbersSpec{To: "10.9.0.3:9000", Rate: 500, For: 5 * time.Minute})
			return err
		})
		if err != nil {
			t.Error(err)
		}
		stream <- r
	}()

	t.Run("escapes", func(t *testing.T) {
		s.t = t
		if r := s.tries(demo.HostileSpec{Escape: true}); r.Tried < 35 {
			t.Errorf("only %d ways out were tried", r.Tried)
		}
	})
	t.Run("reach", func(t *testing.T) {
		s.t = t
		s.tries(demo.HostileSpec{Reach: []string{"10.255.0.1:2222", "10.9.0.1:2222", "10.1.0.1:2222", "[fd09::1]:2222", "169.254.1.1:2222",
			"169.254.169.254:2222", "10.255.0.10:7443", "10.9.0.3:80", "[fd09::3]:80", "@onpath-attack",
			net.JoinHostPort(s.shop.Spec.Addresses[0].Addr().String(), "80")}})
	})
	frames := forgedFrames(t, s.in)
	t.Run("packets", func(t *testing.T) {
		s.t = t
		spec := demo.HostileSpec{Each: 10}
		for _, f := range frames {
			spec.Frames = append(spec.Frames, f)
		}
		if r := s.tries(spec); r.Sent != 10*len(frames) {
			t.Errorf("only %d packets were sent", r.Sent)
		}
	})
	t.Run("fork bomb", func(t *testing.T) {
		s.t = t
		if r := s.tries(demo.HostileSpec{Fork: true}); r.Processes == 0 || r.Processes > 2048 || r.Stopped == "" {
			t.Errorf("%+v", r)
		}
	})
	t.Run("full disk", func(t *testing.T) {
		s.t = t
		text, _ := json.Marshal(demo.HostileSpec{Fill: "/full"})
		name := "stranger/" + s.in.Metadata.Name
		if out, err := s.Onpath(t.Context(), "exec", name, "--", "/program", "demo", "hostile", string(text)); err == nil {
			t.Errorf("it was let go on: %s", out)
		}
		err := s.WaitFor(t.Context(), "its instance is anew", time.Minute, func() (bool, error) {
			list, err := s.Instances(t.Context())
			return slices.ContainsFunc(list, func(i onpath.Instance) bool {
				return i.Metadata.Tenant == "stranger" && i.Status.Restarts > 0 && i.Status.State == onpath.InstanceReady
			}), err
		})
		if out, _ := s.Onpath(t.Context(), "events", "-o", "json"); err != nil || !strings.Contains(string(out), "the node's disk is full") {
			t.Errorf("%v\n%s", err, out)
		}
	})

	end()
	if r := <-stream; r.Lost() != 0 || r.Sent == 0 {
		t.Errorf("the neighbours lost %d of %d datagrams", r.Lost(), r.Sent)
	}
	ordinary := 0
	for _, f := range stop {
		for what, n := range f() {
			name, _, _ := strings.Cut(what, " at ")
			if name == "ordinary" { // once on its way, and perhaps in the error that answers it
				ordinary++
			} else {
				t.Errorf("%d packets got out: %s", n, what)
			}
		}
	}
	if ordinary != 4 {
		t.Errorf("an ordinary packet was heard at %d devices", ordinary)
	}
	t.Logf("%d kinds of packets", len(frames))
	out, err := s.Onpath(ctx, "audit", "--tenant", "stranger", "-o", "json")
	if err != nil || !strings.Contains(string(out), `"what": "exec"`) {
		t.Errorf("%v\n%s", err, out)
	}
	var node onpath.Node
	if err := s.Get(ctx, &node, "node", "gw1"); err != nil || !node.Status.Ready {
		t.Errorf("the node is not ready: %v", err)
	}
}

func echo(c net.PacketConn) {
	b := make([]byte, 2048)
	for {
		n, from, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		_, _ = c.WriteTo(b[:n], from)
	}
}

// forgedFrames are frames that an instance has no business to send, by name.
func forgedFrames(t *testing.T, in *onpath.Instance) map[string][]byte {
	t.Helper()
	mac := func(s string) net.HardwareAddr {
		m, err := net.ParseMAC(s)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	own, gateway, other := mac(onpath.InstanceMAC(in.Spec.Vport)), mac(onpath.HostMAC(in.Spec.Vport)), mac("02:01:02:03:04:05")
	all := mac("ff:ff:ff:ff:ff:ff")
	ip := func(s string) net.IP { return net.IP(netip.MustParseAddr(s).AsSlice()) }
	client, neighbour, node, server, metadata := ip("10.1.0.11"), ip("10.9.0.3"), ip("10.255.0.1"), ip("10.255.0.10"), ip("169.254.169.254")
	mine := net.IP(in.Spec.Addresses[0].Addr().AsSlice())
	client6, neighbour6 := ip("fd01::11"), ip("fd09::3")
	eth := func(to, from net.HardwareAddr, kind layers.EthernetType) *layers.Ethernet {
		return &layers.Ethernet{DstMAC: to, SrcMAC: from, EthernetType: kind}
	}
	v4 := func(src, dst net.IP, p layers.IPProtocol) *layers.IPv4 {
		return &layers.IPv4{Version: 4, TTL: 64, SrcIP: src, DstIP: dst, Protocol: p}
	}
	v6 := func(src, dst net.IP, p layers.IPProtocol, limit uint8) *layers.IPv6 {
		return &layers.IPv6{Version: 6, HopLimit: limit, SrcIP: src, DstIP: dst, NextHeader: p}
	}
	udp := func(n gopacket.NetworkLayer, src, dst layers.UDPPort) *layers.UDP {
		u := &layers.UDP{SrcPort: src, DstPort: dst}
		_ = u.SetNetworkLayerForChecksum(n)
		return u
	}
	out := map[string][]byte{}
	add := func(name string, list ...gopacket.SerializableLayer) {
		t.Helper()
		b := gopacket.NewSerializeBuffer()
		list = append(list, gopacket.Payload(forgedMark+name+" "))
		if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, list...); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		out[name] = b.Bytes()
	}
	datagram := func(name string, to, from net.HardwareAddr, src, dst net.IP, sport, dport layers.UDPPort,
		more ...gopacket.SerializableLayer) {
		t.Helper()
		n := v4(src, dst, layers.IPProtocolUDP)
		list := []gopacket.SerializableLayer{eth(to, from, layers.EthernetTypeIPv4), n, udp(n, sport, dport)}
		add(name, append(list, more...)...)
	}
	segment := func(name string, src, dst net.IP, t layers.TCP) {
		n := v4(src, dst, layers.IPProtocolTCP)
		_ = t.SetNetworkLayerForChecksum(n)
		add(name, eth(gateway, own, layers.EthernetTypeIPv4), n, &t)
	}
	datagram("neighbour-as-source", gateway, own, neighbour, client, 9000, 9001)
	datagram("client-as-source", gateway, own, client, neighbour, 9001, 9000)
	datagram("node-as-source", gateway, own, node, client, 53, 9001)
	datagram("server-as-source", gateway, own, server, node, 7443, 9001)
	datagram("another-machine", gateway, other, neighbour, client, 9000, 9001)
	datagram("to-everybody", all, own, neighbour, client, 9000, 9001)
	datagram("from-the-gateway", gateway, gateway, neighbour, client, 9000, 9001)
	datagram("own-to-neighbour", gateway, own, mine, neighbour, 9001, 9000)
	datagram("own-to-node", gateway, own, mine, node, 9001, 2222)
	datagram("own-to-metadata", gateway, own, mine, metadata, 9001, 80)
	datagram("metadata-as-source", gateway, own, metadata, client, 80, 9001)
	datagram("loopback-as-source", gateway, own, ip("127.0.0.1"), node, 9001, 2222)
	datagram("to-loopback", gateway, own, mine, ip("127.0.0.1"), 9001, 2222)
	datagram("nobody-as-source", gateway, own, ip("0.0.0.0"), client, 9001, 9000)
	datagram("multicast", mac("01:00:5e:00:00:01"), own, mine, ip("224.0.0.1"), 9001, 9000)
	datagram("broadcast", all, own, mine, ip("255.255.255.255"), 9001, 9000)
	datagram("DHCP-offer", all, own, ip("10.9.0.1"), ip("255.255.255.255"), 67, 68)
	inner := v4(neighbour, client, layers.IPProtocolUDP)
	tunnelled := []gopacket.SerializableLayer{&layers.VXLAN{ValidIDFlag: true, VNI: uint32(in.Spec.Vport)},
		eth(gateway, own, layers.EthernetTypeIPv4), inner, udp(inner, 9000, 9001)}
	datagram("tunnel-to-node", gateway, own, mine, node, 9001, onpath.DefaultTunnelPort, tunnelled...)
	datagram("tunnel-as-server", gateway, own, server, node, onpath.DefaultTunnelPort, onpath.DefaultTunnelPort, tunnelled...)
	datagram("tunnel-to-gateway", gateway, own, mine, ip("169.254.1.1"), 9001, onpath.DefaultTunnelPort, tunnelled...)
	segment("reset-of-neighbour", neighbour, client, layers.TCP{SrcPort: 80, DstPort: 40000, RST: true, ACK: true, Seq: 1, Ack: 1})
	segment("handshake-as-client", client, neighbour, layers.TCP{SrcPort: 40000, DstPort: 80, SYN: true, Seq: 1, Window: 1000})
	segment("reset-of-session", server, node, layers.TCP{SrcPort: 7443, DstPort: 40000, RST: true, ACK: true, Seq: 1, Ack: 1})
	add("redirect", eth(gateway, own, layers.EthernetTypeIPv4), v4(ip("10.1.0.1"), client, layers.IPProtocolICMPv4),
		&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(layers.ICMPv4TypeRedirect, 1)}, v4(client, neighbour, layers.IPProtocolUDP))
	quoted := v4(client, neighbour, layers.IPProtocolUDP)
	add("unreachable", eth(gateway, own, layers.EthernetTypeIPv4), v4(neighbour, client, layers.IPProtocolICMPv4),
		&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(layers.ICMPv4TypeDestinationUnreachable, 3)}, quoted, udp(quoted, 9001, 9000))
	part := v4(neighbour, client, layers.IPProtocolUDP)
	part.Flags, part.Id = layers.IPv4MoreFragments, 77
	add("fragment", eth(gateway, own, layers.EthernetTypeIPv4), part, udp(part, 9000, 9001))
	rest := *part
	rest.Flags, rest.FragOffset = 0, 100
	add("later-fragment", eth(gateway, own, layers.EthernetTypeIPv4), &rest)
	add("IP-in-IP", eth(gateway, own, layers.EthernetTypeIPv4), v4(mine, client, layers.IPProtocolIPv4), inner, udp(inner, 9000, 9001))
	routed := v4(neighbour, client, layers.IPProtocolUDP)
	routed.Options = []layers.IPv4Option{{OptionType: 131, OptionLength: 7, OptionData: append([]byte{4}, ip("10.1.0.1")...)}}
	add("source-route", eth(gateway, own, layers.EthernetTypeIPv4), routed, udp(routed, 9000, 9001))
	add("VLAN", eth(gateway, own, layers.EthernetTypeDot1Q), &layers.Dot1Q{VLANIdentifier: 1, Type: layers.EthernetTypeIPv4},
		inner, udp(inner, 9000, 9001))
	for name, a := range map[string]net.IP{"ARP-as-neighbour": neighbour, "ARP-as-router": ip("10.9.0.1"),
		"ARP-as-next-hop": ip("169.254.1.1")} {
		for kind, op := range map[string]uint16{"": layers.ARPReply, "-asks": layers.ARPRequest} {
			add(name+kind, eth(all, own, layers.EthernetTypeARP), &layers.ARP{AddrType: layers.LinkTypeEthernet,
				Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4, Operation: op,
				SourceHwAddress: own, SourceProtAddress: a.To4(),
				DstHwAddress: all, DstProtAddress: a.To4()})
		}
	}
	n := v6(neighbour6, client6, layers.IPProtocolUDP, 64)
	add("neighbour-as-source-6", eth(gateway, own, layers.EthernetTypeIPv6), n, udp(n, 9000, 9001))
	discovery := func(name string, src, dst net.IP, kind uint8, message gopacket.SerializableLayer) {
		n := v6(src, dst, layers.IPProtocolICMPv6, 255)
		c := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(kind, 0)}
		_ = c.SetNetworkLayerForChecksum(n)
		add(name, eth(mac("33:33:00:00:00:01"), own, layers.EthernetTypeIPv6), n, c, message)
	}
	here := layers.ICMPv6Options{{Type: layers.ICMPv6OptTargetAddress, Data: own}}
	everybody, fromLink := ip("ff02::1"), ip("fe80::1")
	discovery("ND-as-neighbour", neighbour6, everybody, layers.ICMPv6TypeNeighborAdvertisement,
		&layers.ICMPv6NeighborAdvertisement{Flags: 0x60, TargetAddress: neighbour6, Options: here})
	discovery("ND-to-client", neighbour6, client6, layers.ICMPv6TypeNeighborAdvertisement,
		&layers.ICMPv6NeighborAdvertisement{Flags: 0x60, TargetAddress: neighbour6, Options: here})
	discovery("router", fromLink, everybody, layers.ICMPv6TypeRouterAdvertisement,
		&layers.ICMPv6RouterAdvertisement{HopLimit: 64, RouterLifetime: 1800})
	discovery("redirect-6", fromLink, client6, layers.ICMPv6TypeRedirect,
		&layers.ICMPv6Redirect{TargetAddress: fromLink, DestinationAddress: neighbour6})
	add("spanning-tree", eth(mac("01:80:c2:00:00:00"), own, layers.EthernetTypeLLC))
	add("LLDP", eth(mac("01:80:c2:00:00:0e"), own, layers.EthernetTypeLinkLayerDiscovery))
	return out
}
