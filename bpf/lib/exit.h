/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Out at the edge. Where the kernel routes: a FIB look-up for link and next hop,
 * and the neighbour layer to reach it (which resolves and keeps it fresh), never
 * through the host's stack, whose reverse-path filter and firewall have not seen
 * the flow. To this machine's own sockets: into the stack, at the device where
 * the packet would have come in. At a bridge: out of the other side.
 */
#ifndef ONPATH_EXIT_H
#define ONPATH_EXIT_H

#include "reject.h"
#include "bridge.h"
#include "flow.h"
#include "hop.h"
#include "nat.h"

#define EXIT_ROUTE  0
#define EXIT_HOST   1
#define EXIT_BRIDGE 2
#define EXIT_NONE   3

/* Did the packet's flow come in at a bridge? Where it leads is then the bridge's other side,
 * and not where this machine would route it. Behind instances the station of its source
 * decides, if packets are routed here, too. */
static __always_inline int came_bridged(struct pkt *p, const struct node *n)
{
	if (p->is & IS_EDGE)
		return p->is & IS_BRIDGED;
	if ((p->d.flags & FLOW_EMITTED) || !p->d.path)
		return 0; /* an instance's own */
	return !n->uplink_ifindex || station_of(p, p->key.src, STATION_FROM);
}

/* Which way? This machine's own packets keep their hop limit: they only make a
 * detour. */
static __always_inline int way_out(struct pkt *p, const struct node *n, int *hop)
{
	*hop = 1;
	if (n->bridged && find_station()) {
		*hop = 0;
		return EXIT_BRIDGE;
	}
	if (n->host_ifindex && is_local(p, p->key.dst) == LOCAL_ADDRESS) {
		*hop = 0;
		return EXIT_HOST;
	}
	if (n->host_ifindex && is_local(p, p->key.src) == LOCAL_ADDRESS) {
		*hop = 0;
		return EXIT_ROUTE;
	}
	return n->bridged && came_bridged(p, n) ? EXIT_NONE : EXIT_ROUTE;
}

/* Into the stack at the uplink that carries this machine's own traffic. */
static __always_inline int leave_to_host(struct __sk_buff *skb, const struct node *n)
{
	__u32 ifindex = n->host_ifindex;
	struct port *port = bpf_map_lookup_elem(&ports, &ifindex);

	if (!port)
		return TC_ACT_SHOT;
	bpf_skb_store_bytes(skb, 0, port->mac, 6, 0);
	return to_host(skb, ifindex);
}

/* Synchronize with the HA peer where replies to a packet go that an instance or a function
 * of this node sends out here. Those of a translated one come in here only. */
__noinline int sync_replies(struct __sk_buff *skb)
{
	struct pkt *p = packet();
	struct node *n = this_node();

	if (!p || !n || ((p->is & IS_EDGE) && !has_functions(&p->d)) ||
	    (n->nat_count && translated(n, &p->key, p->family)))
		return 0;
	return sync_ha_peer(skb, SYNC_REPLIES);
}

__noinline int exit_edge(struct __sk_buff *skb)
{
	struct pkt *p = packet();
	struct node *n = this_node();
	int way, hop, reason;
	__u32 slot;

	if (!p || !n)
		return TC_ACT_SHOT;
	if (p->must_sync || (p->learn && (p->is & IS_SYN)))
		sync_replies(skb);
	way = way_out(p, n, &hop);
	if (way == EXIT_NONE)
		return drop(p, DROP_NO_STATION);
	if (way == EXIT_ROUTE) {
		reason = find_route(skb);
		if (!reason)
			reason = reach_neighbour(p);
		if (reason)
			return refuse_route(skb, p, reason);
	}
	if (hop) {
		if (p->ttl <= 1)
			return send_error(skb, ERROR_TTL, 0);
		decrement_ttl(skb, p);
	}
	if (n->nat_count && way == EXIT_ROUTE) {
		reason = nat_out(skb, p->fib.ifindex);
		if (reason)
			return drop(p, reason);
	}
	note_hop(way == EXIT_ROUTE && hop && p->resolved);
	slot = n->edge_slot;
	count_out(skb, p, slot, n->edge);
	if (way == EXIT_BRIDGE)
		return leave_bridge(skb, p);
	if (way == EXIT_HOST)
		return leave_to_host(skb, n);
	return leave_by_route(skb, p);
}

#endif
