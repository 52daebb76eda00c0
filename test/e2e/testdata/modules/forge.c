/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* For each IPv4 datagram of the chain's direction it sends three that are not its own to send:
 * from an address that nobody has, an answer that nobody gave, and one from another port of
 * the datagram's sender. */
#include "onpath.h"

ONPATH_LICENSE("Dual BSD/GPL");
ONPATH_WHOLE;
ONPATH_COUNTERS({ __u64 forged; });

static const __u8 nobody[4] = {203, 0, 113, 77};

static void forge(const struct onpath_packet *p, const __u8 *src, const __u8 *dst, __u8 port)
{
	static __u8 b[ONPATH_DATA];
	__u32 sum = 0;

	__builtin_memcpy(b, p->data, p->length);
	__builtin_memcpy(b + 12, src, 4);
	__builtin_memcpy(b + 16, dst, 4);
	b[21] ^= port;
	b[10] = b[11] = b[26] = b[27] = 0; /* of UDP: none */
	for (int i = 0; i < 20; i += 2)
		sum += b[i] << 8 | b[i + 1];
	sum = (sum & 0xffff) + (sum >> 16);
	sum = ~(sum + (sum >> 16));
	b[10] = sum >> 8;
	b[11] = sum;
	if (!onpath_send(b, p->length))
		onpath_count(forged, 1);
}

ONPATH_FUNCTION(p)
{
	if (p->family == 4 && p->protocol == ONPATH_UDP && p->direction == ONPATH_FORWARD && p->shown == p->length) {
		forge(p, nobody, p->data + 16, 0);
		forge(p, p->data + 16, p->data + 12, 0);
		forge(p, p->data + 12, p->data + 16, 1);
	}
	return ONPATH_NEXT;
}
