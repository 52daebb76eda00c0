/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Flow entries. An entry is inserted if absent and then read again: whoever
 * came first decides. Once a second a flow refreshes the entries it left at its
 * next hop, so an entry that was evicted there comes back, and the two
 * directions of a one-way flow live equally long.
 */
#ifndef ONPATH_FLOW_H
#define ONPATH_FLOW_H

#include "count.h"
#include "group.h"

static __always_inline void load_decision(struct decision *d, const struct flow *e)
{
	d->kind = e->kind;
	d->next = e->next;
	d->slot = e->slot;
	d->context = e->context;
	d->group = e->group;
	d->entry = e->entry;
	d->path = e->path;
	d->path_slot = e->path_slot;
	d->flags = e->flags;
	d->tenant = 0;
	d->bypassed = 0;
	d->mirrors[0] = e->mirrors[0];
	d->mirrors[1] = e->mirrors[1];
	d->mirror_slots[0] = e->mirror_slots[0];
	d->mirror_slots[1] = e->mirror_slots[1];
	d->mirror_count = !e->mirrors[0] ? 0 : !e->mirrors[1] ? 1 : 2;
}

static __always_inline void store_decision(struct flow *e, const struct decision *d)
{
	e->kind = d->kind;
	e->flags = d->flags;
	e->slot = d->slot;
	e->next = d->next;
	e->context = d->context;
	e->group = d->group;
	e->entry = d->entry;
	e->path = d->path;
	e->path_slot = d->path_slot;
	e->tenant = d->tenant;
	e->mirrors[0] = d->mirror_count > 0 ? d->mirrors[0] : 0;
	e->mirrors[1] = d->mirror_count > 1 ? d->mirrors[1] : 0;
	e->mirror_slots[0] = d->mirror_slots[0];
	e->mirror_slots[1] = d->mirror_slots[1];
}

/* LOCAL_… if an address of pkt.key is this node's, else 0. */
static __always_inline __u32 is_local(struct pkt *p, const __u8 *a)
{
	__u32 *what;

	copy_addr(p->akey.addr, a);
	p->akey.family = p->key.family;
	what = bpf_map_lookup_elem(&locals, &p->akey);
	return what ? *what : 0;
}

/* Count a packet on its entry. */
static __always_inline void touch(struct pkt *p, struct flow *e)
{
	__u8 flags = 0;

	__sync_fetch_and_add(&e->packets, p->packets);
	__sync_fetch_and_add(&e->bytes, p->bytes);
	if (e->seen != p->now) {
		e->seen = p->now;
		p->learn = 1;
	}
	if (!(p->is & IS_TCP) || (p->is & IS_ERROR))
		return;
	e->ack = p->ack;
	if (p->is & IS_FIN)
		flags |= FLOW_FIN;
	if (p->is & IS_RST)
		flags |= FLOW_RST;
	if (flags && (e->flags & flags) != flags)
		e->flags |= flags;
	if ((p->is & IS_SYN) && (e->flags & (FLOW_FIN | FLOW_RST))) {
		e->flags &= ~(FLOW_FIN | FLOW_RST); /* the ports are used again */
		p->learn = 1;
	}
}

/* Write pkt.d as the entry of pkt.key, unless there is one that is decided: then
 * that one becomes pkt.d. A pending entry is completed in place. */
__noinline int write_flow(void)
{
	struct pkt *p = packet();
	struct flow *e, *f;

	if (!p)
		return 0;
	e = bpf_map_lookup_elem(&flows, &p->key);
	if (e && e->kind == NEXT_PENDING) {
		store_decision(e, &p->d);
		touch(p, e);
		p->learn = 1;
		return 0;
	}
	if (!e) {
		f = &p->fresh;
		store_decision(f, &p->d);
		f->seen = p->now;
		f->ack = p->ack;
		f->packets = 0;
		f->bytes = 0;
		if (bpf_map_update_elem(&flows, &p->key, f, BPF_NOEXIST) == 0)
			count_learned(1);
		e = bpf_map_lookup_elem(&flows, &p->key);
		if (!e)
			return 0;
	}
	touch(p, e);
	load_decision(&p->d, e);
	p->learn = 1;
	return 0;
}

/* May the reverse entry e, which leads to e->next, be turned to where the
 * packets come from now? Only within the same element (a re-pick) or when what
 * it leads to is gone; never for a flow that an instance began. */
static __always_inline int may_turn(struct pkt *p, struct flow *e, __u32 next)
{
	__u32 slot = e->slot, via;
	struct vport *v;

	if (e->next == next && e->kind == NEXT_VPORT)
		return 0;
	if (p->d.flags & FLOW_EMITTED)
		return 0;
	if (e->kind == NEXT_PENDING)
		return 1;
	if (e->kind == NEXT_PASS)
		return 0;
	via = p->d.group ? p->d.group : p->d.context; /* the element it was in, or goes to */
	if (via && (e->context ? e->context : e->group) == (via ^ 1))
		return 1;
	if (e->kind != NEXT_VPORT)
		return 0;
	v = vport_of(&slot, e->next);
	return !v || v->state == STATE_CLOSED;
}

#define WALKED 0xffffffff

/* One step of meet_behind: the table behind an element, pkt.table. Returns the
 * mirror found there, by which the answers come in, 0 for another table, or
 * WALKED. */
__noinline __u32 meet_step(void)
{
	struct pkt *p = packet();
	struct group *g;
	__u32 id;

	if (!p || !classify(p->table, 0))
		return WALKED;
	id = p->arg;
	if (p->action == ACT_TABLE) {
		p->table = id;
		return 0;
	}
	if (p->action != ACT_GROUP)
		return WALKED;
	g = bpf_map_lookup_elem(&groups, &id);
	if (!g || !(g->flags & GROUP_MIRROR))
		return WALKED;
	p->table = g->then;
	return id ^ 1;
}

/* Answers to a packet that has left its last element meet, as they come in, the
 * mirrors that it met behind that element, the last one first. */
__noinline int meet_behind(__u32 id)
{
	struct group *g = bpf_map_lookup_elem(&groups, &id);
	__u32 i, met;
	struct pkt *p = packet();

	if (!g || !p)
		return 0;
	p->back.group = id ^ 1;
	p->table = g->then;
	p->met[0] = p->met[1] = 0;
	for (i = 0; i < MAX_STEPS; i++) {
		met = meet_step();
		if (met == WALKED)
			break;
		if (!met)
			continue;
		p->met[1] = p->met[0];
		p->met[0] = met;
	}
	if (p->met[0] && choose(p->met[0], 1))
		add_mirror(p, &p->back);
	if (p->met[1] && choose(p->met[1], 1))
		add_mirror(p, &p->back);
	return 0;
}

/* The entry for the answers: rkey → where this packet came from. back must have
 * been resolved from the given table (0: none). */
static __always_inline void write_answer(struct pkt *p, __u32 kind, __u32 next, __u32 slot,
					 __u32 table, __u32 back)
{
	struct flow *e = bpf_map_lookup_elem(&flows, &p->rkey);
	struct flow *f = &p->fresh;

	if (e && (e->kind != kind || e->next != next) && may_turn(p, e, next)) {
		e->kind = kind;
		e->slot = slot;
		e->next = next;
		e->context = p->back.context;
		e->seen = p->now;
		return;
	}
	if (e) {
		if (e->seen != p->now)
			e->seen = p->now;
		return;
	}
	p->back.mirror_count = 0;
	p->back.group = 0;
	if (table)
		resolve(table, back);
	else if (p->d.context)
		meet_behind(p->d.context);
	if (!p->back.group && kind == NEXT_VPORT && p->d.context)
		p->back.group = p->d.context ^ 1; /* of another tier: the element it came from */
	p->back.kind = kind;
	p->back.next = next;
	p->back.slot = slot;
	p->back.entry = p->d.entry;
	p->back.path = p->d.path;
	p->back.path_slot = p->d.path_slot;
	p->back.flags = ((p->d.flags & FLOW_REVERSE) ^ FLOW_REVERSE) | FLOW_LEARNED;
	p->back.tenant = 0;
	store_decision(f, &p->back);
	f->seen = p->now;
	f->ack = 0;
	f->packets = 0;
	f->bytes = 0;
	if (bpf_map_update_elem(&flows, &p->rkey, f, BPF_NOEXIST) == 0)
		count_learned(1);
}

/*
 * What an instance's vport must know before it gets a packet of pkt.key's
 * tuple: where answers go (reverse entry), and what comes next when the packet
 * comes out again (context entry at the other side).
 */
__noinline int learn_at(__u32 slot)
{
	struct vport *v = bpf_map_lookup_elem(&vports, &slot);
	struct pkt *p = packet();
	struct node *n = this_node();
	struct group *g;
	struct flow *e, *f;
	__u32 back = 0, group;

	if (!v || !p || !n || (v->flags & VPORT_MIRROR))
		return 0;
	group = p->d.group;
	if (group) {
		g = bpf_map_lookup_elem(&groups, &group);
		if (g)
			back = g->back;
	}
	reverse_key(&p->rkey, &p->key, v->id);
	p->back.context = group ? group ^ 1 : 0;
	if (n->edge && p->prev == n->edge)
		write_answer(p, NEXT_EXIT, 0, 0, back, BACK_ELEMENT);
	else
		write_answer(p, NEXT_VPORT, p->prev, p->prev_slot, back, BACK_ELEMENT);
	if (!group)
		return 0;
	copy_key(&p->wkey, &p->key, v->other);
	e = bpf_map_lookup_elem(&flows, &p->wkey);
	if (e) {
		if (e->context != group && !(p->d.flags & FLOW_EMITTED) && !(e->flags & FLOW_EMITTED)) {
			e->context = group; /* an older path's: begin anew */
			e->entry = p->d.entry;
			e->path = p->d.path;
			e->path_slot = p->d.path_slot;
			e->flags = p->d.flags & FLOW_REVERSE;
			e->kind = NEXT_PENDING;
		}
		if (e->seen != p->now)
			e->seen = p->now;
		return 0;
	}
	f = &p->fresh;
	__builtin_memset(f, 0, sizeof(*f));
	f->kind = NEXT_PENDING;
	f->flags = p->d.flags & FLOW_REVERSE;
	f->context = group;
	f->entry = p->d.entry;
	f->path = p->d.path;
	f->path_slot = p->d.path_slot;
	f->seen = p->now;
	if (bpf_map_update_elem(&flows, &p->wkey, f, BPF_NOEXIST) == 0)
		count_learned(1);
	return 0;
}

/* At the edge: answers to what leaves here go to the vport it came from. */
static __always_inline int learn_edge(void)
{
	struct pkt *p = packet();
	struct node *n = this_node();
	__u32 slot;
	struct path *path;

	if (!p || !n || !n->edge || p->prev == n->edge)
		return 0;
	slot = p->d.path_slot;
	path = bpf_map_lookup_elem(&paths, &slot);
	if (slot && path && (path->flags & PATH_FORWARD))
		return 0;
	p->back.context = 0;
	reverse_key(&p->rkey, &p->key, n->edge);
	write_answer(p, NEXT_VPORT, p->prev, p->prev_slot, 0, 0);
	return 0;
}

#endif
