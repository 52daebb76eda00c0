/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Next hops for the fast path. The ordinary path looks up a flow's route and
 * writes the slot of the next hop into its entry; until something changes, the
 * fast path sends by it. Slots are taken here, without anybody's help, and given
 * back by the driver.
 */
#ifndef ONPATH_HOP_H
#define ONPATH_HOP_H

#include "entry.h"
#include "nat.h"
#include "route.h"

/* What the fast path does not look at, or not like this. */
#define IS_SLOW (IS_ERROR | IS_NOPORTS | IS_ICMP | IS_LATER | IS_REMOTE | IS_HOST | IS_OUTGOING | \
		 IS_TAPPED | IS_BRIDGED)

/* The slot of pkt.hop, or 0. */
__noinline int slot_of_hop(void)
{
	struct pkt *p = packet();
	__u32 zero = 0, slot, *known, *taken;

	if (!p)
		return 0;
	known = bpf_map_lookup_elem(&hop_slots, &p->hop.hop);
	if (known)
		return *known;
	taken = bpf_map_lookup_elem(&hops_taken, &zero);
	if (!taken || *taken >= MAX_HOPS - 1)
		return 0;
	slot = __sync_fetch_and_add(taken, 1) + 1;
	if (slot >= MAX_HOPS)
		return 0;
	bpf_map_update_elem(&hops, &slot, &p->hop, BPF_ANY);
	bpf_map_update_elem(&hop_slots, &p->hop.hop, &slot, BPF_NOEXIST);
	known = bpf_map_lookup_elem(&hop_slots, &p->hop.hop); /* another CPU may have been first */
	return known ? *known : 0;
}

/* Functions that redirect run at tc, where all elements can be reached. */
static __always_inline int may_redirect_flow(const struct decision *d)
{
	struct function *f;
	__u32 i, index;

	for (i = 0; i < MAX_INLINE; i++) {
		index = d->functions[i] & INLINE_SLOT;
		if (!index)
			break;
		f = bpf_map_lookup_elem(&functions, &index);
		if (f && f->redirects)
			return 1;
	}
	return 0;
}

/* Is a slot still one of a next hop? The driver empties those of neighbours that are gone. */
static __always_inline int is_hop(__u32 slot)
{
	struct hop_slot *index = bpf_map_lookup_elem(&hops, &slot);

	return slot && index && index->hop.mtu;
}

/* Fill pkt.hop from pkt.fib. 0: the fast path may not send by it. */
__noinline int read_hop(void)
{
	struct bpf_fib_lookup *fib;
	struct pkt *p = packet();
	struct path *path;
	struct port *out;
	__u32 ifindex, slot, mtu;
	struct hop *h;

	if (!p)
		return 0;
	fib = &p->fib;
	ifindex = fib->ifindex;
	out = bpf_map_lookup_elem(&ports, &ifindex);
	if (!out || !(out->flags & PORT_CARRIES))
		return 0;
	slot = p->d.path_slot;
	path = bpf_map_lookup_elem(&paths, &slot);
	mtu = fib->mtu_result;
	if (slot && path && path->mtu && path->mtu < mtu)
		mtu = path->mtu;
	h = &p->hop.hop;
	__builtin_memset(&p->hop, 0, sizeof(p->hop));
	p->hop.used = p->now;
	h->ifindex = ifindex;
	h->mtu = mtu;
	h->flags = out->flags & PORT_FRAGS ? HOP_FRAGS : 0;
	__builtin_memcpy(h->dmac, fib->dmac, 6);
	__builtin_memcpy(h->smac, fib->smac, 6);
	if (fib->family == AF_INET) /* of the next hop */
		map_v4(h->via, fib->ipv4_dst);
	else
		copy_addr(h->via, fib->ipv6_dst);
	return 1;
}

/*
 * The packet leaves at the edge, by a route and a neighbour that stand in pkt.fib, or not
 * (found). Its flow's entry gets the next hop if the fast path may send by it, and else
 * loses the one that it had: epochs come round.
 */
__noinline int note_hop(__u32 found)
{
	struct pkt *p = packet();
	struct node *n = this_node();
	struct flow *e;
	__u32 slot;

	if (!p || !n || !(p->is & IS_EDGE) || (p->is & IS_SLOW) || !has_functions(&p->d))
		return 0;
	e = flow_established(p->edited ? &p->came : &p->key);
	if (!e || entry_kind(e) != NEXT_EXIT || !(e->flags & FLOW_AT_EDGE))
		return 0;
	if (found && is_hop(entry_hop(e, p->epoch, p->now)))
		return 0;
	slot = 0;
	if (found && p->epoch && !p->d.mirror_count && !may_redirect_flow(&p->d) &&
	    !(n->nat_count && translated(n, &p->key, p->family)) && read_hop())
		slot = slot_of_hop();
	if (slot)
		entry_set_hop(e, slot, p->epoch);
	else if (e->packets >> 48)
		entry_set_hop(e, 0, 0);
	return 0;
}

#endif
