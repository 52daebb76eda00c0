/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Translation at the edge: what leaves from an instance's private address gets
 * the uplink's, and a port that is free for that destination (RFC 4787 calls it
 * address and port dependent mapping; the driver reserves the ports, so that Linux
 * gives none to its own sockets). Only the first packets of a flow look for a port;
 * replies are found on the way that new flows take, so that others pay nothing. A port
 * whose flow has ended, or is a DNS query, with or without a reply, is given to the next
 * flow that meets it, also while there is no process that ages translations.
 */
#ifndef ONPATH_NAT_H
#define ONPATH_NAT_H

#include "classify.h"
#include "count.h"
#include "edit.h"
#include "entry.h"
#include "group.h"
#include "parse.h"

#define NAT_TRIES 32
#define NAT_LENT  8 /* of these, at ports that all tenants may use */
#define DNS_PORT  53

static __always_inline int in_prefix(const void *addr, const __u64 *prefix, const __u64 *mask)
{
	const __u32 *a = addr; /* keys are aligned to 4 */
	__u64 hi = ((__u64)a[1] << 32) | a[0], lo = ((__u64)a[3] << 32) | a[2];

	return (hi & mask[0]) == prefix[0] && (lo & mask[1]) == prefix[1];
}

static __always_inline int is_private(const struct node *n, const void *addr, __u32 family)
{
	__u32 i;

	for (i = 0; i < MAX_NAT; i++) {
		if (i >= n->nat_count)
			break;
		if (n->nat[i].family == family && in_prefix(addr, n->nat[i].addr, n->nat[i].mask))
			return 1;
	}
	return 0;
}

static __always_inline int translated(const struct node *n, const struct flow_key *k, __u32 family)
{
	return is_private(n, k->src, family);
}

static __always_inline int is_echo(const struct flow_key *k)
{
	return k->proto == IPPROTO_ICMP || k->proto == IPPROTO_ICMPV6;
}

/* Offset of the transport checksum, or 0 if there is none that we know. */
static __always_inline __u32 sum_offset(const struct pkt *p)
{
	switch (p->key.proto) {
	case IPPROTO_TCP:
		return p->l4 + 16;
	case IPPROTO_UDP:
		return p->l4 + 6;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		return p->l4 + 2;
	}
	return 0;
}

/* Write another address at the source (0) or destination (1) of the packet. */
static __always_inline void write_address(struct __sk_buff *skb, struct pkt *p, __u32 which,
					  __u8 *from, __u8 *to)
{
	__u32 sum = sum_offset(p), size = p->family == FAMILY_4 ? 4 : 16;
	__u64 flags = BPF_F_PSEUDO_HDR | (p->key.proto == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0);
	__s64 diff;

	/* Mapped addresses differ in their last four bytes alone. */
	diff = bpf_csum_diff((__be32 *)from, 16, (__be32 *)to, 16, 0);
	if (sum && !(p->is & IS_LATER) && p->key.proto != IPPROTO_ICMP)
		bpf_l4_csum_replace(skb, sum, 0, diff, flags);
	if (size == 4) {
		bpf_l3_csum_replace(skb, p->l3 + 10, 0, diff, 0);
		bpf_skb_store_bytes(skb, p->l3 + 12 + which * 4, to + 12, 4, 0);
	} else {
		bpf_skb_store_bytes(skb, p->l3 + 8 + which * 16, to, 16, 0);
	}
}

/* Write another port, or echo identifier, at the source (0) or destination (1). */
static __always_inline void write_port(struct __sk_buff *skb, struct pkt *p, __u32 which,
				       __be16 from, __be16 to)
{
	__u32 sum = sum_offset(p), at = p->l4 + which * 2;
	__u64 flags = 2 | (p->key.proto == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0);

	if (!sum || (p->is & IS_LATER) || from == to)
		return;
	if (is_echo(&p->key))
		at = p->l4 + 4;
	bpf_l4_csum_replace(skb, sum, from, to, flags);
	bpf_skb_store_bytes(skb, at, &to, 2, 0);
}

/* Take a port for pkt.nat_reply if it is free; wkey is the key of the replies, filled
 * but for it. */
__noinline int try_port(__u32 port)
{
	struct pkt *p = packet();

	if (!p)
		return 0;
	p->wkey.dport = bpf_htons(port);
	if (is_echo(&p->key))
		p->wkey.sport = p->wkey.dport;
	return bpf_map_update_elem(&nats, &p->wkey, &p->nat_reply, BPF_NOEXIST) == 0;
}

/* A translation is in use. */
static __always_inline void nat_seen(struct nat *x, __u32 now)
{
	x->seen = (x->seen & ~SEEN_MASK) | now;
}

/* A packet goes by half a translation. ends: its FIN or RST is one. */
static __always_inline void nat_use(const struct pkt *p, struct nat *x, int ends)
{
	__u8 state = x->state, was = state;

	if (p->is & IS_ERROR) {
		nat_seen(x, p->now);
		return;
	}
	if (!(p->is & (IS_RST | IS_ANYSYN)) && ((x->seen ^ p->now) & SEEN_MASK))
		state &= ~NAT_RST; /* its sender goes on: somebody else's */
	if (!x->in && (p->is & IS_TCP) && (p->is & (IS_ACK | IS_RST)) == IS_ACK) {
		state = (state & ~NAT_ACK) | NAT_ACKED | (p->ack >> 16 & NAT_ACK);
		x->seen = (p->ack & ~SEEN_MASK) | p->now;
	} else {
		nat_seen(x, p->now);
	}
	state |= NAT_NOTED | NAT_USED | (was & NAT_USED || p->packets > 1 ? NAT_MORE : 0);
	state |= ends && (p->is & IS_FIN) ? NAT_FIN : 0;
	state |= ends && (p->is & IS_RST) ? NAT_RST : 0;
	if (state != was)
		x->state = state;
}

/* A packet of a handshake goes out by a translation. Does it begin a connection by the ports of
 * one that has ended? Then nothing is known of either direction. From outside anybody can send
 * such a packet, and while the connection goes on it changes nothing (RFC 5961 section 4). */
__noinline int nat_begins(struct nat *x)
{
	struct pkt *p = packet();
	struct nat *y;

	if (!p || !x)
		return 0;
	reverse_key(&p->wkey, &p->rkey, p->rkey.scope);
	copy_addr(p->wkey.dst, x->addr);
	p->wkey.dport = x->port;
	y = bpf_map_lookup_elem(&nats, &p->wkey);
	if (y && (((x->state | y->state) & NAT_RST) || (x->state & y->state & NAT_FIN)))
		x->state = y->state = NAT_NOTED;
	return 0;
}

/* Seconds that a translation with these states must have rested before its port may go to
 * another flow; 0: it may not. */
static __always_inline __u32 must_rest(const struct flow_key *k, __u8 in, __u8 out)
{
	if (!(in & out & NAT_NOTED))
		return 0;
	if (k->proto == IPPROTO_TCP) {
		if ((in | out) & NAT_RST)
			return NAT_AFTER_RST;
		if (in & out & NAT_FIN)
			return NAT_AFTER_FIN;
		return (in & NAT_USED) && (out & NAT_MORE) ? 0 : NAT_UNSETTLED;
	}
	if (k->proto == IPPROTO_UDP && k->sport == bpf_htons(DNS_PORT))
		return NAT_AFTER_DNS;
	return (in & NAT_USED) && ((in | out) & NAT_MORE) ? 0 : NAT_UNSETTLED;
}

/* The key of the packets to which those of k, whose translation is x, reply. */
static __always_inline void original_key(struct flow_key *o, const struct flow_key *k, const struct nat *x)
{
	reverse_key(o, k, k->scope);
	copy_addr(o->src, x->addr);
	o->sport = x->port;
	if (is_echo(k))
		o->dport = x->port;
}

/* For how many seconds has the translation of pkt.wkey rested, if another flow may have its
 * port? Else 0. pkt.nkey is the key of its flow. */
__noinline int rested(void)
{
	struct pkt *p = packet();
	__u32 rest, other, must;
	struct nat *x, *y;

	if (!p)
		return 0;
	x = bpf_map_lookup_elem(&nats, &p->wkey);
	if (!x || !x->in)
		return 0;
	original_key(&p->nkey, &p->wkey, x);
	y = bpf_map_lookup_elem(&nats, &p->nkey);
	if (!y)
		return 0;
	rest = (p->now - x->seen) & SEEN_MASK;
	other = (p->now - y->seen) & SEEN_MASK;
	if (other < rest)
		rest = other;
	must = must_rest(&p->wkey, x->state, y->state);
	return must && rest >= must && rest < SEEN_MASK / 2 ? rest : 0;
}

/* The flow entry of k goes, which counts to owner if it is of a flow that an instance began.
 * Returns what it led to, or 0. */
static __always_inline __u32 end_flow(const struct flow_key *k, __u32 owner)
{
	struct flow *e = flow_established(k);
	__u32 tenant, next, emitted;

	if (!e)
		return 0;
	tenant = charged_tenant(e, owner);
	emitted = e->flags & FLOW_EMITTED;
	next = e->next;
	if (bpf_map_delete_elem(&flows_v2, k))
		return 0;
	release_quota(tenant);
	if (emitted)
		release_caused(tenant);
	return next;
}

/* Give the port of pkt.wkey to pkt.nat_reply. Its flow, whose key is pkt.nkey, has rested. 1:
 * pkt.nat_reply has it. */
__noinline int take_over(void)
{
	struct pkt *p = packet();
	__u32 from, slot = 0;
	struct vport *v;
	struct nat *x;

	if (!p)
		return 0;
	/* One CPU alone can; for another one the port is of a flow that has just begun. */
	if (bpf_map_delete_elem(&nats, &p->nkey))
		return 0;
	x = bpf_map_lookup_elem(&nats, &p->wkey);
	if (!x || !x->in)
		return 0;
	copy_addr(p->nkey.src, p->wkey.src);
	copy_addr(p->nkey.dst, x->addr);
	p->nkey.sport = is_echo(&p->wkey) ? x->port : p->wkey.sport;
	p->nkey.dport = x->port;
	from = end_flow(&p->nkey, 0);
	if (from) {
		v = vport_of(&slot, from);
		original_key(&p->nkey, &p->wkey, x);
		p->nkey.scope = from;
		end_flow(&p->nkey, v ? v->tenant : 0);
	}
	return bpf_map_update_elem(&nats, &p->wkey, &p->nat_reply, BPF_EXIST) == 0;
}

/* To whom do the ports belong that translate the packet? */
static __always_inline __u32 translated_for(const struct pkt *p)
{
	__u32 slot = p->prev_slot;
	struct vport *v = vport_at(slot, p->prev);

	return v && v->kind != VPORT_EDGE ? v->tenant : tenant_of_path(p->d.path_slot);
}

/* Find a port for pkt.nat_reply: a free one, or the one that has rested for longest of those
 * that were tried. Returns it, in host order, or -1. */
__noinline int take_port(void)
{
	__u32 port, i, rest, longest = 0, nobody = 0, tenant;
	struct tenant *t, *all;
	struct pkt *p = packet();
	int best = -1;

	if (!p)
		return -1;
	if (!sum_offset(p)) { /* SCTP's sum covers the ports; others have none */
		port = bpf_ntohs(p->key.sport);
		return try_port(port) ? port : -1;
	}
	tenant = translated_for(p);
	t = bpf_map_lookup_elem(&tenants, &tenant);
	all = bpf_map_lookup_elem(&tenants, &nobody);
	if (!t || !all)
		return -1;
	for (i = 0; i < NAT_TRIES; i++) {
		struct tenant *from = i < NAT_TRIES - NAT_LENT && t->ports ? t : all;

		if (!from->ports)
			break;
		port = (from->ports_from + bpf_get_prandom_u32() % from->ports) & 0xffff;
		if (try_port(port))
			return port;
		rest = rested();
		if (rest > longest) {
			longest = rest;
			best = port;
		}
	}
	if (best < 0)
		return -1;
	p->wkey.dport = bpf_htons(best);
	if (is_echo(&p->key))
		p->wkey.sport = p->wkey.dport;
	return rested() && take_over() ? best : -1;
}

/* The address of a device, by which translated packets leave. 0: it has none. */
static __always_inline int outside_address(const struct pkt *p, __u32 ifindex, __u8 *to)
{
	struct port *out = bpf_map_lookup_elem(&ports, &ifindex);

	if (!out)
		return 0;
	if (p->family == FAMILY_4)
		map_v4(to, *(__u32 *)out->addr4);
	else
		copy_addr(to, out->addr6);
	return ((__u32 *)to)[p->family == FAMILY_4 ? 3 : 0] != 0;
}

/* Another port at the source (0) or destination (1) of the packet that an ICMP error
 * quotes, or the identifier of its echo. */
static __always_inline void write_quoted_port(struct __sk_buff *skb, struct pkt *p, __u32 which,
					      __be16 from, __be16 to)
{
	__u32 at = is_echo(&p->key) ? p->inner_l4 + 4 : port_at(p, p->inner_l4, which);

	if (!at || from == to)
		return;
	bpf_l4_csum_replace(skb, p->l4 + 2, from, to, 2);
	bpf_skb_store_bytes(skb, at, &to, 2, 0);
}

/*
 * The same for an ICMP error: pkt.key is the reverse of what it quotes, which may have
 * come in by a translation, and its own source need not be of that flow, as of a router's
 * on the way. Neither is let out that is private.
 */
__noinline int nat_error_out(struct __sk_buff *skb, __u32 ifindex)
{
	__u8 to[16] __attribute__((aligned(8))) = {}, from[16] __attribute__((aligned(8)));
	struct pkt *p = packet();
	struct node *n = this_node();
	struct nat *known;
	int quoted;

	if (!p || !n)
		return DROP_NO_ROUTE;
	quoted = translated(n, &p->key, p->family);
	if (quoted && (p->is & IS_NOPORTS))
		return DROP_NO_ROUTE;
	outer_address(skb, p, 0, from);
	if (is_private(n, from, p->family)) {
		if (!outside_address(p, ifindex, to))
			return DROP_NO_ROUTE;
		edit_address(skb, p, 0, from, to, p->family == FAMILY_6 ? p->l4 + 2 : 0);
	}
	if (!quoted)
		return 0;
	copy_key(&p->rkey, &p->key, n->edge);
	known = bpf_map_lookup_elem(&nats, &p->rkey);
	if (!known)
		return DROP_NO_ROUTE;
	nat_seen(known, p->now);
	copy_addr(from, p->key.src);
	copy_addr(to, known->addr);
	edit_quoted(skb, p, 1, from, to, 0, 0);
	write_quoted_port(skb, p, 1, p->key.sport, known->port);
	return 0;
}

/* Translate a packet that leaves by a device. Returns 0, or a drop reason. */
__noinline int nat_out(struct __sk_buff *skb, __u32 ifindex)
{
	struct pkt *p = packet();
	struct node *n = this_node();
	struct nat *known, entry;
	__u8 to[16] = {}, from[16];
	int port;

	if (!p || !n)
		return 0;
	if (p->is & IS_ERROR)
		return nat_error_out(skb, ifindex);
	if (!translated(n, &p->key, p->family))
		return 0;
	if ((p->is & IS_NOPORTS) || !outside_address(p, ifindex, to))
		return DROP_NO_ROUTE;
	copy_key(&p->rkey, &p->key, n->edge);
	known = bpf_map_lookup_elem(&nats, &p->rkey);
	if (!known) {
		reverse_key(&p->wkey, &p->key, n->edge);
		copy_addr(p->wkey.dst, to);
		copy_addr(p->nat_reply.addr, p->key.src);
		p->nat_reply.port = p->key.sport;
		p->nat_reply.in = 1;
		p->nat_reply.state = NAT_NOTED;
		p->nat_reply.seen = p->now;
		port = take_port();
		if (port < 0)
			return DROP_NAT_PORTS;
		__builtin_memset(&entry, 0, sizeof(entry));
		entry.port = bpf_htons(port);
		copy_addr(entry.addr, to);
		entry.seen = p->now;
		entry.state = NAT_NOTED;
		/* The table may be full now, or another CPU was first: no half stays. */
		if (bpf_map_update_elem(&nats, &p->rkey, &entry, BPF_NOEXIST))
			bpf_map_delete_elem(&nats, &p->wkey);
		known = bpf_map_lookup_elem(&nats, &p->rkey);
		if (!known)
			return DROP_NAT_PORTS;
	}
	if (p->is & IS_ANYSYN)
		nat_begins(known);
	nat_use(p, known, 1);
	copy_addr(from, p->key.src);
	copy_addr(to, known->addr);
	write_port(skb, p, 0, p->key.sport, known->port);
	write_address(skb, p, 0, from, to);
	return 0;
}

/* Give a reply its old destination back. 1: pkt.key is the untranslated one. */
__noinline int nat_in(struct __sk_buff *skb)
{
	struct pkt *p = packet();
	struct node *n = this_node();
	struct nat *known;
	__u8 from[16] __attribute__((aligned(8))), to[16] __attribute__((aligned(8)));
	__u8 outer[16] __attribute__((aligned(8)));
	__be16 old, port;

	if (!p || !n)
		return 0;
	known = bpf_map_lookup_elem(&nats, &p->key);
	if (!known || !known->in)
		return 0;
	copy_addr(from, p->key.dst);
	if (p->is & IS_ERROR) {
		outer_address(skb, p, 1, outer);
		if (!same_addr(outer, from))
			return 0;
	}
	copy_addr(to, known->addr);
	old = p->key.dport;
	port = known->port;
	if (p->is & IS_ERROR) {
		edit_address(skb, p, 1, from, to, p->family == FAMILY_6 ? p->l4 + 2 : 0);
		edit_quoted(skb, p, 0, from, to, 0, 0);
		write_quoted_port(skb, p, 0, old, port);
	} else {
		write_port(skb, p, 1, old, port);
		write_address(skb, p, 1, from, to);
		copy_addr(p->outside, from);
		p->outside_port = old;
		p->inward = 1;
	}
	copy_addr(p->key.dst, to);
	p->key.dport = port;
	if (is_echo(&p->key))
		p->key.sport = port;
	nat_use(p, known, !(p->is & (IS_FIN | IS_RST)) || nat_fits(p, n));
	return 1;
}

#endif
