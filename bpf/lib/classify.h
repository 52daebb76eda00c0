/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * classify: the first rule of a table that matches a tuple. Everything that
 * knows how rules are stored is here and in datapath/ebpf/classifier.
 *
 * A table of up to SMALL_TABLE rules is a row of cells, read one by one. A larger
 * one is a forest: its rules are spread over at most MAX_TUPLES hash tables, each
 * of which keeps some leading bits of the two addresses; a slot holds the few
 * rules that share them, or a tree of at most MAX_DEPTH nodes that leads to at
 * most MAX_LEAF rules. So the number of look-ups is bounded, whatever the number
 * of rules: tuple space search with merged tuples, and decision trees where
 * addresses do not tell rules apart. The driver plans it, and refuses rules for
 * which it would have to break these bounds. Nothing decides by the hash: each
 * rule found is compared in full.
 *
 * A forest is a map of its own and is never changed: a changed table is a new
 * one, and a packet sees the old or the new as it reads struct table's one word.
 */
#ifndef ONPATH_CLASSIFY_H
#define ONPATH_CLASSIFY_H

#include "packet.h"

#define FIELD_SPORT 8
#define FIELD_DPORT 9
#define FIELD_PROTO 10

static __always_inline int covered(const __u64 *addr, const __u64 *prefix, __u32 len)
{
	if (len > 64)
		return addr[0] == prefix[0] && !((addr[1] ^ prefix[1]) >> ((128 - len) & 63));
	return !len || !((addr[0] ^ prefix[0]) >> ((64 - len) & 63));
}

static __always_inline int rule_matches(const struct rule *r, const struct pkt *p)
{
	__u32 proto = p->field[FIELD_PROTO], sport, dport;

	if (r->family && r->family != p->family)
		return 0;
	if (r->proto && r->proto != proto && !(p->lacks & IS_NOPROTO))
		return 0;
	if (!covered(&p->addr[0], r->src, r->src_len) || !covered(&p->addr[2], r->dst, r->dst_len))
		return 0;
	if (!(r->flags & (RULE_SPORTS | RULE_DPORTS)) || (p->lacks & IS_NOPORTS))
		return 1;
	if (proto != IPPROTO_TCP && proto != IPPROTO_UDP && proto != IPPROTO_SCTP && proto != 136)
		return 0;
	sport = p->field[FIELD_SPORT];
	dport = p->field[FIELD_DPORT];
	if ((r->flags & RULE_SPORTS) && (sport < r->sport_first || sport > r->sport_last))
		return 0;
	return !(r->flags & RULE_DPORTS) || (dport >= r->dport_first && dport <= r->dport_last);
}

static __always_inline int is_strict(__u32 slot)
{
	struct path *path = bpf_map_lookup_elem(&paths, &slot);

	return slot && path && (path->flags & PATH_STRICT);
}

static __always_inline void take_rule(struct pkt *p, const struct rule *r)
{
	p->action = r->action;
	p->arg = r->arg;
	p->rule_path = r->path;
	p->rule_path_slot = r->path_slot;
	p->rule_flags = r->flags;
	p->hit = 1;
}

static __always_inline void take_miss(struct pkt *p, const struct rule *r)
{
	p->action = r->action;
	p->arg = r->arg;
}

/* Does the rule at an index of a small table match? Then it is the result. */
__noinline int match_rule(__u32 at)
{
	struct rule *r = bpf_map_lookup_elem(&rules, &at);
	struct pkt *p = packet();

	if (!r || !p || !rule_matches(r, p))
		return 0;
	if (p->strict_only && !is_strict(r->path_slot))
		return 0;
	take_rule(p, r);
	return 1;
}

/* A small table: its miss stands before its rules. */
static __always_inline int search_row(__u32 base, __u32 count)
{
	struct rule *miss = bpf_map_lookup_elem(&rules, &base);
	struct pkt *p = packet();
	__u32 i;

	if (!p || !miss)
		return 0;
	for (i = 1; i <= SMALL_TABLE; i++) {
		if (i > count)
			break;
		if (match_rule(base + i))
			return 1;
	}
	take_miss(p, miss);
	return 1;
}

static __always_inline void *cell_at(__u32 forest, __u32 at)
{
	void *cells = bpf_map_lookup_elem(&forests, &forest);

	return cells ? bpf_map_lookup_elem(cells, &at) : NULL;
}

static __always_inline __u64 mix_word(__u64 h, __u64 v)
{
	h = (h ^ v) * 0x9e3779b97f4a7c15ull;
	return h ^ (h >> 32);
}

static __always_inline __u64 kept(const struct pkt *p, const struct tuple *t, int i, int j)
{
	return ((__u64)(p->field[i] & t->masks[i]) << 32) | (p->field[j] & t->masks[j]);
}

#define PROBE_ENOUGH 0xffffffff

/* What the slot of a tuple leads to; PROBE_ENOUGH: nothing better is left. */
__noinline __u32 probe(__u32 forest, __u32 at)
{
	struct tuple *t = cell_at(forest, at);
	struct pkt *p = packet();
	struct tuple_slots *s;
	__u32 slot, tag;
	__u64 h;

	if (!p || !t || t->best >= p->best_order)
		return PROBE_ENOUGH;
	if (p->family == FAMILY_4) {
		h = mix_word(t->seed, kept(p, t, 0, 4));
	} else {
		h = mix_word(t->seed, kept(p, t, 0, 1));
		h = mix_word(h, kept(p, t, 2, 3));
		h = mix_word(h, kept(p, t, 4, 5));
		h = mix_word(h, kept(p, t, 6, 7));
	}
	h = mix_word(h, 1);
	slot = (__u32)h & t->slots;
	s = cell_at(forest, t->base + slot / 8);
	if (!s)
		return 0;
	tag = s->slot[slot & 7].tag;
	if (tag && tag != ((__u32)(h >> 32) | 1))
		return 0;
	return s->slot[slot & 7].ref;
}

/* 1 if v lies behind a range, without a branch: eight of them would be 256 paths
 * to the verifier, and mispredicted ones to the processor. */
static __always_inline __u64 behind(__u32 last, __u64 v)
{
	__u64 less = (__u64)last - v;

	asm volatile("" : "+r"(less)); /* or the compiler makes it a branch again */
	return less >> 63;
}

/* Down a tree: the leaf, or 0. */
__noinline __u32 descend(__u32 forest, __u32 ref)
{
	struct pkt *p = packet();
	struct cut *c;
	__u64 v;
	__u32 i, at;

	if (!p)
		return 0;
	for (i = 0; i < MAX_DEPTH; i++) {
		if (!ref || (ref & REF_LEAF))
			break;
		c = cell_at(forest, ref);
		if (!c)
			return 0;
		v = p->field[c->field & 15];
		at = behind(c->last[0], v) + behind(c->last[1], v) + behind(c->last[2], v) +
		     behind(c->last[3], v) + behind(c->last[4], v) + behind(c->last[5], v) +
		     behind(c->last[6], v);
		ref = c->child[at & 7];
	}
	return ref & REF_LEAF ? ref : 0;
}

/* Is the rule in a cell the best so far? 1: go on, 0: what follows is not. */
static __always_inline int match_cell(__u32 forest, __u32 at)
{
	struct rule *r = cell_at(forest, at);
	struct pkt *p = packet();

	if (!r || !p || r->order >= p->best_order)
		return 0;
	if (!rule_matches(r, p))
		return 1;
	p->best_order = r->order;
	p->best_cell = at;
	return 0;
}

/* The rules of a leaf, in order. */
__noinline int match_leaf(__u32 forest, __u32 ref)
{
	__u32 i, count = (ref >> REF_SHIFT) & 15, at = ref & REF_CELL;

	for (i = 0; i < MAX_LEAF; i++) {
		if (i > count || !match_cell(forest, at + i))
			break;
	}
	return 0;
}

/* What can be read of the packet. */
static __always_inline __u32 view_of(const struct pkt *p)
{
	__u32 strict = p->strict_only ? 1 : 0;

	if (p->family == FAMILY_4)
		return p->lacks & IS_NOPORTS ? VIEW_NOPORTS + strict : VIEW_ALL;
	if (p->lacks & IS_NOPROTO)
		return VIEW_NOPROTO_6 + strict;
	return p->lacks & IS_NOPORTS ? VIEW_NOPORTS_6 + strict : VIEWS_6;
}

/* A large table. */
static __always_inline int search_forest(__u32 forest)
{
	struct roots *roots = cell_at(forest, CELL_ROOTS);
	struct pkt *p = packet();
	__u32 i, first, count, ref;
	struct rule *r;

	if (!p || !roots)
		return 0;
	i = view_of(p) & 7;
	first = roots->view[i].first;
	count = roots->view[i].count;
	p->best_order = 0xffffffff;
	p->best_cell = CELL_MISS;
	for (i = 0; i < MAX_TUPLES; i++) {
		if (i >= count)
			break;
		ref = probe(forest, first + i);
		if (ref == PROBE_ENOUGH)
			break;
		ref = descend(forest, ref);
		if (ref)
			match_leaf(forest, ref);
	}
	r = cell_at(forest, p->best_cell);
	if (!r)
		return 0;
	if (p->best_cell == CELL_MISS)
		take_miss(p, r);
	else
		take_rule(p, r);
	return 1;
}

static __always_inline void set_address(__u64 *addr, __u32 *field, const void *from, __u32 family)
{
	const __u32 *a = from; /* keys are aligned to 4 */

	if (family == FAMILY_4) {
		field[0] = bpf_ntohl(a[3]); /* mapped */
		field[1] = field[2] = field[3] = 0;
	} else {
		field[0] = bpf_ntohl(a[0]);
		field[1] = bpf_ntohl(a[1]);
		field[2] = bpf_ntohl(a[2]);
		field[3] = bpf_ntohl(a[3]);
	}
	addr[0] = ((__u64)field[0] << 32) | field[1];
	addr[1] = ((__u64)field[2] << 32) | field[3];
}

/* Walk a table for key (back: for rkey). 0 if there is no such table. */
__noinline int classify(__u32 id, __u32 back)
{
	__u32 *row = bpf_map_lookup_elem(&table_ids, &id);
	struct pkt *p = packet();
	const struct flow_key *k;
	struct table *t;
	__u64 where;
	__u32 at;

	if (!row || !p)
		return 0;
	at = *row;
	t = bpf_map_lookup_elem(&tables, &at);
	if (!t)
		return 0;
	where = *(volatile __u64 *)&t->where;
	if (!(where & WHERE_USED) || t->id != id)
		return 0;
	k = back ? &p->rkey : &p->key;
	set_address(&p->addr[0], &p->field[0], k->src, p->family);
	set_address(&p->addr[2], &p->field[4], k->dst, p->family);
	p->field[FIELD_SPORT] = bpf_ntohs(k->sport);
	p->field[FIELD_DPORT] = bpf_ntohs(k->dport);
	p->field[FIELD_PROTO] = k->proto;
	p->lacks = back ? 0 : p->is & (IS_NOPORTS | IS_NOPROTO);
	p->hit = 0;
	if (where & WHERE_FOREST)
		return search_forest((__u32)where);
	return search_row((__u32)where, (where >> WHERE_COUNT) & 0xffff);
}

#endif
