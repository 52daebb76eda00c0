/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Lets all packets pass: what it costs to give packets to a module. */
#include "onpath.h"

ONPATH_LICENSE("Dual BSD/GPL");

ONPATH_FUNCTION(p)
{
	return ONPATH_NEXT;
}
