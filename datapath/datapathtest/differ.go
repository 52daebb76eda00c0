package datapathtest

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// Outcome says what became of one frame.
type Outcome uint8

// The outcomes.
const (
	Left     Outcome = iota // to the kernel, as it was
	Gone                    // dropped
	Sent                    // out of a device, or into a tunnel
	Answered                // dropped, and its sender was told
	Unfit                   // the driver's side cannot put such a frame in
)

func (o Outcome) String() string {
	return [...]string{"left to the kernel", "dropped", "sent", "answered", "not put in"}[o]
}

// Prober is a Harness that also tells at once what becomes of a single frame.
type Prober interface {
	Harness
	// Put puts one frame in at a device, and gives what came out if it was
	// sent, and the device if that is an instance's and known. With a segment
	// size the packet stands for several of that many bytes of TCP payload each
	// (GSO).
	// What goes on to another node comes out with the addresses that the tunnel
	// packet carries.
	Put(node, device string, f Frame, segment int) (o Outcome, out Frame, to string)
	// PutTunnel puts in one packet that comes from another node.
	PutTunnel(node string, p TunnelPacket) (o Outcome, out Frame, to string)
	// Functions reports whether packets may meet ebpf functions that do more than let
	// them pass.
	Functions() bool
}

// Differ drives the same random packets through a driver and the model of it:
// valid, mangled, fragments, odd options, of 9,000 bytes, truncated, GSO, at uplinks,
// out of instances and through the tunnel, forged ones and steady streams among them,
// while instances come and go, and ebpf functions that drop, refuse, mark and
// translate. Both must agree on every outcome and every packet that comes out, and on
// all counters after each `every` packets. The seed repeats a run.
func Differ(t *testing.T, subject, model Prober, seed uint64, packets, every int) {
	mtus := map[string]int{clientNet: longest, serverNet: longest}
	if seed%2 == 0 {
		delete(mtus, serverNet) // what is long comes in, and does not go out
	}
	d := &differ{
		t: t, every: every, sides: [2]*testbed{newTestbedOf(t, subject, mtus), newTestbedOf(t, model, mtus)},
		probes: [2]Prober{subject, model}, generator: newGenerator(seed),
	}
	for _, b := range d.sides {
		b.join(nodes...)
	}
	d.trace = os.Getenv("ONPATH_DIFFER_TRACE") != ""
	d.follow = os.Getenv("ONPATH_DIFFER_FLOW")
	from, err := strconv.Atoi(os.Getenv("ONPATH_DIFFER_FROM")) // compare all after each packet from this one on
	if err != nil {
		from = packets
	}
	d.layout = d.build()
	d.apply()
	for d.at = 0; d.at < packets && !t.Failed(); d.at++ {
		if d.at > 0 && d.at%(packets/8+1) == 0 {
			d.change()
		}
		d.one()
		d.tellFlow()
		if d.at%every == every-1 || d.at >= from {
			d.compareCounters()
		}
	}
	d.compareCounters()
	t.Logf("%d packets: %v", packets, d.seen)
}

type differ struct {
	t         *testing.T
	every     int
	trace     bool   // say what becomes of every whole packet
	follow    string // the flow, "source,destination", of which all is said
	at        int
	sides     [2]*testbed // subject, model
	probes    [2]Prober
	generator *generator
	layout    *layout
	functions [2][]onpath.InlineFunction
	seen      [4]int   // by outcome
	packet    []byte   // the last one
	recent    [3]trial // what was put in last
}

// trial is one frame that was put in on both sides.
type trial struct {
	at      int
	device  string
	frame   Frame
	segment int
	tunnel  *TunnelPacket // it came from another node
	outcome Outcome       // of the model
}

func (t *trial) put(p Prober) (Outcome, Frame, string) {
	if t.tunnel != nil {
		c := *t.tunnel
		c.Packet = slices.Clone(c.Packet)
		return p.PutTunnel(gateway, c)
	}
	c := t.frame
	c.Packet = slices.Clone(c.Packet)
	return p.Put(gateway, t.device, c, t.segment)
}

func (t *trial) String() string {
	if t.tunnel != nil {
		x := *t.tunnel
		x.Packet = nil
		return fmt.Sprintf("packet %d through the tunnel %+v: %x: %s", t.at, x, t.frame.Packet[:min(len(t.frame.Packet), 200)], t.outcome)
	}
	return fmt.Sprintf("packet %d at %s tags %v type %04x segment %d: %x: %s", t.at, t.device, t.frame.Tags, t.frame.EtherType,
		t.segment, t.frame.Packet[:min(len(t.frame.Packet), 200)], t.outcome)
}

// build makes chains of all kinds over instances of all kinds.
func (d *differ) build() *layout {
	var keep1, keep2, wraps, drains, closed, mirror, bridged, rewrites, originates, far *instance
	for _, b := range d.sides { // the same ids on both sides
		keep1, keep2 = b.instance("keep1", gateway), b.instance("keep2", gateway)
		wraps = b.instance("wraps", gateway)
		drains, closed = b.instance("drains", gateway), b.instance("closed", gateway)
		mirror, bridged = b.instance("mirror", gateway), b.bridged("bridged", gateway)
		rewrites, originates = b.instance("rewrites", gateway), b.instance("originates", gateway)
		far = b.instance("far", "n2")
	}
	keep2.weight, mirror.mirror = 3, true
	drains.state, closed.state = onpath.VportDraining, onpath.VportClosed
	rewrites.packets, originates.packets = onpath.PacketsRewrite, onpath.PacketsOriginate
	wraps.tenant, drains.tenant, rewrites.tenant = "operator", "operator", "small"
	originates.own, originates.routes, originates.maxFlows = ownAddresses, true, 1<<20
	web := onpath.Match{Dst: servers, Protocol: []uint8{tcp}, DstPorts: portRanges(80, 80, 8000, 8999)}
	dns := onpath.Match{Dst: servers, Protocol: []uint8{udp}}
	tls := onpath.Match{Dst: servers, Protocol: []uint8{tcp}, DstPorts: portRanges(443, 443)}
	rewrites.emits = []emission{{path: 2, match: dns}}
	originates.emits = []emission{{path: 4, match: tls}}
	some := onpath.Match{DstPorts: portRanges(443, 443), SrcPorts: portRanges(1000, 2000)}
	l := &layout{
		instances: []*instance{keep1, keep2, wraps, drains, closed, mirror, bridged, rewrites, originates, far},
		chains: []*chain{
			{path: 6, tier: onpath.TierOperator, tenant: "operator", match: onpath.Match{Dst: prefixes("10.9.5.0/24", "2001:db8:9:5::/64")}, strict: true,
				elements: []*element{{instances: []*instance{drains, wraps}, together: onpath.TogetherSource}}},
			{path: 1, match: web, elements: []*element{
				{instances: []*instance{keep1, keep2}}, {instances: []*instance{mirror}, mode: onpath.ModeMirror, none: onpath.NoneBypass}, {instances: []*instance{bridged}}}},
			{path: 2, tenant: "small", maxFlows: 400, match: dns, elements: []*element{{instances: []*instance{rewrites}, none: onpath.NoneBypass}}},
			{path: 3, match: onpath.Match{Src: clients, Dst: servers, Protocol: []uint8{icmp, icmpv6}}, mtu: 1300, strict: true,
				elements: []*element{{instances: []*instance{far}, none: onpath.NoneDrop}}},
			{path: 4, match: tls, elements: []*element{
				{instances: []*instance{originates, closed}, lost: onpath.LostReset, none: onpath.NoneBypass}, {instances: []*instance{keep1}, match: &some}}},
			{path: 5, match: onpath.Match{Dst: servers, Protocol: []uint8{tcp}, DstPorts: portRanges(22, 22)}, strict: true,
				elements: []*element{{instances: []*instance{closed}, none: onpath.NoneDrop}}},
			{path: 7, match: onpath.Match{Dst: servers, Protocol: []uint8{tcp}, DstPorts: portRanges(25, 25)}, began: time.Now(), adopt: time.Hour,
				elements: []*element{{instances: []*instance{keep1, keep2}, together: onpath.TogetherHosts}}},
			{path: 8, match: onpath.Match{Src: clients, Dst: servers, Protocol: []uint8{132, 50}}, forward: true, exitLast: true,
				elements: []*element{{instances: []*instance{keep1}}}},
		},
	}
	alone := d.inline(l, "alone")
	l.chains = append(l.chains, &chain{
		path: 9, mtu: 1400, match: onpath.Match{Dst: servers, Protocol: []uint8{tcp, udp}, DstPorts: portRanges(inlinePort, inlinePort)},
		elements: []*element{{instances: []*instance{alone}, none: onpath.NoneBypass}}})
	if d.probes[0].Functions() {
		d.addFunctions(l, keep1, alone)
	}
	return l
}

// inline adds an ebpf function.
func (d *differ) inline(l *layout, name string) (i *instance) {
	for side, b := range d.sides {
		i = b.inline(name, gateway)
		d.functions[side] = append(d.functions[side], *i.inline)
	}
	l.instances = append(l.instances, i)
	return i
}

// addFunctions adds chains of ebpf functions, alone and around an element.
func (d *differ) addFunctions(l *layout, keep, alone *instance) {
	before, behind := d.inline(l, "before"), d.inline(l, "behind")
	to := append(slices.Clone(servers), netip.PrefixFrom(virtual, 32))
	match := func(first, last uint16) onpath.Match {
		return onpath.Match{Dst: to, Protocol: []uint8{tcp, udp}, DstPorts: portRanges(first, last)}
	}
	l.chains = append(l.chains,
		&chain{path: 10, match: match(droppedPort, behindPort), elements: []*element{{instances: []*instance{alone}, none: onpath.NoneBypass}}},
		&chain{path: 11, match: match(stampedPort, scribbledPort), mtu: 1450, elements: []*element{
			{instances: []*instance{before}}, {instances: []*instance{keep}}, {instances: []*instance{behind}, none: onpath.NoneBypass}}})
	d.generator.functions = true
	d.generator.renew()
}

// change closes, drains or opens some instances. A function that was not up is up again: XDP
// carries what meets functions alone, and must carry enough to be compared.
func (d *differ) change() {
	states := []onpath.VportState{onpath.VportUp, onpath.VportUp, onpath.VportClosed, onpath.VportDraining}
	for _, i := range d.layout.instances {
		rested := i.inline != nil && (i.state == onpath.VportClosed || i.state == onpath.VportDraining)
		if !i.mirror && d.generator.one(3) {
			i.state = states[d.generator.IntN(len(states))]
		}
		if rested {
			i.state = onpath.VportUp
		}
	}
	d.compareCounters()
	d.apply()
}

func (d *differ) apply() {
	for side, b := range d.sides {
		for _, f := range d.functions[side] { // each side has made its own ready
			at := slices.IndexFunc(d.layout.instances, func(i *instance) bool { return i.vport == f.Vport })
			d.layout.instances[at].inline = &f
		}
		b.apply(d.layout)
	}
}

// one puts one frame in on both sides and compares what becomes of it.
func (d *differ) one() {
	tried := &d.recent[d.at%len(d.recent)]
	*tried = trial{at: d.at}
	if d.generator.one(6) {
		tried.device, tried.tunnel = "the tunnel", d.generator.tunnelled(d.sides[0], d.layout)
		tried.frame.Packet = tried.tunnel.Packet
	} else {
		tried.device, tried.frame, tried.segment = d.generator.frame(d.layout)
	}
	f := tried.frame
	var out [2]Outcome
	var frames [2]Frame
	var to string
	for i, p := range d.probes {
		if out[i], frames[i], to = tried.put(p); out[i] == Unfit {
			return
		}
	}
	d.seen[out[1]]++
	d.packet = f.Packet
	tried.outcome = out[1]
	if d.trace && d.generator.valid(f.Packet) {
		d.t.Logf("%d at %s %v: %s and %s, %s %s", d.at, tried.device, tupleOf(f.Packet), out[0], out[1], frames[0].Dst, frames[1].Dst)
	}
	switch {
	case out[0] == out[1]:
	case out[1] == Answered && (out[0] == Gone || out[0] == Sent): // answers are limited in number, and are packets
		return
	default:
		d.t.Errorf("%s\n\tthe driver: %s, the model: %s\n\tseed %d", tried, out[0], out[1], d.generator.seed)
		d.compareCounters()
		return
	}
	if out[0] != Sent || len(frames[1].Packet) == 0 {
		return
	}
	d.generator.learn(to, frames[1])
	other := frames[1].Dst != "" && (frames[0].Dst != frames[1].Dst || frames[0].Src != frames[1].Src)
	if other || !bytes.Equal(frames[0].Packet, frames[1].Packet) {
		d.t.Errorf("%s\n\tthe driver sent to %s from %s %x\n\tthe model  sent to %s from %s %x\n\tseed %d", tried,
			frames[0].Dst, frames[0].Src, frames[0].Packet, frames[1].Dst, frames[1].Src, frames[1].Packet, d.generator.seed)
		d.entries(f.Packet)
	}
}

// ends are the addresses of a packet, in order.
func ends(packet []byte) string {
	if len(packet) < 20 || packet[0]>>4 == 6 && len(packet) < 40 {
		return ""
	}
	a, b := addresses(packet)
	if b.Less(a) {
		a, b = b, a
	}
	return a.String() + "," + b.String()
}

// tellFlow shows the packet that was just put in, and its flow's entries, if they are
// asked for.
func (d *differ) tellFlow() {
	if tried := &d.recent[d.at%len(d.recent)]; d.follow != "" && ends(d.packet) == d.follow {
		d.t.Log(tried)
		d.entries(d.packet)
	}
}

// entries shows what both sides remember of a packet's flow.
func (d *differ) entries(packet []byte) {
	e := ends(packet)
	if e == "" {
		return
	}
	d.t.Logf("to see how they came about: ONPATH_DIFFER_FLOW=%s", e)
	t := onpath.Tuple{}
	if t.Src, t.Dst = addresses(packet); d.generator.valid(packet) && d.follow == "" {
		t = tupleOf(packet)
	}
	for i, b := range d.sides {
		for _, e := range b.flows(gateway, onpath.FlowFilter{Tuple: &t}) {
			d.t.Logf("%s: at %d %v: %s %d mirrors %v functions %v entry %d path %d reverse %v packets %d", [...]string{"driver", "model"}[i],
				e.Vport, e.Tuple, e.Kind, e.Next, e.Mirrors, e.Functions, e.Entry, e.Path, e.Reverse, e.Packets)
		}
	}
}

// compareCounters compares all counters of both sides.
func (d *differ) compareCounters() {
	var c [2]*onpath.Counters
	for i, b := range d.sides {
		c[i] = b.counters(gateway)
	}
	bad := 0
	note := func(format string, args ...any) {
		bad++
		d.t.Errorf(format, args...)
	}
	for _, id := range slices.Sorted(maps.Keys(c[1].Vports)) {
		x, y := c[0].Vports[id], c[1].Vports[id]
		if x.In != y.In || x.Out != y.Out || !maps.Equal(nonzero(x.Dropped), nonzero(y.Dropped)) {
			note("vport %d: the driver counts in %v out %v dropped %v,\n\tthe model in %v out %v dropped %v", id, x.In, x.Out, x.Dropped, y.In, y.Out, y.Dropped)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(c[1].Paths)) {
		if x, y := c[0].Paths[id], c[1].Paths[id]; x != y {
			note("path %d: the driver counts %+v, the model %+v", id, x, y)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(c[1].Functions)) {
		x, y := c[0].Functions[id], c[1].Functions[id]
		if x.Passed != y.Passed || x.Dropped != y.Dropped || x.Answered != y.Answered || x.Bypassed != y.Bypassed || !maps.Equal(x.Reasons, y.Reasons) {
			note("function %d: the driver counts %+v, the model %+v", id, x, y)
		}
	}
	for _, tenant := range slices.Sorted(maps.Keys(c[1].Tenants)) {
		if x, y := c[0].Tenants[tenant], c[1].Tenants[tenant]; x != y {
			note("tenant %s: the driver holds %+v, the model %+v", tenant, x, y)
		}
	}
	if c[0].Encapsulated != c[1].Encapsulated {
		note("the driver counts %d encapsulated, the model %d", c[0].Encapsulated, c[1].Encapsulated)
	}
	if bad > 0 {
		d.t.Errorf("seed %d, within the last of these packets (compare after each one to see which):", d.generator.seed)
		for i := range d.recent {
			d.t.Log(&d.recent[(d.at+1+i)%len(d.recent)])
		}
		d.entries(d.packet)
	}
}

// newRand is a source that a seed repeats.
func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, seed^0x6f6e70617468)) }
