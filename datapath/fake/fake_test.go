package fake

import (
	"net/netip"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/datapath/datapathtest"
	"github.com/onpath/onpath/internal/packet"
)

func TestExam(t *testing.T) {
	datapathtest.Run(t, func(t *testing.T) datapathtest.Harness { return newHarness(t) })
}

// lonely is a gateway with one routed instance, vport 16, on everything.
func lonely(t *testing.T, clock onpath.Clock) (*Network, *Node, *onpath.DatapathConfig) {
	t.Helper()
	w := NewNetwork(clock)
	n, err := w.Node("gw", Options{
		Uplinks: []Uplink{{Device: "up0", Addresses: []netip.Addr{netip.MustParseAddr("10.0.1.1")}}},
		Routes:  []Route{{netip.MustParsePrefix("0.0.0.0/0"), "up0"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	g := onpath.GroupOf(1, 0, false)
	c := &onpath.DatapathConfig{
		Node: "gw",
		Edge: &onpath.Edge{Vport: 1, Table: 1, Uplinks: []onpath.Uplink{{Name: "up0", Device: "up0"}}},
		Vports: []onpath.Vport{{ID: 16, Kind: onpath.VportInstance, State: onpath.VportUp, Entry: 1,
			MAC: onpath.InstanceMAC(16), HostMAC: onpath.HostMAC(16)}},
		Tables: []onpath.Table{
			{ID: 1, Miss: onpath.Action{Kind: onpath.ActionExit}, Rules: []onpath.Rule{
				{Action: onpath.Action{Kind: onpath.ActionGroup, Group: g}, Path: 1}}},
			{ID: onpath.TableOf(1, 0, false), Miss: onpath.Action{Kind: onpath.ActionExit}},
			{ID: onpath.TableOf(1, 0, true), Miss: onpath.Action{Kind: onpath.ActionExit}},
		},
		Groups: []onpath.Group{{ID: g, Path: 1, Mode: onpath.ModeInline, Lost: onpath.LostRepick, None: onpath.NoneDrop,
			Members: []onpath.Member{{Vport: 16, Key: 1, Weight: 1}},
			Then:    onpath.TableOf(1, 0, false), Back: onpath.TableOf(1, 0, true)}},
		Paths: []onpath.Path{{ID: 1}},
	}
	if err := n.Apply(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	return w, n, c
}

// udpPacket is a UDP packet without a payload; the checksum is left out.
func udpPacket(sport byte) []byte {
	return []byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 1, 0, 2, 10, 9, 0, 2, 4, sport, 0, 53, 0, 8, 0, 0}
}

func entries(t *testing.T, n *Node) int {
	t.Helper()
	c, err := n.Counters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return int(c.Flows)
}

func TestEntriesAge(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	_, n, _ := lonely(t, func() time.Time { return now })
	n.Inject("up0", udpPacket(1))
	n.Inject(onpath.DeviceName(16), udpPacket(1))
	if got := entries(t, n); got != 4 {
		t.Fatalf("one flow through one instance makes %d entries, must be 4", got)
	}
	// One direction alone keeps both alive, and the context at the instance.
	for range 5 {
		now = now.Add(time.Duration(onpath.DefaultIdle.UDP) - time.Second)
		n.Inject("up0", udpPacket(1))
		n.Inject(onpath.DeviceName(16), udpPacket(1))
	}
	if got := entries(t, n); got != 4 {
		t.Errorf("of a one-way flow %d entries live, must be 4", got)
	}
	now = now.Add(time.Duration(onpath.DefaultIdle.UDP) + time.Second)
	if got := entries(t, n); got != 0 {
		t.Errorf("%d entries live on without packets", got)
	}
	n.Inject(onpath.DeviceName(16), udpPacket(1))
	c, _ := n.Counters(t.Context())
	if c.Vports[16].Dropped[onpath.DropSpoofed] != 1 {
		t.Errorf("what an instance emits after its flow has aged is not spoofed: %+v", c.Vports[16])
	}
}

func TestEntriesOfRemovedVportsGo(t *testing.T) {
	_, n, c := lonely(t, time.Now)
	n.Inject("up0", udpPacket(1))
	c.Vports = nil
	if err := n.Apply(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	err := n.Flows(t.Context(), onpath.FlowFilter{}, func(e onpath.FlowEntry) bool {
		if e.Vport == 16 {
			t.Errorf("an entry of a removed vport is left: %+v", e)
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
}

// An emit table may lead own addresses on to the classifiers, but never others'.
func TestPretendersAreNotClassified(t *testing.T) {
	_, n, c := lonely(t, time.Now)
	emit := onpath.EmitTableOf(16)
	c.Vports[0].Emit, c.Vports[0].Own = emit, []netip.Addr{netip.MustParseAddr("10.1.0.9")}
	c.Tables = append(c.Tables, onpath.Table{ID: emit, Miss: onpath.Action{Kind: onpath.ActionTable, Table: 1}})
	if err := n.Apply(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	n.Inject(onpath.DeviceName(16), udpPacket(1))
	own := udpPacket(2)
	own[15] = 9
	n.Inject(onpath.DeviceName(16), own)
	got, _ := n.Counters(t.Context())
	if v := got.Vports[16]; v.Dropped[onpath.DropSpoofed] != 1 || v.Out.Packets != 1 {
		t.Errorf("a forged and an own packet: %+v, must be one dropped and one classified", v)
	}
}

// In the middle of another chain a young chain passes older connections by.
func TestYoungChainBehindAnother(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	w, n, c := lonely(t, func() time.Time { return now })
	c.Tables[1].Miss = onpath.Action{Kind: onpath.ActionTable, Table: 2}
	c.Tables = append(c.Tables, onpath.Table{ID: 2, Miss: onpath.Action{Kind: onpath.ActionExit}, Rules: []onpath.Rule{
		{Action: onpath.Action{Kind: onpath.ActionDrop}, Path: 2}}})
	c.Paths = append(c.Paths, onpath.Path{ID: 2, Began: now, Adopt: onpath.Duration(time.Minute), AdoptFor: onpath.Duration(time.Minute)})
	if err := n.Apply(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 40)
	copy(p, udpPacket(1))
	p[3], p[9], p[32], p[33] = 40, packet.TCP, 5<<4, packet.ACK
	n.Inject("up0", p)
	n.Inject(onpath.DeviceName(16), p)
	ds := w.Deliveries()
	if len(ds) != 2 || ds[1].Device != "up0" {
		t.Errorf("deliveries are %+v, must end at the uplink", ds)
	}
	got, _ := n.Counters(t.Context())
	if got.Paths[2].Passed.Packets != 1 {
		t.Errorf("the young chain's counters are %+v, must say one passed", got.Paths[2])
	}
}

// An end that goes on sending has not reset its connection: somebody else's RST, which
// both ends ignored, does not shorten how long it may rest.
func TestForgedReset(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	_, n, _ := lonely(t, func() time.Time { return now })
	send := func(flags byte) {
		p := make([]byte, 40)
		copy(p, udpPacket(1))
		p[3], p[9], p[32], p[33] = 40, packet.TCP, 5<<4, flags
		n.Inject("up0", p)
	}
	rest := time.Duration(onpath.DefaultIdle.TCPClosed) + time.Second
	for _, x := range []struct {
		last byte
		want bool
	}{{packet.RST, false}, {packet.ACK, true}} {
		send(packet.SYN)
		send(packet.RST)
		now = now.Add(time.Second)
		send(x.last)
		now = now.Add(rest)
		got := false
		_ = n.Flows(t.Context(), onpath.FlowFilter{}, func(e onpath.FlowEntry) bool { got = got || e.Vport == n.edgeVport(); return true })
		if got != x.want {
			t.Errorf("after a RST and %#x the connection may rest for %v: %v, must be %v", x.last, rest, got, x.want)
		}
	}
}
