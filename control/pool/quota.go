package pool

import (
	"fmt"
	"strings"

	"github.com/onpath/onpath"
)

// Bounds are what bounds a tenant's reservations.
type Bounds struct {
	UID string // of its object; "": it needs none
	// Most is its quota of capacity; of a part that is zero it may have all there is.
	Most onpath.Resources
	// Unreserved is what its instances outside of reservations are counted as.
	Unreserved onpath.Resources
	// Objects and Bytes bound what its reservations take of the store; 0: nothing does.
	Objects int
	Bytes   onpath.Size
}

// decideWithinQuotas has something decided that grows no tenant over its quota.
func (a admission) decideWithinQuotas(bounds map[string]Bounds, puts []demand,
	decide func() ([]*decision, error)) ([]*decision, error) {
	was := map[string]onpath.Resources{}
	for name, b := range bounds {
		if a.accounting.owners.removed[name] != "" && a.accounting.owners.removed[name] == b.UID {
			return nil, onpath.Errorf(onpath.CodeNotFound, "tenant %s is deleted", name)
		}
		was[name] = a.promises.reservedBy(name, a.now)
	}
	if err := a.overStored(bounds, puts); err != nil {
		return nil, err
	}
	held, err := decide()
	if err != nil {
		return nil, err
	}
	for _, r := range puts {
		tenant := r.key.Tenant
		if err := overQuota(tenant, bounds[tenant], was[tenant], a.promises.reservedBy(tenant, a.now)); err != nil {
			a.letDecisionsGo(held)
			return nil, about(r.key, err)
		}
	}
	return held, nil
}

// overStored refuses reservations that take more of the store than their tenants may.
func (a admission) overStored(bounds map[string]Bounds, puts []demand) error {
	more := map[string]stored{}
	for _, r := range puts {
		k, is, was := r.key, storedOf(r.obj), stored{}
		if e := a.rows.entries[k]; e != nil {
			was = storedOf(e.obj)
		}
		m, b, now := more[k.Tenant], bounds[k.Tenant], a.rows.stored[k.Tenant]
		m.objects, m.bytes = m.objects+is.objects-was.objects, m.bytes+max(0, is.bytes-was.bytes)
		more[k.Tenant] = m
		field := ""
		switch {
		case b.Objects > 0 && m.objects > 0 && now.objects+m.objects > b.Objects:
			field = fmt.Sprintf("objects allows %d", b.Objects)
		case b.Bytes > 0 && m.bytes > 0 && now.bytes+m.bytes > b.Bytes:
			field = fmt.Sprintf("bytes allows %s", b.Bytes)
		default:
			continue
		}
		e := onpath.Errorf(onpath.CodeNoCapacity, "declined: tenant %s would have %d reservations of about %s in the store, "+
			"those that are over included; its quota %s", k.Tenant, now.objects+m.objects, now.bytes+m.bytes, field)
		e.Remedy = "wait until those that are over leave the store, an hour after midnight (UTC), or have the operator raise spec.quota." +
			field[:strings.IndexByte(field, ' ')] + " of tenant " + k.Tenant
		return about(k, e)
	}
	return nil
}

// stored is what reservations take of the store, those that are over included.
type stored struct {
	objects int
	bytes   onpath.Size // about
}

// storedOf is what one reservation takes.
func storedOf(r *onpath.Reservation) stored {
	lines := len(r.Spec.Slots) + len(r.Status.Slots) + len(r.Status.Places) + len(r.Status.Steps) + len(r.Status.Notes)
	return stored{1, onpath.Size(1000 + 80*lines)}
}

// overQuota refuses what grows over a tenant's quota.
func overQuota(tenant string, b Bounds, was, is onpath.Resources) error {
	over := func(most, was, is, rest int64) bool { return most > 0 && is > was && is+rest > most }
	u := b.Unreserved
	var field string
	switch {
	case over(int64(b.Most.CPU), int64(was.CPU), int64(is.CPU), int64(u.CPU)):
		field = "cpu"
	case over(int64(b.Most.Memory), int64(was.Memory), int64(is.Memory), int64(u.Memory)):
		field = "memory"
	case over(int64(b.Most.Disk), int64(was.Disk), int64(is.Disk), int64(u.Disk)):
		field = "disk"
	case over(int64(b.Most.Network), int64(was.Network), int64(is.Network), int64(u.Network)):
		field = "network"
	default:
		return nil
	}
	e := onpath.Errorf(onpath.CodeNoCapacity, "declined: tenant %s would have reserved %s "+
		"at the most, beside %s of instances without reservations; its quota capacity.%s allows %s",
		tenant, amount(is), amount(u), field, amount(b.Most))
	e.Remedy = "ask for less or for another time, or have the operator raise spec.quota.capacity of tenant " + tenant
	return e
}

func amount(r onpath.Resources) string {
	if s := parts(r); s != "" {
		return s
	}
	return "nothing"
}

// parts names the parts of r that are not zero.
func parts(r onpath.Resources) string {
	var out []string
	if r.CPU > 0 {
		out = append(out, r.CPU.String()+" of CPU")
	}
	if r.Memory > 0 {
		out = append(out, r.Memory.Rounded()+" of memory")
	}
	if r.Disk > 0 {
		out = append(out, r.Disk.Rounded()+" of disk")
	}
	if r.Network > 0 {
		out = append(out, r.Network.Rounded()+" of network")
	}
	return strings.Join(out, " and ")
}
