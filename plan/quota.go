package plan

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/onpath/onpath"
)

// tenantUse is what a tenant has, as far as quotas bound it.
type tenantUse struct {
	chains, instances, claims int
	services                  int // addresses
	secrets                   int // bytes
	objects, bytes            int
	capacity                  onpath.Resources
}

// checkQuotas refuses what makes a tenant's use grow over its quota.
func checkQuotas(before, after *Snapshot, changed []onpath.Key) (errs onpath.Errors) {
	grown := map[string]tenantUse{} // what tenants' users write more than before
	for _, k := range changed {
		if !k.Kind.Tenanted() {
			continue
		}
		u := grown[k.Tenant]
		u.count(k, after.Objects[k], 1)
		u.count(k, before.Objects[k], -1)
		grown[k.Tenant] = u
	}
	serving := withServices(after)
	counts := map[string]bool{} // tenants of which instances and addresses are counted
	for _, k := range changed {
		of := k.Kind == onpath.KindService || k.Kind == onpath.KindDeployment && serving[k.Tenant] // may get more addresses
		counts[k.Tenant] = k.Kind.Tenanted() && (counts[k.Tenant] || of || tenantOf(after, k.Tenant).Spec.Quota != nil)
	}
	var was, is *world
	for _, n := range slices.Sorted(maps.Keys(grown)) {
		var a, b tenantUse
		if counts[n] {
			if was == nil {
				was, is = newWorld(before), newWorld(after)
			}
			a, b = was.useOf(n), is.useOf(n)
		}
		if more := grown[n]; countsObjects(tenantOf(after, n)) && (more.objects > 0 || more.bytes > 0) {
			b.countAll(after, n)
			a.objects, a.bytes = b.objects-more.objects, b.bytes-more.bytes
		}
		errs = append(errs, overQuota(tenantOf(after, n), a, b)...)
	}
	return errs
}

// countsObjects reports whether objects of a tenant, or their bytes, are bounded.
func countsObjects(t *onpath.Tenant) bool {
	q := t.Spec.Quota
	return t.Metadata.Name != onpath.OperatorTenant && (q == nil || q.Objects >= 0 || q.Bytes < 1<<40)
}

// countAll counts what users of a tenant wrote.
func (u *tenantUse) countAll(s *Snapshot, tenant string) {
	for k, o := range s.Objects {
		if k.Tenant == tenant {
			u.count(k, o, 1)
		}
	}
}

// count counts an object, if users write it, n times.
func (u *tenantUse) count(k onpath.Key, o onpath.Object, n int) {
	if o != nil && !k.Kind.ReadOnly() {
		b, _ := json.Marshal(o) // every Object marshals
		u.objects, u.bytes = u.objects+n, u.bytes+n*len(b)
	}
}

// withServices are the tenants that have services.
func withServices(s *Snapshot) map[string]bool {
	has := map[string]bool{}
	for k := range s.Objects {
		if k.Kind == onpath.KindService {
			has[k.Tenant] = true
		}
	}
	return has
}

// tenantOf is the tenant of that name; tenants default and operator need no object.
func tenantOf(s *Snapshot, n string) *onpath.Tenant {
	if t, ok := s.Objects[onpath.Key{Kind: onpath.KindTenant, Name: n}].(*onpath.Tenant); ok {
		return t
	}
	return &onpath.Tenant{Metadata: onpath.Metadata{Name: n}}
}

// overQuota says what of a tenant's use grows over its quota.
func overQuota(t *onpath.Tenant, was, is tenantUse) (errs onpath.Errors) {
	q := onpath.Quota{}
	if t.Spec.Quota != nil {
		q = *t.Spec.Quota
	}
	if t.Metadata.Name != onpath.OperatorTenant {
		q.ServiceAddresses = cmp.Or(q.ServiceAddresses, onpath.DefaultServiceAddresses)
		q.Objects, q.Bytes = cmp.Or(q.Objects, onpath.DefaultObjects), cmp.Or(q.Bytes, onpath.DefaultBytes)
	}
	bound := func(what string, limit, was, is int64, text func(int64) string) {
		if limit <= 0 || is <= limit || is <= was {
			return
		}
		errs = append(errs, fault(t, onpath.CodeNoCapacity, "spec.quota."+what,
			"delete what is not needed, or have the operator raise spec.quota."+what+" of tenant "+t.Metadata.Name,
			"tenant %s would have %s of %s; its quota is %s", t.Metadata.Name, text(is), what, text(limit)))
	}
	count := func(n int64) string { return fmt.Sprint(n) }
	bound("chains", int64(q.Chains), int64(was.chains), int64(is.chains), count)
	bound("instances", int64(q.Instances), int64(was.instances), int64(is.instances), count)
	bound("claims", int64(q.Claims), int64(was.claims), int64(is.claims), count)
	bound("serviceAddresses", int64(q.ServiceAddresses), int64(was.services), int64(is.services), count)
	bound("objects", int64(q.Objects), int64(was.objects), int64(is.objects), count)
	bound("bytes", int64(q.Bytes), int64(was.bytes), int64(is.bytes), func(n int64) string { return onpath.Size(n).String() })
	bound("secrets", int64(q.Secrets), int64(was.secrets), int64(is.secrets), func(n int64) string { return onpath.Size(n).String() })
	a, b, c := q.Capacity, was.capacity, is.capacity
	bound("capacity.cpu", int64(a.CPU), int64(b.CPU), int64(c.CPU), func(n int64) string { return onpath.CPU(n).String() })
	bound("capacity.memory", int64(a.Memory), int64(b.Memory), int64(c.Memory), func(n int64) string { return onpath.Size(n).String() })
	bound("capacity.disk", int64(a.Disk), int64(b.Disk), int64(c.Disk), func(n int64) string { return onpath.Size(n).String() })
	bound("capacity.network", int64(a.Network), int64(b.Network), int64(c.Network), func(n int64) string { return onpath.Rate(n).String() })
	return errs
}

// Unreserved is the capacity that a tenant's instances outside of reservations are counted as.
func Unreserved(s *Snapshot, tenant string) onpath.Resources {
	alone := *s
	alone.Reserved = nil
	return newWorld(&alone).useOf(tenant).capacity
}

// useOf counts what may scale by as much as it may scale to: nobody asks again then.
func (w *world) useOf(tenant string) (u tenantUse) {
	most := w.scaledTo()
	u.services, u.capacity = w.addressesOf(tenant), w.Reserved[tenant]
	for _, c := range w.chains {
		if c.key.tenant != tenant {
			continue
		}
		u.chains++
		for i := range c.elements {
			if d := c.elements[i].d; d != nil && d.owner == c { // the short form's
				u.add(d, max(d.want, most[d])*len(c.cloudlets))
			}
		}
	}
	for _, c := range listed[*onpath.PrefixClaim](w) {
		if c.Metadata.Tenant == tenant {
			u.claims++
		}
	}
	for _, s := range listed[*onpath.Secret](w) {
		if s.Metadata.Tenant == tenant {
			u.secrets += s.Size()
		}
	}
	for _, d := range w.deployments {
		if d.obj != nil && d.key.tenant == tenant {
			u.add(d, max(d.want, most[d])*len(d.in))
		}
	}
	return u
}

// scaledTo are the most instances in a cloudlet that deployments scale to.
func (w *world) scaledTo() map[*deployment]int {
	most := map[*deployment]int{}
	for _, c := range w.chains {
		if c.obj.Spec.Scaling == nil {
			continue
		}
		for i, e := range c.obj.Spec.Through {
			bounds := c.obj.Spec.Scaling.Elements[e.Name()]
			if i < len(c.elements) && c.elements[i].d != nil {
				d := c.elements[i].d
				most[d] = max(most[d], bounds.Max)
			}
		}
	}
	return most
}

// add counts so many instances of a deployment.
func (u *tenantUse) add(d *deployment, n int) {
	if n == 0 {
		return
	}
	u.instances += n
	if d.res != nil { // its reservation is counted
		return
	}
	r := d.spec.Resources
	u.capacity = u.capacity.Add(onpath.Resources{CPU: r.CPU * onpath.CPU(n), Memory: r.Memory * onpath.Size(n),
		Disk: r.Disk * onpath.Size(n), Network: r.Network * onpath.Rate(n)})
}
