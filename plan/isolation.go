package plan

import (
	"fmt"
	"slices"

	"github.com/onpath/onpath"
)

// uncapable says why a cloudlet takes no instance of a tenant's deployment: it asks for
// more than tenants may have there.
func (d *deployment) uncapable(n *node) string {
	if d.key.tenant == onpath.OperatorTenant || n.c.obj == nil || n.c.obj.Spec.Isolation == nil {
		return ""
	}
	for _, c := range d.traits.Capabilities {
		if !slices.Contains(n.c.obj.Spec.Isolation.Capabilities, c) {
			return fmt.Sprintf("is in cloudlet %s, which does not give tenants' instances the capability %s", n.c.name, c)
		}
	}
	return ""
}
