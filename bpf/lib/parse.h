/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * From a frame to a 5-tuple: Ethernet, up to two VLAN tags, IPv4 or IPv6 with
 * extension headers, TCP, UDP, UDP-Lite, SCTP, ICMP echo, ICMP errors by what
 * they quote, fragments by their first.
 */
#ifndef ONPATH_PARSE_H
#define ONPATH_PARSE_H

#include "packet.h"

#define PARSE_IP        0
#define PARSE_OTHER     1 /* not IP: never selected */
#define PARSE_MALFORMED 2
#define PARSE_ENCAP     3 /* an encapsulation we do not look into */

#define MAX_EXTENSIONS 6

#define PROTO_ETHERIP 97  /* RFC 3378 */
#define PROTO_MPLS    137 /* RFC 4023 */

struct tcp_head {
	__be16 sport, dport;
	__be32 seq, ack;
	__u8 offset, flags;
	__be16 window;
};

static __always_inline int encapsulates(__u8 proto)
{
	return proto == IPPROTO_IPIP || proto == IPPROTO_IPV6 || proto == IPPROTO_GRE ||
	       proto == PROTO_ETHERIP || proto == PROTO_MPLS;
}

static __always_inline int is_extension(__u32 proto)
{
	return proto == IPPROTO_HOPOPTS || proto == IPPROTO_ROUTING || proto == IPPROTO_DSTOPTS ||
	       proto == IPPROTO_AH || proto == IPPROTO_FRAGMENT;
}

/* Multicast, broadcast, link-local, unspecified, loopback: never selected. */
static __always_inline int confined(const __u8 *a, __u8 family)
{
	if (family == FAMILY_4) {
		a += 12;
		return a[0] == 0 || a[0] >= 224 || a[0] == 127 || (a[0] == 169 && a[1] == 254);
	}
	if (a[0] == 0xff || (a[0] == 0xfe && (a[1] & 0xc0) == 0x80))
		return 1;
	return !((const __u32 *)a)[0] && !((const __u32 *)a)[1] && !((const __u32 *)a)[2] &&
	       (bpf_ntohl(((const __u32 *)a)[3]) <= 1);
}

/* Do n bytes at off belong to the IP packet? What lies behind it in the frame is
 * padding. */
static __always_inline int within(const struct pkt *p, __u32 off, __u32 n)
{
	return off + n <= p->l3 + p->length;
}

#define OPTION_END  0
#define OPTION_NOP  1
#define OPTION_LSRR 131
#define OPTION_SSRR 137
#define MAX_OPTIONS4 40 /* bytes, and so options */

/* Is a source route among the IPv4 options from at to end (RFC 791 §3.1)? */
__noinline int has_source_route(struct __sk_buff *skb, __u32 at, __u32 end)
{
	__u8 o[2];
	__u32 i;

	for (i = 0; i < MAX_OPTIONS4; i++) {
		if (at + 2 > end || bpf_skb_load_bytes(skb, at, o, 2) || o[0] == OPTION_END)
			return 0;
		if (o[0] == OPTION_LSRR || o[0] == OPTION_SSRR)
			return 1;
		if (o[0] == OPTION_NOP) {
			at++;
			continue;
		}
		if (o[1] < 2)
			return 0;
		at += o[1];
	}
	return 0;
}

/* Skip the extension header at pkt.ext. Returns the next header's protocol, or -1
 * if it cannot be read; pkt.frag gets the fragment field, pkt.frag_id the
 * identification. */
__noinline int skip_extension(struct __sk_buff *skb, __u32 proto)
{
	struct { __u8 next, len; union { __be16 field; __u8 route[2]; /* type, segments left */ }; __be32 id; } e;
	struct pkt *p = packet();

	if (!p || !within(p, p->ext, sizeof(e)) || bpf_skb_load_bytes(skb, p->ext, &e, sizeof(e)))
		return -1;
	if (proto == IPPROTO_FRAGMENT) {
		p->frag = bpf_ntohs(e.field);
		p->frag_id = e.id;
		p->ext += 8;
	} else if (proto == IPPROTO_AH) {
		p->ext += ((__u32)e.len + 2) * 4;
	} else {
		p->ext += ((__u32)e.len + 1) * 8;
	}
	if (!within(p, p->ext, 0))
		return -1;
	if (proto == IPPROTO_ROUTING && !e.route[0] && e.route[1])
		p->is |= IS_ROUTED;
	return e.next;
}

/* Skip extension headers from pkt.ext on. Returns the upper protocol, or -1 if it
 * cannot be found. Unrolled: older verifiers refuse the loop that compilers make. */
__noinline int skip_extensions(struct __sk_buff *skb, __u32 proto)
{
	struct pkt *p = packet();
	int i, next = proto;

	if (!p)
		return -1;
#pragma unroll
	for (i = 0; i < MAX_EXTENSIONS; i++) {
		if (next < 0 || !is_extension(next) || (p->frag & 0xfff8))
			return next;
		next = skip_extension(skb, next);
	}
	return is_extension(next) && !(p->frag & 0xfff8) ? -1 : next;
}

/* Of the ICMP that belongs to the packet's version of IP. */
static __always_inline int is_icmp_echo(const struct pkt *p, __u8 proto, __u8 type)
{
	if (p->family == FAMILY_4)
		return proto == IPPROTO_ICMP && (type == 8 || type == 0);
	return proto == IPPROTO_ICMPV6 && (type == 128 || type == 129);
}

static __always_inline int is_icmp_error(const struct pkt *p, __u8 proto, __u8 type)
{
	if (p->family == FAMILY_4)
		return proto == IPPROTO_ICMP && (type == 3 || type == 4 || type == 5 || type == 11 || type == 12);
	return proto == IPPROTO_ICMPV6 && type < 128;
}

/* Ports of the quoted packet; key becomes the reverse of its tuple. */
__noinline int parse_quoted(struct __sk_buff *skb)
{
	struct pkt *p = packet();
	__be16 ports[4];
	__u32 off, is;
	__u8 proto;
	int upper;

	if (!p)
		return -1;
	off = p->l4 + 8;
	p->inner_l3 = off;
	if (p->family == FAMILY_4) {
		struct iphdr h;

		if (!within(p, off, sizeof(h)) || bpf_skb_load_bytes(skb, off, &h, sizeof(h)) ||
		    h.version != 4 || h.ihl < 5 || !within(p, off, h.ihl * 4))
			return -1;
		if (h.frag_off & bpf_htons(0x1fff))
			return -1;
		map_v4(p->wkey.src, h.saddr);
		map_v4(p->wkey.dst, h.daddr);
		proto = h.protocol;
		off += h.ihl * 4;
	} else {
		struct ipv6hdr h;

		if (!within(p, off, sizeof(h)) || bpf_skb_load_bytes(skb, off, &h, sizeof(h)) ||
		    h.version != 6)
			return -1;
		copy_addr(p->wkey.src, &h.saddr);
		copy_addr(p->wkey.dst, &h.daddr);
		if (is_mapped(p->wkey.src) || is_mapped(p->wkey.dst))
			return -1;
		p->ext = off + sizeof(h);
		p->frag = 0;
		upper = h.nexthdr;
		is = p->is;
		if (is_extension(upper))
			upper = skip_extensions(skb, upper);
		p->is = is;
		if (upper < 0 || (p->frag & 0xfff8))
			return -1;
		proto = upper;
		off = p->ext;
	}
	p->inner_l4 = off;
	p->wkey.proto = proto;
	p->wkey.sport = p->wkey.dport = 0;
	if (tuple_has_ports(proto)) {
		if (!within(p, off, sizeof(ports)) || bpf_skb_load_bytes(skb, off, ports, sizeof(ports)))
			return -1;
		if (has_ports(proto)) {
			p->wkey.sport = ports[0];
			p->wkey.dport = ports[1];
		} else {
			__u8 type = *(__u8 *)ports;

			if (is_icmp_error(p, proto, type))
				return -1;
			if (is_icmp_echo(p, proto, type))
				p->wkey.sport = p->wkey.dport = ports[2]; /* its identifier */
		}
	}
	reverse_key(&p->key, &p->wkey, p->key.scope);
	return 0;
}

static __always_inline void parse_tcp(struct __sk_buff *skb, struct pkt *p)
{
	struct tcp_head t;

	if (!within(p, p->l4, 20) || bpf_skb_load_bytes(skb, p->l4, &t, sizeof(t)) || t.offset < 0x50) {
		p->is |= IS_NOPORTS;
		return;
	}
	p->key.sport = t.sport;
	p->key.dport = t.dport;
	p->headers += (t.offset >> 4) * 4;
	p->seq = bpf_ntohl(t.seq);
	p->ack = bpf_ntohl(t.ack);
	p->is |= IS_TCP;
	if (t.flags & 0x01)
		p->is |= IS_FIN;
	if (t.flags & 0x02)
		p->is |= t.flags & 0x10 ? IS_ANYSYN : IS_ANYSYN | IS_SYN;
	if (t.flags & 0x04)
		p->is |= IS_RST;
	if (t.flags & 0x10)
		p->is |= IS_ACK;
}

/* Neighbour Discovery (RFC 4861), which also goes from one global address to another. It
 * is none with another hop limit, for that has passed a router. */
static __always_inline int is_discovery(const struct pkt *p, __u8 type, __u8 code)
{
	return p->key.proto == IPPROTO_ICMPV6 && p->family == FAMILY_6 && type >= 133 && type <= 137 && !code &&
	       p->ttl == 255;
}

static __always_inline void parse_icmp(struct __sk_buff *skb, struct pkt *p)
{
	struct { __u8 type, code; __be16 sum, id, seq; } h;

	if (!within(p, p->l4, sizeof(h)) || bpf_skb_load_bytes(skb, p->l4, &h, sizeof(h))) {
		p->is |= IS_NOPORTS;
		return;
	}
	p->headers += 8;
	if (is_icmp_echo(p, p->key.proto, h.type)) {
		p->key.sport = p->key.dport = h.id;
		return;
	}
	p->is |= is_discovery(p, h.type, h.code) ? IS_ICMP | IS_LINK : IS_ICMP;
	if (!is_icmp_error(p, p->key.proto, h.type))
		return;
	p->is |= IS_ERROR;
	/* One from nobody, or to nobody, is about nothing: routers do not carry it. */
	if (confined(p->key.src, p->family) || confined(p->key.dst, p->family) || parse_quoted(skb))
		p->is |= IS_NOPORTS;
}

/* Fragments share one tuple: the first writes it down, the others read it. */
__noinline int parse_fragment(__u32 id, __u32 first)
{
	struct pkt *p = packet();
	struct frag f, *known;

	if (!p)
		return 0;
	copy_addr(p->fkey.src, p->key.src);
	copy_addr(p->fkey.dst, p->key.dst);
	p->fkey.id = id;
	p->fkey.scope = p->key.scope;
	p->fkey.proto = p->family == FAMILY_4 ? p->key.proto : 0; /* RFC 8200 §4.5: not part of it */
	p->fkey.family = p->family;
	p->fkey.pad = 0;
	if (first) {
		f.sport = p->key.sport;
		f.dport = p->key.dport;
		f.proto = p->key.proto;
		f.pad[0] = f.pad[1] = f.pad[2] = 0;
		f.seen = now_seconds();
		if (!(p->is & IS_NOPORTS))
			bpf_map_update_elem(&frags, &p->fkey, &f, BPF_ANY);
		return 0;
	}
	known = bpf_map_lookup_elem(&frags, &p->fkey);
	if (!known || ((now_seconds() - known->seen) & SEEN_MASK) > FRAG_LIFE) {
		if (tuple_has_ports(p->key.proto) ||
		    (p->family == FAMILY_6 && is_extension(p->key.proto)))
			p->is |= IS_NOPORTS;
		return 0;
	}
	p->key.proto = known->proto;
	p->key.sport = known->sport;
	p->key.dport = known->dport;
	return 0;
}

/* Lengths as they are on the wire: a GSO packet stands for several. */
static __always_inline void measure(struct __sk_buff *skb, struct pkt *p)
{
	__u32 size = skb->gso_size, n = skb->gso_segs;

	p->packets = 1;
	p->bytes = p->length;
	p->segment = p->length;
	if (!size)
		return;
	if (p->headers > 256)
		p->headers = 40;
	/* SCTP's are cut already (GSO_BY_FRAGS), each as its sender knows that it fits. */
	p->segment = size == 0xffff ? 0 : size + p->headers;
	if (!n)
		n = (p->length - p->headers + size - 1) / size;
	p->packets = n;
	p->bytes = p->length + (n - 1) * p->headers;
}

/* Parse the frame; key.scope must be set (fragments use it). */
__noinline int parse(struct __sk_buff *skb)
{
	struct pkt *p = packet();
	__u32 off = ETH_HLEN, id = 0, limit;
	__u16 frag = 0, first = 0, later = 0;
	__be16 type;
	int i, upper;

	if (!p)
		return PARSE_OTHER;
	p->l3 = ETH_HLEN;
	p->key.sport = 0;
	p->key.dport = 0;
	p->ack = 0;
	if (bpf_skb_load_bytes(skb, 12, &type, 2))
		return PARSE_OTHER;
	limit = skb->vlan_present ? 1 : 2; /* of which one may be in the metadata */
	for (i = 0; i < 3; i++) {
		if (type != bpf_htons(ETH_P_8021Q) && type != bpf_htons(ETH_P_8021AD))
			break;
		if (i >= limit)
			return PARSE_ENCAP;
		if (bpf_skb_load_bytes(skb, off + 2, &type, 2))
			return PARSE_MALFORMED;
		off += 4;
		p->tags++;
	}
	p->l3 = off;
	limit = skb->len - off;
	if (type == bpf_htons(ETH_P_IP)) {
		struct iphdr h;

		if (bpf_skb_load_bytes(skb, off, &h, sizeof(h)) || h.version != 4 || h.ihl < 5)
			return PARSE_MALFORMED;
		p->family = FAMILY_4;
		map_v4(p->key.src, h.saddr);
		map_v4(p->key.dst, h.daddr);
		p->key.proto = h.protocol;
		p->ttl = h.ttl;
		p->headers = h.ihl * 4;
		p->length = bpf_ntohs(h.tot_len);
		if (!p->length && skb->gso_size)
			p->length = limit; /* beyond 64 KiB */
		if (p->length < p->headers || p->length > limit)
			return PARSE_MALFORMED;
		if (p->headers > sizeof(h) && has_source_route(skb, off + sizeof(h), off + p->headers))
			p->is |= IS_ROUTED;
		frag = bpf_ntohs(h.frag_off);
		if (!(frag & 0x4000) && !skb->gso_size)
			p->is |= IS_DIVISIBLE;
		id = h.id;
		later = (frag & 0x1fff) != 0;
		first = !later && (frag & 0x2000);
		off += p->headers;
	} else if (type == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr h;

		if (bpf_skb_load_bytes(skb, off, &h, sizeof(h)) || h.version != 6)
			return PARSE_MALFORMED;
		p->family = FAMILY_6;
		copy_addr(p->key.src, &h.saddr);
		copy_addr(p->key.dst, &h.daddr);
		if (is_mapped(p->key.src) || is_mapped(p->key.dst))
			return PARSE_MALFORMED;
		p->ttl = h.hop_limit;
		p->length = bpf_ntohs(h.payload_len) + sizeof(h);
		if (!h.payload_len && skb->gso_size)
			p->length = limit;
		if (p->length > limit)
			return PARSE_MALFORMED;
		p->ext = off + sizeof(h);
		p->frag = 0;
		upper = h.nexthdr;
		if (is_extension(upper))
			upper = skip_extensions(skb, upper);
		frag = p->frag;
		id = p->frag_id;
		off = p->ext;
		if (upper < 0) {
			p->is |= IS_NOPORTS | IS_NOPROTO;
			p->key.proto = h.nexthdr;
		} else {
			p->key.proto = upper;
		}
		later = (frag & 0xfff8) != 0;
		first = !later && (frag & 1);
		p->headers = off - p->l3;
	} else {
		/* MPLS, PPPoE */
		if (type == bpf_htons(0x8847) || type == bpf_htons(0x8848) ||
		    type == bpf_htons(0x8864))
			return PARSE_ENCAP;
		return PARSE_OTHER;
	}
	p->l4 = off;
	if (later)
		p->is |= IS_LATER;
	if (!later && !(p->is & IS_NOPORTS)) {
		switch (p->key.proto) {
		case IPPROTO_TCP:
			parse_tcp(skb, p);
			break;
		case IPPROTO_UDP:
		case IPPROTO_SCTP:
		case IPPROTO_UDPLITE:
			if (!within(p, off, p->key.proto == IPPROTO_SCTP ? 12 : 8) ||
			    bpf_skb_load_bytes(skb, off, &p->key.sport, 4))
				p->is |= IS_NOPORTS;
			p->headers += 8;
			break;
		case IPPROTO_ICMP:
		case IPPROTO_ICMPV6:
			parse_icmp(skb, p);
		}
	}
	if ((later || first) && !(p->is & IS_ERROR))
		parse_fragment(id, first);
	if (encapsulates(p->key.proto) && !(p->is & IS_NOPROTO))
		p->is |= IS_ENCAP;
	measure(skb, p);
	return PARSE_IP;
}

#endif
