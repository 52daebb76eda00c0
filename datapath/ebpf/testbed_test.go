package ebpf_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/datapath/ebpf"
	"github.com/onpath/onpath/internal/netnsrun"
)

// testbed is a real network: a client and a server with the gateway between, a
// second node over the underlay, and instances that Linux itself forwards in.
type testbed struct {
	*world
	client, server string // namespaces
	nodes          map[string]*testbedNode
	instances      []onpath.Vport
	noTCX          bool
	options        testbedOptions
}

type testbedNode struct {
	name, ns string
	underlay netip.Addr
	dp       *ebpf.Driver
}

const (
	testbedEdge = onpath.VportID(1)
	testbedMTU  = 1450 // 1500 less VXLAN over IPv4
)

func newTestbed(t *testing.T) *testbed { return newTestbedWith(t, testbedOptions{}) }

type testbedOptions struct {
	noTCX bool
	// bump: the gateway has no addresses on its uplinks, and client and server are
	// neighbours.
	bump bool
	// arm: the gateway has one uplink, at a switch with the client and the server.
	arm bool
	// vlan: the gateway's uplinks are VLAN devices, and so are those of client and server.
	vlan bool
	// Bytes of IP that the devices carry; default 1500.
	linkMTU, underlayMTU int
}

func newTestbedWith(t *testing.T, o testbedOptions) *testbed {
	w := newWorld(t)
	c := &testbed{world: w, noTCX: o.noTCX, options: o, client: w.ns("client"), server: w.ns("server"), nodes: map[string]*testbedNode{}}
	for i, name := range []string{"gw", "n2"} {
		n := &testbedNode{name: name, ns: w.ns(name), underlay: netip.AddrFrom4([4]byte{10, 255, 0, byte(i + 1)})}
		w.forwarding(n.ns)
		c.nodes[name] = n
	}
	gw := c.nodes["gw"].ns
	switch {
	case o.arm:
		c.oneArm(gw)
	case o.bump:
		w.pair(end{ns: c.client, dev: "eth0", addrs: []string{"10.1.0.2/8", "2001:db8:1::2/32"}}, end{ns: gw, dev: "up0", silent: true})
		w.pair(end{ns: c.server, dev: "eth0", addrs: []string{"10.9.0.2/8", "2001:db8:9::2/32"}}, end{ns: gw, dev: "up1", silent: true})
	default:
		c.routers(gw)
	}
	w.pair(end{ns: gw, dev: "under0", addrs: []string{"10.255.0.1/24"}, mtu: o.underlayMTU},
		end{ns: c.nodes["n2"].ns, dev: "under0", addrs: []string{"10.255.0.2/24"}, mtu: o.underlayMTU})
	for _, n := range c.nodes {
		n.dp = c.open(n)
		t.Cleanup(func() {
			if err := n.dp.Remove(context.Background()); err != nil {
				t.Errorf("Remove on %s: %v", n.name, err)
			}
			n.dp.Close()
		})
	}
	return c
}

// oneArm gives the gateway both subnets at one device.
func (c *testbed) oneArm(gw string) {
	c.t.Helper()
	between := c.ns("switch")
	for dev, e := range map[string]end{
		"p0": {ns: gw, dev: "up0", addrs: []string{"10.1.0.1/24", "10.9.0.1/24"}},
		"p1": {ns: c.client, dev: "eth0", addrs: []string{"10.1.0.2/24"}},
		"p2": {ns: c.server, dev: "eth0", addrs: []string{"10.9.0.2/24"}},
	} {
		c.pair(e, end{ns: between, dev: dev, silent: true})
	}
	c.bridge(between, "p0", "p1", "p2")
	c.route(c.client, "eth0", netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr("10.1.0.1"))
	c.route(c.server, "eth0", netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr("10.9.0.1"))
}

// routers gives the gateway a subnet with the client and one with the server.
func (c *testbed) routers(gw string) {
	c.t.Helper()
	mtu := c.options.linkMTU
	pair := c.pair
	if c.options.vlan {
		pair = c.pairTagged
	}
	pair(end{ns: c.client, dev: "eth0", addrs: []string{"10.1.0.2/24", "2001:db8:1::2/64"}, mtu: mtu},
		end{ns: gw, dev: "up0", addrs: []string{"10.1.0.1/24", "2001:db8:1::1/64"}, mtu: mtu})
	pair(end{ns: c.server, dev: "eth0", addrs: []string{"10.9.0.2/24", "2001:db8:9::2/64"}, mtu: mtu},
		end{ns: gw, dev: "up1", addrs: []string{"10.9.0.1/24", "2001:db8:9::1/64"}, mtu: mtu})
	for _, d := range []struct{ ns, gw4, gw6 string }{
		{c.client, "10.1.0.1", "2001:db8:1::1"}, {c.server, "10.9.0.1", "2001:db8:9::1"},
	} {
		c.route(d.ns, "eth0", netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr(d.gw4))
		c.route(d.ns, "eth0", netip.MustParsePrefix("::/0"), netip.MustParseAddr(d.gw6))
	}
}

// pairTagged makes a veth pair with a VLAN device at each end.
func (c *testbed) pairTagged(a, b end) {
	c.t.Helper()
	c.pair(end{ns: a.ns, dev: "wire-" + a.dev, silent: true}, end{ns: b.ns, dev: "wire-" + b.dev, silent: true})
	for _, e := range []end{a, b} {
		err := netnsrun.Do(e.ns, func() error {
			l, err := netlink.LinkByName("wire-" + e.dev)
			if err != nil {
				return err
			}
			attrs := netlink.NewLinkAttrs()
			attrs.Name, attrs.ParentIndex = e.dev, l.Attrs().Index
			return netlink.LinkAdd(&netlink.Vlan{LinkAttrs: attrs, VlanId: 5})
		})
		if err != nil {
			c.t.Skipf("needs a kernel with VLAN devices: %v", err)
		}
		c.setUp(e)
	}
}

func (c *testbed) open(n *testbedNode) *ebpf.Driver {
	c.t.Helper()
	return c.openWith(n, 1<<16)
}

// openWith opens a node's data path with a table of so many established entries.
func (c *testbed) openWith(n *testbedNode, flows int) *ebpf.Driver {
	c.t.Helper()
	var d *ebpf.Driver
	c.in(n.ns, func() (err error) {
		d, err = ebpf.New(ebpf.Options{Name: c.name + "-" + n.name, NoTCX: c.noTCX, Flows: flows})
		return err
	})
	return d
}

// routed makes an instance that is an IP hop: Linux forwards in it.
func (c *testbed) routed(node string, id onpath.VportID, own ...string) {
	c.t.Helper()
	ns := c.ns(fmt.Sprintf("i%d", id))
	c.forwarding(ns)
	mtu := c.interfaceMTU()
	c.pair(end{ns: c.nodes[node].ns, dev: onpath.DeviceName(id), mac: onpath.HostMAC(id), silent: true, mtu: mtu},
		end{ns: ns, dev: "eth0", mac: onpath.InstanceMAC(id), addrs: own, mtu: mtu})
	for _, r := range []struct{ to, via string }{{"0.0.0.0/0", "169.254.1.1"}, {"::/0", "fe80::1"}} {
		via := netip.MustParseAddr(r.via)
		c.neighbour(ns, "eth0", via, onpath.HostMAC(id))
		c.route(ns, "eth0", netip.MustParsePrefix(r.to), via)
	}
	c.instances = append(c.instances, c.vport(node, id, id, onpath.Routed))
}

// tunnelMTU is what fits into a tunnel, interfaceMTU what the planner gives the
// interfaces of instances.
func (c *testbed) tunnelMTU() int { return cmp.Or(c.options.underlayMTU, 1500) - 50 }

func (c *testbed) interfaceMTU() int { return max(1500, c.tunnelMTU()) }

// bridged makes an instance that is a Linux bridge.
func (c *testbed) bridged(node string, id, back onpath.VportID) {
	c.t.Helper()
	ns := c.ns(fmt.Sprintf("i%d", id))
	for dev, v := range map[string]onpath.VportID{"eth0": id, "eth1": back} {
		c.pair(end{ns: c.nodes[node].ns, dev: onpath.DeviceName(v), mac: onpath.HostMAC(v), silent: true},
			end{ns: ns, dev: dev, mac: onpath.InstanceMAC(v), silent: true})
	}
	c.bridge(ns, "eth0", "eth1")
	c.instances = append(c.instances, c.vport(node, id, back, onpath.Bridged), c.vport(node, back, id, onpath.Bridged))
}

func (c *testbed) vport(node string, id, other onpath.VportID, how onpath.ContainerAttach) onpath.Vport {
	return onpath.Vport{
		ID: id, Kind: onpath.VportInstance, State: onpath.VportUp, Instance: fmt.Sprintf("town/i%d", id), Tenant: "town",
		Other: other, MAC: onpath.InstanceMAC(id), HostMAC: onpath.HostMAC(id), Attach: how, Entry: testbedEdge, Peer: node,
	}
}

// chainOf applies one chain of elements, each a list of vport pairs (in, out).
func (c *testbed) chainOf(match onpath.Match, elements ...[][2]onpath.VportID) {
	c.t.Helper()
	c.apply(match, nil, elements...)
}

func (c *testbed) apply(match onpath.Match, edit func(*onpath.DatapathConfig), elements ...[][2]onpath.VportID) {
	c.t.Helper()
	for name, n := range c.nodes {
		cfg := c.config(name, match, elements)
		if edit != nil {
			edit(cfg)
		}
		if err := n.dp.Apply(c.t.Context(), cfg); err != nil {
			c.t.Fatalf("Apply on %s: %v", name, err)
		}
	}
}

func (c *testbed) config(name string, match onpath.Match, elements [][][2]onpath.VportID) *onpath.DatapathConfig {
	cfg := &onpath.DatapathConfig{
		Node: name, Generation: 1, Underlay: onpath.Underlay{Address: c.nodes[name].underlay},
		Paths: []onpath.Path{{ID: 1, Chain: "town/c", Tenant: "town", MTU: testbedMTU}},
	}
	for other, n := range c.nodes {
		if other != name {
			cfg.Peers = append(cfg.Peers, onpath.Peer{Node: other, Address: n.underlay, Port: onpath.DefaultTunnelPort, Secret: 77})
		}
	}
	if name == "gw" {
		cfg.Edge = &onpath.Edge{Vport: testbedEdge, Table: 1, Uplinks: []onpath.Uplink{
			{Name: "access", Device: "up0", Attach: onpath.AttachRouter}, {Name: "core", Device: "up1", Attach: onpath.AttachRouter},
		}}
	} else {
		cfg.Vports = append(cfg.Vports, onpath.Vport{ID: testbedEdge, Kind: onpath.VportRemote, State: onpath.VportUp, Peer: "gw"})
	}
	for _, v := range c.instances {
		if v.Peer != name {
			v = onpath.Vport{ID: v.ID, Kind: onpath.VportRemote, State: v.State, Peer: v.Peer}
		} else {
			v.Peer = ""
		}
		cfg.Vports = append(cfg.Vports, v)
	}
	exit := onpath.Action{Kind: onpath.ActionExit}
	back := match
	back.Src, back.Dst, back.SrcPorts, back.DstPorts = match.Dst, match.Src, match.DstPorts, match.SrcPorts
	classify := onpath.Table{ID: 1, Miss: exit}
	for i, dir := range []onpath.Match{match, back} {
		first := 0
		if i == 1 {
			first = len(elements) - 1
		}
		classify.Rules = append(classify.Rules, onpath.Rule{
			Match: dir, Path: 1, Reverse: i == 1,
			Action: onpath.Action{Kind: onpath.ActionGroup, Group: onpath.GroupOf(1, first, i == 1)},
		})
	}
	cfg.Tables = append(cfg.Tables, classify)
	for i, members := range elements {
		for _, reverse := range []bool{false, true} {
			g := onpath.Group{
				ID: onpath.GroupOf(1, i, reverse), Path: 1, Reverse: reverse, Mode: onpath.ModeInline,
				Then: onpath.TableOf(1, i, reverse), Back: onpath.TableOf(1, i, !reverse),
				Lost: onpath.LostRepick, None: onpath.NoneDrop,
			}
			for _, m := range members {
				side := m[0]
				if reverse {
					side = m[1]
				}
				g.Members = append(g.Members, onpath.Member{Vport: side, Key: uint32(m[0]), Weight: 1})
			}
			cfg.Groups = append(cfg.Groups, g)
			t := onpath.Table{ID: onpath.TableOf(1, i, reverse), Miss: exit}
			next := i + 1
			if reverse {
				next = i - 1
			}
			if next >= 0 && next < len(elements) {
				t.Miss = onpath.Action{Kind: onpath.ActionGroup, Group: onpath.GroupOf(1, next, reverse)}
			}
			cfg.Tables = append(cfg.Tables, t)
		}
	}
	return cfg
}

// serve accepts TCP connections in the server's namespace and sends back the
// hash of what came, after the other side has closed.
func (c *testbed) serve(network, addr string) {
	c.t.Helper()
	c.accept(network, addr, func(conn net.Conn) {
		h := sha256.New()
		io.Copy(h, conn)
		conn.Write(h.Sum(nil))
	})
}

// accept has each TCP connection in the server's namespace served.
func (c *testbed) accept(network, addr string, serve func(net.Conn)) {
	c.t.Helper()
	var l net.Listener
	c.in(c.server, func() (err error) {
		l, err = net.Listen(network, addr)
		return err
	})
	c.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				serve(conn)
			}()
		}
	}()
}

// transfer sends n bytes to the server, and fails unless they arrive intact. It
// gives the client's local address.
func (c *testbed) transfer(addr string, n int) netip.AddrPort {
	c.t.Helper()
	return c.stream(addr, func(sent int) int { return n - sent })
}

// stream sends to the server as many bytes as more still wants, until that is 0,
// and fails unless they arrive intact.
func (c *testbed) stream(addr string, more func(sent int) int) netip.AddrPort {
	c.t.Helper()
	var conn net.Conn
	err := netnsrun.Do(c.client, func() (err error) {
		conn, err = net.DialTimeout("tcp", addr, time.Minute)
		return err
	})
	if err != nil {
		c.t.Errorf("connect to %s: %v", addr, err)
		c.dump()
		c.t.FailNow()
	}
	defer conn.Close()
	chunk := make([]byte, 64<<10)
	for i := range chunk {
		chunk[i] = byte(i*7 + i>>9)
	}
	sum, sent := sha256.New(), 0
	for n := more(0); n > 0; n = more(sent) {
		b := chunk[:min(n, len(chunk))]
		conn.SetDeadline(time.Now().Add(time.Minute))
		if _, err := conn.Write(b); err != nil {
			c.t.Errorf("send to %s: %v", addr, err)
			break
		}
		sum.Write(b)
		sent += len(b)
	}
	conn.(*net.TCPConn).CloseWrite()
	got, err := io.ReadAll(conn)
	if err != nil || !bytes.Equal(got, sum.Sum(nil)) {
		c.t.Errorf("%d bytes to %s did not arrive intact (%v)", sent, addr, err)
		c.dump()
		c.t.FailNow()
	}
	return conn.LocalAddr().(*net.TCPAddr).AddrPort()
}

// dump logs counters and entries.
func (c *testbed) dump() {
	for name, n := range c.nodes {
		counters, err := n.dp.Counters(context.Background())
		if err != nil {
			c.t.Log(err)
			continue
		}
		for id, v := range counters.Vports {
			c.t.Logf("%s: vport %d in %v out %v dropped %v", name, id, v.In, v.Out, v.Dropped)
		}
		n.dp.Flows(context.Background(), onpath.FlowFilter{}, func(e onpath.FlowEntry) bool {
			c.t.Logf("%s: %d %v → %s %d packets %d", name, e.Vport, e.Tuple, e.Kind, e.Next, e.Packets)
			return true
		})
	}
}

func toServers() onpath.Match {
	return onpath.Match{Dst: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16"), netip.MustParsePrefix("2001:db8:9::/48")}}
}

func element(pairs ...onpath.VportID) [][2]onpath.VportID {
	var out [][2]onpath.VportID
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, [2]onpath.VportID{pairs[i], pairs[i+1]})
	}
	return out
}

func (c *testbed) out(node string, id onpath.VportID) uint64 {
	c.t.Helper()
	counters, err := c.nodes[node].dp.Counters(c.t.Context())
	c.must(err)
	return counters.Vports[id].Out.Packets
}
