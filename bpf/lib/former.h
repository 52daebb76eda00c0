/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Flow entries of the layout before this one (struct former_flow). A new version
 * of the programs finds them where it has none of its own, and writes them anew:
 * so an upgrade keeps flows where they are. The driver removes the old ones when
 * they were taken over or have aged, and in the end their map.
 */
#ifndef ONPATH_FORMER_H
#define ONPATH_FORMER_H

#include "pack.h"

static __always_inline void former_address(__u8 *to, const __u8 *from, int v4)
{
	__u32 *t = (void *)to;

	if (!v4) {
		copy_addr(to, from);
		return;
	}
	t[0] = V4(from);
	t[1] = t[2] = t[3] = 0;
}

static __always_inline void former_key(struct former_key *to, const struct flow_key *k)
{
	int v4 = is_mapped(k->src);

	to->scope = k->scope;
	former_address(to->src, k->src, v4);
	former_address(to->dst, k->dst, v4);
	to->sport = k->sport;
	to->dport = k->dport;
	to->proto = k->proto;
	to->family = v4 ? FAMILY_4 : FAMILY_6;
	to->pad = 0;
}

static __always_inline void former_decision(struct decision *d, const struct former_flow *old)
{
	__builtin_memset(d, 0, sizeof(*d));
	d->kind = old->kind;
	d->next = old->next;
	d->slot = old->slot;
	d->context = old->context;
	d->entry = old->entry;
	d->path = old->path;
	d->path_slot = old->path ? old->path_slot : 0;
	d->group = old->group >> 6 == old->path ? old->group : 0;
	d->flags = old->flags;
	d->mirrors[0] = old->mirrors[0];
	d->mirrors[1] = old->mirrors[1];
	d->mirror_slots[0] = old->mirror_slots[0];
	d->mirror_slots[1] = old->mirror_slots[1];
	d->mirror_count = !old->mirrors[0] ? 0 : !old->mirrors[1] ? 1 : 2;
}

/* Write the entry of a key as established if there is one of the former layout. 1:
 * there was. What the tenant holds is counted by the driver's next round. */
__noinline int take_over(const struct flow_key *k)
{
	struct pkt *p = packet();
	struct former_flow *old;
	__u32 zero = 0, slot;
	struct path *path;
	struct flow *f;
	void *m = bpf_map_lookup_elem(&former, &zero);

	if (!m || !p || !k)
		return 0;
	former_key(&p->former, k);
	old = bpf_map_lookup_elem(m, &p->former);
	if (!old)
		return 0;
	p->old = *old; /* the programs of the older version may still count on it */
	former_decision(&p->then, &p->old);
	slot = p->then.path_slot;
	path = bpf_map_lookup_elem(&paths, &slot);
	if (slot && (!path || path->id != p->then.path))
		return 0; /* its path is no more */
	f = &p->taken;
	__builtin_memset(f, 0, sizeof(*f));
	store_decision(f, &p->then, k->scope);
	f->seen = p->old.seen & SEEN_MASK;
	f->packets = p->old.packets & PACKETS_MASK;
	f->bytes = p->old.bytes & BYTES_MASK;
	if (f->flags & FLOW_AT_EDGE)
		f->entry = p->old.ack;
	else if (k->proto == IPPROTO_TCP)
		entry_note_ack(f, p->old.ack);
	/* Linux 6.1 takes no key from memory that it knows by size only. */
	copy_key(&p->taken_key, k, k->scope);
	bpf_map_update_elem(&flows_v2, &p->taken_key, f, BPF_NOEXIST);
	return 1;
}

#endif
