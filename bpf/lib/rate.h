/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What an instance's vport may send and be sent in a second. A token bucket in one word, as
 * lib/admission.h keeps the one of new flows: the time at which all that has passed would have
 * passed at the rate, which may be ahead of the clock by a burst. A packet of several
 * segments counts all of them, and passes whole.
 */
#ifndef ONPATH_RATE_H
#define ONPATH_RATE_H

#include "count.h"

MAP(rates, BPF_MAP_TYPE_ARRAY, __u32, struct rate, MAX_VPORTS * RATE_WAYS, 0);

/* May the packet pass the vport in a slot, one way (RATE_…)? Then it counts. */
static __always_inline int within_rate(const struct pkt *p, __u32 slot, __u32 way)
{
	__u32 at = slot * RATE_WAYS + way;
	struct rate *r = bpf_map_lookup_elem(&rates, &at);
	__u64 now, due;

	if (!r || !r->byte)
		return 1;
	now = bpf_ktime_get_ns() << RATE_SHIFT;
	due = *(volatile __u64 *)&r->due;
	if (is_beyond(due, now, r->ahead))
		return 0;
	if (is_past(due, now)) /* what was not sent in time is not made up for */
		__sync_val_compare_and_swap(&r->due, due, now);
	__sync_fetch_and_add(&r->due, (p->bytes + r->more) * r->byte >> RATE_FINER);
	return 1;
}

#endif
