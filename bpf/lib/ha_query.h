/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * A gateway of an HA pair queries the other one. What that synchronizes of a flow
 * (lib/ha_sync.h) goes
 * another way than the flow's packets, and may come after their replies, or be lost.
 * Where replies would then be led otherwise, past elements even, for as long as their
 * flow lives, the packet itself is sent to the HA peer, which sends what it knows
 * and returns the packet. One query is made for a flow, before anything is decided.
 *
 * The rules alone lead replies otherwise
 *
 *   by chains of both tiers: they meet the tenant's first, if they are replies;
 *   of TCP, while a chain is young: it passes by what seems older than the chain.
 *
 * What begins a flow for sure, a SYN, makes no query.
 */
#ifndef ONPATH_HA_QUERY_H
#define ONPATH_HA_QUERY_H

#include "reject.h"
#include "ha_sync.h"

/* Instead of the entry vport. */
#define HA_QUERY  0xffffff
#define HA_RETURNED 0xfffffe

/* Does a rule of the table take the packet? */
static __always_inline int table_matches(struct pkt *p, __u32 table)
{
	return classify(table, 0) && p->hit;
}

/* May the HA peer know what the rules do not say of a packet, whose path that
 * is? */
static __always_inline int must_query(struct pkt *p, const struct node *n, const struct path *path)
{
	if (!n->gateways[0] || p->queried || p->tags || p->ttl <= 1 ||
	    (p->is & (IS_SYN | IS_ERROR | IS_NOPORTS | IS_HOST | IS_TAPPED | IS_BRIDGED)))
		return 0;
	if ((p->is & IS_TCP) && bpf_ktime_get_ns() < path->adopt_until)
		return 1;
	return n->edge_table != LAST_CLASSIFIER && table_matches(p, n->edge_table) && table_matches(p, LAST_CLASSIFIER);
}

/* Send the packet to the HA peer, as a query or the return of one. GO_ON: it cannot be sent there. */
__noinline int send_to_ha_peer(struct __sk_buff *skb, __u32 word)
{
	struct pkt *p = packet();
	struct node *n = this_node();
	struct vport *v;
	__u32 slot = 0;

	if (!p || !n || skb->vlan_present)
		return GO_ON;
	v = vport_of(&slot, other_gateway(n, n->edge));
	if (!v || v->kind != VPORT_REMOTE || v->state == STATE_CLOSED)
		return GO_ON;
	if (encapsulate(skb, slot, 0, word, 0)) {
		bpf_skb_store_bytes(skb, 0, p->macs, 12, 0);
		return GO_ON;
	}
	return bpf_redirect(n->tunnel_ifindex, 0);
}

/* Query for a packet that the path would take: a verdict, or GO_ON. */
__noinline int query_ha_peer(struct __sk_buff *skb, __u32 slot)
{
	struct path *path = bpf_map_lookup_elem(&paths, &slot);
	struct pkt *p = packet();
	struct node *n = this_node();

	if (!p || !n || !path || !must_query(p, n, path))
		return GO_ON;
	if (path->mtu && p->segment > path->mtu) { /* nor would it go on */
		count_in(skb, p, p->prev_slot, p->prev);
		return send_error(skb, ERROR_BIG, path->mtu);
	}
	return send_to_ha_peer(skb, HA_QUERY);
}

/* The entry of pkt.key at this edge, which is its scope; pkt.tenant is whose it is. */
static __always_inline struct flow *entry_at_edge(struct pkt *p, const struct node *n)
{
	struct flow *e = flow_established(&p->key);

	p->tenant = 0;
	if (e || !n->edge_table)
		return e;
	resolve(n->edge_table, 0);
	if (!p->d.matched)
		return NULL;
	p->tenant = tenant_of_path(p->d.first_path);
	return flow_pending(&p->key, p->tenant);
}

/* The HA peer queries for the packet. */
__noinline int serve_query(struct __sk_buff *skb)
{
	struct pkt *p = packet();
	struct node *n = this_node();
	int rc;

	if (!p || !n)
		return TC_ACT_SHOT;
	p->key.scope = n->edge;
	if (!(p->is & (IS_ERROR | IS_NOPORTS)) && entry_at_edge(p, n))
		sync_ha_peer(skb, SYNC_FLOW);
	rc = send_to_ha_peer(skb, HA_RETURNED);
	return rc == GO_ON ? TC_ACT_SHOT : rc;
}

/* The packet is back: as if it came in just now. */
static __always_inline void resume_returned(struct pkt *p, const struct node *n)
{
	p->is = (p->is & ~IS_REMOTE) | IS_EDGE;
	p->queried = 1;
	p->prev = n->edge;
	p->prev_slot = n->edge_slot;
	p->key.scope = n->edge;
}

#endif
