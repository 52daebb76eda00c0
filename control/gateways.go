package control

import "github.com/onpath/onpath"

// connectedGateways are the nodes with uplinks that are connected, by cloudlet. Callers hold mu.
func connectedGateways(c *Controller) map[string][]string {
	of := map[string][]string{}
	for name, st := range c.nodes {
		n, ok := c.mirror.objects[onpath.Key{Kind: onpath.KindNode, Name: name}].(*onpath.Node)
		if ok && st.connected && n.Accepted() && len(n.Spec.Uplinks) > 0 {
			of[n.Spec.Cloudlet] = append(of[n.Spec.Cloudlet], name)
		}
	}
	return of
}
