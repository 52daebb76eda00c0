/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* A function of the tests: it sends what goes forward to an element by port: to
 * port 7000 + n to the element n. */
#include "onpath.h"

ONPATH_LICENSE("Dual BSD/GPL");
ONPATH_REDIRECTS;

ONPATH_FUNCTION(p)
{
	__u16 port = onpath_be16(p->dport);

	if (p->direction == ONPATH_FORWARD && port > 7000 && port < 7100)
		return onpath_redirect(p, port - 7000);
	return ONPATH_NEXT;
}
