/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Packets whose flow leads to what is gone or closed. */
#ifndef ONPATH_LOST_H
#define ONPATH_LOST_H

#include "egress.h"

/* Drop a packet that was not counted yet. */
static __always_inline int end_here(struct __sk_buff *skb, struct pkt *p, int reason)
{
	if (p->is & IS_EDGE)
		count_in(skb, p, p->prev_slot, p->prev);
	return drop(p, reason);
}

/* An edge of an HA pair of gateways is gone, the other is there: packets leave there. */
static __always_inline int leave_by_ha_peer(struct pkt *p, const struct node *n)
{
	__u32 other = other_gateway(n, p->d.next), slot = 0;
	struct vport *v;

	if (!other)
		return 0;
	if (other != n->edge) {
		v = vport_of(&slot, other);
		if (!v || v->state == STATE_CLOSED)
			return 0;
	}
	return !leave_at(p, n, other);
}

/* Does pkt.d come from an entry at the edge whose path is no more? Connections that were
 * older than it, and met nothing of it, go on passing by. */
static __always_inline int is_orphan(const struct pkt *p)
{
	return (p->is & IS_EDGE) && p->d.path_slot && !p->d.path &&
	       (p->d.kind != NEXT_PASS || p->d.mirror_count || !(p->d.flags & FLOW_ADOPTED));
}

/* Is it of a connection that began through the instance while that was closed here, and
 * does its node answer, which will reset the connection if the instance is dead? */
static __always_inline int is_awaited(const struct pkt *p)
{
	struct flow *e = p->is & IS_NOPORTS ? NULL : flow_find(&p->key, p->tenant);
	struct vport *v;
	__u32 slot;

	if (!e || !(e->group & REOPENED) || e->next != p->d.next)
		return 0;
	slot = entry_slot(e);
	v = vport_of(&slot, e->next);
	return v && !(v->flags & VPORT_AWAY);
}

/*
 * The flow's entry, from which pkt.d comes, leads to what is no more, and names no
 * group that would choose another: it must not hold up its flow for ever. One of an
 * instance whose way on is known is decided anew by that; any other goes. ANEW, or a
 * drop if this packet cannot be decided: the next one is. What is only closed may open
 * again.
 */
__noinline int drop_stale_entry(void)
{
	struct pkt *p = packet();
	struct node *n = this_node();
	__u32 slot = 0, context, tenant;
	struct vport *v;
	struct flow *e;

	if (!p || !n || p->anew || (p->is & (IS_ERROR | IS_NOPORTS)) ||
	    (p->is & (IS_REMOTE | IS_RELAYED)) == IS_REMOTE)
		return DROP_CLOSED;
	if (!is_orphan(p) && vport_of(&slot, p->d.next))
		return DROP_CLOSED;
	tenant = p->tenant;
	if (!(p->is & (IS_EDGE | IS_REMOTE))) {
		slot = p->prev_slot;
		v = vport_at(slot, p->prev);
		tenant = v ? v->tenant : 0;
	}
	e = flow_find(&p->key, tenant);
	if (!e || e->next != p->d.next)
		return DROP_CLOSED;
	p->anew = 1;
	context = e->context;
	if (!(p->is & (IS_EDGE | IS_REMOTE)) && !(e->flags & FLOW_EMITTED) && context && bpf_map_lookup_elem(&groups, &context)) {
		retarget(e, NEXT_PENDING, 0, 0, context);
		return ANEW;
	}
	delete_flow(&p->key, e, tenant);
	/* What was translated as it came in cannot be so once more. */
	return (p->is & IS_REMOTE) || (n->nat_count && !p->d.path_slot) ? DROP_CLOSED : ANEW;
}

/*
 * The next vport of a flow is gone. By its group's lost and none: another
 * member (every direction and node chooses the same one), which may be a function, a
 * reset, a drop, or past the element.
 */
__noinline int lost(struct __sk_buff *skb)
{
	struct pkt *p = packet();
	struct node *n = this_node();
	struct group *g;
	struct flow *e;
	__u32 id, was;
	int reason;

	if (!p || !n)
		return TC_ACT_SHOT;
	was = p->d.next;
	if (!is_orphan(p) && leave_by_ha_peer(p, n))
		return GO_ON;
	id = was == p->d.entry ? 0 : p->d.group; /* to an edge, nothing is chosen */
	g = bpf_map_lookup_elem(&groups, &id);
	if (!id || !g) {
		reason = drop_stale_entry();
		return reason == ANEW ? ANEW : end_here(skb, p, reason);
	}
	if ((g->flags & GROUP_RESET) && p->key.proto == IPPROTO_TCP && !(p->is & (IS_SYN | IS_ERROR))) {
		if (is_awaited(p)) {
			p->is |= IS_AWAITED;
			return GO_ON;
		}
		if (p->is & IS_EDGE)
			count_in(skb, p, p->prev_slot, p->prev);
		return send_reset(skb);
	}
	if (!choose(id, 0, 0))
		reason = g->flags & GROUP_BYPASS ? WALK_ON : DROP_NO_INSTANCE;
	else if (function_at(p->member_slot))
		reason = add_function(p, &p->d, id, g->flags & GROUP_BYPASS);
	else
		reason = 0;
	if (reason && reason != WALK_ON)
		return end_here(skb, p, reason);
	if (!reason) {
		p->d.next = p->member;
		p->d.slot = p->member_slot;
	} else {
		p->keep = KEEP_FUNCTIONS | KEEP_MIRRORS; /* those before the element that is gone */
		p->last_function = id;
		reason = resolve(g->then, 0);
		p->keep = 0;
		if (reason)
			return end_here(skb, p, reason);
		if (p->d.kind == NEXT_EXIT && p->d.entry) {
			if ((p->is & IS_EDGE) && !has_functions(&p->d)) {
				p->d.kind = NEXT_PASS;
				p->d.flags |= FLOW_BYPASS;
			} else {
				reason = leave_at(p, n, p->d.entry);
				if (reason)
					return end_here(skb, p, reason);
			}
		}
	}
	p->learn = p->must_sync = 1;
	e = flow_find(&p->key, p->tenant);
	/* What comes for an instance from another node has none, though there may be one by
	 * which a function here is requested. */
	if (e && e->next == was && (p->is & (IS_REMOTE | IS_RELAYED)) != IS_REMOTE &&
	    !(p->is & (IS_ERROR | IS_NOPORTS))) {
		id = charged_tenant(e, p->tenant);
		p->d.flags |= e->flags & (FLOW_FIN | FLOW_RST);
		store_decision(e, &p->d, p->key.scope);
		move_quota(e, &p->key, id, p->tenant);
	}
	return GO_ON;
}

#endif
