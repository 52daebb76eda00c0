/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Packets the data path makes itself, by rewriting the one that caused them:
 * ICMP errors and TCP resets. They go back to where that packet came from.
 *
 * The packet may carry a partial checksum (CHECKSUM_PARTIAL), which a program
 * cannot see: the device then sums from the transport header to the end and
 * overwrites the checksum field on the way out. So what is written here is right
 * with and without: free bits are chosen such that the sum which the device
 * would write is the one that stands there already.
 */
#ifndef ONPATH_REJECT_H
#define ONPATH_REJECT_H

#include "count.h"
#include "edit.h"
#include "parse.h"
#include "rewrite.h"
#include "route.h"
#include "tunnel.h"

#define ICMP_INTERVAL (NSEC / 500) /* ns from one error of a tenant on a CPU to the next, of each half */
#define ICMP_BURST    50
#define ICMP_TO_ONE   20 /* in a second */

/* Errors about these speak with the address of the far end: a bridge has none, and
 * the host takes none from its own. */
#define IS_FOREIGN (IS_OUTGOING | IS_BRIDGED)

/* One's complement sum, folded, in network words as they lie in memory. */
static __always_inline __u32 fold(__u64 s)
{
	s = (s & 0xffff) + ((s >> 16) & 0xffff) + ((s >> 32) & 0xffff) + (s >> 48);
	s = (s & 0xffff) + (s >> 16);
	s = (s & 0xffff) + (s >> 16);
	return s;
}

/* Negative, and half, modulo 65535. */
static __always_inline __u32 minus(__u32 s)
{
	return 65535 - s % 65535;
}

static __always_inline __u32 half(__u32 s)
{
	return (s % 65535) * 32768 % 65535;
}

static __always_inline __u32 fold_address(const __u8 *a)
{
	const __u32 *w = (const void *)a;
	__u64 h = (w[0] ^ (__u64)w[1] << 32) * 0x9e3779b97f4a7c15ull + (w[2] ^ (__u64)w[3] << 32);

	return h * 0x9e3779b97f4a7c15ull >> 32;
}

/* May one more be sent, by a limit kept as the time at which the next is due? */
static __always_inline int take_error(__u64 *due, __u64 now)
{
	if (is_beyond(*due, now, ICMP_BURST * ICMP_INTERVAL))
		return 0;
	if (is_past(*due, now))
		*due = now;
	*due += ICMP_INTERVAL;
	return 1;
}

/* In whose name the packet is answered: the tenant of its chain, or of the instance that
 * it came out of. */
static __always_inline __u32 tenant_of_error(const struct pkt *p)
{
	__u32 slot = p->d.path_slot, tenant = p->tenant;
	struct path *path = bpf_map_lookup_elem(&paths, &slot);

	barrier_var(tenant); /* or the compiler reckons with the path's address before it is known */
	if (slot && path)
		tenant = path->tenant;
	return tenant;
}

/*
 * May the packet be answered by an error? On each CPU there is a limit for each tenant: nobody
 * silences the errors of others. Half of it is kept for what tells how large packets may be,
 * without which connections hang. And few go to one address in a second, whatever it sends.
 */
__noinline int allowed(__u32 what)
{
	struct pkt *p = packet();
	struct error_limit *limit;
	struct recent *recent;
	__u32 tenant, at, who;
	__u64 now;

	if (!p)
		return 0;
	tenant = tenant_of_error(p);
	limit = bpf_map_lookup_elem(&error_limits, &tenant);
	who = fold_address(p->key.src) ^ tenant;
	at = who % RECENT;
	recent = bpf_map_lookup_elem(&recent_errors, &at);
	if (!limit || !recent)
		return 0;
	if (recent->who != who || recent->second != p->now) {
		recent->who = who;
		recent->second = p->now;
		recent->errors = 0;
	}
	if (recent->errors >= ICMP_TO_ONE)
		return 0;
	now = bpf_ktime_get_ns();
	if (!(what == ERROR_BIG && take_error(&limit->big, now)) && !take_error(&limit->due, now))
		return 0;
	recent->errors++;
	return 1;
}

/* To this machine's own sockets, as if it had just come in at a device. */
static __always_inline int to_host(struct __sk_buff *skb, __u32 ifindex)
{
	skb->mark = MARK_TO_HOST;
	return bpf_redirect(ifindex, BPF_F_INGRESS);
}

/* Send the packet back to where it came from. */
static __always_inline int reflect(struct __sk_buff *skb, struct pkt *p)
{
	__u32 slot = p->prev_slot;
	struct vport *v;
	__u8 macs[12];

	if (p->is & IS_TAPPED)
		return TC_ACT_SHOT;
	if ((p->is & IS_EDGE) && p->queried) /* its frame's addresses are gone */
		return find_route(skb) ? TC_ACT_SHOT : leave_by_route(skb, p);
	if (p->is & IS_EDGE) {
		__builtin_memcpy(macs, p->macs + 6, 6);
		__builtin_memcpy(macs + 6, p->macs, 6);
		bpf_skb_store_bytes(skb, 0, macs, 12, 0);
		if (p->is & IS_OUTGOING)
			return to_host(skb, p->ifindex);
		if (p->vlan)
			bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), p->vlan & ~STATION_TAGGED);
		return bpf_redirect(p->ifindex, 0);
	}
	v = vport_at(slot, p->prev);
	if (!v || v->state == STATE_CLOSED)
		return TC_ACT_SHOT;
	if (v->kind == VPORT_INSTANCE) {
		set_macs(skb, v);
		return bpf_redirect(v->ifindex, 0);
	}
	if (v->kind == VPORT_REMOTE) {
		struct node *n = this_node();

		/* Where no edge is, from the vport that the packet came for: what comes from no
		 * vport is a gateway's message to its HA peer. */
		if (!n || encapsulate(skb, slot, n->edge ? n->edge : p->tunnel.tunnel_id, p->d.entry, 0))
			return TC_ACT_SHOT;
		return bpf_redirect(n->tunnel_ifindex, 0);
	}
	return TC_ACT_SHOT;
}

/* Sum of n (a multiple of 4) bytes of the packet, and make quoted checksum at
 * field (offset from off) one that a device's sum leaves as it is. */
__noinline int fix_quoted(struct __sk_buff *skb, __u32 off, __u32 tcp)
{
	__u8 head[20] = {};
	__u16 sum;
	__s64 s;

	if (tcp) {
		if (bpf_skb_load_bytes(skb, off, head, 20))
			return -1;
		head[16] = head[17] = 0;
	} else {
		if (bpf_skb_load_bytes(skb, off, head, 8))
			return -1;
		head[6] = head[7] = 0;
	}
	s = bpf_csum_diff(0, 0, (__be32 *)head, 20, 0);
	sum = half(minus(fold(s)));
	return bpf_skb_store_bytes(skb, off + (tcp ? 16 : 6), &sum, 2, 0);
}

#define MIN_QUOTED 28

/* What an error quotes, to pkt.body. One comparison: kernels before 6.3 do not see
 * what two of them say together, and the compiler may make two of one. */
__noinline int quote(struct __sk_buff *skb, __u32 off, __u32 length)
{
	struct pkt *p = packet();
	__u32 more = length - MIN_QUOTED;

	if (!p)
		return -1;
	__builtin_memset(p->body, 0, MAX_QUOTED);
	barrier_var(more);
	if (more > MAX_QUOTED - MIN_QUOTED)
		return -1;
	return bpf_skb_load_bytes(skb, off, p->body, more + MIN_QUOTED);
}

static __always_inline int icmp4(struct __sk_buff *skb, struct pkt *p, const struct port *port,
				 __u32 what, __u32 mtu, __u32 quoted)
{
	struct error4 *h = &p->error4;
	__u8 *body = p->body;
	__s64 s;

	__builtin_memset(h, 0, sizeof(*h));
	h->ip.version = 4;
	h->ip.ihl = 5;
	h->ip.tot_len = bpf_htons(sizeof(*h) + quoted);
	h->ip.ttl = 64;
	h->ip.protocol = IPPROTO_ICMP;
	h->ip.saddr = p->is & IS_FOREIGN ? V4(p->key.dst) : *(__u32 *)port->addr4;
	h->ip.daddr = V4(p->key.src);
	h->ip.check = ~fold(bpf_csum_diff(0, 0, (__be32 *)&h->ip, 20, 0));
	h->type = ERROR_TYPE4(what);
	h->code = ERROR_CODE4(what);
	h->info = what == ERROR_BIG ? bpf_htonl(mtu & 0xffff) : 0;
	if (bpf_skb_adjust_room(skb, sizeof(*h), BPF_ADJ_ROOM_MAC, 0))
		return -1;
	if (quoted < 28 || quote(skb, ETH_HLEN + sizeof(*h), quoted))
		return -1;
	s = bpf_csum_diff(0, 0, (__be32 *)&h->type, 8, 0);
	h->sum = ~fold(bpf_csum_diff(0, 0, (__be32 *)body, MAX_QUOTED, fold(s)));
	return bpf_skb_store_bytes(skb, ETH_HLEN, h, sizeof(*h), 0);
}

static __always_inline int icmp6(struct __sk_buff *skb, struct pkt *p, const struct port *port,
				 __u32 what, __u32 mtu, __u32 quoted)
{
	struct error6 *h = &p->error6;
	struct { __be32 length, next; } pseudo;
	__u8 *body = p->body;
	__s64 s;

	__builtin_memset(h, 0, sizeof(*h));
	h->ip.version = 6;
	h->ip.payload_len = bpf_htons(8 + quoted);
	h->ip.nexthdr = IPPROTO_ICMPV6;
	h->ip.hop_limit = 64;
	copy_addr(&h->ip.saddr, p->is & IS_FOREIGN ? p->key.dst : port->addr6);
	copy_addr(&h->ip.daddr, p->key.src);
	h->type = ERROR_TYPE6(what);
	h->code = ERROR_CODE6(what);
	h->info = what == ERROR_BIG ? bpf_htonl(mtu) : 0;
	if (bpf_skb_adjust_room(skb, sizeof(*h), BPF_ADJ_ROOM_MAC, 0))
		return -1;
	if (quoted < 48 || quote(skb, ETH_HLEN + sizeof(*h), quoted))
		return -1;
	pseudo.length = bpf_htonl(8 + quoted);
	pseudo.next = bpf_htonl(IPPROTO_ICMPV6);
	s = bpf_csum_diff(0, 0, (__be32 *)&h->ip.saddr, 32, 0);
	s = bpf_csum_diff(0, 0, (__be32 *)&pseudo, 8, fold(s));
	s = bpf_csum_diff(0, 0, (__be32 *)&h->type, 8, fold(s));
	h->sum = ~fold(bpf_csum_diff(0, 0, (__be32 *)body, MAX_QUOTED, fold(s)));
	return bpf_skb_store_bytes(skb, ETH_HLEN, h, sizeof(*h), 0);
}

/*
 * Reply to the packet with an ICMP error (what: ERROR_…), and count it as dropped
 * for that reason. No reply: to ICMP other than echo, to later fragments (the
 * first has one), above the rate, and where the node has no address. It quotes
 * the headers with their options and extensions, as far as there is room.
 */
__noinline int send_error(struct __sk_buff *skb, __u32 what, __u32 mtu)
{
	struct pkt *p = packet();
	struct port *port;
	__u32 ip, head, quoted, ifindex, transport = 8;
	int rc;

	if (!p)
		return TC_ACT_SHOT;
	drop(p, ERROR_REASON(what));
	ip = p->family == FAMILY_4 ? 20 : 40;
	ifindex = p->ifindex;
	port = bpf_map_lookup_elem(&ports, &ifindex);
	head = p->l4 - p->l3;
	if (!port || (p->is & (IS_ERROR | IS_ICMP | IS_NOPORTS | IS_LATER)) || head < ip)
		return TC_ACT_SHOT;
	if (!(p->is & IS_FOREIGN) &&
	    (p->family == FAMILY_4 ? !*(__u32 *)port->addr4 : !*(__u32 *)port->addr6))
		return TC_ACT_SHOT;
	if (!allowed(what) || unedit(skb))
		return TC_ACT_SHOT;
	pop_vlans(skb, p);
	if (p->l3 != ETH_HLEN)
		return TC_ACT_SHOT;
	if (p->is & IS_TCP)
		transport = 20;
	quoted = head + transport;
	if (quoted > MAX_QUOTED)
		quoted = MAX_QUOTED;
	if (bpf_skb_change_tail(skb, ETH_HLEN + quoted, 0))
		return TC_ACT_SHOT;
	if (((p->is & IS_TCP) || p->key.proto == IPPROTO_UDP) && head + transport <= MAX_QUOTED)
		if (fix_quoted(skb, ETH_HLEN + head, p->is & IS_TCP))
			return TC_ACT_SHOT;
	rc = p->family == FAMILY_4 ? icmp4(skb, p, port, what, mtu, quoted)
				       : icmp6(skb, p, port, what, mtu, quoted);
	if (rc)
		return TC_ACT_SHOT;
	return reflect(skb, p);
}

/* What find_route or the neighbour refuses. */
static __always_inline int refuse_route(struct __sk_buff *skb, struct pkt *p, int reason)
{
	return p->refusal ? send_error(skb, p->refusal, p->refusal == ERROR_BIG ? p->fib.mtu_result : 0) : drop(p, reason);
}

/* Can the packet go where find_route has found? A drop reason, or 0. */
static __always_inline int reach_neighbour(struct pkt *p)
{
	if (p->resolved || !neighbour_failed())
		return 0;
	p->refusal = ERROR_NEIGHBOUR;
	return DROP_NO_NEIGHBOUR;
}

struct tcp_reset {
	__be16 sport, dport;
	__be32 seq, ack;
	__u8 offset, flags;
	__u16 window, check, urgent;
};

/* Reply to a TCP packet with a RST (RFC 9293 §3.10.7.1), without the options and extension
 * headers of that packet; counted as dropped. */
__noinline int send_reset(struct __sk_buff *skb)
{
	struct { __be32 length, next; } pseudo;
	struct tcp_head in;
	struct tcp_reset t;
	struct pkt *p = packet();
	__u32 ip, more, payload, sum, window;
	__s64 s;

	if (!p)
		return TC_ACT_SHOT;
	drop(p, p->after == AFTER_REFUSE ? DROP_FUNCTION : DROP_RESET);
	ip = p->family == FAMILY_4 ? 20 : 40;
	if (!(p->is & IS_TCP) || (p->is & (IS_ERROR | IS_RST)) || unedit(skb))
		return TC_ACT_SHOT;
	pop_vlans(skb, p);
	if (p->l3 != ETH_HLEN || bpf_skb_load_bytes(skb, p->l4, &in, sizeof(in)))
		return TC_ACT_SHOT;
	more = p->l4 - p->l3 - ip;
	payload = p->length - ip - more - (in.offset >> 4) * 4;
	if ((__s32)payload < 0)
		payload = 0; /* a header that says to be longer than its packet */
	__builtin_memset(&t, 0, sizeof(t));
	t.sport = in.dport;
	t.dport = in.sport;
	t.offset = 5 << 4;
	if (p->is & IS_ACK) {
		t.flags = 0x04;
		t.seq = in.ack;
	} else {
		t.flags = 0x14;
		t.ack = bpf_htonl(bpf_ntohl(in.seq) + payload + !!(p->is & IS_ANYSYN) + !!(p->is & IS_FIN));
	}
	pseudo.length = bpf_htonl(20);
	pseudo.next = bpf_htonl(IPPROTO_TCP);
	s = bpf_csum_diff(0, 0, (__be32 *)&pseudo, 8, 0);
	s = bpf_csum_diff(0, 0, (__be32 *)p->key.src, 32, fold(s));
	sum = fold(s); /* of the pseudo header; unused address bytes are zero */
	/* The window of a RST means nothing: with -2·pseudo-sum for the header, the
	 * checksum equals the pseudo-sum, which is what a partial one starts from. */
	window = fold(bpf_csum_diff(0, 0, (__be32 *)&t, 20, 0));
	t.window = minus((2 * (sum % 65535) + window) % 65535) % 65535;
	t.check = sum;
	if (more && bpf_skb_adjust_room(skb, -(__s32)more, BPF_ADJ_ROOM_NET, 0))
		return TC_ACT_SHOT;
	if (bpf_skb_change_tail(skb, ETH_HLEN + ip + 20, 0))
		return TC_ACT_SHOT;
	if (p->family == FAMILY_4) {
		struct iphdr h;

		if (bpf_skb_load_bytes(skb, ETH_HLEN, &h, sizeof(h)))
			return TC_ACT_SHOT;
		h.ihl = 5;
		h.saddr = V4(p->key.dst);
		h.daddr = V4(p->key.src);
		h.tot_len = bpf_htons(40);
		h.frag_off = bpf_htons(0x4000);
		h.ttl = 64;
		h.check = 0;
		h.check = ~fold(bpf_csum_diff(0, 0, (__be32 *)&h, 20, 0));
		bpf_skb_store_bytes(skb, ETH_HLEN, &h, sizeof(h), 0);
	} else {
		struct ipv6hdr h;

		if (bpf_skb_load_bytes(skb, ETH_HLEN, &h, sizeof(h)))
			return TC_ACT_SHOT;
		copy_addr(&h.saddr, p->key.dst);
		copy_addr(&h.daddr, p->key.src);
		h.nexthdr = IPPROTO_TCP;
		h.payload_len = bpf_htons(20);
		h.hop_limit = 64;
		bpf_skb_store_bytes(skb, ETH_HLEN, &h, sizeof(h), 0);
	}
	bpf_skb_store_bytes(skb, ETH_HLEN + ip, &t, 20, 0);
	return reflect(skb, p);
}

#endif
