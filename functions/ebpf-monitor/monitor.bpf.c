/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
//go:build ignore
/* Counts packets and bytes for each value of a key: the flow, the source or
 * destination prefix, the protocol, or the destination port. Of ICMP, type and code stand
 * for ports: by the identifiers of echoes, each ping would be a row. With sampling one
 * packet in n is counted, n times (RFC 5475 §5.2, uniform probabilistic). The
 * node's agent reads the counts and exports them; what is used least goes when
 * the table is full.
 */
#include "onpath.h"

ONPATH_LICENSE("Dual BSD/GPL");

#define BY_FLOW        0
#define BY_SOURCE      1
#define BY_DESTINATION 2
#define BY_PROTOCOL    3
#define BY_PORT        4

struct key {
	__u8 src[16];
	__u8 dst[16];
	__be16 sport, dport; /* of ICMP: 0, and type and code */
	__u8 protocol;
	__u8 family;
	__u8 direction;
	__u8 typed; /* ICMP: type and code are known */
};

struct count {
	__u64 packets;
	__u64 bytes; /* IP, on the wire */
	__u64 first, last; /* ns of the monotonic clock */
};

ONPATH_CONFIG({
	__u32 by;     /* BY_… */
	__u32 sample; /* one in so many; 0 and 1: all */
	__u32 prefix4, prefix6;
});
ONPATH_COUNTERS({ __u64 packets; __u64 sampled; });
ONPATH_TABLE(counts, LRU_HASH, struct key, struct count, 65536);

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

/* The ports of a key; to: the destination's alone, whichever direction the packet takes. */
static __always_inline void take_ports(struct key *k, const struct onpath_packet *p, int to)
{
	if (p->protocol == (p->family == 4 ? ONPATH_ICMP : ONPATH_ICMPV6)) {
		if (p->is & (ONPATH_IS_FRAGMENT | ONPATH_IS_PORTLESS))
			return;
		k->dport = onpath_be16(p->icmp_type << 8 | p->icmp_code);
		k->typed = 1;
	} else if (to) {
		k->dport = p->direction == ONPATH_REVERSE ? p->sport : p->dport;
	} else {
		k->sport = p->sport;
		k->dport = p->dport;
	}
}

ONPATH_FUNCTION(p)
{
	const struct onpath_config *c = onpath_configuration();
	struct count *n, fresh = {};
	struct key k = {};
	__u32 times = 1;

	if (!c)
		return ONPATH_NEXT;
	onpath_count(packets, p->segments);
	if (c->sample > 1) {
		times = c->sample;
		if (bpf_get_prandom_u32() >= 0xffffffffu / times)
			return ONPATH_NEXT;
	}
	onpath_count(sampled, p->segments);
	k.family = p->family;
	k.direction = p->direction;
	switch (c->by) {
	case BY_SOURCE:
		onpath_copy_address(k.src, p->src);
		cut(k.src, p->family == 4 ? 96 + c->prefix4 : c->prefix6);
		break;
	case BY_DESTINATION:
		onpath_copy_address(k.dst, p->dst);
		cut(k.dst, p->family == 4 ? 96 + c->prefix4 : c->prefix6);
		break;
	case BY_PROTOCOL:
		k.protocol = p->protocol;
		break;
	case BY_PORT:
		k.protocol = p->protocol;
		take_ports(&k, p, 1);
		break;
	default:
		onpath_copy_address(k.src, p->src);
		onpath_copy_address(k.dst, p->dst);
		take_ports(&k, p, 0);
		k.protocol = p->protocol;
	}
	n = bpf_map_lookup_elem(&counts, &k);
	if (!n) {
		fresh.first = p->now;
		bpf_map_update_elem(&counts, &k, &fresh, 1 /* BPF_NOEXIST */);
		n = bpf_map_lookup_elem(&counts, &k);
		if (!n)
			return ONPATH_NEXT;
	}
	__sync_fetch_and_add(&n->packets, (__u64)p->segments * times);
	__sync_fetch_and_add(&n->bytes, (__u64)p->wire * times);
	n->last = p->now;
	return ONPATH_NEXT;
}
