/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#include "onpath.h"

ONPATH_LICENSE("GPL");
ONPATH_CONFIG({ __u32 port; });
ONPATH_COUNTERS({ __u64 seen; __u64 dropped; });

ONPATH_FUNCTION(p)
{
	const struct onpath_config *c = onpath_configuration();

	onpath_count(seen, 1);
	if (c && p->protocol == ONPATH_UDP && p->dport == onpath_be16(c->port)) {
		onpath_count(dropped, 1);
		return onpath_drop(p, 1);
	}
	return ONPATH_NEXT;
}
