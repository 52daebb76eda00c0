/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Carrying out a decision. */
#ifndef ONPATH_SEND_H
#define ONPATH_SEND_H

#include "asleep.h"
#include "exit.h"
#include "learn.h"
#include "lost.h"
#include "rate.h"

/* Copies for the mirrors. The frame itself keeps its addresses. */
__noinline int copy_to_mirrors(struct __sk_buff *skb)
{
	struct pkt *p = packet();
	struct node *n = this_node();
	__u32 i, slot;
	struct vport *v;

	if (!p || !n)
		return 0;
	for (i = 0; i < MAX_MIRRORS; i++) {
		if (i >= p->d.mirror_count)
			break;
		slot = p->d.mirror_slots[i];
		v = vport_of(&slot, p->d.mirrors[i]);
		if (!v || v->state == STATE_CLOSED)
			continue;
		if (v->kind == VPORT_INSTANCE) {
			if (bpf_clone_redirect(skb, address_to(skb, v, slot), 0))
				continue;
		} else if (v->kind == VPORT_REMOTE) {
			if (encapsulate(skb, slot, p->prev, p->d.entry, 0) ||
			    bpf_clone_redirect(skb, n->tunnel_ifindex, 0))
				continue;
		} else {
			continue;
		}
		count_out(skb, p, slot, v->id);
	}
	bpf_skb_store_bytes(skb, 0, p->macs, 12, 0);
	return 0;
}

static __always_inline int is_closed(__u32 slot, __u32 id)
{
	struct vport *v = vport_of(&slot, id);

	return !v || v->state == STATE_CLOSED;
}

/* Choose anew where a flow's mirror is gone: walk once more what the flow's first
 * packet walked. Once a second and flow at most. */
__noinline int refresh_mirrors(void)
{
	struct pkt *p = packet();
	struct node *n = this_node();
	__u32 id, table = 0;
	struct group *g;
	struct flow *e;

	if (!p || !n)
		return 0;
	if (!is_closed(p->d.mirror_slots[0], p->d.mirrors[0]) &&
	    (p->d.mirror_count < 2 || !is_closed(p->d.mirror_slots[1], p->d.mirrors[1])))
		return 0;
	id = p->d.context;
	g = bpf_map_lookup_elem(&groups, &id);
	if (id && g)
		table = g->then;
	else if (!id && (p->is & IS_EDGE))
		table = n->edge_table;
	e = flow_find(&p->key, p->tenant);
	if (!table || !e)
		return 0;
	resolve(table, 0); /* the inline element keeps its instance, whatever this chose */
	if (p->d.mirror_count)
		store_mirrors(e, &p->d);
	load_decision(&p->d, e);
	return 0;
}

/* The vport that the packet has passed last: where replies go. */
static __always_inline __u32 last_passed(struct pkt *p)
{
	struct function *f;
	__u32 i, index = 0;

	if (!has_functions(&p->d))
		return p->prev;
#pragma unroll
	for (i = 0; i < MAX_INLINE; i++)
		if (p->d.functions[i])
			index = p->d.functions[i] & INLINE_SLOT;
	f = bpf_map_lookup_elem(&functions, &index);
	return f && f->vport ? f->vport : p->prev;
}

/*
 * Into an instance's device: by its queue, or, where nothing stands in between,
 * straight to its other end. That end takes the packet as one that came in there,
 * so what the device where it really came in noted on it goes.
 */
static __always_inline int deliver(struct __sk_buff *skb, struct pkt *p, struct vport *v,
				   __u32 ifindex)
{
	if (!(v->flags & VPORT_PEER) || (p->is & IS_OUTGOING))
		return bpf_redirect(ifindex, 0);
	if (skb->pkt_type != PACKET_HOST && bpf_skb_change_type(skb, PACKET_HOST))
		return bpf_redirect(ifindex, 0);
	skb->mark = 0;
	return bpf_redirect_peer(ifindex, 0);
}

/* To a vport that is there. */
static __always_inline int send_to(struct __sk_buff *skb, struct pkt *p, struct node *n,
				   struct vport *v, __u32 slot)
{
	__u32 carried, entry, ifindex;
	int reason;

	switch (v->kind) {
	case VPORT_INSTANCE:
		if (p->learn && !(p->is & (IS_ERROR | IS_NOPORTS))) {
			learn_replies(AT_INSTANCE, v->id, slot);
			learn_context(slot);
		}
		if (!within_rate(p, slot, RATE_OUT))
			return drop(p, DROP_RATE);
		ifindex = address_to(skb, v, slot);
		if ((v->flags & (VPORT_CHAIN_TAG | VPORT_MIRROR)) == VPORT_CHAIN_TAG)
			write_chain_tag(skb, p);
		count_out(skb, p, slot, v->id);
		return deliver(skb, p, v, ifindex);
	case VPORT_REMOTE:
		/* To an edge, the group is the one of the element just passed. */
		carried = p->d.group;
		if (v->id == p->d.entry && !(carried && has_functions(&p->d)))
			carried = p->d.context;
		if (p->learn && has_functions(&p->d) && !(p->is & (IS_ERROR | IS_NOPORTS)))
			learn_replies(AT_RELAY, v->id, slot);
		entry = v->id == p->d.entry && (p->d.flags & FLOW_ADOPTED) ? 0 : p->d.entry;
		reason = encapsulate(skb, slot, last_passed(p), entry, carried);
		if (reason)
			return drop(p, reason);
		count_out(skb, p, slot, v->id);
		return bpf_redirect(n->tunnel_ifindex, 0);
	}
	return drop(p, DROP_UNKNOWN_VPORT);
}

/* Before the functions of pkt.d: GO_ON, or a verdict. */
__noinline int begin_send(struct __sk_buff *skb)
{
	struct pkt *p = packet();
	struct vport *v;
	__u32 slot;
	int rc;

	if (!p)
		return TC_ACT_SHOT;
	if (p->is & IS_ACCEPTING) {
		if (p->is & IS_EDGE) {
			count_in(skb, p, p->prev_slot, p->prev);
			sync_ha_peer(skb, SYNC_FLOW);
		}
		return send_reset(skb);
	}
	if (!(p->is & (IS_ERROR | IS_NOPORTS))) {
		if (p->learn && p->d.mirror_count)
			refresh_mirrors();
		if ((p->is & IS_BRIDGED) && p->d.kind != NEXT_PASS && (p->learn || !knows_stations(p)))
			learn_stations();
	}
	slot = p->d.slot;
	v = NULL;
	if (p->d.kind == NEXT_VPORT)
		v = vport_of(&slot, p->d.next);
	if (is_orphan(p) || (p->d.kind == NEXT_VPORT && (!v || v->state == STATE_CLOSED))) {
		rc = lost(skb); /* counts for itself what ends there */
		if (rc != GO_ON)
			return rc;
	}
	if (p->is & IS_EDGE) {
		if (p->d.kind != NEXT_PASS || p->d.mirror_count)
			count_in(skb, p, p->prev_slot, p->prev);
		if (p->d.kind == NEXT_PASS && (!p->d.mirror_count || (p->d.flags & FLOW_BYPASS)))
			count_passed(p);
		else
			count_steered(p);
	}
	if ((p->is & IS_TAPPED) && p->d.kind == NEXT_VPORT) {
		p->member = p->d.next; /* an inline element gets a copy */
		p->member_slot = p->d.slot;
		add_mirror(p, &p->d);
		p->d.kind = NEXT_PASS;
	}
	return has_functions(&p->d) ? RUN_FUNCTIONS : GO_ON;
}

/* What fits the path, and the tunnel to a peer: the path says nothing where a packet is
 * of none, as an instance's own. */
static __always_inline __u32 narrower(__u32 mtu, __u32 slot)
{
	struct peer *peer = bpf_map_lookup_elem(&peers, &slot);

	return peer && peer->mtu && (!mtu || peer->mtu < mtu) ? peer->mtu : mtu;
}

/* Behind the functions. */
__noinline int send_on(struct __sk_buff *skb)
{
	struct pkt *p = packet();
	struct node *n = this_node();
	__u32 slot, mtu = 0;
	struct path *path;
	struct vport *v;
	int rc;

	if (!p || !n)
		return TC_ACT_SHOT;
	if (p->d.kind == NEXT_PASS) {
		if ((p->must_sync || (p->is & IS_SYN)) && (p->is & IS_EDGE))
			sync_ha_peer(skb, SYNC_FLOW);
		if (p->d.mirror_count)
			copy_to_mirrors(skb);
		return TC_ACT_OK;
	}
	slot = p->d.path_slot;
	path = bpf_map_lookup_elem(&paths, &slot);
	if (slot && path && path->id == p->d.path)
		mtu = path->mtu;
	v = NULL;
	slot = p->d.slot;
	if (p->d.kind == NEXT_VPORT)
		v = vport_of(&slot, p->d.next);
	if (v && v->kind == VPORT_REMOTE)
		mtu = narrower(mtu, v->peer);
	if (is_too_long(p, mtu)) {
		relearn();
		return send_error(skb, ERROR_BIG, mtu);
	}
	if (mtu && (p->is & IS_ANYSYN))
		clamp_mss(skb, mtu);
	if (p->tags || skb->vlan_present)
		pop_vlans(skb, p);
	if ((p->must_sync || (p->is & IS_SYN)) && (p->is & IS_EDGE))
		sync_ha_peer(skb, SYNC_FLOW);
	if (p->d.mirror_count)
		copy_to_mirrors(skb);
	if (p->d.kind == NEXT_EXIT) {
		if (p->learn && !(p->is & (IS_ERROR | IS_NOPORTS))) {
			/* Also if this one cannot leave: the next may, and does not come here. */
			rc = find_reply_table();
			find_reply_group();
			if (!rc)
				rc = learn_replies(AT_EDGE, n->edge, 0);
			if (rc) {
				relearn();
				return drop(p, rc);
			}
			if (p->is & IS_ACCEPTING)
				return send_reset(skb);
		}
		return exit_edge(skb);
	}
	if (p->d.kind != NEXT_VPORT)
		return drop(p, DROP_NO_TABLE);
	if (!v || (v->state == STATE_CLOSED && !(p->is & IS_AWAITED)))
		return drop(p, DROP_CLOSED);
	return send_to(skb, p, n, v, slot);
}

/*
 * A function sends the packet to another element: pkt.element. What it has passed
 * stays on its list, for the replies; the rest is decided anew. All mirrors of the
 * flow get their copies, also those of elements between. The flow's entry stays: each
 * packet is sent where its function says, and all of a flow to the same instance, by
 * weight and hash.
 */
__noinline int redirect(struct __sk_buff *skb)
{
	struct pkt *p = packet();
	struct node *n = this_node();
	__u32 i;
	int reason;

	if (!p || !n)
		return TC_ACT_SHOT;
	if (p->d.mirror_count)
		copy_to_mirrors(skb);
	for (i = 0; i < MAX_INLINE; i++)
		if (i >= p->ran)
			p->d.functions[i] = 0;
	p->start_group = p->d.path << 6 | (p->element - 1) << 1 | (p->d.flags & FLOW_REVERSE ? 1 : 0);
	p->after = AFTER_SEND;
	p->keep = KEEP_FUNCTIONS;
	p->last_function = 0;
	reason = resolve(0, 0);
	p->keep = 0;
	if (!reason && p->d.kind == NEXT_EXIT && p->d.entry)
		reason = leave_at(p, n, p->d.entry);
	if (reason)
		return drop(p, reason);
	p->learn = 1; /* its replies do not come the way that the entry knows */
	for (i = 0; i < MAX_INLINE; i++)
		if (i >= p->ran && p->d.functions[i])
			return RUN_FUNCTIONS;
	return GO_ON;
}

/* Do what pkt.d says. */
static __always_inline int send(struct __sk_buff *skb)
{
	int rc = begin_send(skb);

	return rc == GO_ON ? send_on(skb) : rc;
}

#endif
