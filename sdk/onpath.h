/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Packet functions for onpath: the author's one header.
 *
 *	#include "onpath.h"
 *
 *	ONPATH_LICENSE("GPL");
 *
 *	ONPATH_FUNCTION(p)
 *	{
 *		if (p->protocol == ONPATH_UDP && p->dport == onpath_be16(53))
 *			return onpath_drop(p, 1);
 *		return ONPATH_NEXT;
 *	}
 *
 *	clang -O2 -g -target bpf -mcpu=v3 -I…/sdk -c mine.c -o mine.o
 *	onpath function check mine.o
 *
 * A function is given what onpath has read off a packet, and says what becomes of
 * it; onpath carries that out. It touches no packet, knows no device and no hook,
 * and so the same object serves every place where packets come by. What it may
 * call is listed at the end of this file; loops need a bound that the compiler or
 * the verifier can see.
 */
#ifndef ONPATH_H
#define ONPATH_H

#ifdef __wasm__
typedef unsigned char __u8;
typedef unsigned short __u16, __be16;
typedef unsigned int __u32, __be32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
#define __always_inline inline __attribute__((always_inline))
#else
#include <linux/types.h>
#ifndef ONPATH_HOST /* onpath's own programs bring these themselves */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#endif
#endif

/* What becomes of the packet. */
enum onpath_verdict {
	ONPATH_NEXT = 0, /* on, to what comes behind this element */
	ONPATH_DROP,     /* ends here: onpath_drop() */
	ONPATH_ANSWER,   /* ends here, and its sender is told: onpath_refuse() */
	ONPATH_REDIRECT, /* on to another element: onpath_redirect() */
};

/* Bits of onpath_packet.is. */
#define ONPATH_IS_SYN      0x0001 /* TCP: SYN without ACK: a connection begins */
#define ONPATH_IS_FIN      0x0002
#define ONPATH_IS_RST      0x0004
#define ONPATH_IS_ACK      0x0008
#define ONPATH_IS_ERROR    0x0010 /* an ICMP error: the tuple is that of the flow which it is about, as seen in this direction */
#define ONPATH_IS_FRAGMENT 0x0020 /* behind the first; the ports are those of the first */
#define ONPATH_IS_PORTLESS 0x0040 /* the ports could not be read, or there are none */

/* onpath_packet.direction */
#define ONPATH_FORWARD 0 /* from the chain's from to its to */
#define ONPATH_REVERSE 1

/* Bits of onpath_packet.edit. */
#define ONPATH_SET_SRC  0x01 /* new_src and new_sport */
#define ONPATH_SET_DST  0x02 /* new_dst and new_dport */
#define ONPATH_SET_DSCP 0x04 /* new_dscp */
#define ONPATH_SET_DATA 0x08 /* length and data; wasm only: onpath_rewritten() */

/* Most bytes that a function can be shown. */
#ifdef __wasm__
#define ONPATH_DATA 1540
#else
#define ONPATH_DATA 256
#endif
#define ONPATH_REASONS 16  /* a function's own codes, from 0 */

/*
 * A packet. Addresses are sixteen bytes, IPv4 ones mapped (::ffff:a.b.c.d, RFC 4291
 * §2.5.5.2): onpath_v4(p->src) is the address. Addresses and ports stand as on the
 * wire, all else is in host order.
 * A packet may stand for several on the wire (segmentation offload): segments and
 * wire say what the wire carries.
 */
struct onpath_packet {
	__u8 src[16];
	__u8 dst[16];
	__be16 sport; /* ICMP echo: the identifier, in both */
	__be16 dport;
	__u8 family;  /* 4 or 6 */
	__u8 protocol;
	__u8 direction;
	__u8 ttl;
	__u16 is;
	__u8 dscp;
	__u8 icmp_type; /* of ICMP and ICMPv6, also of an error; else, and where it cannot be read, 0 */
	__u32 length;   /* bytes of the IP packet as it is now */
	__u32 segments; /* packets on the wire */
	__u32 wire;     /* IP bytes on the wire, of all segments */
	__u32 path;     /* of the chain */
	__u32 instance; /* vport of this function's instance */
	__u64 now;      /* ns of the monotonic clock, some milliseconds late */

	/* The first bytes from the IP header on: as many as ONPATH_NEEDS asks for
	 * and the packet has. transport and payload are offsets into them, also
	 * where they lie behind the bytes shown. */
	__u32 shown;
	__u16 transport;
	__u16 payload;

	/* The function's. */
	__u32 edit;
	__u8 new_src[16];
	__u8 new_dst[16];
	__be16 new_sport;
	__be16 new_dport;
	__u8 new_dscp;
	__u8 reason;
	__u8 element;
	__u8 icmp_code; /* onpath's, as icmp_type */

	__u8 data[ONPATH_DATA];
};

#define ONPATH_ICMP   1
#define ONPATH_TCP    6
#define ONPATH_UDP    17
#define ONPATH_ICMPV6 58
#define ONPATH_SCTP   132

#define onpath_v4(a) (*(const __be32 *)((a) + 12))

#define onpath_be16(x) ((__be16)__builtin_bswap16((__u16)(x)))
#define onpath_be32(x) ((__be32)__builtin_bswap32((__u32)(x)))

#ifdef __wasm__
#include "onpath_wasm.h"
#elif !defined(ONPATH_HOST)

/* The licence under which the object is, as an SPDX identifier or the kernel's
 * word; onpath records it. */
#define ONPATH_LICENSE(name_) char onpath_license[] SEC("license") = name_

/* The function. */
#define ONPATH_FUNCTION(p)							\
	static __always_inline int onpath_body(struct onpath_packet *p);	\
	SEC("onpath") int onpath_main(struct onpath_packet *p)			\
	{									\
		return p ? onpath_body(p) : ONPATH_DROP;			\
	}									\
	static __always_inline int onpath_body(struct onpath_packet *p)

/* The function looks at up to n bytes (at most ONPATH_DATA) of p->data. Copying
 * them costs time; without this nothing is copied. */
#define ONPATH_NEEDS(n)								\
	_Static_assert((n) > 0 && (n) <= ONPATH_DATA, "ONPATH_NEEDS: at most ONPATH_DATA bytes"); \
	struct {								\
		__uint(type, BPF_MAP_TYPE_ARRAY);				\
		__uint(max_entries, n);						\
		__type(key, __u32);						\
		__type(value, __u32);						\
	} onpath_needs SEC(".maps")

/* The function uses onpath_redirect. */
#define ONPATH_REDIRECTS							\
	struct {								\
		__uint(type, BPF_MAP_TYPE_ARRAY);				\
		__uint(max_entries, 1);						\
		__type(key, __u32);						\
		__type(value, __u32);						\
	} onpath_redirects SEC(".maps")

/* A table of the function's own. kind: HASH, LRU_HASH, ARRAY, LPM_TRIE, and
 * PERCPU_HASH, LRU_PERCPU_HASH, PERCPU_ARRAY, which have a value for each CPU.
 * What is in it outlives restarts and upgrades of onpath. */
#define ONPATH_TABLE(name_, kind_, key_, value_, max_)				\
	struct {								\
		__uint(type, BPF_MAP_TYPE_##kind_);				\
		__uint(max_entries, max_);					\
		__type(key, key_);						\
		__type(value, value_);						\
		__uint(map_flags, ONPATH_FLAGS_##kind_);			\
	} name_ SEC(".maps")

#define ONPATH_FLAGS_HASH            0
#define ONPATH_FLAGS_LRU_HASH        0
#define ONPATH_FLAGS_ARRAY           0
#define ONPATH_FLAGS_PERCPU_HASH     0
#define ONPATH_FLAGS_LRU_PERCPU_HASH 0
#define ONPATH_FLAGS_PERCPU_ARRAY    0
#define ONPATH_FLAGS_LPM_TRIE        1 /* BPF_F_NO_PREALLOC, which the kernel asks for */

/*
 * Configuration: a struct whose members are what a Function's config: may say, by
 * name. Members are integers, __u8[16] (an address) or char[] (a word). It is
 * replaced as a whole; a packet sees the old or the new one.
 *
 *	ONPATH_CONFIG({
 *		__u32 limit;
 *		char greeting[32];
 *	});
 */
#define ONPATH_CONFIG(...)							\
	struct onpath_config __VA_ARGS__;					\
	struct {								\
		__uint(type, BPF_MAP_TYPE_ARRAY);				\
		__uint(max_entries, 1);						\
		__type(key, __u32);						\
		__type(value, struct onpath_config);				\
	} onpath_config SEC(".maps");						\
	static __always_inline const struct onpath_config *onpath_configuration(void) \
	{									\
		__u32 zero = 0;							\
										\
		return bpf_map_lookup_elem(&onpath_config, &zero);		\
	}

/*
 * Counters: a struct of __u64, which onpath exports by their names.
 *
 *	ONPATH_COUNTERS({ __u64 hits; __u64 misses; });
 *	…
 *	onpath_count(hits, 1);
 */
#define ONPATH_COUNTERS(...)							\
	struct onpath_counters __VA_ARGS__;					\
	struct {								\
		__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);			\
		__uint(max_entries, 1);						\
		__type(key, __u32);						\
		__type(value, struct onpath_counters);				\
	} onpath_counters SEC(".maps")

#define onpath_count(name_, n_)							\
	do {									\
		__u32 zero_ = 0;						\
		struct onpath_counters *c_ = bpf_map_lookup_elem(&onpath_counters, &zero_); \
										\
		if (c_)								\
			c_->name_ += (n_);					\
	} while (0)
#endif

#ifndef ONPATH_HOST
/* Drop the packet; reason (below ONPATH_REASONS) is counted. */
static __always_inline int onpath_drop(struct onpath_packet *p, __u8 reason)
{
	p->reason = reason;
	return ONPATH_DROP;
}

/* Drop the packet and tell its sender: TCP gets a RST, all else an ICMP error
 * "administratively prohibited", at a limited rate. */
static __always_inline int onpath_refuse(struct onpath_packet *p, __u8 reason)
{
	p->reason = reason;
	return ONPATH_ANSWER;
}

/*
 * Send the packet to a later element of the chain, past those between: element is
 * its place in the chain's through, from 1. Later is in the packet's direction: what
 * goes backwards meets elements with smaller numbers. Where there is no such
 * element, or the function does not declare ONPATH_REDIRECTS, the packet is dropped.
 */
static __always_inline int onpath_redirect(struct onpath_packet *p, __u8 element)
{
	p->element = element;
	return ONPATH_REDIRECT;
}

static __always_inline void onpath_copy_address(__u8 *to, const __u8 *from)
{
	__builtin_memcpy(to, from, 16);
}

/* Have the destination changed, of this packet. Checksums are set right. */
static __always_inline void onpath_set_destination(struct onpath_packet *p, const __u8 *addr, __be16 port)
{
	onpath_copy_address(p->new_dst, addr);
	p->new_dport = port;
	p->edit |= ONPATH_SET_DST;
}

static __always_inline void onpath_set_source(struct onpath_packet *p, const __u8 *addr, __be16 port)
{
	onpath_copy_address(p->new_src, addr);
	p->new_sport = port;
	p->edit |= ONPATH_SET_SRC;
}

static __always_inline void onpath_set_dscp(struct onpath_packet *p, __u8 dscp)
{
	p->new_dscp = dscp & 63;
	p->edit |= ONPATH_SET_DSCP;
}

/* A hash of n words of 32 bits (n known to the compiler): mixing after Murmur3's
 * finaliser, word by word. */
static __always_inline __u32 onpath_hash(const __u32 *words, int n, __u32 seed)
{
	__u32 h = seed ^ (__u32)n * 0x9e3779b1;
	int i;

#pragma unroll
	for (i = 0; i < n; i++) {
		h = (h ^ words[i]) * 0x85ebca6b;
		h ^= h >> 13;
	}
	h *= 0xc2b2ae35;
	return h ^ (h >> 16);
}

/*
 * What may be called of the kernel:
 *	bpf_map_lookup_elem, bpf_map_update_elem, bpf_map_delete_elem,
 *	bpf_ktime_get_ns (35 ns; p->now costs nothing), bpf_get_prandom_u32,
 *	bpf_get_smp_processor_id
 * and the atomic operations of the compiler (__sync_fetch_and_add).
 */
#endif

#if !defined(__wasm__) && !defined(ONPATH_HOST)
#define ONPATH_WASM_ONLY(what_) _Static_assert(0, "only wasm functions have " #what_);
#define ONPATH_WHOLE       ONPATH_WASM_ONLY(ONPATH_WHOLE)
#define ONPATH_START       ONPATH_WASM_ONLY(ONPATH_START)
#define ONPATH_TIMER       ONPATH_WASM_ONLY(ONPATH_TIMER)
#define ONPATH_DATAGRAM(d) ONPATH_WASM_ONLY(ONPATH_DATAGRAM)
#define ONPATH_REQUEST(r)  ONPATH_WASM_ONLY(ONPATH_REQUEST)
#define ONPATH_EVENT(e)    ONPATH_WASM_ONLY(ONPATH_EVENT)
#endif
#endif
