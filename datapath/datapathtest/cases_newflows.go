package datapathtest

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/onpath/onpath"
)

// perSecond is how many flows tenants with a limit may begin in these cases.
const perSecond = 1

// limited gives tenants that limit.
func limited(tenants ...string) (list []onpath.TenantLimits) {
	for _, name := range tenants {
		list = append(list, onpath.TenantLimits{Name: name, MaxNewFlows: perSecond})
	}
	return list
}

// flood offers packets that would begin flows of one tenant and keeps account of what
// becomes of them: however fast the machine is, as many may begin as the time allows,
// and each of the others is dropped and counted.
type flood struct {
	*testbed
	tenant  string
	at      string // the node where they go in; default the gateway
	in, out string // devices: where they go in, and, at the gateway, where those come out that may begin
	leaves  bool   // by an uplink: one hop further
	from    uint16 // the first source port
	since   time.Time
	begun   int
	refused uint64
}

// offer puts in a packet that would begin a flow, and reports whether it may.
func (f *flood) offer(p []byte) bool {
	f.t.Helper()
	if f.since.IsZero() {
		f.since = f.h.Now()
	}
	node := cmp.Or(f.at, gateway)
	vport := f.vportOf(node, f.in)
	was := f.counters(node).Vports[vport].Dropped[onpath.DropNewFlows]
	f.send(node, f.in, p)
	for until := time.Now().Add(patience); time.Now().Before(until); {
		if got, ok := f.h.Receive(gateway, f.out, time.Millisecond); ok {
			if f.leaves {
				p = withTTL(p, 1)
			}
			f.same(gateway, f.out, got.Packet, p)
			add(&f.want(gateway, f.vportOf(gateway, f.out)).Out, p)
			f.begun++
			return true
		}
		if f.counters(node).Vports[vport].Dropped[onpath.DropNewFlows] != was {
			f.dropped(node, f.in, onpath.DropNewFlows)
			f.refused++
			return false
		}
	}
	f.t.Fatalf("a packet that would begin a flow came out nowhere, and was not dropped as %s", onpath.DropNewFlows)
	return false
}

// untilRefused offers one flow after the other until n packets were refused.
func (f *flood) untilRefused(n int, packet func(n uint16) []byte) {
	f.t.Helper()
	for left := n; left > 0; f.from++ {
		if !f.offer(packet(f.from)) {
			left--
		}
		if f.begun > 200 {
			f.t.Fatalf("of a tenant that may begin %d flow a second, %d began in %v, and %d packets were refused", perSecond, f.begun, f.h.Now().Sub(f.since), f.refused)
		}
	}
	if most := 1 + perSecond*(1+int(f.h.Now().Sub(f.since)/time.Second)); f.begun > most {
		f.t.Errorf("%d flows began in %v, at most %d may", f.begun, f.h.Now().Sub(f.since), most)
	}
}

// untilBegun offers a flow again and again, until it may begin.
func (f *flood) untilBegun(p []byte) {
	f.t.Helper()
	for waited := time.Duration(0); !f.offer(p); waited += 10 * time.Millisecond {
		if waited > patience {
			f.t.Fatalf("a tenant that may begin %d flow a second began none in %v", perSecond, waited)
		}
		f.sleep(10 * time.Millisecond)
	}
}

// counted checks what is told of the tenant.
func (f *flood) counted(limit uint64) {
	f.t.Helper()
	if t := f.counters(cmp.Or(f.at, gateway)).Tenants[f.tenant]; t.NewLimit != limit || t.Refused != f.refused {
		f.t.Errorf("of tenant %s with a limit of %d, to whom %d packets were refused: %+v", f.tenant, limit, f.refused, t)
	}
}

func syn4(sport uint16) []byte { return newPacket(tcp4(sport)).bytes() }

func ack4(sport uint16) []byte {
	p := newPacket(tcp4(sport))
	p.flags = ack
	return p.bytes()
}

// newFlows: what would begin more flows than its tenant may is dropped. Nothing else
// is: neither what has an entry, nor other tenants' flows, nor what no chain selects,
// nor what another node sends, nor connections older than the chain.
func newFlows(b *testbed) {
	own := netip.MustParseAddr("10.1.200.1")
	fw, far, other, speaks := b.instance("fw", gateway), b.instance("far", "n2"), b.instance("other", gateway), b.instance("speaks", gateway)
	other.tenant, speaks.tenant = "other", "speaker"
	speaks.own, speaks.routes = []netip.Addr{own}, true
	dns := toServer()
	dns.Protocol = []uint8{udp}
	c := &chain{path: 1, match: web(), elements: []*element{{instances: []*instance{fw}}, {instances: []*instance{far}}}}
	l := &layout{limits: limited("exam", "speaker"), instances: []*instance{fw, far, other, speaks}, chains: []*chain{
		c, {path: 2, tenant: "other", match: dns, elements: []*element{{instances: []*instance{other}}}},
	}}
	b.apply(l)
	f := &flood{testbed: b, tenant: "exam", in: clientNet, out: onpath.DeviceName(fw.vport), from: 1000}

	// A connection takes its time, and each of its packets passes.
	f.untilBegun(syn4(1))
	f.untilRefused(3, syn4)
	b.forward(tcp4(1), fw, far)
	f.untilRefused(1, syn4)
	b.backward(tcp4(1), far, fw)
	f.untilRefused(1, syn4)
	for k := range uint16(20) {
		b.through(clientNet, ack4(1), serverNet, forwards(fw, far)...)
		b.forward(udp4(k+1), other)
		b.backward(udp4(k+1), other)
		b.untouched(clientNet, newPacket(ping(k)).bytes(), serverNet)
	}
	f.untilRefused(1, syn4)
	f.untilRefused(1, ack4) // nobody knows them: they would begin flows as well
	f.counted(perSecond)
	(&flood{testbed: b, tenant: "other"}).counted(0)

	// What an instance begins counts for its tenant.
	s := &flood{testbed: b, tenant: "speaker", in: onpath.DeviceName(speaks.vport), out: serverNet, leaves: true, from: 1}
	s.untilRefused(3, func(n uint16) []byte { return newPacket(tuple(udp, own, n, server, 9)).bytes() })
	s.counted(perSecond)

	b.relayedFlows(fw, far)

	// Connections older than the chain are passed by.
	c.began, c.adopt = b.h.Now().Add(-time.Second), time.Hour
	b.apply(l)
	for k := range uint16(20) {
		b.untouched(clientNet, ack4(4000+k), serverNet)
	}
	f.untilRefused(1, syn4)
	f.untilBegun(syn4(5000))

	l.limits = nil
	b.apply(l)
	for k := range uint16(50) {
		if !f.offer(syn4(6000 + k)) {
			b.t.Fatalf("without a limit flow %d was refused", k+1)
		}
	}
	f.counted(0)
}

// newFlowsAnew: flows that a change of chains has begin anew are none of a flood.
func newFlowsAnew(b *testbed) {
	const n = 20
	fw, next := b.instance("fw", gateway), b.instance("next", gateway)
	old := &chain{path: 1, match: web(), elements: []*element{{instances: []*instance{fw}}}}
	l := &layout{instances: []*instance{fw, next}, chains: []*chain{old}}
	b.apply(l)
	for k := range uint16(n) {
		b.connect(tcp4(k+1), fw)
	}
	old.ended, old.closed = true, true
	l.limits = limited("exam")
	l.chains = append(l.chains, &chain{path: 2, match: web(), elements: []*element{{instances: []*instance{next}}}})
	b.apply(l)
	for k := range uint16(n) {
		b.through(clientNet, ack4(k+1), serverNet, forwards(next)...)
	}
	f := &flood{testbed: b, tenant: "exam", in: clientNet, out: onpath.DeviceName(next.vport)}
	for k := range uint16(2 * n) { // both directions of each might have begun anew
		f.offer(syn4(1000 + k))
	}
	(&flood{testbed: b, tenant: "exam", in: clientNet, out: onpath.DeviceName(next.vport), from: 2000}).untilRefused(3, syn4)
}

// relayedFlows: what another node sends has begun there.
func (b *testbed) relayedFlows(from, to *instance) {
	b.t.Helper()
	for k := range uint16(20) {
		p := TunnelPacket{
			From: b.nodes[gateway].spec.Underlay.Addr(), Secret: secret(gateway, to.node), Next: to.vport, Prev: from.vport, Entry: edgeVport,
			Group: onpath.GroupOf(1, 1, false), Packet: syn4(2000 + k),
		}
		b.h.SendTunnel(to.node, p)
		b.expect(to.node, onpath.DeviceName(to.vport), p.Packet)
	}
}

// before takes a flow's first packet to an instance, and gives it.
func (b *testbed) before(i *instance, t onpath.Tuple) []byte {
	b.t.Helper()
	p := newPacket(t).bytes()
	b.send(gateway, clientNet, p)
	b.expect(gateway, onpath.DeviceName(i.vport), p)
	return p
}

// newFlowsWrapped: where the operator's chain leads on into a tenant's, a flow counts
// for both; its answers, which meet them the other way round, for nobody.
func newFlowsWrapped(b *testbed) {
	op, op2, ten := b.instance("op", gateway), b.instance("op2", gateway), b.instance("ten", gateway)
	op.tenant, op2.tenant, ten.tenant = onpath.OperatorTenant, onpath.OperatorTenant, "inner"
	op2.state = onpath.VportClosed
	dns := toServer()
	dns.Protocol, dns.DstPorts = []uint8{udp}, ports(onpath.PortRange{First: 53, Last: 53})
	l := &layout{limits: limited("inner"), instances: []*instance{op, op2, ten}, chains: []*chain{
		{path: 1, tenant: onpath.OperatorTenant, tier: onpath.TierOperator, match: toServer(), elements: []*element{{instances: []*instance{op, op2}}}},
		{path: 2, tenant: "inner", match: web(), elements: []*element{{instances: []*instance{ten}}}},
		{path: 3, tenant: "inner", match: dns, elements: []*element{{instances: []*instance{ten}}}},
	}}
	b.apply(l)
	// The tenant is asked behind the operator's element.
	f := &flood{testbed: b, tenant: "inner", in: onpath.DeviceName(op.vport), out: onpath.DeviceName(ten.vport), from: 1000}
	behind := func(n uint16) []byte { return withTTL(b.before(op, tcp4(n)), 1) }
	f.untilBegun(behind(1))
	f.untilRefused(3, behind)
	b.forward(tcp4(1), op, ten)
	b.backward(tcp4(1), ten, op)
	f.untilRefused(1, behind)
	for k := range uint16(20) {
		b.forward(tuple(udp, client, k+1, server, 9), op)
	}
	f.counted(perSecond)
	f.untilBegun(withTTL(b.before(op, udp4(1)), 1))
	b.forward(udp4(1), op, ten)
	b.backward(udp4(1), ten, op)

	// Flows that only change the instance before begin nothing.
	op.state, op2.state = onpath.VportClosed, onpath.VportUp
	b.apply(l)
	b.forward(udp4(1), op2, ten)
	b.backward(udp4(1), ten, op2)
	b.through(clientNet, ack4(1), serverNet, forwards(op2, ten)...)
	f.in = onpath.DeviceName(op2.vport)
	f.untilRefused(1, func(n uint16) []byte { return withTTL(b.before(op2, tcp4(n)), 1) })

	// What the operator may not begin does not come so far.
	l.limits = limited("inner", onpath.OperatorTenant)
	b.apply(l)
	e := &flood{testbed: b, tenant: onpath.OperatorTenant, in: clientNet, out: onpath.DeviceName(op2.vport), from: 10000}
	e.untilRefused(3, syn4)
	b.forward(tcp4(1), op2, ten)
	b.backward(tcp4(1), ten, op2)
	e.counted(perSecond)
	last := tcp4(e.from - 1)
	if slices.ContainsFunc(b.flows(gateway, onpath.FlowFilter{}), func(e onpath.FlowEntry) bool { return e.Tuple == last }) {
		b.t.Error("what was refused has left an entry")
	}
}

// newFlowsGateways: each gateway of a pair asks for the flows that begin there, and for
// none that began at the other one.
func newFlowsGateways(b *testbed) {
	l, is := b.pairOf(gateway)
	l.limits = limited("exam")
	b.apply(l)
	fw := onpath.DeviceName(is[0].vport)
	here := &flood{testbed: b, tenant: "exam", in: clientNet, out: fw, from: 1000}
	atPeer := &flood{testbed: b, tenant: "exam", at: sideNode, in: sideNet, out: fw, from: 2000}
	atPeer.untilRefused(3, syn4)
	b.enters(gateway, clientNet, syn4(1), gateway, serverNet, is...)
	here.untilRefused(3, syn4)
	answer := answerTo(tcp4(1)).bytes()
	b.enters(sideNode, sideNet, answer, sideNode, sideNet, is...)
	atPeer.untilRefused(1, syn4)
	for _, in := range [][2]string{{gateway, clientNet}, {sideNode, sideNet}} {
		for range 5 {
			b.enters(in[0], in[1], ack4(1), in[0], map[string]string{gateway: serverNet, sideNode: sideNet}[in[0]], is...)
		}
	}
	here.untilRefused(1, syn4)
	here.counted(perSecond)
	atPeer.counted(perSecond)
}
