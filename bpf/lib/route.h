/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The kernel's routes. */
#ifndef ONPATH_ROUTE_H
#define ONPATH_ROUTE_H

#include "packet.h"

/* An ICMP error: the reason of the drop that it tells of, and type and code of both versions. */
#define ERROR(reason_, type4_, code4_, type6_, code6_) \
	((reason_) << 16 | (type4_) << 12 | (code4_) << 8 | (type6_) << 4 | (code6_))
#define ERROR_REASON(e) ((e) >> 16)
#define ERROR_TYPE4(e)  ((e) >> 12 & 15)
#define ERROR_CODE4(e)  ((e) >> 8 & 15)
#define ERROR_TYPE6(e)  ((e) >> 4 & 15)
#define ERROR_CODE6(e)  ((e) & 15)

#define ERROR_TTL        ERROR(DROP_TTL, 11, 0, 3, 0)
#define ERROR_BIG        ERROR(DROP_TOO_BIG, 3, 4, 2, 0)
#define ERROR_PROHIBITED ERROR(DROP_FUNCTION, 3, 13, 1, 1)
/* As Linux says of its routes: there is none, one of type unreachable, one of type prohibit. */
#define ERROR_NO_NET     ERROR(DROP_NO_ROUTE, 3, 0, 1, 0)
#define ERROR_NO_HOST    ERROR(DROP_NO_ROUTE, 3, 1, 1, 0)
#define ERROR_FORBIDDEN  ERROR(DROP_NO_ROUTE, 3, 13, 1, 1)
#define ERROR_NEIGHBOUR  ERROR(DROP_NO_NEIGHBOUR, 3, 1, 1, 3)

/* 0: the fast path rests. */
static __always_inline __u32 fast_epoch(void)
{
	__u32 zero = 0;
	struct fast *fast = bpf_map_lookup_elem(&fasts, &zero);

	return fast ? fast->epoch : 0;
}

/* Look up the route: pkt.fib. Returns 0 or a drop reason; then pkt.refusal is the error that
 * the sender gets, 0: none. */
__noinline int find_route(struct __sk_buff *skb)
{
	struct pkt *p = packet();
	struct bpf_fib_lookup *fib;
	struct node *n = this_node();

	if (!p || !n)
		return DROP_NO_ROUTE;
	fib = &p->fib;
	p->resolved = p->refusal = 0;
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
		p->refusal = ERROR_BIG;
		return DROP_TOO_BIG;
	case BPF_FIB_LKUP_RET_NOT_FWDED:
		p->refusal = ERROR_NO_NET;
		break;
	case BPF_FIB_LKUP_RET_UNREACHABLE:
		p->refusal = ERROR_NO_HOST;
		break;
	case BPF_FIB_LKUP_RET_PROHIBIT:
		p->refusal = ERROR_FORBIDDEN;
		break;
	}
	return DROP_NO_ROUTE;
}

#define NEIGHBOUR_TIME (3 * NSEC) /* as long as Linux asks for one */
#define NEIGHBOUR_REST (6 * NSEC) /* without packets for it, after which it is a new attempt */
#define NEIGHBOUR_AGAIN NSEC

/*
 * The route of pkt.fib leads to a neighbour whose link address is not known. The kernel asks for
 * it while packets go there, and tells nobody if no reply comes: what was redirected has no
 * sender there. So attempts are noted here. Returns 1 if one has failed: then the packet's
 * sender is told. One packet a second goes there all the same, behind one whose sender heard of it,
 * so that the kernel asks again.
 */
__noinline int neighbour_failed(void)
{
	struct pkt *p = packet();
	struct attempt fresh = {}, *a;
	struct own_key *k;

	if (!p)
		return 0;
	k = &p->okey;
	k->vport = p->fib.ifindex;
	k->family = p->fib.family == AF_INET ? FAMILY_4 : FAMILY_6;
	k->pad[0] = k->pad[1] = k->pad[2] = 0;
	if (k->family == FAMILY_4)
		map_v4(k->addr, p->fib.ipv4_dst);
	else
		copy_addr(k->addr, p->fib.ipv6_dst);
	a = bpf_map_lookup_elem(&attempts, k);
	if (!a || is_beyond(p->clock, a->last, NEIGHBOUR_REST)) {
		fresh.since = fresh.last = fresh.tried = p->clock;
		bpf_map_update_elem(&attempts, k, &fresh, BPF_ANY);
		return 0;
	}
	a->last = p->clock;
	if (!is_beyond(p->clock, a->since, NEIGHBOUR_TIME))
		return 0;
	if (a->refused && is_beyond(p->clock, a->tried, NEIGHBOUR_AGAIN)) {
		a->tried = p->clock;
		a->refused = 0;
		return 0;
	}
	a->refused = 1;
	return 1;
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
