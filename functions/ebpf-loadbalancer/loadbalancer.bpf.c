/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
//go:build ignore
/* A load balancer: what clients send to a virtual address goes to one of several
 * backends, and their answers come from the virtual address. New flows choose by a
 * look-up table of Maglev's (Eisenbud et al., NSDI 2016, §3.4), which the node fills:
 * one look-up however many backends there are, even shares, and few flows that
 * would choose anew when a backend comes or goes. A flow that has been seen keeps its
 * backend all the same, for as long as that one lives; where that takes no new flows any more,
 * until the next SYN, or, without connections, a rest of minutes. Each IP version has a look-up
 * table of its own, of the backends of that version: no packet changes its version.
 */
#include "onpath.h"

ONPATH_LICENSE("Dual BSD/GPL");

#define SLOTS    65537 /* a prime */
#define IN_ROW   128
#define ROWS     513   /* of one of the four tables: two for each IP version */
#define BACKENDS 512
#define PORTS    16

#define NO_BACKEND 0xffff

#define BY_SOURCE 1

#define REASON_NONE 1 /* no backend of the flow's IP version lives */

struct flow_key {
	__u8 src[16];
	__be16 sport;
	__be16 dport;
	__u32 protocol : 8;
	__u32 family : 24;
};

struct chosen {
	__u16 backend; /* place */
	__u16 seen;    /* of a flow without connections: the clock in 2^CLOCK_SHIFT ns */
	__u32 id;
};

#define CLOCK_SHIFT 36 /* 69 s */
#define RESTED      5  /* 4.6 to 5.7 minutes */

struct backend {
	__u8 addr[16];
	__be16 port; /* 0: the one that was dialled */
	__u8 alive;
	__u8 leaves; /* it is named no more, or has weight 0: new flows choose another */
	__u32 id; /* 0: none is here; never used again */
};

struct behind_key {
	__u8 addr[16];
	__be16 port; /* 0: any of the service's */
	__u16 pad;
};

struct direct_key {
	__u8 client[16];
	__u8 backend[16];
	__be16 cport;
	__be16 bport;
	__u32 protocol;
};

struct row {
	__u16 backend[IN_ROW];
};

ONPATH_CONFIG({
	__u8 virtual4[16], virtual6[16];
	__u32 tcp, udp;
	__u32 by;
	__u32 table4, table6; /* first rows of the tables in force */
	__u32 port_count;     /* 0: every port */
	__be16 ports[PORTS];
});
ONPATH_COUNTERS({ __u64 balanced; __u64 answered; __u64 fresh; __u64 moved; __u64 unserved; });
ONPATH_TABLE(table, ARRAY, __u32, struct row, 4 * ROWS);
ONPATH_TABLE(backends, ARRAY, __u32, struct backend, BACKENDS);
ONPATH_TABLE(behind, HASH, struct behind_key, __u32, 2 * BACKENDS);
/* Flows seen once, and those seen again: a flood of SYNs evicts none of these. */
ONPATH_TABLE(tried, LRU_HASH, struct flow_key, struct chosen, 32768);
ONPATH_TABLE(flows, LRU_HASH, struct flow_key, struct chosen, 131072);
/* Flows to a backend's own address, whose answers come from there. */
ONPATH_TABLE(direct, LRU_HASH, struct direct_key, __u8, 32768);

static __always_inline int same_address(const __u8 *a, const __u8 *b)
{
	const __u32 *x = (const void *)a, *y = (const void *)b;

	return x[0] == y[0] && x[1] == y[1] && x[2] == y[2] && x[3] == y[3];
}

static __always_inline int served(const struct onpath_config *c, __be16 port)
{
	int i;

	if (!c->port_count)
		return 1;
#pragma unroll
	for (i = 0; i < PORTS; i++)
		if (i < c->port_count && c->ports[i] == port)
			return 1;
	return 0;
}

static __always_inline int is_unset(const __u8 *a)
{
	const __u32 *x = (const void *)a;

	return !(x[0] | x[1] | x[2] | x[3]);
}

/* Whether a backend is of an IP version; IPv4 addresses are mapped. */
static __always_inline int is_of(const struct backend *b, __u8 family)
{
	const __u32 *x = (const void *)b->addr;
	int four = !x[0] && !x[1] && x[2] == onpath_be32(0xffff);

	return four == (family == 4);
}

static __always_inline __u16 clock_of(const struct onpath_packet *p)
{
	return p->protocol == ONPATH_TCP ? 0 : p->now >> CLOCK_SHIFT;
}

/* Does a flow begin anew with this packet? An established connection may rest for hours. */
static __always_inline int begins(const struct onpath_packet *p, const struct chosen *k)
{
	if (p->is & ONPATH_IS_ERROR)
		return 0;
	if (p->protocol == ONPATH_TCP)
		return p->is & ONPATH_IS_SYN;
	return (__u16)(clock_of(p) - k->seen) >= RESTED;
}

/* The backend of a flow that was seen before, if it lives. Older versions also gave
 * flows backends of the other IP version. */
static __always_inline struct backend *kept(struct chosen *k, const struct onpath_packet *p)
{
	__u32 place;
	struct backend *b;

	if (!k)
		return 0;
	place = k->backend;
	b = bpf_map_lookup_elem(&backends, &place);
	if (!b || b->id != k->id || !b->alive || !is_of(b, p->family) || (b->leaves && begins(p, k)))
		return 0;
	if (!(p->is & ONPATH_IS_ERROR) && k->seen != clock_of(p))
		k->seen = clock_of(p);
	return b;
}

/* The backend of a new flow, by its hash. */
static __always_inline struct backend *choose(const struct onpath_config *c, const struct flow_key *k, struct chosen *to)
{
	__u32 words[6], slot, at, place, i;
	struct backend *b;
	struct row *r;

#pragma unroll
	for (i = 0; i < 4; i++)
		words[i] = ((const __u32 *)k->src)[i];
	words[4] = c->by == BY_SOURCE ? 0 : k->sport | (__u32)k->dport << 16;
	words[5] = c->by == BY_SOURCE ? 0 : k->protocol;
	slot = onpath_hash(words, 6, 0x6f70) % SLOTS;
	at = slot / IN_ROW + (k->family == 4 ? c->table4 : c->table6);
	r = bpf_map_lookup_elem(&table, &at);
	if (!r)
		return 0;
	place = r->backend[slot % IN_ROW];
	if (place == NO_BACKEND)
		return 0;
	b = bpf_map_lookup_elem(&backends, &place);
	if (!b || !b->id || !is_of(b, k->family)) /* the place may just have been given to another */
		return 0;
	to->backend = place;
	to->id = b->id;
	return b;
}

/* The port of the service that a backend's port stands for; none: it is no backend's. */
static __always_inline __u32 *stands_for(const struct onpath_config *c, const __u8 *addr, __be16 port)
{
	struct behind_key k = {};
	__u32 *to;

	onpath_copy_address(k.addr, addr);
	k.port = port;
	to = bpf_map_lookup_elem(&behind, &k);
	if (to || !served(c, port))
		return to;
	k.port = 0;
	return bpf_map_lookup_elem(&behind, &k);
}

static __always_inline struct direct_key between(const struct onpath_packet *p, const __u8 *client, __be16 cport,
						 const __u8 *backend, __be16 bport)
{
	struct direct_key k = {};

	onpath_copy_address(k.client, client);
	onpath_copy_address(k.backend, backend);
	k.cport = cport;
	k.bport = bport;
	k.protocol = p->protocol;
	return k;
}

/* A packet that is not for the virtual address. */
static __always_inline void note_direct(const struct onpath_packet *p, const struct onpath_config *c)
{
	struct direct_key k;
	__u8 is = 1;

	if ((p->is & ONPATH_IS_ERROR) || !stands_for(c, p->dst, p->dport))
		return;
	k = between(p, p->src, p->sport, p->dst, p->dport);
	if (!bpf_map_lookup_elem(&direct, &k))
		bpf_map_update_elem(&direct, &k, &is, 0);
}

static __always_inline int answer(struct onpath_packet *p, const struct onpath_config *c)
{
	const __u8 *virtual = p->family == 4 ? c->virtual4 : c->virtual6;
	struct direct_key k;
	__u32 *port;

	if (is_unset(virtual)) /* taken out before its backends' last flows ended */
		return ONPATH_NEXT;
	port = stands_for(c, p->src, p->sport);
	if (!port)
		return ONPATH_NEXT; /* the backend speaks for itself */
	k = between(p, p->dst, p->dport, p->src, p->sport);
	if (bpf_map_lookup_elem(&direct, &k))
		return ONPATH_NEXT;
	onpath_set_source(p, virtual, *port);
	onpath_count(answered, p->segments);
	return ONPATH_NEXT;
}

ONPATH_FUNCTION(p)
{
	const struct onpath_config *c = onpath_configuration();
	struct flow_key k = {};
	struct chosen fresh = {}, *known;
	struct direct_key way;
	struct backend *b;
	int seen = 1;

	if (!c || (p->is & ONPATH_IS_PORTLESS))
		return ONPATH_NEXT;
	if (p->protocol == ONPATH_TCP ? !c->tcp : p->protocol == ONPATH_UDP ? !c->udp : 1)
		return ONPATH_NEXT;
	if (p->direction == ONPATH_REVERSE)
		return answer(p, c);
	if (!same_address(p->dst, p->family == 4 ? c->virtual4 : c->virtual6) || !served(c, p->dport)) {
		note_direct(p, c);
		return ONPATH_NEXT;
	}
	onpath_copy_address(k.src, p->src);
	k.sport = p->sport;
	k.dport = p->dport;
	k.protocol = p->protocol;
	k.family = p->family;
	known = bpf_map_lookup_elem(&flows, &k);
	if (!known) {
		seen = 0;
		known = bpf_map_lookup_elem(&tried, &k);
	}
	b = kept(known, p);
	if (b && !seen && !(p->is & (ONPATH_IS_SYN | ONPATH_IS_ERROR))) {
		fresh = *known;
		bpf_map_update_elem(&flows, &k, &fresh, 0);
	}
	if (!b) {
		b = choose(c, &k, &fresh);
		if (!b) {
			onpath_count(unserved, p->segments);
			return onpath_refuse(p, REASON_NONE);
		}
		if (!(p->is & ONPATH_IS_ERROR)) {
			fresh.seen = clock_of(p);
			if (seen)
				bpf_map_update_elem(&flows, &k, &fresh, 0);
			else
				bpf_map_update_elem(&tried, &k, &fresh, 0);
			if (known)
				onpath_count(moved, 1);
			else
				onpath_count(fresh, 1);
			way = between(p, p->src, p->sport, b->addr, b->port ? b->port : p->dport);
			bpf_map_delete_elem(&direct, &way); /* the ports are used again */
		}
	}
	onpath_set_destination(p, b->addr, b->port);
	onpath_count(balanced, p->segments);
	return ONPATH_NEXT;
}
