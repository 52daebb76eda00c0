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
 *
 * Where several flows are to meet one member (together), the hash is of their addresses
 * alone, and a new one goes where others of them are: the member may have been chosen
 * among others than there are now.
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

/* Does an address stand behind another one? */
static __always_inline int is_behind(const void *a, const void *b)
{
	if (words(a, 0) != words(b, 0))
		return bpf_be64_to_cpu(words(a, 0)) > bpf_be64_to_cpu(words(b, 0));
	return bpf_be64_to_cpu(words(a, 1)) > bpf_be64_to_cpu(words(b, 1));
}

/* Hash of the part of a tuple by which a member of a group with such flags is chosen, in its
 * chain's from/to orientation. */
static __always_inline __u64 hash_tuple(const struct flow_key *k, __u32 flags)
{
	__u32 reverse = flags & GROUP_REVERSE;
	const void *from = reverse ? k->dst : k->src, *to = reverse ? k->src : k->dst;
	__be16 fp = reverse ? k->dport : k->sport, tp = reverse ? k->sport : k->dport;
	__u64 h = 0;

	if ((flags & GROUP_HOSTS) && is_behind(from, to)) {
		from = to;
		to = reverse ? k->dst : k->src;
	}
	h = mix(h, words(from, 0));
	h = mix(h, words(from, 1));
	h = mix(h, flags & GROUP_SOURCE ? 0 : words(to, 0));
	h = mix(h, flags & GROUP_SOURCE ? 0 : words(to, 1));
	if (flags & GROUP_TOGETHER)
		return mix(h, 0);
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

#define MEMBER_BLOCK 8

/* The weight of a group's member, which has an index and a key, for flows from
 * pkt.choice.upstream; otherwise if the group has no row for them. */
__noinline __u32 weight_of(__u32 id, __u32 at, __u32 member, __u32 otherwise)
{
	struct pkt *p = packet();
	struct weights_key key;
	struct weights *row;

	if (!p || at >= MAX_MEMBERS)
		return 0;
	key.group = id;
	key.from = p->choice.upstream;
	row = bpf_map_lookup_elem(&weights, &key);
	if (!row || row->of[at] >> ROW_KEY != (__u16)member)
		return otherwise;
	return row->of[at] & ROW_WEIGHT;
}

/* Draw for MEMBER_BLOCK members of a group from base on; the best so far is in pkt. */
__noinline int choose_block(__u32 id, __u32 base)
{
	struct group *g = bpf_map_lookup_elem(&groups, &id);
	struct pkt *p = packet();
	__u32 i, slot, weight;
	struct member *m;
	struct vport *v;
	__u64 mine;

	if (!g || !p || base > MAX_MEMBERS - MEMBER_BLOCK)
		return 0;
	for (i = 0; i < MEMBER_BLOCK; i++) {
		if (base + i >= g->count)
			break;
		m = &g->members[base + i];
		weight = m->weight;
		if (p->choice.weighed)
			weight = weight_of(id, base + i, m->key, weight);
		if (!weight)
			continue;
		slot = m->slot;
		v = vport_at(slot, m->vport);
		if (!v || v->state != STATE_UP)
			continue;
		mine = draw(mix(mix(p->choice.hash, m->key), 0x5bd1e995) >> 32);
		/* mine/weight < best/best_weight */
		if (p->best_weight && mine * p->best_weight >= p->best * weight)
			continue;
		p->best = mine;
		p->best_weight = weight;
		p->member = m->vport;
		p->member_slot = slot;
		p->choice.drawn = m->key;
	}
	return 0;
}

/* The member of a group that other flows of pkt.choice.hash have: pkt.member. 0: there is none, or
 * it is closed or no member any more. */
__noinline int choose_together(__u32 id)
{
	struct group *g = bpf_map_lookup_elem(&groups, &id);
	struct pkt *p = packet();
	struct affinity *a;
	struct vport *v;
	__u32 i, slot;

	if (!g || !p)
		return 0;
	p->choice.key.hash = p->choice.hash;
	p->choice.key.group = id & ~1;
	p->choice.key.pad = 0;
	a = bpf_map_lookup_elem(&affinities, &p->choice.key);
	if (!a)
		return 0;
	for (i = 0; i < MAX_MEMBERS; i++) {
		if (i >= g->count)
			break;
		if (g->members[i].key != a->member)
			continue;
		slot = g->members[i].slot;
		v = vport_at(slot, g->members[i].vport);
		if (!v || v->state == STATE_CLOSED || v->kind == VPORT_FUNCTION)
			return 0;
		p->member = v->id;
		p->member_slot = slot;
		p->choice.drawn = a->member;
		return 1;
	}
	return 0;
}

/* Choose a member of a group for key (back: for rkey): pkt.member, or 0. With
 * fresh, for a new flow: by the weights for where it comes from, or where others are,
 * if the group has such. All else must be chosen alike by every direction and node. */
__noinline int choose(__u32 id, __u32 back, __u32 fresh)
{
	struct group *g = bpf_map_lookup_elem(&groups, &id);
	struct pkt *p = packet();
	__u32 base;

	if (!g || !p)
		return 0;
	p->member = 0;
	p->best_weight = 0;
	p->choice.weighed = fresh && (g->flags & GROUP_ROWS);
	p->choice.upstream = 0;
	if (p->choice.weighed) {
		__u32 slot = p->prev_slot;
		struct vport *v = vport_at(slot, p->prev);

		if (v)
			p->choice.upstream = v->key;
	}
	p->choice.hash = hash_tuple(back ? &p->rkey : &p->key, g->flags);
	if (fresh)
		p->choice.together = 0;
	if (fresh && (g->flags & GROUP_TOGETHER) && choose_together(id))
		goto chosen;
	for (base = 0; base < MAX_MEMBERS; base += MEMBER_BLOCK) {
		if (base >= g->count)
			break;
		choose_block(id, base);
	}
	if (!p->best_weight)
		return 0;
chosen:
	if (fresh && (g->flags & GROUP_TOGETHER) && !function_at(p->member_slot)) {
		p->choice.together = p->member; /* functions are passed in place */
		p->choice.with.member = p->choice.drawn;
	}
	return 1;
}

/* As choose_block, of the members that may know a running flow, pkt.first excepted,
 * the one behind pkt.floor. */
__noinline int search_block(__u32 id, __u32 base)
{
	struct group *g = bpf_map_lookup_elem(&groups, &id);
	struct pkt *p = packet();
	__u32 i, slot, weight;
	struct member *m;
	struct vport *v;
	__u64 mine;

	if (!g || !p || base > MAX_MEMBERS - MEMBER_BLOCK)
		return 0;
	for (i = 0; i < MEMBER_BLOCK; i++) {
		if (base + i >= g->count)
			break;
		m = &g->members[base + i];
		slot = m->slot;
		v = vport_at(slot, m->vport);
		if (!v || v->state == STATE_CLOSED || v->kind == VPORT_FUNCTION || m->vport == p->first)
			continue;
		weight = m->weight ? m->weight : 1; /* it may have begun before it got none */
		mine = draw(mix(mix(p->choice.hash, m->key), 0x5bd1e995) >> 32);
		if (p->floor_weight && mine * p->floor_weight <= p->floor * weight)
			continue;
		if (p->best_weight && mine * p->best_weight >= p->best * weight)
			continue;
		p->best = mine;
		p->best_weight = weight;
		p->member = m->vport;
		p->member_slot = slot;
	}
	return 0;
}

/* The next member to search: pkt.member, or 0. */
__noinline int search(__u32 id)
{
	struct group *g = bpf_map_lookup_elem(&groups, &id);
	struct pkt *p = packet();
	__u32 base;

	if (!g || !p)
		return 0;
	p->member = 0;
	p->best_weight = 0;
	for (base = 0; base < MAX_MEMBERS; base += MEMBER_BLOCK) {
		if (base >= g->count)
			break;
		search_block(id, base);
	}
	return p->best_weight != 0;
}

/* pkt.floor becomes what a member drew. */
__noinline int search_behind(__u32 id, __u32 vport)
{
	struct group *g = bpf_map_lookup_elem(&groups, &id);
	struct pkt *p = packet();
	__u32 i;

	if (!g || !p)
		return 0;
	for (i = 0; i < MAX_MEMBERS; i++) {
		if (i >= g->count)
			break;
		if (g->members[i].vport != vport)
			continue;
		p->floor = draw(mix(mix(p->choice.hash, g->members[i].key), 0x5bd1e995) >> 32);
		p->floor_weight = g->members[i].weight ? g->members[i].weight : 1;
		break;
	}
	return 0;
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

#define WALK_ON (-1)

/* Have the function that was chosen run behind those chosen before. */
static __always_inline int add_function(struct pkt *p, struct decision *d, __u32 id, __u32 bypass)
{
	__u32 slot = p->member_slot, i;
	struct vport *v = vport_at(slot, p->member);

	if (!v || v->kind != VPORT_FUNCTION)
		return DROP_NO_TABLE;
#pragma unroll
	for (i = 0; i < MAX_INLINE; i++) {
		if (!d->functions[i]) {
			d->functions[i] = (v->ifindex & INLINE_SLOT) | (bypass ? INLINE_BYPASS : 0);
			p->last_function = id;
			return WALK_ON;
		}
	}
	return DROP_LOOP;
}

/* Replies run the same functions the other way round. */
static __always_inline void reverse_functions(struct decision *to, const struct decision *from)
{
	__u32 i, n = 0;

	clear_functions(to);
#pragma unroll
	for (i = MAX_INLINE; i > 0; i--) {
		if (from->functions[i - 1] && n < MAX_INLINE)
			to->functions[n++ & (MAX_INLINE - 1)] = from->functions[i - 1];
	}
}

#define BACK_ELEMENT 1
#define BACK_EDGE    2
#define LAST_CLASSIFIER 2 /* tables 1 and 2 are the tiers' classifiers */

/* Is vport one of those that a group delivers to? */
__noinline int is_member(__u32 id, __u32 vport)
{
	struct group *g = bpf_map_lookup_elem(&groups, &id);
	__u32 i;

	if (!g)
		return 0;
	for (i = 0; i < MAX_MEMBERS; i++) {
		if (i >= g->count)
			break;
		if (g->members[i].vport == vport)
			return 1;
	}
	return 0;
}

/* A step that leads to a group, as resolve_step. */
static __always_inline int resolve_group(struct pkt *p, __u32 id, __u32 back)
{
	struct group *g = bpf_map_lookup_elem(&groups, &id);
	struct decision *d;

	if (!g)
		return DROP_NO_TABLE;
	d = back ? &p->back : &p->d;
	p->table = g->then;
	d->path = g->path;
	d->path_slot = g->path_slot;
	d->flags = g->flags & GROUP_REVERSE ? FLOW_REVERSE : 0;
	if (g->flags & GROUP_MIRROR) {
		if (choose(id, back, 0))
			add_mirror(p, d);
		return WALK_ON;
	}
	if (back) {
		if ((g->flags & GROUP_INLINE) && !is_member(id, p->reply.next))
			return WALK_ON; /* reverse_functions knows the function */
		/* Was the element passed by? */
		if ((g->flags & GROUP_BYPASS) && !is_member(id, p->reply.next) && !choose(id, back, 0))
			return WALK_ON;
		d->group = id;
		d->kind = NEXT_VPORT;
		return 0;
	}
	if (choose(id, 0, 1)) {
		/* While a function changes its kind, the group has members of both. */
		if (function_at(p->member_slot))
			return add_function(p, d, id, g->flags & GROUP_BYPASS);
		d->group = id;
		d->kind = NEXT_VPORT;
		d->next = p->member;
		d->slot = p->member_slot;
		return 0;
	}
	if (!(g->flags & GROUP_BYPASS))
		return DROP_NO_INSTANCE;
	d->bypassed++;
	return WALK_ON;
}

/* The packet is in the chain of the rule that was found. */
static __always_inline void enter_path(const struct pkt *p, struct decision *d)
{
	d->path = p->rule_path;
	d->path_slot = p->rule_path_slot;
	d->flags = p->rule_flags & RULE_REVERSE ? FLOW_REVERSE : 0;
}

/* The rule of a table that matches: pkt.action. Returns 0, a drop reason, or HALTED: then
 * pkt.d is still what the chain before has made it. */
static __always_inline int find_rule(struct pkt *p, __u32 table, __u32 back)
{
	struct decision *d = back ? &p->back : &p->d;

	if (p->start_group) { /* instead of the table that leads there */
		p->action = ACT_GROUP;
		p->arg = p->start_group;
		p->start_group = p->hit = 0;
	} else if (!classify(table, back)) {
		return DROP_NO_TABLE;
	}
	if (!p->hit || !p->rule_path)
		return 0;
	if (!d->matched++)
		d->first_path = p->rule_path_slot;
	if (d->path != p->rule_path && p->halt && !back)
		return HALTED;
	enter_path(p, d);
	return 0;
}

/* One step of resolve: what the table says. Returns 0 when something is chosen, a
 * drop reason, HALTED, or WALK_ON with the next table in pkt.table. */
__noinline int resolve_step(__u32 table, __u32 back)
{
	struct pkt *p = packet();
	struct decision *d;
	int rc;

	if (!p)
		return DROP_NO_TABLE;
	if (p->halted) {
		p->halted = 0;
		enter_path(p, &p->d);
	} else {
		rc = find_rule(p, table, back);
		if (rc)
			return rc;
	}
	d = back ? &p->back : &p->d;
	switch (p->action) {
	case ACT_TABLE:
		p->table = p->arg;
		if (!d->first_table && p->hit)
			d->first_table = p->table;
		if (back == BACK_ELEMENT && p->table <= LAST_CLASSIFIER) {
			d->kind = NEXT_EXIT; /* the other tier's replies are met elsewhere */
			return 0;
		}
		return WALK_ON;
	case ACT_GROUP:
		return resolve_group(p, p->arg, back);
	case ACT_EXIT:
		d->kind = NEXT_EXIT;
		if (p->arg && !back && !(p->is & IS_EDGE))
			d->entry = p->arg; /* at the edge of the node that the packet is for */
		return 0;
	case ACT_ROUTE:
		d->kind = NEXT_EXIT;
		d->entry = 0; /* here, not at the entry */
		return 0;
	case ACT_DROP:
		return p->arg ? p->arg : DROP_POLICY;
	}
	return DROP_NO_TABLE;
}

static __always_inline int walk(struct pkt *p, __u32 back)
{
	__u32 i;
	int rc;

	for (i = 0; i < MAX_STEPS; i++) {
		rc = resolve_step(p->table, back);
		if (rc != WALK_ON)
			return rc;
	}
	return DROP_LOOP;
}

/*
 * Walk tables from the given one until a next hop is chosen: pkt.d gets kind,
 * next, group, path, mirrors. With back, the tuple is rkey and the result goes
 * to pkt.back; the walk ends at the first inline group, choosing no member.
 * Returns 0, a drop reason, or, with pkt.halt, HALTED.
 */
__noinline int resolve(__u32 table, __u32 back)
{
	struct pkt *p = packet();
	struct decision *d;

	if (!p)
		return DROP_NO_TABLE;
	d = back ? &p->back : &p->d;
	d->kind = NEXT_NONE;
	d->next = d->slot = d->group = 0;
	d->matched = d->bypassed = d->first_table = 0;
	if (!(p->keep & KEEP_MIRRORS) || back)
		d->mirror_count = 0;
	if (!(p->keep & KEEP_FUNCTIONS) || back)
		clear_functions(d);
	if (!p->keep && !back)
		p->last_function = 0;
	p->table = table;
	return walk(p, back);
}

/* The same, halting at the first rule that begins a chain. */
static __always_inline int resolve_halting(struct pkt *p, __u32 table)
{
	int rc;

	p->halt = 1;
	rc = resolve(table, 0);
	p->halt = 0;
	return rc;
}

/* On from the rule at which a walk has halted, as resolve. */
__noinline int resolve_on(void)
{
	struct pkt *p = packet();

	if (!p)
		return DROP_NO_TABLE;
	p->halted = 1;
	return walk(p, 0);
}

#endif
