/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Lets all packets pass. */
#include "onpath.h"

ONPATH_LICENSE("Dual BSD/GPL");
ONPATH_CONFIG({ __u32 version; });
ONPATH_COUNTERS({ __u64 seen; });

ONPATH_FUNCTION(p)
{
	onpath_count(seen, 1);
	return ONPATH_NEXT;
}
