/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The least that an ebpf function does in earnest: it counts what it lets pass. */
#include "onpath.h"

ONPATH_LICENSE("Dual BSD/GPL");

ONPATH_COUNTERS({ __u64 seen; });

ONPATH_FUNCTION(p)
{
	onpath_count(seen, p->segments);
	return ONPATH_NEXT;
}
