/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
//go:build ignore
/* A rate limit by token bucket (RFC 2697 calls its size the committed burst): per
 * flow, per source prefix, or in total; packets or bits a second, as the wire
 * carries them. What is above the rate is dropped, or marked.
 *
 * Buckets are kept in 1024ths of a packet or bit, so that low rates are exact, and
 * are shared by all CPUs. Two CPUs that meet at one bucket may both see it
 * before the other took from it: the error is at most a packet for each CPU and
 * tick of the clock.
 *
 * A packet may stand for many on the wire, and for more than a burst. A full bucket lets
 * it go and owes the rest, or it never went.
 */
#include "onpath.h"

ONPATH_LICENSE("Dual BSD/GPL");

#define PER_TOTAL  0
#define PER_FLOW   1
#define PER_SOURCE 2

#define NSEC 1000000000ull
#define MOST_OWED 600 /* seconds: of what takes longer the rest is forgiven */

#define REASON_RATE 1

struct key {
	__u8 src[16];
	__u8 dst[16];
	__be16 sport, dport;
	__u32 protocol;
};

struct bucket {
	__s64 tokens; /* units · 2^-10; below 0: a large packet went ahead */
	__u64 at;     /* ns */
};

ONPATH_CONFIG({
	__u64 rate;  /* units a second */
	__u64 burst; /* units */
	__u32 bits;  /* 1: units are bits, 0: packets */
	__u32 per;   /* PER_… */
	__u32 prefix4, prefix6; /* bits of the source that count */
	__u32 mark;  /* 1: what is above gets dscp instead of being dropped */
	__u32 dscp;
	__u32 overhead; /* bytes added to each packet: what the link below IP takes */
	__u32 directions; /* 1: forward, 2: reverse, 3: both, each with its own buckets */
	__u32 listed; /* 1: only what the sources of the table send and get is limited */
});
ONPATH_COUNTERS({ __u64 conforming; __u64 exceeding; });
struct source {
	__u8 prefix[16]; /* cut as prefix4 and prefix6 say */
};

ONPATH_TABLE(sources, HASH, struct source, __u32, 4096);
ONPATH_TABLE(buckets, LRU_HASH, struct key, struct bucket, 131072);

/* Keep the first n bits of an address. */
static __always_inline void cut(__u8 *addr, __u32 n)
{
	int i;

#pragma unroll
	for (i = 0; i < 16; i++) {
		__u32 at = i * 8;

		if (n <= at)
			addr[i] = 0;
		else if (n < at + 8)
			addr[i] &= 0xff << (at + 8 - n);
	}
}

ONPATH_FUNCTION(p)
{
	const struct onpath_config *c = onpath_configuration();
	__s64 need, have, full;
	__u64 gained, whole;
	__u32 reverse = p->direction == ONPATH_REVERSE;
	struct bucket *b, fresh = {};
	struct source from;
	struct key k = {};

	if (!c || !c->rate || !(c->directions & (1 << reverse)))
		return ONPATH_NEXT;
	/* The from end's prefix, in both directions. */
	onpath_copy_address(from.prefix, reverse ? p->dst : p->src);
	cut(from.prefix, p->family == 4 ? 96 + c->prefix4 : c->prefix6);
	if (c->listed && !bpf_map_lookup_elem(&sources, &from))
		return ONPATH_NEXT;
	k.protocol = reverse << 31;
	if (c->per == PER_FLOW) {
		onpath_copy_address(k.src, p->src);
		onpath_copy_address(k.dst, p->dst);
		k.sport = p->sport;
		k.dport = p->dport;
		k.protocol |= p->protocol;
	} else if (c->per == PER_SOURCE) {
		onpath_copy_address(k.src, from.prefix);
	}
	need = p->segments;
	if (c->bits)
		need = ((__u64)p->wire + (__u64)c->overhead * p->segments) * 8;
	need <<= 10;
	full = c->burst << 10;
	b = bpf_map_lookup_elem(&buckets, &k);
	if (!b) {
		fresh.tokens = full;
		fresh.at = p->now;
		bpf_map_update_elem(&buckets, &k, &fresh, 1 /* BPF_NOEXIST */);
		b = bpf_map_lookup_elem(&buckets, &k);
		if (!b)
			return ONPATH_NEXT;
	}
	have = b->tokens;
	gained = p->now - b->at;
	if ((__s64)gained > 0) {
		whole = gained / NSEC; /* more than one only matter to a bucket that owes */
		if (whole > MOST_OWED)
			whole = MOST_OWED;
		have += whole * c->rate << 10;
		gained %= NSEC;
		have += gained / 1000 * c->rate * 16 / 15625; /* us · units/s · 2^10 / 10^6 */
		if (have > full)
			have = full;
		b->at = p->now;
	}
	if (have >= need || have >= full) {
		b->tokens = have - need;
		onpath_count(conforming, p->segments);
		return ONPATH_NEXT;
	}
	b->tokens = have;
	onpath_count(exceeding, p->segments);
	if (!c->mark)
		return onpath_drop(p, REASON_RATE);
	onpath_set_dscp(p, c->dscp);
	return ONPATH_NEXT;
}
