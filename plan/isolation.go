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

// userNamespace says whether an instance's container gets one of its own. With image: host
// it is the machine's; those images are the operator's and default's alone.
func (n *node) userNamespace(i *instance) onpath.UserNamespaceRule {
	trusted := i.key.tenant == onpath.OperatorTenant || i.key.tenant == onpath.DefaultTenant
	if i.fn.Kind() != onpath.ContainerFunction || i.fn.Traits().HostImage || trusted {
		return ""
	}
	if n.c.obj == nil || n.c.obj.Spec.Isolation == nil {
		return onpath.UserNamespacesPossible
	}
	switch rule := n.c.obj.Spec.Isolation.UserNamespaces; rule {
	case onpath.UserNamespacesNever:
		return ""
	case "":
		return onpath.UserNamespacesPossible
	default:
		return rule
	}
}
