/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Changes to a frame at XDP that a function asks for, as lib/edit.h makes them at
 * tc. The fast path has let through what these need: an IP header without options
 * or extensions, no fragment, no ICMP error, and whole checksums.
 */
#ifndef ONPATH_FAST_EDIT_H
#define ONPATH_FAST_EDIT_H

#include "inline.h"

/* An Internet checksum after the sum of what it covers changed by diff. */
static __always_inline __u16 summed(__u16 check, __u32 diff)
{
	__u64 s = (__u64)(__u16)~check + diff;

	s = (s & 0xffff) + ((s >> 16) & 0xffff) + (s >> 32);
	s = (s & 0xffff) + (s >> 16);
	s = (s & 0xffff) + (s >> 16);
	return ~s;
}

/* The transport checksum takes up what addresses and ports change. */
static __always_inline void sum_transport(__u8 *l4, const void *end, __u32 proto, __u32 diff)
{
	__u16 *check;

	if (proto == IPPROTO_UDP) {
		check = (void *)(l4 + 6);
		if ((void *)(check + 1) > end || !*check) /* 0: has none */
			return;
		*check = summed(*check, diff);
		if (!*check)
			*check = 0xffff;
		return;
	}
	if (proto == IPPROTO_TCP)
		check = (void *)(l4 + 16);
	else if (proto == IPPROTO_ICMPV6)
		check = (void *)(l4 + 2);
	else
		return;
	if ((void *)(check + 1) <= end)
		*check = summed(*check, diff);
}

/* The source (0) or destination (1) becomes addr and port; port 0 keeps the one
 * that is. */
static __always_inline int edit_frame_end(struct xdp_md *ctx, struct fast_run *r, __u32 which, const __u8 *addr,
					  __be16 port)
{
	__u8 *was = which ? r->dst : r->src;
	__be16 *had = which ? &r->dport : &r->sport;
	__u32 proto = r->protocol, v4 = r->family == FAMILY_4;
	__s64 diff = bpf_csum_diff((__be32 *)was, 16, (__be32 *)addr, 16, 0);
	__u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u8 *l3 = data + ETH_HLEN, *l4;

	if (v4) {
		struct iphdr *h = (void *)l3;

		l4 = l3 + sizeof(*h);
		if (l4 + 8 > end)
			return -1;
		h->check = summed(h->check, diff);
		*(which ? &h->daddr : &h->saddr) = V4(addr);
		if (proto != IPPROTO_ICMP)
			sum_transport(l4, end, proto, diff);
	} else {
		l4 = l3 + sizeof(struct ipv6hdr);
		if (l4 + 8 > end)
			return -1;
		copy_addr(l3 + 8 + which * 16, addr);
		sum_transport(l4, end, proto, diff);
	}
	copy_addr(was, addr);
	if (port && port != *had && (proto == IPPROTO_TCP || proto == IPPROTO_UDP)) {
		*(__be16 *)(l4 + which * 2) = port;
		sum_transport(l4, end, proto, (__u32)(__u16)~*had + port);
		*had = port;
	}
	return 0;
}

static __always_inline void edit_frame_dscp(struct xdp_md *ctx, struct fast_run *r, __u32 dscp)
{
	__u8 *l3 = (void *)(long)ctx->data + ETH_HLEN, *end = (void *)(long)ctx->data_end;

	if (l3 + sizeof(struct iphdr) > end)
		return;
	if (r->family == FAMILY_4) {
		struct iphdr *h = (void *)l3;
		__u16 was = *(__u16 *)l3;

		h->tos = (h->tos & 3) | dscp << 2;
		h->check = summed(h->check, (__u32)(__u16)~was + *(__u16 *)l3);
	} else {
		l3[0] = (l3[0] & 0xf0) | dscp >> 2;
		l3[1] = (l3[1] & 0x3f) | dscp << 6;
	}
}

static __always_inline int allowed_address(const struct fast_run *r, const __u8 *a)
{
	return (r->family == FAMILY_4) == is_mapped(a);
}

/* Carry out what a function asked for. */
__noinline int edit_frame(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct fast_run *r = bpf_map_lookup_elem(&fast_runs, &zero);

	if (!r)
		return -1;
	if ((r->d.a.edit & (ONPATH_SET_SRC | ONPATH_SET_DST)) && !r->edited) {
		copy_addr(r->came_src, r->src);
		copy_addr(r->came_dst, r->dst);
		r->came_sport = r->sport;
		r->came_dport = r->dport;
		r->edited = 1;
	}
	if (r->d.a.edit & ONPATH_SET_SRC)
		if (!allowed_address(r, r->d.a.new_src) || edit_frame_end(ctx, r, 0, r->d.a.new_src, r->d.a.new_sport))
			return -1;
	if (r->d.a.edit & ONPATH_SET_DST)
		if (!allowed_address(r, r->d.a.new_dst) || edit_frame_end(ctx, r, 1, r->d.a.new_dst, r->d.a.new_dport))
			return -1;
	if (r->d.a.edit & ONPATH_SET_DSCP)
		edit_frame_dscp(ctx, r, r->d.a.new_dscp & 63);
	return 0;
}

/* The tuple becomes again what its sender wrote. */
__noinline int unedit_frame(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct fast_run *r = bpf_map_lookup_elem(&fast_runs, &zero);

	if (!r || edit_frame_end(ctx, r, 0, r->came_src, r->came_sport) ||
	    edit_frame_end(ctx, r, 1, r->came_dst, r->came_dport))
		return -1;
	r->edited = 0;
	return 0;
}

#endif
