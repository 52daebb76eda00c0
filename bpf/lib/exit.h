/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Out at the edge: a FIB look-up for link and next hop, and the neighbour layer
 * to reach it (which resolves and keeps it fresh). Never through the host's
 * stack, whose reverse-path filter and firewall have not seen the flow.
 */
#ifndef ONPATH_EXIT_H
#define ONPATH_EXIT_H

#include "answer.h"
#include "flow.h"
#include "nat.h"

#ifndef AF_INET
#define AF_INET 2
#define AF_INET6 10
#endif

__noinline int exit_edge(struct __sk_buff *skb)
{
	struct bpf_redir_neigh next;
	struct pkt *p = packet();
	struct bpf_fib_lookup *fib;
	struct node *n = this_node();
	__u32 slot;
	long rc;

	if (!p || !n)
		return TC_ACT_SHOT;
	fib = &p->fib;
	__builtin_memset(fib, 0, sizeof(*fib));
	fib->ifindex = n->uplink_ifindex ? n->uplink_ifindex : p->ifindex;
	fib->tot_len = p->segment > 65535 ? 65535 : p->segment;
	if (p->key.family == FAMILY_4) {
		struct iphdr h;

		if (bpf_skb_load_bytes(skb, p->l3, &h, sizeof(h)))
			return drop(p, DROP_MALFORMED);
		fib->family = AF_INET;
		fib->tos = h.tos;
		fib->l4_protocol = h.protocol;
		fib->ipv4_src = h.saddr;
		fib->ipv4_dst = h.daddr;
	} else {
		struct ipv6hdr h;

		if (bpf_skb_load_bytes(skb, p->l3, &h, sizeof(h)))
			return drop(p, DROP_MALFORMED);
		fib->family = AF_INET6;
		fib->l4_protocol = h.nexthdr;
		fib->flowinfo = *(__be32 *)&h & bpf_htonl(0x0fffffff);
		copy_addr(fib->ipv6_src, &h.saddr);
		copy_addr(fib->ipv6_dst, &h.daddr);
	}
	if (!(p->is & IS_ERROR)) {
		fib->sport = p->key.sport;
		fib->dport = p->key.dport;
	}
	rc = bpf_fib_lookup(skb, fib, sizeof(*fib), 0);
	switch (rc) {
	case BPF_FIB_LKUP_RET_SUCCESS:
	case BPF_FIB_LKUP_RET_NO_NEIGH:
		break;
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		return send_error(skb, ERROR_BIG, fib->mtu_result);
	default:
		return drop(p, DROP_NO_ROUTE);
	}
	if (p->ttl <= 1)
		return send_error(skb, ERROR_TTL, 0);
	decrement_ttl(skb, p);
	if (p->learn && !(p->is & (IS_ERROR | IS_NOPORTS)))
		learn_edge();
	if (n->nat_count) {
		int reason = nat_out(skb, fib->ifindex);

		if (reason)
			return drop(p, reason);
	}
	slot = n->edge_slot;
	count_out(skb, p, slot, n->edge);
	__builtin_memset(&next, 0, sizeof(next));
	next.nh_family = fib->family;
	if (fib->family == AF_INET)
		next.ipv4_nh = fib->ipv4_dst;
	else
		copy_addr(next.ipv6_nh, fib->ipv6_dst);
	return bpf_redirect_neigh(fib->ifindex, &next, sizeof(next), 0);
}

#endif
