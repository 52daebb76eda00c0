package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// entriesOf are a model's flow entries as nodes would report them.
func entriesOf(m *model) map[string][]onpath.FlowEntry {
	out := map[string][]onpath.FlowEntry{}
	for p, h := range m.entries {
		x := m.home[p.vport]
		e := onpath.FlowEntry{Vport: p.vport, Tuple: p.tuple, Kind: onpath.NextVport, Next: h.to, Entry: h.entry, Packets: 7, Bytes: 700, Path: 1, Learned: m.learned[p], Emitted: m.emitted[p]}
		if m.used[p] == nil {
			e.Packets, e.Bytes = 0, 0
		}
		if x.edge == h.to {
			e.Kind = onpath.NextExit
		}
		if g, _, reverse := h.group.Split(); g != 0 {
			e.Reverse = reverse
		} else {
			e.Reverse = p.tuple.Dst == netip.MustParseAddr("10.1.0.5")
		}
		out[x.plan.Node] = append(out[x.plan.Node], e)
	}
	for p := range m.given {
		if _, decided := m.entries[p]; !decided {
			x := m.home[p.vport]
			out[x.plan.Node] = append(out[x.plan.Node], onpath.FlowEntry{Vport: p.vport, Tuple: p.tuple, Kind: onpath.NextPending, Path: 1,
				Reverse: p.tuple.Dst == netip.MustParseAddr("10.1.0.5")})
		}
	}
	return out
}

func hopsOf(list []onpath.TraceHop) string {
	var out []string
	for _, h := range list {
		s := string(h.Kind)
		if h.Kind == onpath.HopElement {
			_, n, _ := strings.Cut(h.Name, "/")
			s = n[:max(0, len(n)-6)]
			if h.Name == "" {
				s = fmt.Sprintf("%d of %d", 1, len(h.Candidates))
			}
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

func tracedSite(t *testing.T) (*sim, *model, onpath.Tuple) {
	s := newSim(t, 3)
	s.site("fra1", 1, 3)
	h, _ := onpath.New(onpath.KindHosts)
	h.Meta().Name, h.Meta().Tenant = "website", "default"
	h.(*onpath.Hosts).Spec = onpath.HostsSpec{Addresses: prefixes(own.String()), Virtual: prefixes(virtual.String())}
	s.apply(h, aFunction("default", "fw", nil), aFunction("default", "ids", nil),
		aFunction("default", "dnat", func(f *onpath.FunctionSpec) { f.Packets = onpath.PacketsRewrite }))
	ids := through("ids", 1)
	ids.Mode = onpath.ModeMirror
	c := aChain("default", "web", through("fw", 1), ids, through("dnat", 1))
	c.Spec.To = onpath.Endpoints{Hosts: "website"}
	s.apply(c)
	s.settle()
	m := newModel(s)
	m.change = func(i string, t onpath.Tuple) onpath.Tuple { return natOnce(i, t) }
	return s, m, onpath.Tuple{Protocol: 6, Src: netip.MustParseAddr("10.1.0.5"), Dst: virtual, SrcPort: 40000, DstPort: 80}
}

func natOnce(i string, t onpath.Tuple) onpath.Tuple {
	if strings.Contains(i, "dnat") {
		if t.Dst == virtual {
			t.Dst = own
		} else if t.Src == own {
			t.Src = virtual
		}
	}
	return t
}

func TestTraceLive(t *testing.T) {
	s, m, tu := tracedSite(t)
	edge := s.states["fra1-gw"].Acked.Datapath.Edge.Vport
	w := m.send(edge, tu)
	m.send(edge, w.out.Reverse())
	ask := tu
	ask.SrcPort = 0
	tr := Trace(TraceInput{Snapshot: s.snapshot(), Request: onpath.TraceRequest{Tuple: ask}, Flows: entriesOf(m)})
	if !tr.Live || tr.Tuple != tu {
		t.Fatalf("not live: %+v", tr)
	}
	if got := hopsOf(tr.Forward); got != "edge tunnel web-fw tunnel web-dnat tunnel exit" {
		t.Errorf("forward: %s", got)
	}
	if got := hopsOf(tr.Reverse); got != "edge tunnel web-dnat tunnel web-fw tunnel exit" {
		t.Errorf("reverse: %s", got)
	}
	if len(tr.Chains) != 1 || tr.Chains[0] != "default/web" || len(tr.Warnings) > 0 {
		t.Errorf("chains %v, warnings %v", tr.Chains, tr.Warnings)
	}
	for _, h := range tr.Forward {
		if strings.HasPrefix(h.Name, "default/web-dnat") && (!strings.Contains(h.Message, own.String()) || h.Element != 2) {
			t.Errorf("the guess is not said: %+v", h)
		}
	}
}

// TestTraceAnswerSkips: answers that skip what the packets pass are not shown without a
// word.
func TestTraceAnswerSkips(t *testing.T) {
	s, m, tu := tracedSite(t)
	edge := s.states["fra1-gw"].Acked.Datapath.Edge.Vport
	w := m.send(edge, tu)
	m.send(edge, w.out.Reverse())
	flows := entriesOf(m)
	for i, e := range flows["fra1-gw"] {
		if e.Vport == edge && e.Tuple == w.out.Reverse() {
			flows["fra1-gw"][i].Kind, flows["fra1-gw"][i].Next = onpath.NextExit, edge
		}
	}
	tr := Trace(TraceInput{Snapshot: s.snapshot(), Request: onpath.TraceRequest{Tuple: tu}, Flows: flows})
	all := notes(tr.Warnings)
	for _, want := range []string{"answers do not pass element 1 of chain default/web", "answers do not pass element 3 of chain default/web"} {
		if !strings.Contains(all, want) {
			t.Errorf("no warning %q in %q, reverse: %s", want, all, hopsOf(tr.Reverse))
		}
	}
}

func TestTracePlanned(t *testing.T) {
	s, _, tu := tracedSite(t)
	tr := Trace(TraceInput{Snapshot: s.snapshot(), Request: onpath.TraceRequest{Tuple: tu}})
	if got := hopsOf(tr.Forward); tr.Live || got != "edge tunnel web-fw web-ids tunnel web-dnat tunnel exit" {
		t.Errorf("forward: %s", got)
	}
	if got := hopsOf(tr.Reverse); got != "edge tunnel web-dnat tunnel web-ids web-fw tunnel exit" {
		t.Errorf("reverse: %s", got)
	}
	tu.Dst = netip.MustParseAddr("192.0.2.1")
	tr = Trace(TraceInput{Snapshot: s.snapshot(), Request: onpath.TraceRequest{Tuple: tu}})
	if got := hopsOf(tr.Forward); got != "kernel" || len(tr.Chains) != 0 {
		t.Errorf("unselected: %s %v", got, tr.Chains)
	}
}

func TestTraceWarns(t *testing.T) {
	s, m, tu := tracedSite(t)
	edge := s.states["fra1-gw"].Acked.Datapath.Edge.Vport
	in := TraceInput{Snapshot: s.snapshot(), Request: onpath.TraceRequest{Tuple: tu}, Silent: map[string]string{"fra1-n9": "it is not connected"}}
	in.Flows = map[string][]onpath.FlowEntry{"fra1-gw": {{Vport: edge, Tuple: tu, Kind: onpath.NextPass, Packets: 3, Path: 1}}}
	tr := Trace(in)
	all := notes(tr.Warnings)
	for _, want := range []string{"bypasses", "chain default/web selects the packet, but this flow does not pass it", "fra1-n9 cannot be asked"} {
		if !strings.Contains(all, want) {
			t.Errorf("no warning %q in:\n%s", want, all)
		}
	}
	m.send(edge, tu)
	in.Flows = entriesOf(m)
	in.Request.Tenant = "other"
	tr = Trace(in)
	tr.Redact("other")
	for _, h := range tr.Forward {
		if strings.Contains(h.Name, "web") || h.Counters != nil {
			t.Errorf("another tenant sees %+v", h)
		}
	}
	if len(tr.Chains) != 0 {
		t.Errorf("another tenant sees chains %v", tr.Chains)
	}
}

// TestTracePrefersTheLiveEntry: of two flows that fit, the one that packets
// pass now is shown, however busy the other was.
func TestTracePrefersTheLiveEntry(t *testing.T) {
	s, m, tu := tracedSite(t)
	edge := s.states["fra1-gw"].Acked.Datapath.Edge.Vport
	live := m.send(edge, tu)
	m.send(edge, live.out.Reverse())
	flows := entriesOf(m)
	stale := tu
	stale.SrcPort = 39999
	for n, list := range flows {
		for _, e := range list {
			if e.Tuple == tu {
				e.Tuple, e.Kind, e.Next, e.Packets, e.Idle = stale, onpath.NextDrop, 0, 1000, onpath.Duration(time.Minute)
				flows[n] = append([]onpath.FlowEntry{e}, flows[n]...)
			}
		}
	}
	ask := tu
	ask.SrcPort = 0
	tr := Trace(TraceInput{Snapshot: s.snapshot(), Request: onpath.TraceRequest{Tuple: ask}, Flows: flows})
	if got := hopsOf(tr.Forward); tr.Tuple != tu || got != "edge tunnel web-fw tunnel web-dnat tunnel exit" {
		t.Errorf("it follows %v: %s", tr.Tuple, got)
	}
}

// TestTraceOfRest: a flow that rests says since when, and what a new one would meet.
func TestTraceOfRest(t *testing.T) {
	s, m, tu := tracedSite(t)
	m.send(s.states["fra1-gw"].Acked.Datapath.Edge.Vport, tu)
	flows := entriesOf(m)
	for _, list := range flows {
		for i := range list {
			list[i].Idle = onpath.Duration(20 * time.Second)
		}
	}
	sn := s.snapshot()
	gw := sn.States["fra1-gw"]
	acked := *gw.Acked
	acked.Datapath.Groups = slices.Clone(acked.Datapath.Groups)
	for i := range acked.Datapath.Groups {
		acked.Datapath.Groups[i].Members = nil
	}
	sn.States["fra1-gw"] = &NodeState{Seen: gw.Seen, Report: gw.Report, Acked: &acked}
	tr := Trace(TraceInput{Snapshot: sn, Flows: flows, Request: onpath.TraceRequest{Tuple: tu}})
	if !tr.Live || tr.Idle != onpath.Duration(20*time.Second) {
		t.Errorf("live %v, rests for %v", tr.Live, tr.Idle)
	}
	if all := notes(tr.Warnings); !strings.Contains(all, "a new flow would be dropped at element 1 of chain default/web: ") {
		t.Errorf("no warning of what a new flow meets in %q", all)
	}
}

// TestTraceThroughAwayNode says which node is away, without any live entry.
func TestTraceThroughAwayNode(t *testing.T) {
	s, _, tu := tracedSite(t)
	node := s.instances("web-fw")[0].Spec.Node
	sn := s.snapshot()
	sn.Now = sn.Now.Add(onpath.NodeTimeout + time.Second)
	for n, st := range sn.States {
		if c := *st; n != node {
			c.Seen = sn.Now
			sn.States[n] = &c
		}
	}
	tr := Trace(TraceInput{Snapshot: sn, Request: onpath.TraceRequest{Tuple: tu}})
	if all := notes(tr.Warnings); !strings.Contains(all, "node "+node+" is away") {
		t.Errorf("no warning of %s in %q", node, all)
	}
}

// TestTracePair: of a pair of gateways each direction is followed from the one where
// it comes in; the other one was told of it, and says so if it is asked.
func TestTracePair(t *testing.T) {
	s, _, tu := tracedSite(t)
	s.apply(aNode("fra1-gw2", "fra1", 190, true))
	s.connect("fra1-gw2")
	s.settle()
	m := newModel(s)
	m.change = func(i string, t onpath.Tuple) onpath.Tuple { return natOnce(i, t) }
	first, second := s.states["fra1-gw"].Acked.Datapath.Edge.Vport, s.states["fra1-gw2"].Acked.Datapath.Edge.Vport
	w := m.send(first, tu)
	m.send(second, w.out.Reverse())
	flows := entriesOf(m)
	for node, list := range flows {
		for i, e := range list {
			if node == "fra1-gw" && e.Vport == first && e.Tuple != tu || node == "fra1-gw2" && e.Vport == second && e.Tuple == tu {
				flows[node][i].Packets = 0 // told
			}
		}
	}
	for gateway, starts := range map[string][2]string{"": {"fra1-gw", "fra1-gw2"}, "fra1-gw": {"fra1-gw", "fra1-gw"}, "fra1-gw2": {"fra1-gw2", "fra1-gw2"}} {
		tr := Trace(TraceInput{Snapshot: s.snapshot(), Request: onpath.TraceRequest{Tuple: tu, Gateway: gateway}, Flows: flows})
		if !tr.Live || len(tr.Forward) == 0 || len(tr.Reverse) == 0 || len(tr.Warnings) > 0 {
			t.Fatalf("asked for gateway %q: %+v", gateway, tr)
		}
		if got := [2]string{tr.Forward[0].Node, tr.Reverse[0].Node}; got != starts {
			t.Errorf("asked for gateway %q, the directions begin at %v, want %v", gateway, got, starts)
		}
		if got := hopsOf(tr.Reverse); got != "edge tunnel web-dnat tunnel web-fw tunnel exit" {
			t.Errorf("asked for gateway %q, reverse: %s", gateway, got)
		}
	}
}

// TestTraceMirrored: a chain that only has copies made is not bypassed.
func TestTraceMirrored(t *testing.T) {
	s := newSim(t, 3)
	s.site("fra1", 1, 3)
	s.apply(aFunction("default", "ids", nil))
	ids := through("ids", 1)
	ids.Mode = onpath.ModeMirror
	s.apply(aChain("default", "copies", ids))
	s.settle()
	tu := onpath.Tuple{Protocol: 17, Src: netip.MustParseAddr("10.1.0.5"), Dst: own, SrcPort: 40000, DstPort: 80}
	edge := s.states["fra1-gw"].Acked.Datapath.Edge.Vport
	var copies []onpath.VportID
	for _, i := range objects[*onpath.Instance](s.snapshot()) {
		copies = append(copies, i.Spec.Vport)
	}
	entry := onpath.FlowEntry{Vport: edge, Tuple: tu, Kind: onpath.NextPass, Mirrors: copies, Entry: edge, Path: 1, Packets: 7}
	answer := entry
	answer.Tuple, answer.Reverse = tu.Reverse(), true
	flows := map[string][]onpath.FlowEntry{"fra1-gw": {entry, answer}}
	tr := Trace(TraceInput{Snapshot: s.snapshot(), Request: onpath.TraceRequest{Tuple: tu}, Flows: flows})
	if !tr.Live || len(tr.Warnings) > 0 {
		t.Errorf("live: %v, warnings %v", tr.Live, tr.Warnings)
	}
	for way, hops := range map[string][]onpath.TraceHop{"forward": tr.Forward, "reverse": tr.Reverse} {
		if got := hopsOf(hops); got != "edge copies-ids kernel" {
			t.Errorf("%s: %s", way, got)
		}
	}
}

// TestTraceUnanswered: TCP that goes on without an answer has its answers elsewhere.
func TestTraceUnanswered(t *testing.T) {
	s, m, tu := tracedSite(t)
	edge := s.states["fra1-gw"].Acked.Datapath.Edge.Vport
	w := m.send(edge, tu)
	trace := func(change func(e *onpath.FlowEntry)) string {
		flows := entriesOf(m)
		for _, list := range flows {
			for i := range list {
				change(&list[i])
			}
		}
		tr := Trace(TraceInput{Snapshot: s.snapshot(), Request: onpath.TraceRequest{Tuple: tu}, Flows: flows})
		if !tr.Live {
			t.Fatalf("not live: %+v", tr)
		}
		return notes(tr.Warnings)
	}
	count := func(forward, reverse uint64) func(e *onpath.FlowEntry) {
		return func(e *onpath.FlowEntry) {
			if e.Packets = forward; e.Reverse {
				e.Packets = reverse
			}
		}
	}
	const want = "no answer has come by, to 10 packets: answers may take a way past the gateway"
	if all := trace(count(10, 0)); all != want {
		t.Errorf("ten packets without an answer: %q", all)
	}
	if all := trace(count(9, 0)); all != "" {
		t.Errorf("nine packets, as of a connection attempt: %q", all)
	}
	if all := trace(func(e *onpath.FlowEntry) {
		if count(10, 0)(e); e.Tuple == w.out {
			e.Packets = 0
		}
	}); all != "" {
		t.Errorf("nothing comes out of the chain: %q", all)
	}
	m.send(edge, w.out.Reverse())
	if all := trace(count(1000, 1)); all != "" {
		t.Errorf("one answer: %q", all)
	}
}

// TestTraceShowsNoStrangersFlows: a flow that no chain of a tenant's selects shows
// him neither its ports nor its counts, nor a warning about others' chains.
func TestTraceShowsNoStrangersFlows(t *testing.T) {
	s, m, tu := tracedSite(t)
	edge := s.states["fra1-gw"].Acked.Datapath.Edge.Vport
	live := m.send(edge, tu)
	m.send(edge, live.out.Reverse())
	ask := tu
	ask.SrcPort = 0
	in := TraceInput{Snapshot: s.snapshot(), Flows: entriesOf(m), Request: onpath.TraceRequest{Tuple: ask, Tenant: "other"}}
	if tr := redacted(in); tr.Tuple != ask || tr.Live || len(tr.Forward) != 1 || tr.Forward[0].Flow != nil || len(tr.Reverse)+len(tr.Warnings)+len(tr.Chains) > 0 {
		t.Errorf("a stranger sees %+v", tr)
	}
	in.Request.Tenant = "default"
	if tr := redacted(in); !tr.Live || tr.Tuple != tu || len(tr.Forward) < 3 {
		t.Errorf("the chain's tenant sees %+v", tr)
	}
	in.Flows = map[string][]onpath.FlowEntry{"fra1-gw": {{Vport: edge, Tuple: tu, Kind: onpath.NextPass, Packets: 3, Path: 1}}}
	if tr := redacted(in); !strings.Contains(notes(tr.Warnings), "chain default/web selects the packet, but this flow does not pass it") {
		t.Errorf("the chain's tenant is not told that the flow passes by: %+v", tr)
	}
	in.Request.Tenant = "other"
	if tr := redacted(in); len(tr.Warnings) > 0 || tr.Live {
		t.Errorf("a stranger sees %+v", tr)
	}
}

// redacted is what the asking tenant sees.
func redacted(in TraceInput) *onpath.Trace {
	tr := Trace(in)
	tr.Redact(in.Request.Tenant)
	return tr
}

func notes(list []onpath.Note) string {
	var lines []string
	for _, n := range list {
		lines = append(lines, n.Text)
	}
	return strings.Join(lines, "\n")
}
