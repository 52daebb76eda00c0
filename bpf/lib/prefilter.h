/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * A prefilter at uplinks: it leaves packets to the kernel that no chain can select, by a byte
 * for each of the two addresses, without a look-up of the flow and without classification. The
 * driver sets the bytes of the prefixes in rules (of the more specific side of each rule) and of
 * instances' addresses before they are in force, and other bytes for the node's own addresses,
 * which are looked up then: the hosts beside it have bytes in common with it. The program sets
 * the byte of a flow entry's source where neither address of the entry has its byte set, as
 * where a function sends a flow to another machine. So the prefilter leaves no packet to the
 * kernel that the program behind it would not leave, too.
 */
#ifndef ONPATH_PREFILTER_H
#define ONPATH_PREFILTER_H

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

static __always_inline struct prefilter *the_prefilter(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&prefilters, &zero);
}

static __always_inline int is_set(const struct prefilter *c, __u32 cell)
{
	return cell >= CELLS_4 + CELLS_6 || c->cells[cell];
}

/* Set the byte of an entry that is about to be inserted. */
__noinline int prefilter_entry(const struct flow_key *k)
{
	struct prefilter *c = the_prefilter();
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

/* At XDP: may there be an entry with this key? */
static __always_inline int may_have_entry(const struct flow_key *k)
{
	struct prefilter *c = the_prefilter();

	return !c || !c->complete || is_set(c, cell_of(k->src)) || is_set(c, cell_of(k->dst));
}

/* Is this an address of the node? */
static __always_inline int is_own(const struct prefilter *c, __u32 cell, const void *a, __u32 family)
{
	struct pkt *p = packet();

	if (!p)
		return 1;
	if (cell < CELLS_4 + CELLS_6 && !c->own[cell])
		return 0;
	p->akey.family = family;
	if (family == FAMILY_4)
		map_v4(p->akey.addr, *(const __u32 *)a);
	else
		copy_addr(p->akey.addr, a);
	return bpf_map_lookup_elem(&locals, &p->akey) != 0;
}

/* Is this a TCP or UDP packet at a router's uplink that no chain can select? Packets with IP
 * options, tags or fragments, and those for the ports of tunnel and signalling, take the way
 * by the program. */
static __always_inline int is_unselected(struct __sk_buff *skb)
{
	const __u8 *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct prefilter *c = the_prefilter();
	__u32 ifindex = skb->ifindex, src, dst, proto, family;
	struct node *n = this_node();
	const void *from, *to;
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
		family = FAMILY_4;
		from = &h->saddr;
		to = &h->daddr;
		src = cell_of_v4(h->saddr);
		dst = cell_of_v4(h->daddr);
		ports = (const void *)(h + 1);
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		const struct ipv6hdr *h = (const void *)(data + ETH_HLEN);

		if ((const __u8 *)(h + 1) + 8 > end)
			return 0;
		proto = h->nexthdr;
		family = FAMILY_6;
		from = &h->saddr;
		to = &h->daddr;
		src = cell_of_v6(from);
		dst = cell_of_v6(to);
		ports = (const void *)(h + 1);
	} else {
		return 0;
	}
	if (proto == IPPROTO_UDP ? bpf_ntohs(ports[1]) == n->tunnel_port || ports[1] == bpf_htons(GIST_PORT)
				 : proto != IPPROTO_TCP)
		return 0;
	return !is_set(c, src) && !is_set(c, dst) && !is_own(c, src, from, family) && !is_own(c, dst, to, family);
}

#endif
