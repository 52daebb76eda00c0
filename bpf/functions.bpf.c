/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The dispatcher: runs the ebpf functions of a packet's flow entry one after the
 * other, carries out what they say, and goes on with STAGE_RESUME. It owns every
 * verdict and counts; functions see a description of the packet and nothing else.
 * There are two with the same functions: this one at tc, and the one of
 * lib/fast_functions.h at XDP. Functions whose tables are too many for one program
 * are divided among several of each, which hand packets over to each other.
 *
 * The driver links the functions in service behind it and writes call_function,
 * which leads to them by their slots. Calls between programs would cost a tail
 * call each and could not return.
 */
#include "lib/count.h"
#include "lib/edit.h"
#include "lib/entry.h"
#include "lib/inline.h"

MAP(shown, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct description, 1, 0);

static __always_inline struct onpath_packet *description(void)
{
	__u32 zero = 0;
	struct description *d = bpf_map_lookup_elem(&shown, &zero);

	return d ? &d->a : NULL;
}

/* Stands here for what the driver writes: no function is linked. */
__attribute__((weak)) __noinline int call_function(__u32 index, struct onpath_packet *a)
{
	return a && index ? ONPATH_NEXT : ONPATH_DROP;
}

/* Which of the dispatchers this one is; the driver says so. */
const volatile __u32 this_shard;

/* The dispatcher that the function of an item is linked in. */
static __always_inline __u32 shard_of(__u32 item)
{
	__u32 index = item & INLINE_SLOT;
	struct function *f = bpf_map_lookup_elem(&functions, &index);

	return f ? f->shard : this_shard;
}

#include "lib/fast_functions.h" /* calls it as well */

/* Describe the packet to one function: what another one has written in there is its own. */
static __always_inline void describe(struct __sk_buff *skb, const struct pkt *p, struct onpath_packet *a,
				     const struct function *f)
{
	__u8 b[2];
	__u16 is = 0;

	copy_addr(a->src, p->key.src);
	copy_addr(a->dst, p->key.dst);
	a->sport = p->key.sport;
	a->dport = p->key.dport;
	a->family = p->family;
	a->protocol = p->key.proto;
	a->direction = p->d.flags & FLOW_REVERSE ? ONPATH_REVERSE : ONPATH_FORWARD;
	a->ttl = p->ttl;
	if (p->is & IS_TCP) {
		if (p->is & IS_SYN)
			is |= ONPATH_IS_SYN;
		if (p->is & IS_FIN)
			is |= ONPATH_IS_FIN;
		if (p->is & IS_RST)
			is |= ONPATH_IS_RST;
		if (p->is & IS_ACK)
			is |= ONPATH_IS_ACK;
	}
	if (p->is & IS_ERROR)
		is |= ONPATH_IS_ERROR;
	if (p->is & IS_LATER)
		is |= ONPATH_IS_FRAGMENT;
	if ((p->is & IS_NOPORTS) || (!(p->is & IS_ERROR) && !tuple_has_ports(p->key.proto)))
		is |= ONPATH_IS_PORTLESS;
	a->is = is;
	a->dscp = 0;
	if (!bpf_skb_load_bytes(skb, p->l3, b, 2))
		a->dscp = p->family == FAMILY_4 ? b[1] >> 2 : ((b[0] & 0xf) << 2) | (b[1] >> 6);
	a->icmp_type = a->icmp_code = 0;
	if (((p->is & IS_ERROR) || p->key.proto == IPPROTO_ICMP || p->key.proto == IPPROTO_ICMPV6) &&
	    !(p->is & (IS_LATER | IS_NOPORTS)) && !bpf_skb_load_bytes(skb, p->l4, b, 2)) {
		a->icmp_type = b[0];
		a->icmp_code = b[1];
	}
	a->length = p->length;
	a->segments = p->packets;
	a->wire = p->bytes;
	a->path = p->d.path;
	a->now = p->clock;
	a->transport = p->l4 - p->l3;
	a->payload = p->headers;
	if (p->key.proto == IPPROTO_SCTP && !(p->is & (IS_LATER | IS_NOPORTS | IS_ERROR)))
		a->payload += 4; /* the path reads its ports alone */
	if (a->payload > p->length)
		a->payload = p->length; /* of a header that says to be longer than its packet */
	a->instance = f->vport;
	a->shown = 0;
	a->edit = 0;
	a->reason = 0;
}

/* Show the packet's first bytes. */
__noinline int show_bytes(struct __sk_buff *skb, __u32 needs)
{
	struct onpath_packet *a = description();
	struct pkt *p = packet();
	__u32 n = needs;

	if (!a || !p)
		return -1;
	if (n > p->length)
		n = p->length;
	n--; /* one comparison: kernels before 6.3 do not see what two say together */
	barrier_var(n);
	if (n >= ONPATH_DATA)
		return -1;
	n++;
	if (bpf_skb_load_bytes(skb, p->l3, a->data, n))
		return -1;
	a->shown = n;
	return 0;
}

/* Carry out what a function asked for. */
__noinline int edit(struct __sk_buff *skb)
{
	struct onpath_packet *a = description();
	struct pkt *p = packet();

	if (!a || !p)
		return -1;
	if ((a->edit & (ONPATH_SET_SRC | ONPATH_SET_DST)) && !p->edited)
		copy_key(&p->came, &p->key, p->key.scope);
	if (a->edit & ONPATH_SET_SRC) {
		if ((p->family == FAMILY_4) != is_mapped(a->new_src))
			return -1;
		copy_addr(p->end, a->new_src);
		p->end_port = a->new_sport;
		if (edit_end(skb, 0))
			return -1;
	}
	if (a->edit & ONPATH_SET_DST) {
		if ((p->family == FAMILY_4) != is_mapped(a->new_dst))
			return -1;
		copy_addr(p->end, a->new_dst);
		p->end_port = a->new_dport;
		if (edit_end(skb, 1))
			return -1;
	}
	if (a->edit & ONPATH_SET_DSCP)
		edit_dscp(skb, a->new_dscp & 63);
	return 0;
}

static __always_inline void tally(__u64 *packets, __u64 *bytes, const struct pkt *p)
{
	*packets += p->packets;
	*bytes += p->bytes;
}

/* Count the verdict; it ends the packet's way unless it is ONPATH_NEXT. */
static __always_inline int conclude(struct pkt *p, struct function_counters *c, __u32 verdict, __u32 reason)
{
	switch (verdict) {
	case ONPATH_NEXT:
		tally(&c->passed_packets, &c->passed_bytes, p);
		return GO_ON;
	case ONPATH_REDIRECT:
		tally(&c->passed_packets, &c->passed_bytes, p);
		p->after = AFTER_REDIRECT;
		return RUN_FUNCTIONS;
	case ONPATH_ANSWER:
		tally(&c->answered_packets, &c->answered_bytes, p);
		p->after = AFTER_REFUSE;
		break;
	default:
		tally(&c->dropped_packets, &c->dropped_bytes, p);
	}
	c->reasons[reason & 15] += p->packets;
	return verdict == ONPATH_ANSWER ? RUN_FUNCTIONS : drop(p, DROP_FUNCTION);
}

/* May the function send packets of this direction to that element? */
static __always_inline int may_redirect(const struct function *f, const struct pkt *p, __u32 element)
{
	if (!f->redirects || !f->element || !element || element > MAX_ELEMENTS)
		return 0;
	return p->d.flags & FLOW_REVERSE ? element < f->element : element > f->element;
}

/* Run the function of an item of the list. */
__noinline int run(struct __sk_buff *skb, __u32 item)
{
	struct onpath_packet *a = description();
	__u32 index = item & INLINE_SLOT;
	struct function_counters *c = bpf_map_lookup_elem(&function_stats, &index);
	struct function *f = bpf_map_lookup_elem(&functions, &index);
	struct pkt *p = packet();
	__u64 began = 0;
	int verdict;

	if (!a || !p || !c || !f)
		return TC_ACT_SHOT;
	if (!f->open) {
		if (item & INLINE_BYPASS) {
			tally(&c->bypassed_packets, &c->bypassed_bytes, p);
			return GO_ON;
		}
		c->refused_packets += p->packets;
		return drop(p, DROP_NO_INSTANCE);
	}
	show_to((struct description *)a, f);
	describe(skb, p, a, f);
	if (f->needs)
		show_bytes(skb, f->needs);
	if (!(c->calls++ % SAMPLE_EVERY))
		began = bpf_ktime_get_ns();
	verdict = call_function(index, a);
	if (began) {
		c->time += bpf_ktime_get_ns() - began;
		c->samples++;
	}
	if (verdict == ONPATH_REDIRECT) {
		p->element = a->element;
		if (!may_redirect(f, p, p->element))
			verdict = ONPATH_DROP;
	}
	if ((verdict == ONPATH_NEXT || verdict == ONPATH_REDIRECT) && a->edit && edit(skb))
		verdict = ONPATH_DROP;
	return conclude(p, c, verdict, a->reason);
}

SEC("tc")
int onpath_functions(struct __sk_buff *skb)
{
	struct pkt *p = packet();
	__u32 i, item, shard;
	int rc;

	if (!p)
		return TC_ACT_SHOT;
	for (i = 0; i < MAX_INLINE; i++) {
		if (i < p->ran)
			continue; /* it was before a redirect, or in another dispatcher */
		item = p->d.functions[i];
		if (!item)
			break;
		shard = shard_of(item);
		if (shard != this_shard) {
			bpf_tail_call(skb, &shards, shard);
			relearn();
			return finish(p, drop(p, DROP_NO_INSTANCE)); /* it was just taken away */
		}
		p->ran = i + 1;
		rc = run(skb, item);
		if (rc != GO_ON)
			relearn();
		if (rc == RUN_FUNCTIONS)
			break;
		if (rc != GO_ON)
			return finish(p, rc);
	}
	p->resumes = 1;
	bpf_tail_call_static(skb, &stages, STAGE_RESUME);
	p->resumes = 0;
	return TC_ACT_SHOT;
}

char _license[] SEC("license") = "GPL";
