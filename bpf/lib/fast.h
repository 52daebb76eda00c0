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
 * most packets need lies in one line of it (lib/lane.h); the flow's entry is looked
 * up where it has no lane, and every few seconds.
 */
#ifndef ONPATH_FAST_H
#define ONPATH_FAST_H

#include "inline.h"
#include "lane.h"

#define NOT_FIRST_OR_LAST 0x3fff /* IPv4: offset and more fragments */
#define TCP_BEGIN_OR_END  0x07   /* FIN, SYN, RST */

/* Kernels before 5.18 have no frames in several buffers; the driver says so. */
const volatile __u32 several_buffers = 1;

/* What carry needs of a packet beside its key. */
struct fast_packet {
	__u32 length; /* bytes of IP */
	__u32 frags;  /* the frame lies in several buffers */
};

static __always_inline int read_ports(struct flow_name *n, const __u8 *l4, const __u8 *end, __u32 proto,
				      __u32 tunnel_port)
{
	__u32 ports;

	if (proto == IPPROTO_TCP) {
		if (l4 + sizeof(struct tcp_head) > end || l4[12] < 0x50 || (l4[13] & TCP_BEGIN_OR_END))
			return 0;
		n->id |= *(const __u32 *)l4;
		return 1;
	}
	if (l4 + 8 > end)
		return 0;
	if (proto == IPPROTO_UDP) {
		ports = *(const __u32 *)l4;
		n->id |= ports;
		return ports >> 16 != bpf_htons(tunnel_port);
	}
	if (proto == IPPROTO_ICMP ? l4[0] != 8 && l4[0] != 0 : l4[0] != 128 && l4[0] != 129)
		return 0;
	ports = *(const __be16 *)(l4 + 4);
	n->id |= ports << 16 | ports;
	return 1;
}

/* The name of the frame's flow, if it is one that the fast path may finish. */
static __always_inline int read_packet(struct xdp_md *ctx, const struct uplink *u, struct flow_name *n,
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
		n->who = h->saddr | (__u64)h->daddr << 32;
		n->id = LANE_4 << LANE_KIND;
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
		if (is_mapped(a) || is_mapped(a + 2))
			return 0;
		n->who = a[0];
		n->source = a[1];
		n->destination[0] = a[2];
		n->destination[1] = a[3];
		n->id = LANE_WIDE << LANE_KIND;
		f->length = bpf_ntohs(h->payload_len) + sizeof(*h);
		head = sizeof(*h) + 8;
		l4 = l3 + sizeof(*h);
	} else {
		return 0;
	}
	n->id |= (__u64)proto << LANE_PROTO;
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
	return read_ports(n, l4, end, proto, u->tunnel_port);
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

/* While nobody watches routes, next hops are found anew each second. */
static __always_inline int watched(const struct uplink *u, __u32 now)
{
	return passed(now, u->fast.lease) <= SEEN_MASK / 2;
}

/* What is known about the flow of a packet: its lane or else its entry. */
struct known {
	struct lane *lane;
	struct flow *entry;
	__u32 hop;
	__u32 path; /* slot */
};

/* By the entry of k. Returns 0 if the packet must go to tc. */
static __always_inline int by_entry(struct known *f, const struct lane_search *s, struct flow_key *k,
				    const struct uplink *u, struct uplink_counters *c)
{
	struct flow *e;

	if (!s->near || !s->far || !s->beside)
		return 0;
	clear_line(s->near, s); /* may be this flow's */
	clear_line(s->far, s);
	clear_line(s->beside, s);
	key_of(k, &s->name, s->edge);
	e = flow_known(k);
	if (!e || entry_kind(e) != NEXT_EXIT)
		return 0;
	f->hop = entry_hop(e, u->fast.epoch, s->now);
	if (!f->hop)
		return 0;
	if (e->seen != s->now) {
		if (!s->epoch)
			return 0;
		e->seen = s->now;
		if (e->flags & FLOW_RST) /* as touch */
			e->flags &= ~FLOW_RST;
	}
	f->entry = e;
	f->path = e->path;
	if (!e->functions[0] && s->epoch)
		take_lane(s, e, c);
	return 1;
}

/* k is written if the entry is asked. */
static __always_inline int find_known(struct known *f, struct lane_search *s, struct flow_key *k,
				      const struct uplink *u, struct uplink_counters *c)
{
	f->entry = NULL;
	s->edge = u->edge;
	s->epoch = watched(u, s->now) ? (__u8)u->fast.epoch : 0; /* then no lane is true */
	s->name.id |= (__u64)s->epoch << LANE_EPOCH | (__u64)(__u8)u->edge << LANE_SCOPE;
	f->lane = find_lane(s);
	if (!f->lane)
		return by_entry(f, s, k, u, c);
	f->hop = f->lane->count >> LANE_HOP;
	f->path = (f->lane->count >> LANE_PATH) & (MAX_PATHS - 1);
	return 1;
}

static __always_inline void count_carried(const struct known *f, struct uplink_counters *c,
					  struct path_counters *path, __u32 length, __u32 now)
{
	if (f->lane) {
		f->lane->packets++;
		f->lane->count += length;
		f->lane->age = now - f->lane->since;
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
	struct lane_search s;
	struct known f;
	struct flow_key k __attribute__((aligned(8)));
	__u8 *data, *end, *l3;
	__u32 now;

	if (!u->fast.epoch || !read_packet(ctx, u, &s.name, &p))
		return XDP_PASS;
	s.now = now = seconds(c);
	if (!find_known(&f, &s, &k, u, c))
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
