/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The fast path, at XDP of uplinks between which packets are routed: it finishes
 * packets of flows whose entry says that they leave at this node, by a next hop
 * that is known (lib/hop.h). All else goes on to tc as it came: first packets,
 * what goes to elements, begins and ends of connections, fragments, options, tags,
 * what is too long or has come too far, translations, mirrors, and everything
 * while somebody captures or watches a flow, or nobody watches routes.
 *
 * It counts as tc does. A packet's own cost is mostly waiting for memory, so what
 * most packets need lies in one line of it (struct lane); the flow's entry is
 * looked up where it has no lane, and every few seconds.
 */
#ifndef ONPATH_FAST_H
#define ONPATH_FAST_H

#include "inline.h"
#include "parse.h"

#define NOT_FIRST_OR_LAST 0x3fff /* IPv4: offset and more fragments */
#define TCP_BEGIN_OR_END  0x07   /* FIN, SYN, RST */
#define LANE_LIFE         8      /* seconds; below HOP_FRESH */
#define LANE_PATIENCE     16     /* a power of two */

/* Kernels before 5.18 have no frames in several buffers; the driver says so. */
const volatile __u32 several_buffers = 1;

/* Sets of lanes of one CPU, a power of two. */
const volatile __u32 cpu_lanes = 1 << 10;

/* What carry needs of a packet beside its key. */
struct fast_packet {
	__u64 hash;
	__u32 length; /* bytes of IP */
	__u32 frags;  /* the frame lies in several buffers */
};

static __always_inline __u64 spread(__u64 h, __u64 with)
{
	h = (h ^ with) * LANE_MULTIPLIER;
	return h ^ h >> 32;
}

static __always_inline int read_ports(struct flow_key *k, const __u8 *l4, const __u8 *end, __u32 proto,
				      __u32 tunnel_port)
{
	if (proto == IPPROTO_TCP) {
		if (l4 + sizeof(struct tcp_head) > end || l4[12] < 0x50 || (l4[13] & TCP_BEGIN_OR_END))
			return 0;
		*(__u32 *)&k->sport = *(const __u32 *)l4;
		return 1;
	}
	if (l4 + 8 > end)
		return 0;
	if (proto == IPPROTO_UDP) {
		*(__u32 *)&k->sport = *(const __u32 *)l4;
		return k->dport != bpf_htons(tunnel_port);
	}
	if (proto == IPPROTO_ICMP ? l4[0] != 8 && l4[0] != 0 : l4[0] != 128 && l4[0] != 129)
		return 0;
	k->sport = k->dport = *(const __be16 *)(l4 + 4);
	return 1;
}

/* The frame's key, if it is one that the fast path may finish. */
static __always_inline int read_packet(struct xdp_md *ctx, const struct uplink *u, struct flow_key *k,
				       struct fast_packet *f)
{
	const __u8 *data = (const void *)(long)ctx->data, *end = (const void *)(long)ctx->data_end;
	const __u8 *l3 = data + ETH_HLEN, *l4;
	__u32 proto, head, there;
	__be16 type;

	if (l3 + sizeof(struct iphdr) + 8 > end)
		return 0;
	if (*(const __u32 *)data != *(const __u32 *)u->mac || *(const __u16 *)(data + 4) != *(const __u16 *)(u->mac + 4))
		return 0;
	type = *(const __be16 *)(data + 12);
	if (type == bpf_htons(ETH_P_IP)) {
		const struct iphdr *h = (const void *)l3;

		if (*l3 != 0x45 || (h->frag_off & bpf_htons(NOT_FIRST_OR_LAST)) || h->ttl <= 1)
			return 0;
		proto = h->protocol;
		if (proto != IPPROTO_TCP && proto != IPPROTO_UDP && proto != IPPROTO_ICMP)
			return 0;
		map_v4(k->src, h->saddr);
		map_v4(k->dst, h->daddr);
		f->hash = spread(h->saddr, (__u64)h->daddr << 32);
		f->length = bpf_ntohs(h->tot_len);
		head = sizeof(*h) + 8;
		l4 = l3 + sizeof(*h);
	} else if (type == bpf_htons(ETH_P_IPV6)) {
		const struct ipv6hdr *h = (const void *)l3;
		const __u64 *a = (const void *)(l3 + 8);

		if (l3 + sizeof(*h) + 8 > end || (*l3 & 0xf0) != 0x60 || h->hop_limit <= 1)
			return 0;
		proto = h->nexthdr;
		if (proto != IPPROTO_TCP && proto != IPPROTO_UDP && proto != IPPROTO_ICMPV6)
			return 0;
		copy_addr(k->src, &h->saddr);
		copy_addr(k->dst, &h->daddr);
		if (is_mapped(k->src) || is_mapped(k->dst))
			return 0;
		f->hash = spread(spread(spread(a[0], a[1]), a[2]), a[3]);
		f->length = bpf_ntohs(h->payload_len) + sizeof(*h);
		head = sizeof(*h) + 8;
		l4 = l3 + sizeof(*h);
	} else {
		return 0;
	}
	k->scope = u->edge;
	k->proto = proto;
	there = end - l3;
	f->frags = 0;
	if (f->length > there) {
		if (!several_buffers)
			return 0;
		f->frags = 1;
		there = bpf_xdp_get_buff_len(ctx) - ETH_HLEN;
	}
	if (f->length > there || f->length < head + (proto == IPPROTO_TCP ? 12 : 0))
		return 0;
	if (!read_ports(k, l4, end, proto, u->tunnel_port))
		return 0;
	f->hash = spread(f->hash, *(__u32 *)&k->sport | (__u64)proto << 32);
	return 1;
}

/* From the clock once a tick. */
static __always_inline __u32 seconds(struct uplink_counters *c)
{
	__u64 tick = bpf_jiffies64();

	if (c->tick != tick) {
		c->clock = bpf_ktime_get_coarse_ns();
		c->seconds = (c->clock / NSEC) & SEEN_MASK;
		c->tick = tick;
	}
	return c->seconds;
}

static __always_inline int same_key(const struct flow_key *a, const struct flow_key *b)
{
	const __u64 *x = (const void *)a, *y = (const void *)b;

	return x[0] == y[0] && x[1] == y[1] && x[2] == y[2] && x[3] == y[3] && x[4] == y[4];
}

static __always_inline __u32 passed(__u32 since, __u32 now)
{
	return (now - since) & SEEN_MASK;
}

/* While nobody watches routes, next hops are found anew each second. */
static __always_inline int watched(const struct uplink *u, __u32 now)
{
	return passed(now, u->fast.lease) <= SEEN_MASK / 2;
}

static __always_inline int is_true(const struct lane *l, const struct uplink *u, __u32 now)
{
	return l->epoch == (__u8)u->fast.epoch && passed(l->since, now) < LANE_LIFE;
}

/* Add to the entry what its lane counted. */
static __always_inline void settle(struct lane *l, struct flow *e)
{
	if (l->packets && e->path == l->path) {
		__sync_fetch_and_add(&e->packets, l->packets);
		__sync_fetch_and_add(&e->bytes, l->bytes);
		if (passed(e->seen, l->last) <= SEEN_MASK / 2)
			e->seen = l->last;
	}
	l->packets = 0;
	l->bytes = 0;
}

/* Empty a lane. */
static __noinline int vacate(struct lane *l)
{
	struct flow *e = l->packets ? flow_known(&l->key) : NULL;

	if (e)
		settle(l, e);
	l->epoch = 0;
	l->packets = 0;
	l->bytes = 0;
	return 0;
}

/* A lane of the set that is not true, or NULL. */
static __always_inline struct lane *untrue(struct lanes *set, const struct uplink *u, __u32 now)
{
	if (!is_true(&set->lane[0], u, now))
		return &set->lane[0];
	return is_true(&set->lane[1], u, now) ? NULL : &set->lane[1];
}

/* Give the flow a lane: an untrue one, or now and then another's that is true, so
 * that more flows than there are lanes do not chase each other. */
static __always_inline void take_lane(struct lanes *near, struct lanes *far, const struct flow_key *k,
				      const struct flow *e, const struct uplink *u, struct uplink_counters *c, __u32 now)
{
	struct lane *l = untrue(near, u, now);

	if (!l)
		l = untrue(far, u, now);
	if (!l) {
		if (c->crowded++ % LANE_PATIENCE)
			return;
		l = c->crowded & LANE_PATIENCE ? &far->lane[0] : &far->lane[1];
	}
	vacate(l);
	l->key = *k;
	l->since = now;
	l->epoch = u->fast.epoch;
	l->hop = e->packets >> 48;
	l->path = e->path;
}

/* What is known about the flow of a packet: its lane or else its entry. */
struct known {
	struct lane *lane;
	struct flow *entry;
	__u32 hop;
	__u32 path; /* slot */
};

/* What lanes that are not true any more counted goes to their flows. */
static __always_inline void clear_set(struct lanes *set, const struct uplink *u, __u32 now)
{
	if (set->lane[0].packets && !is_true(&set->lane[0], u, now))
		vacate(&set->lane[0]);
	if (set->lane[1].packets && !is_true(&set->lane[1], u, now))
		vacate(&set->lane[1]);
}

/* By the entry. Returns 0 if the packet must go to tc. */
static __always_inline int by_entry(struct known *f, struct lanes *near, struct lanes *far, const struct flow_key *k,
				    const struct uplink *u, struct uplink_counters *c, __u32 now)
{
	struct flow *e;

	clear_set(near, u, now); /* may be this flow's */
	clear_set(far, u, now);
	e = flow_known(k);
	if (!e || entry_kind(e) != NEXT_EXIT)
		return 0;
	f->hop = entry_hop(e, u->fast.epoch, now);
	if (!f->hop)
		return 0;
	if (e->seen != now) {
		if (!watched(u, now))
			return 0;
		e->seen = now;
	}
	f->entry = e;
	f->path = e->path;
	if (!e->functions[0] && watched(u, now))
		take_lane(near, far, k, e, u, c, now);
	return 1;
}

/* The lane of the key in a set, if it is true, or NULL. */
static __always_inline struct lane *lane_of(struct lanes *set, const struct flow_key *k, const struct uplink *u,
					    __u32 now)
{
	struct lane *l = &set->lane[0];

	if (!same_key(&l->key, k))
		l = &set->lane[1];
	return same_key(&l->key, k) && is_true(l, u, now) ? l : NULL;
}

static __always_inline int find_known(struct known *f, const struct flow_key *k, __u64 hash,
				      const struct uplink *u, struct uplink_counters *c, __u32 now)
{
	__u32 first = bpf_get_smp_processor_id() * cpu_lanes, all = hash & (cpu_lanes - 1);
	__u32 at = first + (all & (NEAR_LANES - 1));
	struct lanes *near = bpf_map_lookup_elem(&lanes, &at), *far;
	struct lane *l;

	if (!near)
		return 0;
	f->entry = NULL;
	f->lane = NULL;
	far = near;
	l = lane_of(near, k, u, now);
	if (!l && all >= NEAR_LANES) {
		at = first + all;
		far = bpf_map_lookup_elem(&lanes, &at);
		if (!far)
			return 0;
		l = lane_of(far, k, u, now);
	}
	if (!l || !watched(u, now))
		return by_entry(f, near, far, k, u, c, now);
	f->lane = l;
	f->hop = l->hop;
	f->path = l->path;
	return 1;
}

static __always_inline void count_carried(const struct known *f, struct uplink_counters *c,
					  struct path_counters *path, __u32 length, __u32 now)
{
	if (f->lane) {
		f->lane->packets++;
		f->lane->bytes += length;
		f->lane->last = now;
	} else if (f->entry) {
		__sync_fetch_and_add(&f->entry->packets, 1);
		__sync_fetch_and_add(&f->entry->bytes, length);
	}
	c->carried++;
	c->carried_bytes += length;
	path->steered_packets++; /* of place 0 nobody reads it */
	path->steered_bytes += length;
}

/* On with the dispatcher at XDP, which counts and finishes the packet; if there is
 * none, to tc. */
static __always_inline int run_functions(struct xdp_md *ctx, const struct uplink *u, struct uplink_counters *c,
					 const struct known *f, const struct flow_key *k, __u32 length)
{
	struct flow *e = f->entry;
	__u32 zero = 0;
	struct fast_run *r = bpf_map_lookup_elem(&fast_runs, &zero);

	if (!r)
		return XDP_PASS;
	copy_addr(r->a.src, k->src);
	copy_addr(r->a.dst, k->dst);
	r->a.sport = k->sport;
	r->a.dport = k->dport;
	r->a.protocol = k->proto;
	r->a.direction = e->flags & FLOW_REVERSE ? ONPATH_REVERSE : ONPATH_FORWARD;
	r->a.length = length;
	r->a.now = c->clock;
	*(__u64 *)r->functions = *(const __u64 *)e->functions;
	r->hop = f->hop;
	r->path = e->path;
	r->edge_slot = u->edge_slot;
	__sync_fetch_and_add(&e->packets, 1);
	__sync_fetch_and_add(&e->bytes, length);
	bpf_tail_call_static(ctx, &fast_stages, FAST_STAGE_FUNCTIONS);
	__sync_fetch_and_add(&e->packets, -1ull); /* tc counts it */
	__sync_fetch_and_add(&e->bytes, -(__u64)length);
	return XDP_PASS;
}

/* Finish the packet, or leave it as it is: XDP_PASS. */
static __always_inline int carry(struct xdp_md *ctx, const struct uplink *u, struct uplink_counters *c)
{
	struct path_counters *path;
	struct hop_place *h;
	struct fast_packet p;
	struct known f;
	struct flow_key k __attribute__((aligned(8)));
	__u8 *data, *end, *l3;
	__u32 now;

	if (!u->fast.epoch || !read_packet(ctx, u, &k, &p))
		return XDP_PASS;
	now = seconds(c);
	if (!find_known(&f, &k, p.hash, u, c, now))
		return XDP_PASS;
	h = bpf_map_lookup_elem(&hops, &f.hop);
	if (!h || p.length > h->hop.mtu || (p.frags && !(h->hop.flags & HOP_FRAGS)))
		return XDP_PASS;
	if (f.entry && f.entry->functions[0]) { /* those have no lane */
		if (h->used != now)
			h->used = now;
		return run_functions(ctx, u, c, &f, &k, p.length);
	}
	path = bpf_map_lookup_elem(&path_stats, &f.path);
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	l3 = data + ETH_HLEN;
	if (!path || l3 + sizeof(struct iphdr) > end)
		return XDP_PASS;
	if (!f.lane && h->used != now)
		h->used = now;
	count_carried(&f, c, path, p.length, now);
	__builtin_memcpy(data, h->hop.dmac, 12); /* dmac and smac adjoin */
	if (*l3 == 0x45) {
		struct iphdr *ip = (void *)l3;
		__u32 sum = (__u32)ip->check + bpf_htons(0x100);

		ip->ttl--;
		ip->check = sum + (sum >= 0xffff);
	} else {
		l3[7]--;
	}
	return bpf_redirect(h->hop.ifindex, 0);
}

#endif
