/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * A pair of gateways. Packets of one flow may come in at either, and the two
 * directions at different ones. Both choose alike what they choose by their
 * tables; but weights and instances change and flows stay where they are, and
 * instances begin flows of their own. So each tells the other of the entries that
 * it writes at its edge, before the packet that made it write them goes on, and
 * again with every SYN and every 2^TELL_EVERY seconds while they are used.
 *
 * It is told by the packet itself, sent through the tunnel from no vport (0, which
 * none has): the place of the entry vport holds the one that the entry leads to, 0
 * for what passes the chain by. The VNI says whose packets the entry is for: the
 * receiver's edge, those like this one; the sender's, its answers; VNI_LEARNED, those
 * like this one, which answers others.
 *
 * Answers may be faster than what tells of them. Where the tables say another way
 * than what is told, the other gateway is asked first (lib/ask.h).
 */
#ifndef ONPATH_PAIR_H
#define ONPATH_PAIR_H

#include "entry.h"
#include "meet.h"
#include "tunnel.h"

#define BY_YOUR_RULES 1 /* for a group: next is a function, found by the receiver's own rules */

/* Whose packets an entry is for that is told. */
#define TELL_THESE   0
#define TELL_ANSWERS 1
#define TELL_LEARNED 2 /* these, which answer others */
#define VNI_LEARNED  0xffffff /* 0 is a question of agents (lib/probe.h) */

/* The other edge of the pair, if id is one of them; else 0. */
static __always_inline __u32 other_gate(const struct node *n, __u32 id)
{
	if (!id)
		return 0;
	if (id == n->gates[0])
		return n->gates[1];
	return id == n->gates[1] ? n->gates[0] : 0;
}

/* The vport that packets of an entry go to; this node's edge for those that leave. */
static __always_inline __u32 led_to(const struct node *n, __u32 kind, __u32 next)
{
	return kind == NEXT_EXIT ? n->edge : kind == NEXT_VPORT ? next : 0;
}

/* Does the entry lead to the edge that is id's partner? */
static __always_inline int leads_beside(const struct node *n, const struct flow *e, __u32 id)
{
	return id && other_gate(n, led_to(n, entry_kind(e), e->next)) == id;
}

/*
 * Packets of an entry at an instance have come in at the other gateway: they leave
 * there, too. So each direction leaves where it comes in.
 */
static __always_inline void move_gate(struct flow *e, __u32 entry)
{
	struct node *n = this_node();
	__u32 kind = entry_kind(e);

	if (!n || !entry || other_gate(n, e->entry) != entry)
		return;
	if (led_to(n, kind, e->next) == e->entry) {
		if (entry == n->edge)
			turn_entry(e, NEXT_EXIT, 0, 0, e->context);
		else
			turn_entry(e, NEXT_VPORT, entry, 0, e->context);
	}
	e->entry = entry;
	e->flags &= ~FLOW_LEARNED;
}

/* Has the flow of pkt.key, on its way to the vport at slot, come in at the other
 * gateway before? */
__noinline int moved_gate(__u32 slot)
{
	struct vport *v = bpf_map_lookup_elem(&vports, &slot);
	struct node *n = this_node();
	struct pkt *p = packet();
	struct flow *e;

	if (!p || !n || !v || !other_gate(n, p->d.entry) || v->kind != VPORT_INSTANCE)
		return 0;
	copy_key(&p->wkey, &p->key, v->other);
	e = flow_find(&p->wkey, v->tenant);
	return e && other_gate(n, e->entry) == p->d.entry;
}

/* Tell the partner, at slot to, that packets of pkt.key go to next by group; or, with
 * answers, theirs. The frame itself keeps its addresses. */
__noinline int tell(struct __sk_buff *skb, __u32 to, __u32 next, __u32 group, __u32 answers)
{
	struct vport *v = bpf_map_lookup_elem(&vports, &to);
	struct pkt *p = packet();
	struct node *n = this_node();

	if (!p || !n || !v)
		return 0;
	if (!encapsulate(skb, to, 0, next, group)) {
		if (answers)
			p->tunnel.tunnel_id = answers == TELL_ANSWERS ? n->edge : VNI_LEARNED;
		if (!answers || !bpf_skb_set_tunnel_key(skb, &p->tunnel, TUNNEL_KEY_SIZE, tunnel_flags(p, v->peer)))
			bpf_clone_redirect(skb, n->tunnel_ifindex, 0);
	}
	bpf_skb_store_bytes(skb, 0, p->macs, 12, 0);
	return 0;
}

/* The same of packets that meet a function first, which runs at one gateway of the
 * pair: the partner's own rules lead it there. */
static __always_inline int tell_function(struct __sk_buff *skb, __u32 to, __u32 place, __u32 answers)
{
	struct function *f = bpf_map_lookup_elem(&functions, &place);

	return f && f->vport ? tell(skb, to, f->vport, BY_YOUR_RULES, answers) : 0;
}

/* Tell the partner of the entry of pkt.key, or of pkt.rkey: the answers'. */
__noinline int tell_partner(struct __sk_buff *skb, __u32 answers)
{
	struct pkt *p = packet();
	struct node *n = this_node();
	__u32 slot, to = 0, group, next;
	struct vport *v;
	struct flow *e;

	if (!p || !n || !n->gates[0] || p->tags || skb->vlan_present ||
	    (p->is & (IS_ERROR | IS_NOPORTS | IS_LATER | IS_HOST | IS_TAPPED)))
		return 0;
	v = vport_of(&to, other_gate(n, n->edge));
	if (!v || v->kind != VPORT_REMOTE || v->state == STATE_CLOSED)
		return 0;
	if (answers)
		reverse_key(&p->rkey, &p->key, n->edge);
	if (answers)
		e = flow_find(&p->rkey, p->back_tenant);
	else
		e = flow_find(&p->key, p->tenant);
	if (!e)
		return 0;
	if (!answers && (e->flags & FLOW_LEARNED))
		answers = TELL_LEARNED;
	if (e->functions[0])
		return tell_function(skb, to, e->functions[0] & INLINE_PLACE, answers);
	switch (entry_kind(e)) {
	case NEXT_VPORT:
		next = e->next;
		group = entry_group(e);
		break;
	case NEXT_PASS:
		slot = e->path;
		next = 0;
		group = 0;
		if (slot) {
			struct path *path = bpf_map_lookup_elem(&paths, &slot);

			group = path ? path->id << 6 : 0;
		}
		break;
	default:
		return 0; /* the partner finds the same */
	}
	return tell(skb, to, next, group, answers);
}

/* Is the vport at slot a function of this node? */
static __always_inline int function_at(__u32 slot)
{
	struct vport *v = bpf_map_lookup_elem(&vports, &slot);

	return slot && v && v->kind == VPORT_FUNCTION;
}

/* The vport of a function at a place of this node's dispatcher, or 0. */
static __always_inline __u32 vport_at_place(__u32 place)
{
	struct function *f;

	place &= INLINE_PLACE;
	f = bpf_map_lookup_elem(&functions, &place);
	return place && f ? f->vport : 0;
}

/* Go where the entry e leads, through its functions, but with the mirrors that a walk
 * has found, and out at this decision's own edge. 1: it leads out. */
static __always_inline int go_by(struct decision *d, const struct flow *e, const struct node *n)
{
	__u32 slot = e->path, gate;
	struct path *path = bpf_map_lookup_elem(&paths, &slot);

	d->kind = entry_kind(e);
	d->next = e->next;
	d->slot = e->slot;
	d->path_slot = slot;
	d->path = slot && path ? path->id : 0;
	d->group = entry_group(e);
	d->flags = e->flags & FLOW_REVERSE;
	*(__u64 *)d->functions = *(const __u64 *)e->functions;
	gate = led_to(n, d->kind, d->next);
	return gate && (gate == n->edge || other_gate(n, gate));
}

/* Do the rules that pkt.d comes from lead to the function that the partner names, here
 * or there? */
static __always_inline int by_rules(struct decision *d, __u32 next)
{
	__u32 place = d->functions[0] & INLINE_PLACE;
	struct function *f;

	if (!d->functions[0])
		return d->kind == NEXT_VPORT && d->next == next;
	f = bpf_map_lookup_elem(&functions, &place);
	if (!f || f->vport != next || (d->kind != NEXT_VPORT && d->kind != NEXT_EXIT))
		return 0;
	if (d->kind == NEXT_EXIT)
		d->next = d->slot = d->group = 0;
	return 1;
}

/* An entry of this edge that the partner has, too. The gateway where a connection's
 * SYN comes in has the say, so one whose first telling was lost is mended by the
 * next SYN; else, if what the entry leads to is gone here, the partner's next is as
 * good. */
static __always_inline void agree(struct pkt *p, struct flow *e, __u32 next, __u32 slot)
{
	__u32 old = e->slot;
	struct vport *v;

	if (e->seen != p->now)
		e->seen = p->now;
	if (entry_kind(e) != NEXT_VPORT || !next || e->next == next || e->functions[0] || function_at(slot))
		return;
	v = vport_of(&old, e->next);
	if ((p->is & IS_SYN) || !v || v->state == STATE_CLOSED)
		turn_entry(e, NEXT_VPORT, next, slot, 0);
}

/* Is the packet the word of the other gateway? Its vport's slot: pkt.prev_slot. */
static __always_inline int from_partner(struct pkt *p, const struct node *n, __u32 peer)
{
	__u32 partner = other_gate(n, n->edge);
	struct vport *v = vport_of(&p->prev_slot, partner);

	return partner && v && v->peer == peer;
}

/*
 * Where packets of pkt.key go that meet a function first, as the partner says: by
 * the rules from the edge on, or, as answers meet the tenant's chain first, by that
 * tier's. If it runs here, packets of the partner's may have left an entry for
 * answers, which says more.
 */
__noinline int hear_function(__u32 next, __u32 slot)
{
	struct vport *v = bpf_map_lookup_elem(&vports, &slot);
	struct pkt *p = packet();
	struct node *n = this_node();
	struct decision *d;
	struct flow *e;

	if (!p || !n || !v)
		return 0;
	d = &p->d;
	if (!d->matched || !by_rules(d, next)) {
		resolve(LAST_CLASSIFIER, 0);
		if (!d->matched || !by_rules(d, next))
			return 0;
	}
	if (v->kind != VPORT_FUNCTION)
		return 1;
	copy_key(&p->wkey, &p->key, other_gate(n, n->edge));
	e = flow_find(&p->wkey, v->tenant);
	if (!e || vport_at_place(e->functions[0]) != next)
		return 1;
	if (go_by(d, e, n)) {
		d->kind = NEXT_EXIT;
		d->next = d->slot = d->group = 0;
	}
	return 1;
}

/* The mirrors that answers of pkt.key meet before the last element that the packets
 * which they answer have passed, by its group. */
static __always_inline void hear_mirrors(struct pkt *p, const struct node *n, __u32 group)
{
	__u32 i;

	copy_key(&p->rkey, &p->key, n->edge);
	reverse_key(&p->key, &p->rkey, n->edge);
	p->back.mirror_count = 0;
	meet_behind(group ^ 1);
	copy_key(&p->key, &p->rkey, n->edge);
	for (i = 0; i < MAX_MIRRORS; i++) {
		p->d.mirrors[i] = p->back.mirrors[i];
		p->d.mirror_slots[i] = p->back.mirror_slots[i];
	}
	p->d.mirror_count = p->back.mirror_count;
}

/* Where packets of pkt.key go that meet an instance first: next, by its group. pkt.d
 * is what the rules say. */
__noinline int hear_next(__u32 next, __u32 slot, __u32 group, __u32 learned)
{
	struct pkt *p = packet();
	struct node *n = this_node();
	__u32 slot_of_path;
	struct decision *d;
	struct path *path;
	struct group *g;

	if (!p || !n)
		return 0;
	d = &p->d;
	/* Of rules that are no more, of none, or of the other tier. */
	if (d->group != group || d->kind != NEXT_VPORT || has_functions(d)) {
		d->mirror_count = 0;
		clear_functions(d);
		d->path = d->path_slot = d->flags = 0;
		g = bpf_map_lookup_elem(&groups, &group);
		if (group && !g)
			return 0;
		if (group && g) {
			slot_of_path = g->path_slot;
			path = bpf_map_lookup_elem(&paths, &slot_of_path);
			if (path && (path->flags & PATH_CLOSED))
				return 0;
			d->path = g->path;
			d->path_slot = g->path_slot;
			d->flags = g->flags & GROUP_REVERSE ? FLOW_REVERSE : 0;
		}
	}
	if (learned && group)
		hear_mirrors(p, n, group);
	d->kind = NEXT_VPORT;
	d->next = next;
	d->slot = slot;
	d->group = group;
	d->entry = n->edge;
	return 1;
}

/*
 * What the partner tells: where packets of pkt.key go that come in at its edge, with
 * next and group in pkt.d.entry and pkt.d.group. It is inserted if absent.
 */
__noinline int hear_partner(__u32 vni)
{
	__u32 partner, answers, learned, next, group, matched, tenant, slot = 0;
	struct pkt *p = packet();
	struct node *n = this_node();
	struct decision *d;
	struct vport *v;
	struct flow *e;

	if (!p || !n)
		return TC_ACT_SHOT;
	partner = other_gate(n, n->edge);
	if (p->is & (IS_ERROR | IS_NOPORTS))
		return TC_ACT_SHOT;
	answers = vni == partner;
	learned = answers || vni == VNI_LEARNED;
	d = &p->d;
	next = d->entry;
	group = d->group;
	if (next) {
		v = vport_of(&slot, next);
		if (!v || v->state == STATE_CLOSED)
			return TC_ACT_SHOT;
	}
	copy_key(&p->wkey, &p->key, n->edge);
	if (answers)
		reverse_key(&p->wkey, &p->key, n->edge);
	copy_key(&p->key, &p->wkey, n->edge);
	e = flow_established(&p->key);
	if (e && !begins_anew(p, e, tenant_of_path(e->path))) {
		agree(p, e, next, slot);
		return TC_ACT_SHOT;
	}
	d->context = d->path = d->path_slot = d->flags = d->matched = d->first_path = 0;
	d->entry = n->edge;
	resolve(n->edge_table, 0);
	matched = d->matched;
	tenant = tenant_of_path(d->first_path);
	e = matched ? flow_pending(&p->key, tenant) : NULL;
	if (e && !begins_anew(p, e, tenant)) {
		agree(p, e, next, slot);
		return TC_ACT_SHOT;
	}
	if (next && (group == BY_YOUR_RULES || function_at(slot))) {
		if (!hear_function(next, slot))
			return TC_ACT_SHOT; /* they lead elsewhere: so will the packets that come */
	} else if (next) {
		if (!hear_next(next, slot, group, learned))
			return TC_ACT_SHOT;
	} else {
		if (!d->matched || d->path != group >> 6)
			return TC_ACT_SHOT;
		if (d->kind != NEXT_EXIT || has_functions(d)) /* there is what it is led past */
			d->flags |= FLOW_ADOPTED;
		d->kind = NEXT_PASS;
		d->next = d->slot = d->group = 0;
		clear_functions(d);
		d->entry = n->edge;
	}
	if (learned && d->kind == NEXT_VPORT)
		d->flags |= FLOW_LEARNED;
	store_decision(fresh_flow(p), d, n->edge);
	if (matched) {
		flow_begin(p, &p->key, tenant);
		return TC_ACT_SHOT;
	}
	tenant = tenant_of_path(d->path_slot); /* what no rule takes is found at once, or not */
	if (has_room(tenant, 1) && flow_settle(p, &p->key, tenant))
		count_learned(1);
	return TC_ACT_SHOT;
}

#endif
