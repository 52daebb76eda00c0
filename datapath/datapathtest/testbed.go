package datapathtest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// The network of every case: one gateway between clients (up0) and servers
// (up1), a node without uplinks, and one with an uplink of its own to somewhere
// else (up2).
const (
	edgeVport = onpath.VportID(1)
	sideVport = onpath.VportID(2) // the edge of n3
	gateway   = "gw"
	sideNode  = "n3"
	clientNet = "up0"
	serverNet = "up1"
	sideNet   = "up2"
	// patience is how long the exam waits for what must come, quietTime for
	// what must not.
	patience  = time.Minute
	quietTime = 60 * time.Millisecond
)

var (
	client   = netip.MustParseAddr("10.1.0.2")
	server   = netip.MustParseAddr("10.9.0.2")
	client6  = netip.MustParseAddr("2001:db8:1::2")
	server6  = netip.MustParseAddr("2001:db8:9::2")
	offRoute = netip.MustParseAddr("10.77.0.2") // only n3 has a route to it
	beyond   = netip.MustParseAddr("10.9.7.7")  // behind the servers' net, of no chain
	beyond6  = netip.MustParseAddr("2001:db8:9::7:7")
	virtual  = netip.MustParseAddr("203.0.113.10") // dialled by clients, rewritten by an element
	nodes    = []string{gateway, "n2", sideNode}
)

// testbed is one case at work: it applies layouts, moves packets and keeps the
// books on what every counter must say in the end.
type testbed struct {
	t          *testing.T
	h          Harness
	nodes      map[string]*node
	next       onpath.VportID
	generation uint64
	configs    map[string]*onpath.DatapathConfig
	closed     bool // the books are not to be audited
}

type node struct {
	spec    NodeSpec
	dp      onpath.Datapath // nil until the case needs the node: each takes its driver's time to start
	devices []string
	want    map[onpath.VportID]*onpath.VportCounters
	loose   map[onpath.VportID]bool // Out may count answers of the data path itself
	looseIn bool                    // In of the edge, too
}

func newTestbed(t *testing.T, h Harness) *testbed { return newTestbedOf(t, h, nil) }

// newTestbedOf has uplinks of other sizes, by device, in bytes.
func newTestbedOf(t *testing.T, h Harness, mtus map[string]int) *testbed {
	b := &testbed{t: t, h: h, nodes: map[string]*node{}, next: 16}
	for i, name := range nodes {
		s := NodeSpec{
			Name:        name,
			Underlay:    netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 255, 0, byte(i + 1)}), 24),
			UnderlayMTU: 1600,
		}
		if name == gateway {
			s.Uplinks = []UplinkSpec{
				uplink(clientNet, "10.0.1", "fd00:0:1::", "10.1.0.0/16", "2001:db8:1::/48"),
				uplink(serverNet, "10.0.9", "fd00:0:9::", "10.9.0.0/16", "2001:db8:9::/48", virtual.String()+"/32"),
			}
		}
		if name == sideNode {
			s.Uplinks = []UplinkSpec{uplink(sideNet, "10.0.77", "fd00:0:77::", "10.77.0.0/16", "10.1.0.0/16", "10.9.0.0/16", "2001:db8:1::/48", "2001:db8:9::/48")}
		}
		for i, u := range s.Uplinks {
			s.Uplinks[i].MTU = cmp.Or(mtus[u.Device], u.MTU)
		}
		n := &node{spec: s, want: map[onpath.VportID]*onpath.VportCounters{}, loose: map[onpath.VportID]bool{}}
		for _, u := range s.Uplinks {
			n.devices = append(n.devices, u.Device)
		}
		b.nodes[name] = n
	}
	b.join(gateway)
	t.Cleanup(func() {
		if t.Failed() {
			b.dump()
		}
	})
	return b
}

func uplink(device, net4, net6 string, behind ...string) UplinkSpec {
	u := UplinkSpec{
		Device: device, MTU: 1500,
		Addresses: []netip.Prefix{netip.MustParsePrefix(net4 + ".1/24"), netip.MustParsePrefix(net6 + "1/64")},
		Gateways:  []netip.Addr{netip.MustParseAddr(net4 + ".254"), netip.MustParseAddr(net6 + "fe")},
	}
	for _, p := range behind {
		u.Behind = append(u.Behind, netip.MustParsePrefix(p))
	}
	return u
}

// join makes nodes that were not needed yet, with the configuration that they would have.
func (b *testbed) join(names ...string) {
	b.t.Helper()
	for _, name := range names {
		n := b.nodes[name]
		if n.dp != nil {
			continue
		}
		n.dp = b.h.AddNode(n.spec)
		if c := b.configs[name]; c != nil {
			b.configure(name, c)
		}
	}
}

// joined are the nodes that are there.
func (b *testbed) joined() []string {
	return slices.DeleteFunc(slices.Clone(nodes), func(name string) bool { return b.nodes[name].dp == nil })
}

func (b *testbed) configure(name string, c *onpath.DatapathConfig) {
	b.t.Helper()
	if err := b.nodes[name].dp.Apply(b.t.Context(), c); err != nil {
		b.t.Fatalf("Apply on %s: %v", name, err)
	}
}

// instance makes a routed instance on a node; its devices exist from now on.
func (b *testbed) instance(name, node string) *instance {
	i := &instance{name: name, node: node, vport: b.next, key: uint32(b.next), weight: 1, state: onpath.VportUp}
	b.next++
	b.join(node)
	b.h.AddInstance(node, i.vport)
	b.nodes[node].devices = append(b.nodes[node].devices, onpath.DeviceName(i.vport))
	return i
}

// bridged makes a bridged instance.
func (b *testbed) bridged(name, node string) *instance {
	i := &instance{name: name, node: node, vport: b.next, back: b.next + 1, key: uint32(b.next), weight: 1, state: onpath.VportUp}
	b.next += 2
	b.join(node)
	b.h.AddInstance(node, i.vport, i.back)
	b.nodes[node].devices = append(b.nodes[node].devices, onpath.DeviceName(i.vport), onpath.DeviceName(i.back))
	return i
}

// config is what the layout means for one node.
func (b *testbed) config(name string, l *layout) *onpath.DatapathConfig {
	n := b.nodes[name]
	c := &onpath.DatapathConfig{
		Node: name, Generation: b.generation,
		Underlay: onpath.Underlay{Address: n.spec.Underlay.Addr(), MTU: n.spec.UnderlayMTU},
		Tables:   l.tables(func(i *instance) bool { return i.node == name }),
		Paths:    l.paths(b.h.Now()),
		Tenants:  l.limits,
		Restored: l.restored,
	}
	for _, other := range nodes {
		if other != name {
			c.Peers = append(c.Peers, onpath.Peer{
				Node: other, Address: b.nodes[other].spec.Underlay.Addr(),
				Port: onpath.DefaultTunnelPort, Secret: secret(name, other), MTU: cmp.Or(l.tunnelMTU, n.spec.UnderlayMTU),
			})
		}
	}
	for _, other := range nodes {
		switch id := edgeOf(other); {
		case id == 0:
		case other != name:
			c.Vports = append(c.Vports, l.remoteEdge(id, other))
		default:
			c.Edge = &onpath.Edge{Vport: id, Table: onpath.ClassifierTable(onpath.TierOperator), NAT: l.nat}
			for _, u := range n.spec.Uplinks {
				up := onpath.Uplink{Name: u.Device, Device: u.Device, Attach: onpath.AttachRouter, Side: u.Side}
				if u.Side != "" {
					up.Attach = onpath.AttachBridge
				}
				c.Edge.Uplinks = append(c.Edge.Uplinks, up)
			}
		}
	}
	for _, i := range l.instances {
		if !i.withdrawn {
			c.Vports = append(c.Vports, i.vports(name)...)
			if i.inline != nil && i.node == name {
				c.Functions = append(c.Functions, *i.inline)
			}
		}
	}
	for _, ch := range l.chains {
		c.Groups = append(c.Groups, ch.groups()...)
	}
	slices.SortFunc(c.Groups, func(x, y onpath.Group) int { return int(x.ID) - int(y.ID) })
	slices.SortFunc(c.Vports, func(x, y onpath.Vport) int { return int(x.ID) - int(y.ID) })
	return c
}

// remoteEdge is the edge of another node.
func (l *layout) remoteEdge(id onpath.VportID, node string) onpath.Vport {
	v := onpath.Vport{ID: id, Kind: onpath.VportRemote, State: onpath.VportUp, Peer: node}
	if l.pair {
		v.Backup = edgeVport + sideVport - id
	}
	if l.dead == node {
		v.State = onpath.VportClosed
	}
	return v
}

// edgeOf is the vport of a node's edge, 0 if it has none.
func edgeOf(name string) onpath.VportID {
	switch name {
	case gateway:
		return edgeVport
	case sideNode:
		return sideVport
	}
	return 0
}

// secret of a pair of nodes, the same from both ends.
func secret(x, y string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(min(x, y) + max(x, y)))
	return h.Sum32()&0xffffff | 1
}

// apply makes the layout so on all nodes.
func (b *testbed) apply(l *layout) {
	b.t.Helper()
	b.generation++
	b.configs = map[string]*onpath.DatapathConfig{}
	if l.pair {
		b.join(sideNode)
	}
	for _, name := range nodes {
		b.configs[name] = b.config(name, l)
	}
	for _, name := range b.joined() {
		b.configure(name, b.configs[name])
	}
}

// one is the layout of a single chain over elements of one instance each.
func one(c *chain, instances ...*instance) *layout {
	for _, i := range instances {
		c.elements = append(c.elements, &element{instances: []*instance{i}})
	}
	return &layout{chains: []*chain{c}, instances: instances}
}

// vportOf is the vport that stands for a device in the counters.
func (b *testbed) vportOf(node, device string) onpath.VportID {
	for _, u := range b.nodes[node].spec.Uplinks {
		if u.Device == device {
			return edgeOf(node)
		}
	}
	var id onpath.VportID
	if _, err := fmt.Sscanf(device, "op%x", &id); err != nil {
		b.t.Fatalf("the exam asks for device %q, which is none", device)
	}
	return id
}

func (b *testbed) want(node string, v onpath.VportID) *onpath.VportCounters {
	m := b.nodes[node].want
	if m[v] == nil {
		m[v] = &onpath.VportCounters{Dropped: map[onpath.DropReason]uint64{}}
	}
	return m[v]
}

func add(t *onpath.Tally, p []byte) { t.Packets++; t.Bytes += uint64(len(p)) }

// send puts a packet in that the data path must take up: it counts as In.
func (b *testbed) send(node, device string, p []byte) {
	b.sendFrame(node, device, Frame{Packet: p})
}

func (b *testbed) sendFrame(node, device string, f Frame) {
	add(&b.want(node, b.vportOf(node, device)).In, f.Packet)
	b.join(node)
	b.h.Send(node, device, f)
}

// dropped notes that one packet that came from device must be dropped.
func (b *testbed) dropped(node, device string, reason onpath.DropReason) {
	b.want(node, b.vportOf(node, device)).Dropped[reason]++
}

// expect receives exactly this packet next, and counts it as Out.
func (b *testbed) expect(node, device string, want []byte) Frame {
	b.t.Helper()
	f := b.receive(node, device)
	b.same(node, device, f.Packet, want)
	add(&b.want(node, b.vportOf(node, device)).Out, want)
	return f
}

func (b *testbed) receive(node, device string) Frame {
	b.t.Helper()
	b.join(node)
	f, ok := b.h.Receive(node, device, patience)
	if !ok {
		b.t.Fatalf("nothing came out of %s/%s", node, device)
	}
	return f
}

// either receives from the one of two instances to which something came.
func (b *testbed) either(x, y *instance) (took, other *instance, f Frame) {
	b.t.Helper()
	for until := time.Now().Add(patience); time.Now().Before(until); x, y = y, x {
		if f, ok := b.h.Receive(x.node, onpath.DeviceName(x.vport), time.Millisecond); ok {
			return x, y, f
		}
	}
	b.t.Fatalf("nothing came out of %s, nor of %s", x.name, y.name)
	return nil, nil, Frame{}
}

func (b *testbed) same(node, device string, got, want []byte) {
	b.t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	if err := checksums(got); err != nil {
		b.t.Errorf("at %s/%s: %v", node, device, err)
	}
	b.t.Fatalf("at %s/%s came\n  %x\nwanted\n  %x", node, device, got, want)
}

// quiet checks that no device has anything more to give.
func (b *testbed) quiet() {
	b.t.Helper()
	wait := quietTime
	for _, name := range b.joined() {
		for _, d := range b.nodes[name].devices {
			if f, ok := b.h.Receive(name, d, wait); ok {
				b.t.Errorf("at %s/%s came a packet that should not:\n  %x", name, d, f.Packet)
			}
			wait = 0
		}
	}
}

// finish closes the books: nothing more comes out, and every counter of every
// local vport is what the case made it.
func (b *testbed) finish() {
	b.t.Helper()
	b.quiet()
	for _, name := range b.joined() {
		if b.closed {
			break
		}
		b.audit(name)
	}
}

func (b *testbed) audit(name string) {
	b.t.Helper()
	n := b.nodes[name]
	got := b.counters(name)
	for _, v := range b.local(name) {
		want := b.want(name, v)
		g := got.Vports[v]
		if g.In != want.In && !(n.looseIn && v == edgeVport) {
			b.t.Errorf("%s: vport %d: In is %+v, must be %+v", name, v, g.In, want.In)
		}
		if g.Out != want.Out && !n.loose[v] {
			b.t.Errorf("%s: vport %d: Out is %+v, must be %+v", name, v, g.Out, want.Out)
		}
		if !maps.Equal(nonzero(g.Dropped), nonzero(want.Dropped)) {
			b.t.Errorf("%s: vport %d: Dropped is %v, must be %v", name, v, g.Dropped, want.Dropped)
		}
	}
	if flows := len(b.flows(name, onpath.FlowFilter{})); uint64(flows) != got.Flows {
		b.t.Errorf("%s: Counters.Flows is %d, but there are %d entries", name, got.Flows, flows)
	}
	if got.Learned < got.Flows {
		b.t.Errorf("%s: Counters.Learned is %d, less than the %d entries there are", name, got.Learned, got.Flows)
	}
}

// local lists the vports of a node whose counters the exam knows: its edge and
// its instances'.
func (b *testbed) local(name string) []onpath.VportID {
	var ids []onpath.VportID
	if id := edgeOf(name); id != 0 {
		ids = append(ids, id)
	}
	if c := b.configs[name]; c != nil {
		for _, v := range c.Vports {
			if v.Kind == onpath.VportInstance || v.Kind == onpath.VportFunction {
				ids = append(ids, v.ID)
			}
		}
	}
	return ids
}

func nonzero(m map[onpath.DropReason]uint64) map[onpath.DropReason]uint64 {
	out := map[onpath.DropReason]uint64{}
	for k, v := range m {
		if v != 0 {
			out[k] = v
		}
	}
	return out
}

func (b *testbed) counters(name string) *onpath.Counters {
	b.t.Helper()
	b.join(name)
	c, err := b.nodes[name].dp.Counters(context.WithoutCancel(b.t.Context()))
	if err != nil {
		b.t.Fatalf("Counters of %s: %v", name, err)
	}
	return c
}

func (b *testbed) flows(name string, f onpath.FlowFilter) []onpath.FlowEntry {
	b.t.Helper()
	b.join(name)
	var out []onpath.FlowEntry
	err := b.nodes[name].dp.Flows(context.WithoutCancel(b.t.Context()), f, func(e onpath.FlowEntry) bool {
		out = append(out, e)
		return true
	})
	if err != nil {
		b.t.Fatalf("Flows of %s: %v", name, err)
	}
	return out
}

// dump logs the state of all nodes; it runs when a case has failed.
func (b *testbed) dump() {
	for _, name := range b.joined() {
		c, err := b.nodes[name].dp.Counters(context.WithoutCancel(b.t.Context()))
		if err != nil {
			b.t.Logf("%s: no state to show: %v", name, err)
			continue
		}
		b.t.Logf("%s: %d entries, %d learnt", name, c.Flows, c.Learned)
		for _, v := range slices.Sorted(maps.Keys(c.Vports)) {
			if x := c.Vports[v]; x.In.Packets+x.Out.Packets > 0 || len(x.Dropped) > 0 {
				b.t.Logf("%s: vport %d in %d/%d out %d/%d dropped %v", name, v, x.In.Packets, x.In.Bytes, x.Out.Packets, x.Out.Bytes, x.Dropped)
			}
		}
		for v, x := range c.Functions {
			b.t.Logf("%s: function %d %+v", name, v, x)
		}
		for p, x := range c.Paths {
			b.t.Logf("%s: path %d steered %d passed %d", name, p, x.Steered.Packets, x.Passed.Packets)
		}
		for i, e := range b.flows(name, onpath.FlowFilter{}) {
			if i == 40 {
				b.t.Logf("%s: and more entries", name)
				break
			}
			b.t.Logf("%s: entry %d %v → %s %d mirrors %v entry %d path %d reverse %v packets %d",
				name, e.Vport, e.Tuple, e.Kind, e.Next, e.Mirrors, e.Entry, e.Path, e.Reverse, e.Packets)
		}
	}
}

// looseEdge lets the gateway's edge count In and Out as the driver likes: it may
// leave the forwarding of what passes only mirrors to the kernel.
func (b *testbed) looseEdge() {
	b.nodes[gateway].loose[edgeVport] = true
	b.nodes[gateway].looseIn = true
}

// sleep lets time pass on the driver's clock.
func (b *testbed) sleep(d time.Duration) {
	if s, ok := b.h.(Sleeper); ok {
		s.Sleep(d)
		return
	}
	time.Sleep(d)
}

// skipBooks ends a case whose counters depend on which packets a kernel refuses
// before the data path sees them.
func (b *testbed) skipBooks() { b.closed = true }
