package ebpf_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/datapath/ebpf"
	"github.com/onpath/onpath/internal/netnsrun"
)

// town is a real network: a client and a server with the gateway between, a
// second node over the underlay, and instances that Linux itself forwards in.
type town struct {
	*world
	client, server string // namespaces
	nodes          map[string]*townNode
	instances      []onpath.Vport
	noTCX          bool
}

type townNode struct {
	name, ns string
	underlay netip.Addr
	dp       *ebpf.Driver
}

const (
	townEdge = onpath.VportID(1)
	townMTU  = 1450 // 1500 less VXLAN over IPv4
)

func newTown(t *testing.T) *town { return newTownWith(t, false) }

func newTownWith(t *testing.T, noTCX bool) *town {
	w := newWorld(t)
	c := &town{world: w, noTCX: noTCX, client: w.ns("client"), server: w.ns("server"), nodes: map[string]*townNode{}}
	for i, name := range []string{"gw", "n2"} {
		n := &townNode{name: name, ns: w.ns(name), underlay: netip.AddrFrom4([4]byte{10, 255, 0, byte(i + 1)})}
		w.forwarding(n.ns)
		c.nodes[name] = n
	}
	gw := c.nodes["gw"].ns
	w.pair(end{ns: c.client, dev: "eth0", addrs: []string{"10.1.0.2/24", "2001:db8:1::2/64"}},
		end{ns: gw, dev: "up0", addrs: []string{"10.1.0.1/24", "2001:db8:1::1/64"}})
	w.pair(end{ns: c.server, dev: "eth0", addrs: []string{"10.9.0.2/24", "2001:db8:9::2/64"}},
		end{ns: gw, dev: "up1", addrs: []string{"10.9.0.1/24", "2001:db8:9::1/64"}})
	for _, d := range []struct{ ns, gw4, gw6 string }{
		{c.client, "10.1.0.1", "2001:db8:1::1"}, {c.server, "10.9.0.1", "2001:db8:9::1"},
	} {
		w.route(d.ns, "eth0", netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr(d.gw4))
		w.route(d.ns, "eth0", netip.MustParsePrefix("::/0"), netip.MustParseAddr(d.gw6))
	}
	w.pair(end{ns: gw, dev: "under0", addrs: []string{"10.255.0.1/24"}},
		end{ns: c.nodes["n2"].ns, dev: "under0", addrs: []string{"10.255.0.2/24"}})
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

func (c *town) open(n *townNode) *ebpf.Driver {
	c.t.Helper()
	var d *ebpf.Driver
	c.in(n.ns, func() (err error) {
		d, err = ebpf.New(ebpf.Options{Name: c.name + "-" + n.name, NoTCX: c.noTCX})
		return err
	})
	return d
}

// routed makes an instance that is an IP hop: Linux forwards in it.
func (c *town) routed(node string, id onpath.VportID, own ...string) {
	c.t.Helper()
	ns := c.ns(fmt.Sprintf("i%d", id))
	c.forwarding(ns)
	c.pair(end{ns: c.nodes[node].ns, dev: onpath.DeviceName(id), mac: onpath.HostMAC(id), silent: true},
		end{ns: ns, dev: "eth0", mac: onpath.InstanceMAC(id), addrs: own})
	for _, r := range []struct{ to, via string }{{"0.0.0.0/0", "169.254.1.1"}, {"::/0", "fe80::1"}} {
		via := netip.MustParseAddr(r.via)
		c.neighbour(ns, "eth0", via, onpath.HostMAC(id))
		c.route(ns, "eth0", netip.MustParsePrefix(r.to), via)
	}
	c.instances = append(c.instances, c.vport(node, id, id, onpath.Routed))
}

// bridged makes an instance that is a Linux bridge.
func (c *town) bridged(node string, id, back onpath.VportID) {
	c.t.Helper()
	ns := c.ns(fmt.Sprintf("i%d", id))
	for dev, v := range map[string]onpath.VportID{"eth0": id, "eth1": back} {
		c.pair(end{ns: c.nodes[node].ns, dev: onpath.DeviceName(v), mac: onpath.HostMAC(v), silent: true},
			end{ns: ns, dev: dev, mac: onpath.InstanceMAC(v), silent: true})
	}
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
		for _, dev := range []string{"eth0", "eth1"} {
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
	c.instances = append(c.instances, c.vport(node, id, back, onpath.Bridged), c.vport(node, back, id, onpath.Bridged))
}

func (c *town) vport(node string, id, other onpath.VportID, how onpath.ContainerAttach) onpath.Vport {
	return onpath.Vport{
		ID: id, Kind: onpath.VportInstance, State: onpath.VportUp, Instance: fmt.Sprintf("town/i%d", id), Tenant: "town",
		Other: other, MAC: onpath.InstanceMAC(id), HostMAC: onpath.HostMAC(id), Attach: how, Entry: townEdge, Peer: node,
	}
}

// chainOf applies one chain of elements, each a list of vport pairs (in, out).
func (c *town) chainOf(match onpath.Match, elements ...[][2]onpath.VportID) {
	c.t.Helper()
	c.apply(match, nil, elements...)
}

func (c *town) apply(match onpath.Match, edit func(*onpath.DatapathConfig), elements ...[][2]onpath.VportID) {
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

func (c *town) config(name string, match onpath.Match, elements [][][2]onpath.VportID) *onpath.DatapathConfig {
	cfg := &onpath.DatapathConfig{
		Node: name, Generation: 1, Underlay: onpath.Underlay{Address: c.nodes[name].underlay},
		Paths: []onpath.Path{{ID: 1, Chain: "town/c", Tenant: "town", MTU: townMTU}},
	}
	for other, n := range c.nodes {
		if other != name {
			cfg.Peers = append(cfg.Peers, onpath.Peer{Node: other, Address: n.underlay, Port: onpath.DefaultTunnelPort, Secret: 77})
		}
	}
	if name == "gw" {
		cfg.Edge = &onpath.Edge{Vport: townEdge, Table: 1, Uplinks: []onpath.Uplink{
			{Name: "access", Device: "up0", Attach: onpath.AttachRouter}, {Name: "core", Device: "up1", Attach: onpath.AttachRouter},
		}}
	} else {
		cfg.Vports = append(cfg.Vports, onpath.Vport{ID: townEdge, Kind: onpath.VportRemote, State: onpath.VportUp, Peer: "gw"})
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
func (c *town) serve(network, addr string) {
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
				h := sha256.New()
				io.Copy(h, conn)
				conn.Write(h.Sum(nil))
			}()
		}
	}()
}

// transfer sends n bytes to the server, and fails unless they arrive intact. It
// gives the client's local address.
func (c *town) transfer(addr string, n int) netip.AddrPort {
	c.t.Helper()
	var conn net.Conn
	err := netnsrun.Do(c.client, func() (err error) {
		conn, err = net.DialTimeout("tcp", addr, 5*time.Second)
		return err
	})
	if err != nil {
		c.t.Errorf("connect to %s: %v", addr, err)
		c.dump()
		c.t.FailNow()
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(30 * time.Second))
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i*7 + i>>9)
	}
	want := sha256.Sum256(data)
	if _, err := conn.Write(data); err != nil {
		c.t.Errorf("send to %s: %v", addr, err)
	}
	conn.(*net.TCPConn).CloseWrite()
	got, err := io.ReadAll(conn)
	if err != nil || !bytes.Equal(got, want[:]) {
		c.t.Errorf("%d bytes to %s did not arrive intact (%v)", n, addr, err)
		c.dump()
		c.t.FailNow()
	}
	return conn.LocalAddr().(*net.TCPAddr).AddrPort()
}

// dump logs counters and entries.
func (c *town) dump() {
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

func (c *town) out(node string, id onpath.VportID) uint64 {
	c.t.Helper()
	counters, err := c.nodes[node].dp.Counters(c.t.Context())
	c.must(err)
	return counters.Vports[id].Out.Packets
}

// TestTransfer runs real TCP, with the offloads of real kernels, through a
// routed and a bridged instance on two nodes, both IP versions.
func TestTransfer(t *testing.T) {
	c := newTown(t)
	c.routed("gw", 16)
	c.bridged("n2", 17, 18)
	c.serve("tcp4", "10.9.0.2:80")
	c.serve("tcp6", "[2001:db8:9::2]:80")
	c.chainOf(toServers(), element(16, 16), element(17, 18))
	for _, addr := range []string{"10.9.0.2:80", "[2001:db8:9::2]:80"} {
		before := [2]uint64{c.out("gw", 16), c.out("n2", 17)}
		start := time.Now()
		c.transfer(addr, 20<<20)
		t.Logf("20 MiB to %s took %v", addr, time.Since(start))
		// At 1450 bytes each, 20 MiB are over 14,000 segments, GSO or not.
		if got := c.out("gw", 16) - before[0]; got < 14_000 {
			t.Errorf("instance 16 got %d packets, must be over 14000", got)
		}
		if got := c.out("n2", 17) - before[1]; got < 14_000 {
			t.Errorf("instance 17 got %d packets, must be over 14000", got)
		}
	}
}

// TestFilters: the same with clsact filters, as on kernels without tcx, and they
// are gone after Remove.
func TestFilters(t *testing.T) {
	c := newTownWith(t, true)
	c.routed("gw", 16)
	c.bridged("n2", 17, 18)
	c.serve("tcp4", "10.9.0.2:80")
	c.chainOf(toServers(), element(16, 16), element(17, 18))
	c.transfer("10.9.0.2:80", 1<<20)
	c.chainOf(toServers(), element(17, 18))
	c.transfer("10.9.0.2:80", 1<<20)
	if c.out("n2", 17) == 0 {
		t.Error("instance 17 got nothing")
	}
	for _, n := range c.nodes {
		c.must(n.dp.Close())
		n.dp = c.open(n)
		c.must(n.dp.Remove(t.Context()))
		c.in(n.ns, func() error {
			links, err := netlink.LinkList()
			for _, l := range links {
				if l.Attrs().Name == "onpath0" {
					t.Errorf("%s: the tunnel device is still there", n.name)
				}
				if qs, _ := netlink.QdiscList(l); len(qs) > 1 {
					t.Errorf("%s: device %s still has %v", n.name, l.Attrs().Name, qs)
				}
			}
			return err
		})
	}
	c.transfer("10.9.0.2:80", 1000)
}

// TestOutlives: traffic goes on when the driver's process is gone, a new one
// takes over without touching it, and Remove by yet another one restores
// ordinary forwarding.
func TestOutlives(t *testing.T) {
	c := newTown(t)
	c.routed("gw", 16)
	c.serve("tcp4", "10.9.0.2:80")
	c.chainOf(toServers(), element(16, 16))
	c.transfer("10.9.0.2:80", 1000)
	gw := c.nodes["gw"]
	c.must(gw.dp.Close()) // what a killed process leaves: pins and nothing else
	c.transfer("10.9.0.2:80", 1000)

	gw.dp = c.open(gw)
	before := c.out("gw", 16)
	c.transfer("10.9.0.2:80", 1000)
	after := c.out("gw", 16)
	if after <= before {
		t.Errorf("instance 16 got no packet before Apply of the new process: %d, then %d", before, after)
	}
	c.chainOf(toServers(), element(16, 16))
	c.transfer("10.9.0.2:80", 1000)
	if got := c.out("gw", 16); got <= after {
		t.Errorf("instance 16 got no packet after Apply of the new process: %d, then %d", after, got)
	}
	c.must(gw.dp.Close())
	c.in(gw.ns, func() error { return ebpf.Remove(t.Context(), ebpf.Options{Name: c.name + "-gw"}) })
	c.transfer("10.9.0.2:80", 1000)
	gw.dp = c.open(gw)
	if got := c.out("gw", 16); got != 0 {
		t.Errorf("after Remove instance 16 has %d packets, must have none", got)
	}
}

// TestRepick: when the instance that carries a connection dies, a stateless one
// takes over, and the connection goes on.
func TestRepick(t *testing.T) {
	c := newTown(t)
	c.routed("gw", 16)
	c.routed("n2", 17)
	c.serve("tcp4", "10.9.0.2:80")
	c.chainOf(toServers(), element(16, 16, 17, 17))
	done := make(chan netip.AddrPort)
	go func() { done <- c.transfer("10.9.0.2:80", 200<<20) }()
	var victim onpath.VportID
	for until := time.Now().Add(5 * time.Second); victim == 0 && time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
		for node, id := range map[string]onpath.VportID{"gw": 16, "n2": 17} {
			if c.out(node, id) > 100 {
				victim = id
			}
		}
	}
	for i := range c.instances {
		if c.instances[i].ID == victim {
			c.instances[i].State = onpath.VportClosed
		}
	}
	c.chainOf(toServers(), element(16, 16, 17, 17))
	<-done
	if a, b := c.out("gw", 16), c.out("n2", 17); a < 100 || b < 100 {
		t.Errorf("the instances got %d and %d packets; the connection must have used both", a, b)
	}
}

// TestWaitingIsReset: the client of a dead instance that ends TCP is reset though
// it only waits and says nothing.
func TestWaitingIsReset(t *testing.T) {
	c := newTown(t)
	c.routed("n2", 16)
	for _, addr := range []string{"10.9.0.2:81", "[2001:db8:9::2]:81"} {
		var l net.Listener
		c.in(c.server, func() (err error) {
			l, err = net.Listen("tcp", addr)
			return err
		})
		defer l.Close()
		reset := func(cfg *onpath.DatapathConfig) {
			for i := range cfg.Groups {
				cfg.Groups[i].Lost = onpath.LostReset
			}
		}
		c.instances[0].State = onpath.VportUp
		c.apply(toServers(), reset, element(16, 16))
		var conn net.Conn
		c.in(c.client, func() (err error) {
			conn, err = net.DialTimeout("tcp", addr, 5*time.Second)
			return err
		})
		defer conn.Close()
		far, err := l.Accept()
		c.must(err)
		defer far.Close()
		c.instances[0].State = onpath.VportClosed
		c.apply(toServers(), reset, element(16, 16))
		conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("the waiting client of %s got %v, must be reset", addr, err)
			c.dump()
		}
	}
}

// TestHandedOn: while only the node of a dead instance knows that it is dead,
// that node hands packets for it on to the instance that takes over.
func TestHandedOn(t *testing.T) {
	c := newTown(t)
	c.routed("gw", 16)
	c.routed("n2", 17)
	c.serve("tcp4", "10.9.0.2:80")
	c.chainOf(toServers(), element(16, 16, 17, 17))
	for range 8 {
		c.transfer("10.9.0.2:80", 1000)
	}
	if c.out("gw", 16) == 0 || c.out("n2", 17) == 0 {
		t.Skip("chance gave all connections to one instance")
	}
	before := c.out("n2", 17)
	c.apply(toServers(), func(cfg *onpath.DatapathConfig) {
		for i := range cfg.Vports {
			if v := &cfg.Vports[i]; v.ID == 17 && v.Kind == onpath.VportInstance {
				v.State = onpath.VportClosed
			}
		}
	}, element(16, 16, 17, 17))
	for range 8 {
		c.transfer("10.9.0.2:80", 1000)
	}
	if got := c.out("n2", 17); got != before {
		t.Errorf("the closed instance got %d packets more", got-before)
	}
}

// TestRewrite: nftables in an instance on another node rewrites the destination.
func TestRewrite(t *testing.T) {
	c := newTown(t)
	c.routed("n2", 16)
	c.instances[0].Packets, c.instances[0].Emit = onpath.PacketsRewrite, onpath.EmitTableOf(16)
	c.in(c.dir+"/i16", func() error { return dnat("203.0.113.10", "10.9.0.2") })
	c.route(c.nodes["gw"].ns, "up1", netip.MustParsePrefix("203.0.113.10/32"), netip.MustParseAddr("10.9.0.2"))
	c.serve("tcp4", "10.9.0.2:80")
	match := onpath.Match{Dst: []netip.Prefix{netip.MustParsePrefix("203.0.113.10/32"), netip.MustParsePrefix("10.9.0.2/32")}}
	c.apply(match, func(cfg *onpath.DatapathConfig) {
		back := onpath.Match{Src: match.Dst}
		cfg.Tables = append(cfg.Tables, onpath.Table{
			ID: onpath.EmitTableOf(16), Miss: onpath.Action{Kind: onpath.ActionExit},
			Rules: []onpath.Rule{
				{Match: match, Path: 1, Action: onpath.Action{Kind: onpath.ActionTable, Table: onpath.TableOf(1, 0, false)}},
				{Match: back, Path: 1, Reverse: true, Action: onpath.Action{Kind: onpath.ActionTable, Table: onpath.TableOf(1, 0, true)}},
			},
		})
	}, element(16, 16))
	c.transfer("203.0.113.10:80", 5<<20)
}

// dnat makes the namespace rewrite a destination.
func dnat(from, to string) error {
	nft, err := nftables.New()
	if err != nil {
		return err
	}
	t := nft.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "nat"})
	ch := nft.AddChain(&nftables.Chain{
		Table: t, Name: "pre", Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest,
	})
	nft.AddRule(&nftables.Rule{Table: t, Chain: ch, Exprs: []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: net.ParseIP(from).To4()},
		&expr.Immediate{Register: 1, Data: net.ParseIP(to).To4()},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1},
	}})
	return nft.Flush()
}
