/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * An HA pair of gateways. Packets of one flow may come in at either, and the two
 * directions at different ones. Both choose alike what they choose by their
 * tables; but weights and instances change and flows stay where they are, and
 * instances begin flows of their own. So each synchronizes with the other the entries that
 * it writes at its edge, before the packet that made it write them goes on, and
 * again with every SYN and every 2^SYNC_EVERY seconds while they are used.
 *
 * The message is the packet itself, sent through the tunnel from no vport (0, which
 * none has): instead of the entry vport stands the one that the entry leads to, 0
 * for what passes the chain by. The VNI says whose packets the entry is for: the
 * receiver's edge, those like this one; the sender's, its replies; VNI_LEARNED, those
 * like this one, which replies to others.
 *
 * Replies may be faster than the message about them. Where the tables say another way
 * than the message, the HA peer is queried first (lib/ha_query.h).
 */
#ifndef ONPATH_HA_SYNC_H
#define ONPATH_HA_SYNC_H

#include "entry.h"
#include "mirrors.h"
#include "tunnel.h"

#define BY_RULES 1 /* for a group: next is a function, found by the receiver's own rules */

/* Whose packets an entry is for that is synchronized. */
#define SYNC_FLOW   0
#define SYNC_REPLIES 1
#define SYNC_LEARNED 2 /* these, which reply to others */
#define VNI_LEARNED  0xffffff /* 0 is a query of agents (lib/probe.h) */

/* The other edge of the pair, if id is one of them; else 0. */
static __always_inline __u32 other_gateway(const struct node *n, __u32 id)
{
	if (!id)
		return 0;
	if (id == n->gateways[0])
		return n->gateways[1];
	return id == n->gateways[1] ? n->gateways[0] : 0;
}

/* The vport that packets of an entry go to; this node's edge for those that leave. */
static __always_inline __u32 entry_target(const struct node *n, __u32 kind, __u32 next)
{
	return kind == NEXT_EXIT ? n->edge : kind == NEXT_VPORT ? next : 0;
}

/* Does the entry lead to the edge that is id's HA peer? */
static __always_inline int leads_to_ha_peer(const struct node *n, const struct flow *e, __u32 id)
{
	return id && other_gateway(n, entry_target(n, entry_kind(e), e->next)) == id;
}

/*
 * Packets of an entry at an instance have come in at the HA peer: they leave
 * there, too. So each direction leaves where it comes in.
 */
static __always_inline void move_gateway(struct flow *e, __u32 entry)
{
	struct node *n = this_node();
	__u32 kind = entry_kind(e);

	if (!n || !entry || other_gateway(n, e->entry) != entry)
		return;
	if (entry_target(n, kind, e->next) == e->entry) {
		if (entry == n->edge)
			retarget(e, NEXT_EXIT, 0, 0, e->context);
		else
			retarget(e, NEXT_VPORT, entry, 0, e->context);
	}
	e->entry = entry;
	e->flags &= ~FLOW_LEARNED;
}

/* Has the flow of pkt.key, on its way to the vport at slot, come in at the other
 * gateway before? */
__noinline int gateway_moved(__u32 slot)
{
	struct vport *v = bpf_map_lookup_elem(&vports, &slot);
	struct node *n = this_node();
	struct pkt *p = packet();
	struct flow *e;

	if (!p || !n || !v || !other_gateway(n, p->d.entry) || v->kind != VPORT_INSTANCE)
		return 0;
	copy_key(&p->wkey, &p->key, v->other);
	e = flow_find(&p->wkey, v->tenant);
	return e && other_gateway(n, e->entry) == p->d.entry;
}

/* Send the HA peer, at slot to, that packets of pkt.key go to next by group; or, with
 * replies, theirs. The frame itself keeps its addresses. */
__noinline int sync_entry(struct __sk_buff *skb, __u32 to, __u32 next, __u32 group, __u32 replies)
{
	struct vport *v = bpf_map_lookup_elem(&vports, &to);
	struct pkt *p = packet();
	struct node *n = this_node();

	if (!p || !n || !v)
		return 0;
	if (!encapsulate(skb, to, 0, next, group)) {
		if (replies)
			p->tunnel.tunnel_id = replies == SYNC_REPLIES ? n->edge : VNI_LEARNED;
		if (!replies || !bpf_skb_set_tunnel_key(skb, &p->tunnel, TUNNEL_KEY_SIZE, tunnel_flags(p, v->peer)))
			bpf_clone_redirect(skb, n->tunnel_ifindex, 0);
	}
	bpf_skb_store_bytes(skb, 0, p->macs, 12, 0);
	return 0;
}

/* The same of packets that meet a function first, which runs at one gateway of the
 * pair: the HA peer's own rules lead it there. */
static __always_inline int sync_function(struct __sk_buff *skb, __u32 to, __u32 index, __u32 replies)
{
	struct function *f = bpf_map_lookup_elem(&functions, &index);

	return f && f->vport ? sync_entry(skb, to, f->vport, BY_RULES, replies) : 0;
}

/* Send the HA peer the entry of pkt.key, or of pkt.rkey: the replies'. */
__noinline int sync_ha_peer(struct __sk_buff *skb, __u32 replies)
{
	struct pkt *p = packet();
	struct node *n = this_node();
	__u32 slot, to = 0, group, next;
	struct vport *v;
	struct flow *e;

	if (!p || !n || !n->gateways[0] || p->tags || skb->vlan_present ||
	    (p->is & (IS_ERROR | IS_NOPORTS | IS_LATER | IS_HOST | IS_TAPPED)))
		return 0;
	v = vport_of(&to, other_gateway(n, n->edge));
	if (!v || v->kind != VPORT_REMOTE || v->state == STATE_CLOSED)
		return 0;
	if (replies)
		reverse_key(&p->rkey, &p->key, n->edge);
	if (replies)
		e = flow_find(&p->rkey, p->back_tenant);
	else
		e = flow_find(&p->key, p->tenant);
	if (!e)
		return 0;
	if (!replies && (e->flags & FLOW_LEARNED))
		replies = SYNC_LEARNED;
	if (e->functions[0])
		return sync_function(skb, to, e->functions[0] & INLINE_SLOT, replies);
	switch (entry_kind(e)) {
	case NEXT_VPORT:
		next = e->next;
		group = entry_group(e);
		break;
	case NEXT_PASS:
		slot = entry_path(e);
		next = 0;
		group = 0;
		if (slot) {
			struct path *path = bpf_map_lookup_elem(&paths, &slot);

			group = path ? path->id << 6 : 0;
		}
		break;
	default:
		return 0; /* the HA peer finds the same */
	}
	return sync_entry(skb, to, next, group, replies);
}

/* The vport of a function in a slot of this node's dispatcher, or 0. */
static __always_inline __u32 vport_of_function(__u32 index)
{
	struct function *f;

	index &= INLINE_SLOT;
	f = bpf_map_lookup_elem(&functions, &index);
	return index && f ? f->vport : 0;
}

/* Go where the entry e leads, through its functions, but with the mirrors that a walk
 * has found, and out at this decision's own edge. 1: it leads out. */
static __always_inline int follow_entry(struct decision *d, const struct flow *e, const struct node *n)
{
	__u32 slot = entry_path(e), gateway;
	struct path *path = bpf_map_lookup_elem(&paths, &slot);

	d->kind = entry_kind(e);
	d->next = e->next;
	d->slot = entry_slot(e);
	d->path_slot = slot;
	d->path = slot && path ? path->id : 0;
	d->group = entry_group(e);
	d->flags = e->flags & FLOW_REVERSE;
	*(__u64 *)d->functions = *(const __u64 *)e->functions;
	gateway = entry_target(n, d->kind, d->next);
	return gateway && (gateway == n->edge || other_gateway(n, gateway));
}

/* Do the rules that pkt.d comes from lead to the function that the HA peer names, here
 * or there? */
static __always_inline int rules_agree(struct decision *d, __u32 next)
{
	__u32 index = d->functions[0] & INLINE_SLOT;
	struct function *f;

	if (!d->functions[0])
		return d->kind == NEXT_VPORT && d->next == next;
	f = bpf_map_lookup_elem(&functions, &index);
	if (!f || f->vport != next || (d->kind != NEXT_VPORT && d->kind != NEXT_EXIT))
		return 0;
	if (d->kind == NEXT_EXIT)
		d->next = d->slot = d->group = 0;
	return 1;
}

/* An entry of this edge that the HA peer has, too. The gateway where a connection's
 * SYN comes in decides, so one whose first message was lost is mended by the
 * next SYN; else, if what the entry leads to is gone here, the HA peer's next is as
 * good. */
static __always_inline void reconcile(struct pkt *p, struct flow *e, __u32 next, __u32 slot)
{
	__u32 old = entry_slot(e);
	struct vport *v;

	if (e->seen != p->now)
		entry_set_seen(e, p->now);
	if (entry_kind(e) != NEXT_VPORT || !next || e->next == next || e->functions[0] || function_at(slot))
		return;
	v = vport_of(&old, e->next);
	if ((p->is & IS_SYN) || !v || v->state == STATE_CLOSED)
		retarget(e, NEXT_VPORT, next, slot, 0);
}

/* Is the packet a message of the HA peer? Its vport's slot: pkt.prev_slot. */
static __always_inline int is_from_ha_peer(struct pkt *p, const struct node *n, __u32 peer)
{
	__u32 ha_peer = other_gateway(n, n->edge);
	struct vport *v = vport_of(&p->prev_slot, ha_peer);

	return ha_peer && v && v->peer == peer;
}

/*
 * Where packets of pkt.key go that meet a function first, as the HA peer says: by
 * the rules from the edge on, or, as replies meet the tenant's chain first, by that
 * tier's. If it runs here, packets of the HA peer's may have left an entry for
 * replies, which says more.
 */
__noinline int synced_function(__u32 next, __u32 slot)
{
	struct vport *v = bpf_map_lookup_elem(&vports, &slot);
	struct pkt *p = packet();
	struct node *n = this_node();
	struct decision *d;
	struct flow *e;

	if (!p || !n || !v)
		return 0;
	d = &p->d;
	if (!d->matched || !rules_agree(d, next)) {
		resolve(LAST_CLASSIFIER, 0);
		if (!d->matched || !rules_agree(d, next))
			return 0;
	}
	if (v->kind != VPORT_FUNCTION)
		return 1;
	copy_key(&p->wkey, &p->key, other_gateway(n, n->edge));
	e = flow_find(&p->wkey, v->tenant);
	if (!e || vport_of_function(e->functions[0]) != next)
		return 1;
	if (follow_entry(d, e, n)) {
		d->kind = NEXT_EXIT;
		d->next = d->slot = d->group = 0;
	}
	return 1;
}

/* The mirrors that replies of pkt.key meet before the last element that the packets
 * to which they reply have passed, by its group. */
static __always_inline void synced_mirrors(struct pkt *p, const struct node *n, __u32 group)
{
	__u32 i;

	copy_key(&p->rkey, &p->key, n->edge);
	reverse_key(&p->key, &p->rkey, n->edge);
	p->back.mirror_count = 0;
	mirrors_behind(group ^ 1);
	copy_key(&p->key, &p->rkey, n->edge);
	for (i = 0; i < MAX_MIRRORS; i++) {
		p->d.mirrors[i] = p->back.mirrors[i];
		p->d.mirror_slots[i] = p->back.mirror_slots[i];
	}
	p->d.mirror_count = p->back.mirror_count;
}

/* Where packets of pkt.key go that meet an instance first: next, by its group. pkt.d
 * is what the rules say. */
__noinline int synced_next(__u32 next, __u32 slot, __u32 group, __u32 learned)
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
		synced_mirrors(p, n, group);
	d->kind = NEXT_VPORT;
	d->next = next;
	d->slot = slot;
	d->group = group;
	d->entry = n->edge;
	return 1;
}

/*
 * A message of the HA peer: where packets of pkt.key go that come in at its edge, with
 * next and group in pkt.d.entry and pkt.d.group. It is inserted if absent.
 */
__noinline int receive_sync(__u32 vni)
{
	__u32 ha_peer, replies, learned, next, group, matched, tenant, slot = 0;
	struct pkt *p = packet();
	struct node *n = this_node();
	struct decision *d;
	struct vport *v;
	struct flow *e;

	if (!p || !n)
		return TC_ACT_SHOT;
	ha_peer = other_gateway(n, n->edge);
	if (p->is & (IS_ERROR | IS_NOPORTS))
		return TC_ACT_SHOT;
	replies = vni == ha_peer;
	learned = replies || vni == VNI_LEARNED;
	d = &p->d;
	next = d->entry;
	group = d->group;
	if (next) {
		v = vport_of(&slot, next);
		if (!v || v->state == STATE_CLOSED)
			return TC_ACT_SHOT;
	}
	copy_key(&p->wkey, &p->key, n->edge);
	if (replies)
		reverse_key(&p->wkey, &p->key, n->edge);
	copy_key(&p->key, &p->wkey, n->edge);
	e = flow_established(&p->key);
	if (e && !begins_anew(p, tenant_of_path(entry_path(e)))) {
		reconcile(p, e, next, slot);
		return TC_ACT_SHOT;
	}
	d->context = d->path = d->path_slot = d->flags = d->matched = d->first_path = 0;
	d->entry = n->edge;
	resolve(n->edge_table, 0);
	matched = d->matched;
	tenant = tenant_of_path(d->first_path);
	e = matched ? flow_pending(&p->key, tenant) : NULL;
	if (e && !begins_anew(p, tenant)) {
		reconcile(p, e, next, slot);
		return TC_ACT_SHOT;
	}
	if (next && (group == BY_RULES || function_at(slot))) {
		if (!synced_function(next, slot))
			return TC_ACT_SHOT; /* they lead elsewhere: so will the packets that come */
	} else if (next) {
		if (!synced_next(next, slot, group, learned))
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
	if ((p->is & IS_SYN) && adopted(&p->fresh)) {
		entry_set_generation(&p->fresh, 0);
		p->fresh.slot |= SYN_NOTED;
	}
	if (matched) {
		flow_begin(p, &p->key, tenant);
		return TC_ACT_SHOT;
	}
	tenant = tenant_of_path(d->path_slot); /* what no rule takes is found at once, or not */
	if (has_capacity(tenant, 1) && ensure_established(p, &p->key, tenant))
		count_learned(1);
	return TC_ACT_SHOT;
}

#endif
