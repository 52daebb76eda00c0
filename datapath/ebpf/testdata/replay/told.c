/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Writes into each packet's DSCP what it was told of the packet, in six bits. */
#include "onpath.h"

ONPATH_LICENSE("GPL");
ONPATH_COUNTERS({ __u64 syn; __u64 error; __u64 fragment; __u64 portless; __u64 reverse; });
ONPATH_NEEDS(96);

static __always_inline __u32 mix(__u32 h, __u32 x)
{
	return (h ^ x) * 0x01000193;
}

ONPATH_FUNCTION(p)
{
	__u32 h = 0x811c9dc5;
	int i;

	for (i = 0; i < 16; i++)
		h = mix(mix(h, p->src[i]), p->dst[i]);
	h = mix(mix(h, p->sport), p->dport);
	h = mix(mix(mix(h, p->family), p->protocol), p->direction);
	h = mix(mix(mix(h, p->ttl), p->is), p->dscp);
	h = mix(mix(h, p->icmp_type), p->icmp_code);
	h = mix(mix(mix(h, p->length), p->segments), p->wire);
	h = mix(mix(mix(h, p->shown), p->transport), p->payload);
	for (i = 0; i < 96; i++)
		if (i < p->shown)
			h = mix(h, p->data[i]);
	if (p->is & ONPATH_IS_SYN)
		onpath_count(syn, 1);
	if (p->is & ONPATH_IS_ERROR)
		onpath_count(error, 1);
	if (p->is & ONPATH_IS_FRAGMENT)
		onpath_count(fragment, 1);
	if (p->is & ONPATH_IS_PORTLESS)
		onpath_count(portless, 1);
	if (p->direction == ONPATH_REVERSE)
		onpath_count(reverse, 1);
	onpath_set_dscp(p, (h ^ h >> 6 ^ h >> 12 ^ h >> 24) & 63);
	return ONPATH_NEXT;
}
