package plan

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/paths"
)

// accelerator is one with its nodes looked up.
type accelerator struct {
	obj    *onpath.Accelerator
	key    name
	nodes  []*node // of Between that exist, in its order
	number map[string]int
	front  []*paths.Front // by origin; nil: nothing is measured
}

// accelerators looks all of them up.
func accelerators(w *world) (list []*accelerator) {
	for _, o := range listed[*onpath.Accelerator](w) {
		a := &accelerator{obj: o, key: nameOf(o), number: map[string]int{}}
		for _, n := range o.Spec.Between {
			if node := w.nodes[n]; node != nil {
				a.number[n] = len(a.nodes)
				a.nodes = append(a.nodes, node)
			}
		}
		list = append(list, a)
	}
	return list
}

// checkAccelerators refuses nodes that do not exist, and origins that are not the tenant's.
func checkAccelerators(w *world) (errs onpath.Errors) {
	for _, a := range accelerators(w) {
		for i, n := range a.obj.Spec.Between {
			if w.nodes[n] == nil {
				errs = append(errs, fault(a.obj, onpath.CodeNotFound, fmt.Sprintf("spec.between[%d]", i),
					"correct the name, or have the node join", "there is no node %s", n))
			}
		}
		allowed := (&resolver{world: w}).allowed(a.key.tenant)
		free := len(allowed) == 0 && selectsAny(w, a.key.tenant)
		for i, o := range a.obj.Spec.Origins {
			host := netip.PrefixFrom(o.Address, o.Address.BitLen())
			if !free && outside([]netip.Prefix{host}, allowed).IsValid() {
				errs = append(errs, fault(a.obj, onpath.CodeForbidden, fmt.Sprintf("spec.origins[%d].address", i),
					"have the operator add it to spec.addresses of tenant "+a.key.tenant,
					"tenant %s may have its own addresses accelerated, %s; %s is not within", a.key.tenant, some(allowed), o.Address))
			}
		}
	}
	for _, o := range listed[*onpath.Measurement](w) {
		for i, n := range o.Spec.Nodes {
			if w.nodes[n] == nil {
				errs = append(errs, fault(o, onpath.CodeNotFound, fmt.Sprintf("spec.nodes[%d]", i),
					"correct the name, or have the node join", "there is no node %s", n))
			}
		}
	}
	return errs
}

// accelerate has the objects written that accelerators stand for, and their statuses.
func accelerate(w *world) {
	want := map[onpath.Key]onpath.Object{}
	for _, a := range w.accels {
		a.measured(w)
		for _, o := range a.objects() {
			want[onpath.KeyOf(o)] = o
		}
		acceleratorStatus(w, a)
	}
	writeMade(w, ofAccelerators, want)
}

// part names what an accelerator makes for a node.
func (a *accelerator) part(node string) string { return partName(a.key.name, node) }

// partName names what onpath makes of an object at one place; long names are cut and told
// apart by a hash.
func partName(whole, place string) string {
	const most = onpath.MaxDeploymentName
	s := whole + "-" + place
	if len(s) > most {
		s = s[:most-9] + "-" + hash(s)[:8]
	}
	return s
}

// takes reports whether connections are taken over at the node.
func (a *accelerator) takes(n *node) bool {
	in := a.obj.Spec.Ingress
	return n.hasEdge() && (len(in) == 0 || slices.Contains(in, n.name))
}

// objects are a function, a deployment on each node, and a chain at each gateway.
func (a *accelerator) objects() []onpath.Object {
	meta := func(n string) onpath.Metadata {
		return onpath.Metadata{Name: n, Tenant: a.key.tenant, Labels: map[string]string{onpath.AcceleratorLabel: a.key.name}}
	}
	f := &onpath.Function{Metadata: meta(a.key.name), Spec: onpath.NewRelay()}
	list := []onpath.Object{f}
	one := 1
	for _, n := range a.nodes {
		d := &onpath.Deployment{Metadata: meta(a.part(n.name)), Spec: onpath.DeploymentSpec{
			Function: onpath.Ref(f.Metadata.Name), Instances: &one,
			Place: onpath.Place{Cloudlets: []string{n.obj.Spec.Cloudlet}, Nodes: map[string]string{"name": n.name}},
		}}
		list = append(list, d)
		if a.takes(n) {
			list = append(list, a.chain(meta(a.part(n.name)), n, d.Metadata.Name))
		}
	}
	for _, o := range list {
		if err := o.Validate(); err != nil { // fills in defaults
			panic(fmt.Sprintf("plan: accelerator %s: %v", a.key, err))
		}
	}
	return list
}

func (a *accelerator) chain(m onpath.Metadata, n *node, deployment string) *onpath.Chain {
	c := &onpath.Chain{Metadata: m, Spec: onpath.ChainSpec{
		From: onpath.Endpoints{Any: true}, At: onpath.At{Cloudlets: []string{n.obj.Spec.Cloudlet}},
		Through: []onpath.Element{{Deployment: onpath.Ref(deployment), None: onpath.NoneBypass}},
	}}
	seen := map[netip.Addr]bool{}
	for _, o := range a.obj.Spec.Origins {
		host := onpath.Prefix{Prefix: netip.PrefixFrom(o.Address, o.Address.BitLen())}
		if !seen[o.Address] {
			seen[o.Address] = true
			c.Spec.To.Prefixes = append(c.Spec.To.Prefixes, host)
		}
		c.Spec.Select = append(c.Spec.Select, onpath.Selector{
			Protocol: "tcp", Destinations: []onpath.Prefix{host}, DestinationPorts: []onpath.PortRange{{First: o.Port, Last: o.Port}},
		})
	}
	return c
}

// specOf is an object's Spec.
func specOf(o onpath.Object) reflect.Value { return reflect.ValueOf(o).Elem().FieldByName("Spec") }

func sameSpec(a, b onpath.Object) bool {
	return reflect.DeepEqual(specOf(a).Interface(), specOf(b).Interface())
}

// withSpec is a copy of an object with another's Spec.
func withSpec(have, next onpath.Object) onpath.Object {
	c := onpath.Clone(have)
	specOf(c).Set(specOf(next))
	c.Meta().Generation++
	return c
}

// originName is how nodes call an origin in what they measure.
func originName(o onpath.AcceleratedOrigin) string {
	return netip.AddrPortFrom(o.Address, o.Port).String()
}

// measured computes the paths of each origin: the nodes and, as one more, the origin, to
// which each node's round trip counts as the last leg. So the egress is chosen with the
// path, and no relay at all is one of the choices.
func (a *accelerator) measured(w *world) {
	full := make([]bool, len(a.nodes))
	for k, n := range a.nodes {
		full[k] = a.full(w, n)
	}
	a.front = make([]*paths.Front, len(a.obj.Spec.Origins))
	for i, o := range a.obj.Spec.Origins {
		d, err := paths.NewDistances(len(a.nodes) + 1)
		if err != nil {
			continue // there are at most MaxAcceleratorNodes
		}
		known := false
		for k, n := range a.nodes {
			for _, x := range n.distances() {
				to, isNode := a.number[x.To]
				switch {
				case isNode && (full[k] || full[to]): // no way leads by it
				case isNode && to != k:
					known = a.set(d, k, to, x) || known
				case x.To == originName(o):
					known = a.set(d, k, len(a.nodes), x) || known
				}
			}
		}
		if known {
			a.front[i] = paths.Compute(d)
		}
	}
}

// full reports whether the relay on a node is.
func (a *accelerator) full(w *world, n *node) bool {
	return slices.ContainsFunc(w.ofDep[name{a.key.tenant, a.part(n.name)}], func(i *instance) bool { return i.node == n && i.full() })
}

// roundedFrom is from where on parts of a millisecond are left out: what measurements
// differ by must not make one path of equals better than another with fewer relays.
const roundedFrom = 10 * time.Millisecond

// set notes a measured leg. Where both ends have measured it, the longer round trip counts.
func (a *accelerator) set(d *paths.Distances, from, to int, x onpath.Distance) bool {
	if x.RTT <= 0 || x.Loss > *a.obj.Spec.MaxLoss {
		return false
	}
	rtt := time.Duration(x.RTT)
	if rtt > roundedFrom {
		rtt = rtt.Truncate(time.Millisecond)
	}
	return d.Set(from, to, max(rtt, d.RTT(from, to))) == nil
}

func (n *node) distances() []onpath.Distance {
	if n.st == nil || n.st.Report == nil {
		return nil
	}
	return n.st.Report.Distances
}

// relayAddress is where a node's relay listens.
func relayAddress(n *node) netip.AddrPort {
	return netip.AddrPortFrom(n.obj.Spec.Underlay.Address, onpath.DefaultRelayPort)
}

// work is what the relay on a node does.
func (a *accelerator) work(n *node, secret string) *onpath.RelayWork {
	work := &onpath.RelayWork{Listen: relayAddress(n), Secret: secret, Congestion: a.obj.Spec.Congestion}
	if a.obj.Spec.SYN == onpath.SYNWait {
		work.SYN = onpath.SYNWait // what an earlier version does not know is left out else
	}
	work.Vanish = a.obj.Spec.Vanish
	for i, o := range a.obj.Spec.Origins {
		r := onpath.RelayOrigin{Address: netip.AddrPortFrom(o.Address, o.Port), Size: o.Size}
		if from, ok := a.number[n.name]; ok && a.front[i] != nil {
			row := a.front[i].Row(from, len(a.nodes))
			for rounds := 1; rounds <= paths.MaxRounds; rounds++ {
				p := row.ForRounds(rounds)
				if p == nil {
					break
				}
				r.Paths = joinPath(r.Paths, onpath.RelayPath{UpTo: onpath.Size(paths.Bytes(rounds)), Next: a.next(p)})
			}
		}
		work.Origins = append(work.Origins, r)
	}
	return work
}

// joinPath adds the path for the next larger sizes; one that is the same as before only
// reaches further.
func joinPath(list []onpath.RelayPath, p onpath.RelayPath) []onpath.RelayPath {
	if n := len(list); n > 0 && slices.Equal(list[n-1].Next, p.Next) {
		list[n-1].UpTo = p.UpTo
		return list
	}
	return append(list, p)
}

// next are the relays behind the ingress; the path's last node is the origin.
func (a *accelerator) next(p *paths.Path) (list []netip.AddrPort) {
	for _, k := range p.Nodes[1 : len(p.Nodes)-1] {
		list = append(list, relayAddress(a.nodes[k]))
	}
	return list
}

// relays writes what the relay of an accelerator does into its instance's plan.
func relays(w *world, n *node, i *instance, p *onpath.InstancePlan) {
	if i.d == nil || i.d.obj == nil || !p.Spec.Traits().Relays {
		return
	}
	for _, a := range w.accels {
		if a.key == (name{i.key.tenant, i.d.obj.Metadata.Labels[onpath.AcceleratorLabel]}) {
			p.Spec = p.Spec.WithWork(a.work(n, hex.EncodeToString(derived(w, "relay"))))
		}
	}
}

// acceleratorStatus says which paths are used, and whether the chains are in force.
func acceleratorStatus(w *world, a *accelerator) {
	next := *current(w, a.obj)
	next.Status.Conditions = slices.Clone(next.Status.Conditions)
	next.Status.Paths = nil
	active, ingress := 0, 0
	var full []string
	for _, n := range a.nodes {
		if a.full(w, n) {
			full = append(full, n.name)
		}
	}
	for _, n := range a.nodes {
		if !a.takes(n) {
			continue
		}
		ingress++
		if c := w.chainNamed[name{a.key.tenant, a.part(n.name)}]; c != nil && c.obj.Status.Active {
			active++
		}
		for i, o := range a.obj.Spec.Origins {
			if p, ok := a.path(n, i, o); ok {
				next.Status.Paths = append(next.Status.Paths, p)
			}
		}
	}
	c := onpath.Condition{Type: "Active", Status: onpath.False, Since: w.Now}
	switch {
	case ingress == 0:
		c.Reason, c.Message = "NoIngress",
			"none of the nodes is a gateway: no connection passes them; name a node with uplinks in spec.between"
	case active < ingress:
		c.Reason, c.Message = "Starting", fmt.Sprintf("connections are taken over at %d of %d gateways; see the chains with label %s=%s",
			active, ingress, onpath.AcceleratorLabel, a.key.name)
	case len(full) > 0:
		c.Status, c.Reason, c.Message = onpath.True, "RelayFull", "new connections pass by the relay at "+strings.Join(full, ", ")+
			", not accelerated there, until it has room; see events, and docs/acceleration.md for its limits"
	case len(next.Status.Paths) == 0:
		c.Status, c.Reason, c.Message = onpath.True, "NotMeasured",
			"connections are relayed at the gateways alone until round trips are measured"
	default:
		c.Status, c.Reason = onpath.True, "InForce"
	}
	onpath.SetCondition(&next.Status.Conditions, c)
	refused := a.refused(w)
	if refused != "" || reasonOf(next.Status.Conditions, "Current") != "" {
		next.Status.Conditions = w.condition(next.Status.Conditions, "Current", refused == "", currency(0, refused != ""), refused)
	}
	w.update(&next)
}

// refused is what a relay of the accelerator does not do of what it was told.
func (a *accelerator) refused(w *world) string {
	for _, n := range a.nodes {
		for _, i := range w.ofDep[name{a.key.tenant, a.part(n.name)}] {
			if i.report != nil && i.report.Refused != "" && !i.draining() {
				return fmt.Sprintf("the relay at %s refuses part of its configuration: %s", n.name, i.report.Refused)
			}
		}
	}
	return ""
}

func (a *accelerator) path(n *node, i int, o onpath.AcceleratedOrigin) (onpath.AcceleratorPath, bool) {
	out := onpath.AcceleratorPath{Ingress: n.name, Origin: originName(o)}
	if a.front[i] == nil {
		return out, false
	}
	from, to := a.number[n.name], len(a.nodes)
	row := a.front[i].Row(from, to)
	p := row.Best(int64(o.Size))
	if p == nil {
		return out, false
	}
	var legs []time.Duration
	for k := range len(p.Nodes) - 1 {
		legs = append(legs, a.front[i].RTT(p.Nodes[k], p.Nodes[k+1]))
		out.Nodes = append(out.Nodes, a.nodes[p.Nodes[k]].name)
	}
	out.Time = onpath.Duration(paths.Time(legs, int64(o.Size)))
	if direct := a.front[i].RTT(from, to); direct > 0 {
		out.Direct = onpath.Duration(paths.Time([]time.Duration{direct}, int64(o.Size)))
	}
	return out, true
}

// measure is what a node measures for accelerators and for whoever registered it; nil:
// nothing.
func measure(w *world, n *node) *onpath.MeasurePlan {
	targets := map[string]onpath.MeasureTarget{}
	asked := false
	ask := func(t onpath.MeasureTarget) {
		if old, ok := targets[t.Name]; ok {
			t.Every, t.Change = min(t.Every, old.Every), min(t.Change, old.Change)
		}
		targets[t.Name] = t
	}
	pairs := func(nodes []string, every onpath.Duration, change float64) {
		own := slices.Index(nodes, n.name)
		asked = asked || own >= 0
		for _, other := range nodes {
			// The node whose name comes first asks; both would measure the same.
			if m := w.nodes[other]; own >= 0 && m != nil && other > n.name && m.obj.Spec.Underlay.Address.IsValid() {
				ask(onpath.MeasureTarget{Name: other, Every: every, Change: change,
					Address: netip.AddrPortFrom(m.obj.Spec.Underlay.Address, onpath.MeasurePort)})
			}
		}
	}
	for _, o := range listed[*onpath.Measurement](w) {
		pairs(o.Spec.Nodes, o.Spec.Every, *o.Spec.Change)
	}
	for _, a := range w.accels {
		s := a.obj.Spec
		pairs(s.Between, s.Every, onpath.DefaultMeasureChange)
		for _, o := range s.Origins {
			if slices.Contains(s.Between, n.name) {
				ask(onpath.MeasureTarget{Name: originName(o), Address: netip.AddrPortFrom(o.Address, o.Port),
					Connect: true, Every: s.Every, Change: onpath.DefaultMeasureChange})
			}
		}
	}
	if !asked {
		return nil
	}
	p := &onpath.MeasurePlan{Secret: derived(w, "measure")}
	for _, t := range slices.Sorted(maps.Keys(targets)) {
		p.Targets = append(p.Targets, targets[t])
	}
	return p
}

// derived is a secret of all nodes for one use.
func derived(w *world, use string) []byte {
	mac := hmac.New(sha256.New, w.set.Secret)
	mac.Write([]byte("onpath " + use))
	return mac.Sum(nil)
}
