/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Counting, and copies for a capture. */
#ifndef ONPATH_COUNT_H
#define ONPATH_COUNT_H

#include "packet.h"

static __always_inline int same_addr(const void *a, const void *b)
{
	const __u32 *x = a, *y = b;

	return x[0] == y[0] && x[1] == y[1] && x[2] == y[2] && x[3] == y[3];
}

/* Count the packet at a vport for each watched flow that it is of. ICMP errors
 * carry the key of the flow that they are about, and are not of it. */
__noinline int watch(__u32 vport, __u32 what)
{
	struct pkt *p = packet();
	struct watch_counters *c, none = {};
	struct watch_key key = {};
	struct watch *w;
	__u32 i;

	if (!p || (p->is & IS_ERROR))
		return 0;
	for (i = 0; i < MAX_WATCHES; i++) {
		key.watch = i;
		w = bpf_map_lookup_elem(&watches, &key.watch);
		if (!w || !w->used || w->proto != p->key.proto)
			continue;
		if ((w->sport && w->sport != p->key.sport) || (w->dport && w->dport != p->key.dport))
			continue;
		if (!same_addr(w->src, p->key.src) || !same_addr(w->dst, p->key.dst))
			continue;
		key.vport = vport;
		key.what = what;
		c = bpf_map_lookup_elem(&watch_stats, &key);
		if (!c) {
			bpf_map_update_elem(&watch_stats, &key, &none, BPF_NOEXIST);
			c = bpf_map_lookup_elem(&watch_stats, &key);
		}
		if (!c)
			continue;
		c->packets += p->packets ? p->packets : 1;
		c->bytes += p->bytes;
	}
	return 0;
}

/* Drops before the packet was parsed are of no flow: key is an older packet's. */
__noinline int watch_drop(__u32 reason)
{
	struct node *n = this_node();
	struct pkt *p = packet();

	if (!p || !n || !n->watch || reason == DROP_TUNNEL_SOURCE || reason == DROP_TUNNEL_SECRET ||
	    reason == DROP_MALFORMED)
		return 0;
	return watch(p->prev, WATCH_DROP + reason);
}

/* For whoever watches flows or captures a vport's packets. */
__noinline int observe(struct __sk_buff *skb, __u32 vport, __u32 out)
{
	struct node *n = this_node();
	struct captured head = {};

	if (!n)
		return 0;
	if (n->watch)
		watch(vport, out ? WATCH_OUT : WATCH_IN);
	if (n->capture != vport || !vport)
		return 0;
	head.at = bpf_ktime_get_ns();
	head.vport = vport;
	head.length = skb->len;
	head.kept = skb->len;
	if (n->capture_length && head.kept > n->capture_length)
		head.kept = n->capture_length;
	if (head.kept > 65535 - 64)
		head.kept = 65535 - 64; /* a perf record holds 64 KiB */
	head.out = out;
	bpf_perf_event_output(skb, &captures, ((__u64)head.kept << 32) | BPF_F_CURRENT_CPU,
			      &head, sizeof(head));
	return 0;
}

static __always_inline void capture(struct __sk_buff *skb, __u32 vport, __u32 out)
{
	struct node *n = this_node();

	if (n && (n->watch || (n->capture == vport && vport)))
		observe(skb, vport, out);
}

static __always_inline void count_in(struct __sk_buff *skb, struct pkt *p, __u32 slot, __u32 vport)
{
	struct vport_counters *c = bpf_map_lookup_elem(&vport_stats, &slot);

	if (c) {
		c->in_packets += p->packets;
		c->in_bytes += p->bytes;
	}
	capture(skb, vport, 0);
}

static __always_inline void count_out(struct __sk_buff *skb, struct pkt *p, __u32 slot, __u32 vport)
{
	struct vport_counters *c = bpf_map_lookup_elem(&vport_stats, &slot);

	if (c) {
		c->out_packets += p->packets;
		c->out_bytes += p->bytes;
	}
	capture(skb, vport, 1);
}

/* Drop the packet, for that reason. */
static __always_inline int drop(struct pkt *p, __u32 reason)
{
	p->dropped = reason;
	return TC_ACT_SHOT;
}

/* Count a packet that was dropped, at the vport that it came from: pkt.prev_slot. */
__noinline int count_dropped(void)
{
	struct pkt *p = packet();
	struct vport_counters *c;
	__u32 slot, at;

	if (!p)
		return 0;
	slot = p->prev_slot;
	at = p->dropped;
	c = bpf_map_lookup_elem(&vport_stats, &slot);
	barrier_var(at); /* one register: Linux 6.1 knows no bounds of half words on the stack */
	if (c && at < DROP_REASONS)
		c->dropped[at] += p->packets ? p->packets : 1;
	watch_drop(p->dropped);
	return 0;
}

/* The packet's way through the programs ends here, with a verdict for the kernel. */
static __always_inline int finish(struct pkt *p, int verdict)
{
	if (p->dropped)
		count_dropped();
	return verdict;
}

static __always_inline void count_steered(struct pkt *p)
{
	__u32 slot = p->d.path_slot;
	struct path_counters *c;

	if (!slot)
		return;
	c = bpf_map_lookup_elem(&path_stats, &slot);
	if (!c)
		return;
	c->steered_packets += p->packets;
	c->steered_bytes += p->bytes;
}

static __always_inline void count_passed_by(struct pkt *p, __u32 slot)
{
	struct path_counters *c;

	if (!slot)
		return;
	c = bpf_map_lookup_elem(&path_stats, &slot);
	if (!c)
		return;
	c->passed_packets += p->packets;
	c->passed_bytes += p->bytes;
}

static __always_inline void count_passed(struct pkt *p)
{
	count_passed_by(p, p->d.path_slot);
}

/* A flow begins in a chain at the edge; not one whose entry led nowhere: it goes on. */
static __always_inline void count_begun(struct pkt *p)
{
	__u32 slot = p->d.path_slot;
	struct path_counters *c = bpf_map_lookup_elem(&path_stats, &slot);

	if (slot && c && !p->anew)
		c->begun++;
}

static __always_inline struct totals *totals(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&total_stats, &zero);
}

static __always_inline void count_learned(__u32 n)
{
	struct totals *t = totals();

	if (t)
		t->learned += n;
}

static __always_inline void count_encapsulated(__u32 n)
{
	struct totals *t = totals();

	if (t)
		t->encapsulated += n;
}

#endif
