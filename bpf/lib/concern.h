/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Whether a packet at an uplink can concern anybody here, by its two addresses alone: most
 * packets of a gateway are selected by no chain, and are told by two bytes instead of a
 * look-up of their flow and a walk over rules. The driver sets the cells of what rules are
 * about, the more specific side of each, and of the node's and instances' addresses, before
 * these are in force; the program those of entries that are about something else, such as
 * the machine to which a function leads a flow. So a packet that is passed over here would
 * have been left to the kernel anyway.
 */
#ifndef ONPATH_CONCERN_H
#define ONPATH_CONCERN_H

#include "packet.h"

static __always_inline __u32 cell_of_v4(__be32 a) { return bpf_ntohl(a) >> 12; }

static __always_inline __u32 cell_of_v6(const void *a)
{
	__u32 h = ((const __u32 *)a)[0] ^ ((const __u16 *)a)[2] * 0x9e3779b1u;

	return CELLS_4 + ((h * 0x85ebca6bu) >> 16);
}

static __always_inline __u32 cell_of(const __u8 *a)
{
	return is_mapped(a) ? cell_of_v4(V4(a)) : cell_of_v6(a);
}

static __always_inline struct concerned *concerned_addresses(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&concerns, &zero);
}

static __always_inline int is_set(const struct concerned *c, __u32 cell)
{
	return cell >= CELLS_4 + CELLS_6 || c->cells[cell];
}

/* An entry is about to stand. */
__noinline int concern_entry(const struct flow_key *k)
{
	struct concerned *c = concerned_addresses();
	struct node *n = this_node();
	__u32 cell;

	if (!k || !n || !c || k->scope != n->edge)
		return 0;
	cell = cell_of(k->src);
	if (is_set(c, cell) || is_set(c, cell_of(k->dst)) || cell >= CELLS_4 + CELLS_6)
		return 0;
	c->cells[cell] = 1;
	return 0;
}

/* At XDP: can a flow with this key be one that is known here? */
static __always_inline int concerns_flow(const struct flow_key *k)
{
	struct concerned *c = concerned_addresses();

	return !c || !c->complete || is_set(c, cell_of(k->src)) || is_set(c, cell_of(k->dst));
}

/* A whole TCP or UDP packet without options or tags, at an uplink between which and others
 * the kernel routes, which concerns nobody. Packets for the tunnel and for signalling
 * concern the node by their port. */
static __always_inline int concerns_nobody(struct __sk_buff *skb)
{
	const __u8 *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct concerned *c = concerned_addresses();
	__u32 ifindex = skb->ifindex, src, dst, proto;
	struct node *n = this_node();
	const __be16 *ports;

	if (!n || !c || !c->complete || skb->vlan_present)
		return 0;
	if (ifindex != n->routers[0] && ifindex != n->routers[1] && ifindex != n->routers[2] && ifindex != n->routers[3])
		return 0;
	if (data + ETH_HLEN + sizeof(struct iphdr) + 8 > end)
		return 0;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		const struct iphdr *h = (const void *)(data + ETH_HLEN);

		if (data[ETH_HLEN] != 0x45 || (h->frag_off & bpf_htons(0x3fff)))
			return 0;
		proto = h->protocol;
		src = cell_of_v4(h->saddr);
		dst = cell_of_v4(h->daddr);
		ports = (const void *)(h + 1);
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		const struct ipv6hdr *h = (const void *)(data + ETH_HLEN);

		if ((const __u8 *)(h + 1) + 8 > end)
			return 0;
		proto = h->nexthdr;
		src = cell_of_v6(&h->saddr);
		dst = cell_of_v6(&h->daddr);
		ports = (const void *)(h + 1);
	} else {
		return 0;
	}
	if (proto == IPPROTO_UDP ? bpf_ntohs(ports[1]) == n->tunnel_port || ports[1] == bpf_htons(GIST_PORT)
				 : proto != IPPROTO_TCP)
		return 0;
	return !is_set(c, src) && !is_set(c, dst);
}

#endif
