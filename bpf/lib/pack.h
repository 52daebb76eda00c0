/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * How a flow entry is packed (struct flow). Nothing else reads or writes its
 * fields, but those that lib/entry.h counts in. For every hook: nothing here needs
 * an skb.
 */
#ifndef ONPATH_PACK_H
#define ONPATH_PACK_H

#include "count.h"

#define PACKETS_MASK ((1ull << 48) - 1)
#define BYTES_MASK   ((1ull << 56) - 1)
#define MIRROR_GONE  0xffffffff /* the id of a mirror whose slot is another's now */

static __always_inline __u32 entry_kind(const struct flow *e)
{
	return e->kind & KIND_MASK;
}

#define SLOT_MASK (MAX_VPORTS - 1)
#define PATH_MASK (MAX_PATHS - 1)

static __always_inline __u32 entry_slot(const struct flow *e)
{
	return e->slot & SLOT_MASK;
}

static __always_inline __u32 entry_path(const struct flow *e)
{
	return e->path & PATH_MASK;
}

static __always_inline void entry_set_slot(struct flow *e, __u32 slot)
{
	e->slot = (e->slot & ~SLOT_MASK) | (slot & SLOT_MASK);
}

static __always_inline void entry_set_path(struct flow *e, __u32 slot)
{
	e->path = (e->path & ~PATH_MASK) | (slot & PATH_MASK);
}

/* The generation in which the entry was decided, by a packet that began its connection; else 0. */
static __always_inline __u32 entry_generation(const struct flow *e)
{
	return (e->slot & ~(SLOT_MASK | SYN_NOTED)) >> 9 | e->path >> 12;
}

static __always_inline void entry_set_generation(struct flow *e, __u32 generation)
{
	e->slot = (e->slot & (SLOT_MASK | SYN_NOTED)) | (generation >> 4 & 3) << 13;
	e->path = (e->path & PATH_MASK) | generation << 12;
}

/*
 * May the connection of the entry be older than what is in force here? The number of its
 * generation may be another one's by now: then it was used last before that came into force.
 */
static __always_inline int is_stale(const struct flow *e, __u32 now)
{
	struct node *n = this_node();

	return n && n->generation && (entry_generation(e) != n->generation ||
		((now - e->seen) & SEEN_MASK) > ((now - n->since) & SEEN_MASK));
}

/* The entry is used, in another second than before. */
static __always_inline void entry_set_seen(struct flow *e, __u32 now)
{
	if (is_stale(e, now))
		entry_set_generation(e, 0);
	e->seen = now;
}

/* The packet decides the entry. */
static __always_inline void entry_decided(struct flow *e, const struct pkt *p)
{
	if (!(p->is & IS_SYN))
		return;
	e->slot &= ~SYN_NOTED;
	entry_set_generation(e, p->generation);
	e->seen = p->now;
}

static __always_inline __u64 entry_packets(const struct flow *e)
{
	return e->packets & PACKETS_MASK;
}

/* The edge where the flow entered; 0: packets leave at this node, whatever that was. */
static __always_inline __u32 entry_edge(const struct flow *e, const struct node *n)
{
	if (!(e->flags & FLOW_AT_EDGE))
		return e->entry;
	return e->kind & EDGE_HERE ? 0 : n->edge;
}

/*
 * The next hop by which packets of the entry leave this machine, found before: a
 * slot in a table of next hops, 0 if none, and the epoch in which that was true.
 * Epochs, which are never 0, follow each other at most ten times a second, so an
 * epoch is still true if the entry was used in the last HOP_FRESH seconds.
 */
#define HOP_FRESH 16

static __always_inline __u32 entry_hop(const struct flow *e, __u32 epoch, __u32 now)
{
	if ((__u8)(e->bytes >> 56) != (__u8)epoch || ((now - e->seen) & SEEN_MASK) > HOP_FRESH)
		return 0;
	return e->packets >> 48;
}

/* Single stores, as the counters below are added to meanwhile: hop 0 first. */
static __always_inline void entry_set_hop(struct flow *e, __u16 hop, __u8 epoch)
{
	((volatile __u16 *)&e->packets)[3] = 0;
	((volatile __u8 *)&e->bytes)[7] = epoch;
	((volatile __u16 *)&e->packets)[3] = hop;
}

/*
 * Entries of other places than the edge have no next hop of this kind. Of TCP they
 * note the last acknowledgement number there, without its low byte: whoever waits
 * for an instance that is gone is reset by it.
 */
static __always_inline void entry_note_ack(struct flow *e, __u32 ack)
{
	((volatile __u16 *)&e->packets)[3] = ack >> 16;
	((volatile __u8 *)&e->bytes)[7] = ack >> 8;
}

static __always_inline __u32 entry_ack(const struct flow *e)
{
	return e->flags & FLOW_AT_EDGE ? e->entry : (__u32)(e->packets >> 48) << 16 | (__u32)(e->bytes >> 56) << 8;
}

/* A single store: next may change meanwhile. */
static __always_inline void entry_set_kind(struct flow *e, __u8 kind)
{
	((volatile __u8 *)e)[3] = kind;
}

/* The other direction has replied to the entry's SYN: which acknowledgement number shows that
 * the SYN's sender is where it says? */
static __always_inline void expect_ack(struct flow *e, __u32 ack)
{
	if (e->flags & FLOW_AT_EDGE)
		e->entry = ack;
	else
		entry_note_ack(e, ack);
	entry_set_kind(e, e->kind | HANDSHAKE);
}

/* Note TCP's acknowledgement number on an entry; one that expects a certain number keeps
 * that until it comes. */
static __always_inline void entry_note_tcp(struct flow *e, const struct pkt *p)
{
	if (!(p->is & IS_ACK))
		return;
	if (e->kind & HANDSHAKE) {
		if (p->ack - entry_ack(e) > HANDSHAKE_AHEAD)
			return;
		entry_set_kind(e, e->kind & ~HANDSHAKE);
	}
	if (e->flags & FLOW_AT_EDGE)
		e->entry = p->ack;
	else
		entry_note_ack(e, p->ack);
}

static __always_inline __u16 pack_mirror(__u32 slot, __u32 id)
{
	return (slot & 0x1fff) | (id & 7) << 13;
}

static __always_inline void load_mirror(struct decision *d, __u32 i, __u32 packed)
{
	__u32 slot = packed & 0x1fff;
	struct vport *v = bpf_map_lookup_elem(&vports, &slot);

	d->mirror_slots[i] = slot;
	d->mirrors[i] = v && v->kind && (v->id & 7) == packed >> 13 ? v->id : MIRROR_GONE;
	d->mirror_count = i + 1;
}

static __always_inline void load_mirrors(struct decision *d, const struct flow *e)
{
	d->mirror_count = 0;
	d->mirrors[0] = d->mirrors[1] = 0;
	d->mirror_slots[0] = d->mirror_slots[1] = 0;
	if (!e->mirrors[0])
		return;
	load_mirror(d, 0, e->mirrors[0]);
	if (e->mirrors[1])
		load_mirror(d, 1, e->mirrors[1]);
}

static __always_inline void load_decision(struct decision *d, const struct flow *e)
{
	struct node *n = this_node();
	__u32 slot = entry_path(e);
	struct path *path = bpf_map_lookup_elem(&paths, &slot);

	d->kind = entry_kind(e);
	d->next = e->next;
	d->slot = entry_slot(e);
	d->context = e->context;
	d->path_slot = slot;
	d->path = slot && path ? path->id : 0;
	d->group = e->group && d->path ? d->path << 6 | (e->group & 0x3f) : 0;
	d->entry = n ? entry_edge(e, n) : 0;
	d->flags = e->flags;
	d->bypassed = 0;
	*(__u64 *)d->functions = *(const __u64 *)e->functions;
	load_mirrors(d, e);
}

static __always_inline void store_mirrors(struct flow *e, const struct decision *d)
{
	e->mirrors[0] = d->mirror_count > 0 ? pack_mirror(d->mirror_slots[0], d->mirrors[0]) : 0;
	e->mirrors[1] = d->mirror_count > 1 ? pack_mirror(d->mirror_slots[1], d->mirrors[1]) : 0;
}

/* Write a decision into an entry of a scope; d.path must be d.group's if there is
 * one. What it counted and noted stays; its next hop does not. */
static __always_inline void store_decision(struct flow *e, const struct decision *d, __u32 scope)
{
	struct node *n = this_node();
	__u32 edge = n ? n->edge : 0, flags = d->flags & ~FLOW_AT_EDGE, kind = d->kind | (e->kind & (HANDSHAKE | REPLIED));

	if (edge && scope == edge) {
		flags |= FLOW_AT_EDGE;
		if (d->entry != edge)
			kind |= EDGE_HERE;
		entry_set_hop(e, 0, 0);
	} else {
		e->entry = d->entry;
	}
	e->next = d->next;
	e->kind = kind;
	entry_set_slot(e, d->slot);
	entry_set_path(e, d->path_slot);
	e->context = d->context;
	e->flags = flags;
	e->group = d->group && d->path_slot ? CHOSEN | (d->group & 0x3f) : 0;
	*(__u64 *)e->functions = *(const __u64 *)d->functions;
	store_mirrors(e, d);
}

/* Let an entry lead elsewhere. */
static __always_inline void retarget(struct flow *e, __u32 kind, __u32 next, __u32 slot, __u32 context)
{
	e->kind = kind | (e->kind & (HANDSHAKE | REPLIED | (e->flags & FLOW_AT_EDGE ? EDGE_HERE : 0)));
	entry_set_slot(e, slot);
	e->next = next;
	e->context = context;
	e->group &= ~REOPENED;
	if (e->flags & FLOW_AT_EDGE)
		entry_set_hop(e, 0, 0);
}

/* Is the entry of a path that has ended, unlike the one at slot? A flow that now goes by
 * that one has left it, though not every node may know yet that it is closed. */
static __always_inline int path_replaced(const struct flow *e, __u32 slot)
{
	__u32 was = entry_path(e);
	struct path *path = bpf_map_lookup_elem(&paths, &was);

	return was && slot && was != slot && path && (!path->id || (path->flags & (PATH_ENDED | PATH_CLOSED)));
}

/* The vport that an entry leads to is open here now: when it closes, that is its death. */
__noinline int note_open(struct flow *e)
{
	struct vport *v;
	__u32 slot;

	if (!e)
		return 0;
	slot = entry_slot(e);
	v = vport_of(&slot, e->next);
	if (v && v->state != STATE_CLOSED)
		e->group &= ~REOPENED;
	return 0;
}

/* The group by which next was chosen, or 0. */
static __always_inline __u32 entry_group(const struct flow *e)
{
	__u32 slot = entry_path(e);
	struct path *path = bpf_map_lookup_elem(&paths, &slot);

	return e->group && slot && path && path->id ? path->id << 6 | (e->group & 0x3f) : 0;
}

#endif
