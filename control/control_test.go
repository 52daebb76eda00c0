package control_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control"
	"github.com/onpath/onpath/plan"
	"github.com/onpath/onpath/store/mem"
)

// site is a store, a server and nodes that do at once what they are told.
type site struct {
	t        *testing.T
	store    onpath.Store
	restored bool // the store is, as the server starts
	c        *control.Controller
	stop     func()

	mu     sync.Mutex
	nodes  map[string]*fakeNode
	skew   time.Duration              // the clock's lead
	echoes map[string]onpath.Duration // round trips by node
	shows  map[string]string          // what is at an address, by node and address, or by address alone
	called func(onpath.NodeOp)        // told of each call of a node; may be nil
}

type fakeNode struct {
	s         *site
	spec      onpath.NodeSpec
	name      string
	plan      *onpath.NodePlan
	pushes    int
	pushedAt  time.Time
	failed    map[string]string // deployment → why
	deaf      bool              // takes no plans
	connected bool
	flows     map[string]uint64
	entries   []onpath.FlowEntry
	started   time.Time
	lost      []string // nodes that it does not reach
	leases    []onpath.LeaseReport
	speaking  sync.Mutex // one report after another, as in a session
}

var settings = plan.Settings{Secret: []byte("k"), PublicPools: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/28")}}

func newSite(t *testing.T) *site {
	s := &site{t: t, store: mem.New(mem.Options{}), nodes: map[string]*fakeNode{}}
	s.start()
	return s
}

func (s *site) now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Add(s.skew)
}

func (s *site) start() {
	c := control.New(control.Options{Store: s.store, Hub: s, Clock: s.now, Settings: settings, Restored: s.restored,
		Wait: 300 * time.Millisecond})
	s.mu.Lock()
	s.c = c
	s.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.c.Run(ctx) }()
	<-s.c.Loaded()
	s.stop = func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Errorf("Run: %v", err)
		}
	}
	s.t.Cleanup(func() { cancel() })
}

// Push implements control.Hub: the node acknowledges from another goroutine.
func (s *site) Push(node string, p *onpath.NodePlan) {
	b, err := json.Marshal(p)
	if err != nil {
		s.t.Error(err)
	}
	got := new(onpath.NodePlan)
	if err := json.Unmarshal(b, got); err != nil {
		s.t.Error(err)
	}
	s.mu.Lock()
	n := s.nodes[node]
	n.pushes++
	n.pushedAt = time.Now()
	deaf := n.deaf
	s.mu.Unlock()
	if deaf {
		return
	}
	go func() {
		s.mu.Lock()
		if n.plan == nil || n.plan.Generation < got.Generation {
			n.plan = got
		}
		s.mu.Unlock()
		n.report()
	}()
}

// Call implements control.Hub for flows and counters.
func (s *site) Call(_ context.Context, node string, op onpath.NodeOp, request any) (io.ReadWriteCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[node]
	if s.called != nil {
		s.called(op)
	}
	if n == nil || !n.connected {
		return nil, onpath.Errorf(onpath.CodeUnavailable, "node %s is not connected", node)
	}
	var b bytes.Buffer
	switch enc := json.NewEncoder(&b); op {
	case onpath.OpLook:
		l := onpath.Look{Counters: n.counters()}
		for _, f := range request.(onpath.LookRequest).Flows {
			l.Flows = append(l.Flows, slices.DeleteFunc(slices.Clone(n.entries), func(e onpath.FlowEntry) bool { return !f.Matches(e) }))
		}
		_ = enc.Encode(l)
	case onpath.OpEcho:
		_ = enc.Encode(onpath.EchoAnswer{RTT: s.echoes[node]})
	case onpath.OpProve:
		r := request.(onpath.PasswordRequest)
		a := onpath.PasswordAnswer{Saw: "no answer"}
		at, ok := s.shows[node+" "+r.Address.String()]
		if !ok {
			at, ok = s.shows[r.Address.String()]
		}
		if ok {
			a = onpath.PasswordAnswer{Proved: at == r.Password, Wrong: at != r.Password, Saw: "something"}
		}
		_ = enc.Encode(a)
	case onpath.OpPromise:
		_ = enc.Encode(onpath.Promise{Kept: true})
	case onpath.OpCounters:
		_ = enc.Encode(n.counters())
	default:
		return nil, onpath.Errorf(onpath.CodeUnsupported, "no %s", op)
	}
	return answer{&b}, nil
}

type answer struct{ *bytes.Buffer }

func (answer) Close() error { return nil }

// edge is the node's own, 0 without uplinks. Callers hold mu.
func (n *fakeNode) edge() onpath.VportID {
	if n.plan == nil || n.plan.Datapath.Edge == nil {
		return 0
	}
	return n.plan.Datapath.Edge.Vport
}

// counters are what the node has counted. Callers hold mu.
func (n *fakeNode) counters() *onpath.Counters {
	return &onpath.Counters{Vports: map[onpath.VportID]onpath.VportCounters{n.edge(): {In: onpath.Tally{Packets: 42}}}}
}

func (n *fakeNode) makeReport() onpath.NodeReport {
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	// The version makes reports differ when the clock was led on, so that the
	// loop, whose timer goes by the real one, looks again.
	r := onpath.NodeReport{Node: n.name, Version: n.s.skew.String(), Capacity: onpath.Resources{CPU: 4000, Memory: 4 << 30}, UnderlayMTU: 1500, Started: n.started, Paths: map[onpath.PathID]uint64{}, Unreachable: n.lost, Leases: n.leases,
		Knows: onpath.Abilities()}
	if n.plan == nil {
		return r
	}
	r.Plan = n.plan.Generation
	for _, i := range n.plan.Instances {
		ir := onpath.InstanceReport{Name: i.Name, Tenant: i.Tenant, State: onpath.InstanceReady, Since: n.started, Wired: true, Flows: n.flows[i.Name]}
		if why := n.failed[i.Deployment]; why != "" {
			ir.State, ir.Message = onpath.InstanceFailed, why
		}
		r.Instances = append(r.Instances, ir)
	}
	for _, p := range n.plan.Datapath.Paths {
		if !p.Ended.IsZero() {
			r.Paths[p.ID] = 0
		}
	}
	return r
}

func (n *fakeNode) report() {
	n.speaking.Lock()
	defer n.speaking.Unlock()
	n.s.mu.Lock()
	ok, c := n.connected, n.s.c
	n.s.mu.Unlock()
	if ok {
		c.NodeReported(n.makeReport())
	}
}

func (s *site) join(name, cloudlet string, number byte, gateway bool) *fakeNode {
	n := &fakeNode{s: s, name: name, failed: map[string]string{}, flows: map[string]uint64{}, started: time.Now().UTC().Round(0)}
	n.spec.Cloudlet = cloudlet
	n.spec.Underlay.Address = netip.AddrFrom4([4]byte{10, 255, 0, number})
	if gateway {
		n.spec.Uplinks = []onpath.Uplink{{Name: "core", Device: "eth0", Attach: onpath.AttachRouter}}
	}
	s.mu.Lock()
	s.nodes[name] = n
	s.mu.Unlock()
	n.connect()
	return n
}

func (n *fakeNode) connect() {
	r := n.makeReport()
	n.s.mu.Lock()
	n.connected = true
	h := onpath.NodeHello{Node: n.name, Spec: n.spec, Plan: n.plan, Report: r}
	c := n.s.c
	n.s.mu.Unlock()
	c.NodeConnected(h)
}

func (n *fakeNode) disconnect() {
	n.s.mu.Lock()
	n.connected = false
	n.s.mu.Unlock()
	n.s.c.NodeGone(n.name, "test")
}

// lead moves the clock on, with all connected nodes reporting.
func (s *site) lead(d time.Duration) {
	for range int(d / time.Second) {
		s.mu.Lock()
		s.skew += time.Second
		nodes := make([]*fakeNode, 0, len(s.nodes))
		for _, n := range s.nodes {
			nodes = append(nodes, n)
		}
		s.mu.Unlock()
		for _, n := range nodes {
			n.report()
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (s *site) apply(list ...onpath.Object) {
	s.t.Helper()
	s.write(s.changes(list...))
}

// write does what the API does: check, then store, the status as it is.
func (s *site) write(changes []onpath.Change) {
	s.t.Helper()
	ctx := context.Background()
	if _, err := s.c.Check(ctx, changes, false); err != nil {
		s.t.Fatal(err)
	}
	for {
		for i := range changes {
			old, err := s.store.Get(ctx, changes[i].Key)
			if err != nil {
				continue
			}
			changes[i].Version = old.Meta().Version
			if c, ok := changes[i].Object.(*onpath.Chain); ok {
				c.Status = old.(*onpath.Chain).Status
			}
		}
		_, err := s.store.Write(ctx, onpath.Batch{Changes: changes})
		if err == nil {
			return
		}
		if onpath.CodeOf(err) != onpath.CodeConflict {
			s.t.Fatal(err)
		}
	}
}

func (s *site) changes(list ...onpath.Object) []onpath.Change {
	s.t.Helper()
	var out []onpath.Change
	for _, o := range list {
		if err := o.Validate(); err != nil {
			s.t.Fatal(err)
		}
		out = append(out, onpath.Change{Key: onpath.KeyOf(o), Object: o, Version: onpath.AnyVersion})
	}
	return out
}

func (s *site) remove(k onpath.Key) {
	s.t.Helper()
	s.write([]onpath.Change{{Key: k, Version: onpath.AnyVersion}})
}

// until waits for something to come true.
func (s *site) until(what string, ok func() bool) {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if ok() {
			return
		}
	}
	c := s.chain("web")
	s.t.Fatalf("%s: not within 10 s; chain %+v, %d instances", what, c, len(s.instances()))
}

func (s *site) chain(name string) *onpath.Chain {
	o, err := s.store.Get(context.Background(), onpath.Key{Kind: onpath.KindChain, Tenant: "default", Name: name})
	if err != nil {
		return nil
	}
	return o.(*onpath.Chain)
}

func (s *site) node(name string) *onpath.Node {
	o, err := s.store.Get(context.Background(), onpath.Key{Kind: onpath.KindNode, Name: name})
	if err != nil {
		return new(onpath.Node)
	}
	return o.(*onpath.Node)
}

func (s *site) instances() []*onpath.Instance {
	list, _, err := s.store.List(context.Background(), onpath.KindInstance, "")
	if err != nil {
		s.t.Fatal(err)
	}
	var out []*onpath.Instance
	for _, o := range list {
		out = append(out, o.(*onpath.Instance))
	}
	return out
}

func (s *site) hasEvent(reason string) bool {
	list, _, err := s.store.List(context.Background(), onpath.KindEvent, "")
	if err != nil {
		s.t.Fatal(err)
	}
	return slices.ContainsFunc(list, func(o onpath.Object) bool { return o.(*onpath.Event).Spec.Reason == reason })
}

func (s *site) active() bool {
	c := s.chain("web")
	return c != nil && c.Status.Active
}

func (s *site) plan(node string) *onpath.NodePlan {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodes[node].plan
}

func object[T onpath.Object](kind onpath.Kind, tenant, name string) T {
	o, err := onpath.New(kind)
	if err != nil {
		panic(err)
	}
	o.Meta().Name, o.Meta().Tenant = name, tenant
	return o.(T)
}

func function(name string) *onpath.Function {
	f := object[*onpath.Function](onpath.KindFunction, "default", name)
	f.Spec.Container = &onpath.ContainerSpec{Image: "host", Command: []string{"sleep"}}
	return f
}

func web(n int) *onpath.Chain {
	c := object[*onpath.Chain](onpath.KindChain, "default", "web")
	p, _ := onpath.ParsePrefix("198.51.100.10")
	c.Spec.From, c.Spec.To = onpath.Endpoints{Any: true}, onpath.Endpoints{Prefixes: []onpath.Prefix{{Prefix: p}}}
	c.Spec.Through = []onpath.Element{{Function: "fw", Instances: &n}}
	return c
}

func threeNodes(t *testing.T) *site {
	s := newSite(t)
	s.join("gw", "fra1", 1, true)
	s.join("n1", "fra1", 2, false)
	s.join("n2", "fra1", 3, false)
	s.until("nodes are ready", func() bool {
		list, _, _ := s.store.List(context.Background(), onpath.KindNode, "")
		return len(list) == 3 && !slices.ContainsFunc(list, func(o onpath.Object) bool { return !o.(*onpath.Node).Status.Ready })
	})
	s.apply(function("fw"))
	return s
}

func TestFullCycle(t *testing.T) {
	s := threeNodes(t)
	begin := time.Now()
	s.apply(web(2))
	s.until("active", s.active)
	t.Logf("active after %s", time.Since(begin))
	s.apply(web(3))
	s.until("three ready", func() bool { return s.chain("web").Status.Elements[0].Ready == 3 })

	s.apply(web(1))
	draining := func() (n int) {
		for _, i := range s.instances() {
			if !i.Spec.Draining.IsZero() {
				n++
			}
		}
		return n
	}
	s.until("two drain", func() bool { return draining() == 2 })
	s.lead(5 * time.Second)
	s.until("one is left", func() bool { return len(s.instances()) == 1 })

	s.remove(onpath.Key{Kind: onpath.KindChain, Tenant: "default", Name: "web"})
	s.lead(5 * time.Second)
	s.until("none is left", func() bool { return len(s.instances()) == 0 })
	for _, n := range []string{"gw", "n1", "n2"} {
		s.until(n+" has nothing", func() bool {
			p := s.plan(n)
			return len(p.Instances)+len(p.Datapath.Groups)+len(p.Datapath.Paths) == 0
		})
	}
	for _, e := range []string{"Placed", "Ready", "Active", "Draining", "Removed"} {
		s.until("event "+e, func() bool { return s.hasEvent(e) })
	}
}

// TestFailoverPushesFirst: a dead instance is known to the gateway at once, also
// while the store does not answer.
func TestFailoverPushesFirst(t *testing.T) {
	slow := &slowStore{Store: mem.New(mem.Options{}), closed: make(chan struct{})}
	close(slow.closed)
	s := &site{t: t, store: slow, nodes: map[string]*fakeNode{}}
	s.start()
	gw := s.join("gw", "fra1", 1, true)
	n1 := s.join("n1", "fra1", 2, false)
	s.apply(function("fw"))
	s.apply(web(1))
	s.until("active", s.active)
	slow.block()
	begin := time.Now()
	s.mu.Lock()
	n1.failed["web-fw"] = "exit code 137"
	before := gw.pushes
	s.mu.Unlock()
	n1.report()
	s.until("the gateway knows", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return gw.pushes > before
	})
	s.mu.Lock()
	took := gw.pushedAt.Sub(begin)
	s.mu.Unlock()
	if took > 500*time.Millisecond {
		t.Errorf("pushed after %s", took)
	}
	t.Logf("pushed after %s", took)
	s.until("closed", func() bool {
		for _, v := range s.plan("gw").Datapath.Vports {
			if v.Peer == "n1" {
				return v.State == onpath.VportClosed
			}
		}
		return false
	})
	slow.release()
	s.until("the chain says why", func() bool {
		return strings.Contains(s.chain("web").Status.Elements[0].Message, "exit code 137")
	})
}

type slowStore struct {
	onpath.Store
	mu     sync.Mutex
	closed chan struct{}
}

func (s *slowStore) block() { s.mu.Lock(); s.closed = make(chan struct{}); s.mu.Unlock() }

func (s *slowStore) release() { s.mu.Lock(); close(s.closed); s.mu.Unlock() }

func (s *slowStore) Write(ctx context.Context, b onpath.Batch) (onpath.Written, error) {
	s.mu.Lock()
	g := s.closed
	s.mu.Unlock()
	select {
	case <-g:
	case <-ctx.Done():
		return onpath.Written{}, ctx.Err()
	}
	return s.Store.Write(ctx, b)
}

// TestServerRestart: the restarted server takes nothing away and starts nothing
// twice, though one node comes late.
func TestServerRestart(t *testing.T) {
	s := threeNodes(t)
	s.apply(web(2))
	s.until("active", s.active)
	time.Sleep(50 * time.Millisecond)
	before := map[string]uint64{}
	for n := range s.nodes {
		before[n] = s.plan(n).Generation
	}
	s.stop()
	s.start()
	s.nodes["gw"].connect()
	s.nodes["n1"].connect()
	time.Sleep(100 * time.Millisecond)
	s.nodes["n2"].connect()
	time.Sleep(200 * time.Millisecond)
	for n := range s.nodes {
		if g := s.plan(n).Generation; g != before[n] {
			t.Errorf("%s: generation went from %d to %d though nothing changed", n, before[n], g)
		}
	}
	s.apply(web(3))
	s.until("three ready", func() bool { return s.chain("web").Status.Elements[0].Ready == 3 })
	if n := len(s.instances()); n != 3 {
		t.Errorf("%d instances", n)
	}
}

func TestNodeAway(t *testing.T) {
	s := threeNodes(t)
	s.apply(web(2))
	s.until("active", s.active)
	s.until("both ready", func() bool { return s.chain("web").Status.Elements[0].Ready == 2 })
	s.nodes["n2"].disconnect()
	s.lead(7 * time.Second)
	s.until("the node is away", func() bool { return !s.node("n2").Status.Ready })
	if n := s.chain("web").Status.Elements[0].Ready; n != 2 {
		t.Errorf("%d instances are ready; one whose agent is away goes on", n)
	}
	gw := s.nodes["gw"]
	s.mu.Lock()
	gw.lost = []string{"n2"}
	s.mu.Unlock()
	gw.report()
	s.until("its instance counts no more", func() bool { return s.chain("web").Status.Elements[0].Ready == 1 })
	says := func(reason, state, message string) {
		t.Helper()
		s.until(reason+" is said everywhere", func() bool {
			all := false
			for _, i := range s.instances() {
				if i.Spec.Node == "n2" {
					all = string(i.Status.State) == state && strings.Contains(i.Status.Message, message)
				}
			}
			for _, c := range s.node("n2").Status.Conditions {
				all = all && (c.Type != "Ready" || c.Reason == reason)
			}
			return all && s.hasEvent(reason)
		})
	}
	says("Dead", "unready", "does not answer")
	s.mu.Lock()
	gw.lost = nil
	s.mu.Unlock()
	gw.report()
	says("Away", "ready", "as last heard of")
	s.mu.Lock()
	gw.lost = []string{"n2"}
	s.mu.Unlock()
	gw.report()
	s.lead(30 * time.Second)
	s.until("replaced", func() bool { return s.chain("web").Status.Elements[0].Ready == 2 })
	s.nodes["n2"].connect()
	s.lead(5 * time.Second)
	s.until("what it had is stopped", func() bool {
		return len(s.instances()) == 2 && len(s.plan("n2").Instances) == 0
	})
}

// TestConfigurationOverruled: a Node object holds against the machine's configuration,
// which is told once, and not of what only has its default.
func TestConfigurationOverruled(t *testing.T) {
	s := threeNodes(t)
	told := func() (all []string) {
		list, _, err := s.store.List(t.Context(), onpath.KindEvent, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list {
			if e := o.(*onpath.Event); e.Spec.Reason == "ConfigurationOverruled" {
				all = append(all, e.Spec.Message)
			}
		}
		return all
	}
	gw := s.nodes["gw"]
	gw.connect()
	gw.spec.Uplinks = []onpath.Uplink{{Name: "core", Device: "eth7", Attach: onpath.AttachRouter}}
	gw.connect()
	s.until("the difference is told", func() bool { return len(told()) > 0 })
	if all := told(); len(all) != 1 || !strings.Contains(all[0], "other uplinks") {
		t.Errorf("told %q", all)
	}
	if u := s.node("gw").Spec.Uplinks; len(u) != 1 || u[0].Device != "eth0" {
		t.Errorf("the object has %v", u)
	}
}

func TestCheckAndPreview(t *testing.T) {
	s := threeNodes(t)
	bad := web(1)
	bad.Spec.Through[0].Function = "wf"
	_, err := s.c.Check(context.Background(), s.changes(bad), false)
	var list onpath.Errors
	if !errors.As(err, &list) || list[0].Field != "spec.through[0].function" || !strings.Contains(list[0].Remedy, "fw") {
		t.Fatalf("Check: %v", err)
	}
	p, err := s.c.Preview(context.Background(), s.changes(web(2)))
	if err != nil || len(p.Instances) != 2 || len(p.Rules) == 0 || p.Instances[0].Reason != "the deployment is new" {
		t.Fatalf("Preview: %+v, %v", p, err)
	}
	if len(s.instances()) != 0 {
		t.Error("a preview started something")
	}
	s.apply(web(2))
	s.until("active", s.active)
	p, err = s.c.Preview(context.Background(), s.changes(web(1)))
	if err != nil || len(p.Instances) != 1 || p.Instances[0].Action != onpath.PreviewDrain {
		t.Fatalf("Preview: %+v, %v", p, err)
	}
	p, err = s.c.Preview(context.Background(), s.changes(web(3)))
	if err != nil || len(p.Instances) != 1 || p.Instances[0].Reason != "more than 2 are wanted" {
		t.Fatalf("Preview: %+v, %v", p, err)
	}
	p, err = s.c.Preview(context.Background(), s.changes(web(2)))
	if err != nil || len(p.Instances)+len(p.Rules) != 0 {
		t.Fatalf("Preview of no change: %+v, %v", p, err)
	}
	if _, err := s.c.Check(context.Background(), []onpath.Change{{Key: onpath.KeyOf(function("fw"))}}, false); err == nil {
		t.Error("a function in use may be deleted")
	}
	first := web(1)
	first.Metadata.Name, first.Spec.Priority = "first", 5
	notes, err := s.c.Check(context.Background(), s.changes(first), false)
	if err != nil || len(notes) != 1 || !strings.Contains(notes[0], "chain default/first (priority 5) has this before chain default/web (0)") {
		t.Errorf("of a chain that takes the traffic of another one: %q, %v", notes, err)
	}
}

func TestTrace(t *testing.T) {
	s := threeNodes(t)
	s.apply(web(1))
	s.until("active", s.active)
	i := s.instances()[0].Spec
	tu := onpath.Tuple{Protocol: 6, Src: netip.MustParseAddr("10.1.0.5"), Dst: netip.MustParseAddr("198.51.100.10"), SrcPort: 40000, DstPort: 80}
	s.mu.Lock()
	edge := s.nodes["gw"].edge()
	s.nodes["gw"].entries = []onpath.FlowEntry{
		{Vport: edge, Tuple: tu, Kind: onpath.NextVport, Next: i.Vport, Entry: edge, Path: 1, Packets: 5},
		{Vport: edge, Tuple: tu.Reverse(), Kind: onpath.NextVport, Next: i.Vport, Entry: edge, Path: 1, Reverse: true, Packets: 4},
	}
	s.nodes[i.Node].entries = []onpath.FlowEntry{
		{Vport: i.Vport, Tuple: tu, Kind: onpath.NextVport, Next: edge, Entry: edge, Path: 1, Packets: 5},
		{Vport: i.Vport, Tuple: tu.Reverse(), Kind: onpath.NextVport, Next: edge, Entry: edge, Path: 1, Reverse: true, Packets: 4},
	}
	s.mu.Unlock()
	ask := onpath.TraceRequest{Tuple: tu}
	ask.Tuple.SrcPort = 0
	s.until("the gateway has acknowledged the chain's rules", func() bool {
		tr, err := s.c.Trace(context.Background(), ask)
		return err != nil || len(tr.Warnings) == 0
	})
	tr, err := s.c.Trace(context.Background(), ask)
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, h := range append(tr.Forward, tr.Reverse...) {
		kinds = append(kinds, string(h.Kind))
	}
	if got := strings.Join(kinds, " "); got != "edge tunnel element tunnel exit edge tunnel element tunnel exit" || len(tr.Warnings) > 0 {
		t.Errorf("hops %s, warnings %v", got, tr.Warnings)
	}
	if c := tr.Forward[0].Counters; c == nil || c.In.Packets != 42 {
		t.Errorf("counters %+v", c)
	}
	for gateway, want := range map[string]struct {
		code onpath.Code
		say  string
	}{"n1": {onpath.CodeInvalid, "node n1 is no gateway: it has no uplinks"}, "gv": {onpath.CodeNotFound, "there is no node gv"}} {
		_, err := s.c.Trace(context.Background(), onpath.TraceRequest{Tuple: tu, Gateway: gateway})
		if onpath.CodeOf(err) != want.code || !strings.Contains(err.Error(), want.say) || !strings.Contains(err.Error(), "gateways are gw") {
			t.Errorf("--gateway %s: %v", gateway, err)
		}
	}
	if tr, err := s.c.Trace(context.Background(), onpath.TraceRequest{Tuple: tu, Gateway: "gw"}); err != nil || !tr.Live {
		t.Errorf("at its gateway: %+v, %v", tr, err)
	}
	s.nodes[i.Node].disconnect()
	tr, err = s.c.Trace(context.Background(), ask)
	if err != nil || !slices.ContainsFunc(tr.Warnings, func(w onpath.Note) bool { return strings.Contains(w.Text, i.Node+" cannot be asked") }) {
		t.Errorf("a node is away: %v, %v", tr.Warnings, err)
	}
}

// TestDeletedNode: what ran on it runs elsewhere, and the machine itself stops
// all it had.
func TestDeletedNode(t *testing.T) {
	s := threeNodes(t)
	s.apply(web(2))
	s.until("active", s.active)
	gone := []onpath.Change{{Key: onpath.Key{Kind: onpath.KindNode, Name: "n2"}, Version: onpath.AnyVersion}}
	if _, err := s.store.Write(context.Background(), onpath.Batch{Changes: gone}); err != nil { // not by the API, which refuses it
		t.Fatal(err)
	}
	s.until("it has nothing", func() bool {
		p := s.plan("n2")
		return len(p.Instances)+len(p.Datapath.Vports)+len(p.Datapath.Groups) == 0
	})
	s.until("two are ready elsewhere", func() bool { return len(s.instances()) == 2 && s.chain("web").Status.Elements[0].Ready == 2 })
}

// TestForcedDeletion: of a node that will never come back nothing stays, and
// what ran on it runs elsewhere.
func TestForcedDeletion(t *testing.T) {
	s := threeNodes(t)
	s.apply(web(2))
	s.until("active", s.active)
	name := s.instances()[0].Spec.Node
	s.nodes[name].disconnect()
	gone := []onpath.Change{{Key: onpath.Key{Kind: onpath.KindNode, Name: name}, Version: onpath.AnyVersion}}
	if _, err := s.c.Check(context.Background(), gone, true); err != nil {
		t.Fatal(err)
	}
	if _, err := s.store.Write(context.Background(), onpath.Batch{Changes: gone}); err != nil {
		t.Fatal(err)
	}
	s.until("its instances are gone and two are ready elsewhere", func() bool {
		for _, i := range s.instances() {
			if i.Spec.Node == name {
				return false
			}
		}
		return len(s.instances()) == 2 && s.chain("web").Status.Elements[0].Ready == 2
	})
}

// TestNodeInUseIsNotDeleted: only a node that is away, and has nothing or was
// drained, may go.
func TestNodeInUseIsNotDeleted(t *testing.T) {
	s := threeNodes(t)
	s.apply(web(2))
	s.until("active", s.active)
	name := s.instances()[0].Spec.Node
	gone := []onpath.Change{{Key: onpath.Key{Kind: onpath.KindNode, Name: name}}}
	refused := func(say string) {
		t.Helper()
		_, err := s.c.Check(context.Background(), gone, false)
		if onpath.CodeOf(err) != onpath.CodeInvalid || !strings.Contains(err.Error(), say) {
			t.Fatalf("it says %v, want %q", err, say)
		}
	}
	refused("its agent is connected")
	if _, err := s.c.Check(context.Background(), gone, true); err == nil {
		t.Error("a connected node may be deleted by force")
	}
	s.nodes[name].disconnect()
	refused(s.instances()[0].Metadata.Name)
	if _, err := s.c.Check(context.Background(), gone, true); err != nil {
		t.Errorf("forced, and away: %v", err)
	}
	n := onpath.Clone(s.node(name))
	n.Spec.Drain = true
	s.apply(n)
	if _, err := s.c.Check(context.Background(), gone, false); err != nil {
		t.Errorf("drained and away: %v", err)
	}
}
