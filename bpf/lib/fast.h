/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The fast path, at XDP of uplinks between which packets are routed: it finishes
 * packets of flows whose entry says that they leave at this node, by a next hop
 * that is known (lib/hop.h). All else goes on to tc as it came: first packets,
 * what goes to elements, begins and ends of connections, fragments, options, tags,
 * what is too long or has come too far, translations, mirrors, and everything
 * while somebody captures or watches a flow, or nobody watches routes.
 *
 * It counts as tc does. Its budget is some 85 ns a packet, so: the key on the
 * stack, one look-up in a hash table, the clock once a tick.
 */
#ifndef ONPATH_FAST_H
#define ONPATH_FAST_H

#include "inline.h"
#include "parse.h"

#define NOT_FIRST_OR_LAST 0x3fff /* IPv4: offset and more fragments */
#define TCP_BEGIN_OR_END  0x07   /* FIN, SYN, RST */
#define HOP_REVERSE       16     /* seconds between two looks at the entry of the answers */

/* Kernels before 5.18 have no frames in several buffers; the driver says so. */
const volatile __u32 several_buffers = 1;

/* What carry needs of a packet beside its key. */
struct fast_packet {
	__u32 length; /* bytes of IP */
	__u32 tcp;    /* 1: ack is its acknowledgement number */
	__u32 ack;
	__u32 frags;  /* the frame lies in several buffers */
};

static __always_inline int read_ports(struct flow_key *k, struct fast_packet *f, const __u8 *l4,
				      const __u8 *end, __u32 proto, __u32 tunnel_port)
{
	if (proto == IPPROTO_TCP) {
		const struct tcp_head *t = (const void *)l4;

		if (l4 + 20 > end || (t->flags & TCP_BEGIN_OR_END))
			return 0;
		f->tcp = 1;
		f->ack = bpf_ntohl(t->ack);
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
	f->tcp = 0;
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
	return read_ports(k, f, l4, end, proto, u->tunnel_port);
}

/* Once a second and flow: it is in use, and so is its next hop. Returns 0 if the
 * packet must go the ordinary way, which refreshes all the rest. */
static __noinline int refresh(struct flow *e, const struct flow_key *k, __u32 now, __u32 hop)
{
	struct hop_place *h = bpf_map_lookup_elem(&hops, &hop);
	__u32 zero = 0, was = e->seen;
	struct fast *fast = bpf_map_lookup_elem(&fasts, &zero);
	struct flow_key back;
	struct flow *r;

	if (!h || !fast || ((fast->lease - now) & SEEN_MASK) > SEEN_MASK / 2)
		return 0;
	if (now / HOP_REVERSE != was / HOP_REVERSE) {
		reverse_key(&back, k, k->scope);
		r = flow_established(&back);
		if (!r)
			return 0;
		if (r->seen != now)
			r->seen = now;
	}
	e->seen = now;
	if (h->used != now)
		h->used = now;
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

static __always_inline void count_entry(struct flow *e, const struct fast_packet *f)
{
	__sync_fetch_and_add(&e->packets, 1);
	__sync_fetch_and_add(&e->bytes, f->length);
	if (f->tcp)
		e->entry = f->ack; /* where entries of an edge have it */
}

/* On with the dispatcher at XDP, which counts and finishes the packet; if there is
 * none, to tc. */
static __always_inline int run_functions(struct xdp_md *ctx, const struct uplink *u, struct uplink_counters *c,
					 struct flow *e, const struct flow_key *k, const struct fast_packet *f,
					 __u32 hop)
{
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
	r->a.length = f->length;
	r->a.now = c->clock;
	*(__u64 *)r->functions = *(const __u64 *)e->functions;
	r->hop = hop;
	r->path = e->path;
	r->edge_slot = u->edge_slot;
	count_entry(e, f);
	bpf_tail_call_static(ctx, &fast_stages, FAST_STAGE_FUNCTIONS);
	__sync_fetch_and_add(&e->packets, -1ull); /* tc counts it */
	__sync_fetch_and_add(&e->bytes, -(__u64)f->length);
	return XDP_PASS;
}

static __always_inline void count_carried(const struct uplink *u, struct flow *e, const struct fast_packet *f)
{
	__u32 slot = u->edge_slot;
	struct vport_counters *v = bpf_map_lookup_elem(&vport_stats, &slot);
	struct path_counters *c;

	count_entry(e, f);
	if (v) {
		v->in_packets++;
		v->in_bytes += f->length;
		v->out_packets++;
		v->out_bytes += f->length;
	}
	slot = e->path;
	if (!slot)
		return;
	c = bpf_map_lookup_elem(&path_stats, &slot);
	if (c) {
		c->steered_packets++;
		c->steered_bytes += f->length;
	}
}

/* Finish the packet, or leave it as it is: XDP_PASS. */
static __always_inline int carry(struct xdp_md *ctx, const struct uplink *u, struct uplink_counters *c)
{
	struct hop_place *h;
	struct fast_packet f;
	struct flow_key k;
	__u32 zero = 0, hop, now;
	struct fast *fast;
	struct flow *e;
	__u8 *data, *end, *l3;

	if (!read_packet(ctx, u, &k, &f))
		return XDP_PASS;
	fast = bpf_map_lookup_elem(&fasts, &zero);
	e = flow_established(&k);
	if (!e || !fast || !fast->epoch || entry_kind(e) != NEXT_EXIT)
		return XDP_PASS;
	now = seconds(c);
	hop = entry_hop(e, fast->epoch, now);
	if (!hop)
		return XDP_PASS;
	h = bpf_map_lookup_elem(&hops, &hop);
	if (!h || f.length > h->hop.mtu || (f.frags && !(h->hop.flags & HOP_FRAGS)))
		return XDP_PASS;
	if (e->seen != now && !refresh(e, &k, now, hop))
		return XDP_PASS;
	if (e->functions[0])
		return run_functions(ctx, u, c, e, &k, &f, hop);
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	l3 = data + ETH_HLEN;
	if (l3 + sizeof(struct iphdr) > end)
		return XDP_PASS;
	count_carried(u, e, &f);
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
