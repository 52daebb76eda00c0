package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/onpath/onpath"
)

// Check finds what is impossible in a snapshot whose objects have each been
// validated by themselves: references to what does not exist or is not the
// tenant's, loops, overlaps, third gateways. A nil error means all is well;
// else it is an onpath.Errors.
func Check(s *Snapshot) error { return check(s).Err() }

// CheckChange is Check for a change from before to after: what was wrong
// before and does not concern the changed objects is left out. What others need
// cannot be deleted.
func CheckChange(before, after *Snapshot, changed []onpath.Key) error {
	known := map[faultKey]bool{}
	for _, e := range check(before) {
		known[keyOfFault(e)] = true
	}
	about := map[string]bool{}
	marked := *after
	marked.changed = map[onpath.Key]bool{}
	for _, k := range changed {
		about[k.String()] = true
		marked.changed[k] = true
	}
	out := checkRemovals(before, after, changed)
	inUse := len(out) > 0
	out = append(out, checkQuotas(before, after, changed)...)
	out = append(out, checkWebhooks(after, changed)...)
	out = append(out, checkMade(before, after, changed)...)
	for _, e := range check(&marked) {
		if about[e.Object] || !known[keyOfFault(e)] && !inUse { // what lacks it would only repeat it
			out = append(out, e)
		}
	}
	return out.Err()
}

// faultKey tells faults apart by what is wrong where.
type faultKey struct {
	object, field string
	code          onpath.Code
}

func keyOfFault(e *onpath.Error) faultKey { return faultKey{e.Object, e.Field, e.Code} }

func check(s *Snapshot) onpath.Errors {
	w := newWorld(s)
	k := checker{w}
	var errs onpath.Errors
	errs = append(errs, k.checkTenants()...)
	errs = append(errs, k.checkNodes()...)
	errs = append(errs, k.checkDeployments()...)
	errs = append(errs, k.checkRaised()...)
	errs = append(errs, k.checkRequired()...)
	errs = append(errs, checkAccelerators(w)...)
	errs = append(errs, k.checkClaims()...)
	errs = append(errs, k.checkServices()...)
	for _, c := range w.chains {
		errs = append(errs, c.errs...)
		if c.unproved != nil {
			errs = append(errs, c.unproved)
		}
	}
	return errs
}

func fault(o onpath.Object, code onpath.Code, field, remedy, format string, args ...any) *onpath.Error {
	e := onpath.Errorf(code, format, args...)
	e.Object, e.Field, e.Remedy = onpath.KeyOf(o).String(), field, remedy
	return e
}

// checkTenants refuses objects of tenants that do not exist.
func (w checker) checkTenants() (errs onpath.Errors) {
	var homeless []onpath.Key
	for k := range w.Objects {
		if !k.Kind.Tenanted() || k.Kind.ReadOnly() || k.Tenant == onpath.OperatorTenant || k.Tenant == onpath.DefaultTenant {
			continue
		}
		if _, ok := w.Objects[onpath.Key{Kind: onpath.KindTenant, Name: k.Tenant}]; !ok {
			homeless = append(homeless, k)
		}
	}
	sortKeys(homeless)
	for _, k := range homeless {
		errs = append(errs, fault(w.Objects[k], onpath.CodeNotFound, "metadata.tenant", "apply a Tenant of that name first, or correct it", "there is no tenant %s", k.Tenant))
	}
	return errs
}

// keys are those of all objects, in order.
func (w *world) keys() []onpath.Key {
	keys := make([]onpath.Key, 0, len(w.Objects))
	for k := range w.Objects {
		keys = append(keys, k)
	}
	sortKeys(keys)
	return keys
}

// sortKeys orders keys by kind, in the order of onpath.Kinds, tenant and name.
func sortKeys(keys []onpath.Key) {
	rank := map[onpath.Kind]int{}
	for i, k := range onpath.Kinds() {
		rank[k] = i
	}
	slices.SortFunc(keys, func(a, b onpath.Key) int {
		if a.Kind != b.Kind {
			return rank[a.Kind] - rank[b.Kind]
		}
		return name{a.Tenant, a.Name}.less(name{b.Tenant, b.Name})
	})
}

// thirdGateway is why a third one is refused.
const thirdGateway = "gateways of one cloudlet tell each other of every flow before its first packet leaves, and two can do that, not three"

func (w checker) checkNodes() (errs onpath.Errors) {
	for _, n := range w.nodeOrder {
		o := n.obj
		if _, ok := w.Objects[onpath.Key{Kind: onpath.KindCloudlet, Name: o.Spec.Cloudlet}]; !ok {
			errs = append(errs, fault(o, onpath.CodeNotFound, "spec.cloudlet", "apply it first, or correct the name", "there is no cloudlet %s", o.Spec.Cloudlet))
		}
		if o.Gateway() && !n.hasEdge() {
			errs = append(errs, fault(o, onpath.CodeUnsupported, "spec.uplinks", "put the node into a cloudlet of its own, or take its uplinks away",
				"cloudlet %s has gateways %s already: %s", n.c.name, n.c.gatewayNames(), thirdGateway))
		}
		errs = append(errs, checkGateways(n)...)
		errs = append(errs, w.checkUnderlay(n)...)
		errs = append(errs, w.checkUplinkDevices(n)...)
	}
	return errs
}

// checkUplinkDevices refuses uplinks on the device by which the tunnels of a node
// come, where it has any; the machine's own traffic (attach: host) goes there, too.
func (w checker) checkUplinkDevices(n *node) (errs onpath.Errors) {
	if !w.changed[onpath.KeyOf(n.obj)] || n.st == nil || n.st.Report == nil || len(n.c.nodes) < 2 {
		return nil
	}
	for i, u := range n.obj.Spec.Uplinks {
		if u.Device == n.st.Report.UnderlayDevice && u.Attach != onpath.AttachHost {
			errs = append(errs, fault(n.obj, onpath.CodeInvalid, fmt.Sprintf("spec.uplinks[%d].device", i),
				"name another device, or give the node an underlay address on another one",
				"the tunnels of the node come in by %s, which has its underlay address", u.Device))
		}
	}
	return errs
}

// checkGateways refuses uplinks at which the second gateway of a pair could not let
// out what came in at the first: frames of a bridge, the machine's own traffic.
func checkGateways(n *node) (errs onpath.Errors) {
	if n.partner() == nil {
		return nil
	}
	for i, u := range n.obj.Spec.Uplinks {
		if u.Attach != onpath.AttachRouter && u.Attach != onpath.AttachArm {
			errs = append(errs, fault(n.obj, onpath.CodeUnsupported, fmt.Sprintf("spec.uplinks[%d].attach", i), "attach both gateways by router or arm, or put the node into a cloudlet of its own",
				"cloudlet %s has gateways %s: what comes in at one leaves at the other when one of them dies, and attach: %s does not route",
				n.c.name, n.c.gatewayNames(), u.Attach))
		}
	}
	return errs
}

// gatewayNames are the gateways in use, for people.
func (c *cloudlet) gatewayNames() string {
	var names []string
	for _, g := range c.activeGateways {
		names = append(names, g.name)
	}
	return strings.Join(names, " and ")
}

// checkUnderlay compares the node's underlay with those of its neighbours.
func (w checker) checkUnderlay(n *node) (errs onpath.Errors) {
	for _, m := range n.c.nodes {
		if m.name >= n.name {
			break
		}
		a, b := n.obj.Spec.Underlay, m.obj.Spec.Underlay
		switch {
		case a.Tunnel != b.Tunnel && isOne(a.Tunnel) && isOne(b.Tunnel):
			errs = append(errs, fault(n.obj, onpath.CodeInvalid, "spec.underlay.tunnel", fmt.Sprintf("write %s, or auto", b.Tunnel),
				"node %s of the cloudlet has %s: two nodes need the same", m.name, b.Tunnel))
		case a.Address == b.Address && chooseTunnel(n, m).WireGuard: // behind NAT two networks may have the same
		case a.Address == b.Address:
			errs = append(errs, fault(n.obj, onpath.CodeInvalid, "spec.underlay.address", "", "node %s has %s already", m.name, a.Address))
		case a.Address.Is4() != b.Address.Is4():
			errs = append(errs, fault(n.obj, onpath.CodeInvalid, "spec.underlay.address", "use addresses of one IP version in a cloudlet", "node %s has %s: no tunnel leads from one to the other", m.name, b.Address))
		case port(a) != port(b):
			errs = append(errs, fault(n.obj, onpath.CodeInvalid, "spec.underlay.port", fmt.Sprintf("write %d", port(b)), "node %s has port %d; it must be the same on all nodes of a cloudlet", m.name, port(b)))
		}
	}
	return errs
}

func port(u onpath.Underlay) uint16 {
	if u.Port == 0 {
		return onpath.DefaultTunnelPort
	}
	return u.Port
}

func (w checker) checkDeployments() (errs onpath.Errors) {
	for _, o := range listed[*onpath.Deployment](w.world) {
		d := w.deployments[nameOf(o)]
		f, ok := lookUp[*onpath.Function](w.world, onpath.KindFunction, d.fnName)
		switch {
		case !ok:
			errs = append(errs, fault(o, onpath.CodeNotFound, "spec.function", w.functionRemedy(d.fnName), "there is no function %s", d.fnName))
		case !mayUse(f, d.key.tenant):
			errs = append(errs, fault(o, onpath.CodeForbidden, "spec.function", "its owner can write shared: true", "function %s belongs to another tenant and is not shared", d.fnName))
		case w.lacksPool(d):
			errs = append(errs, fault(o, onpath.CodeInvalid, "spec.function", noPoolRemedy, noPool, d.fnName))
		case d.noSecret != "":
			errs = append(errs, fault(o, onpath.CodeNotFound, "spec.function", secretRemedy, "there is no secret %s", d.noSecret))
		}
		if d.want > onpath.MaxMembers {
			errs = append(errs, fault(o, onpath.CodeNoCapacity, "spec.instances", fmt.Sprintf(tooMany, onpath.MaxMembers),
				"%d instances in each cloudlet; a data path chooses among %d at most", d.want, onpath.MaxMembers))
		}
		if d.crowds != "" {
			errs = append(errs, fault(o, onpath.CodeNoCapacity, "spec.place",
				"run fewer chains or instances in the cloudlet, or use another one", "%s", d.crowds))
		}
		for i, c := range o.Spec.Place.Cloudlets {
			if w.cloudlets[c] == nil {
				errs = append(errs, fault(o, onpath.CodeNotFound, fmt.Sprintf("spec.place.cloudlets[%d]", i), "apply it, or correct the name", "there is no cloudlet %s", c))
			}
		}
	}
	return errs
}
