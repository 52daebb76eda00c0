/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The punt port: a device by which packets go to this node's agent, whole, with where they
 * came in. Its other end is read by the agent; no rule of the host's firewall stands
 * between. A frame there has, instead of its addresses:
 *
 *   destination  02:6f, ifindex of the device where the packet came in (32 bits, big endian)
 *   source       02:6f, PUNT_REASON + why, the vport where it came in (24 bits, big endian)
 *
 * Which packets: those of signalling (GIST, RFC 5971) at routing uplinks, while the agent
 * says that it reads. Another cause gets another PUNT_ number, and calls PUNT. Nothing is
 * taken from the agent's end; where a packet that was held is to go on, this end becomes a
 * port like an uplink (struct port), at which the agent writes it.
 */
#ifndef ONPATH_PUNT_H
#define ONPATH_PUNT_H

#include "flow.h"

MAP(punts, BPF_MAP_TYPE_ARRAY, __u32, struct punt, 1, 0);
MAP(punt_states, BPF_MAP_TYPE_ARRAY, __u32, struct punt_state, 1, 0);

#define GIST_MAGIC 0x4e04bda5
#define GIST_QMODE 0x80

/* Beside verdicts: on with STAGE_PUNT. */
#define PUNT 0x6f71

/* Is it of signalling, and for this node's agent: to be intercepted, or to the node itself?
 * pkt.macs is overwritten. */
static __always_inline int is_signalling(struct __sk_buff *skb, struct pkt *p)
{
	__u32 zero = 0, magic, now;
	struct punt *u;
	__be16 nslpid;

	if (p->key.proto != IPPROTO_UDP || p->key.dport != bpf_htons(GIST_PORT) ||
	    (p->is & (IS_ERROR | IS_NOPORTS | IS_LATER)))
		return 0;
	u = bpf_map_lookup_elem(&punts, &zero);
	if (!u || !u->ifindex || !u->nslpid)
		return 0;
	now = bpf_ktime_get_coarse_ns() / NSEC;
	if ((__s32)(u->until - now) < 0) /* nobody reads */
		return 0;
	if (bpf_skb_load_bytes(skb, p->l4 + 8, p->macs, 12))
		return 0;
	__builtin_memcpy(&magic, p->macs, 4);
	__builtin_memcpy(&nslpid, p->macs + 8, 2);
	if (magic != bpf_htonl(GIST_MAGIC) || nslpid != bpf_htons(u->nslpid))
		return 0;
	return (p->macs[10] & GIST_QMODE) || is_local(p, p->key.dst) == LOCAL_ADDRESS;
}

/* A token bucket in one word, as lib/rate.h has for vports; it counts packets. */
static __always_inline int within_punt_rate(const struct punt *u, struct punt_state *s)
{
	__u64 now = bpf_ktime_get_ns(), due = *(volatile __u64 *)&s->due;

	if (is_beyond(due, now, u->burst)) {
		__sync_fetch_and_add(&s->refused, 1);
		return 0;
	}
	if (is_past(due, now))
		__sync_val_compare_and_swap(&s->due, due, now);
	__sync_fetch_and_add(&s->due, u->interval);
	__sync_fetch_and_add(&s->taken, 1);
	return 1;
}

/* To the agent, or nowhere: what is too much is dropped (RFC 5971 §5.3.2.3). */
SEC("tc")
int onpath_punt(struct __sk_buff *skb)
{
	struct pkt *p = packet();
	struct punt_state *s;
	__u32 zero = 0, ifindex;
	struct punt *u;

	u = bpf_map_lookup_elem(&punts, &zero);
	s = bpf_map_lookup_elem(&punt_states, &zero);
	if (!p || !u || !s || !within_punt_rate(u, s))
		return TC_ACT_SHOT;
	ifindex = bpf_htonl(skb->ifindex);
	p->macs[0] = p->macs[6] = 0x02;
	p->macs[1] = p->macs[7] = 0x6f;
	__builtin_memcpy(p->macs + 2, &ifindex, 4);
	p->macs[8] = PUNT_REASON + PUNT_SIGNALLING;
	p->macs[9] = p->prev >> 16;
	p->macs[10] = p->prev >> 8;
	p->macs[11] = p->prev;
	if (bpf_skb_store_bytes(skb, 0, p->macs, 12, 0))
		return TC_ACT_SHOT;
	return bpf_redirect(u->ifindex, 0);
}

#endif
