/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* First packets out of an instance, or from another node for a function of this one. */
#ifndef ONPATH_EGRESS_H
#define ONPATH_EGRESS_H

#include "ingress.h"

static __always_inline int leave_at(struct pkt *p, const struct node *n, __u32 entry)
{
	__u32 last = p->last_function;
	struct group *g;

	if (!entry)
		return DROP_NO_ROUTE;
	p->d.entry = entry;
	p->d.group = 0;
	g = bpf_map_lookup_elem(&groups, &last);
	if ((entry != n->edge || n->gateways[0]) && last && g && has_functions(&p->d)) {
		p->d.group = last; /* the last element: replies name it there */
		p->d.path = g->path;
		p->d.path_slot = g->path_slot;
	}
	p->d.kind = entry == n->edge ? NEXT_EXIT : NEXT_VPORT;
	p->d.next = entry == n->edge ? 0 : entry;
	p->d.slot = 0;
	return 0;
}

/* Count an entry against the quota of the instance's tenant. */
static __always_inline int charge_quota(__u32 slot)
{
	struct tenant *t = bpf_map_lookup_elem(&tenants, &slot);
	struct quota *h = bpf_map_lookup_elem(&quotas, &slot);

	if (!t || !h || (t->max && h->flows >= t->max) || !has_capacity(slot, 1))
		return 0;
	__sync_fetch_and_add(&h->flows, 1);
	return 1;
}

/* The first packet that comes out of an instance by the context it got in with. Returns 0, a
 * drop reason, or HALTED: the connection is older than the other tier's chain, which cuts such. */
static __always_inline int classify_pending(struct pkt *p, struct node *n, const struct flow *e)
{
	__u32 group = e->context, slot, known, cuts = 0;
	struct path *path;
	struct group *g;
	int reason;

	load_decision(&p->d, e);
	known = p->d.flags & FLOW_KNOWN;
	p->d.flags &= ~FLOW_KNOWN;
	g = bpf_map_lookup_elem(&groups, &group);
	if (!g)
		return DROP_NO_TABLE;
	/* Where the other tier's chain begins, flows do; but not those that only changed
	 * the instance before. */
	reason = resolve_halting(p, g->then);
	if (reason == HALTED)
		reason = admit_walk((p->is & IS_ERROR) || known || runs(p) ? EVERYBODY : tenant_of_path(p->d.path_slot));
	if (reason == HALTED) { /* past that chain alone: what this one has chosen holds */
		slot = p->rule_path_slot;
		path = bpf_map_lookup_elem(&paths, &slot);
		cuts = path && (path->flags & PATH_CUT);
		if (!cuts)
			count_passed_by(p, slot);
		p->d.flags |= FLOW_ADOPTED;
		p->d.kind = NEXT_EXIT;
		p->d.next = p->d.slot = p->d.group = 0;
		reason = 0;
	}
	if (reason)
		return reason;
	if (p->d.kind == NEXT_VPORT && runs(p))
		find_owner(0);
	if (p->d.kind == NEXT_EXIT && p->d.entry)
		reason = leave_at(p, n, p->d.entry);
	return !reason && cuts ? HALTED : reason;
}

/* What an instance emits goes on behind its element as if it had come in there:
 * the table behind an element and the group before it have one number. */
static __always_inline void take_context(struct pkt *p)
{
	__u32 id = p->d.first_table;
	struct group *g = bpf_map_lookup_elem(&groups, &id);

	if (g && g->then == id)
		p->d.context = id;
}

/*
 * The instance gives back a packet that it was given, though its entry is gone: with the
 * path by which the packet came, or evicted. The entry of the other direction, at the
 * instance's other side, is of the same flow: one of them determines the other, so
 * it is written as it was when the packet came in (learn_context). ANEW, or 0.
 */
__noinline int restore_context(__u32 other)
{
	struct pkt *p = packet();
	struct flow *mate;
	struct group *g;
	__u32 group;

	if (!p || !other || p->anew || (p->is & (IS_ERROR | IS_NOPORTS)))
		return 0;
	reverse_key(&p->wkey, &p->key, other);
	mate = flow_find(&p->wkey, p->tenant);
	if (!mate || !mate->context || (mate->flags & FLOW_EMITTED))
		return 0;
	group = mate->context ^ 1;
	g = bpf_map_lookup_elem(&groups, &group);
	if (!g)
		return 0;
	__builtin_memset(&p->back, 0, sizeof(p->back));
	p->back.kind = NEXT_PENDING;
	p->back.flags = FLOW_KNOWN | (g->flags & GROUP_REVERSE ? FLOW_REVERSE : 0);
	p->back.context = group;
	p->back.entry = mate->entry;
	p->back.path = g->path;
	p->back.path_slot = g->path_slot;
	store_decision(fresh_flow(p), &p->back, p->key.scope);
	p->anew = 1;
	return flow_begin(p, &p->key, p->tenant) ? ANEW : 0;
}

/* A packet from a local instance without a decided entry. */
__noinline int classify_egress(struct __sk_buff *skb)
{
	struct pkt *p = packet();
	struct node *n = this_node();
	__u32 slot, emit, own;
	struct vport *v;
	struct flow *e;
	int reason;

	if (!p || !n)
		return TC_ACT_SHOT;
	slot = p->prev_slot;
	v = vport_at(slot, p->prev);
	if (!v)
		return drop(p, DROP_CLOSED);
	p->tenant = v->tenant;
	e = p->is & IS_NOPORTS ? NULL : flow_find(&p->key, p->tenant);
	if (e && entry_kind(e) != NEXT_PENDING) {
		if (!begins_anew(p, p->tenant)) {
			follow(p, e, 1);
			return GO_ON;
		}
		e = flow_find(&p->key, p->tenant);
	}
	if (e) {
		reason = classify_pending(p, n, e);
		if (reason == HALTED) /* RSTs pass, and leave no entry, by which others would */
			return p->is & IS_RST ? GO_ON : send_reset(skb);
		if (reason)
			return drop(p, reason);
		if (!(p->is & (IS_ERROR | IS_NOPORTS))) {
			write_flow();
			flow_promote();
		}
		return GO_ON;
	}
	/* For an error, key is the reverse of the quoted tuple, whose destination
	 * is the error's: only its sender differs, and own tells by that. */
	p->okey.vport = p->prev;
	p->okey.family = p->family;
	p->okey.pad[0] = p->okey.pad[1] = p->okey.pad[2] = 0;
	if (p->family == FAMILY_4) {
		map_v4(p->okey.addr, 0);
		bpf_skb_load_bytes(skb, p->l3 + 12, &V4(p->okey.addr), 4);
	} else {
		bpf_skb_load_bytes(skb, p->l3 + 8, p->okey.addr, 16);
	}
	own = bpf_map_lookup_elem(&owns, &p->okey) != NULL;
	if ((v->flags & VPORT_MIRROR) && !own)
		return drop(p, DROP_MIRROR);
	p->d.context = p->d.group = 0;
	p->d.entry = v->entry;
	p->d.path = p->d.path_slot = p->d.mirror_count = 0;
	p->d.flags = 0;
	emit = v->emit;
	if (emit && !(p->is & (IS_ERROR | IS_NOPORTS))) {
		reason = resolve_halting(p, emit);
		if (reason == HALTED) {
			if (!admit_flow(p, v->tenant))
				return drop(p, DROP_NEW_FLOWS);
			reason = admit_walk(v->tenant);
		}
		if (p->d.matched) {
			if (reason)
				return drop(p, reason);
			if (p->d.kind == NEXT_EXIT && p->d.entry)
				reason = leave_at(p, n, p->d.entry);
			if (reason)
				return drop(p, reason);
			if (!charge_quota(v->tenant))
				return drop(p, DROP_QUOTA);
			p->d.flags |= FLOW_EMITTED;
			take_context(p);
			reason = write_flow();
			return reason ? drop(p, reason) : GO_ON;
		}
	}
	if (!own || !(v->flags & VPORT_ROUTES)) {
		if (restore_context(v->other) == ANEW)
			return ANEW;
		/* a fragment whose first did not come is no forgery */
		return drop(p, (p->is & (IS_ERROR | IS_NOPORTS)) == IS_NOPORTS ? DROP_UNCLASSIFIED
									      : DROP_SPOOFED);
	}
	p->d.context = p->d.group = 0;
	p->d.path = p->d.path_slot = p->d.mirror_count = 0;
	clear_functions(&p->d);
	p->d.flags = FLOW_EMITTED;
	reason = leave_at(p, n, v->entry);
	if (reason)
		return drop(p, reason);
	if (p->is & (IS_ERROR | IS_NOPORTS))
		return GO_ON;
	if (!admit_flow(p, v->tenant))
		return drop(p, DROP_NEW_FLOWS);
	if (!charge_quota(v->tenant))
		return drop(p, DROP_QUOTA);
	reason = write_flow();
	return reason ? drop(p, reason) : GO_ON;
}

/* A packet from another node for a function of this one, and then on: its entry
 * is keyed by the vport it comes from, which lies on the other node. Where it says
 * that it comes from one of this node, it has none: what stands there is for what
 * really comes out there, and no other node may use or write it. */
__noinline int classify_relayed(void)
{
	struct pkt *p = packet();
	struct node *n = this_node();
	__u32 slot = 0, ours, entry;
	struct vport *prev, *v;
	struct flow *e;
	int reason;

	if (!p || !n)
		return TC_ACT_SHOT;
	prev = vport_of(&slot, p->prev);
	ours = prev && prev->kind != VPORT_REMOTE;
	if (!ours)
		p->is |= IS_RELAYED;
	p->requested_group = p->d.group;
	slot = p->d.slot;
	v = vport_of(&slot, p->d.next);
	if (!v)
		return drop(p, DROP_CLOSED);
	p->tenant = v->tenant; /* what comes from another tier's element tells no path */
	e = ours ? NULL : flow_find(&p->key, p->tenant);
	if (e && path_replaced(e, p->d.path_slot))
		retarget(e, NEXT_PENDING, 0, 0, 0);
	if (e && entry_kind(e) != NEXT_PENDING) {
		move_gateway(e, p->d.entry);
		follow(p, e, 1);
		return GO_ON;
	}
	if (!p->requested_group)
		return drop(p, DROP_NO_TABLE);
	entry = p->d.entry;
	e = NULL;
	if (n->edge && other_gateway(n, p->prev) == n->edge) { /* this edge may know more than the rules */
		p->key.scope = n->edge;
		e = entry_at_edge(p, n);
		p->key.scope = p->prev;
		p->tenant = v->tenant;
		if (e && vport_of_function(e->functions[0]) != v->id)
			e = NULL;
	}
	p->d.entry = entry;
	p->d.context = 0;
	p->start_group = p->requested_group;
	reason = resolve(0, 0);
	if (e) {
		reason = 0;
		if (*(__u64 *)p->d.functions != *(__u64 *)e->functions)
			p->last_function = 0; /* not the last one of these */
		if (follow_entry(&p->d, e, n)) {
			p->d.kind = NEXT_EXIT;
			p->d.entry = entry;
		}
	}
	if (!reason && p->d.kind == NEXT_EXIT && p->d.entry)
		reason = leave_at(p, n, p->d.entry);
	if (reason)
		return drop(p, reason);
	if (!ours && !(p->is & (IS_ERROR | IS_NOPORTS)))
		write_flow();
	return GO_ON;
}

#endif
