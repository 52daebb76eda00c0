package plan

import (
	"cmp"
	"slices"

	"github.com/onpath/onpath"
)

// required reports whether instances in the cloudlet need reservations.
func (c *cloudlet) required() bool {
	return c.obj != nil && c.obj.Spec.Reservations == onpath.ReservationsRequired
}

// unpermitted says why a node takes no instance of a deployment without a reservation: its
// cloudlet requires one, but of the operator as far as the operator's share goes.
func (d *deployment) unpermitted(n *node) string {
	switch {
	case !n.c.required() || d.inline():
		return ""
	case d.key.tenant != onpath.OperatorTenant:
		return "takes instances of reservations only"
	case !operatorsShare(n).Fits(n.used[true].Add(d.spec.Resources)):
		return "has no room for it in the operator's share; more needs a reservation"
	}
	return ""
}

// operatorsShare is what the operator keeps of a node; what is not known is not limited.
func operatorsShare(n *node) onpath.Resources {
	c := n.capacity()
	r := c.Sub(tenantsPart(c, n.c.obj.Spec.OperatorShare))
	const all = 1 << 62
	if c.CPU == 0 {
		r.CPU = all
	}
	if c.Memory == 0 {
		r.Memory = all
	}
	if c.Disk == 0 {
		r.Disk = all
	}
	if c.Network == 0 {
		r.Network = all
	}
	return r
}

// checkRequired refuses to require reservations where instances run without.
func (w checker) checkRequired() (errs onpath.Errors) {
	for _, c := range w.cloudlets {
		if !c.required() || !w.changed[onpath.KeyOf(c.obj)] {
			continue
		}
		var without []string
		for _, n := range c.nodes {
			for _, i := range n.insts {
				reserved := i.d != nil && i.d.res != nil
				if i.inline() || i.draining() || reserved || i.key.tenant == onpath.OperatorTenant && operatorsShare(n).Fits(n.used[true]) {
					continue
				}
				without = append(without, i.key.String())
			}
		}
		if len(without) > 0 {
			slices.Sort(without)
			errs = append(errs, fault(c.obj, onpath.CodeInvalid, "spec.reservations",
				"reserve for their deployments (spec.reservation), or delete those",
				"instances run here without a reservation: %s", Enumerate(without)))
		}
	}
	slices.SortFunc(errs, func(a, b *onpath.Error) int { return cmp.Compare(a.Object, b.Object) })
	return errs
}
