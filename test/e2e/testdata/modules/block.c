/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Drops TCP to a port. */
#include "onpath.h"

ONPATH_LICENSE("Dual BSD/GPL");

ONPATH_CONFIG({ __u32 port; });

ONPATH_FUNCTION(p)
{
	const struct onpath_config *c = onpath_configuration();

	if (c && p->protocol == ONPATH_TCP && p->dport == onpath_be16(c->port))
		return ONPATH_DROP;
	return ONPATH_NEXT;
}
