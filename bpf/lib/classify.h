/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * classify: the first rule of a table that matches a tuple. Everything that
 * knows how rules are stored is here and in datapath/ebpf/rules.go.
 */
#ifndef ONPATH_CLASSIFY_H
#define ONPATH_CLASSIFY_H

#include "packet.h"

static __always_inline int in_prefix(const void *addr, const __u64 *prefix, const __u64 *mask)
{
	const __u32 *a = addr; /* keys are aligned to 4 */
	__u64 hi = ((__u64)a[1] << 32) | a[0], lo = ((__u64)a[3] << 32) | a[2];

	return (hi & mask[0]) == prefix[0] && (lo & mask[1]) == prefix[1];
}

static __always_inline int rule_matches(const struct rule *r, const struct flow_key *k, __u32 family,
					 __u32 is)
{
	__u16 sport, dport;

	if (r->family && r->family != family)
		return 0;
	if (r->proto && r->proto != k->proto && !(is & IS_NOPROTO))
		return 0;
	if (!in_prefix(k->src, r->src, r->src_mask) || !in_prefix(k->dst, r->dst, r->dst_mask))
		return 0;
	if (!(r->flags & (RULE_SPORTS | RULE_DPORTS)) || (is & IS_NOPORTS))
		return 1;
	if (k->proto != IPPROTO_TCP && k->proto != IPPROTO_UDP && k->proto != IPPROTO_SCTP && k->proto != 136)
		return 0;
	sport = bpf_ntohs(k->sport);
	dport = bpf_ntohs(k->dport);
	if ((r->flags & RULE_SPORTS) && (sport < r->sport_first || sport > r->sport_last))
		return 0;
	return !(r->flags & RULE_DPORTS) || (dport >= r->dport_first && dport <= r->dport_last);
}

static __always_inline int is_strict(__u32 slot)
{
	struct path *path = bpf_map_lookup_elem(&paths, &slot);

	return slot && path && (path->flags & PATH_STRICT);
}

/* Does the rule at a place match? Then the answer is filled in. */
__noinline int match_rule(__u32 at, __u32 back)
{
	struct rule *r = bpf_map_lookup_elem(&rules, &at);
	struct pkt *p = packet();

	if (!r || !p || !rule_matches(r, back ? &p->rkey : &p->key, p->family, back ? 0 : p->is))
		return 0;
	if (p->strict_only && !is_strict(r->path_slot))
		return 0;
	p->action = r->action;
	p->arg = r->arg;
	p->rule_path = r->path;
	p->rule_path_slot = r->path_slot;
	p->rule_flags = r->flags;
	p->hit = 1;
	return 1;
}

/* Up to RULE_BLOCK rules from base on; 1 if one matched. */
__noinline int match_block(__u32 base, __u32 count, __u32 back)
{
	__u32 i;

	for (i = 0; i < RULE_BLOCK; i++) {
		if (i >= count)
			return 0;
		if (match_rule(base + i, back))
			return 1;
	}
	return 0;
}

/* Walk a table for key (back: for rkey). 0 if there is no such table. */
__noinline int classify(__u32 id, __u32 back)
{
	struct table *t = bpf_map_lookup_elem(&tables, &id);
	struct pkt *p = packet();
	__u32 i, base, count;

	if (!t || !p)
		return 0;
	base = t->base;
	count = t->count;
	p->hit = 0;
	for (i = 0; i < TABLE_BLOCKS; i++) {
		if (i * RULE_BLOCK >= count)
			break;
		if (match_block(base + i * RULE_BLOCK, count - i * RULE_BLOCK, back))
			return 1;
	}
	p->action = t->miss;
	p->arg = t->miss_arg;
	return 1;
}

#endif
