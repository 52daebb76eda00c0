package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/onpath/onpath"
)

// inlineSite is a chain of functions before and behind a container, whose flow the
// nodes know as the data path writes it.
type inlineSite struct {
	*sim
	tu               onpath.Tuple
	acl, fw, guard   *onpath.Instance
	edge             onpath.VportID
	in               TraceInput
	gateway, compute string
}

func newInlineSite(t *testing.T) *inlineSite {
	s := newSim(t, 3)
	s.site("fra1", 1, 1)
	inline := func(f *onpath.FunctionSpec) {
		f.Container, f.EBPF = nil, &onpath.EBPFSpec{Object: "firewall"}
	}
	s.apply(aFunction("default", "acl", inline), aFunction("default", "fw", nil), aFunction("default", "guard", inline))
	s.apply(aChain("default", "mine", through("acl", 1), through("fw", 1), through("guard", 1)))
	s.settle()
	one := func(dep string) *onpath.Instance {
		list := s.instances(dep)
		if len(list) != 1 {
			t.Fatalf("%s has %d instances", dep, len(list))
		}
		return list[0]
	}
	x := &inlineSite{sim: s, acl: one("mine-acl"), fw: one("mine-fw"), guard: one("mine-guard")}
	x.gateway, x.compute = "fra1-gw", x.fw.Spec.Node
	x.edge = s.states["fra1-gw"].Acked.Datapath.Edge.Vport
	x.tu = onpath.Tuple{Protocol: 6, Src: netip.MustParseAddr("203.0.113.7"), Dst: netip.MustParseAddr("198.51.100.10"), SrcPort: 40000, DstPort: 80}
	x.in = TraceInput{Snapshot: s.snapshot(), Request: onpath.TraceRequest{Tuple: x.tu}, Flows: map[string][]onpath.FlowEntry{}}
	x.count(0, 0)
	return x
}

// count has acl drop and guard drop packets, of whatever flows.
func (x *inlineSite) count(acl, guard uint64) {
	f := func(dropped uint64) onpath.FunctionCounters {
		return onpath.FunctionCounters{Passed: onpath.Tally{Packets: 9}, Dropped: onpath.Tally{Packets: dropped}}
	}
	x.in.Counters = map[string]*onpath.Counters{x.gateway: {
		Vports:    map[onpath.VportID]onpath.VportCounters{x.acl.Spec.Vport: {Out: onpath.Tally{Packets: 99}}},
		Functions: map[onpath.VportID]onpath.FunctionCounters{x.acl.Spec.Vport: f(acl), x.guard.Spec.Vport: f(guard)},
	}}
}

// entry writes one of a node: to 0 is the exit.
func (x *inlineSite) entry(node string, at onpath.VportID, reverse bool, to onpath.VportID, functions ...*onpath.Instance) {
	e := onpath.FlowEntry{Vport: at, Tuple: x.tu, Kind: onpath.NextVport, Next: to, Entry: x.edge, Path: 1, Reverse: reverse, Packets: 7}
	if reverse {
		e.Tuple, e.Learned = x.tu.Reverse(), true
	}
	if to == 0 {
		e.Kind, e.Next = onpath.NextExit, x.edge
	}
	for _, f := range functions {
		e.Functions = append(e.Functions, f.Spec.Vport)
	}
	x.in.Flows[node] = append(x.in.Flows[node], e)
}

// passes writes the entries of a flow that passes all elements, and its answer.
func (x *inlineSite) passes() {
	acl, fw, guard := x.acl.Spec.Vport, x.fw.Spec.Vport, x.guard.Spec.Vport
	x.entry(x.gateway, x.edge, false, fw, x.acl)
	x.entry(x.compute, fw, false, guard)
	x.entry(x.gateway, fw, false, 0, x.guard)
	x.entry(x.gateway, x.edge, true, fw, x.guard)
	x.entry(x.compute, fw, true, acl)
	x.entry(x.gateway, fw, true, 0, x.acl)
}

// TestTraceRelays: functions of the gateway around a container of another node are
// hops in both directions, and each is where the packets are.
func TestTraceRelays(t *testing.T) {
	x := newInlineSite(t)
	x.passes()
	tr := Trace(x.in)
	if f, r := hopsOf(tr.Forward), hopsOf(tr.Reverse); f != "edge mine-acl tunnel mine-fw tunnel mine-guard exit" || r != "edge mine-guard tunnel mine-fw tunnel mine-acl exit" {
		t.Fatalf("forward: %s, reverse: %s", f, r)
	}
	if len(tr.Warnings) > 0 || !slices.Equal(tr.Chains, []string{"default/mine"}) {
		t.Errorf("chains %v, warnings %q", tr.Chains, tr.Warnings)
	}
	if h := tr.Forward[1]; h.Node != x.gateway || h.State != "ready" || h.Element != 0 || h.Flow == nil || h.Flow.Packets != 7 || h.Counters == nil || h.Counters.Out.Packets != 99 {
		t.Errorf("of acl: %+v", h)
	}
	if h := tr.Forward[5]; h.Node != x.gateway || h.Element != 2 {
		t.Errorf("of guard: %+v", h)
	}
}

// TestTraceFunctionsOnOneNode: so they are where all elements are on the gateway, in
// the order of the entry.
func TestTraceFunctionsOnOneNode(t *testing.T) {
	x := newInlineSite(t)
	x.entry(x.gateway, x.edge, false, 0, x.acl, x.guard)
	x.entry(x.gateway, x.edge, true, 0, x.guard, x.acl)
	tr := Trace(x.in)
	if f, r := hopsOf(tr.Forward), hopsOf(tr.Reverse); f != "edge mine-acl mine-guard exit" || r != "edge mine-guard mine-acl exit" {
		t.Errorf("forward: %s, reverse: %s", f, r)
	}
	if !slices.Equal(tr.Chains, []string{"default/mine"}) {
		t.Errorf("chains %v", tr.Chains)
	}
}

// TestTraceDroppedByFunction: a flow of which nothing is known behind a function that
// drops packets ends there; where nothing could be known it may end there; and where
// its packets are seen further on it goes on, whatever the function drops.
func TestTraceDroppedByFunction(t *testing.T) {
	for _, c := range []struct {
		name, want, says string
		write            func(x *inlineSite)
	}{
		{"before a container", "edge mine-acl drop", "ends here: none of its packets has passed default/mine-acl", func(x *inlineSite) {
			x.entry(x.gateway, x.edge, false, x.fw.Spec.Vport, x.acl)
			x.count(3, 0)
		}},
		{"behind a container", "edge mine-acl tunnel mine-fw tunnel mine-guard drop", "ends here: none of its packets has passed default/mine-guard", func(x *inlineSite) {
			x.passes()
			x.in.Flows[x.gateway] = slices.DeleteFunc(x.in.Flows[x.gateway], func(e onpath.FlowEntry) bool { return e.Tuple != x.tu })
			x.count(0, 3)
		}},
		{"no container", "edge mine-acl exit", "may have dropped its packets", func(x *inlineSite) {
			x.entry(x.gateway, x.edge, false, 0, x.acl)
			x.entry(x.gateway, x.edge, true, 0, x.acl)
			x.in.Flows[x.gateway][1].Packets = 0
			x.count(3, 0)
		}},
		{"other flows", "edge mine-acl tunnel mine-fw tunnel mine-guard exit", "", func(x *inlineSite) {
			x.passes()
			x.count(3, 3)
		}},
		{"the container drops", "edge mine-acl tunnel mine-fw", "no packet of the flow has come out of it", func(x *inlineSite) {
			x.entry(x.gateway, x.edge, false, x.fw.Spec.Vport, x.acl)
			x.entry(x.compute, x.fw.Spec.Vport, true, x.acl.Spec.Vport)
			x.count(3, 0)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newInlineSite(t)
			c.write(x)
			tr := Trace(x.in)
			last := tr.Forward[len(tr.Forward)-1]
			if got := hopsOf(tr.Forward); got != c.want || !strings.Contains(last.Message, c.says) || c.says == "" && last.Message != "" {
				t.Errorf("%s: %q", got, last.Message)
			}
			if last.Kind == onpath.HopDrop && (len(tr.Reverse) > 0 || len(tr.Warnings) > 0) {
				t.Errorf("it ends, and then: %s %q", hopsOf(tr.Reverse), tr.Warnings)
			}
		})
	}
}

// TestTraceDropsStandAtTheFunction: what ebpf functions dropped stands in their own
// rows, not where the packets came from, also once a function has left the chain. Of a
// flow that ends at one element nothing is said of elements behind it.
func TestTraceDropsStandAtTheFunction(t *testing.T) {
	x := newInlineSite(t)
	x.entry(x.gateway, x.edge, false, x.fw.Spec.Vport, x.acl)
	x.count(840, 0)
	x.in.Counters[x.gateway].Vports[x.edge] = onpath.VportCounters{Dropped: map[onpath.DropReason]uint64{onpath.DropFunction: 900, onpath.DropTooBig: 2}}
	tr := Trace(x.in)
	edge, acl := tr.Forward[0].Counters, tr.Forward[1].Counters
	if got := edge.Dropped; len(got) != 1 || got[onpath.DropTooBig] != 2 {
		t.Errorf("dropped at the edge: %v", got)
	}
	if got := acl.Dropped; len(got) != 1 || got[onpath.DropFunction] != 840 {
		t.Errorf("dropped by the function: %v", got)
	}
	if len(tr.Warnings) > 0 || tr.Forward[len(tr.Forward)-1].Kind != onpath.HopDrop {
		t.Errorf("it ends at element 1, and then: %s %q", hopsOf(tr.Forward), tr.Warnings)
	}
	x = newInlineSite(t)
	x.entry(x.gateway, x.edge, false, x.fw.Spec.Vport, x.acl)
	x.entry(x.compute, x.fw.Spec.Vport, true, x.acl.Spec.Vport)
	if tr = Trace(x.in); len(tr.Warnings) > 0 || !tr.Forward[len(tr.Forward)-1].Ends {
		t.Errorf("it ends at element 2, and then: %s %q", hopsOf(tr.Forward), tr.Warnings)
	}
}

// TestTraceEditedByFunction: answers to what a function readdresses are found by the
// end point that stays.
func TestTraceEditedByFunction(t *testing.T) {
	x := newInlineSite(t)
	for _, f := range objects[*onpath.Function](x.in.Snapshot) {
		f.Spec.Packets = onpath.PacketsRewrite
	}
	x.entry(x.gateway, x.edge, false, 0, x.acl)
	x.entry(x.gateway, x.edge, true, 0, x.acl)
	x.in.Flows[x.gateway][1].Tuple.Src = netip.MustParseAddr("198.51.100.99")
	tr := Trace(x.in)
	if f, r := hopsOf(tr.Forward), hopsOf(tr.Reverse); f != "edge mine-acl exit" || r != "edge mine-acl exit" {
		t.Errorf("forward: %s, reverse: %s", f, r)
	}
	// The entry for answers to the first addresses stays unused, and is not what is meant.
	x.entry(x.gateway, x.edge, true, 0, x.acl)
	answers := &x.in.Flows[x.gateway][2]
	answers.Packets = 0
	x.entry(x.gateway, x.edge, true, 0, x.acl) // of another flow
	x.in.Flows[x.gateway][3].Tuple.DstPort++
	tr = Trace(x.in)
	if r := tr.Reverse[0]; r.Flow == nil || r.Flow.Packets == 0 || r.Tuple == nil || r.Tuple.Src != netip.MustParseAddr("198.51.100.99") {
		t.Errorf("answers: %+v", r)
	}
	for _, h := range []struct {
		hop  onpath.TraceHop
		says string
	}{{tr.Forward[1], "→ 198.51.100.99 port"}, {tr.Reverse[1], "goes on as " + x.tu.Dst.String()}} {
		if !strings.Contains(h.hop.Message, h.says) {
			t.Errorf("the function's hop says %q, not %q", h.hop.Message, h.says)
		}
	}
	edge := func(in, out uint64) map[onpath.VportID]onpath.VportCounters {
		return map[onpath.VportID]onpath.VportCounters{x.edge: {In: onpath.Tally{Packets: in}, Out: onpath.Tally{Packets: out}}}
	}
	to, from := x.tu, *tr.Reverse[0].Tuple
	w := Watched(x.in.Snapshot, tr, x.tu, map[string][]onpath.FlowCounters{x.gateway: {
		{Tuple: to, Vports: edge(12, 0)}, {Tuple: from.Reverse(), Vports: edge(0, 12)},
		{Tuple: from, Vports: edge(9, 0)}, {Tuple: to.Reverse(), Vports: edge(0, 9)}}})
	for want, hops := range map[uint64][]onpath.WatchHop{12: w.Forward, 9: w.Reverse} {
		for _, h := range hops {
			if h.In.Packets != want || h.Out.Packets != want || h.Lost != 0 {
				t.Errorf("watched: %+v, must be %d everywhere", h, want)
			}
		}
	}
}

// TestWatchedFunctions: what a function drops of a watched flow stands at it, and
// nothing is lost besides.
func TestWatchedFunctions(t *testing.T) {
	x := newInlineSite(t)
	x.passes()
	tr := Trace(x.in)
	acl, fw, guard := x.acl.Spec.Vport, x.fw.Spec.Vport, x.guard.Spec.Vport
	n := func(in, out, dropped uint64) onpath.VportCounters {
		c := onpath.VportCounters{In: onpath.Tally{Packets: in}, Out: onpath.Tally{Packets: out}}
		if dropped > 0 {
			c.Dropped = map[onpath.DropReason]uint64{onpath.DropFunction: dropped}
		}
		return c
	}
	counted := map[string][]onpath.FlowCounters{
		x.gateway: {{Tuple: x.tu, Vports: map[onpath.VportID]onpath.VportCounters{x.edge: n(20, 11, 4), fw: n(14, 16, 3)}}},
		x.compute: {{Tuple: x.tu, Vports: map[onpath.VportID]onpath.VportCounters{acl: n(16, 0, 0), fw: n(14, 16, 0), guard: n(0, 14, 0)}}},
	}
	f := Watched(x.in.Snapshot, tr, x.tu, counted)
	var got []string
	for _, h := range f.Forward {
		got = append(got, fmt.Sprintf("%s %d-%d f%d l%d d%d", h.Kind, h.In.Packets, h.Out.Packets, h.Function, h.Lost, drops(h.Dropped)))
	}
	want := "edge 20-20 f0 l0 d0, element 20-16 f4 l0 d0, tunnel 16-16 f0 l0 d0, element 16-14 f2 l0 d0, tunnel 14-14 f0 l0 d0, element 14-11 f3 l0 d0, exit 11-11 f0 l0 d0"
	if s := strings.Join(got, ", "); s != want {
		t.Errorf("forward:\n%s, want\n%s", s, want)
	}
	if len(f.Elsewhere) > 0 {
		t.Errorf("elsewhere: %+v", f.Elsewhere)
	}
}
