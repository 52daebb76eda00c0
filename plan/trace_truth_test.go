package plan

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/onpath/onpath"
)

// madeFlows are flows of few hosts through one chain, some blocked on the way, with
// what is true of each.
type madeFlows struct {
	t     *testing.T
	s     *sim
	m     *model
	rng   *rand.Rand
	kinds []string // of the chain's elements
	edge  onpath.VportID
	flows []madeFlow
	// What each instance makes of a tuple, and of the answers' to that.
	made, back map[string]map[onpath.Tuple]onpath.Tuple
}

type madeFlow struct {
	tuple   onpath.Tuple
	blocked int // by this element; -1: by none
	way     way
}

var (
	clients4 = []string{"10.1.0.5", "10.1.0.6", "10.1.0.7"}
	clients6 = []string{"2001:db8:1::5", "2001:db8:1::6", "2001:db8:1::7"}
	servers4 = []string{"198.51.100.10", "198.51.100.11"}
	servers6 = []string{"2001:db8:9::10", "2001:db8:9::11"}
	virtuals = []string{"203.0.113.10", "2001:db8:9::99"}
)

func isServer(a netip.Addr) bool {
	return slices.Contains(slices.Concat(servers4, servers6, virtuals), a.String())
}

func newMadeFlows(t *testing.T, kinds []string) *madeFlows {
	s := newSim(t, 3)
	s.site("fra1", 1, 3)
	h, _ := onpath.New(onpath.KindHosts)
	h.Meta().Name, h.Meta().Tenant = "website", "default"
	h.(*onpath.Hosts).Spec = onpath.HostsSpec{Addresses: prefixes(append(servers4, servers6...)...), Virtual: prefixes(virtuals...)}
	s.apply(h)
	var elements []onpath.Element
	for k, kind := range kinds {
		name := fmt.Sprintf("e%d%s", k, kind)
		s.apply(aFunction("default", name, func(f *onpath.FunctionSpec) {
			switch kind {
			case "bump":
				f.Container.Attach = onpath.Bridged
			case "dnat", "snat", "both":
				f.Packets, f.State = onpath.PacketsRewrite, onpath.StateFlow
			case "proxy", "tproxy", "same":
				f.Packets, f.State = onpath.PacketsOriginate, onpath.StateTerminates
			}
		}))
		elements = append(elements, through(name, 1))
	}
	c := aChain("default", "web", elements...)
	c.Spec.To = onpath.Endpoints{Hosts: "website"}
	s.apply(c)
	s.settle()
	return &madeFlows{t: t, s: s, kinds: kinds, edge: s.states["fra1-gw"].Acked.Datapath.Edge.Vport}
}

// make has flows pass, with some luck.
func (f *madeFlows) make(seed uint64) {
	f.rng = rand.New(rand.NewPCG(seed, 7))
	f.m, f.flows = newModel(f.s), nil
	f.made, f.back = map[string]map[onpath.Tuple]onpath.Tuple{}, map[string]map[onpath.Tuple]onpath.Tuple{}
	f.m.change = f.change
	one := func(list []string) netip.Addr { return netip.MustParseAddr(list[f.rng.IntN(len(list))]) }
	for range 1 + f.rng.IntN(6) {
		tu := onpath.Tuple{Protocol: []uint8{6, 17}[f.rng.IntN(2)], SrcPort: uint16(40000 + f.rng.IntN(3)), DstPort: []uint16{80, 8081}[f.rng.IntN(2)]}
		tu.Src, tu.Dst = one(clients4), one(append(servers4, virtuals[0]))
		if f.rng.IntN(3) == 0 {
			tu.Src, tu.Dst = one(clients6), one(append(servers6, virtuals[1]))
		}
		if slices.ContainsFunc(f.flows, func(o madeFlow) bool { return o.tuple == tu }) {
			continue
		}
		f.flows = append(f.flows, madeFlow{tuple: tu, blocked: -1})
		x := &f.flows[len(f.flows)-1]
		if f.rng.IntN(2) == 0 {
			x.blocked = f.rng.IntN(len(f.kinds))
		}
		f.m.flow = len(f.flows) - 1
		x.way = f.m.send(f.edge, tu)
		if x.way.end == "exit" {
			f.m.send(f.edge, x.way.out.Reverse())
		} else if x.way.end != "drop: the instance's" {
			f.t.Fatalf("%v of %v: %+v", tu, f.kinds, x.way)
		} else if f.rng.IntN(2) == 0 { // it answers itself: a reset, a page from a cache
			f.answerFrom(x)
		}
		f.probe()
	}
}

// answerFrom has the last instance that a flow came to answer it.
func (f *madeFlows) answerFrom(x *madeFlow) {
	last := x.way.through[len(x.way.through)-1]
	tu := x.tuple
	for _, name := range x.way.through[:len(x.way.through)-1] {
		if b, ok := f.made[name][tu]; ok {
			tu = b
		}
	}
	f.m.send(f.instance(last).Spec.Vport, tu.Reverse())
}

func (f *madeFlows) instance(name string) *onpath.Instance {
	for _, i := range f.s.instances("") {
		if i.Metadata.Tenant+"/"+i.Metadata.Name == name {
			return i
		}
	}
	f.t.Fatalf("no instance %s", name)
	return nil
}

// probe has proxies ask the servers for themselves, whether they live.
func (f *madeFlows) probe() {
	for _, i := range f.s.instances("") {
		if !strings.Contains(i.Metadata.Name, "proxy") || f.rng.IntN(3) > 0 {
			continue
		}
		f.m.flow = -1
		tu := onpath.Tuple{Protocol: 6, Src: f.ownAddress(false), Dst: netip.MustParseAddr(servers4[0]), SrcPort: uint16(50000 + f.rng.IntN(100)), DstPort: 80}
		if w := f.m.send(i.Spec.Vport, tu); w.end == "exit" {
			f.m.send(f.edge, w.out.Reverse())
		}
	}
}

func (f *madeFlows) ownAddress(v6 bool) netip.Addr {
	if v6 {
		return netip.MustParseAddr("2001:db8:7::1")
	}
	return netip.MustParseAddr("192.0.2.1")
}

// change is what an instance does to a packet of the flow under way.
func (f *madeFlows) change(instance string, tu onpath.Tuple) onpath.Tuple {
	if !isServer(tu.Dst) {
		if b, ok := f.back[instance][tu]; ok {
			return b
		}
		return tu
	}
	_, name, _ := strings.Cut(instance, "/web-e")
	element, kind := int(name[0]-'0'), name[1:strings.LastIndex(name, "-")]
	if f.m.flow >= 0 && f.flows[f.m.flow].blocked == element {
		return onpath.Tuple{}
	}
	if f.made[instance] == nil {
		f.made[instance], f.back[instance] = map[onpath.Tuple]onpath.Tuple{}, map[onpath.Tuple]onpath.Tuple{}
	}
	b := f.makes(kind, instance, tu)
	f.made[instance][tu], f.back[instance][b.Reverse()] = b, tu.Reverse()
	return b
}

func (f *madeFlows) makes(kind, instance string, tu onpath.Tuple) onpath.Tuple {
	b, v6 := tu, tu.Dst.Is6()
	toServer := func() {
		if !slices.Contains(virtuals, tu.Dst.String()) {
			return
		}
		if b.Dst = netip.MustParseAddr(servers4[f.rng.IntN(2)]); v6 {
			b.Dst = netip.MustParseAddr(servers6[f.rng.IntN(2)])
		}
	}
	free := func(from int) {
		for {
			b.SrcPort = uint16(from + f.rng.IntN(50))
			if _, taken := f.back[instance][b.Reverse()]; !taken {
				return
			}
		}
	}
	switch kind {
	case "dnat":
		toServer()
	case "snat", "both":
		if kind == "both" {
			toServer()
		}
		b.Src = f.ownAddress(v6)
		if _, taken := f.back[instance][b.Reverse()]; taken || f.rng.IntN(2) == 0 { // else the port stays
			free(40000)
		}
	case "proxy", "tproxy":
		for _, old := range f.made[instance] { // a connection kept for later
			if old.Dst == tu.Dst && old.DstPort == tu.DstPort && old.Protocol == tu.Protocol && f.rng.IntN(2) == 0 {
				return old
			}
		}
		if kind == "proxy" {
			b.Src = f.ownAddress(v6)
		}
		free(50000)
	}
	return b
}

// input is what nodes report: each entry has its own number of packets.
func (f *madeFlows) input(of onpath.Tuple) (in TraceInput, owners map[uint64]map[int]bool) {
	owners = map[uint64]map[int]bool{}
	in = TraceInput{Snapshot: f.s.snapshot(), Request: onpath.TraceRequest{Tuple: of}, Flows: entriesOf(f.m)}
	n := uint64(100)
	for node, list := range in.Flows {
		for k := range list {
			e := &list[k]
			e.Reverse = !isServer(e.Tuple.Dst)
			if used := f.m.used[place{e.Vport, e.Tuple}]; used != nil && e.Kind != onpath.NextPending {
				n++
				e.Packets, owners[n] = n, used
			}
		}
		in.Flows[node] = append(list, list[:len(list)/2]...) // a node may be asked twice
	}
	return in, owners
}

// verdicts counts what traces told of made flows.
type verdicts struct{ told, unsure, wrong int }

// check compares a trace with what is true of flow id.
func (f *madeFlows) check(id int) (told bool, wrong string) {
	x := &f.flows[id]
	in, owners := f.input(x.tuple)
	tr := Trace(in)
	if !tr.Live {
		return false, "it is not live"
	}
	unsure := func(h onpath.TraceHop) bool { return h.Unsure }
	for way, hops := range map[string][]onpath.TraceHop{"forward": tr.Forward, "reverse": tr.Reverse} {
		for _, h := range hops {
			if h.Live && h.Flow != nil && h.Flow.Packets > 0 && !owners[h.Flow.Packets][id] {
				return false, fmt.Sprintf("%s: %s has another flow's packets: %+v", way, h.Kind, h)
			}
		}
	}
	var met []string
	for _, h := range tr.Forward {
		if h.Kind == onpath.HopElement && h.Live {
			met = append(met, h.Name)
		}
	}
	last := tr.Forward[len(tr.Forward)-1]
	switch {
	case slices.ContainsFunc(tr.Forward, unsure):
		if len(met) > len(x.way.through) || !slices.Equal(met, x.way.through[:len(met)]) {
			return false, fmt.Sprintf("it met %v, and is said to have met %v", x.way.through, met)
		}
		return false, ""
	case !slices.Equal(met, x.way.through):
		return false, fmt.Sprintf("it met %v, and is said to have met %v", x.way.through, met)
	case last.Ends != (x.way.end != "exit"), last.Kind == onpath.HopExit != (x.way.end == "exit"):
		return false, fmt.Sprintf("it ends with %s, and is said to end at %+v", x.way.end, last)
	case x.way.end == "exit" && !slices.ContainsFunc(tr.Reverse, unsure) && tr.Reverse[len(tr.Reverse)-1].Kind != onpath.HopExit:
		return false, "answers are said not to arrive: " + hopsOf(tr.Reverse)
	}
	return !slices.ContainsFunc(tr.Reverse, unsure), ""
}

// TestTraceIsTrueOrSilent: of flows of the same few hosts, alive or blocked at some
// element, a trace says what is true or that it cannot tell, and the second of them only
// behind elements that change addresses.
func TestTraceIsTrueOrSilent(t *testing.T) {
	t.Parallel()
	for _, chain := range []struct {
		kinds  string
		enough int // percent of traces that tell all
	}{
		{"keep", 100}, {"keep keep keep", 100}, {"bump keep bump", 100}, {"same", 100}, {"keep same bump", 100},
		{"dnat", 70}, {"keep dnat keep", 70}, {"snat", 3}, {"keep snat", 20}, {"both keep", 3},
		{"proxy", 0}, {"keep proxy", 20}, {"keep keep tproxy", 30}, {"tproxy keep", 0}, {"keep proxy keep", 20},
		{"bump snat dnat", 20}, {"proxy snat", 0}, {"keep both proxy keep", 10},
	} {
		t.Run(strings.ReplaceAll(chain.kinds, " ", "-"), func(t *testing.T) {
			t.Parallel()
			f := newMadeFlows(t, strings.Fields(chain.kinds))
			var v verdicts
			for seed := range uint64(60) {
				f.make(seed)
				for id := range f.flows {
					told, wrong := f.check(id)
					switch {
					case wrong != "":
						if v.wrong++; v.wrong < 4 {
							t.Errorf("seed %d, flow %d, %+v: %s", seed, id, f.flows[id], wrong)
						}
					case told:
						v.told++
					default:
						v.unsure++
					}
				}
			}
			t.Logf("%+v", v)
			if all := v.told + v.unsure + v.wrong; 100*v.told < chain.enough*all {
				t.Errorf("of %d flows, %d are told", all, v.told)
			}
		})
	}
}
