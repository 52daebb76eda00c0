/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Lanes: what the fast path keeps of flows, one line of memory for each packet
 * (abi.h). A lane is true while its epoch holds and for LANE_LIFE seconds; then
 * its flow's entry is asked again, and gets what the lane has counted.
 */
#ifndef ONPATH_LANE_H
#define ONPATH_LANE_H

#include "parse.h"

#define LANE_LIFE     8  /* seconds; below HOP_FRESH */
#define LANE_REST     2  /* seconds; a lane that was not used for so long is taken for another flow */
#define LANE_PATIENCE 16 /* a power of two */

_Static_assert(MAX_HOPS <= 1 << (64 - LANE_HOP) && MAX_PATHS <= 1 << (LANE_HOP - LANE_PATH), "fit into lane.count");
_Static_assert(sizeof(struct lane_line) == 64 && sizeof(struct wide_lane) == 64, "a line of memory");

/* Lines of lanes of one CPU, a power of two. */
const volatile __u32 cpu_lines = 1 << 10;

/* A flow as lanes name it. */
struct flow_name {
	__u64 who, id;
	__u64 source, destination[2]; /* of IPv6 */
};

/* A packet's flow, and where its lane may be. */
struct lane_search {
	struct flow_name name;
	struct lane_line *near, *far, *beside;
	__u32 edge;
	__u32 epoch; /* 0: none holds */
	__u32 now;
};

static __always_inline __u64 spread(__u64 h, __u64 with)
{
	h = (h ^ with) * LANE_MULTIPLIER;
	return h ^ h >> 32;
}

static __always_inline int is_wide(__u64 id)
{
	return id >> LANE_KIND == LANE_WIDE;
}

static __always_inline __u64 name_hash(const struct flow_name *n)
{
	__u64 h;

	if (is_wide(n->id))
		h = spread(spread(spread(n->who, n->source), n->destination[0]), n->destination[1]);
	else
		h = spread(n->who, 0);
	return spread(h, n->id & ((1ull << LANE_SCOPE) - 1));
}

static __always_inline void fill_address(__u8 *to, __u64 first, __u64 second)
{
	((__u32 *)to)[0] = first;
	((__u32 *)to)[1] = first >> 32;
	((__u32 *)to)[2] = second;
	((__u32 *)to)[3] = second >> 32;
}

static __always_inline void key_of(struct flow_key *k, const struct flow_name *n, __u32 edge)
{
	k->scope = edge;
	k->proto = n->id >> LANE_PROTO;
	if (is_wide(n->id)) {
		fill_address(k->src, n->who, n->source);
		fill_address(k->dst, n->destination[0], n->destination[1]);
	} else {
		map_v4(k->src, n->who);
		map_v4(k->dst, n->who >> 32);
	}
	*(__u32 *)&k->sport = n->id;
}

static __always_inline __u32 passed(__u32 since, __u32 now)
{
	return (now - since) & SEEN_MASK;
}

static __always_inline __u32 last_used(const struct lane *l)
{
	return (l->since + l->age) & SEEN_MASK;
}

static __always_inline int is_true(const struct lane *l, const struct lane_search *s)
{
	return (__u8)(l->id >> LANE_EPOCH) == s->epoch && passed(l->since, s->now) < LANE_LIFE;
}

/* Add to the entry what its lane counted. */
static __always_inline void settle(const struct lane *l, struct flow *e)
{
	__u32 last = last_used(l);

	if (e->path != ((l->count >> LANE_PATH) & (MAX_PATHS - 1)))
		return;
	__sync_fetch_and_add(&e->packets, l->packets);
	__sync_fetch_and_add(&e->bytes, l->count & LANE_BYTES);
	if (passed(e->seen, last) <= SEEN_MASK / 2)
		e->seen = last;
}

/* Empty a lane. */
static __noinline int vacate(struct lane_line *line, __u32 half, __u32 edge)
{
	struct lane *l = &line->lane[half & 1];
	struct flow_key k __attribute__((aligned(8)));
	struct flow_name n = {.who = l->who, .id = l->id};
	struct flow *e;

	if (n.id && l->packets && (__u8)(n.id >> LANE_SCOPE) == (__u8)edge) {
		if (is_wide(n.id)) {
			n.source = line->wide.source;
			n.destination[0] = line->wide.destination[0];
			n.destination[1] = line->wide.destination[1];
		}
		key_of(&k, &n, edge);
		e = flow_known(&k);
		if (e)
			settle(l, e);
	}
	l->id = 0;
	l->packets = 0;
	return 0;
}

/* What lanes that are not true any more counted goes to their flows. */
static __always_inline void clear_line(struct lane_line *line, const struct lane_search *s)
{
	if (line->lane[0].id && line->lane[0].packets && !is_true(&line->lane[0], s))
		vacate(line, 0, s->edge);
	if (line->lane[1].id && line->lane[1].packets && !is_true(&line->lane[1], s))
		vacate(line, 1, s->edge);
}

/* What taking a lane costs others. */
#define LANE_FREE    0
#define LANE_RESTING 1
#define LANE_BUSY    2

static __always_inline __u32 use_of_lane(const struct lane *l, const struct lane_search *s)
{
	if (!is_true(l, s))
		return LANE_FREE;
	return passed(last_used(l), s->now) < LANE_REST ? LANE_BUSY : LANE_RESTING;
}

/* The same of what must go before the flow can have a half of the line. */
static __always_inline __u32 use_of_half(const struct lane_line *line, __u32 half, const struct lane_search *s)
{
	__u32 first = use_of_lane(&line->lane[0], s), second;

	if (is_wide(line->lane[0].id))
		return first;
	second = use_of_lane(&line->lane[1], s);
	if (is_wide(s->name.id))
		return first > second ? first : second;
	return half ? second : first;
}

struct lane_place {
	struct lane_line *line;
	__u32 half;
	__u32 use;
};

static __always_inline void compare_half(struct lane_place *p, struct lane_line *line, __u32 half,
					 const struct lane_search *s)
{
	__u32 use = use_of_half(line, half, s);

	if (use >= p->use)
		return;
	p->line = line;
	p->half = half;
	p->use = use;
}

static __always_inline void compare_line(struct lane_place *p, struct lane_line *line, const struct lane_search *s)
{
	compare_half(p, line, 0, s);
	if (!is_wide(s->name.id))
		compare_half(p, line, 1, s);
}

static __always_inline void write_lane(const struct lane_place *p, const struct lane_search *s, const struct flow *e)
{
	struct wide_lane *w = &p->line->wide;
	struct lane *l = &p->line->lane[p->half & 1];

	if (is_wide(p->line->lane[0].id) || is_wide(s->name.id))
		vacate(p->line, 0, s->edge);
	if (is_wide(s->name.id)) {
		vacate(p->line, 1, s->edge);
		w->source = s->name.source;
		w->destination[0] = s->name.destination[0];
		w->destination[1] = s->name.destination[1];
	} else {
		vacate(p->line, p->half, s->edge);
	}
	l->who = s->name.who;
	l->count = (e->packets >> 48) << LANE_HOP | (__u64)e->path << LANE_PATH;
	l->packets = 0;
	l->since = s->now;
	l->age = 0;
	l->id = s->name.id;
}

/* Give the flow a lane: one that is not true, or rests, or now and then another's,
 * so that more flows than there are lanes do not chase each other. */
static __noinline int take_lane(const struct lane_search *s, const struct flow *e, struct uplink_counters *c)
{
	struct lane_place p = {.use = LANE_BUSY};
	__u32 turn;

	compare_line(&p, s->near, s);
	if (p.use)
		compare_line(&p, s->far, s);
	if (p.use)
		compare_line(&p, s->beside, s);
	if (!p.line) {
		turn = c->crowded++;
		if (turn % LANE_PATIENCE)
			return 0;
		turn /= LANE_PATIENCE;
		p.line = turn & 2 ? s->far : s->beside;
		p.half = is_wide(s->name.id) ? 0 : turn & 1;
	}
	write_lane(&p, s, e);
	return 0;
}

/* The flow's lane in a line, if it is true, or NULL. */
static __always_inline struct lane *lane_in(struct lane_line *line, const struct lane_search *s)
{
	const struct flow_name *n = &s->name;
	struct lane *l = &line->lane[0];

	if (is_wide(n->id)) {
		const struct wide_lane *w = &line->wide;

		if (w->source != n->source || w->destination[0] != n->destination[0] || w->destination[1] != n->destination[1])
			return NULL;
	} else {
		__u64 other = (l->who ^ n->who) | (l->id ^ n->id);

		/* Half of the time it is the second one: nothing to guess by a branch. */
		l = &line->lane[(other | -other) >> 63];
	}
	return l->who == n->who && l->id == n->id && passed(l->since, s->now) < LANE_LIFE ? l : NULL;
}

static __always_inline struct lane_line *line_at(__u32 at)
{
	return bpf_map_lookup_elem(&lanes, &at);
}

/* The flow's lane, if it has one that is true, or NULL: then the lines where it may
 * have one are known. */
static __always_inline struct lane *find_lane(struct lane_search *s)
{
	__u32 all = name_hash(&s->name) & (cpu_lines - 1), first = bpf_get_smp_processor_id() * cpu_lines;
	struct lane *l;

	s->near = line_at(first + (all & (NEAR_LINES - 1)));
	s->far = s->beside = NULL;
	if (!s->near)
		return NULL;
	l = lane_in(s->near, s);
	if (l)
		return l;
	s->far = line_at(first + all);
	if (!s->far)
		return NULL;
	l = lane_in(s->far, s);
	if (l)
		return l;
	s->beside = line_at(first + (all ^ 1));
	return s->beside ? lane_in(s->beside, s) : NULL;
}

#endif
