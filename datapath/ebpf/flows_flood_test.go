package ebpf_test

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sync"
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
	conns  []*net.UDPConn
	tuples []onpath.Tuple
	to     *net.UDPAddr
	sent   int // packets of each

	mu   sync.Mutex
	came [keptFlows][]uint8 // how often each packet of a flow has arrived
}

const (
	keptFlows = 100
	// keptEvery is between two packets of a flow; keptBurst flows send at once. A veth
	// device has room for 256 packets, and its CPU may be busy elsewhere for a while.
	keptEvery = 50 * time.Millisecond
	keptBurst = 10
	answered  = 5 // first packets of each flow
)

// keep makes flows from the client to a port of the server, and sees them
// established: packets have gone both ways.
func (c *testbed) keep(port int) *kept {
	c.t.Helper()
	k := &kept{to: &net.UDPAddr{IP: net.IPv4(10, 9, 0, 2), Port: port}}
	server := c.unsummed(c.server, k.to)
	go k.receive(server)
	for n := range keptFlows {
		from := 20000 + port*100 + n
		k.conns = append(k.conns, c.unsummed(c.client, &net.UDPAddr{IP: net.IPv4(10, 1, 0, 2), Port: from}))
		k.tuples = append(k.tuples, onpath.Tuple{
			Protocol: 17, Src: netip.MustParseAddr("10.1.0.2"), SrcPort: uint16(from), Dst: netip.MustParseAddr("10.9.0.2"), DstPort: uint16(port),
		})
	}
	b := make([]byte, 8)
	for range answered {
		k.send(c.t, 0, keptFlows)
		for n, conn := range k.conns {
			conn.SetReadDeadline(time.Now().Add(time.Minute))
			if _, _, err := conn.ReadFromUDPAddrPort(b); err != nil {
				c.t.Fatalf("the first answers of flow %v: %v", k.tuples[n], err)
			}
		}
	}
	return k
}

// unsummed opens a socket whose packets carry no checksum: XDP on virtual devices hands
// on partial ones as if they were whole.
func (c *testbed) unsummed(ns string, at *net.UDPAddr) (conn *net.UDPConn) {
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

// send sends the next packet of some of the flows; after the last one all have sent it.
func (k *kept) send(t testing.TB, first, n int) {
	t.Helper()
	for i := first; i < first+n; i++ {
		b := binary.BigEndian.AppendUint32([]byte{byte(i)}, uint32(k.sent))
		if _, err := k.conns[i].WriteToUDP(b, k.to); err != nil {
			t.Fatalf("send: %v", err)
		}
	}
	if first+n == keptFlows {
		k.sent++
	}
}

// receive notes what arrives, and answers each flow's first packets.
func (k *kept) receive(server *net.UDPConn) {
	b := make([]byte, 64)
	for {
		n, from, err := server.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		if n != 5 || int(b[0]) >= keptFlows {
			continue
		}
		seq := int(binary.BigEndian.Uint32(b[1:]))
		k.note(int(b[0]), seq)
		if seq < answered {
			server.WriteToUDPAddrPort(b[:n], from)
		}
	}
}

func (k *kept) note(flow, seq int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for len(k.came[flow]) <= seq {
		k.came[flow] = append(k.came[flow], 0)
	}
	k.came[flow][seq]++
}

// missing are the packets of a flow that have not arrived, and those that have more
// than once.
func (k *kept) missing(flow int) (lost, twice []int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for seq := range k.sent {
		switch {
		case seq >= len(k.came[flow]) || k.came[flow][seq] == 0:
			lost = append(lost, seq)
		case k.came[flow][seq] > 1:
			twice = append(twice, seq)
		}
	}
	return lost, twice
}

// offer is what a flood must offer at least when the machine has nothing else to do,
// flows a second.
const offer = 500_000

// floodTo is an address of the flooded tenant's that its instance drops packets for:
// what becomes of them behind the data path is nothing that this is about.
var floodTo = netip.MustParseAddr("10.9.7.7")

// floodTime is how long a flood lasts: ONPATH_SOAK (a duration; 1 means a minute); 0:
// some frames.
func floodTime(t *testing.T) time.Duration {
	switch s := os.Getenv("ONPATH_SOAK"); s {
	case "":
		return 0
	case "1":
		return time.Minute
	default:
		d, err := time.ParseDuration(s)
		if err != nil {
			t.Fatalf("ONPATH_SOAK=%q is no duration: write 1m", s)
		}
		return d
	}
}

// TestFloodOfNewFlows: a flood of new flows through one tenant's chain takes nothing
// from flows that are established, neither from another tenant's nor from its own:
// each of their packets arrives, and is counted on the entry from before the flood.
// What would begin more flows than the tenant may is refused and counted, to the
// packet.
func TestFloodOfNewFlows(t *testing.T) {
	t.Parallel()
	long, limit := floodTime(t), onpath.DefaultMaxNewFlows("town")
	if long == 0 {
		limit = 1000 // few enough for any machine's speed
	}
	c := newTestbed(t)
	c.routed("gw", 16)
	c.routed("gw", 17)
	c.instances[1].Tenant = "quiet"
	c.floodable(limit)
	c.in(c.nodes["gw"].ns, func() error {
		if err := setGRO("up0"); err != nil { // or what XDP sends vanishes
			return err
		}
		return setQueues("up0", runtime.NumCPU())
	})
	s, err := traffic.NewSink(c.client, "eth0") // what a source needs on its device
	c.must(err)
	t.Cleanup(func() { s.Close() })
	c.blackhole(filepath.Join(c.dir, "i16"), floodTo)
	flooded, quiet := c.keep(9), c.keep(53)
	before := c.gateway()

	sources := c.sources(runtime.NumCPU())
	begun := time.Now()
	done := c.flood(sources, long)
	sent := c.sendUntil(done, flooded, quiet)
	took := time.Since(begun)
	c.settled(flooded, quiet)

	after := c.gateway()
	held := after.Tenants["town"]
	in := after.Vports[testbedEdge].In.Packets - before.Vports[testbedEdge].In.Packets
	in -= uint64(keptFlows * (flooded.sent + quiet.sent - 2*answered))
	began := in - held.Refused
	t.Logf("%d new flows came in of %d that were sent, in %v, %.0f a second; %d were refused", in, sent, took.Round(time.Millisecond), float64(in)/took.Seconds(), held.Refused)
	for tenant, h := range after.Tenants {
		t.Logf("tenant %s: %+v", tenant, h)
		if h.Established > h.Limit {
			t.Errorf("tenant %s holds more than its share: %+v", tenant, h)
		}
	}
	if dropped := after.Vports[testbedEdge].Dropped[onpath.DropNewFlows]; held.Refused == 0 || dropped != held.Refused {
		t.Errorf("%d packets were refused, %d dropped because of that", held.Refused, dropped)
	}
	if most := uint64(float64(limit) * (took.Seconds() + 0.2)); began > most {
		t.Errorf("%d flows began in %v, of a tenant that may begin %d a second", began, took, limit)
	}
	if held.Established+held.Pending < min(began, held.Limit/2) {
		t.Errorf("of %d flows that began there is little to see: %+v", began, held)
	}
	if q := after.Tenants["quiet"]; q.Refused != 0 {
		t.Errorf("%d packets of the other tenant were refused", q.Refused)
	}
	if rate := float64(in) / took.Seconds(); long != 0 && rate < offer {
		t.Errorf("this machine offered %.0f new flows a second, which does not show what %d do", rate, offer)
	}
	if long != 0 && float64(began) < 0.9*float64(limit)*long.Seconds() {
		t.Errorf("%d flows began in %v, though %d a second might", began, took, limit)
	}
	c.lostNothing("quiet", quiet)
	c.lostNothing("flooded", flooded)
	c.entriesOf("quiet", quiet)
	c.entriesOf("flooded", flooded)
}

func (c *testbed) gateway() *onpath.Counters {
	c.t.Helper()
	c.must(c.nodes["gw"].dp.CountFlows())
	counters, err := c.nodes["gw"].dp.Counters(c.t.Context())
	c.must(err)
	return counters
}

// sources makes one on each of the CPUs: what it sends is handled there as well.
func (c *testbed) sources(cpus int) (list []*traffic.Source) {
	c.t.Helper()
	client, gateway := c.mac(c.client, "eth0"), c.mac(c.nodes["gw"].ns, "up0")
	for cpu := range cpus {
		s, err := traffic.NewSource(c.client, "eth0", client, gateway, cpu)
		c.must(err)
		c.t.Cleanup(func() { s.Close() })
		list = append(list, s)
	}
	return list
}

// flood has all sources send new flows, and tells how many each has sent.
func (c *testbed) flood(sources []*traffic.Source, long time.Duration) chan uint64 {
	done := make(chan uint64, len(sources))
	for i, s := range sources {
		j := traffic.Job{Order: traffic.Sequential, Flows: traffic.Flows{
			Count: 1 << 26, From: netip.AddrFrom4([4]byte{byte(11 + i)}), To: floodTo, Port: 1024, ToPort: 9,
		}}
		go func() {
			sent, err := floodFrom(c.t.Context(), s, j, long)
			if err != nil {
				c.t.Errorf("flood: %v", err)
			}
			done <- sent
		}()
	}
	return done
}

// floodFrom sends as much as fits into a time, or some; how fast it is, is seen anew
// now and then.
func floodFrom(ctx context.Context, s *traffic.Source, j traffic.Job, long time.Duration) (total uint64, err error) {
	if long == 0 {
		j.Frames = 20_000
		sent, err := s.Run(ctx, j)
		return sent.Frames, err
	}
	each := 5 * time.Second
	if j.Rate > 0 {
		each = long
	}
	for end := time.Now().Add(long); err == nil && time.Now().Before(end); {
		var sent traffic.Sent
		j.Time = min(each, time.Until(end))
		sent, err = s.Run(ctx, j)
		total += sent.Before + sent.Frames
		j.Flows.First = int(total)
	}
	return total, err
}

// floodable has one chain for port 9 past instance 16, of a tenant that may begin so
// many flows a second, and another tenant's for port 53 past instance 17.
func (c *testbed) floodable(limit int) {
	c.t.Helper()
	match := func(port uint16) onpath.Match {
		m := toServers()
		m.Protocol, m.DstPorts = []uint8{17}, []onpath.PortRange{{First: port, Last: port}}
		return m
	}
	c.apply(match(9), func(cfg *onpath.DatapathConfig) {
		other := c.config(cfg.Node, match(53), [][][2]onpath.VportID{element(17, 17)})
		cfg.Tenants = []onpath.TenantLimits{{Name: "town", MaxNewFlows: limit}, {Name: "quiet", MaxNewFlows: limit}}
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

// blackhole has a namespace drop what goes to an address.
func (c *testbed) blackhole(ns string, to netip.Addr) {
	c.t.Helper()
	dst := &net.IPNet{IP: to.AsSlice(), Mask: net.CIDRMask(32, 32)}
	c.in(ns, func() error { return netlink.RouteAdd(&netlink.Route{Dst: dst, Type: unix.RTN_BLACKHOLE}) })
}

// mac is a device's address.
func (c *testbed) mac(ns, dev string) (mac net.HardwareAddr) {
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

// sendUntil sends of all flows, a few at a time, until the sources are done. It gives
// what they sent.
func (c *testbed) sendUntil(done chan uint64, flows ...*kept) (sent uint64) {
	c.t.Helper()
	tick := time.NewTicker(keptEvery * keptBurst / keptFlows)
	defer tick.Stop()
	for first, left := 0, cap(done); left > 0 || first != 0; first = (first + keptBurst) % keptFlows {
		select {
		case n := <-done:
			sent += n
			left--
		case <-tick.C:
		}
		for _, k := range flows {
			k.send(c.t, first, keptBurst)
		}
	}
	return sent
}

// settled waits for what is still on its way.
func (c *testbed) settled(flows ...*kept) {
	c.t.Helper()
	all := func() bool {
		for _, k := range flows {
			for n := range keptFlows {
				if lost, _ := k.missing(n); len(lost) > 0 {
					return false
				}
			}
		}
		return true
	}
	for end := time.Now().Add(time.Minute); !all() && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
	}
}

// lostNothing checks that each packet of the flows has arrived, once.
func (c *testbed) lostNothing(what string, k *kept) {
	c.t.Helper()
	c.t.Logf("%s: %d packets of each of %d flows", what, k.sent, keptFlows)
	for n, t := range k.tuples {
		if lost, twice := k.missing(n); len(lost)+len(twice) > 0 {
			c.t.Errorf("%s: of flow %v's %d packets %d did not arrive, the first being %v, and %d came more than once", what, t, k.sent, len(lost), lost[:min(3, len(lost))], len(twice))
		}
	}
}

// entriesOf checks that the entries at the edge are those from before the flood.
func (c *testbed) entriesOf(what string, k *kept) {
	c.t.Helper()
	counted := map[onpath.Tuple]uint64{}
	c.must(c.nodes["gw"].dp.Flows(c.t.Context(), onpath.FlowFilter{}, func(e onpath.FlowEntry) bool {
		if e.Vport == testbedEdge {
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
