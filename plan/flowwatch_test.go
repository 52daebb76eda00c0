package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/onpath/onpath"
)

// TestWatched: what the nodes counted for a flow and its answers stands in the
// order of the hops, also behind an element that changes addresses, and every
// packet is accounted for.
func TestWatched(t *testing.T) {
	s, m, tu := tracedSite(t)
	edge := s.states["fra1-gw"].Acked.Datapath.Edge.Vport
	w := m.send(edge, tu)
	m.send(edge, w.out.Reverse())
	in := TraceInput{Snapshot: s.snapshot(), Request: onpath.TraceRequest{Tuple: tu}, Flows: entriesOf(m)}
	tr := Trace(in)
	tuples := WatchTuples(tr, tu)
	if len(tuples) != 4 {
		t.Fatalf("watched are %v: want both directions, before and behind the translation", tuples)
	}
	byDep := func(dep string) *onpath.Instance { return s.instances(dep)[0] }
	fw, nat := byDep("web-fw"), byDep("web-dnat")
	counted := map[string][]onpath.FlowCounters{}
	note := func(node string, v onpath.VportID, tu onpath.Tuple, in, out uint64, dropped map[onpath.DropReason]uint64) {
		c := onpath.VportCounters{In: onpath.Tally{Packets: in}, Out: onpath.Tally{Packets: out}, Dropped: dropped}
		for i := range counted[node] {
			if counted[node][i].Tuple == tu {
				counted[node][i].Vports[v] = c
				return
			}
		}
		counted[node] = append(counted[node], onpath.FlowCounters{Tuple: tu, Vports: map[onpath.VportID]onpath.VportCounters{v: c}})
	}
	out := tu
	out.Dst = own
	// 20 come in: 2 are too big, 1 is lost in the tunnel, the firewall drops 5,
	// one is dropped behind it, and 11 leave.
	note("fra1-gw", edge, tu, 20, 0, map[onpath.DropReason]uint64{onpath.DropTooBig: 2})
	note("fra1-gw", fw.Spec.Vport, tu, 0, 18, nil)
	note(fw.Spec.Node, edge, tu, 17, 0, nil)
	note(fw.Spec.Node, fw.Spec.Vport, tu, 12, 17, map[onpath.DropReason]uint64{onpath.DropClosed: 1})
	note(fw.Spec.Node, nat.Spec.Vport, tu, 0, 11, nil)
	note(nat.Spec.Node, fw.Spec.Vport, tu, 11, 0, nil)
	note(nat.Spec.Node, nat.Spec.Vport, tu, 0, 11, nil)
	note(nat.Spec.Node, nat.Spec.Vport, out, 11, 0, nil)
	note(nat.Spec.Node, edge, out, 0, 11, nil)
	note("fra1-gw", nat.Spec.Vport, out, 11, 0, nil)
	note("fra1-gw", edge, out, 0, 11, nil)
	f := Watched(in.Snapshot, tr, tu, counted)
	var got []string
	for _, h := range f.Forward {
		if strings.Contains(h.Name, "web-ids") {
			continue
		}
		got = append(got, fmt.Sprintf("%s %d-%d f%d l%d d%d", h.Kind, h.In.Packets, h.Out.Packets, h.Function, h.Lost, drops(h.Dropped)))
	}
	want := "edge 20-18 f0 l0 d2, tunnel 18-17 f0 l0 d0, element 17-12 f5 l1 d1, tunnel 11-11 f0 l0 d0, element 11-11 f0 l0 d0, tunnel 11-11 f0 l0 d0, exit 11-11 f0 l0 d0"
	if fw.Spec.Node == nat.Spec.Node {
		t.Skip("lacks two nodes for two elements") // placement spreads them
	}
	if s := strings.Join(got, ", "); s != want {
		t.Errorf("forward:\n%s, want\n%s", s, want)
	}
	if len(f.Elsewhere) > 0 {
		t.Errorf("elsewhere: %+v", f.Elsewhere)
	}

	// A mirror between them, on the second one's node: its copies come there out of the
	// same vport, and are not what the flow itself brings; what it sends ends at it.
	ids := byDep("web-ids")
	ids.Spec.Node = nat.Spec.Node
	note(nat.Spec.Node, fw.Spec.Vport, tu, 22, 0, nil)
	note(nat.Spec.Node, ids.Spec.Vport, tu, 4, 11, map[onpath.DropReason]uint64{onpath.DropMirror: 4})
	in.Snapshot.Objects[onpath.KeyOf(ids)] = ids
	behind := 1 + slices.IndexFunc(tr.Forward, func(h onpath.TraceHop) bool { return h.Vport == fw.Spec.Vport })
	tr.Forward = slices.Insert(tr.Forward, behind, onpath.TraceHop{Kind: onpath.HopElement, Node: ids.Spec.Node, Vport: ids.Spec.Vport, Mode: onpath.ModeMirror})
	f = Watched(in.Snapshot, tr, tu, counted)
	mirrors := 0
	for _, h := range f.Forward {
		if h.Kind == onpath.HopTunnel && (h.In.Packets > h.Out.Packets+1 || h.In.Packets < h.Out.Packets) || h.Lost < 0 {
			t.Errorf("with a mirror: %+v", h)
		}
		if h.Mode == onpath.ModeMirror {
			if mirrors++; h.In.Packets != 11 || h.Dropped[onpath.DropMirror] != 4 || h.Lost != 0 {
				t.Errorf("the mirror: %+v", h)
			}
		}
	}
	if mirrors != 1 || len(f.Elsewhere) > 0 {
		t.Errorf("%d mirrors; elsewhere: %+v", mirrors, f.Elsewhere)
	}
}
