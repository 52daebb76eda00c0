/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The kernel's routes. */
#ifndef ONPATH_ROUTE_H
#define ONPATH_ROUTE_H

#include "packet.h"

/* 0: the fast path rests. */
static __always_inline __u32 fast_epoch(void)
{
	__u32 zero = 0;
	struct fast *fast = bpf_map_lookup_elem(&fasts, &zero);

	return fast ? fast->epoch : 0;
}

/* Look up the route: pkt.fib. Returns 0, a drop reason, or DROP_TOO_BIG. */
__noinline int find_route(struct __sk_buff *skb)
{
	struct pkt *p = packet();
	struct bpf_fib_lookup *fib;
	struct node *n = this_node();

	if (!p || !n)
		return DROP_NO_ROUTE;
	fib = &p->fib;
	p->resolved = 0;
	p->epoch = fast_epoch();
	__builtin_memset(fib, 0, sizeof(*fib));
	fib->ifindex = n->uplink_ifindex ? n->uplink_ifindex : p->ifindex;
	fib->tot_len = p->segment > 65535 ? 65535 : p->segment;
	if (p->family == FAMILY_4) {
		struct iphdr h;

		if (bpf_skb_load_bytes(skb, p->l3, &h, sizeof(h)))
			return DROP_MALFORMED;
		fib->family = AF_INET;
		fib->tos = h.tos;
		fib->l4_protocol = h.protocol;
		fib->ipv4_src = h.saddr;
		fib->ipv4_dst = h.daddr;
	} else {
		struct ipv6hdr h;

		if (bpf_skb_load_bytes(skb, p->l3, &h, sizeof(h)))
			return DROP_MALFORMED;
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
	switch (bpf_fib_lookup(skb, fib, sizeof(*fib), 0)) {
	case BPF_FIB_LKUP_RET_SUCCESS:
		p->resolved = 1;
		return 0;
	case BPF_FIB_LKUP_RET_NO_NEIGH:
		return 0;
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		return DROP_TOO_BIG;
	}
	return DROP_NO_ROUTE;
}

/* Out by pkt.fib. */
static __always_inline int leave_by_route(struct __sk_buff *skb, struct pkt *p)
{
	struct bpf_fib_lookup *fib = &p->fib;
	struct bpf_redir_neigh next;

	__builtin_memset(&next, 0, sizeof(next));
	next.nh_family = fib->family;
	if (fib->family == AF_INET)
		next.ipv4_nh = fib->ipv4_dst;
	else
		copy_addr(next.ipv6_nh, fib->ipv6_dst);
	return bpf_redirect_neigh(fib->ifindex, &next, sizeof(next), 0);
}

#endif
