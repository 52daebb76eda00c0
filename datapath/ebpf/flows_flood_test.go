package ebpf_test

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/bench/traffic"
	"github.com/onpath/onpath/internal/netnsrun"
)

// kept are flows that are established before a flood and send all the while.
type kept struct {
	conns   []*net.UDPConn
	tuples  []onpath.Tuple
	sent    int // packets of each
	arrived []atomic.Uint64
}

const keptFlows = 50

// keep makes flows from the client to a port of the server, and sees them
// established: packets have gone both ways.
func (c *town) keep(port int) *kept {
	c.t.Helper()
	k := &kept{arrived: make([]atomic.Uint64, keptFlows)}
	server := c.unsummed(c.server, &net.UDPAddr{IP: net.IPv4(10, 9, 0, 2), Port: port})
	go k.count(server)
	for n := range keptFlows {
		conn := c.unsummed(c.client, &net.UDPAddr{IP: net.IPv4(10, 1, 0, 2), Port: 20000 + port*100 + n})
		k.conns = append(k.conns, conn)
		k.tuples = append(k.tuples, onpath.Tuple{
			Protocol: 17, Src: netip.MustParseAddr("10.1.0.2"), SrcPort: uint16(20000 + port*100 + n),
			Dst: netip.MustParseAddr("10.9.0.2"), DstPort: uint16(port),
		})
	}
	to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr("10.9.0.2"), uint16(port)))
	b := make([]byte, 8)
	for range 5 {
		k.send(c.t, to)
		for n, conn := range k.conns {
			conn.SetReadDeadline(time.Now().Add(10 * time.Second))
			if _, _, err := conn.ReadFromUDPAddrPort(b); err != nil {
				c.t.Fatalf("the first answers of flow %v: %v", k.tuples[n], err)
			}
		}
	}
	return k
}

// unsummed opens a socket whose packets carry no checksum: XDP on virtual devices hands
// on partial ones as if they were whole.
func (c *town) unsummed(ns string, at *net.UDPAddr) (conn *net.UDPConn) {
	c.t.Helper()
	c.must(netnsrun.Do(ns, func() (err error) {
		conn, err = net.ListenUDP("udp4", at)
		return err
	}))
	c.t.Cleanup(func() { conn.Close() })
	raw, err := conn.SyscallConn()
	c.must(err)
	c.must(raw.Control(func(fd uintptr) {
		if err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_NO_CHECK, 1); err == nil {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
		}
	}))
	c.must(err)
	return conn
}

// send sends one packet of each flow.
func (k *kept) send(t testing.TB, to *net.UDPAddr) {
	t.Helper()
	for n, conn := range k.conns {
		if _, err := conn.WriteToUDP([]byte{byte(n), 0}, to); err != nil {
			t.Fatalf("send: %v", err)
		}
	}
	k.sent++
}

// count counts what arrives, and answers each flow's first packets.
func (k *kept) count(server *net.UDPConn) {
	b := make([]byte, 64)
	for {
		n, from, err := server.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		if n == 0 || int(b[0]) >= keptFlows {
			continue
		}
		if k.arrived[b[0]].Add(1) <= 5 {
			server.WriteToUDPAddrPort(b[:n], from)
		}
	}
}

// TestFloodOfNewFlows: a flood of new flows through one tenant's chain takes nothing
// from flows that are established: neither from another tenant's, all of whose
// packets arrive, nor from its own, whose entries stay and count each packet.
func TestFloodOfNewFlows(t *testing.T) {
	flood := traffic.Job{Frames: 20_000}
	if os.Getenv("ONPATH_SOAK") != "" {
		flood = traffic.Job{Rate: 500_000, Time: time.Minute}
	}
	flood.Order = traffic.Sequential
	flood.Flows = traffic.Flows{Count: 1 << 26, From: netip.MustParseAddr("11.0.0.0"), To: netip.MustParseAddr("10.9.0.2"), Port: 1024, ToPort: 9}
	c := newTown(t)
	c.routed("gw", 16)
	c.routed("gw", 17)
	c.instances[1].Tenant = "quiet"
	c.floodable()
	c.in(c.nodes["gw"].ns, func() error { return setGRO("up0") }) // or what XDP sends vanishes
	for _, ns := range []string{c.client, filepath.Join(c.dir, "i16")} {
		s, err := traffic.NewSink(ns, "eth0")
		c.must(err)
		t.Cleanup(func() { s.Close() })
	}
	flooded, quiet := c.keep(9), c.keep(53)
	src, err := traffic.NewSource(c.client, "eth0", c.mac(c.client, "eth0"), c.mac(c.nodes["gw"].ns, "up0"), traffic.LastCPU())
	c.must(err)
	t.Cleanup(func() { src.Close() })

	var sent traffic.Sent
	done := make(chan error, 1)
	go func() {
		var err error
		sent, err = src.Run(t.Context(), flood)
		done <- err
	}()
	c.sendUntil(done, flooded, quiet)

	t.Logf("%d new flows in %v, %.0f a second", sent.Frames, sent.Time.Round(time.Millisecond), sent.Rate)
	held, err := c.nodes["gw"].dp.Counters(t.Context())
	c.must(err)
	for tenant, h := range held.Tenants {
		t.Logf("tenant %s: %+v", tenant, h)
		if h.Established > h.Limit {
			t.Errorf("tenant %s holds more than its share: %+v", tenant, h)
		}
	}
	if h := held.Tenants["town"]; h.Established+h.Pending < min(sent.Frames, h.Limit/2) {
		t.Errorf("of %d new flows there is little to see: %+v", sent.Frames, h)
	}
	c.lostNothing("quiet", quiet)
	c.entriesOf("quiet", quiet)
	c.entriesOf("flooded", flooded)
	for n := range quiet.arrived {
		if got := quiet.arrived[n].Load(); got != uint64(quiet.sent) {
			t.Errorf("of flow %v's %d packets %d arrived", quiet.tuples[n], quiet.sent, got)
		}
	}
}

// floodable has one chain for port 9 past instance 16, and another tenant's for
// port 53 past instance 17.
func (c *town) floodable() {
	c.t.Helper()
	match := func(port uint16) onpath.Match {
		m := toServers()
		m.Protocol, m.DstPorts = []uint8{17}, []onpath.PortRange{{First: port, Last: port}}
		return m
	}
	c.apply(match(9), func(cfg *onpath.DatapathConfig) {
		other := c.config(cfg.Node, match(53), [][][2]onpath.VportID{element(17, 17)})
		cfg.Paths = append(cfg.Paths, onpath.Path{ID: 2, Chain: "quiet/c", Tenant: "quiet"})
		for _, reverse := range []bool{false, true} {
			g := onpath.Group{
				ID: onpath.GroupOf(2, 0, reverse), Path: 2, Reverse: reverse, Mode: onpath.ModeInline,
				Then: onpath.TableOf(2, 0, reverse), Back: onpath.TableOf(2, 0, !reverse),
				Lost: onpath.LostRepick, None: onpath.NoneDrop, Members: []onpath.Member{{Vport: 17, Key: 17, Weight: 1}},
			}
			cfg.Groups = append(cfg.Groups, g)
			cfg.Tables = append(cfg.Tables, onpath.Table{ID: g.Then, Miss: onpath.Action{Kind: onpath.ActionExit}})
		}
		for _, r := range other.Tables[0].Rules {
			r.Path, r.Action.Group = 2, onpath.GroupOf(2, 0, r.Reverse)
			cfg.Tables[0].Rules = append(cfg.Tables[0].Rules, r)
		}
	}, element(16, 16))
}

// mac is a device's address.
func (c *town) mac(ns, dev string) (mac net.HardwareAddr) {
	c.t.Helper()
	c.in(ns, func() error {
		l, err := netlink.LinkByName(dev)
		if err == nil {
			mac = l.Attrs().HardwareAddr
		}
		return err
	})
	return mac
}

// sendUntil sends of all flows, 200 packets a second each, until the flood is over.
func (c *town) sendUntil(done chan error, flows ...*kept) {
	c.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			c.must(err)
			return
		case <-tick.C:
		}
		for _, k := range flows {
			k.send(c.t, &net.UDPAddr{IP: net.IPv4(10, 9, 0, 2), Port: int(k.tuples[0].DstPort)})
		}
	}
}

// lostNothing waits for what is still on its way.
func (c *town) lostNothing(what string, k *kept) {
	c.t.Helper()
	all := func() bool {
		for n := range k.arrived {
			if k.arrived[n].Load() != uint64(k.sent) {
				return false
			}
		}
		return true
	}
	for end := time.Now().Add(10 * time.Second); !all() && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
	}
	c.t.Logf("%s: %d packets of each of %d flows", what, k.sent, keptFlows)
}

// entriesOf checks that the entries at the edge are those from before the flood.
func (c *town) entriesOf(what string, k *kept) {
	c.t.Helper()
	counted := map[onpath.Tuple]uint64{}
	c.must(c.nodes["gw"].dp.Flows(c.t.Context(), onpath.FlowFilter{}, func(e onpath.FlowEntry) bool {
		if e.Vport == townEdge {
			counted[e.Tuple] = e.Packets
		}
		return true
	}))
	for _, t := range k.tuples {
		if counted[t] != uint64(k.sent) {
			c.t.Errorf("%s: the entry of flow %v has counted %d packets, must have counted %d", what, t, counted[t], k.sent)
		}
	}
}
