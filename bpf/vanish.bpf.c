/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Takes the place of a TCP relay that has stepped out of a connection. The relay had one
 * connection with each end; the ends go on with these, and this program makes packets of one into
 * packets of the other. A byte has the same distance between its two sequence numbers from the
 * first byte to the last, so the program may begin between any two packets.
 *
 * While the relay's sockets still hold bytes that they have acknowledged, the half drains: what the
 * sockets have taken, and acknowledgements of what they have sent, still go to them.
 *
 * It stands where packets of a half come in, and has nothing to do with the program that steers.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/pkt_cls.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "vanish.h"

/* To the socket, or to whatever program is next on the device. */
#define TO_SOCKET TC_ACT_UNSPEC

/* The mark of a copy for a socket that comes in once more. */
#define COPY_MARK 0x76616e69

#define IP_SIZE     20
#define TCP_SIZE    20
#define OPTIONS     40
#define IP_CHECK    10
#define IP_ADDRS    12
#define TCP_SEQ     4
#define TCP_ACK     8
#define TCP_FLAGS   13
#define TCP_WINDOW  14
#define TCP_CHECK   16
#define ICMP_CHECK  2
#define ICMP_HEADER 8

#define FIN 0x01
#define SYN 0x02
#define RST 0x04
#define ACK 0x10

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, VANISH_HALVES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct vanish_key);
	__type(value, struct vanish_half);
} vanish_halves SEC(".maps");

/* TCP headers: as they are in the packet, and as they are to be. */
struct scratch {
	__u8 was[128];
	__u8 next[128];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} vanish_scratch SEC(".maps");

#define HEADER (TCP_SIZE + OPTIONS)

struct packet {
	__u8 ip[IP_SIZE];
	__u32 tcp;     /* offset of the TCP header */
	__u32 size;    /* of that header */
	__u32 payload; /* bytes behind it */
};

static __always_inline __u32 get32(const __u8 *b) { return (__u32)b[0] << 24 | b[1] << 16 | b[2] << 8 | b[3]; }

static __always_inline void put32(__u8 *b, __u32 v)
{
	b[0] = v >> 24;
	b[1] = v >> 16;
	b[2] = v >> 8;
	b[3] = v;
}

static __always_inline int before(__u32 a, __u32 b) { return (__s32)(a - b) < 0; }

static __always_inline __be16 be16_at(const __u8 *b) { return *(const __be16 *)b; }

static __always_inline __be32 be32_at(const __u8 *b) { return *(const __be32 *)b; }

/* Add to the number at a place of the options. */
__noinline int add_at(struct scratch *s, __u32 at, __u32 n)
{
	if (!s)
		return 0;
	at = TCP_SIZE + (at & 63);
	put32(&s->next[at], get32(&s->next[at]) + n);
	return 0;
}

__noinline int translate_stamps(struct scratch *s, struct vanish_half *h, __u32 at)
{
	__u32 echo;

	if (!s || !h)
		return 0;
	at = TCP_SIZE + (at & 63);
	put32(&s->next[at], get32(&s->next[at]) + h->ts_add);
	echo = get32(&s->next[at + 4]);
	if (!echo)
		return 0;
	if (h->flags & VANISH_CLAMP) {
		if (before(echo, h->echo_floor))
			echo = h->echo_floor;
		else
			h->flags &= ~VANISH_CLAMP; /* no older one follows in order */
	}
	put32(&s->next[at + 4], echo + h->echo_add);
	return 0;
}

/* One option after the other, from at to size. */
struct options {
	struct scratch *s;
	struct vanish_half *h;
	__u32 at, size;
	__u32 note; /* keep the timestamp of the half's end, and change nothing */
};

static long one_option(__u32 i, void *ctx)
{
	struct options *o = ctx;
	struct scratch *s = o->s;
	__u32 at = o->at, kind, len, block;

	if (at + 1 >= o->size || at >= OPTIONS)
		return 1;
	kind = s->was[TCP_SIZE + (at & 63)];
	if (kind == 0)
		return 1;
	if (kind == 1) {
		o->at++;
		return 0;
	}
	len = s->was[TCP_SIZE + ((at + 1) & 63)];
	if (len < 2 || at + len > o->size)
		return 1;
	o->at += len;
	if (o->note) {
		if (kind == 8 && len == 10)
			o->h->seen_stamp = get32(&s->was[TCP_SIZE + ((at + 2) & 63)]);
		return 0;
	}
	if (kind == 8 && len == 10)
		translate_stamps(s, o->h, at + 2);
	if (kind == 5) {
		for (block = 0; block < 8; block++)
			if (2 + (block + 1) * 4 <= len)
				add_at(s, at + 2 + block * 4, o->h->ack_add);
	}
	return 0;
}

static __always_inline void each_option(struct scratch *s, struct vanish_half *h, __u32 size, __u32 note)
{
	struct options o = {.s = s, .h = h, .size = size, .note = note};

	bpf_loop(OPTIONS, one_option, &o, 0);
}

/* Write the next header into the packet, with the checksum of the header as it came, and how much that
 * changes; addresses say how much theirs change it. */
static __always_inline int write_header(struct __sk_buff *skb, struct scratch *s, __u32 tcp, __u32 size, __s64 addresses)
{
	__s64 diff = bpf_csum_diff((__be32 *)s->was, HEADER, (__be32 *)s->next, HEADER, 0);

	if (size < TCP_SIZE || size > HEADER)
		return -1;
	if (bpf_skb_store_bytes(skb, tcp, s->next, size, 0))
		return -1;
	if (addresses && bpf_l4_csum_replace(skb, tcp + TCP_CHECK, 0, addresses, BPF_F_PSEUDO_HDR))
		return -1;
	return bpf_l4_csum_replace(skb, tcp + TCP_CHECK, 0, diff, 0);
}

/* Write the addresses, and one hop less; diff gets how much the addresses change a checksum. */
static __always_inline int write_ip(struct __sk_buff *skb, const __u8 *ip, const struct vanish_half *h, __s64 *diff)
{
	__be32 was[2] = {be32_at(ip + IP_ADDRS), be32_at(ip + IP_ADDRS + 4)}, next[2] = {h->src, h->dst};
	__u8 hops[2] = {ip[8] - 1, ip[9]};

	*diff = 0;
	if (bpf_l3_csum_replace(skb, ETH_HLEN + IP_CHECK, be16_at(ip + 8), be16_at(hops), 2) ||
	    bpf_skb_store_bytes(skb, ETH_HLEN + 8, hops, 1, 0))
		return -1;
	if (was[0] == next[0] && was[1] == next[1])
		return 0;
	*diff = bpf_csum_diff(was, 8, next, 8, 0);
	if (bpf_l3_csum_replace(skb, ETH_HLEN + IP_CHECK, 0, *diff, 0))
		return -1;
	return bpf_skb_store_bytes(skb, ETH_HLEN + IP_ADDRS, next, 8, 0);
}

static __always_inline int send(struct __sk_buff *skb, const struct vanish_half *h)
{
	if (h->out == VANISH_INTO) {
		if (bpf_skb_store_bytes(skb, 0, h->macs, 12, 0))
			return TC_ACT_SHOT;
		return bpf_redirect(h->out_ifindex, BPF_F_INGRESS);
	}
	return bpf_redirect_neigh(h->out_ifindex, NULL, 0, 0);
}

static __always_inline struct scratch *load_header(struct __sk_buff *skb, struct packet *p)
{
	__u32 zero = 0, options;
	struct scratch *s = bpf_map_lookup_elem(&vanish_scratch, &zero);

	if (!s)
		return NULL;
	__builtin_memset(s->was, 0, HEADER);
	if (bpf_skb_load_bytes(skb, p->tcp, s->was, TCP_SIZE))
		return NULL;
	p->size = (s->was[12] >> 4) * 4;
	options = p->size - TCP_SIZE;
	if (p->size < TCP_SIZE)
		return NULL;
	if (options > 0 && options <= OPTIONS && bpf_skb_load_bytes(skb, p->tcp + TCP_SIZE, s->was + TCP_SIZE, options))
		return NULL;
	__builtin_memcpy(s->next, s->was, HEADER);
	return s;
}

/* What a draining half's socket gets: an acknowledgement of what it sent, and no more than that. */
static __always_inline int for_socket(struct __sk_buff *skb, struct packet *p, struct scratch *s, const struct vanish_half *h)
{
	put32(&s->next[TCP_SEQ], h->own_seq);
	if (before(h->own_ack, get32(&s->next[TCP_ACK])))
		put32(&s->next[TCP_ACK], h->own_ack);
	return write_header(skb, s, p->tcp, p->size, 0);
}

static __always_inline void translate_header(struct scratch *s, struct vanish_half *h, __u32 size)
{
	__u32 flags, window;

	flags = s->next[TCP_FLAGS];
	*(__be16 *)&s->next[0] = h->sport;
	*(__be16 *)&s->next[2] = h->dport;
	put32(&s->next[TCP_SEQ], get32(&s->next[TCP_SEQ]) + h->seq_add);
	if (flags & ACK)
		put32(&s->next[TCP_ACK], get32(&s->next[TCP_ACK]) + h->ack_add);
	if (!(flags & SYN)) {
		window = (__u32)s->next[TCP_WINDOW] << 8 | s->next[TCP_WINDOW + 1];
		window = window << (h->shift_in & 15) >> (h->shift_out & 15);
		if (window > 0xffff)
			window = 0xffff;
		s->next[TCP_WINDOW] = window >> 8;
		s->next[TCP_WINDOW + 1] = window;
	}
	if (size > TCP_SIZE)
		each_option(s, h, size - TCP_SIZE, 0);
}

/* Delete a connection that is over when a new one begins with the same addresses and ports. */
static __always_inline int delete_over(const struct vanish_key *key, const struct vanish_half *h)
{
	struct vanish_key other = {.ifindex = h->other_ifindex, .src = h->dst, .dst = h->src, .sport = h->dport, .dport = h->sport};
	struct vanish_half *o = h->other_ifindex ? bpf_map_lookup_elem(&vanish_halves, &other) : NULL;

	if (!h->over && !(o && (o->over & VANISH_RESET)))
		return 0;
	if (o)
		bpf_map_delete_elem(&vanish_halves, &other);
	bpf_map_delete_elem(&vanish_halves, key);
	return 1;
}

/* A draining socket does not hear of what the other end has acknowledged since. An end takes no bytes
 * with an acknowledgement that is too old, nor their timestamps: it gets the latest. */
static __always_inline int on_own(struct __sk_buff *skb, struct packet *p, const struct vanish_half *own)
{
	struct vanish_key other = {.ifindex = own->out_ifindex, .src = own->src, .dst = own->dst, .sport = own->sport, .dport = own->dport};
	struct vanish_half *h = bpf_map_lookup_elem(&vanish_halves, &other);
	__be32 was, next;
	__u8 flags;

	if (!h || bpf_skb_load_bytes(skb, p->tcp + TCP_FLAGS, &flags, 1) || !(flags & ACK) ||
	    bpf_skb_load_bytes(skb, p->tcp + TCP_ACK, &was, 4))
		return TO_SOCKET;
	next = bpf_htonl(h->seen_ack + h->ack_add);
	if (!before(bpf_ntohl(was), bpf_ntohl(next)))
		return TO_SOCKET;
	if (bpf_l4_csum_replace(skb, p->tcp + TCP_CHECK, was, next, 4) || bpf_skb_store_bytes(skb, p->tcp + TCP_ACK, &next, 4, 0))
		return TC_ACT_SHOT;
	return TO_SOCKET;
}

static __always_inline int on_tcp(struct __sk_buff *skb, struct packet *p, __u32 leaving)
{
	struct vanish_key key = {.ifindex = skb->ifindex | leaving, .src = be32_at(p->ip + IP_ADDRS), .dst = be32_at(p->ip + IP_ADDRS + 4)};
	__be16 ports[2];
	__u32 flags, seq, ack, total, mark;
	struct vanish_half *h;
	struct scratch *s;
	__s64 addresses;

	if (bpf_skb_load_bytes(skb, p->tcp, ports, 4))
		return TO_SOCKET;
	key.sport = ports[0];
	key.dport = ports[1];
	h = bpf_map_lookup_elem(&vanish_halves, &key);
	if (!h)
		return TO_SOCKET;
	if (h->state == VANISH_OWN)
		return on_own(skb, p, h);
	h->seen = bpf_ktime_get_coarse_ns();
	__sync_fetch_and_add(&h->packets, 1);
	__sync_fetch_and_add(&h->bytes, skb->len);
	if (h->state == VANISH_FORWARD) {
		__be32 latest;

		if (!bpf_skb_load_bytes(skb, p->tcp + TCP_ACK, &latest, 4) && before(h->seen_ack, bpf_ntohl(latest)))
			h->seen_ack = bpf_ntohl(latest);
		return send(skb, h);
	}
	s = load_header(skb, p);
	if (!s)
		return TC_ACT_SHOT;
	flags = s->was[TCP_FLAGS];
	seq = get32(&s->was[TCP_SEQ]);
	ack = get32(&s->was[TCP_ACK]);
	if (h->state == VANISH_OBSERVE || ((flags & ACK) && before(h->seen_ack, ack)))
		h->seen_ack = ack;
	if (h->state == VANISH_OBSERVE) {
		each_option(s, h, p->size - TCP_SIZE, 1);
		return TO_SOCKET;
	}
	if ((flags & (SYN | ACK)) == SYN && delete_over(&key, h))
		return TO_SOCKET;
	total = bpf_ntohs(be16_at(p->ip + 2));
	p->payload = total ? total - (p->tcp - ETH_HLEN) - p->size : 1;
	if (h->state == VANISH_DRAIN) {
		if (before(seq, h->own_seq))
			return TO_SOCKET;
		if (!p->payload && ((flags & (ACK | SYN | FIN)) == ACK || (flags & RST))) {
			int alone = before(ack, h->own_ack) && !(flags & RST);

			if (for_socket(skb, p, s, h))
				return TC_ACT_SHOT;
			if (alone)
				return TO_SOCKET;
			mark = skb->mark;
			skb->mark = COPY_MARK;
			bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
			skb->mark = mark;
			put32(&s->next[TCP_SEQ], seq);
			put32(&s->next[TCP_ACK], ack);
		}
	}
	if (flags & RST)
		h->over |= VANISH_RESET;
	if (flags & FIN)
		h->over |= VANISH_FINISHED;
	if (p->ip[8] <= 1)
		return TC_ACT_SHOT;
	translate_header(s, h, p->size);
	if (write_ip(skb, p->ip, h, &addresses) || write_header(skb, s, p->tcp, p->size, addresses))
		return TC_ACT_SHOT;
	return send(skb, h);
}

/* An error that quotes a packet of the other half goes to whom the packet is from, with the quote as
 * that end sent it. */
static __always_inline int on_error(struct __sk_buff *skb, struct packet *p)
{
	__u32 quote = p->tcp + ICMP_HEADER, ports_at;
	struct vanish_key key = {.ifindex = skb->ifindex};
	__u8 type, ip[IP_SIZE], was[8], next[8], check[2];
	struct vanish_half *h;
	__s64 addresses, diff;
	__u32 sum;

	if (bpf_skb_load_bytes(skb, p->tcp, &type, 1) || (type != 3 && type != 4 && type != 11 && type != 12))
		return TO_SOCKET;
	if (bpf_skb_load_bytes(skb, quote, ip, IP_SIZE) || ip[0] >> 4 != 4 || ip[9] != IPPROTO_TCP)
		return TO_SOCKET;
	ports_at = quote + (ip[0] & 15) * 4;
	if (bpf_skb_load_bytes(skb, ports_at, was, 8))
		return TO_SOCKET;
	key.src = be32_at(ip + IP_ADDRS + 4);
	key.dst = be32_at(ip + IP_ADDRS);
	key.sport = be16_at(was + 2);
	key.dport = be16_at(was);
	h = bpf_map_lookup_elem(&vanish_halves, &key);
	if (!h || h->state == VANISH_OBSERVE)
		return TO_SOCKET;
	if (h->state == VANISH_FORWARD)
		return send(skb, h);
	if (p->ip[8] <= 1)
		return TC_ACT_SHOT;
	/* the quoted addresses and their checksum, which change nothing together */
	__be32 from[2] = {be32_at(ip + IP_ADDRS), be32_at(ip + IP_ADDRS + 4)}, to[2] = {h->dst, h->src};
	diff = bpf_csum_diff(from, 8, to, 8, 0);
	sum = (__u16)~be16_at(ip + IP_CHECK);
	sum += (__u32)diff & 0xffff;
	sum += ((__u32)diff >> 16) & 0xffff;
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	*(__be16 *)check = (__u16)~sum;
	*(__be16 *)next = h->dport;
	*(__be16 *)(next + 2) = h->sport;
	put32(next + 4, get32(was + 4) + h->ack_add);
	if (bpf_skb_store_bytes(skb, quote + IP_ADDRS, to, 8, 0) || bpf_skb_store_bytes(skb, quote + IP_CHECK, check, 2, 0) ||
	    bpf_skb_store_bytes(skb, ports_at, next, 8, 0))
		return TC_ACT_SHOT;
	diff = bpf_csum_diff((__be32 *)was, 8, (__be32 *)next, 8, 0);
	if (bpf_l4_csum_replace(skb, p->tcp + ICMP_CHECK, 0, diff, 0))
		return TC_ACT_SHOT;
	/* the router that tells of the error keeps its address */
	struct vanish_half outer = {.src = be32_at(p->ip + IP_ADDRS), .dst = h->dst};
	if (write_ip(skb, p->ip, &outer, &addresses))
		return TC_ACT_SHOT;
	return send(skb, h);
}

static __always_inline int on_packet(struct __sk_buff *skb, __u32 leaving)
{
	struct packet p = {};

	if (skb->protocol != bpf_htons(ETH_P_IP) || bpf_skb_load_bytes(skb, ETH_HLEN, p.ip, IP_SIZE))
		return TO_SOCKET;
	if ((be16_at(p.ip + 6) & bpf_htons(0x3fff)) || (p.ip[0] & 15) < 5)
		return TO_SOCKET;
	p.tcp = ETH_HLEN + (p.ip[0] & 15) * 4;
	if (p.ip[9] == IPPROTO_TCP)
		return on_tcp(skb, &p, leaving);
	if (p.ip[9] == IPPROTO_ICMP && !leaving)
		return on_error(skb, &p);
	return TO_SOCKET;
}

SEC("tc")
int onpath_vanish(struct __sk_buff *skb)
{
	if (skb->mark == COPY_MARK) {
		skb->mark = 0;
		return TO_SOCKET;
	}
	return on_packet(skb, 0);
}

SEC("tc")
int onpath_own(struct __sk_buff *skb)
{
	return on_packet(skb, VANISH_LEAVING);
}

char _license[] SEC("license") = "Dual BSD/GPL";
