/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Writes every packet anew, with code point 10 in its header. */
#include "onpath.h"

ONPATH_LICENSE("Dual BSD/GPL");
ONPATH_WHOLE;
ONPATH_COUNTERS({ __u64 written; });

ONPATH_FUNCTION(p)
{
	onpath_count(written, 1);
	onpath_set_dscp(p, 10);
	onpath_rewritten(p);
	return ONPATH_NEXT;
}
