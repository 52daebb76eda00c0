package render_test

import (
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/render"
)

func TestTop(t *testing.T) {
	instance := func(name string, vport, back onpath.VportID) onpath.Object {
		return &onpath.Instance{Metadata: onpath.Metadata{Name: name, Tenant: "a"}, Spec: onpath.InstanceSpec{Node: "n1", Vport: vport, Back: back}}
	}
	all := []onpath.Object{instance("idle", 1, 0), instance("busy", 2, 3)}
	at := func(packets uint64, cpu time.Duration) []render.Load {
		out := onpath.VportCounters{Out: onpath.Tally{Packets: packets, Bytes: 1000 * packets}, Dropped: map[onpath.DropReason]uint64{onpath.DropSpoofed: 2}, Flows: 1}
		return render.Loads(all, map[string]onpath.Counters{
			"n1": {Vports: map[onpath.VportID]onpath.VportCounters{0: {Flows: 9}, 2: out, 3: out}},
			"gw": {Vports: map[onpath.VportID]onpath.VportCounters{2: {Flows: 2}}}}, // knows of one that n1 has forgotten
			map[string]map[string]onpath.Usage{"n1": {"a/busy": {CPU: cpu, Memory: 64 << 20}}})
	}
	list := render.Rates(at(1000, time.Second), at(2000, 2*time.Second), 2*time.Second)
	if len(list) != 2 || list[0].Name != "a/busy" {
		t.Fatalf("got %+v", list)
	}
	r := list[0]
	if r.Packets != 1000 || r.Bits != 8e6 || r.CPU != 0.5 || r.Flows != 2 || r.Dropped != 4 {
		t.Errorf("got %+v", r)
	}
	if list[1].Flows != 0 {
		t.Errorf("%d flows of one that nobody knows of", list[1].Flows)
	}
	if again := render.Rates(at(5000, 9*time.Second), at(1, 0), time.Second); again[0].Packets != 0 || again[0].CPU != 0 {
		t.Errorf("a counter that began anew: %+v", again)
	}
	if first := render.Rates(nil, at(5000, time.Second), 0); first[0].Packets != 0 {
		t.Errorf("without a former moment: %+v", first[0])
	}
	var b strings.Builder
	if err := render.Top(list).Write(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"a/busy", "50.0%", "64Mi", "1k", "8M"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("lacks %s:\n%s", want, b.String())
		}
	}
}

// TestTopFunction: what an ebpf function dropped is in its row, and in no other one.
func TestTopFunction(t *testing.T) {
	of := func(name string, v onpath.VportID) onpath.Object {
		return &onpath.Instance{Metadata: onpath.Metadata{Name: name, Tenant: "a"}, Spec: onpath.InstanceSpec{Node: "n1", Vport: v}}
	}
	list := render.Rates(nil, render.Loads([]onpath.Object{of("limit", 2), of("before", 3)}, map[string]onpath.Counters{"n1": {
		Vports:    map[onpath.VportID]onpath.VportCounters{2: {}, 3: {Dropped: map[onpath.DropReason]uint64{onpath.DropFunction: 840, onpath.DropSpoofed: 1}}},
		Functions: map[onpath.VportID]onpath.FunctionCounters{2: {Dropped: onpath.Tally{Packets: 800}, Answered: onpath.Tally{Packets: 40}}},
	}}, nil), 0)
	for _, r := range list {
		if want := map[string]uint64{"a/limit": 840, "a/before": 1}[r.Name]; r.Dropped != want {
			t.Errorf("%s dropped %d, want %d", r.Name, r.Dropped, want)
		}
	}
}

// Of an instance whose node does not answer, nothing is told as if it were known.
func TestTopAway(t *testing.T) {
	i := &onpath.Instance{Metadata: onpath.Metadata{Name: "fw-x", Tenant: "a"}, Spec: onpath.InstanceSpec{Node: "n1", Vport: 2}}
	i.Status.State = "ready"
	list := render.Rates(nil, render.Loads([]onpath.Object{i}, map[string]onpath.Counters{"gw": {}}, nil), time.Second)
	var b strings.Builder
	if err := render.Top(list).Write(&b); err != nil {
		t.Fatal(err)
	}
	if line := b.String()[strings.Index(b.String(), "fw-x"):]; !list[0].Away || strings.Contains(line, "0") || strings.Count(line, " -") != 6 {
		t.Errorf("an instance of which nothing is known is shown as\n%s", b.String())
	}
}

// What a mirror sends ends there by design: it is told in words, and is no loss.
func TestMirrorLosesNothing(t *testing.T) {
	ids := &onpath.Instance{Metadata: onpath.Metadata{Name: "ids-x", Tenant: "a"}, Spec: onpath.InstanceSpec{Node: "n1", Vport: 2, Back: 3}}
	at := func(m map[onpath.DropReason]uint64) []render.Load {
		c := onpath.VportCounters{Dropped: m}
		return render.Loads([]onpath.Object{ids}, map[string]onpath.Counters{"n1": {Vports: map[onpath.VportID]onpath.VportCounters{2: c, 3: c}}}, nil)
	}
	list := render.Rates(nil, at(map[onpath.DropReason]uint64{onpath.DropMirror: 70}), 0)
	if r := list[0]; r.Dropped != 0 || r.Ended != 140 {
		t.Errorf("dropped %d, ended %d", r.Dropped, r.Ended)
	}
	if notes := render.TopNotes(list); len(notes) != 1 || notes[0] != "a/ids-x gets copies: 140 packets that it sent ended here, as they should; DROPPED leaves them out" {
		t.Errorf("notes are %q", notes)
	}
	list = render.Rates(nil, at(map[onpath.DropReason]uint64{onpath.DropSpoofed: 1}), 0)
	if r := list[0]; r.Dropped != 2 || r.Ended != 0 || len(render.TopNotes(list)) != 0 {
		t.Errorf("what is lost: %+v, %q", r, render.TopNotes(list))
	}
	counters := &onpath.VportCounters{Dropped: map[onpath.DropReason]uint64{onpath.DropMirror: 70, onpath.DropTTL: 1}}
	var b strings.Builder
	if err := render.Trace(&b, &onpath.Trace{Chains: []string{"a/web"}, Forward: []onpath.TraceHop{{Kind: onpath.HopElement, Mode: onpath.ModeMirror, Name: "a/ids-x", Node: "n1", Counters: counters}}}, false); err != nil {
		t.Fatal(err)
	}
	if s := b.String(); !strings.Contains(s, " 1  all flows: ttl 1; it gets copies: 70 packets that it sent ended here, as they should") {
		t.Errorf("a trace shows\n%s", s)
	}
	if !strings.Contains(b.String(), "DROPPED: of all flows") {
		t.Errorf("a trace does not say whose drops it tells:\n%s", b.String())
	}
	b.Reset()
	edge := &onpath.VportCounters{Dropped: map[onpath.DropReason]uint64{onpath.DropTTL: 16154}}
	way := []onpath.TraceHop{{Kind: onpath.HopEdge, Node: "gw", Vport: 1, Counters: edge}, {Kind: onpath.HopExit, Node: "gw", Vport: 1, Counters: edge}}
	if err := render.Trace(&b, &onpath.Trace{Live: true, Forward: way, Reverse: way}, false); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(b.String(), " 16154  "); n != 1 || strings.Count(b.String(), "ttl 16154") != 1 {
		t.Errorf("%d lines tell what the gateway dropped:\n%s", n, b.String())
	}
	if counters.Dropped[onpath.DropMirror] != 70 {
		t.Error("what was shown is changed")
	}
}

func TestCount(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 999: "999", 1000: "1k", 12345: "12.3k", 8e6: "8M", 1e13: "10T"} {
		if got := render.Count(v); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
}

func TestBelongs(t *testing.T) {
	i := &onpath.Instance{Metadata: onpath.Metadata{Tenant: "a", Name: "web-fw-x"}, Spec: onpath.InstanceSpec{Deployment: "web-fw", Node: "n1"}}
	for _, c := range []struct {
		o    onpath.Object
		want bool
	}{
		{&onpath.Node{Metadata: onpath.Metadata{Name: "n1"}}, true},
		{&onpath.Node{Metadata: onpath.Metadata{Name: "n2"}}, false},
		{&onpath.Deployment{Metadata: onpath.Metadata{Tenant: "a", Name: "web-fw"}}, true},
		{&onpath.Deployment{Metadata: onpath.Metadata{Tenant: "b", Name: "web-fw"}}, false},
		{&onpath.Chain{Metadata: onpath.Metadata{Tenant: "a", Name: "web"}, Spec: onpath.ChainSpec{Through: []onpath.Element{{Function: "operator/fw"}}}}, true},
		{&onpath.Chain{Metadata: onpath.Metadata{Tenant: "b", Name: "x"}, Spec: onpath.ChainSpec{Through: []onpath.Element{{Deployment: "a/web-fw"}}}}, true},
		{&onpath.Chain{Metadata: onpath.Metadata{Tenant: "b", Name: "x"}, Spec: onpath.ChainSpec{Through: []onpath.Element{{Deployment: "web-fw"}}}}, false},
		{&onpath.Tenant{Metadata: onpath.Metadata{Name: "a"}}, false},
	} {
		if got := render.Belongs(i, c.o); got != c.want {
			t.Errorf("%s: %v", onpath.KeyOf(c.o), got)
		}
	}
}

// TestTopGroups: nodes and chains are sums, but a packet that passes two elements of a
// chain counts once.
func TestTopGroups(t *testing.T) {
	of := func(deployment, node string, packets float64) render.Rate {
		i := &onpath.Instance{Metadata: onpath.Metadata{Name: deployment, Tenant: "a"}, Spec: onpath.InstanceSpec{Deployment: deployment, Node: node}}
		return render.Rate{Load: render.Load{Instance: i, Node: node, Usage: onpath.Usage{Memory: 1}}, CPU: 0.5, Packets: packets, Bits: packets}
	}
	list := []render.Rate{of("fw", "n1", 10), of("fw", "n2", 20), of("ids", "n2", 25), of("other", "n2", 1)}
	chain := &onpath.Chain{Metadata: onpath.Metadata{Name: "web", Tenant: "a"},
		Spec: onpath.ChainSpec{Through: []onpath.Element{{Deployment: "fw"}, {Deployment: "ids"}}}}
	chains := render.ByChain([]onpath.Object{chain}, list)
	if len(chains) != 1 || chains[0].Instances != 3 || chains[0].Packets != 30 || chains[0].CPU != 1.5 || chains[0].Memory != 3 {
		t.Errorf("got %+v", chains)
	}
	nodes := render.ByNode([]onpath.Object{&onpath.Node{Metadata: onpath.Metadata{Name: "n3"}}}, list)
	if len(nodes) != 3 || nodes[0].Name != "n2" || nodes[0].Packets != 46 || nodes[0].Instances != 3 || nodes[2].Name != "n3" {
		t.Errorf("got %+v", nodes)
	}
}
