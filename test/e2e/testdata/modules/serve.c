/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Serves: a datagram comes back, a request is answered with its path and the number of
 * requests there were. */
#include "onpath.h"

ONPATH_LICENSE("Dual BSD/GPL");
ONPATH_COUNTERS({ __u64 datagrams; __u64 requests; });

ONPATH_DATAGRAM(d)
{
	onpath_count(datagrams, 1);
	onpath_datagram_send(onpath_be16(d->port), d->src, onpath_be16(d->sport), d->data, d->length);
}

ONPATH_REQUEST(r)
{
	onpath_count(requests, 1);
	onpath_respond(200, "text/plain", 10, r->data + r->method, r->path);
}
