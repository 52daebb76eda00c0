package control

import "github.com/onpath/onpath"

// PlannedSecrets gives the secrets that an instance names in a plan which its node follows,
// or may come to. By a plan that only the node tells of, it gets no more than functions of
// the instance's tenant, or of the operator, name, and of instances placed there alone.
func (c *Controller) PlannedSecrets(node, tenant, instance string) map[string]onpath.SecretKey {
	c.mu.Lock()
	defer c.mu.Unlock()
	st := c.core.nodes[node]
	if st == nil {
		return nil
	}
	out := map[string]onpath.SecretKey{}
	take := func(p *onpath.NodePlan, may func(onpath.SecretKey) bool) {
		for i := range p.Instances {
			if x := &p.Instances[i]; x.Tenant == tenant && x.Name == instance {
				for file, of := range x.Spec.Traits().Secrets {
					if may(of) {
						out[file] = of
					}
				}
			}
		}
	}
	in, _ := c.core.mirror.objects[onpath.Key{Kind: onpath.KindInstance, Tenant: tenant, Name: instance}].(*onpath.Instance)
	all := func(onpath.SecretKey) bool { return true }
	switch p := st.state.Acked; {
	case p != nil && !st.told:
		take(p, all)
	case p != nil && in != nil && in.Spec.Node == node:
		take(p, secretsNamed(c.core.mirror.objects, tenant))
	}
	for _, p := range st.state.Sent {
		take(p, all)
	}
	return out
}

// secretsNamed tells which secrets functions name that are a tenant's or the operator's.
func secretsNamed(objects map[onpath.Key]onpath.Object, tenant string) func(onpath.SecretKey) bool {
	named := map[onpath.SecretKey]bool{}
	for k, o := range objects {
		if f, ok := o.(*onpath.Function); ok && (k.Tenant == tenant || k.Tenant == onpath.OperatorTenant) {
			for _, of := range f.Spec.Traits().Secrets {
				named[of] = true
			}
		}
	}
	return func(of onpath.SecretKey) bool { return named[of] }
}
