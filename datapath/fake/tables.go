package fake

import (
	"cmp"
	"container/list"
	"maps"
	"math/bits"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/flowcount"
	"github.com/onpath/onpath/internal/packet"
)

// Flows begin as pending, in a small table of their tenant's, in which the least
// recently used makes room, and become established once they are known to live,
// as far as their tenant's share goes. Established ones are never evicted.

// Sizes where Options say nothing, in entries.
const (
	defaultFlows   = 1 << 18
	defaultPending = 1 << 14
)

// How many packets of one direction show that a flow lives, and a connection. (A driver
// may ask for some in another second than the first.)
const (
	oneWayMany = 32
	oneWayFew  = 4
)

// nobody is who holds what belongs to no tenant that the node knows.
const nobody = "\x00"

// share is what a tenant may have, and has.
type share struct {
	limit       uint64 // of established entries
	mayCause    uint64 // 0: no limit beside limit
	established uint64
	caused      uint64 // of those, by the tenant's instances
	deferred    uint64 // packets
	rateLimit
	pending map[flowKey]*flow
	order   *list.List // keys of pending, the least recently used first
}

// shareOut sets the limits anew; what tenants hold stays theirs.
func (n *Node) shareOut(c *onpath.DatapathConfig) {
	size := uint64(1) << bits.Len32(uint32(cmp.Or(n.options.Flows, defaultFlows)-1))
	limits, causes := map[string]uint64{}, map[string]uint64{}
	for _, p := range c.Paths {
		limits[p.Tenant] = max(limits[p.Tenant], uint64(p.MaxFlows))
	}
	for _, v := range c.Vports {
		if v.Kind == onpath.VportInstance {
			limits[v.Tenant] += 0
			causes[v.Tenant] = max(causes[v.Tenant], uint64(v.MaxFlows))
		}
	}
	maps.DeleteFunc(n.shares, func(tenant string, _ *share) bool { _, here := limits[tenant]; return !here })
	for tenant, most := range limits {
		s := n.share(tenant)
		s.limit, s.mayCause = size/8*7/uint64(len(limits)), causes[tenant]
		if most != 0 {
			s.limit = min(s.limit, most)
		}
		s.most = 0
	}
	for _, t := range c.Tenants {
		if s := n.shares[t.Name]; s != nil {
			s.most = t.MaxNewFlows
		}
	}
	n.share(nobody).limit = size / 8
}

func (n *Node) share(tenant string) *share {
	s := n.shares[tenant]
	if s == nil {
		s = &share{pending: map[flowKey]*flow{}, order: list.New()}
		n.shares[tenant] = s
	}
	return s
}

// hasRoom tells whether two entries more fit a tenant's share. A quarter of it is
// for flows of which both directions are known.
func (n *Node) hasRoom(tenant string, both bool) bool {
	s := n.share(tenant)
	limit := s.limit
	if !both {
		limit = limit / 4 * 3
	}
	return s.established+2 <= limit
}

// tenantOf is the tenant of a path that is here.
func (n *Node) tenantOf(id onpath.PathID) string {
	if p := n.paths[id]; p != nil {
		return p.Tenant
	}
	return nobody
}

// holder is to whom an established entry counts: at an instance to its tenant, elsewhere
// to that of its path, or, without one, of what it leads to. A pending entry stands with
// the tenant by whose rule packets find it, which may be another.
func (n *Node) holder(f *flow) string {
	switch v := n.vports[f.next]; {
	case f.context != 0 || f.counts:
		return f.tenant
	case f.path != 0:
		return n.tenantOf(f.path)
	case v != nil && v.Kind != onpath.VportRemote:
		return v.Tenant
	}
	return nobody
}

// rewritten has an entry that was written anew count to whom it does now.
func (n *Node) rewritten(f *flow) {
	if f.place != nil || f.tenant == "" { // it is pending, or none but what one packet does
		return
	}
	if to := n.holder(f); to != f.tenant {
		s := n.share(f.tenant)
		s.established -= min(s.established, 1)
		n.share(to).established++
		f.tenant = to
	}
}

// established looks for an entry of a flow that is known to live.
func (n *Node) established(k flowKey) *flow {
	f := n.flows[k]
	if f == nil || !n.aged(k, f) {
		return f
	}
	n.forgetFlow(k, f)
	return nil
}

// find looks for an entry, established or of a tenant's pending ones.
func (n *Node) find(k flowKey, tenant string) *flow {
	if f := n.established(k); f != nil {
		return f
	}
	s := n.shares[tenant]
	if s == nil {
		return nil
	}
	f := s.pending[k]
	if f == nil {
		return nil
	}
	if n.aged(k, f) {
		n.forgetFlow(k, f)
		return nil
	}
	s.order.MoveToBack(f.place)
	return f
}

// anywhere looks for an entry in all tables.
func (n *Node) anywhere(k flowKey) *flow {
	if f := n.established(k); f != nil {
		return f
	}
	for tenant := range n.shares {
		if f := n.find(k, tenant); f != nil {
			return f
		}
	}
	return nil
}

// insert writes an entry that is not there.
func (n *Node) insert(k flowKey, f *flow, tenant string) {
	f.seen, f.tenant = n.now(), tenant
	if f.counts {
		n.insertEstablished(k, f, tenant)
		return
	}
	n.counters.Learned++
	s := n.share(tenant)
	if s.order.Len() >= n.pendingSize() {
		oldest := s.order.Front().Value.(flowKey)
		n.drop(oldest, s.pending[oldest])
	}
	f.place, s.pending[k] = s.order.PushBack(k), f
}

// insertEstablished writes an entry that is not there and stays.
func (n *Node) insertEstablished(k flowKey, f *flow, tenant string) {
	f.seen, f.tenant = n.now(), tenant
	n.counters.Learned++
	n.establish(k, f)
	if len(n.flows) >= n.sweepAt {
		n.sweep()
		n.sweepAt = max(sweepFirst, 2*len(n.flows))
	}
}

func (n *Node) pendingSize() int {
	return 1 << bits.Len32(uint32(cmp.Or(n.options.Pending, defaultPending)-1))
}

// establish puts an entry among those that stay.
func (n *Node) establish(k flowKey, f *flow) {
	if f.place != nil {
		s := n.share(f.tenant)
		s.order.Remove(f.place)
		delete(s.pending, k)
		f.place = nil
	}
	if n.flows[k] != nil {
		return // whoever came first decides
	}
	f.tenant = n.holder(f)
	s := n.share(f.tenant)
	n.flows[k] = f
	s.established++
	if f.counts {
		s.caused++
	}
}

// drop forgets an entry.
func (n *Node) drop(k flowKey, f *flow) {
	s := n.share(f.tenant)
	if f.place != nil {
		s.order.Remove(f.place)
		delete(s.pending, k)
		return
	}
	delete(n.flows, k)
	s.established -= min(s.established, 1)
	if f.counts {
		s.caused -= min(s.caused, 1)
	}
}

// each goes over all entries, which may be dropped meanwhile.
func (n *Node) each(yield func(flowKey, *flow)) {
	for k, f := range n.flows {
		yield(k, f)
	}
	for _, s := range n.shares {
		for k, f := range s.pending {
			yield(k, f)
		}
	}
}

// flowsAt counts all entries, and the flows at each vport.
func (n *Node) flowsAt(all *uint64) map[onpath.VportID]*flowcount.At {
	at := map[onpath.VportID]*flowcount.At{}
	add := func(id onpath.VportID, place int, reverse bool) {
		if at[id] == nil {
			at[id] = new(flowcount.At)
		}
		at[id].Add(place, reverse)
	}
	n.each(func(k flowKey, f *flow) {
		*all++
		to := flowcount.Led(f.packets)
		if f.kind == onpath.NextPending {
			add(k.vport, flowcount.Waiting, f.reverse)
		} else {
			add(k.vport, flowcount.From, f.reverse)
		}
		if f.kind == onpath.NextVport {
			add(f.next, to, f.reverse)
		}
		for _, m := range f.mirrors {
			add(m.vport, to, f.reverse)
		}
		for _, i := range f.functions {
			add(i.vport, to, f.reverse)
		}
	})
	return at
}

// promote establishes a pending flow on which a packet was counted, both directions, when
// a packet follows the first of each, or of this one alone for a while. Handshakes and
// resets are no proof: anyone can send a SYN, and every server answers it.
func (n *Node) promote(w *work, f *flow) {
	if f.place == nil || !w.writes || w.h.Begins() || w.h.Flags&packet.RST != 0 {
		return
	}
	k := n.mateOf(w.key, f)
	back := n.share(f.tenant).pending[k]
	if back == nil {
		back = n.established(k)
	}
	if w.h.Flags&packet.SYN != 0 {
		if back != nil && back.place != nil {
			n.askFor(w, k, back)
		}
		return
	}
	replied := f.replied || back != nil && back.packets > 0
	both := replied && f.packets > n.pieces() && !f.asked && (back == nil || !back.asked)
	alone := uint64(oneWayMany)
	if w.h.Protocol == packet.TCP && w.h.Whole() {
		alone = oneWayFew
	}
	if !both && f.packets < alone {
		return
	}
	if back != nil && both && back.packets == 0 {
		back = nil // its answers come by another tuple
	}
	whose := n.holder(f)
	if back != nil && back.place != nil && n.hasRoom(whose, both) {
		whose = n.holder(back)
	}
	if !n.hasRoom(whose, both) {
		n.share(whose).deferred += n.pieces()
		return
	}
	n.establish(w.key, f)
	if back != nil && back.place != nil {
		n.establish(k, back)
	}
}

// settle establishes the pending flows at the edge, as far as there is room, when
// rules change: pending ones are found by the rules that they began with.
func (n *Node) settle() {
	for _, s := range n.shares {
		for k, f := range s.pending {
			if to := n.share(n.holder(f)); k.vport == n.edgeVport() && to.established < to.limit && n.flows[k] == nil {
				n.establish(k, f)
			}
		}
	}
}

// held is what tenants have, by name.
func (n *Node) held() map[string]onpath.TenantFlows {
	out := map[string]onpath.TenantFlows{}
	for tenant, s := range n.shares {
		if tenant != nobody {
			out[tenant] = onpath.TenantFlows{
				Established: s.established, Limit: s.limit, Pending: uint64(len(s.pending)), Caused: s.caused, Deferred: s.deferred,
				NewLimit: uint64(s.most), Refused: s.refused,
			}
		}
	}
	return out
}
