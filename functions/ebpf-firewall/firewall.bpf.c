/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
//go:build ignore
/* A packet filter with thousands of rules, first match wins, in a number of
 * look-ups that does not grow with them: each field of the packet (source and
 * destination prefix, both ports, protocol) leads to the set of rules that it
 * allows, a bit vector, and the first bit that all five have is the rule
 * (Lakshman and Stiliadis 1998; the summaries are Baboescu and Varghese's 2001).
 *
 * Rules speak of flows in the chain's orientation: answers get the verdict of what
 * they answer. There are two generations of everything; a new set of rules is
 * written to the other one, and one store makes it the present. Of the list of
 * addresses there is one: what is new in it is added before that store, and what is
 * gone is taken out behind it, so that an address in both lists is in it throughout.
 */
#include "onpath.h"

ONPATH_LICENSE("Dual BSD/GPL");

#define RULES       4096
#define WORDS       (RULES / 64)
#define VECTORS     8192 /* of one generation */
#define PREFIXES    8192
#define PORTS       65537 /* and one for packets without */
#define GENERATIONS 2
#define LISTED      (2 * (262144 + 1)) /* an old list, a new one, and IPv4 in both */

/* Which ends of a packet are listed (1: from, 2: to), and behind these which ends
 * rules ask of. */
#define ASKED       4
#define ENDS        5

#define ALLOW  0
#define DROP   1
#define REFUSE 2

#define REASON_RULE    1
#define REASON_DEFAULT 2
#define REASON_BEGINS  3 /* a connection that begins at the to end */
#define REASON_LISTED  4 /* a rule that names the list */

#define NAMES_LIST 256 /* in an action */

struct prefix {
	__u32 length; /* bits, the generation's included */
	__u8 generation;
	__u8 addr[16];
} __attribute__((packed));

struct listed {
	__u32 length;
	__u8 addr[16];
} __attribute__((packed));

struct vector {
	__u64 summary; /* bit i: words[i] is not 0 */
	__u64 words[WORDS];
};

ONPATH_CONFIG({
	__u32 generation;
	__u32 otherwise;   /* where no rule matches */
	__u32 established; /* connections begin at the from end only */
	__u32 rules;
});
ONPATH_COUNTERS({ __u64 allowed; __u64 dropped; __u64 refused; });

ONPATH_TABLE(sources, LPM_TRIE, struct prefix, __u32, GENERATIONS * PREFIXES);
ONPATH_TABLE(destinations, LPM_TRIE, struct prefix, __u32, GENERATIONS * PREFIXES);
ONPATH_TABLE(listed, LPM_TRIE, struct listed, __u32, LISTED); /* 1, or 0 within a larger one */
ONPATH_TABLE(ends, ARRAY, __u32, __u32, GENERATIONS * ENDS);
ONPATH_TABLE(source_ports, ARRAY, __u32, __u32, GENERATIONS * PORTS);
ONPATH_TABLE(destination_ports, ARRAY, __u32, __u32, GENERATIONS * PORTS);
ONPATH_TABLE(protocols, ARRAY, __u32, __u32, GENERATIONS * 256);
ONPATH_TABLE(vectors, ARRAY, __u32, struct vector, GENERATIONS * VECTORS);
ONPATH_TABLE(actions, ARRAY, __u32, __u32, GENERATIONS * RULES);

/* Position of the only bit, by a de Bruijn sequence (Leiserson et al. 1998). */
static const __u8 position[64] = {
	0, 1, 48, 2, 57, 49, 28, 3, 61, 58, 50, 42, 38, 29, 17, 4,
	62, 55, 59, 36, 53, 51, 43, 22, 45, 39, 33, 30, 24, 18, 12, 5,
	63, 47, 56, 27, 60, 41, 37, 16, 54, 35, 52, 21, 44, 32, 23, 11,
	46, 26, 40, 15, 34, 20, 31, 10, 25, 14, 19, 9, 13, 8, 7, 6,
};

static __always_inline __u32 lowest(__u64 bits)
{
	return position[((bits & -bits) * 0x03f79d71b4cb0a89ull) >> 58];
}

static __always_inline const struct vector *vector_of(const __u32 *index, __u32 generation)
{
	__u32 key;

	if (!index)
		return 0;
	key = generation * VECTORS + *index;
	return bpf_map_lookup_elem(&vectors, &key);
}

/* Without asked, which is 0 or 1, the look-up ends where it begins. */
static __always_inline __u32 is_listed(const __u8 *addr, __u32 asked)
{
	struct listed key = { .length = asked * 128 };
	__u32 *v, yes = 0;

	onpath_copy_address(key.addr, addr);
	v = bpf_map_lookup_elem(&listed, &key);
	if (v)
		yes = *v;
	return yes & asked;
}

static __always_inline int has_ports(const struct onpath_packet *p)
{
	return !(p->is & ONPATH_IS_PORTLESS) &&
	       (p->protocol == ONPATH_TCP || p->protocol == ONPATH_UDP || p->protocol == ONPATH_SCTP ||
		p->protocol == 136);
}

static __always_inline int verdict(struct onpath_packet *p, __u32 action, __u8 reason)
{
	switch (action) {
	case ALLOW:
		onpath_count(allowed, p->segments);
		return ONPATH_NEXT;
	case REFUSE:
		onpath_count(refused, p->segments);
		return onpath_refuse(p, reason);
	}
	onpath_count(dropped, p->segments);
	return onpath_drop(p, reason);
}

ONPATH_FUNCTION(p)
{
	const struct onpath_config *c = onpath_configuration();
	const struct vector *s, *d, *sp, *dp, *pr, *l;
	__u32 generation, key, i, asked, which, rule = RULES, reverse = p->direction == ONPATH_REVERSE;
	struct prefix from, to;
	__u64 summary, match;
	__u32 *action;
	__be16 sport, dport;

	if (!c)
		return ONPATH_DROP;
	if (c->established && reverse && (p->is & ONPATH_IS_SYN))
		return verdict(p, DROP, REASON_BEGINS);
	if (!c->rules)
		return verdict(p, c->otherwise, REASON_DEFAULT);
	generation = c->generation & 1;
	from.length = to.length = 8 + 128;
	from.generation = to.generation = generation;
	onpath_copy_address(from.addr, reverse ? p->dst : p->src);
	onpath_copy_address(to.addr, reverse ? p->src : p->dst);
	sport = reverse ? p->dport : p->sport;
	dport = reverse ? p->sport : p->dport;
	key = generation * ENDS + ASKED;
	action = bpf_map_lookup_elem(&ends, &key);
	asked = action ? *action : 0;
	which = is_listed(from.addr, asked & 1) + 2 * is_listed(to.addr, asked / 2 & 1);
	key = generation * ENDS + which;
	l = vector_of(bpf_map_lookup_elem(&ends, &key), generation);
	s = vector_of(bpf_map_lookup_elem(&sources, &from), generation);
	d = vector_of(bpf_map_lookup_elem(&destinations, &to), generation);
	key = generation * PORTS + (has_ports(p) ? onpath_be16(sport) : PORTS - 1);
	sp = vector_of(bpf_map_lookup_elem(&source_ports, &key), generation);
	key = generation * PORTS + (has_ports(p) ? onpath_be16(dport) : PORTS - 1);
	dp = vector_of(bpf_map_lookup_elem(&destination_ports, &key), generation);
	key = generation * 256 + p->protocol;
	pr = vector_of(bpf_map_lookup_elem(&protocols, &key), generation);
	if (!s || !d || !sp || !dp || !pr || !l)
		return verdict(p, c->otherwise, REASON_DEFAULT);
	summary = s->summary & d->summary & sp->summary & dp->summary & pr->summary & l->summary;
	for (i = 0; i < WORDS; i++) {
		if (!summary)
			break;
		key = lowest(summary) & (WORDS - 1);
		summary &= summary - 1;
		match = s->words[key] & d->words[key] & sp->words[key] & dp->words[key] & pr->words[key] &
			l->words[key];
		if (!match)
			continue;
		rule = key * 64 + lowest(match);
		break;
	}
	if (rule < RULES) { /* behind the loop: the verifier looks at it once */
		key = generation * RULES + rule;
		action = bpf_map_lookup_elem(&actions, &key);
		key = action ? *action : DROP;
		return verdict(p, key & (NAMES_LIST - 1), key & NAMES_LIST ? REASON_LISTED : REASON_RULE);
	}
	return verdict(p, c->otherwise, REASON_DEFAULT);
}
