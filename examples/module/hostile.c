/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Does not come back from UDP to port 666. */
#include "onpath.h"

ONPATH_LICENSE("Dual BSD/GPL");

ONPATH_FUNCTION(p)
{
	static volatile __u32 turns;

	while (p->protocol == ONPATH_UDP && p->dport == onpath_be16(666))
		turns++;
	return ONPATH_NEXT;
}
