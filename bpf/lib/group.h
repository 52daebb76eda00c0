/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Choosing a member, and walking tables until something is chosen.
 *
 * Members are chosen by weighted rendezvous hashing: each member that takes new
 * flows draws -ln(u)/weight, u from a hash of the flow and the member's key, and
 * the smallest wins. Shares follow the weights exactly, a member that closes
 * moves its own flows only, and whoever knows the same members chooses the same:
 * the other direction (whose group holds the same keys), another node, a
 * restarted one. (Thaler and Ravishankar 1998; Schindelhauer and Schomaker 2005.)
 */
#ifndef ONPATH_GROUP_H
#define ONPATH_GROUP_H

#include "classify.h"
#include "log2.h"

static __always_inline __u64 mix(__u64 h, __u64 v)
{
	h = (h ^ v) * 0x9e3779b97f4a7c15ull;
	return h ^ (h >> 32);
}

static __always_inline __u64 words(const void *addr, int i)
{
	const __u32 *a = addr;

	return ((__u64)a[2 * i + 1] << 32) | a[2 * i];
}

/* Hash of a tuple in its chain's from/to orientation. */
static __always_inline __u64 hash_tuple(const struct flow_key *k, int reverse)
{
	const void *from = reverse ? k->dst : k->src, *to = reverse ? k->src : k->dst;
	__be16 fp = reverse ? k->dport : k->sport, tp = reverse ? k->sport : k->dport;
	__u64 h = 0;

	h = mix(h, words(from, 0));
	h = mix(h, words(from, 1));
	h = mix(h, words(to, 0));
	h = mix(h, words(to, 1));
	return mix(h, ((__u64)fp << 32) | ((__u64)tp << 16) | k->proto);
}

/* -log2(u / 2^32) with 24 fractional bits. */
__noinline __u64 draw(__u32 u)
{
	__u32 shift = 0, v = u | 1, i;
	__u64 low, high;

	if (!(v & 0xffff0000)) { shift += 16; v <<= 16; }
	if (!(v & 0xff000000)) { shift += 8; v <<= 8; }
	if (!(v & 0xf0000000)) { shift += 4; v <<= 4; }
	if (!(v & 0xc0000000)) { shift += 2; v <<= 2; }
	if (!(v & 0x80000000)) { shift += 1; v <<= 1; }
	i = (v >> 23) & 0xff;
	low = log2_fraction[i];
	high = log2_fraction[i + 1];
	low += ((high - low) * (v & 0x7fffff)) >> 23;
	return ((__u64)(shift + 1) << 24) - low;
}

/* Choose a member of a group for key (back: for rkey): pkt.member, or 0. */
__noinline int choose(__u32 id, __u32 back)
{
	struct group *g = bpf_map_lookup_elem(&groups, &id);
	struct pkt *p = packet();
	__u64 hash, best = 0, mine;
	__u32 i, best_weight = 0, slot;
	struct member *m;
	struct vport *v;

	if (!g || !p)
		return 0;
	p->member = 0;
	hash = hash_tuple(back ? &p->rkey : &p->key, g->flags & GROUP_REVERSE);
	for (i = 0; i < MAX_MEMBERS; i++) {
		if (i >= g->count)
			break;
		m = &g->members[i];
		if (!m->weight)
			continue;
		slot = m->slot;
		v = vport_at(slot, m->vport);
		if (!v || v->state != STATE_UP)
			continue;
		mine = draw(mix(mix(hash, m->key), 0x5bd1e995) >> 32);
		/* mine/weight < best/best_weight */
		if (best_weight && mine * best_weight >= best * m->weight)
			continue;
		best = mine;
		best_weight = m->weight;
		p->member = m->vport;
		p->member_slot = slot;
	}
	return best_weight != 0;
}

static __always_inline void add_mirror(struct pkt *p, struct decision *d)
{
	__u32 i = d->mirror_count;

	if (i >= MAX_MIRRORS)
		return; /* the driver refuses such tables */
	d->mirrors[i] = p->member;
	d->mirror_slots[i] = p->member_slot;
	d->mirror_count = i + 1;
}

#define BACK_ELEMENT 1
#define BACK_EDGE    2
#define LAST_CLASSIFIER 2 /* tables 1 and 2 are the tiers' classifiers */

/*
 * Walk tables from the given one until a next hop is chosen: pkt.d gets kind,
 * next, group, path, mirrors. With back, the tuple is rkey and the answer goes
 * to pkt.back; the walk ends at the first inline group, choosing no member.
 * Returns 0, or a drop reason.
 */
__noinline int resolve(__u32 table, __u32 back)
{
	struct pkt *p = packet();
	struct decision *d;
	struct group *g;
	__u32 i, id;

	if (!p)
		return DROP_NO_TABLE;
	d = back ? &p->back : &p->d;
	d->kind = NEXT_NONE;
	d->next = d->slot = d->group = 0;
	d->matched = d->bypassed = d->mirror_count = d->first_table = 0;
	for (i = 0; i < MAX_STEPS; i++) {
		if (!classify(table, back))
			return DROP_NO_TABLE;
		if (p->hit && p->rule_path) {
			d->matched++;
			d->path = p->rule_path;
			d->path_slot = p->rule_path_slot;
			d->flags = p->rule_flags & RULE_REVERSE ? FLOW_REVERSE : 0;
		}
		switch (p->action) {
		case ACT_TABLE:
			table = p->arg;
			if (!d->first_table && p->hit)
				d->first_table = table;
			if (back == BACK_ELEMENT && table <= LAST_CLASSIFIER) {
				d->kind = NEXT_EXIT; /* the other tier's answers are met elsewhere */
				return 0;
			}
			continue;
		case ACT_GROUP:
			break;
		case ACT_EXIT:
			d->kind = NEXT_EXIT;
			return 0;
		case ACT_ROUTE:
			d->kind = NEXT_EXIT;
			d->entry = 0; /* here, not at the entry */
			return 0;
		case ACT_DROP:
			return p->arg ? p->arg : DROP_POLICY;
		default:
			return DROP_NO_TABLE;
		}
		id = p->arg;
		g = bpf_map_lookup_elem(&groups, &id);
		if (!g)
			return DROP_NO_TABLE;
		d->path = g->path;
		d->path_slot = g->path_slot;
		d->flags = g->flags & GROUP_REVERSE ? FLOW_REVERSE : 0;
		if (g->flags & GROUP_MIRROR) {
			if (choose(id, back))
				add_mirror(p, d);
			table = g->then;
			continue;
		}
		d->group = id;
		if (back) {
			d->kind = NEXT_VPORT;
			return 0;
		}
		if (choose(id, 0)) {
			d->kind = NEXT_VPORT;
			d->next = p->member;
			d->slot = p->member_slot;
			return 0;
		}
		if (!(g->flags & GROUP_BYPASS))
			return DROP_NO_INSTANCE;
		d->bypassed++;
		d->group = 0;
		table = g->then;
	}
	return DROP_LOOP;
}

#endif
