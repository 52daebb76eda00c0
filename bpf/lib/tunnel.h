/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Between nodes: VXLAN (RFC 7348). The VNI is the next vport. Both ends rewrite
 * the inner MAC addresses anyway, so their twelve bytes carry what the receiver
 * must know to learn: previous vport, entry vport, group, and the pair's
 * secret, three bytes each. To the edge where the flow entered, an entry vport of 0 says
 * that the connection is led past a chain which is younger.
 */
#ifndef ONPATH_TUNNEL_H
#define ONPATH_TUNNEL_H

#include "packet.h"

#define TUNNEL_KEY_SIZE offsetof(struct bpf_tunnel_key, local_ipv4)

static __always_inline void put24(__u8 *b, __u32 v)
{
	b[0] = v >> 16;
	b[1] = v >> 8;
	b[2] = v;
}

static __always_inline __u32 get24(const __u8 *b)
{
	return (__u32)b[0] << 16 | (__u32)b[1] << 8 | b[2];
}

/*
 * For bpf_skb_set_tunnel_key, towards a peer. The packet in the tunnel may be fragmented if
 * the one that it carries may (RFC 2003 §5.1): whoever sends without DF often hears no ICMP.
 */
static __always_inline __u64 tunnel_flags(const struct pkt *p, __u32 slot)
{
	struct peer *peer = bpf_map_lookup_elem(&peers, &slot);

	return (p->is & IS_DIVISIBLE ? 0 : BPF_F_DONT_FRAGMENT) |
	       (peer && peer->family == FAMILY_6 ? BPF_F_TUNINFO_IPV6 : BPF_F_ZERO_CSUM_TX);
}

/* Is the packet too long for what carries mtu bytes, 0: any? */
static __always_inline int is_too_long(const struct pkt *p, __u32 mtu)
{
	return mtu && p->segment > mtu && !((p->is & IS_DIVISIBLE) && p->segment <= LEAST_INTERFACE);
}

/* Make the packet one to the vport in a slot, behind a peer. Returns 0, or a drop
 * reason. */
__noinline int encapsulate(struct __sk_buff *skb, __u32 slot, __u32 prev, __u32 entry, __u32 group)
{
	struct vport *v = bpf_map_lookup_elem(&vports, &slot);
	struct pkt *p = packet();
	struct bpf_tunnel_key *key;
	struct peer *peer;
	__u8 head[12];

	if (!v || !p)
		return DROP_NO_ROUTE;
	slot = v->peer;
	peer = bpf_map_lookup_elem(&peers, &slot);
	if (!peer || !peer->known)
		return DROP_NO_ROUTE;
	key = &p->tunnel;
	__builtin_memset(key, 0, sizeof(*key));
	key->tunnel_id = v->id;
	key->tunnel_ttl = 255;
	if (peer->family == FAMILY_6)
		copy_addr(key->remote_ipv6, peer->addr);
	else
		key->remote_ipv4 = bpf_ntohl(V4(peer->addr));
	put24(head, prev);
	put24(head + 3, entry);
	put24(head + 6, group);
	put24(head + 9, peer->secret);
	bpf_skb_store_bytes(skb, 0, head, sizeof(head), 0);
	if (bpf_skb_set_tunnel_key(skb, key, TUNNEL_KEY_SIZE, tunnel_flags(p, slot)))
		return DROP_NO_ROUTE;
	return 0;
}

#endif
