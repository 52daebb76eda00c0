/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Changes to packets that pass: MAC addresses, hop limit, TCP's MSS. */
#ifndef ONPATH_REWRITE_H
#define ONPATH_REWRITE_H

#include "packet.h"

static __always_inline void set_macs(struct __sk_buff *skb, const struct vport *v)
{
	bpf_skb_store_bytes(skb, 0, v->dmac, 12, 0); /* dmac and smac adjoin */
}

/* Say by the source address on which chain and in which direction the packet is: the
 * bytes behind the first two, of which the first says that they do. */
static __always_inline void write_chain_tag(struct __sk_buff *skb, struct pkt *p)
{
	p->chain_tag = bpf_htonl(0x60u << 24 | p->d.path << 6 | !!(p->d.flags & FLOW_REVERSE));
	bpf_skb_store_bytes(skb, 6 + 2, &p->chain_tag, sizeof(p->chain_tag), 0);
}

static __always_inline void pop_vlans(struct __sk_buff *skb, struct pkt *p)
{
	if (skb->vlan_present) {
		bpf_skb_vlan_pop(skb);
	}
	if (p->tags) {
		/* The next tag, if any, moves into the metadata. */
		bpf_skb_vlan_pop(skb);
		p->l3 -= 4;
		p->l4 -= 4;
		if (p->tags > 1) {
			bpf_skb_vlan_pop(skb);
			p->l3 -= 4;
			p->l4 -= 4;
		}
		p->tags = 0;
	}
}

static __always_inline void decrement_ttl(struct __sk_buff *skb, struct pkt *p)
{
	__u8 ttl = p->ttl - 1;

	if (p->family == FAMILY_4) {
		__u16 proto;

		/* TTL and protocol are one word of the header's sum. */
		if (bpf_skb_load_bytes(skb, p->l3 + 8, &proto, 2))
			return;
		bpf_l3_csum_replace(skb, p->l3 + 10, proto, bpf_htons(bpf_ntohs(proto) - 0x100), 2);
		bpf_skb_store_bytes(skb, p->l3 + 8, &ttl, 1, 0);
	} else {
		bpf_skb_store_bytes(skb, p->l3 + 7, &ttl, 1, 0);
	}
	p->ttl = ttl;
}

#define MAX_OPTIONS 20

/* Lower the MSS option of a SYN so that segments fit into mtu bytes of IP. */
__noinline int clamp_mss(struct __sk_buff *skb, __u32 mtu)
{
	struct pkt *p = packet();
	__u32 i, most, at, end;
	__u16 mss, old, new;
	__u8 o[4], len;

	if (!p || mtu < 88)
		return 0;
	most = mtu - (p->family == FAMILY_4 ? 40 : 60);
	if (bpf_skb_load_bytes(skb, p->l4 + 12, &len, 1))
		return 0;
	end = (len >> 4) * 4;
	if (p->l4 + end > p->l3 + p->length)
		end = p->l3 + p->length - p->l4; /* what lies behind is padding */
	at = 20;
	for (i = 0; i < MAX_OPTIONS; i++) {
		if (at + 4 > end || bpf_skb_load_bytes(skb, p->l4 + at, o, 4))
			return 0;
		if (o[0] == 0)
			return 0;
		if (o[0] == 1) {
			at++;
			continue;
		}
		if (o[0] == 2 && o[1] == 4)
			break;
		if (o[1] < 2)
			return 0;
		at += o[1];
	}
	if (i == MAX_OPTIONS)
		return 0;
	mss = (__u16)o[2] << 8 | o[3];
	if (mss <= most)
		return 0;
	old = bpf_htons(mss);
	new = bpf_htons(most);
	bpf_skb_store_bytes(skb, p->l4 + at + 2, &new, 2, 0);
	if (at & 1) { /* the sum adds words at even offsets */
		old = __builtin_bswap16(old);
		new = __builtin_bswap16(new);
	}
	bpf_l4_csum_replace(skb, p->l4 + 16, old, new, 2);
	return 1;
}

#endif
