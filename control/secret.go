package control

import "github.com/onpath/onpath"

// PlannedSecrets gives the secrets that an instance names in a plan which its node follows,
// or may come to.
func PlannedSecrets(c *Controller) func(node, tenant, instance string) map[string]onpath.SecretKey {
	return func(node, tenant, instance string) map[string]onpath.SecretKey {
		c.mu.Lock()
		defer c.mu.Unlock()
		st := c.nodes[node]
		if st == nil {
			return nil
		}
		out := map[string]onpath.SecretKey{}
		for _, p := range append([]*onpath.NodePlan{st.state.Acked}, st.state.Sent...) {
			if p == nil {
				continue
			}
			for i := range p.Instances {
				if x := &p.Instances[i]; x.Tenant == tenant && x.Name == instance {
					for file, of := range x.Spec.Traits().Secrets {
						out[file] = of
					}
				}
			}
		}
		return out
	}
}
