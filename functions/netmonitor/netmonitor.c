/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Counts packets by source, destination and hop limit (NetServ §5). As wasm, what was
 * counted goes to a collector every half second: a datagram of struct report for as many
 * keys as fit.
 */
#include "onpath.h"

ONPATH_LICENSE("Dual BSD/GPL");

struct key {
	__u8 src[16];
	__u8 dst[16];
	__u8 ttl;
	__u8 pad[3];
};

struct count {
	__u64 packets;
	__u64 bytes;
};

ONPATH_CONFIG({
	__u8 collector[16]; /* where counts go; :: nowhere */
	__u32 port;
});
ONPATH_COUNTERS({ __u64 packets; __u64 bytes; __u64 keys; });
ONPATH_TABLE(counts, LRU_HASH, struct key, struct count, 16384);

ONPATH_FUNCTION(p)
{
	struct count *n, fresh = {};
	struct key k = {};

	onpath_count(packets, p->segments);
	onpath_count(bytes, p->wire);
	onpath_copy_address(k.src, p->src);
	onpath_copy_address(k.dst, p->dst);
	k.ttl = p->ttl;
	n = bpf_map_lookup_elem(&counts, &k);
	if (!n) {
		onpath_count(keys, 1);
		bpf_map_update_elem(&counts, &k, &fresh, 1 /* BPF_NOEXIST */);
		n = bpf_map_lookup_elem(&counts, &k);
		if (!n)
			return ONPATH_NEXT;
	}
	__sync_fetch_and_add(&n->packets, (__u64)p->segments);
	__sync_fetch_and_add(&n->bytes, (__u64)p->wire);
	return ONPATH_NEXT;
}

#ifdef __wasm__
struct report {
	struct key key;
	__u32 pad;
	struct count count;
};

#define MOST 24 /* of 56 bytes: a datagram of 1,400 */

ONPATH_START
{
	onpath_every(500);
}

ONPATH_TIMER
{
	static struct report out[MOST];
	static __u32 at;
	const struct onpath_config *c = onpath_configuration();
	__u32 n = 0, looked;

	if (!c->port)
		return;
	for (looked = 0; looked < counts_state.count && n < MOST; looked++) {
		struct counts_entry *e = &counts_entries[at];

		at = at + 1 < counts_state.count ? at + 1 : 0;
		if (!e->value.packets)
			continue;
		out[n].key = e->key;
		out[n].count = e->value;
		e->value.packets = e->value.bytes = 0;
		n++;
	}
	if (n)
		onpath_datagram_send(0, c->collector, c->port, out, n * sizeof(out[0]));
}
#endif
