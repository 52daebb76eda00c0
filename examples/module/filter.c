/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Drops UDP to one port, and counts. */
#include "onpath.h"

ONPATH_LICENSE("Dual BSD/GPL");
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

#ifdef __wasm__
/* Twice a second the counts go to the instance's log. */
static __u32 number(char *to, __u64 n)
{
	char digits[20];
	__u32 k = 0, i = 0;

	do {
		digits[k++] = '0' + n % 10;
		n /= 10;
	} while (n);
	while (k)
		to[i++] = digits[--k];
	return i;
}

ONPATH_START
{
	onpath_every(500);
}

ONPATH_TIMER
{
	char line[64] = "seen ";
	__u32 n = 5 + number(line + 5, onpath_counters_data.seen);

	__builtin_memcpy(line + n, " dropped ", 9);
	n += 9;
	n += number(line + n, onpath_counters_data.dropped);
	onpath_log(line, n);
}
#endif
