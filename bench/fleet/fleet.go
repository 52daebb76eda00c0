// Package fleet is an installation of virtual nodes: objects, plans and reports as they
// are once everything runs, and no machine behind them. What the planner and the
// server's loop cost is measured on it.
package fleet

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan"
)

// Size of a fleet. Every chain has two elements: a deployment of two instances and a
// short form of one.
type Size struct {
	Cloudlets int
	Nodes     int // in each cloudlet; the first of them is its gateway
	Chains    int // in each cloudlet
}

// String says the size in words.
func (s Size) String() string {
	return fmt.Sprintf("%d nodes, %d chains, %d instances, %d cloudlets",
		s.Cloudlets*s.Nodes, s.Cloudlets*s.Chains, s.Cloudlets*s.Chains*instancesOfChain, s.Cloudlets)
}

const (
	instancesOfChain = 3
	tenants          = 100
	operator         = onpath.OperatorTenant
)

// Fleet is a settled installation.
type Fleet struct {
	Now     time.Time
	Objects map[onpath.Key]onpath.Object
	States  map[string]*plan.NodeState
	ids     plan.IDs
}

// Of makes an installation of objects, and of what every one has. It has numbers for some
// hundred instances.
func Of(objects []onpath.Object, now time.Time) (*Fleet, error) {
	f := &Fleet{Now: now, Objects: map[onpath.Key]onpath.Object{}, States: map[string]*plan.NodeState{}}
	f.ownTenants()
	f.reserve(new(plan.Count), Size{Chains: 200})
	return f, f.Apply(objects)
}

// Apply adds objects, which have no status yet, and has the nodes do all that follows: then
// every chain steers.
func (f *Fleet) Apply(objects []onpath.Object) error {
	for _, o := range objects {
		f.add(o.Meta().Tenant, o.Meta().Name, o)
		if k := onpath.KeyOf(o); k.Kind == onpath.KindNode {
			f.connect(k.Name)
		}
	}
	if err := f.Settle(); err != nil {
		return err
	}
	for k, o := range f.Objects {
		if c, ok := o.(*onpath.Chain); ok && !c.Status.Active {
			return fmt.Errorf("%s steers nothing: %+v", k, c.Status.Conditions)
		}
	}
	return nil
}

// Plan is what a node has done.
func (f *Fleet) Plan(node string) *onpath.NodePlan { return f.States[node].Acked }

// New makes a fleet whose nodes have done all that follows from its objects. Cloudlets
// are settled one by one, as no chain lies in two of them.
func New(size Size, now time.Time) (*Fleet, error) {
	f := &Fleet{Now: now, Objects: map[onpath.Key]onpath.Object{}, States: map[string]*plan.NodeState{}}
	shared := f.common()
	next := plan.Count{}
	for c := range size.Cloudlets {
		one := &Fleet{Now: now, Objects: maps.Clone(shared), States: map[string]*plan.NodeState{}}
		one.reserve(&next, size)
		one.addNodes(c, size)
		for k := range size.Chains {
			one.addChain(c, k, size)
		}
		if err := one.Settle(); err != nil {
			return nil, fmt.Errorf("settle cloudlet %d: %w", c, err)
		}
		maps.Copy(f.Objects, one.Objects)
		maps.Copy(f.States, one.States)
	}
	f.reserve(&next, Size{Chains: 100})
	return f, f.check(size)
}

// reserve gives the fleet numbers that none has had before.
func (f *Fleet) reserve(next *plan.Count, size Size) {
	for range 2*size.Nodes + instancesOfChain*size.Chains {
		next.Vports++
		next.Addresses++
		f.ids.Vports = append(f.ids.Vports, onpath.VportID(next.Vports))
		f.ids.Addresses = append(f.ids.Addresses, uint64(next.Addresses))
	}
	for range size.Chains {
		next.Paths++
		f.ids.Paths = append(f.ids.Paths, onpath.PathID(next.Paths))
	}
}

// check fails if a chain steers nothing, or instances are missing.
func (f *Fleet) check(size Size) error {
	instances := 0
	for k, o := range f.Objects {
		switch o := o.(type) {
		case *onpath.Instance:
			instances++
		case *onpath.Chain:
			if !o.Status.Active || len(o.Status.Cloudlets) != 1 {
				return fmt.Errorf("%s steers nothing: %+v", k, o.Status.Conditions)
			}
		}
	}
	if want := size.Cloudlets * size.Chains * instancesOfChain; instances != want {
		return fmt.Errorf("%d instances run, must be %d", instances, want)
	}
	return nil
}

// Snapshot is what the planner gets.
func (f *Fleet) Snapshot() *plan.Snapshot {
	return &plan.Snapshot{
		Now: f.Now, Started: f.Now.Add(-time.Hour), Objects: f.Objects, States: f.States, IDs: f.ids,
		Settings: plan.Settings{Secret: []byte("fleet")},
	}
}

// add puts an object into the fleet with the defaults that the API would fill in.
func (f *Fleet) add(tenant, name string, o onpath.Object) {
	m := o.Meta()
	m.Tenant, m.Name, m.Created, m.Generation = tenant, name, f.Now.Add(-time.Hour), 1
	if err := o.Validate(); err != nil {
		panic(fmt.Sprintf("fleet: %s: %v", onpath.KeyOf(o), err)) // all of them are made here
	}
	f.Objects[onpath.KeyOf(o)] = o
}

func made[T onpath.Object](kind onpath.Kind) T {
	o, err := onpath.New(kind)
	if err != nil {
		panic(err) // kinds are constants here
	}
	return o.(T)
}

func tenant(k int) string { return fmt.Sprintf("tenant-%02d", k%tenants) }

// common are the objects of no cloudlet: tenants and one function for all.
func (f *Fleet) common() map[onpath.Key]onpath.Object {
	for k := range tenants {
		t := made[*onpath.Tenant](onpath.KindTenant)
		t.Spec.Addresses = []onpath.Prefix{{Prefix: netip.MustParsePrefix("0.0.0.0/0")}, {Prefix: netip.MustParsePrefix("::/0")}}
		f.add("", tenant(k), t)
	}
	f.ownTenants()
	fn := made[*onpath.Function](onpath.KindFunction)
	fn.Spec = onpath.FunctionSpec{
		Shared: true, Container: &onpath.ContainerSpec{Image: "registry.example/hop:1", Command: []string{"/hop"}},
		Resources: onpath.Resources{CPU: 10, Memory: 8 << 20},
	}
	f.add(operator, "hop", fn)
	return maps.Clone(f.Objects)
}

// ownTenants are those of every installation.
func (f *Fleet) ownTenants() {
	for _, t := range []string{onpath.DefaultTenant, operator} {
		f.add("", t, made[*onpath.Tenant](onpath.KindTenant))
	}
}

func cloudletName(c int) string { return fmt.Sprintf("pop-%02d", c) }

func nodeName(c, n int) string { return fmt.Sprintf("pop-%02d-%03d", c, n) }

// addNodes adds a cloudlet and its nodes, which have connected.
func (f *Fleet) addNodes(c int, size Size) {
	f.add("", cloudletName(c), made[*onpath.Cloudlet](onpath.KindCloudlet))
	for n := range size.Nodes {
		o := made[*onpath.Node](onpath.KindNode)
		o.Spec.Cloudlet = cloudletName(c)
		o.Spec.Underlay.Address = netip.AddrFrom4([4]byte{10, byte(c), byte(n >> 8), byte(n)})
		if n == 0 {
			o.Spec.Uplinks = []onpath.Uplink{
				{Name: "access", Device: "eth1", Attach: onpath.AttachRouter, Side: onpath.SideAccess},
				{Name: "core", Device: "eth2", Attach: onpath.AttachRouter, Side: onpath.SideCore},
			}
		}
		f.add("", nodeName(c, n), o)
		f.connect(nodeName(c, n))
	}
}

func (f *Fleet) connect(node string) {
	f.States[node] = &plan.NodeState{Seen: f.Now}
	Answer(f.States[node], node, f.Now)
}

// addChain adds a chain of two elements. Half of the chains lead from anywhere to a
// server of their own, the others, of lower precedence, from subscribers to anywhere.
func (f *Fleet) addChain(c, k int, size Size) {
	d := made[*onpath.Deployment](onpath.KindDeployment)
	two := 2
	d.Spec.Function, d.Spec.Instances = operator+"/hop", &two
	name := fmt.Sprintf("pop-%02d-%05d", c, k)
	f.add(tenant(k), "ids-"+name, d)
	ch := made[*onpath.Chain](onpath.KindChain)
	ch.Spec.At.Cloudlets = []string{cloudletName(c)}
	ch.Spec.Through = []onpath.Element{{Deployment: onpath.Ref(d.Metadata.Name)}, {Function: operator + "/hop"}}
	number := c*size.Chains + k
	addr := func(first byte) onpath.Endpoints {
		a := netip.AddrFrom4([4]byte{first, byte(number >> 16), byte(number >> 8), byte(number)})
		return onpath.Endpoints{Prefixes: []onpath.Prefix{{Prefix: netip.PrefixFrom(a, 32)}}}
	}
	if k%2 == 0 {
		ch.Spec.From, ch.Spec.To, ch.Spec.Priority = onpath.Endpoints{Any: true}, addr(20), 200
	} else {
		ch.Spec.From, ch.Spec.To, ch.Spec.Priority = addr(21), onpath.Endpoints{Any: true}, 100
	}
	ch.Spec.Select = []onpath.Selector{{Protocol: "tcp", DestinationPorts: []onpath.PortRange{{First: 80, Last: 80}, {First: 443, Last: 443}}}}
	f.add(tenant(k), name, ch)
}

// mostSteps of planning bound what Settle takes.
const mostSteps = 64

// Settle plans and has the nodes do at once what they are told, until nothing follows
// any more.
func (f *Fleet) Settle() error {
	for range mostSteps {
		r := plan.Make(f.Snapshot())
		if r.Short != (plan.Count{}) {
			return fmt.Errorf("%+v numbers are missing", r.Short)
		}
		if len(r.Create)+len(r.Update)+len(r.Delete)+len(r.Plans) == 0 {
			return nil
		}
		f.carryOut(r)
	}
	return fmt.Errorf("it is not at rest after %d steps", mostSteps)
}

func (f *Fleet) carryOut(r *plan.Result) {
	for _, o := range r.Create {
		f.Objects[onpath.KeyOf(o)] = o
	}
	for _, o := range r.Update {
		f.Objects[onpath.KeyOf(o)] = o
	}
	for _, k := range r.Delete {
		delete(f.Objects, k)
	}
	for n, p := range r.Plans {
		f.States[n].Acked = p
		Answer(f.States[n], n, f.Now)
	}
	f.ids.Vports = f.ids.Vports[r.Used.Vports:]
	f.ids.Paths = f.ids.Paths[r.Used.Paths:]
	f.ids.Addresses = f.ids.Addresses[r.Used.Addresses:]
}

// Flows is how many flows a draining instance of the fleet has.
const Flows = 1000

// Answer has a node report its plan in force as done, everything ready since long ago.
func Answer(st *plan.NodeState, node string, now time.Time) {
	r := &onpath.NodeReport{
		Node: node, Version: "v1", Kernel: "6.12.0", Started: now.Add(-time.Hour), UnderlayMTU: 1600,
		Capacity:   onpath.Resources{CPU: 64000, Memory: 256 << 30},
		Conditions: []onpath.Condition{{Type: "Ready", Status: onpath.True, Reason: "Reports", Since: now.Add(-time.Hour)}},
	}
	if st.Acked != nil {
		r.Plan, r.Paths = st.Acked.Generation, map[onpath.PathID]uint64{}
		for _, i := range st.Acked.Instances {
			x := onpath.InstanceReport{Name: i.Name, Tenant: i.Tenant, State: onpath.InstanceReady, Since: now.Add(-time.Hour), Wired: true,
				Config: i.Spec.Told()}
			if i.Draining {
				x.Flows = Flows
			}
			r.Instances = append(r.Instances, x)
		}
		for _, p := range st.Acked.Datapath.Paths {
			if !p.Ended.IsZero() {
				r.Paths[p.ID] = Flows
			}
		}
	}
	st.Report = r
}

// failure is a report in which an instance has failed, and the node that sends it.
func (f *Fleet) failure() (node string, r *onpath.NodeReport) {
	node = nodeName(0, 1)
	c := *f.States[node].Report
	c.Instances = slices.Clone(c.Instances)
	c.Instances[0].State, c.Instances[0].Reason, c.Instances[0].Message = onpath.InstanceFailed, "Exited", "exited with code 1"
	return node, &c
}

// FailedSnapshot is the planner's input when one instance has failed.
func (f *Fleet) FailedSnapshot() *plan.Snapshot {
	node, r := f.failure()
	s := f.Snapshot()
	s.States = maps.Clone(f.States)
	s.States[node] = &plan.NodeState{Report: r, Seen: f.States[node].Seen, Acked: f.States[node].Acked}
	return s
}

// RemoveChain deletes a chain, whose own instances then drain with Flows each.
func (f *Fleet) RemoveChain(c, k int) error {
	delete(f.Objects, onpath.Key{Kind: onpath.KindChain, Tenant: tenant(k), Name: fmt.Sprintf("pop-%02d-%05d", c, k)})
	return f.Settle()
}
