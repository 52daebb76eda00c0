package plan

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestAccelerator: the objects of an accelerator are made, changed and deleted with it, and
// its relays follow what is measured.
func TestAccelerator(t *testing.T) {
	const rtt = 60 * time.Millisecond
	underlay := func(n string) netip.Addr {
		return map[string]netip.Addr{"irl": netip.MustParseAddr("10.255.0.1"), "mid": netip.MustParseAddr("10.255.0.2"), "cal": netip.MustParseAddr("10.255.0.3")}[n]
	}
	s := &Snapshot{Now: time.Unix(1e9, 0), Objects: map[onpath.Key]onpath.Object{}, States: map[string]*NodeState{}, Settings: Settings{Secret: []byte("x")}}
	put := func(o onpath.Object) {
		t.Helper()
		if err := o.Validate(); err != nil {
			t.Fatal(err)
		}
		s.Objects[onpath.KeyOf(o)] = o
	}
	for _, n := range []string{"irl", "mid", "cal"} {
		put(&onpath.Cloudlet{Metadata: onpath.Metadata{Name: n}})
		node := &onpath.Node{Metadata: onpath.Metadata{Name: n}, Spec: onpath.NodeSpec{Cloudlet: n, Underlay: onpath.Underlay{Address: underlay(n)}}}
		if n == "irl" {
			node.Spec.Uplinks = []onpath.Uplink{{Name: "a", Device: "eth1", Attach: onpath.AttachRouter}, {Name: "b", Device: "eth2", Attach: onpath.AttachRouter}}
		}
		put(node)
		s.States[n] = &NodeState{Report: &onpath.NodeReport{Node: n}, Seen: s.Now}
	}
	origin := netip.MustParseAddrPort("198.51.100.10:443")
	a := &onpath.Accelerator{Metadata: onpath.Metadata{Name: "shop"}, Spec: onpath.AcceleratorSpec{
		Between: []string{"irl", "mid", "cal"},
		Origins: []onpath.AcceleratedOrigin{{Address: origin.Addr(), Port: origin.Port(), Size: 500_000}},
	}}
	put(a)
	if err := Check(s); err != nil {
		t.Fatal(err)
	}
	r := Make(s)
	var made []string
	for _, o := range r.Own {
		made = append(made, onpath.KeyOf(o).String())
		s.Objects[onpath.KeyOf(o)] = o
	}
	slices.Sort(made)
	want := []string{"chain default/shop-irl", "deployment default/shop-cal", "deployment default/shop-irl", "deployment default/shop-mid", "function default/shop"}
	if !slices.Equal(made, want) {
		t.Fatalf("made %v, want %v", made, want)
	}
	if m := r.Plans["irl"].Measure; m == nil || len(m.Targets) != 2+0 && len(m.Targets) != 3 {
		t.Errorf("irl measures %+v", m)
	}
	if again := Make(s); len(again.Own) > 0 || slices.ContainsFunc(again.Delete, func(k onpath.Key) bool { return k.Kind != onpath.KindInstance }) {
		t.Errorf("made again: %v, deleted: %v", again.Own, again.Delete)
	}

	// Measured: three legs of 60 ms, 180 ms without relays.
	far := func(n int) onpath.Duration { return onpath.Duration(time.Duration(n) * rtt) }
	name := origin.String()
	s.States["irl"].Report.Distances = []onpath.Distance{{To: "mid", RTT: far(1)}, {To: "cal", RTT: far(2)}, {To: name, RTT: far(3)}}
	s.States["cal"].Report.Distances = []onpath.Distance{{To: "mid", RTT: far(1)}, {To: name, RTT: far(1)}}
	s.States["mid"].Report.Distances = []onpath.Distance{{To: name, RTT: far(2)}}
	w := newWorld(s)
	x := accelerators(w)[0]
	x.measured(w)
	work := x.work(w.nodes["irl"], "secret")
	big, small := work.Origins[0].PathFor(500_000), work.Origins[0].PathFor(1000)
	if len(big.Next) != 2 || big.Next[0].Addr() != underlay("mid") || big.Next[1].Addr() != underlay("cal") {
		t.Errorf("500 kB go by %v", big.Next)
	}
	if len(small.Next) != 0 {
		t.Errorf("1 kB goes by %v, which shortens nothing", small.Next)
	}

	// No way leads by a relay that is full.
	relay := &onpath.Instance{Metadata: onpath.Metadata{Name: "shop-cal-1", Tenant: "default"}, Spec: onpath.InstanceSpec{Node: "cal", Deployment: "shop-cal"}}
	s.Objects[onpath.KeyOf(relay)] = relay
	s.States["cal"].Report.Instances = []onpath.InstanceReport{{Name: "shop-cal-1", Tenant: "default", State: onpath.InstanceReady, Full: true}}
	w = newWorld(s)
	x = accelerators(w)[0]
	x.measured(w)
	if p := x.work(w.nodes["irl"], "").Origins[0].PathFor(500_000); slices.ContainsFunc(p.Next, func(a netip.AddrPort) bool { return a.Addr() == underlay("cal") }) {
		t.Errorf("the relay at cal is full, and 500 kB go by %v", p.Next)
	}

	// A condition says what a relay does not do of what it was told, until it does.
	current := func(refused string) onpath.Condition {
		report := onpath.InstanceReport{Name: "shop-cal-1", Tenant: "default", State: onpath.InstanceReady, Refused: refused}
		s.States["cal"].Report.Instances = []onpath.InstanceReport{report}
		for _, u := range Make(s).Update {
			if o, ok := u.(*onpath.Accelerator); ok {
				s.Objects[onpath.KeyOf(o)] = o
			}
		}
		conditions := s.Objects[onpath.KeyOf(a)].(*onpath.Accelerator).Status.Conditions
		if at := slices.IndexFunc(conditions, func(c onpath.Condition) bool { return c.Type == "Current" }); at >= 0 {
			return conditions[at]
		}
		return onpath.Condition{}
	}
	if c := current(""); c.Type != "" {
		t.Errorf("of an accelerator that was always as told: %+v", c)
	}
	if c := current("syn: wait is not in force"); c.Status != onpath.False || c.Reason != onpath.ReasonConfigRefused ||
		c.Message != "the relay at cal refuses part of its configuration: syn: wait is not in force" {
		t.Errorf("syn: wait is not in force: %+v", c)
	}
	if c := current(""); c.Status != onpath.True {
		t.Errorf("it is in force: %+v", c)
	}
	s.States["cal"].Report.Instances = nil
	delete(s.Objects, onpath.KeyOf(relay))

	// A leg that loses too much is not used.
	s.States["cal"].Report.Distances[0].Loss = 0.5
	w = newWorld(s)
	x = accelerators(w)[0]
	x.measured(w)
	if p := x.work(w.nodes["irl"], "").Origins[0].PathFor(500_000); slices.ContainsFunc(p.Next, func(a netip.AddrPort) bool { return a.Addr() == underlay("cal") }) && len(p.Next) == 2 {
		t.Errorf("a leg that loses half of its packets is used: %v", p.Next)
	}

	delete(s.Objects, onpath.KeyOf(a))
	gone := Make(s).Delete
	for _, k := range want {
		if !slices.ContainsFunc(gone, func(g onpath.Key) bool { return g.String() == k }) {
			t.Errorf("%s stays without its accelerator", k)
		}
	}
}

func TestAcceleratorRefused(t *testing.T) {
	s := &Snapshot{Now: time.Unix(1e9, 0), Objects: map[onpath.Key]onpath.Object{}}
	add := func(o onpath.Object) {
		if err := o.Validate(); err != nil {
			t.Fatal(err)
		}
		s.Objects[onpath.KeyOf(o)] = o
	}
	prefix, _ := onpath.ParsePrefix("192.0.2.0/24")
	add(&onpath.Tenant{Metadata: onpath.Metadata{Name: "acme"}, Spec: onpath.TenantSpec{Addresses: []onpath.Prefix{{Prefix: prefix}}}})
	add(&onpath.Accelerator{Metadata: onpath.Metadata{Name: "x", Tenant: "acme"}, Spec: onpath.AcceleratorSpec{
		Between: []string{"nowhere"},
		Origins: []onpath.AcceleratedOrigin{{Address: netip.MustParseAddr("198.51.100.1"), Port: 80}},
	}})
	fields := map[string]bool{}
	for _, e := range check(s) {
		fields[e.Field] = true
	}
	if !fields["spec.between[0]"] || !fields["spec.origins[0].address"] {
		t.Errorf("refused are %v", fields)
	}
}
