/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The dispatcher at XDP: what functions.bpf.c does at tc, for the packets that the
 * fast path finishes (lib/fast.h). What can be seen only behind a function, and
 * what XDP cannot do, goes on to tc with a note: there functions do not run again.
 */
#ifndef ONPATH_FAST_FUNCTIONS_H
#define ONPATH_FAST_FUNCTIONS_H

#include "fast_edit.h"

/* Kernels before 5.18 have no frames in several buffers; the driver says so. */
const volatile __u32 several_buffers = 1;

/* Describe the packet to one function: what another one has written in there is its own. */
static __always_inline int describe_frame(struct xdp_md *ctx, struct fast_run *r, const struct function *f)
{
	const __u8 *l3 = (void *)(long)ctx->data + ETH_HLEN, *end = (void *)(long)ctx->data_end, *l4;
	struct onpath_packet *a = &r->d.a;
	__u32 slot = r->path;
	struct path *path;

	if (l3 + sizeof(struct iphdr) > end)
		return -1;
	if (r->family == FAMILY_4) {
		a->ttl = l3[8];
		a->dscp = l3[1] >> 2;
		a->transport = sizeof(struct iphdr);
	} else {
		a->ttl = l3[7];
		a->dscp = (l3[0] & 0xf) << 2 | l3[1] >> 6;
		a->transport = sizeof(struct ipv6hdr);
	}
	a->is = 0;
	a->payload = a->transport;
	if (!tuple_has_ports(r->protocol))
		a->is = ONPATH_IS_PORTLESS;
	else
		a->payload += r->protocol == IPPROTO_SCTP ? 12 : 8;
	if (r->protocol == IPPROTO_TCP) {
		l4 = l3 + (r->family == FAMILY_4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));
		if (l4 + 14 > end)
			return -1;
		a->payload = a->transport + (l4[12] >> 4) * 4;
		if (l4[13] & 0x10)
			a->is = ONPATH_IS_ACK;
	}
	if (a->payload > r->length)
		a->payload = r->length; /* of a header that says to be longer than its packet */
	a->icmp_type = a->icmp_code = 0;
	if (r->protocol == IPPROTO_ICMP || r->protocol == IPPROTO_ICMPV6) {
		l4 = l3 + a->transport;
		if (l4 + 2 > end)
			return -1;
		a->icmp_type = l4[0];
		a->icmp_code = l4[1];
	}
	path = bpf_map_lookup_elem(&paths, &slot);
	a->path = slot && path ? path->id : 0;
	copy_addr(a->src, r->src);
	copy_addr(a->dst, r->dst);
	a->sport = r->sport;
	a->dport = r->dport;
	a->family = r->family;
	a->protocol = r->protocol;
	a->direction = r->direction;
	a->segments = 1;
	a->length = a->wire = r->length;
	a->now = r->now;
	a->instance = f->vport;
	a->shown = 0;
	a->edit = 0;
	a->reason = 0;
	return 0;
}

/* Show the packet's first bytes. */
__noinline int show_frame(struct xdp_md *ctx, __u32 needs)
{
	__u32 zero = 0, n = needs, i;
	struct fast_run *r = bpf_map_lookup_elem(&fast_runs, &zero);
	const __u8 *l3, *end;

	if (!r)
		return -1;
	if (n > r->length)
		n = r->length;
	n--; /* one comparison: kernels before 6.3 do not see what two say together */
	barrier_var(n);
	if (n >= ONPATH_DATA)
		return -1;
	n++;
	if (several_buffers) {
		if (bpf_xdp_load_bytes(ctx, ETH_HLEN, r->d.a.data, n))
			return -1;
	} else {
		l3 = (void *)(long)ctx->data + ETH_HLEN;
		end = (void *)(long)ctx->data_end;
		for (i = 0; i < ONPATH_DATA; i++) {
			if (i >= n || l3 + i + 1 > end)
				break;
			r->d.a.data[i] = l3[i];
		}
	}
	r->d.a.shown = n;
	return 0;
}

/* Leave the packet to tc. (mtu: of NOTE_BIG.) */
static __always_inline int note_for_tc(struct xdp_md *ctx, struct fast_run *r, struct uplink_counters *u, __u32 what,
				       __u32 reason, __u32 mtu)
{
	__u32 slot = r->edge_slot;
	struct fast_note *note;
	struct vport_counters *v;

	u->passed_on++;
	if (!bpf_xdp_adjust_meta(ctx, -(int)sizeof(*note))) {
		note = (void *)(long)ctx->data_meta;
		if ((void *)(note + 1) <= (void *)(long)ctx->data) {
			note->magic = NOTE_MAGIC;
			note->what = what;
			note->path = r->path;
			note->mtu = mtu;
			return XDP_PASS;
		}
	}
	v = bpf_map_lookup_elem(&vport_stats, &slot); /* a driver without metadata */
	if (v)
		v->dropped[reason]++;
	return XDP_DROP;
}

static __always_inline int drop_frame(struct fast_run *r, struct uplink_counters *u, __u32 reason)
{
	__u32 slot = r->edge_slot;
	struct vport_counters *v = bpf_map_lookup_elem(&vport_stats, &slot);

	u->ran++;
	if (v)
		v->dropped[reason]++;
	return XDP_DROP;
}

static __always_inline int refuse_frame(struct xdp_md *ctx, struct fast_run *r, struct uplink_counters *u)
{
	if (r->edited && unedit_frame(ctx))
		return drop_frame(r, u, DROP_FUNCTION);
	return note_for_tc(ctx, r, u, NOTE_REFUSE, DROP_FUNCTION, 0);
}

/* Run the function of an item of the list. GO_ON, or a verdict of XDP. */
static __always_inline int run_at_xdp(struct xdp_md *ctx, struct fast_run *r, struct uplink_counters *u, __u32 item)
{
	__u32 index = item & INLINE_SLOT;
	struct function_counters *c = bpf_map_lookup_elem(&function_stats, &index);
	struct function *f = bpf_map_lookup_elem(&functions, &index);
	__u64 began = 0;
	int verdict;

	if (!c || !f)
		return XDP_DROP;
	if (!f->open) {
		if (item & INLINE_BYPASS) {
			c->bypassed_packets++;
			c->bypassed_bytes += r->length;
			return GO_ON;
		}
		c->refused_packets++;
		return drop_frame(r, u, DROP_NO_INSTANCE);
	}
	show_to(&r->d, f);
	if (describe_frame(ctx, r, f))
		return XDP_DROP;
	if (f->needs)
		show_frame(ctx, f->needs);
	if (!(c->calls++ % SAMPLE_EVERY))
		began = bpf_ktime_get_ns();
	verdict = call_function(index, &r->d.a);
	if (began) {
		c->time += bpf_ktime_get_ns() - began;
		c->samples++;
	}
	if (verdict == ONPATH_NEXT && (!r->d.a.edit || !edit_frame(ctx))) {
		c->passed_packets++;
		c->passed_bytes += r->length;
		return GO_ON;
	}
	c->reasons[r->d.a.reason & 15]++;
	if (verdict == ONPATH_ANSWER) {
		c->answered_packets++;
		c->answered_bytes += r->length;
		return refuse_frame(ctx, r, u);
	}
	c->dropped_packets++;
	c->dropped_bytes += r->length;
	return drop_frame(r, u, DROP_FUNCTION);
}

/* The next hop of a packet whose addresses functions changed: those that the flow's
 * packets had before may have been others. 0: XDP does not know; negative: the packet is larger
 * than so many bytes, which is what fits. */
__noinline int hop_of_edited(struct xdp_md *ctx)
{
	struct bpf_fib_lookup fib = {};
	struct node *n = this_node();
	__u8 *data, *end;
	__u32 zero = 0, slot, ifindex, mtu;
	int rc;
	struct fast_run *r = bpf_map_lookup_elem(&fast_runs, &zero);
	struct path *path;
	struct port *out;

	if (!r || !n || n->host_ifindex || n->bridged || n->nat_count)
		return 0;
	fib.ifindex = n->uplink_ifindex ? n->uplink_ifindex : ctx->ingress_ifindex;
	fib.tot_len = r->length;
	fib.l4_protocol = r->protocol;
	fib.sport = r->sport;
	fib.dport = r->dport;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (r->family == FAMILY_4) {
		if (data + ETH_HLEN + sizeof(struct iphdr) > end)
			return 0;
		fib.family = AF_INET;
		fib.tos = data[ETH_HLEN + 1];
		fib.ipv4_src = V4(r->src);
		fib.ipv4_dst = V4(r->dst);
	} else {
		if (data + ETH_HLEN + sizeof(struct ipv6hdr) > end)
			return 0;
		fib.family = AF_INET6;
		fib.flowinfo = *(__be32 *)(data + ETH_HLEN) & bpf_htonl(0x0fffffff);
		copy_addr(fib.ipv6_src, r->src);
		copy_addr(fib.ipv6_dst, r->dst);
	}
	rc = bpf_fib_lookup(ctx, &fib, sizeof(fib), 0);
	if (rc == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return -(int)fib.mtu_result;
	if (rc != BPF_FIB_LKUP_RET_SUCCESS)
		return 0;
	ifindex = fib.ifindex;
	out = bpf_map_lookup_elem(&ports, &ifindex);
	if (!out || !(out->flags & PORT_CARRIES))
		return 0;
	if (!(out->flags & PORT_FRAGS) && r->length > end - data - ETH_HLEN)
		return 0;
	slot = r->path;
	path = bpf_map_lookup_elem(&paths, &slot);
	mtu = slot && path ? path->mtu : 0;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (data + ETH_HLEN + sizeof(struct iphdr) > end)
		return 0;
	if (mtu && r->length > mtu &&
	    (r->family != FAMILY_4 || (data[ETH_HLEN + 6] & 0x40) || r->length > LEAST_INTERFACE)) /* DF */
		return -(int)(mtu & 0xffff);
	__builtin_memcpy(data, fib.dmac, 6);
	__builtin_memcpy(data + 6, fib.smac, 6);
	return ifindex;
}

/* Behind the functions: out by the next hop. */
static __always_inline int leave_at_xdp(struct xdp_md *ctx, struct fast_run *r, struct uplink_counters *u,
					struct vport_counters *v)
{
	__u32 hop = r->hop;
	int ifindex = 0;
	__u8 *data, *end, *l3;
	struct hop_slot *h;

	if (r->edited) {
		ifindex = hop_of_edited(ctx);
		if (ifindex < 0) {
			if (unedit_frame(ctx))
				return drop_frame(r, u, DROP_TOO_BIG);
			return note_for_tc(ctx, r, u, NOTE_BIG, DROP_TOO_BIG, -ifindex);
		}
		if (!ifindex)
			return note_for_tc(ctx, r, u, NOTE_LEAVE, DROP_NO_ROUTE, 0);
	}
	h = bpf_map_lookup_elem(&hops, &hop);
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	l3 = data + ETH_HLEN;
	if (!h || l3 + sizeof(struct iphdr) > end)
		return XDP_DROP;
	if (!ifindex) {
		__builtin_memcpy(data, h->hop.dmac, 12); /* dmac and smac adjoin */
		ifindex = h->hop.ifindex;
	}
	if (*l3 == 0x45) {
		struct iphdr *ip = (void *)l3;
		__u32 sum = (__u32)ip->check + bpf_htons(0x100);

		ip->ttl--;
		ip->check = sum + (sum >= 0xffff);
	} else {
		l3[7]--;
	}
	u->ran++;
	v->out_packets++;
	v->out_bytes += r->length;
	return bpf_redirect(ifindex, 0);
}

/* What is done once for all functions of a packet. */
static __always_inline int begin_at_xdp(struct xdp_md *ctx, struct fast_run *r, struct vport_counters *v)
{
	__u32 slot = r->path;
	struct path_counters *c = bpf_map_lookup_elem(&path_stats, &slot);
	const __u8 *l3 = (void *)(long)ctx->data + ETH_HLEN;

	if (!c || l3 + 1 > (const __u8 *)(long)ctx->data_end)
		return -1;
	r->family = *l3 == 0x45 ? FAMILY_4 : FAMILY_6;
	r->edited = 0;
	v->in_packets++;
	v->in_bytes += r->length;
	c->steered_packets++; /* of slot 0 nobody reads it */
	c->steered_bytes += r->length;
	return 0;
}

SEC("xdp.frags")
int onpath_fast_functions(struct xdp_md *ctx)
{
	__u32 zero = 0, index = ctx->ingress_ifindex % MAX_UPLINKS, slot, i, item, shard, next;
	struct fast_run *r = bpf_map_lookup_elem(&fast_runs, &zero);
	struct uplink_counters *u = bpf_map_lookup_elem(&uplink_stats, &index);
	struct vport_counters *v;
	int rc;

	if (!r || !u)
		return XDP_DROP;
	slot = r->edge_slot;
	v = bpf_map_lookup_elem(&vport_stats, &slot);
	if (!v)
		return XDP_DROP;
	next = r->next;
	r->next = 0;
	if (!next && begin_at_xdp(ctx, r, v))
		return XDP_DROP;
#pragma clang loop unroll(disable)
	for (i = 0; i < MAX_INLINE; i++) {
		if (i + 1 < next)
			continue; /* it was in another dispatcher */
		item = r->functions[i];
		if (!item)
			break;
		shard = shard_of(item);
		if (shard != this_shard) {
			r->next = i + 1;
			bpf_tail_call(ctx, &fast_shards, shard);
			r->next = 0;
			return drop_frame(r, u, DROP_NO_INSTANCE); /* it was just taken away */
		}
		rc = run_at_xdp(ctx, r, u, item);
		if (rc != GO_ON)
			return rc;
	}
	return leave_at_xdp(ctx, r, u, v);
}

#endif
