package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/onpath/onpath"
)

type placedOn struct {
	d name
	n *node
}

// place chooses a node of the cloudlet for one more instance, or says for each
// node why not.
func (w *rollout) place(d *deployment, cl *cloudlet) (*node, string) {
	var fit []*node
	var why []string
	full := false // a node would suit, and lacks capacity
	for _, n := range cl.nodes {
		reason := w.unfit(d, n)
		if reason == "" && d.res == nil {
			reason = w.lacks(d, n, onpath.Resources{})
			full = full || reason != ""
		}
		if reason != "" {
			why = append(why, n.name+" "+reason)
		} else {
			fit = append(fit, n)
		}
	}
	if len(fit) == 0 {
		if waits := w.notAccepted(cl.name); waits != "" {
			why = append([]string{waits}, why...)
		}
		return nil, noPlace(d, cl, shorten(why, 5), full)
	}
	if !w.carried(d, cl) {
		if busy := slices.DeleteFunc(slices.Clone(fit), d.idle); len(busy) > 0 {
			fit = busy
		}
	}
	if others := slices.DeleteFunc(slices.Clone(fit), (*node).hasEdge); len(others) > 0 && !d.inline() {
		fit = others // a container on a gateway takes time from the packets of all chains
	}
	crossings := w.crossings(d, cl, fit)
	spread := d.place.Spread != onpath.SpreadNone
	return slices.MinFunc(fit, func(a, b *node) int {
		full := cmp.Compare(load(a, d.spec.Resources), load(b, d.spec.Resources))
		if !spread {
			return cmp.Or(crossings(a, b), -full, cmp.Compare(a.name, b.name))
		}
		return cmp.Or(cmp.Compare(w.siblings(d, a), w.siblings(d, b)), crossings(a, b), full, cmp.Compare(a.name, b.name))
	}), ""
}

// mayFit reports whether a node of the cloudlet may come to take an instance without
// anybody's doing: it comes back, or what has its room goes.
func (w *rollout) mayFit(d *deployment, cl *cloudlet) bool {
	return d.res != nil || slices.ContainsFunc(cl.nodes, func(n *node) bool {
		spec := &n.obj.Spec
		if d.misplaced(n) != "" || spec.Drain || spec.Schedulable != nil && !*spec.Schedulable && !d.inline() {
			return false
		}
		if n.away || n.st == nil || n.st.Report == nil || n.unready(d) != "" {
			return true
		}
		all := n.used[true].Add(n.used[false]).Add(w.Promised[n.name])
		return w.unfit(d, n) == "" && w.lacks(d, n, all) == ""
	})
}

// unready is why a node that reports can start no instance of a deployment now, though it
// may soon; "": it can.
func (n *node) unready(d *deployment) string {
	if d.traits.Kind != onpath.ContainerFunction {
		return ""
	}
	return onpath.RuntimeDown(n.st.Report.Conditions)
}

// notAccepted names nodes that wait for the operator: those of a cloudlet, or ("") those
// with uplinks of all; "" if there are none.
func (w *world) notAccepted(cloudlet string) string {
	var waits []string
	for _, n := range w.Waiting {
		if n.Spec.Cloudlet == cloudlet || cloudlet == "" && n.Gateway() {
			waits = append(waits, fmt.Sprintf("%s waits for onpath node accept %[1]s", n.Metadata.Name))
		}
	}
	return strings.Join(shorten(waits, 5), "; ")
}

func boolCompare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// siblings counts the deployment's instances on the node, those just created
// included.
func (w *rollout) siblings(d *deployment, n *node) int {
	k := w.created[placedOn{d.key, n}]
	for _, i := range n.insts {
		if i.dep == d.key && !i.draining() {
			k++
		}
	}
	return k
}

// unfit says why the node cannot take an instance, though it had room; "" if it can.
func (w *rollout) unfit(d *deployment, n *node) string {
	if why := w.unsuited(d, n); why != "" {
		return why
	}
	if d.res != nil {
		return d.unreserved(w, n)
	}
	return d.unpermitted(n)
}

// unsuited says why the node cannot take an instance, however much room it has.
func (w *rollout) unsuited(d *deployment, n *node) string {
	spec := &n.obj.Spec
	switch {
	case n.st == nil || n.st.Report == nil:
		return "has not connected"
	case n.away:
		return "is away"
	case spec.Drain:
		return "is being drained (onpath uncordon " + n.name + " takes that back)"
	case spec.Schedulable != nil && !*spec.Schedulable && !d.inline(): // a gateway without containers still runs ebpf functions
		return "is cordoned (onpath uncordon " + n.name + " takes that back)"
	}
	if why := n.unready(d); why != "" {
		return "is not ready: " + why
	}
	if why := d.misplaced(n); why != "" {
		return why
	}
	if why := d.uncapable(n); why != "" {
		return why
	}
	if d.traits.HostImage && n.st.Report.NoHostImage {
		return "does not permit image: host (hostImage in its onpath.yaml)"
	}
	if block := d.unoffered(n.st.Report.Blocks); block != "" {
		return "does not offer modules " + block + " (blocks in its onpath.yaml)"
	}
	if a := w.unknown(d, n); a != "" {
		return "runs a build of onpath that knows no " + string(a) + ": upgrade it"
	}
	if d.inline() && (n != n.c.gateway || n.host() && len(n.c.hosts) > 1) {
		return "is not the gateway, where ebpf functions run"
	}
	return ""
}

// unknown is an ability that the deployment's instances need, and the node's agent is too
// old to have.
func (w *world) unknown(d *deployment, n *node) onpath.Ability {
	users := n.userNamespace(&instance{key: d.key, fn: &d.spec})
	for _, x := range []struct {
		needed  bool
		ability onpath.Ability
	}{
		{len(d.traits.Secrets) > 0, onpath.AbilitySecrets},
		{len(w.servicesOf(d.key)) > 0, onpath.AbilityServices},
		{d.pair != nil, onpath.AbilityPairs},
		{users == onpath.UserNamespacesRequired, onpath.AbilityUsers},
	} {
		if x.needed && !slices.Contains(n.st.Report.Knows, x.ability) {
			return x.ability
		}
	}
	return ""
}

// unoffered is the first block that the function's modules use and that is not offered. A
// node that does not say is tried.
func (d *deployment) unoffered(offered []string) string {
	if d.function == nil || offered == nil {
		return ""
	}
	for _, m := range d.function.Status.Modules {
		for _, b := range m.Blocks {
			if !slices.Contains(offered, b) {
				return b
			}
		}
	}
	return ""
}

// misplaced says why the deployment does not want to be on the node.
func (d *deployment) misplaced(n *node) string {
	if d.runs() && d.res.places[n.name] == 0 {
		return "is not reserved"
	}
	lacks := ""
	for k, v := range d.place.Nodes {
		has := n.obj.Metadata.Labels[k]
		if k == "name" {
			has = n.name
		}
		if has != v && (lacks == "" || k < lacks) {
			lacks = k
		}
	}
	if lacks == "" {
		return ""
	}
	return fmt.Sprintf("has not the label %s: %s", lacks, d.place.Nodes[lacks])
}

// suits reports whether an instance is what the deployment now says, and where.
func (d *deployment) suits(i *instance) bool {
	return i.obj.Spec.Shape == d.shape && (i.node == nil || d.misplaced(i.node) == "")
}

// capacity is what instances may use of the node in all; a part that is zero is
// not limited.
func (n *node) capacity() onpath.Resources {
	var r onpath.Resources
	if n.st != nil && n.st.Report != nil {
		r = n.st.Report.Capacity
	}
	s := n.obj.Spec.Capacity
	return onpath.Resources{
		CPU: cmp.Or(s.CPU, r.CPU), Memory: cmp.Or(s.Memory, r.Memory), Disk: cmp.Or(s.Disk, r.Disk), Network: cmp.Or(s.Network, r.Network),
	}
}

// lacks says which part of the node's capacity is too small for one more
// instance, if the deployment gave something back there. Tenants may not use the
// operator's share, and nobody what leases may have.
func (w *world) lacks(d *deployment, n *node, back onpath.Resources) string {
	c, need := n.capacity(), d.spec.Resources
	back = back.Sub(w.Promised[n.name])
	free := c.Sub(n.lent()).Sub(n.used[true]).Sub(n.used[false]).Add(back)
	if d.key.tenant != onpath.OperatorTenant && n.c.obj != nil && n.c.obj.Spec.OperatorShare > 0 {
		rest := tenantsPart(c, n.c.obj.Spec.OperatorShare).Sub(n.used[false]).Add(back)
		free = onpath.Resources{CPU: min(free.CPU, rest.CPU), Memory: min(free.Memory, rest.Memory), Disk: min(free.Disk, rest.Disk), Network: min(free.Network, rest.Network)}
	}
	var parts []string
	if c.CPU > 0 && need.CPU > free.CPU {
		parts = append(parts, fmt.Sprintf("%s of CPU", need.CPU-free.CPU))
	}
	if c.Memory > 0 && need.Memory > free.Memory {
		parts = append(parts, fmt.Sprintf("%s of memory", (need.Memory-free.Memory).Rounded()))
	}
	if c.Disk > 0 && need.Disk > free.Disk {
		parts = append(parts, fmt.Sprintf("%s of disk", (need.Disk-free.Disk).Rounded()))
	}
	if c.Network > 0 && need.Network > free.Network {
		parts = append(parts, fmt.Sprintf("%s of network", (need.Network-free.Network).Rounded()))
	}
	if len(parts) == 0 {
		return ""
	}
	return "lacks " + strings.Join(parts, " and ")
}

func tenantsPart(r onpath.Resources, share int) onpath.Resources {
	p := int64(100 - share)
	return onpath.Resources{
		CPU: r.CPU * onpath.CPU(p) / 100, Memory: r.Memory / 100 * onpath.Size(p), Disk: r.Disk / 100 * onpath.Size(p), Network: r.Network / 100 * onpath.Rate(p),
	}
}

// load is how full the node would be with one more instance, by its scarcest
// part, in thousandths.
func load(n *node, need onpath.Resources) int64 {
	c, u := n.capacity(), n.used[true].Add(n.used[false]).Add(need)
	var worst int64
	for _, p := range [][2]int64{{int64(u.CPU), int64(c.CPU)}, {int64(u.Memory), int64(c.Memory)}, {int64(u.Disk), int64(c.Disk)}, {int64(u.Network), int64(c.Network)}} {
		if p[1] > 0 {
			worst = max(worst, int64(float64(p[0])/float64(p[1])*1000))
		}
	}
	return worst
}

// noPlace says why no node of a cloudlet takes an instance. What it asks for is named
// where that is what a node lacks.
func noPlace(d *deployment, cl *cloudlet, why []string, full bool) string {
	can := "can run " + d.key.name
	if full {
		can = "has room for " + resources(d.spec.Resources)
	}
	if len(why) == 0 {
		why = []string{"it has no nodes"}
	}
	return fmt.Sprintf("no node of cloudlet %s %s: %s", cl.name, can, strings.Join(why, "; "))
}

func resources(r onpath.Resources) string {
	s := fmt.Sprintf("%s CPU and %s of memory", r.CPU, r.Memory)
	if r.Disk > 0 {
		s += fmt.Sprintf(", %s of disk", r.Disk)
	}
	if r.Network > 0 {
		s += fmt.Sprintf(", %s of network", r.Network)
	}
	return s
}

func shorten(list []string, n int) []string {
	if len(list) <= n {
		return list
	}
	return append(list[:n:n], fmt.Sprintf("and %d more", len(list)-n))
}

// addresses finds own addresses, one of each pool, or says which pool has none left. They
// are found by the next number, which the caller takes then. The numbers outlast a small
// pool, so an address in use is passed over.
func (w *rollout) addresses(pools []netip.Prefix) (out []netip.Prefix, why string) {
	if len(pools) == 0 {
		return nil, "the server has no pool"
	}
	if w.inUse == nil {
		w.inUse, w.full = map[netip.Addr]bool{}, map[netip.Prefix]bool{}
		for _, i := range w.instances {
			w.occupy(i.obj)
		}
		for _, s := range listed[*onpath.Service](w.world) {
			for _, p := range s.Status.Cloudlets {
				for _, a := range p.Addresses {
					w.inUse[a] = true
				}
			}
		}
		for _, n := range w.nodeOrder {
			for _, s := range n.obj.Status.Leases {
				for _, a := range s.Addresses {
					w.inUse[a.Addr()] = true
				}
				for _, a := range s.Serves {
					w.inUse[a] = true
				}
			}
		}
	}
	number := uint64(1) // without numbers a full pool is full, too
	if next := w.res.Used.Addresses; next < len(w.IDs.Addresses) {
		number = w.IDs.Addresses[next]
	}
	for _, pool := range pools {
		var a netip.Addr
		found := false
		if !w.full[pool] {
			a, found = free(pool, number, w.inUse)
		}
		if !found {
			w.full[pool] = true
			return nil, fmt.Sprintf("the pool %s has none left", pool)
		}
		out = append(out, netip.PrefixFrom(a, pool.Bits()))
	}
	return out, ""
}

// occupy notes that an instance has its addresses.
func (w *rollout) occupy(o *onpath.Instance) {
	for _, a := range o.Spec.Addresses {
		w.inUse[a.Addr()] = true
	}
}

// free is the first address of a pool, from a number on, that nobody has. Of one more than
// are in use, one is free.
func free(pool netip.Prefix, number uint64, inUse map[netip.Addr]bool) (netip.Addr, bool) {
	for try := range min(hosts(pool), uint64(len(inUse))+1) {
		if a := nth(pool, number+try); !inUse[a] {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// hosts is how many addresses nth gives of a pool.
func hosts(pool netip.Prefix) uint64 {
	size := uint64(1) << min(pool.Addr().BitLen()-pool.Bits(), 48)
	if size > 2 {
		return size - 2
	}
	return size
}

// nth is the n-th address of a pool that a host may have, beginning anew behind
// the last one; the first and the last of the pool are left out.
func nth(pool netip.Prefix, n uint64) netip.Addr {
	if pool.Bits() < pool.Addr().BitLen()-1 {
		n = 1 + (n-1)%hosts(pool)
	} else {
		n %= hosts(pool)
	}
	b := pool.Masked().Addr().AsSlice()
	for k := len(b) - 1; k >= 0 && n > 0; k-- {
		n += uint64(b[k])
		b[k] = byte(n)
		n >>= 8
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
