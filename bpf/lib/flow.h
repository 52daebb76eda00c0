/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Flow entries. An entry is inserted if absent and then read again: whoever
 * came first decides. Once a second a flow refreshes the entries it left at its
 * next hop, so an entry that was evicted there comes back, and the two
 * directions of a one-way flow live equally long.
 */
#ifndef ONPATH_FLOW_H
#define ONPATH_FLOW_H

#include "entry.h"
#include "group.h"
#include "mirrors.h"
#include "ha_sync.h"

/* Count a packet on its entry. */
static __always_inline void touch(struct pkt *p, struct flow *e)
{
	__u8 flags = 0;

	if (!entry_packets(e))
		p->learn = 1; /* the HA peer wrote it */
	__sync_fetch_and_add(&e->packets, p->packets);
	__sync_fetch_and_add(&e->bytes, p->bytes);
	if (e->group & REOPENED)
		note_open(e);
	if (e->seen != p->now || refresh_always) {
		if ((e->flags & FLOW_RST) && e->seen != p->now && !(p->is & IS_RST) && !refresh_always)
			e->flags &= ~FLOW_RST; /* its sender goes on: somebody else's */
		mark_seen(p, e);
		p->learn = 1;
	}
	if (!(p->is & IS_TCP) || (p->is & IS_ERROR))
		return;
	if (!(p->is & IS_RST))
		entry_note_tcp(e, p);
	if (p->is & IS_FIN)
		flags |= FLOW_FIN;
	if (p->is & IS_RST)
		flags |= FLOW_RST;
	if (p->is & IS_ANYSYN) {
		p->learn = 1;
		flags = e->flags & (FLOW_FIN | FLOW_RST);
	} else {
		flags &= ~e->flags;
	}
	if (flags && end_fits(e))
		e->flags = p->is & IS_ANYSYN ? e->flags & ~flags : e->flags | flags;
}

/* LOCAL_… if an address of pkt.key is this node's, else 0. */
static __always_inline __u32 is_local(struct pkt *p, const __u8 *a)
{
	__u32 *what;

	copy_addr(p->akey.addr, a);
	p->akey.family = p->family;
	what = bpf_map_lookup_elem(&locals, &p->akey);
	return what ? *what : 0;
}

/* Write pkt.d as the entry of pkt.key, which was just looked for and is not there:
 * counted before it is inserted, it need not be read again. 0: it came meanwhile. */
static __always_inline int begin_flow(struct pkt *p)
{
	store_decision(fresh_flow(p), &p->d, p->key.scope);
	touch(p, &p->fresh);
	p->learn = 1;
	return flow_begin(p, &p->key, p->tenant);
}

/* A flow begins, and others of its addresses are to meet the same member. */
static __always_inline void note_affinity(struct pkt *p)
{
	if (!p->choice.together || p->d.kind != NEXT_VPORT || p->d.next != p->choice.together)
		return;
	p->choice.with.seen = p->now;
	bpf_map_update_elem(&affinities, &p->choice.key, &p->choice.with, BPF_ANY);
}

/* Write pkt.d as the entry of pkt.key, unless there is one that is decided: then
 * that one becomes pkt.d. One of context only is completed in place. */
__noinline int write_flow(void)
{
	struct pkt *p = packet();
	struct flow *e;
	__u32 charged;

	if (!p)
		return 0;
	note_affinity(p);
	if (p->absent) {
		p->absent = 0;
		if (begin_flow(p))
			return 0;
	}
	e = flow_find(&p->key, p->tenant);
	if (e && entry_kind(e) == NEXT_PENDING) {
		charged = charged_tenant(e, p->tenant);
		store_decision(e, &p->d, p->key.scope);
		entry_decided(e, p);
		move_quota(e, &p->key, charged, p->tenant);
		touch(p, e);
		p->learn = 1;
		return 0;
	}
	if (!e) {
		store_decision(fresh_flow(p), &p->d, p->key.scope);
		if (p->d.flags & FLOW_EMITTED) {
			if (!ensure_established(p, &p->key, p->tenant))
				return DROP_QUOTA;
			count_learned(1);
			e = flow_established(&p->key);
		} else {
			flow_begin(p, &p->key, p->tenant);
			e = flow_find(&p->key, p->tenant);
		}
		if (!e)
			return 0;
	}
	touch(p, e);
	load_decision(&p->d, e);
	p->learn = 1;
	return 0;
}

/* In the middle of a TCP connection? */
static __always_inline int runs(const struct pkt *p)
{
	return p->key.proto == IPPROTO_TCP && !(p->is & (IS_SYN | IS_ERROR | IS_NOPORTS));
}

#define MAX_SEARCHED 8 /* members of this node */

/*
 * A running connection came to a node that knows nothing of it, because the
 * instance that it passed there died, and goes on to an element whose instances
 * know their connections: lost: reset. The instance that hashing chooses now may
 * be another than it was when the connection began. So the members are asked in an
 * order on which all nodes agree, that one last, and the packet goes to the next
 * one that knows it or is on another node, which searches on: pkt.d. The entries that
 * the reply leaves then lead the way. tried: the member that the packet came for,
 * which does not know it, or 0.
 */
__noinline int find_owner(__u32 tried)
{
	struct pkt *p = packet();
	struct group *g;
	struct vport *v;
	__u32 id, i, slot;

	if (!p)
		return 0;
	id = p->d.group;
	g = bpf_map_lookup_elem(&groups, &id);
	if (!id || !g || !(g->flags & GROUP_RESET) || g->count < 2 || !choose(id, 0, 0))
		return 0;
	p->first = p->member;
	p->first_slot = p->member_slot;
	if (tried == p->first || function_at(p->first_slot))
		return 0;
	p->floor_weight = 0;
	if (tried)
		search_behind(id, tried);
	for (i = 0; i < MAX_SEARCHED; i++) {
		if (!search(id))
			break;
		slot = p->member_slot;
		v = vport_at(slot, p->member);
		if (!v)
			break;
		reverse_key(&p->rkey, &p->key, v->id);
		if (v->kind != VPORT_INSTANCE || flow_find(&p->rkey, v->tenant)) {
			p->d.next = p->member;
			p->d.slot = p->member_slot;
			return 0;
		}
		p->floor = p->best;
		p->floor_weight = p->best_weight;
	}
	p->d.next = p->first;
	p->d.slot = p->first_slot;
	return 0;
}

#define REPLY_FRESH 4 /* seconds */

/* Is an entry too old to show that a connection goes on? */
static __always_inline int is_idle(const struct pkt *p, const struct flow *e)
{
	__u32 rest = (p->now - e->seen) & SEEN_MASK;

	return rest > REPLY_FRESH && rest < SEEN_MASK / 2 && !refresh_always;
}

/* Has the connection of pkt.rkey ended, as its entries here show? With idle: or may what they
 * show belong to one before? */
__noinline int is_over(__u32 idle)
{
	struct node *n = this_node();
	struct pkt *p = packet();
	__u32 scope, slot = 0;
	struct flow *e, *mate;
	struct vport *v;

	if (!p || !n)
		return 1;
	e = flow_find(&p->rkey, p->back_tenant);
	if (!e || (idle && is_idle(p, e)))
		return 1;
	scope = p->rkey.scope;
	v = vport_of(&slot, scope);
	if (v && v->kind == VPORT_INSTANCE)
		scope = v->other;
	else if (scope != n->edge)
		scope = e->next; /* a relay's */
	reverse_key(&p->wkey, &p->rkey, scope);
	mate = flow_find(&p->wkey, p->back_tenant);
	return has_ended(e, mate);
}

/* Has the other direction's SYN come out of the vport to which e leads? An adopted connection
 * began before, and has the bit for something else. */
static __always_inline int syn_replied(const struct flow *e)
{
	return (e->kind & SYN_REPLIED) && !adopted(e);
}

/*
 * Is a connection known to have begun with the member to which its reverse entry e leads?
 * Members of an element that resets what it loses end TCP themselves: no other can take
 * it over while that one is open. One that died and serves again, or that could not be
 * reached for a while, may have a connection left by the same ports, and still speak; but
 * where a connection begins, it is.
 */
static __always_inline int began_with(const struct pkt *p, const struct flow *e, __u32 id)
{
	struct group *g;

	if (!syn_replied(e) || p->key.proto != IPPROTO_TCP || (p->is & IS_SYN))
		return 0;
	g = bpf_map_lookup_elem(&groups, &id);
	return g && (g->flags & GROUP_RESET) && !is_over(1);
}

/* May the reverse entry e, which leads to e->next, be led to where the
 * packets come from now? Only within the same element (a re-pick) or when what
 * it leads to is gone; never for a flow that an instance began. Else a packet in
 * the other direction that comes by another way, forged perhaps, would lead the
 * flow past elements. */
#define KEEP  0
#define RETARGET  1 /* to another instance of its element, if the packet has come from that */
#define REPLACE 2 /* it knows nothing yet, or what it knows is gone */

static __always_inline int may_retarget(struct pkt *p, struct flow *e, __u32 next)
{
	__u32 slot = entry_slot(e), group, kind = entry_kind(e);
	struct vport *v;
	int how;

	if (e->next == next && kind == NEXT_VPORT)
		return KEEP;
	if (p->d.flags & FLOW_EMITTED)
		return KEEP;
	if (kind == NEXT_PENDING)
		return REPLACE;
	if ((p->is & IS_SYN) && !(e->flags & FLOW_EMITTED) && (adopted(e) || is_over(0)))
		return REPLACE;
	if (kind != NEXT_VPORT)
		return KEEP; /* replies leave: the elements before were passed by */
	group = entry_group(e);
	how = next && group && is_member(group, next) && !began_with(p, e, group) ? RETARGET : KEEP;
	v = vport_of(&slot, e->next);
	return how | (!v || v->state == STATE_CLOSED ? REPLACE : KEEP);
}

/* d gets the path of its group, without a group that of another decision. */
static __always_inline void path_of_group(struct decision *d, const struct decision *other)
{
	__u32 id = d->group;
	struct group *g;

	d->path = other->path;
	d->path_slot = other->path_slot;
	if (!id || id >> 6 == d->path)
		return;
	g = bpf_map_lookup_elem(&groups, &id);
	if (g) {
		d->path = g->path;
		d->path_slot = g->path_slot;
	} else {
		d->group = 0;
	}
}

/* What is done with replies. A next hop of 0: they leave. */
static __always_inline void set_reply_target(struct pkt *p, __u32 kind, __u32 next, __u32 slot)
{
	p->reply.kind = kind;
	p->reply.next = next;
	p->reply.slot = slot;
}

/* A connection begins by a packet out of the vport to which e will lead its replies. If
 * this node holds that vport closed, it has not heard yet that the vport is open again:
 * the vport's own node has let the packet out, and knows the vport's state best. */
static __always_inline void note_reopened(const struct pkt *p, struct flow *e, const struct reply *to)
{
	__u32 slot = to->slot;
	struct vport *v;

	if (!(p->is & IS_SYN) || to->kind != NEXT_VPORT || e->next != to->next || !e->group)
		return;
	v = vport_of(&slot, to->next);
	if (v && v->kind == VPORT_REMOTE && v->state == STATE_CLOSED)
		e->group |= REOPENED;
}

/* Mark e, the entry of the other direction, as replied to. If the packet answers a SYN,
 * note the number that the other end must acknowledge. */
static __always_inline void note_reply(struct pkt *p, struct flow *e)
{
	if (p->is & (IS_ERROR | IS_NOPORTS))
		return;
	if ((p->is & (IS_ANYSYN | IS_SYN)) == IS_ANYSYN && !flow_established(&p->rkey))
		expect_ack(e, p->seq + 1);
	if (!(e->kind & REPLIED))
		entry_set_kind(e, e->kind | REPLIED);
}

/* A packet of the other direction has come out of a vport: perhaps where e leads. Only
 * what belongs to a handshake shows that the connection is with that. */
static __always_inline void note_syn_reply(const struct pkt *p, struct flow *e, __u32 from)
{
	__u8 kind = e->kind;

	if (!(p->is & IS_ANYSYN) || (p->is & (IS_ERROR | IS_NOPORTS)))
		return;
	if ((kind & KIND_MASK) == NEXT_VPORT && e->next == from && !(kind & SYN_REPLIED) && !adopted(e))
		entry_set_kind(e, kind | SYN_REPLIED);
}

/* Does e go on to lead to a member that has replied, though another one speaks? Then
 * what that one says is no use of e. */
static __always_inline int is_refused(const struct flow *e, const struct reply *to)
{
	return syn_replied(e) && to->kind == NEXT_VPORT && e->next != to->next;
}

/* The entry for the replies: rkey → pkt.reply, in the pending table of
 * pkt.back_tenant. Replies meet what a walk from the table meets (0:
 * none). Returns 0 or, if it must be established at once (pkt.establish) and there is
 * no capacity, a drop reason. */
static __always_inline int write_reply_entry(struct pkt *p, __u32 table, __u32 back)
{
	struct flow *e = flow_find(&p->rkey, p->back_tenant);
	const struct reply *to = &p->reply;
	struct node *n = this_node();
	__u32 edge, charged;
	int change;

	if (e)
		note_reply(p, e);
	if (e && (e->slot & SYN_NOTED) && (e->flags & FLOW_AT_EDGE) && (p->is & (IS_ANYSYN | IS_SYN)) == IS_ANYSYN) {
		e->flags |= FLOW_RST; /* what leaves to its receiver accepts that SYN (note_accepting) */
		p->is |= IS_ACCEPTING;
		return 0;
	}
	edge = n ? entry_target(n, to->kind, to->next) : 0;
	if (e && n && leads_to_ha_peer(n, e, edge)) {
		/* Where a direction leaves that has come in by itself, its replies do not say. */
		if (e->flags & FLOW_LEARNED) {
			move_gateway(e, edge);
			e->flags |= FLOW_LEARNED;
		}
		mark_seen(p, e);
		return 0;
	}
	change = e && (entry_kind(e) != to->kind || e->next != to->next) ? may_retarget(p, e, to->next) : KEEP;
	if (e && !((p->d.flags | e->flags) & FLOW_EMITTED) && path_replaced(e, p->d.path_slot))
		change = REPLACE;
	if (e && change == KEEP) {
		note_reopened(p, e, to);
		note_syn_reply(p, e, to->next);
		if (!is_refused(e, to))
			mark_seen(p, e);
		return 0;
	}
	p->back.mirror_count = 0;
	p->back.group = 0;
	if (table)
		resolve(table, back);
	else if (p->d.context)
		mirrors_behind(p->d.context);
	else if ((p->is & IS_RELAYED) && p->d.group) {
		mirrors_behind(p->d.group); /* out here, behind functions that another node requested */
		p->back.group = 0;
	}
	/* Of the element it came from, which may be another tier's, or stand before one
	 * that was passed by. The walk knows only where nothing else does. */
	if (to->kind == NEXT_VPORT && p->d.context)
		p->back.group = p->d.context ^ 1;
	else if (to->kind == NEXT_VPORT && n && p->rkey.scope == n->edge)
		p->back.group = p->reply_group;
	if (p->back.context && to->next == p->d.entry)
		p->back.group = 0; /* to an instance from where the flow entered */
	if ((p->is & IS_RELAYED) && to->next == p->prev && to->next == p->d.entry)
		p->back.group = p->requested_group ^ 1; /* from the first function back to the edge */
	if (change == RETARGET && entry_group(e) != p->back.group) {
		mark_seen(p, e); /* the instance serves two chains: this packet is the other's */
		return 0;
	}
	p->back.kind = to->kind;
	p->back.next = to->next;
	p->back.slot = to->slot;
	/* What comes in at this edge has entered here, wherever the packet had. */
	p->back.entry = edge && n && p->rkey.scope == n->edge && to->kind == NEXT_VPORT ? n->edge : p->d.entry;
	p->back.flags = ((p->d.flags & FLOW_REVERSE) ^ FLOW_REVERSE) | FLOW_LEARNED | (p->d.flags & FLOW_ADOPTED);
	path_of_group(&p->back, &p->d);
	reverse_functions(&p->back, &p->d);
	if (e && flow_find(&p->rkey, p->back_tenant) != e)
		e = NULL; /* it was evicted meanwhile, and may be another flow's */
	if (e) {
		charged = charged_tenant(e, p->back_tenant);
		store_decision(e, &p->back, p->rkey.scope);
		note_reopened(p, e, to);
		note_syn_reply(p, e, to->next);
		move_quota(e, &p->rkey, charged, p->back_tenant);
		entry_set_seen(e, p->now);
		entry_decided(e, p);
		p->must_sync = 1;
		return 0;
	}
	store_decision(fresh_flow(p), &p->back, p->rkey.scope);
	note_reopened(p, &p->fresh, to);
	note_syn_reply(p, &p->fresh, to->next);
	if (!p->establish) {
		note_reply(p, &p->fresh);
		flow_begin(p, &p->rkey, p->back_tenant);
		return 0;
	}
	if (!has_capacity(charged_tenant(&p->fresh, p->back_tenant), 1) || !ensure_established(p, &p->rkey, p->back_tenant))
		return DROP_QUOTA;
	count_learned(1);
	return 0;
}

#endif
