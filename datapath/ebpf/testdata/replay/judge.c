/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Drops, refuses and passes by ports and protocols, with reasons. */
#include "onpath.h"

ONPATH_LICENSE("GPL");
ONPATH_COUNTERS({ __u64 judged; });

ONPATH_FUNCTION(p)
{
	__be16 there = p->direction == ONPATH_FORWARD ? p->dport : p->sport;

	onpath_count(judged, 1);
	if (there == onpath_be16(8080) || there == onpath_be16(22))
		return onpath_drop(p, 1 + p->direction);
	if (there == onpath_be16(443))
		return onpath_refuse(p, 3);
	if (p->is & ONPATH_IS_FRAGMENT && p->is & ONPATH_IS_PORTLESS)
		return onpath_drop(p, 4);
	if (p->protocol == 132 || p->protocol == 50)
		return onpath_drop(p, 5);
	if (p->is & ONPATH_IS_ERROR && p->icmp_type == 11)
		return onpath_drop(p, 6);
	return ONPATH_NEXT;
}
