/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The fast path, at XDP of uplinks between which packets are routed: it runs the
 * ebpf functions of established flows that leave at this node by a next hop that is
 * known (lib/hop.h). All else goes on to tc as it came: first packets, packets to
 * containers, begins and ends of connections, fragments, options, tags, packets that
 * are too long or have come too far, translations, mirrors, and everything while
 * somebody captures or watches a flow, or nobody watches routes.
 */
#ifndef ONPATH_FAST_H
#define ONPATH_FAST_H

#include "inline.h"
#include "parse.h"

#define NOT_FIRST_OR_LAST 0x3fff /* IPv4: offset and more fragments */
#define TCP_BEGIN_OR_END  0x07   /* FIN, SYN, RST */

/* Kernels before 5.18 have no frames in several buffers; the driver says so. */
const volatile __u32 several_buffers = 1;

/* What carry needs of a packet beside its key. */
struct fast_packet {
	__u32 length; /* bytes of IP */
	__u32 frags;  /* the frame lies in several buffers */
};

static __always_inline int read_ports(struct flow_key *k, const __u8 *l4, const __u8 *end, __u32 proto,
				      __u32 tunnel_port)
{
	__be16 id;

	k->proto = proto;
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
		return k->dport != bpf_htons(tunnel_port) && k->dport != bpf_htons(GIST_PORT);
	}
	if (proto == IPPROTO_ICMP ? l4[0] != 8 && l4[0] != 0 : l4[0] != 128 && l4[0] != 129)
		return 0;
	id = *(const __be16 *)(l4 + 4);
	k->sport = k->dport = id;
	return 1;
}

/* The key of the frame's flow, if it is one that the fast path may finish. */
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
		f->length = bpf_ntohs(h->tot_len);
		head = sizeof(*h) + 8;
		l4 = l3 + sizeof(*h);
	} else if (type == bpf_htons(ETH_P_IPV6)) {
		const struct ipv6hdr *h = (const void *)l3;

		if (l3 + sizeof(*h) + 8 > end || (*l3 & 0xf0) != 0x60 || h->hop_limit <= 1)
			return 0;
		proto = h->nexthdr;
		if (proto != IPPROTO_TCP && proto != IPPROTO_UDP && proto != IPPROTO_ICMPV6)
			return 0;
		copy_addr(k->src, &h->saddr);
		copy_addr(k->dst, &h->daddr);
		if (is_mapped(k->src) || is_mapped(k->dst))
			return 0;
		f->length = bpf_ntohs(h->payload_len) + sizeof(*h);
		head = sizeof(*h) + 8;
		l4 = l3 + sizeof(*h);
	} else {
		return 0;
	}
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
	return read_ports(k, l4, end, proto, u->tunnel_port);
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
	return ((u->fast.lease - now) & SEEN_MASK) <= SEEN_MASK / 2;
}

/* On with the dispatcher at XDP, which counts and finishes the packet; if there is
 * none, to tc. */
static __always_inline int run_functions(struct xdp_md *ctx, const struct uplink *u, struct uplink_counters *c,
					 struct flow *e, __u32 hop, const struct flow_key *k, __u32 length)
{
	__u32 zero = 0;
	struct fast_run *r = bpf_map_lookup_elem(&fast_runs, &zero);

	if (!r)
		return XDP_PASS;
	copy_addr(r->src, k->src);
	copy_addr(r->dst, k->dst);
	r->sport = k->sport;
	r->dport = k->dport;
	r->protocol = k->proto;
	r->direction = e->flags & FLOW_REVERSE ? ONPATH_REVERSE : ONPATH_FORWARD;
	r->length = length;
	r->now = c->clock;
	*(__u64 *)r->functions = *(const __u64 *)e->functions;
	r->hop = hop;
	r->path = entry_path(e);
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
	struct flow_key k __attribute__((aligned(8)));
	struct hop_slot *h;
	struct fast_packet p;
	struct flow *e;
	__u32 now, hop;

	if (!u->fast.epoch || !read_packet(ctx, u, &k, &p))
		return XDP_PASS;
	if (!may_have_entry(&k))
		return XDP_PASS;
	k.scope = u->edge;
	e = flow_established(&k);
	if (!e || entry_kind(e) != NEXT_EXIT || !e->functions[0])
		return XDP_PASS;
	now = seconds(c);
	hop = entry_hop(e, u->fast.epoch, now);
	h = hop ? bpf_map_lookup_elem(&hops, &hop) : NULL;
	if (!h || p.length > h->hop.mtu || (p.frags && !(h->hop.flags & HOP_FRAGS)))
		return XDP_PASS;
	if (e->seen != now) {
		if (!watched(u, now))
			return XDP_PASS;
		entry_set_seen(e, now);
		if ((e->flags & FLOW_RST) && !refresh_always) /* as touch */
			e->flags &= ~FLOW_RST;
	}
	if (h->used != now)
		h->used = now;
	return run_functions(ctx, u, c, e, hop, &k, p.length);
}

#endif
