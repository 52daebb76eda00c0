/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Changes to a packet's tuple and DSCP that a function asks for, with checksums,
 * at tc. In ICMP errors the quoted packet is changed too, the other way round; its
 * own transport checksum stays as it is, which nobody verifies (RFC 5508 §4.2).
 */
#ifndef ONPATH_EDIT_H
#define ONPATH_EDIT_H

#include "packet.h"

/* Offset of the transport checksum, or 0 if there is none that we know. */
static __always_inline __u32 transport_sum(const struct pkt *p)
{
	switch (p->key.proto) {
	case IPPROTO_TCP:
		return p->l4 + 16;
	case IPPROTO_UDP:
		return p->l4 + 6;
	case IPPROTO_ICMPV6:
		return p->l4 + 2;
	}
	return 0;
}

/* Where the ports of a tuple stand that may be changed, from off on; 0: nowhere. */
static __always_inline __u32 port_at(const struct pkt *p, __u32 off, __u32 which)
{
	switch (p->key.proto) {
	case IPPROTO_TCP:
	case IPPROTO_UDP:
		return off + which * 2;
	}
	return 0;
}

/* Another address at the source (0) or destination (1) of the packet itself. */
static __always_inline void edit_address(struct __sk_buff *skb, struct pkt *p, __u32 which,
					 const __u8 *from, const __u8 *to, __u32 sum)
{
	__u64 flags = BPF_F_PSEUDO_HDR | (p->key.proto == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0);
	__s64 diff = bpf_csum_diff((__be32 *)from, 16, (__be32 *)to, 16, 0);

	if (sum)
		bpf_l4_csum_replace(skb, sum, 0, diff, flags);
	if (p->family == FAMILY_4) {
		bpf_l3_csum_replace(skb, p->l3 + 10, 0, diff, 0);
		bpf_skb_store_bytes(skb, p->l3 + 12 + which * 4, to + 12, 4, 0);
	} else {
		bpf_skb_store_bytes(skb, p->l3 + 8 + which * 16, to, 16, 0);
	}
}

/* In an ICMP error: the address of the quoted packet. */
static __always_inline void edit_quoted(struct __sk_buff *skb, struct pkt *p, __u32 which,
					const __u8 *from, const __u8 *to, __be16 old, __be16 new)
{
	__s64 diff = bpf_csum_diff((__be32 *)from, 16, (__be32 *)to, 16, 0);
	__u32 at = port_at(p, p->inner_l4, which), sum = p->l4 + 2;

	if (p->family == FAMILY_4) {
		/* The quoted header's own sum takes up what its address changes. */
		bpf_l3_csum_replace(skb, p->inner_l3 + 10, 0, diff, 0);
		bpf_skb_store_bytes(skb, p->inner_l3 + 12 + which * 4, to + 12, 4, 0);
	} else {
		bpf_l4_csum_replace(skb, sum, 0, diff, 0);
		bpf_skb_store_bytes(skb, p->inner_l3 + 8 + which * 16, to, 16, 0);
	}
	if (at && old != new) {
		bpf_l4_csum_replace(skb, sum, old, new, 2);
		bpf_skb_store_bytes(skb, at, &new, 2, 0);
	}
}

/* The source (0) or destination (1) of an ICMP error itself. */
static __always_inline void outer_address(struct __sk_buff *skb, const struct pkt *p, __u32 which, __u8 *a)
{
	map_v4(a, 0);
	if (p->family == FAMILY_4)
		bpf_skb_load_bytes(skb, p->l3 + 12 + which * 4, &V4(a), 4);
	else
		bpf_skb_load_bytes(skb, p->l3 + 8 + which * 16, a, 16);
}

/* The source (0) or destination (1) of pkt.key, and of the packet, becomes addr and
 * port; port 0 keeps the one that is. */
__noinline int edit_end(struct __sk_buff *skb, __u32 which)
{
	struct pkt *p = packet();
	__u32 sum, at;
	__u8 from[16] __attribute__((aligned(8))), outer[16] __attribute__((aligned(8)));
	__be16 old;

	if (!p)
		return -1;
	copy_addr(from, which ? p->key.dst : p->key.src);
	old = which ? p->key.dport : p->key.sport;
	if (!p->end_port || (p->is & IS_NOPORTS) || !port_at(p, 1, which))
		p->end_port = old;
	if (p->is & IS_ERROR) {
		if (p->is & IS_NOPORTS)
			return -1;
		outer_address(skb, p, which, outer);
		/* A router on the way sends errors with its own address. */
		if (same_addr(outer, from))
			edit_address(skb, p, which, from, p->end, p->family == FAMILY_6 ? p->l4 + 2 : 0);
		edit_quoted(skb, p, !which, from, p->end, old, p->end_port);
	} else {
		sum = p->is & IS_LATER ? 0 : transport_sum(p);
		edit_address(skb, p, which, from, p->end, sum);
		at = p->is & IS_LATER ? 0 : port_at(p, p->l4, which);
		if (at && sum && old != p->end_port) {
			bpf_l4_csum_replace(skb, sum, old, p->end_port,
					    2 | (p->key.proto == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0));
			bpf_skb_store_bytes(skb, at, &p->end_port, 2, 0);
		}
	}
	if (which) {
		copy_addr(p->key.dst, p->end);
		p->key.dport = p->end_port;
	} else {
		copy_addr(p->key.src, p->end);
		p->key.sport = p->end_port;
	}
	p->edited = 1;
	return 0;
}

/* The tuple becomes again what its sender wrote, who would not know the other one. */
__noinline int unedit(struct __sk_buff *skb)
{
	struct pkt *p = packet();

	if (!p)
		return -1;
	if (p->edited) {
		copy_addr(p->end, p->came.src);
		p->end_port = p->came.sport;
		if (edit_end(skb, 0))
			return -1;
	}
	if (!p->edited && !p->inward)
		return 0;
	copy_addr(p->end, p->inward ? p->outside : p->came.dst);
	p->end_port = p->inward ? p->outside_port : p->came.dport;
	if (edit_end(skb, 1))
		return -1;
	p->edited = p->inward = 0;
	return 0;
}

/* The differentiated services code point (RFC 2474); ECN stays. */
__noinline int edit_dscp(struct __sk_buff *skb, __u32 dscp)
{
	struct pkt *p = packet();
	__u16 old, new;
	__u8 b[2];

	if (!p || bpf_skb_load_bytes(skb, p->l3, b, 2))
		return -1;
	old = *(__u16 *)b;
	if (p->family == FAMILY_4) {
		b[1] = (b[1] & 3) | (dscp << 2);
		new = *(__u16 *)b;
		bpf_l3_csum_replace(skb, p->l3 + 10, old, new, 2);
	} else {
		b[0] = (b[0] & 0xf0) | (dscp >> 2);
		b[1] = (b[1] & 0x3f) | (dscp << 6);
	}
	return bpf_skb_store_bytes(skb, p->l3, b, 2, 0);
}

#endif
