/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * A gateway of a pair asks the other one. What that tells of a flow (lib/pair.h) goes
 * another way than the flow's packets, and may come after their answers, or be lost.
 * Where answers would then be led otherwise, past elements even, for as long as their
 * flow lives, the packet itself is sent to the other gateway, which tells what it knows
 * and gives the packet back. It is asked once for a flow, before anything is decided.
 *
 * The rules alone lead answers otherwise
 *
 *   by chains of both tiers: they meet the tenant's first, if they are answers;
 *   of TCP, while a chain is young: it passes by what seems older than the chain.
 *
 * What begins a flow for sure, a SYN, asks nothing.
 */
#ifndef ONPATH_ASK_H
#define ONPATH_ASK_H

#include "answer.h"
#include "pair.h"

/* In the place of the entry vport, as what is told. */
#define ASKED_FOR  0xffffff
#define GIVEN_BACK 0xfffffe

/* Does a rule of the table take the packet? */
static __always_inline int takes(struct pkt *p, __u32 table)
{
	return classify(table, 0) && p->hit;
}

/* May the other gateway know what the rules do not tell of a packet, whose path that
 * is? */
static __always_inline int asks(struct pkt *p, const struct node *n, const struct path *path)
{
	if (!n->gates[0] || p->asked || p->tags || p->ttl <= 1 ||
	    (p->is & (IS_SYN | IS_ERROR | IS_NOPORTS | IS_HOST | IS_TAPPED | IS_BRIDGED)))
		return 0;
	if ((p->is & IS_TCP) && bpf_ktime_get_ns() < path->adopt_until)
		return 1;
	return n->edge_table != LAST_CLASSIFIER && takes(p, n->edge_table) && takes(p, LAST_CLASSIFIER);
}

/* Send the packet to the other gateway, as a word to it. GO_ON: it cannot be asked. */
__noinline int send_to_partner(struct __sk_buff *skb, __u32 word)
{
	struct pkt *p = packet();
	struct node *n = this_node();
	struct vport *v;
	__u32 slot = 0;

	if (!p || !n || skb->vlan_present)
		return GO_ON;
	v = vport_of(&slot, other_gate(n, n->edge));
	if (!v || v->kind != VPORT_REMOTE || v->state == STATE_CLOSED)
		return GO_ON;
	if (encapsulate(skb, slot, 0, word, 0)) {
		bpf_skb_store_bytes(skb, 0, p->macs, 12, 0);
		return GO_ON;
	}
	return bpf_redirect(n->tunnel_ifindex, 0);
}

/* Ask for a packet that the path would take: a verdict, or GO_ON. */
__noinline int ask_partner(struct __sk_buff *skb, __u32 slot)
{
	struct path *path = bpf_map_lookup_elem(&paths, &slot);
	struct pkt *p = packet();
	struct node *n = this_node();

	if (!p || !n || !path || !asks(p, n, path))
		return GO_ON;
	if (path->mtu && p->segment > path->mtu) { /* nor would it go on */
		count_in(skb, p, p->prev_slot, p->prev);
		return send_error(skb, ERROR_BIG, path->mtu);
	}
	return send_to_partner(skb, ASKED_FOR);
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

/* The other gateway asks for the packet. */
__noinline int answer_partner(struct __sk_buff *skb)
{
	struct pkt *p = packet();
	struct node *n = this_node();
	int rc;

	if (!p || !n)
		return TC_ACT_SHOT;
	p->key.scope = n->edge;
	if (!(p->is & (IS_ERROR | IS_NOPORTS)) && entry_at_edge(p, n))
		tell_partner(skb, TELL_THESE);
	rc = send_to_partner(skb, GIVEN_BACK);
	return rc == GO_ON ? TC_ACT_SHOT : rc;
}

/* The packet is back: as if it came in just now. */
static __always_inline void take_back(struct pkt *p, const struct node *n)
{
	p->is = (p->is & ~IS_REMOTE) | IS_EDGE;
	p->asked = 1;
	p->prev = n->edge;
	p->prev_slot = n->edge_slot;
	p->key.scope = n->edge;
}

#endif
