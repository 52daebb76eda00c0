/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Uplinks of a bridge: two devices without addresses, a bump in the wire. What
 * stands in the frames of selected packets is learnt for each address, as source
 * and as destination, once a second and flow, and whenever it is missing: a packet
 * that leaves gets the addresses and the tag that the same one had when it came in.
 * Elements that speak for an end point find theirs in the frames that it sent.
 */
#ifndef ONPATH_BRIDGE_H
#define ONPATH_BRIDGE_H

#include "count.h"

static __always_inline struct station *station_of(struct pkt *p, const __u8 *addr, __u32 as)
{
	copy_addr(p->akey.addr, addr);
	p->akey.family = p->family | as;
	return bpf_map_lookup_elem(&stations, &p->akey);
}

/* Are the two ends of a packet known that came in at one side? A flood of addresses may have
 * taken their places since. */
static __always_inline int knows_stations(struct pkt *p)
{
	return station_of(p, p->key.src, STATION_FROM) && station_of(p, p->key.dst, STATION_TO);
}

/* Note where the two ends of a packet lie that came in at one side. */
__noinline int learn_stations(void)
{
	struct pkt *p = packet();

	if (!p)
		return 0;
	p->station.vlan = p->vlan;
	p->station.ifindex = p->ifindex;
	__builtin_memcpy(p->station.mac, p->macs + 6, 6);
	copy_addr(p->akey.addr, p->key.src);
	p->akey.family = p->family | STATION_FROM;
	bpf_map_update_elem(&stations, &p->akey, &p->station, BPF_ANY);
	p->station.ifindex = p->opposite;
	__builtin_memcpy(p->station.mac, p->macs, 6);
	copy_addr(p->akey.addr, p->key.dst);
	p->akey.family = p->family | STATION_TO;
	bpf_map_update_elem(&stations, &p->akey, &p->station, BPF_ANY);
	return 0;
}

/* Find side, addresses and tag for a packet that leaves: pkt.station and
 * pkt.macs. 0 if its destination was never seen. */
__noinline int find_station(void)
{
	struct pkt *p = packet();
	struct station *to, *from;
	struct port *port;
	__u32 ifindex;

	if (!p)
		return 0;
	to = station_of(p, p->key.dst, STATION_TO);
	if (!to)
		to = station_of(p, p->key.dst, STATION_FROM);
	if (!to)
		return 0;
	p->station = *to;
	__builtin_memcpy(p->macs, p->station.mac, 6);
	from = station_of(p, p->key.src, STATION_FROM);
	if (!from)
		from = station_of(p, p->key.src, STATION_TO);
	if (from) {
		__builtin_memcpy(p->macs + 6, from->mac, 6);
		return 1;
	}
	ifindex = p->station.ifindex;
	port = bpf_map_lookup_elem(&ports, &ifindex);
	if (!port)
		return 0;
	__builtin_memcpy(p->macs + 6, port->mac, 6); /* an instance's own address */
	return 1;
}

/* Out at the side that find_station found. */
static __always_inline int leave_bridge(struct __sk_buff *skb, struct pkt *p)
{
	bpf_skb_store_bytes(skb, 0, p->macs, 12, 0);
	if (p->station.vlan)
		bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), p->station.vlan & ~STATION_TAGGED);
	return bpf_redirect(p->station.ifindex, 0);
}

#endif
