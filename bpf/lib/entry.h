/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * How a flow entry is packed (struct flow), found and counted on. Nothing else
 * reads or writes its fields. For every hook: nothing here needs an skb.
 */
#ifndef ONPATH_ENTRY_H
#define ONPATH_ENTRY_H

#include "count.h"

#define PACKETS_MASK ((1ull << 48) - 1)
#define BYTES_MASK   ((1ull << 56) - 1)
#define MIRROR_GONE  0xffffffff /* the id of a mirror whose place is another's now */

static __always_inline __u32 entry_kind(const struct flow *e)
{
	return e->kind & KIND_MASK;
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
 * place in a table of next hops, 0 if none, and the epoch in which that was true.
 * Epochs, which are never 0, follow each other at most ten times a second, so an
 * epoch tells the truth if the entry was used in the last HOP_FRESH seconds.
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
	__u32 slot = e->path;
	struct path *path = bpf_map_lookup_elem(&paths, &slot);

	d->kind = entry_kind(e);
	d->next = e->next;
	d->slot = e->slot;
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
 * one. What it counted stays; its next hop does not. */
static __always_inline void store_decision(struct flow *e, const struct decision *d, __u32 scope)
{
	struct node *n = this_node();
	__u32 edge = n ? n->edge : 0, flags = d->flags & ~FLOW_AT_EDGE, kind = d->kind;

	if (edge && scope == edge) {
		flags |= FLOW_AT_EDGE;
		if (d->entry != edge)
			kind |= EDGE_HERE;
	} else {
		e->entry = d->entry;
	}
	e->next = d->next;
	e->kind = kind;
	e->slot = d->slot;
	e->path = d->path_slot;
	e->context = d->context;
	e->flags = flags;
	e->group = d->group && d->path_slot ? CHOSEN | (d->group & 0x3f) : 0;
	*(__u64 *)e->functions = *(const __u64 *)d->functions;
	store_mirrors(e, d);
	entry_set_hop(e, 0, 0);
}

/* Let an entry lead elsewhere. */
static __always_inline void turn_entry(struct flow *e, __u32 kind, __u32 next, __u32 slot, __u32 context)
{
	e->kind = kind | (e->kind & EDGE_HERE);
	e->slot = slot;
	e->next = next;
	e->context = context;
	entry_set_hop(e, 0, 0);
}

/* The group by which next was chosen, or 0. */
static __always_inline __u32 entry_group(const struct flow *e)
{
	__u32 slot = e->path;
	struct path *path = bpf_map_lookup_elem(&paths, &slot);

	return e->group && slot && path && path->id ? path->id << 6 | (e->group & 0x3f) : 0;
}

/* An entry of a flow that is known to live. One look-up: the fast way. */
static __always_inline struct flow *flow_established(const struct flow_key *k)
{
	return bpf_map_lookup_elem(&flows_v2, k);
}

static __always_inline struct flow *flow_pending(const struct flow_key *k, __u32 tenant)
{
	void *m = bpf_map_lookup_elem(&pending_v2, &tenant);

	return m ? bpf_map_lookup_elem(m, k) : NULL;
}

static __always_inline struct flow *flow_find(const struct flow_key *k, __u32 tenant)
{
	struct flow *e = flow_established(k);

	return e ? e : flow_pending(k, tenant);
}

/* An empty entry, to be filled and inserted. */
static __always_inline struct flow *fresh_flow(struct pkt *p)
{
	struct flow *f = &p->fresh;

	__builtin_memset(f, 0, sizeof(*f));
	f->seen = p->now;
	return f;
}

static __always_inline __u32 tenant_of_path(__u32 slot)
{
	struct path *path = bpf_map_lookup_elem(&paths, &slot);

	return slot && path ? path->tenant : 0;
}

/* Is there room in a tenant's share for two entries more? A quarter of it is for
 * flows of which both directions are known: others cost whoever forges them less. */
static __always_inline int has_room(__u32 tenant, int both)
{
	struct tenant *t = bpf_map_lookup_elem(&tenants, &tenant);
	struct held *h = bpf_map_lookup_elem(&holdings, &tenant);

	return t && h && h->established + 2 <= (both ? t->cap : t->cap / 4 * 3);
}

static __always_inline void count_deferred(__u32 tenant)
{
	struct tenant *t = bpf_map_lookup_elem(&tenants, &tenant);

	if (t)
		__sync_fetch_and_add(&t->deferred, 1);
}

/* Insert pkt.fresh as established; 0 if there is no room. */
static __always_inline int flow_settle(struct pkt *p, const struct flow_key *k, __u32 tenant)
{
	struct held *h = bpf_map_lookup_elem(&holdings, &tenant);

	if (!h || bpf_map_update_elem(&flows_v2, k, &p->fresh, BPF_NOEXIST))
		return flow_established(k) != NULL;
	p->news = 1;
	__sync_fetch_and_add(&h->established, 1);
	return 1;
}

/*
 * Insert pkt.fresh unless there is an entry; gives what is there then. TCP flows
 * begin as pending. Others have no handshake that would tell, and may be many of
 * one direction only: they are established at once while there is room for such.
 */
static __always_inline struct flow *flow_insert(struct pkt *p, const struct flow_key *k, __u32 tenant)
{
	void *m;

	if (!(p->is & IS_TCP) && has_room(tenant, 0) && flow_settle(p, k, tenant)) {
		count_learned(1);
		return flow_established(k);
	}
	m = bpf_map_lookup_elem(&pending_v2, &tenant);
	if (!m)
		return NULL;
	if (bpf_map_update_elem(m, k, &p->fresh, BPF_NOEXIST) == 0) {
		p->news = 1;
		count_learned(1);
	}
	return bpf_map_lookup_elem(m, k);
}

static __always_inline void flow_remove(const struct flow_key *k, __u32 tenant)
{
	void *m = bpf_map_lookup_elem(&pending_v2, &tenant);

	bpf_map_delete_elem(&flows_v2, k);
	if (m)
		bpf_map_delete_elem(m, k);
}

/*
 * A packet was counted on the pending entry of pkt.key. If its flow is known to
 * live, both directions become established: when the other one was used too, or
 * this one alone for a while. Handshakes and resets are no proof: anyone can send
 * a SYN, and every server answers it.
 */
__noinline int flow_promote(void)
{
	struct pkt *p = packet();
	struct flow *e, *mate, *known;
	struct node *n = this_node();
	__u32 scope, tenant, slot;
	struct vport *v;
	__u64 packets;
	int both;
	void *m;

	if (!p || (p->is & (IS_ERROR | IS_ANYSYN | IS_RST | IS_NOPORTS)))
		return 0;
	tenant = p->tenant;
	m = bpf_map_lookup_elem(&pending_v2, &tenant);
	if (!m)
		return 0;
	e = bpf_map_lookup_elem(m, &p->key);
	if (!e)
		return 0;
	scope = p->key.scope;
	if (!(p->is & IS_EDGE)) {
		slot = p->prev_slot;
		v = vport_at(slot, p->prev);
		if (v && v->other)
			scope = v->other;
		else if (n && entry_kind(e) == NEXT_EXIT)
			scope = n->edge; /* a relay's: from another node */
		else if (entry_kind(e) == NEXT_VPORT)
			scope = e->next;
	}
	reverse_key(&p->wkey, &p->key, scope);
	mate = bpf_map_lookup_elem(m, &p->wkey);
	known = mate ? mate : flow_established(&p->wkey);
	both = known && entry_packets(known);
	packets = entry_packets(e);
	if (!both && packets < ONE_WAY_MANY && !(packets >= ONE_WAY_FEW && p->learn))
		return 0;
	if (!has_room(tenant, both)) {
		count_deferred(tenant);
		return 0;
	}
	p->fresh = *e;
	if (!flow_settle(p, &p->key, tenant))
		return 0;
	if (mate) {
		p->fresh = *mate;
		if (!flow_settle(p, &p->wkey, tenant)) {
			bpf_map_delete_elem(&flows_v2, &p->key);
			return 0;
		}
		bpf_map_delete_elem(m, &p->wkey);
	}
	bpf_map_delete_elem(m, &p->key);
	return 1;
}

/* The entry is in use. */
static __always_inline void see(struct pkt *p, struct flow *e)
{
	__u32 was = e->seen;

	if (was == p->now)
		return;
	if ((was ^ p->now) >> TELL_EVERY)
		p->news = 1;
	e->seen = p->now;
}

/* Count a packet on its entry. */
static __always_inline void touch(struct pkt *p, struct flow *e)
{
	__u8 flags = 0;

	if (!entry_packets(e))
		p->learn = 1; /* the other gateway wrote it */
	__sync_fetch_and_add(&e->packets, p->packets);
	__sync_fetch_and_add(&e->bytes, p->bytes);
	if (e->seen != p->now) {
		see(p, e);
		p->learn = 1;
	}
	if (!(p->is & IS_TCP) || (p->is & IS_ERROR))
		return;
	if (e->flags & FLOW_AT_EDGE)
		e->entry = p->ack;
	else if (p->is & IS_ACK)
		entry_note_ack(e, p->ack);
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

#endif
