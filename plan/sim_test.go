package plan

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// sim is a store, a server and nodes, as far as planning sees them. Nodes take
// up plans and acknowledge them in any order that the test or chance chooses.
type sim struct {
	t       *testing.T
	planner Planner
	rng     *rand.Rand
	now     time.Time
	started time.Time // when the server was
	objects map[onpath.Key]onpath.Object
	states  map[string]*NodeState
	next    struct {
		vport, path uint32
		address     uint64
	}
	// broken instances never become ready, busy ones keep flows while they drain.
	broken       map[string]bool // by deployment
	reservations map[onpath.Key]*Reserved
	refuses      string                          // why ebpf functions do not take what they are told
	spared       map[string]bool                 // by instance: not broken all the same
	busy         map[string]bool                 // by instance
	endless      bool                            // flows never end, of any instance or path
	hostless     map[string]bool                 // by node: does not permit image: host
	old          map[string]bool                 // nodes with agents of an earlier build
	blocks       map[string][]string             // by node: what modules may use; nil: it does not say
	machines     map[string][]netip.Addr         // by node: addresses of its machine
	says         map[string][]onpath.Condition   // by node, of itself
	leases       map[string][]onpath.LeaseReport // that nodes report
	mute         map[string]bool                 // by node: its agent is dead, its data path is not
	dead         map[string]bool                 // by node: the machine is
	past         map[string]bool                 // by node: nothing comes by it any more, whatever its plan
	restarts     map[string]int                  // by instance
	reported     map[string]onpath.InstanceReport
	events       []Event
	set          Settings
	wanted       map[onpath.Key]int // of deployments, besides their specifications
	filling      map[onpath.Key]bool
	thoughts     int
}

func newSim(t *testing.T, seed uint64) *sim {
	return &sim{
		t: t, planner: Planner{Workers: 2}, rng: rand.New(rand.NewPCG(seed, 1)), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		objects: map[onpath.Key]onpath.Object{}, states: map[string]*NodeState{}, broken: map[string]bool{}, spared: map[string]bool{}, busy: map[string]bool{}, hostless: map[string]bool{}, blocks: map[string][]string{}, old: map[string]bool{},
		says: map[string][]onpath.Condition{}, mute: map[string]bool{}, dead: map[string]bool{}, past: map[string]bool{},
		restarts: map[string]int{}, reported: map[string]onpath.InstanceReport{},
		set: Settings{Secret: []byte("s")},
	}
}

// apply stores objects as the API would, status kept.
func (s *sim) apply(list ...onpath.Object) {
	s.t.Helper()
	for _, o := range list {
		o = onpath.Clone(o)
		if err := o.Validate(); err != nil {
			s.t.Fatalf("%s: %v", onpath.KeyOf(o), err)
		}
		k := onpath.KeyOf(o)
		o.Meta().Created = s.now
		if old := s.objects[k]; old != nil {
			o.Meta().Created = old.Meta().Created
			switch n := o.(type) {
			case *onpath.Chain:
				n.Status = old.(*onpath.Chain).Status
			case *onpath.Node:
				n.Status = old.(*onpath.Node).Status
			case *onpath.Deployment:
				n.Status = old.(*onpath.Deployment).Status
			}
		}
		s.objects[k] = o
	}
}

func (s *sim) remove(k onpath.Kind, tenant, name string) {
	delete(s.objects, onpath.Key{Kind: k, Tenant: tenant, Name: name})
}

// connect has a node join, or come back.
func (s *sim) connect(name string) {
	st := s.states[name]
	if st == nil {
		st = &NodeState{}
		s.states[name] = st
	}
	s.report(name)
}

func (s *sim) snapshot() *Snapshot {
	sn := &Snapshot{Now: s.now, Started: s.started, Objects: s.objects, States: s.states, Settings: s.set, Wanted: s.wanted, Filling: s.filling,
		Reservations: s.reservations}
	for i := range uint32(8) {
		sn.IDs.Vports = append(sn.IDs.Vports, onpath.VportID(s.next.vport+i+1))
		sn.IDs.Paths = append(sn.IDs.Paths, onpath.PathID(s.next.path+i+1))
		sn.IDs.Addresses = append(sn.IDs.Addresses, s.next.address+uint64(i)+1)
	}
	return sn
}

// think plans once and carries the result out; it reports whether anything
// came of it.
func (s *sim) think() bool {
	s.t.Helper()
	sn := s.snapshot()
	var r *Result
	if s.thoughts++; s.thoughts%16 == 1 {
		r = s.makeTwice(sn)
	} else {
		r = s.planner.Make(sn)
	}
	s.next.vport += uint32(r.Used.Vports)
	s.next.path += uint32(r.Used.Paths)
	s.next.address += uint64(r.Used.Addresses)
	maps.DeleteFunc(r.Plans, func(n string, _ *onpath.NodePlan) bool { return s.mute[n] }) // they have no session
	for n, p := range r.Plans {
		s.states[n].Sent = append(s.states[n].Sent, throughJSON(s.t, p))
	}
	for _, o := range r.Create {
		if s.hostless[o.Spec.Node] && !s.own(o) {
			s.t.Fatalf("instance %s with image: host on node %s, which does not permit it", o.Metadata.Name, o.Spec.Node)
		}
		s.objects[onpath.KeyOf(o)] = onpath.Clone(o)
	}
	for _, o := range r.Own {
		o = onpath.Clone(o)
		o.Meta().Created, o.Meta().Generation = s.now, 1
		s.objects[onpath.KeyOf(o)] = o
	}
	for _, o := range r.Update {
		s.objects[onpath.KeyOf(o)] = onpath.Clone(o)
	}
	for _, k := range r.Delete {
		delete(s.objects, k)
	}
	s.events = append(s.events, r.Events...)
	return len(r.Plans)+len(r.Create)+len(r.Own)+len(r.Update)+len(r.Delete) > 0
}

// own reports whether an instance's function has an image of its own.
func (s *sim) own(i *onpath.Instance) bool {
	d := newWorld(s.snapshot()).deployments[name{i.Metadata.Tenant, i.Spec.Deployment}]
	return d != nil && d.spec.Container != nil && d.spec.Container.Image != onpath.HostImage
}

// makeTwice holds Make to being pure, and a planner that keeps what it has looked up, and
// divides its work, to deciding as one that does neither.
func (s *sim) makeTwice(sn *Snapshot) *Result {
	s.t.Helper()
	before, _ := json.Marshal(flat(sn.Objects))
	r := s.planner.Make(sn)
	if after, _ := json.Marshal(flat(sn.Objects)); string(before) != string(after) {
		s.t.Fatalf("Make changed its snapshot:\n%s\n%s", before, after)
	}
	if again := Make(sn); !sameResult(r, again) {
		s.t.Fatal("two planners made two results of one snapshot")
	}
	return r
}

func flat(m map[onpath.Key]onpath.Object) map[string]onpath.Object {
	out := map[string]onpath.Object{}
	for k, o := range m {
		out[k.String()] = o
	}
	return out
}

func sameResult(a, b *Result) bool {
	x, err := json.Marshal(a)
	if err != nil {
		panic(err)
	}
	y, _ := json.Marshal(b)
	return string(x) == string(y)
}

func throughJSON(t *testing.T, p *onpath.NodePlan) *onpath.NodePlan {
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	out := new(onpath.NodePlan)
	if err := json.Unmarshal(b, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// ack has a node put the k-th of its plans under way in force, those before it
// are skipped as the session does; then all rules of order must hold.
func (s *sim) ack(node string, k int) {
	s.t.Helper()
	st := s.states[node]
	st.Acked, st.Sent = st.Sent[k], slices.Clone(st.Sent[k+1:])
	s.report(node)
	s.checkOrder()
}

// report has a node say what it runs: everything in its plan in force, ready
// unless broken.
func (s *sim) report(node string) {
	st := s.states[node]
	r := &onpath.NodeReport{Node: node, Capacity: onpath.Resources{CPU: 8000, Memory: 8 << 30}, UnderlayMTU: 1500, UnderlayDevice: "eth9", NoHostImage: s.hostless[node], Blocks: s.blocks[node],
		Addresses: s.machines[node], Conditions: s.says[node], Leases: s.leases[node], Paths: map[onpath.PathID]uint64{}}
	if !s.old[node] {
		r.Knows = onpath.Abilities()
	}
	if st.Acked != nil {
		r.Plan = st.Acked.Generation
		for _, i := range st.Acked.Instances {
			ir := onpath.InstanceReport{Name: i.Name, Tenant: i.Tenant, State: onpath.InstanceReady, Since: s.now, Wired: true}
			if s.broken[i.Deployment] && !s.spared[i.Name] {
				ir.State, ir.Message = onpath.InstanceFailed, "exit code 1"
			}
			if told := i.Spec.Told(); told != "" {
				ir.Config, ir.Refused = told, s.refuses
			}
			ir.Restarts = s.restarts[i.Name]
			ir.Since = s.since(&ir)
			if s.busy[i.Name] || s.endless {
				ir.Flows = 3
			}
			r.Instances = append(r.Instances, ir)
		}
		for _, p := range st.Acked.Datapath.Paths {
			if !p.Ended.IsZero() {
				r.Paths[p.ID] = s.flowsOf(p)
			}
		}
	}
	for n := range s.dead {
		if indexOf(st.Acked).hasPeer(n) {
			r.Unreachable = append(r.Unreachable, n)
		}
	}
	st.Report, st.Seen = r, s.now
}

// flowsOf is what nodes count of a path: something while an instance of it is busy.
func (s *sim) flowsOf(p onpath.Path) uint64 {
	if s.endless {
		return 3
	}
	for _, i := range s.instances("") {
		if s.busy[i.Metadata.Name] && slices.Contains(p.Elements, i.Metadata.Tenant+"/"+i.Spec.Deployment) {
			return 3
		}
	}
	return 0
}

// since is when an instance came into the state that it reports.
func (s *sim) since(r *onpath.InstanceReport) time.Time {
	was, known := s.reported[r.Name]
	if !known || was.State != r.State || was.Restarts != r.Restarts {
		was = *r
		was.Since = s.now
		s.reported[r.Name] = was
	}
	return was.Since
}

// hear has every node send its report again.
func (s *sim) hear() {
	for n := range s.states {
		if !s.mute[n] && !s.dead[n] {
			s.report(n)
		}
	}
}

// waiting are the nodes that have plans to acknowledge and can.
func (s *sim) waiting() (names []string) {
	for _, n := range sortedKeys(s.states) {
		if len(s.states[n].Sent) > 0 && !s.mute[n] && !s.dead[n] {
			names = append(names, n)
		}
	}
	return names
}

// settle plans and acknowledges, in random order, until nothing happens.
func (s *sim) settle() {
	s.t.Helper()
	for round := range 400 {
		busy := s.think()
		if waiting := s.waiting(); len(waiting) > 0 {
			n := waiting[s.rng.IntN(len(waiting))]
			s.ack(n, s.rng.IntN(len(s.states[n].Sent)))
			busy = true
		}
		if !busy {
			return
		}
		if round%7 == 0 {
			s.now = s.now.Add(10 * time.Millisecond)
		}
	}
	s.t.Fatal("does not settle")
}

// pass lets time pass, with every connected node reporting.
func (s *sim) pass(d time.Duration) {
	s.t.Helper()
	for end := s.now.Add(d); s.now.Before(end); {
		s.now = s.now.Add(time.Second)
		s.hear()
		s.settle()
	}
}

// checkOrder holds the plans in force against each other: whatever one points
// at on another node is there, and knows what to do with it.
func (s *sim) checkOrder() {
	s.t.Helper()
	for name, st := range s.states {
		if st.Acked == nil || s.past[name] {
			continue
		}
		x := indexOf(st.Acked)
		s.checkClosed(x)
		for _, v := range x.vports {
			if v.Kind != onpath.VportRemote {
				continue
			}
			peer := s.states[v.Peer]
			if s.past[v.Peer] {
				continue
			}
			if peer == nil || peer.Acked == nil {
				s.t.Fatalf("%s points at vport %d of %s, which has no plan", name, v.ID, v.Peer)
			}
			y := indexOf(peer.Acked)
			if y.edge != v.ID && !y.hasLocal(v.ID) {
				s.t.Fatalf("%s (plan %d) points at vport %d of %s, whose plan %d has not got it", name, st.Acked.Generation, v.ID, v.Peer, peer.Acked.Generation)
			}
			if !y.hasPeer(name) {
				s.t.Fatalf("%s sends to %s, which does not know it as a peer", name, v.Peer)
			}
			for _, g := range x.groups {
				if x.sendsTo(g.Path, v.ID) && y.path(g.Path) == nil {
					s.t.Fatalf("%s sends path %d to vport %d of %s, which has not got the path", name, g.Path, v.ID, v.Peer)
				}
			}
		}
	}
}

// checkClosed holds one plan against itself: all that is referred to is there.
func (s *sim) checkClosed(x *index) {
	s.t.Helper()
	n := x.plan.Node
	if err := x.plan.Datapath.Validate(); err != nil {
		s.t.Fatalf("%s: %v", n, err)
	}
	if err := x.plan.Datapath.Fits(); err != nil {
		s.t.Fatalf("%s: %v", n, err)
	}
	table := func(id onpath.TableID, by string) {
		if id != 0 && x.tables[id] == nil {
			s.t.Fatalf("%s: %s refers to table %d, which is not there", n, by, id)
		}
	}
	action := func(a onpath.Action, by string) {
		table(a.Table, by)
		if a.Kind == onpath.ActionGroup && x.groups[a.Group] == nil {
			s.t.Fatalf("%s: %s refers to group %d, which is not there", n, by, a.Group)
		}
	}
	for _, t := range x.tables {
		action(t.Miss, fmt.Sprintf("table %d", t.ID))
		for _, r := range t.Rules {
			action(r.Action, fmt.Sprintf("table %d", t.ID))
			if r.Path != 0 && x.paths[r.Path] == nil {
				s.t.Fatalf("%s: table %d names path %d, which is not there", n, t.ID, r.Path)
			}
		}
	}
	s.checkRows(x)
	for _, g := range x.groups {
		table(g.Then, "a group")
		table(g.Back, "a group")
		for _, m := range g.Members {
			if x.vports[m.Vport] == nil {
				s.t.Fatalf("%s: group %d has member %d, which is not there", n, g.ID, m.Vport)
			}
		}
	}
	for _, v := range x.vports {
		table(v.Emit, "a vport")
		if v.Peer != "" && !x.peers[v.Peer] {
			s.t.Fatalf("%s: vport %d is of %s, which is no peer", n, v.ID, v.Peer)
		}
	}
	if e := x.plan.Datapath.Edge; e != nil {
		table(e.Table, "the edge")
	}
}

// Objects, written briefly.

func prefixes(list ...string) []onpath.Prefix {
	var out []onpath.Prefix
	for _, p := range list {
		v, err := onpath.ParsePrefix(p)
		if err != nil {
			panic(err)
		}
		out = append(out, onpath.Prefix{Prefix: v})
	}
	return out
}

func aCloudlet(name string) *onpath.Cloudlet {
	o, _ := onpath.New(onpath.KindCloudlet)
	o.Meta().Name = name
	return o.(*onpath.Cloudlet)
}

func aNode(name, cloudlet string, number int, gateway bool) *onpath.Node {
	o, _ := onpath.New(onpath.KindNode)
	n := o.(*onpath.Node)
	n.Metadata.Name = name
	n.Spec.Cloudlet = cloudlet
	n.Spec.Underlay.Address = netip.AddrFrom4([4]byte{10, 255, byte(number >> 8), byte(number)})
	if gateway {
		n.Spec.Uplinks = []onpath.Uplink{{Name: "core", Device: "eth0", Attach: onpath.AttachRouter}, {Name: "access", Device: "eth1", Attach: onpath.AttachRouter}}
	}
	return n
}

func aFunction(tenant, name string, change func(*onpath.FunctionSpec)) *onpath.Function {
	o, _ := onpath.New(onpath.KindFunction)
	f := o.(*onpath.Function)
	f.Metadata.Name, f.Metadata.Tenant = name, tenant
	f.Spec.Container = &onpath.ContainerSpec{Image: "host", Command: []string{"sleep"}}
	if change != nil {
		change(&f.Spec)
	}
	return f
}

func aDeployment(tenant, name, function string, n int) *onpath.Deployment {
	o, _ := onpath.New(onpath.KindDeployment)
	d := o.(*onpath.Deployment)
	d.Metadata.Name, d.Metadata.Tenant = name, tenant
	d.Spec.Function, d.Spec.Instances = onpath.Ref(function), &n
	return d
}

func aChain(tenant, name string, through ...onpath.Element) *onpath.Chain {
	o, _ := onpath.New(onpath.KindChain)
	c := o.(*onpath.Chain)
	c.Metadata.Name, c.Metadata.Tenant = name, tenant
	c.Spec.From, c.Spec.To = onpath.Endpoints{Any: true}, onpath.Endpoints{Prefixes: prefixes("198.51.100.10")}
	c.Spec.Through = through
	return c
}

func through(function string, n int) onpath.Element {
	return onpath.Element{Function: onpath.Ref(function), Instances: &n}
}

func (s *sim) chain(tenant, name string) *onpath.Chain {
	c, _ := s.objects[onpath.Key{Kind: onpath.KindChain, Tenant: tenant, Name: name}].(*onpath.Chain)
	return c
}

func (s *sim) instances(dep string) []*onpath.Instance {
	var out []*onpath.Instance
	for _, i := range objects[*onpath.Instance](s.snapshot()) {
		if dep == "" || i.Spec.Deployment == dep {
			out = append(out, i)
		}
	}
	return out
}

// site makes a cloudlet of a gateway and n compute nodes, all connected.
func (s *sim) site(name string, number, n int) {
	s.apply(aCloudlet(name), aNode(name+"-gw", name, number*100, true))
	s.connect(name + "-gw")
	for i := range n {
		node := fmt.Sprintf("%s-n%d", name, i+1)
		s.apply(aNode(node, name, number*100+i+1, false))
		s.connect(node)
	}
}
