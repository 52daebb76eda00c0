/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Replying to the queries of peers' agents (struct probe): where a peer's
 * packets would be taken off the underlay, in the kernel, so that a reply says
 * that packets would be taken too and that a restarting agent is not a dead node.
 */
#ifndef ONPATH_PROBE_H
#define ONPATH_PROBE_H

#include "count.h"
#include "tunnel.h"

/* Exchange n bytes at two offsets of the packet. n is constant, 16 at most. */
static __always_inline int exchange(struct __sk_buff *skb, __u32 a, __u32 b, const __u32 n)
{
	__u8 x[16], y[16];

	return bpf_skb_load_bytes(skb, a, x, n) || bpf_skb_load_bytes(skb, b, y, n) ||
	       bpf_skb_store_bytes(skb, a, y, n, 0) || bpf_skb_store_bytes(skb, b, x, n, 0);
}

/* Write four bytes and keep UDP's checksum true. Addresses and ports that are
 * exchanged do not change it. */
static __always_inline int put_word(struct __sk_buff *skb, __u32 l4, __u32 at, __u32 old, __u32 new)
{
	return bpf_l4_csum_replace(skb, l4 + 6, old, new, 4 | BPF_F_MARK_MANGLED_0) ||
	       bpf_skb_store_bytes(skb, at, &new, 4, 0);
}

/* The state of a vport of this node; closed if it is not of this node. */
static __always_inline __u32 state_of(__u32 id)
{
	__u32 slot = 0;
	struct vport *v = vport_of(&slot, id);

	if (!v || v->kind == VPORT_REMOTE)
		return STATE_CLOSED;
	return v->state;
}

/* Fill in the state of the vport that the query names at an offset: 0, or it has none
 * there. */
__noinline int put_state(struct __sk_buff *skb, __u32 l4, __u32 at)
{
	__u32 word;

	if (bpf_skb_load_bytes(skb, at, &word, 4))
		return -1;
	return put_word(skb, l4, at, word, (word & bpf_htonl(0xffffff00)) | bpf_htonl(state_of(bpf_ntohl(word) >> 8)));
}

/* Who sent the query, pkt.akey, and where its UDP header is, pkt.l4. l3 is where the IP header
 * is. */
static __always_inline int read_querier(struct __sk_buff *skb, struct pkt *p, const __u32 l3)
{
	__be32 source;
	__u8 first;

	if (bpf_skb_load_bytes(skb, l3, &first, 1))
		return -1;
	__builtin_memset(&p->akey, 0, sizeof(p->akey));
	if (first >> 4 == 6) {
		p->l4 = l3 + sizeof(struct ipv6hdr);
		p->akey.family = FAMILY_6;
		return bpf_skb_load_bytes(skb, l3 + 8, p->akey.addr, 16);
	}
	p->l4 = l3 + (first & 0xf) * 4;
	p->akey.family = FAMILY_4;
	if (bpf_skb_load_bytes(skb, l3 + 12, &source, 4))
		return -1;
	map_v4(p->akey.addr, source);
	return 0;
}

/* Send the query back with the states filled in. */
static __always_inline int reply_from(struct __sk_buff *skb, const __u32 l3)
{
	struct pkt *p = packet();
	struct peer_ref *peer;
	__u32 l4, body, i, word;
	__u8 w[8];
	int v6;

	if (!p)
		return TC_ACT_SHOT;
	if (read_querier(skb, p, l3))
		return drop(p, DROP_MALFORMED);
	peer = bpf_map_lookup_elem(&peer_addrs, &p->akey);
	if (!peer)
		return drop(p, DROP_TUNNEL_SOURCE);
	l4 = p->l4;
	body = l4 + 8;
	v6 = p->akey.family == FAMILY_6;
	if (bpf_skb_load_bytes(skb, body + offsetof(struct probe, secret), w, 8) || w[3] != PROBE_QUERY)
		return drop(p, DROP_MALFORMED);
	if (get24(w) != peer->secret)
		return drop(p, DROP_TUNNEL_SECRET);
	for (i = 0; i < PROBE_VPORTS; i++) {
		if (i >= w[4])
			break;
		if (put_state(skb, l4, body + offsetof(struct probe, vports) + 4 * i))
			return drop(p, DROP_MALFORMED);
	}
	__builtin_memcpy(&word, w, 4);
	w[3] = PROBE_REPLY;
	if (put_word(skb, l4, body + offsetof(struct probe, secret), word, *(__u32 *)w) ||
	    (l3 && exchange(skb, 0, 6, 6)) || exchange(skb, l4, l4 + 2, 2))
		return drop(p, DROP_MALFORMED);
	if (v6 ? exchange(skb, l3 + 8, l3 + 24, 16) : exchange(skb, l3 + 12, l3 + 16, 4))
		return drop(p, DROP_MALFORMED);
	return bpf_redirect(skb->ifindex, 0);
}

__noinline int reply_probe(struct __sk_buff *skb) { return reply_from(skb, ETH_HLEN); }

/* A query inside WireGuard, whose device has no Ethernet header. */
__noinline int reply_inside(struct __sk_buff *skb) { return reply_from(skb, 0); }

#endif
