package plan

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/onpath/onpath"
)

// signalRate is how many signalling packets a second a node's agent is given.
const signalRate = 2000

// signalling is the signalling application that nodes take part in (RFC 5971 §9: a number
// for experiments).
const signalling = 32704

// assignLeases gives nodes that lend to publishers the ids that they then use by themselves.
func (w *world) assignLeases() {
	for _, n := range w.nodeOrder {
		if n.obj.Spec.Leases == nil || len(n.obj.Status.Leases) > 0 || !n.hasEdge() {
			continue
		}
		if w.res.Used.Paths+onpath.LeaseSlots > len(w.IDs.Paths) {
			w.res.Short.Paths += onpath.LeaseSlots
			continue
		}
		if !w.take(Count{Vports: onpath.LeaseSlots, Addresses: onpath.LeaseSlots}) {
			continue
		}
		u := &w.res.Used
		next := *current(w, n.obj)
		for i := range onpath.LeaseSlots {
			s := onpath.LeaseSlot{
				Vport: w.IDs.Vports[u.Vports-onpath.LeaseSlots+i],
				Path:  w.IDs.Paths[u.Paths+i],
			}
			for _, pool := range w.set.PrivatePools {
				a := nth(pool, w.IDs.Addresses[u.Addresses-onpath.LeaseSlots+i])
				s.Addresses = append(s.Addresses, netip.PrefixFrom(a, pool.Bits()))
			}
			next.Status.Leases = append(next.Status.Leases, s)
		}
		u.Paths += onpath.LeaseSlots
		w.update(&next)
	}
}

// lendAddresses gives the first slots of nodes addresses at which publishers' modules serve, one
// of each pool, and takes back what the operator does not lend any more.
func lendAddresses(w *rollout) {
	foreign := func(a netip.Addr) bool { // of no pool any more
		return !slices.ContainsFunc(w.set.PublicPools, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	for _, n := range w.nodeOrder {
		next := *current(w.world, n.obj)
		next.Status.Leases = slices.Clone(next.Status.Leases)
		changed := false
		for i := range next.Status.Leases {
			s := &next.Status.Leases[i]
			p := onpath.ServicePlace{Addresses: slices.DeleteFunc(slices.Clone(s.Serves), foreign)}
			if n.obj.Spec.Leases == nil || i >= n.obj.Spec.Leases.Servers {
				p.Addresses = nil
			} else if why := w.address(&p); why != "" {
				n.unlent = cmp.Or(n.unlent, why)
			}
			changed = changed || !slices.Equal(s.Serves, p.Addresses)
			s.Serves = p.Addresses
		}
		if changed {
			w.update(&next)
		}
	}
}

// lent is what leases may have of the node: what the node admits by itself nobody else is
// given, whether it is used or not.
func (n *node) lent() onpath.Resources {
	l := n.obj.Spec.Leases
	if l == nil || l.DryRun {
		return onpath.Resources{}
	}
	c, share := n.capacity(), float64(l.Share)
	return onpath.Resources{CPU: onpath.CPU(float64(c.CPU) * share), Memory: onpath.Size(float64(c.Memory) * share)}
}

// leases is what the node may admit by itself, and which packets its agent is given for it.
func (b *builder) leases() (*onpath.LeasePlan, *onpath.Punt) {
	n := b.n.obj
	if n.Spec.Leases == nil || len(n.Status.Leases) == 0 || n.Status.Edge == 0 {
		return nil, nil
	}
	p := &onpath.LeasePlan{Spec: *n.Spec.Leases, Slots: slices.Clone(n.Status.Leases), Publishers: b.w.publishers()}
	if o := b.n.partner(); o != nil {
		for i := range p.Slots {
			if len(p.Slots[i].Serves) > 0 {
				p.Slots[i].MTU = min(b.n.tunnelMTU(), o.tunnelMTU())
			}
		}
	}
	return p, &onpath.Punt{NSLPID: signalling, Rate: signalRate}
}

// peerLeases are the slots with addresses of the other gateway of a pair.
func (b *builder) peerLeases() (out []onpath.LeaseSlot) {
	o := b.n.partner()
	if o == nil || !mayPointEdge(b.n, o) || o.obj.Spec.Leases == nil {
		return nil
	}
	for _, s := range o.obj.Status.Leases {
		if len(s.Serves) > 0 {
			s.Addresses, s.MTU, s.Peer = nil, min(b.n.tunnelMTU(), o.tunnelMTU()), o.name
			out = append(out, s)
		}
	}
	return out
}

// publishers are the tenants that have keys, by name, and may select some traffic.
func (w *world) publishers() (out []onpath.Publisher) {
	for _, t := range listed[*onpath.Tenant](w) {
		any := selectsAny(w, t.Metadata.Name)
		addresses := w.addresses(t)
		if len(t.Spec.Keys) == 0 || len(addresses) == 0 && !any {
			continue
		}
		out = append(out, onpath.Publisher{
			Tenant: t.Metadata.Name, Keys: t.Spec.Keys, Addresses: addresses, MaxFlows: w.maxFlows(t.Metadata.Name),
		})
	}
	return out
}

// leaseObjects keeps a Lease object for each lease that a node reports. One of a node that
// is silent stays until its time is up.
func (w *world) leaseObjects() {
	reported := map[onpath.Key]bool{}
	for _, n := range w.nodeOrder {
		if n.st == nil || n.st.Report == nil {
			continue
		}
		for i := range n.st.Report.Leases {
			if i == onpath.LeaseSlots*onpath.MaxModules {
				n.unbelieved = cmp.Or(n.unbelieved, fmt.Sprintf("it reports more than %d leases", i))
				break
			}
			r := &n.st.Report.Leases[i]
			k, o := w.leaseOf(n, r)
			had, there := lookUp[*onpath.Lease](w, onpath.KindLease, name{k.Tenant, k.Name})
			why := n.disbelieve(w, r, had)
			if why == "" && reported[k] {
				why = fmt.Sprintf("lease %s is another node's", r.Name)
			}
			if why != "" {
				n.unbelieved = cmp.Or(n.unbelieved, why)
				continue
			}
			reported[k] = true
			switch {
			case !there:
				w.res.Own = append(w.res.Own, o)
			case !reflect.DeepEqual(had.Spec, o.Spec) || had.Status != o.Status:
				next := *had
				next.Spec, next.Status = o.Spec, o.Status
				w.update(&next)
			}
		}
	}
	for _, l := range objects[*onpath.Lease](w.Snapshot) {
		k := onpath.KeyOf(l)
		n := w.nodes[l.Spec.Node]
		if !reported[k] && (n == nil || n.st != nil && n.st.Report != nil && !n.silent() || w.passed(l.Spec.Until)) {
			w.res.Delete = append(w.res.Delete, k)
		}
	}
}

// maxLeaseText is how many bytes the texts of a lease may have together, as a request that goes by a
// connection; maxProved is how many
// addresses a password proves.
const (
	maxLeaseText = 16 << 10
	maxProved    = 4
)

// leaseText is how many bytes of a request say what a lease has, at least.
func leaseText(l *onpath.LeaseSpec) int {
	size := len(l.Module) + len(l.URL) + len(l.SHA256) + len(l.User) + len(l.Publisher) + 5*len(l.To)
	for _, words := range [][]string{l.Properties, l.Fetch} {
		for _, s := range words {
			size += 2 + len(s)
		}
	}
	return size
}

// disbelieve says why a lease that a node reports cannot be: the node's word makes public
// entries in a tenant's name. A lease that was believed goes on, also while its publisher
// loses what it rests on: the node ends it.
func (n *node) disbelieve(w *world, r *onpath.LeaseReport, had *onpath.Lease) string {
	lends := n.obj.Spec.Leases
	switch {
	case had != nil && had.Spec.Node != n.name:
		return fmt.Sprintf("lease %s is node %s's", r.Name, had.Spec.Node)
	case leaseText(&r.LeaseSpec)+len(r.Name) > maxLeaseText || len(r.Serves) > onpath.MaxServedPorts:
		return fmt.Sprintf("lease %s has more than %d bytes of text", onpath.ClipText(r.Name), maxLeaseText)
	case had != nil && had.Spec.Publisher == r.Publisher && bytes.Equal(had.Spec.Key, r.Key) && slices.Equal(had.Spec.To, r.To) &&
		slices.Equal(had.Spec.Addresses, r.Addresses):
		return ""
	case lends == nil || lends.DryRun:
		return fmt.Sprintf("lease %s: the node has nothing to lend", r.Name)
	case !n.lentTo(r.Addresses):
		return fmt.Sprintf("lease %s: %v are not lent to its node's publishers", r.Name, r.Addresses)
	case !r.Known && (lends.Publishers != onpath.PublisherAny || !strings.HasPrefix(r.Publisher, "key-")):
		return fmt.Sprintf("lease %s: publisher %s is no tenant, and others may not ask there", r.Name, r.Publisher)
	case !r.Known && (len(r.To) > maxProved || slices.ContainsFunc(r.To, func(p onpath.Prefix) bool { return !p.IsSingleIP() })):
		return fmt.Sprintf("lease %s: no password proves %v", r.Name, r.To)
	case !r.Known:
		return ""
	}
	for _, p := range w.publishers() {
		if p.Tenant != r.Publisher || len(r.Key) > 0 && !p.Has(r.Key) {
			continue
		}
		if within(r.To, p.Addresses) {
			return ""
		}
		return fmt.Sprintf("lease %s: tenant %s may not select %v", r.Name, r.Publisher, r.To)
	}
	return fmt.Sprintf("lease %s: the key is not one of tenant %s", r.Name, r.Publisher)
}

// lentTo reports whether addresses are one slot's.
func (n *node) lentTo(addresses []netip.Addr) bool {
	return len(addresses) == 0 || slices.ContainsFunc(n.obj.Status.Leases, func(s onpath.LeaseSlot) bool {
		return slices.Equal(s.Serves, addresses)
	})
}

// within reports whether prefixes are parts of others; those are everything if there is none.
func within(list, in []onpath.Prefix) bool {
	return len(in) == 0 || !slices.ContainsFunc(list, func(p onpath.Prefix) bool {
		return !slices.ContainsFunc(in, func(x onpath.Prefix) bool { return x.Bits() <= p.Bits() && x.Overlaps(p.Prefix) })
	})
}

func (w *world) leaseOf(n *node, r *onpath.LeaseReport) (onpath.Key, *onpath.Lease) {
	o := &onpath.Lease{TypeMeta: onpath.TypeMeta{APIVersion: onpath.APIVersion, Kind: onpath.KindLease}}
	o.Spec, o.Status = r.LeaseSpec, r.LeaseStatus
	o.Spec.Node = n.name // its own word counts for its own leases alone
	o.Spec.Since, o.Spec.Until = o.Spec.Since.UTC().Round(time.Millisecond), o.Spec.Until.UTC().Round(time.Millisecond)
	o.Metadata = onpath.Metadata{Name: r.Name, Tenant: onpath.OperatorTenant, Generation: 1, Created: w.Now.UTC().Round(0)}
	if _, ok := lookUp[*onpath.Tenant](w, onpath.KindTenant, name{"", r.Publisher}); ok && r.Known {
		o.Metadata.Tenant = r.Publisher
	}
	return onpath.KeyOf(o), o
}
