/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
//go:build ignore
/* A rate limit by token bucket (RFC 2697 calls its size the committed burst): per
 * flow, per source prefix, or in total; packets or bits a second, as the wire
 * carries them. What is above the rate is dropped, or marked. Or per circuit: a list of
 * them has the addresses of each, of both families, and its rates down and up.
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

#define LEAST_BURST (10 * 1538 * 8) /* bits: ten full packets on an Ethernet wire */

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
	__u32 circuits; /* 1: the table has circuits; rate is for all other packets, 0: they pass */
	__u64 lasts; /* ms: a circuit's burst at its rate */
});
ONPATH_COUNTERS({ __u64 conforming; __u64 exceeding; });
struct source {
	__u8 prefix[16]; /* cut as prefix4 and prefix6 say */
};

/* Of a circuit's addresses, whose buckets all of them share. */
struct prefix {
	__u32 bits;
	__u8 addr[16];
};

struct circuit {
	__u32 id; /* of its buckets */
	__u32 pad;
	__u64 down, up; /* bits a second */
};

#ifndef __wasm__ /* a module's tables find whole keys alone */
ONPATH_TABLE(circuits, LPM_TRIE, struct prefix, struct circuit, 65536);
#endif
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

/* Take units of a bucket, 1024ths of which are needed; 0: it has too few. */
static __always_inline int take(const struct key *k, __s64 need, __u64 rate, __u64 burst, __u64 now)
{
	__s64 have, full = burst << 10;
	struct bucket *b, fresh = {};
	__u64 gained, whole;

	b = bpf_map_lookup_elem(&buckets, k);
	if (!b) {
		fresh.tokens = full;
		fresh.at = now;
		bpf_map_update_elem(&buckets, k, &fresh, 1 /* BPF_NOEXIST */);
		b = bpf_map_lookup_elem(&buckets, k);
		if (!b)
			return 1;
	}
	have = b->tokens;
	gained = now - b->at;
	if ((__s64)gained > 0) {
		whole = gained / NSEC; /* more than one only matter to a bucket that owes */
		if (whole > MOST_OWED)
			whole = MOST_OWED;
		have += whole * rate << 10;
		gained %= NSEC;
		have += gained / 1000 * rate * 16 / 15625; /* us · units/s · 2^10 / 10^6 */
		if (have > full)
			have = full;
		b->at = now;
	}
	if (have >= need || have >= full) {
		b->tokens = have - need;
		return 1;
	}
	b->tokens = have;
	return 0;
}

#define OF_CIRCUIT (1u << 30) /* in a bucket's protocol, beside the direction */

/* Take what a packet needs of the circuit that has one of its ends: 1 it may pass, 0 it may
 * not, -1 the end is of none. */
static __always_inline int take_of_circuit(struct onpath_packet *p, const struct onpath_config *c, __s64 need, int down)
{
#ifdef __wasm__
	return -1;
#else
	struct prefix at = { .bits = 128 };
	struct circuit *of;
	struct key k = {};
	__u64 rate, burst;

	onpath_copy_address(at.addr, down ? p->dst : p->src);
	of = bpf_map_lookup_elem(&circuits, &at);
	if (!of)
		return -1;
	*(__u32 *)k.src = of->id;
	k.protocol = OF_CIRCUIT | (__u32)down << 31;
	rate = down ? of->down : of->up;
	burst = rate / 1000 * c->lasts;
	if (burst < LEAST_BURST)
		burst = LEAST_BURST;
	return take(&k, need, rate, burst, p->now);
#endif
}

static __always_inline int refuse(struct onpath_packet *p, const struct onpath_config *c)
{
	onpath_count(exceeding, p->segments);
	if (!c->mark)
		return onpath_drop(p, REASON_RATE);
	onpath_set_dscp(p, c->dscp);
	return ONPATH_NEXT;
}

ONPATH_FUNCTION(p)
{
	const struct onpath_config *c = onpath_configuration();
	__u32 reverse = p->direction == ONPATH_REVERSE;
	struct source from;
	struct key k = {};
	__s64 need, bits;
	int up, down;

	if (!c)
		return ONPATH_NEXT;
	bits = (((__u64)p->wire + (__u64)c->overhead * p->segments) * 8) << 10;
	if (c->circuits) {
		up = take_of_circuit(p, c, bits, 0);
		down = up ? take_of_circuit(p, c, bits, 1) : 0;
		if (!down)
			return refuse(p, c);
		if (up > 0 || down > 0) {
			onpath_count(conforming, p->segments);
			return ONPATH_NEXT;
		}
	}
	if (!c->rate || !(c->directions & (1 << reverse)))
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
	need = c->bits ? bits : (__s64)p->segments << 10;
	if (!take(&k, need, c->rate, c->burst, p->now))
		return refuse(p, c);
	onpath_count(conforming, p->segments);
	return ONPATH_NEXT;
}
