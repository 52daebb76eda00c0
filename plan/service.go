package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/onpath/onpath"
)

// serviceSilence is how long a node may be silent before services answer elsewhere. It is
// less than NodeTimeout: that nobody asks there any more costs no flow.
const serviceSilence = 3 * onpath.ReportEvery

// serve gives services their addresses, has a chain written for each cloudlet that ends at
// the service's deployment, and says where they answer.
func (w *rollout) serve() {
	want := map[onpath.Key]onpath.Object{}
	for _, o := range listed[*onpath.Service](w.world) {
		next := *current(w.world, o)
		next.Status.Cloudlets, next.Status.Conditions = nil, slices.Clone(o.Status.Conditions)
		var troubles []string
		for _, cl := range w.servedIn(o) {
			p := onpath.ServicePlace{Cloudlet: cl.name}
			if old := o.Status.At(cl.name); old != nil {
				p.Addresses = old.Addresses
			}
			if why := w.address(&p); why != "" {
				troubles = append(troubles, cl.name+": "+why)
			}
			if len(p.Addresses) > 0 {
				c := chainOf(o, cl.name, p.Addresses)
				if err := c.Validate(); err == nil { // it fills in defaults
					want[onpath.KeyOf(c)] = c
				}
				if why := w.answers(o, cl, &p); why != "" {
					troubles = append(troubles, cl.name+": "+why)
				}
			}
			next.Status.Cloudlets = append(next.Status.Cloudlets, p)
		}
		places := next.Status.Cloudlets
		next.Status.Conditions = w.condition(next.Status.Conditions, "Active", len(troubles) == 0 && len(places) > 0,
			serviceReason(places, len(troubles) > 0), servedText(places, troubles))
		w.update(&next)
	}
	writeMade(w.world, ofServices, want)
}

func serviceReason(list []onpath.ServicePlace, troubled bool) string {
	switch {
	case len(list) == 0:
		return onpath.ReasonNoGateway
	case troubled || slices.ContainsFunc(list, func(p onpath.ServicePlace) bool { return !p.Serves }):
		return "Waiting"
	}
	return "Serving"
}

func servedText(list []onpath.ServicePlace, troubles []string) string {
	if len(list) == 0 {
		return "none of its cloudlets has a gateway"
	}
	return strings.Join(troubles, "; ")
}

// servedIn are the cloudlets of a service, by name: those with a gateway, where its
// deployment may run.
func (w *world) servedIn(o *onpath.Service) (out []*cloudlet) {
	d := w.deployments[resolve(o.Spec.Deployment, o.Metadata.Tenant)]
	for _, cl := range w.inOrder {
		if len(cl.activeGateways) > 0 && servable(o, d, cl) {
			out = append(out, cl)
		}
	}
	return out
}

// servable reports whether a service may answer in a cloudlet, as soon as it has a gateway.
func servable(o *onpath.Service, d *deployment, cl *cloudlet) bool {
	within := func(list []string) bool { return len(list) == 0 || slices.Contains(list, cl.name) }
	return within(o.Spec.Cloudlets) && (d == nil || within(d.place.Cloudlets))
}

// addressesOf is how many addresses a tenant's services ask for, when all cloudlets have
// gateways.
func (w *world) addressesOf(tenant string) (n int) {
	for _, o := range listed[*onpath.Service](w) {
		if o.Metadata.Tenant != tenant {
			continue
		}
		d := w.deployments[resolve(o.Spec.Deployment, tenant)]
		for _, cl := range w.inOrder {
			if servable(o, d, cl) {
				n += len(w.set.PublicPools)
			}
		}
	}
	return n
}

// address has the service keep its addresses in a cloudlet, and get one of each pool of
// which it has none; it says why one is lacking. Then those outside the pools stay, too.
func (w *rollout) address(p *onpath.ServicePlace) (why string) {
	var all, more []netip.Addr
	for _, pool := range w.set.PublicPools {
		if slices.ContainsFunc(p.Addresses, pool.Contains) {
			all = appendNew(all, p.Addresses, pool.Contains)
			continue
		}
		list, trouble := w.addresses([]netip.Prefix{pool})
		for _, a := range list {
			all, more = append(all, a.Addr()), append(more, a.Addr())
		}
		why = cmp.Or(why, trouble)
	}
	switch {
	case len(w.set.PublicPools) == 0:
		why = "the server has no pool"
	case len(more) > 0 && !w.take(Count{Addresses: 1}):
		return "an address is on its way"
	case why != "":
		all = appendNew(all, p.Addresses, netip.Addr.IsValid)
	}
	for _, a := range more {
		w.inUse[a] = true
	}
	p.Addresses = all
	return why
}

// appendNew appends those of more that are wanted, and are not in the list.
func appendNew(list, more []netip.Addr, wanted func(netip.Addr) bool) []netip.Addr {
	for _, a := range more {
		if wanted(a) && !slices.Contains(list, a) {
			list = append(list, a)
		}
	}
	return list
}

// serviceChain names the chain of a service in a cloudlet. The hash tells web in eu-west
// from web-eu in west, and both from chains that users write.
func serviceChain(service, cloudlet string) string {
	const most = onpath.MaxDeploymentName - 9
	s := service + "-" + cloudlet
	return s[:min(len(s), most)] + "-" + hash([]string{"service", service, cloudlet})[:8]
}

// chainOf leads what comes to a service's addresses in a cloudlet to its deployment.
func chainOf(o *onpath.Service, cloudlet string, addresses []netip.Addr) *onpath.Chain {
	var none onpath.Duration
	c := &onpath.Chain{Metadata: onpath.Metadata{Name: serviceChain(o.Metadata.Name, cloudlet), Tenant: o.Metadata.Tenant,
		Labels: map[string]string{onpath.ServiceLabel: o.Metadata.Name}}}
	c.Spec = onpath.ChainSpec{
		From: onpath.Endpoints{Any: true}, At: onpath.At{Cloudlets: []string{cloudlet}}, Exit: onpath.ExitNone,
		Adopt: &none, Existing: onpath.ExistingCut, // there is no other way to the address
		Through: []onpath.Element{{Deployment: o.Spec.Deployment, Select: slices.Clone(o.Spec.Select)}},
	}
	for _, a := range addresses {
		c.Spec.To.Prefixes = append(c.Spec.To.Prefixes, onpath.Prefix{Prefix: netip.PrefixFrom(a, a.BitLen())})
	}
	return c
}

// answers says whether the service's address in a cloudlet leads to a ready instance, else
// why not.
func (w *world) answers(o *onpath.Service, cl *cloudlet, p *onpath.ServicePlace) (why string) {
	for _, i := range w.members[member{cl, resolve(o.Spec.Deployment, o.Metadata.Tenant)}] {
		if i.ready() && !i.draining() && w.heard(i.node) {
			p.Ready++
		}
	}
	c := w.chainNamed[name{o.Metadata.Tenant, serviceChain(o.Metadata.Name, cl.name)}]
	// Where one uplink is not steered, the others lead to the service.
	inForce := func(st *onpath.ChainStatus) bool {
		return st.Active || reasonOf(st.Conditions, "Active") == onpath.ReasonUnsteered
	}
	switch {
	case c == nil || !inForce(&c.obj.Status) || !slices.Contains(c.obj.Status.Cloudlets, cl.name):
		return "its chain is not in force" + inBrackets(chainTrouble(c))
	case c.obj.Metadata.Labels[onpath.ServiceLabel] != o.Metadata.Name:
		return fmt.Sprintf("chain %s has its name and is another", c.key)
	case !slices.ContainsFunc(cl.activeGateways, w.heard):
		return "its gateways are silent"
	case !slices.ContainsFunc(cl.activeGateways, func(n *node) bool { return w.heard(n) && n.steersSome() }):
		return "its gateways steer no uplink" + inBrackets(chainTrouble(c))
	case p.Ready == 0:
		return "no instance is ready"
	}
	led := func(a netip.Addr) bool {
		return slices.Contains(c.obj.Spec.To.Prefixes, onpath.Prefix{Prefix: netip.PrefixFrom(a, a.BitLen())})
	}
	p.Serves = slices.ContainsFunc(p.Addresses, led) // when it gets one more, what is led goes on
	for _, a := range p.Addresses {
		if !led(a) {
			return fmt.Sprintf("its chain does not lead to %s yet", a)
		}
	}
	return ""
}

// steersSome reports whether the node, as it says, steers what comes in at one of its uplinks.
func (n *node) steersSome() bool {
	return n.st.Report == nil || len(onpath.Unsteered(n.st.Report.Conditions)) < len(n.obj.Spec.Uplinks)
}

func chainTrouble(c *chain) string {
	if c == nil {
		return ""
	}
	for _, cond := range c.obj.Status.Conditions {
		if cond.Status == onpath.False {
			return cond.Message
		}
	}
	return ""
}

// heard reports whether a node has spoken lately, and has the planner called again when it
// has been silent for too long.
func (w *world) heard(n *node) bool {
	return n != nil && n.st != nil && !w.passed(n.since.Add(time.Duration(serviceSilence)))
}

// serves are the addresses of services that an instance holds. One that is taken away stays
// while flows to it may be left.
func (b *builder) serves(i *instance) (out []netip.Addr) {
	for _, o := range b.w.servicesOf(i.dep) {
		if p := o.Status.At(b.n.c.name); p != nil {
			out = append(out, p.Addresses...)
		}
	}
	if i.planned != nil && slices.ContainsFunc(b.n.c.pathsOf[i.dep], (*path).ended) {
		out = append(out, i.planned.Serves...)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// servicesOf are the services that a deployment answers.
func (w *world) servicesOf(dep name) []*onpath.Service {
	if w.services == nil {
		w.services = map[name][]*onpath.Service{}
		for _, o := range listed[*onpath.Service](w) {
			d := resolve(o.Spec.Deployment, o.Metadata.Tenant)
			w.services[d] = append(w.services[d], o)
		}
	}
	return w.services[dep]
}

// ownerless reports whether a chain was made for a service that is gone: it goes, too.
func (w *world) ownerless(c *onpath.Chain) bool {
	s := c.Metadata.Labels[onpath.ServiceLabel]
	if s == "" {
		return false
	}
	_, ok := lookUp[*onpath.Service](w, onpath.KindService, name{c.Metadata.Tenant, s})
	return !ok
}

// checkServices refuses services that cannot answer, and names that are not the tenant's.
func (w checker) checkServices() (errs onpath.Errors) {
	owner := map[string]*onpath.Service{}
	list := slices.Clone(listed[*onpath.Service](w.world))
	slices.SortStableFunc(list, func(a, b *onpath.Service) int { // the older keeps its name
		if x, y := a.Metadata.Created, b.Metadata.Created; x.IsZero() == y.IsZero() {
			return x.Compare(y)
		} else if y.IsZero() { // it is about to be created
			return -1
		}
		return 1
	})
	for _, o := range list {
		refuse := func(code onpath.Code, field, remedy, format string, args ...any) {
			errs = append(errs, fault(o, code, field, remedy, format, args...))
		}
		if len(w.set.PublicPools) == 0 {
			refuse(onpath.CodeInvalid, "spec", "have the operator give the server publicPools",
				"a service needs addresses, and the server has no pool of them")
		}
		for i, n := range o.Spec.Cloudlets {
			if w.cloudlets[n] == nil {
				refuse(onpath.CodeNotFound, fmt.Sprintf("spec.cloudlets[%d]", i), "apply it, or correct the name",
					"there is no cloudlet %s", n)
			}
		}
		w.checkAnswering(o, refuse)
		if o.Spec.Name == "" {
			continue
		}
		if first := owner[o.Spec.Name]; first != nil {
			whose := "another tenant"
			if first.Metadata.Tenant == o.Metadata.Tenant {
				whose = "service " + first.Metadata.Name
			}
			refuse(onpath.CodeExists, "spec.name", "choose another", "%s is the name of %s already", o.Spec.Name, whose)
			continue
		}
		owner[o.Spec.Name] = o
		if !w.mayName(o) {
			refuse(onpath.CodeForbidden, "spec.name", "have the operator add the zone to spec.zones of tenant "+o.Metadata.Tenant,
				"%s lies in no zone of tenant %s", o.Spec.Name, o.Metadata.Tenant)
		}
	}
	return errs
}

// mayName reports whether the service's name is its tenant's. Tenant operator may take any,
// tenant default, if it has no zones, any that is not in, or above, a zone of another's.
func (w checker) mayName(o *onpath.Service) bool {
	t, ok := lookUp[*onpath.Tenant](w.world, onpath.KindTenant, name{"", o.Metadata.Tenant})
	switch {
	case o.Metadata.Tenant == onpath.OperatorTenant:
		return true
	case o.Metadata.Tenant == onpath.DefaultTenant && (!ok || len(t.Spec.Zones) == 0):
		meets := func(z string) bool { return onpath.InZone(o.Spec.Name, z) || onpath.InZone(z, o.Spec.Name) }
		return !slices.ContainsFunc(listed[*onpath.Tenant](w.world), func(t *onpath.Tenant) bool {
			return slices.ContainsFunc(t.Spec.Zones, meets)
		})
	}
	return ok && slices.ContainsFunc(t.Spec.Zones, func(z string) bool { return onpath.InZone(o.Spec.Name, z) })
}

// checkAnswering refuses deployments whose instances answer nobody.
func (w checker) checkAnswering(o *onpath.Service, refuse func(onpath.Code, string, string, string, ...any)) {
	n := resolve(o.Spec.Deployment, o.Metadata.Tenant)
	d := w.deployments[n]
	const field = "spec.deployment"
	switch {
	case d == nil || d.obj == nil:
		refuse(onpath.CodeNotFound, field, "apply it, or correct the name", "there is no deployment %s", n)
	case n.tenant != o.Metadata.Tenant:
		refuse(onpath.CodeForbidden, field, "", "deployment %s belongs to another tenant", n)
	case d.function == nil: // the deployment says so
	case d.inline():
		refuse(onpath.CodeInvalid, field, "serve from a container or a module", "an ebpf function answers at no address")
	case d.attach() == onpath.Bridged:
		refuse(onpath.CodeInvalid, field, "write attach: routed in its function", "a bridged container has no addresses")
	case d.traits.Relays:
		refuse(onpath.CodeInvalid, field, "write kind: Accelerator", "a relay serves its accelerator alone")
	case d.traits.Portless:
		refuse(onpath.CodeInvalid, field, "write wasm.ports in its function", "its modules serve no port")
	}
}
