/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Flow entries: found, inserted and counted on. How they are packed stands in
 * lib/pack.h. For every hook: nothing here needs an skb.
 */
#ifndef ONPATH_ENTRY_H
#define ONPATH_ENTRY_H

#include "prefilter.h"
#include "pack.h"

/* Tests have every packet refresh the entries at its next hop, so that no clock decides. */
const volatile __u32 refresh_always = 0;

/* An entry of a flow that is known to live. */
static __always_inline struct flow *flow_established(const struct flow_key *k)
{
	return bpf_map_lookup_elem(&flows_v2, k);
}

static __always_inline struct flow *flow_pending(const struct flow_key *k, __u32 tenant)
{
	void *m = bpf_map_lookup_elem(&pending_v2, &tenant);

	return m ? bpf_map_lookup_elem(m, k) : NULL;
}

static __always_inline struct flow *flow_find(const struct flow_key *k, __u32 tenant)
{
	struct flow *e = flow_established(k);

	return e ? e : flow_pending(k, tenant);
}

/* An empty entry, to be filled and inserted. */
static __always_inline struct flow *fresh_flow(struct pkt *p)
{
	struct flow *f = &p->fresh;

	__builtin_memset(f, 0, sizeof(*f));
	f->seen = p->now;
	entry_decided(f, p);
	return f;
}

static __always_inline __u32 tenant_of_path(__u32 slot)
{
	struct path *path = bpf_map_lookup_elem(&paths, &slot);

	return slot && path ? path->tenant : 0;
}

/* Is there capacity in a tenant's share for two entries more? A quarter of it is for
 * flows of which both directions are known: others cost whoever forges them less. */
static __always_inline int has_capacity(__u32 tenant, int both)
{
	struct tenant *t = bpf_map_lookup_elem(&tenants, &tenant);
	struct quota *h = bpf_map_lookup_elem(&quotas, &tenant);

	return t && h && h->established + 2 <= (both ? t->cap : t->cap / 4 * 3);
}

/*
 * To whom an established entry counts: at an instance to its tenant, elsewhere to that
 * of its path, or, without one, of what it leads to. A pending entry stands with the
 * tenant by whose rule packets find it, which may be another. The driver's rounds count
 * alike (reader.tenant).
 */
__noinline __u32 charged_tenant(const struct flow *e, __u32 tenant)
{
	struct vport *v;
	__u32 slot;

	if (!e || e->context || (e->flags & FLOW_EMITTED))
		return tenant;
	if (entry_path(e))
		return tenant_of_path(entry_path(e));
	slot = entry_slot(e);
	v = vport_of(&slot, e->next);
	return v ? v->tenant : 0;
}

/* A tenant uses one entry less of its quota. */
static __always_inline void release_quota(__u32 tenant)
{
	struct quota *h = bpf_map_lookup_elem(&quotas, &tenant);

	if (h && h->established)
		__sync_fetch_and_add(&h->established, -1);
}

/* Likewise of those that its instances cause. */
static __always_inline void release_caused(__u32 tenant)
{
	struct quota *h = bpf_map_lookup_elem(&quotas, &tenant);

	if (h && h->flows)
		__sync_fetch_and_add(&h->flows, -1);
}

/* The entry of k, which stands, counted to was before it was written anew. */
static __always_inline void move_quota(struct flow *e, const struct flow_key *k, __u32 was, __u32 tenant)
{
	__u32 is = charged_tenant(e, tenant);
	struct quota *h;

	if (was == is || flow_established(k) != e)
		return;
	release_quota(was);
	h = bpf_map_lookup_elem(&quotas, &is);
	if (h)
		__sync_fetch_and_add(&h->established, 1);
}

static __always_inline void count_deferred(__u32 tenant, __u32 packets)
{
	struct tenant *t = bpf_map_lookup_elem(&tenants, &tenant);

	if (t)
		__sync_fetch_and_add(&t->deferred, packets);
}

/* Insert pkt.fresh, which stood or would stand with a tenant, as established. 1: it is. */
static __always_inline int flow_establish(struct pkt *p, const struct flow_key *k, __u32 tenant)
{
	__u32 to = charged_tenant(&p->fresh, tenant);
	struct quota *h = bpf_map_lookup_elem(&quotas, &to);

	prefilter_entry(k);
	if (!h || bpf_map_update_elem(&flows_v2, k, &p->fresh, BPF_NOEXIST))
		return 0;
	p->must_sync = 1;
	__sync_fetch_and_add(&h->established, 1);
	return 1;
}

/* The same; 0 if there is no entry then, for want of capacity. */
static __always_inline int ensure_established(struct pkt *p, const struct flow_key *k, __u32 tenant)
{
	return flow_establish(p, k, tenant) || flow_established(k);
}

/* Insert pkt.fresh as pending unless there is an entry. 1: the entry is pkt.fresh. */
static __always_inline int flow_begin(struct pkt *p, const struct flow_key *k, __u32 tenant)
{
	void *m = bpf_map_lookup_elem(&pending_v2, &tenant);

	if (!m || bpf_map_update_elem(m, k, &p->fresh, BPF_NOEXIST))
		return 0;
	p->must_sync = 1;
	count_learned(1);
	return 1;
}

/* Has one direction shown by itself that its flow lives? */
static __always_inline int lives_alone(const struct pkt *p, __u64 packets)
{
	return packets >= ONE_WAY_MANY || ((p->is & IS_TCP) && p->learn && packets >= ONE_WAY_FEW);
}

/*
 * A packet was counted on the pending entry of pkt.key. If its flow is known to
 * live, both directions become established: when a packet follows the first of each, or
 * of this one alone for a while. So a query with its reply never is, nor are handshakes
 * and resets: anyone can send a SYN, and every server replies to it. Where the tuple is
 * translated on the way, the reverse of this one is nobody's: then each direction is
 * established by itself, by what note_reply noted.
 */
__noinline int flow_promote(void)
{
	struct pkt *p = packet();
	struct flow *e, *mate, *known;
	struct node *n = this_node();
	__u32 scope, tenant, slot, whose;
	struct vport *v;
	__u64 packets;
	int both, replied;
	void *m;

	if (!p || (p->is & (IS_ERROR | IS_SYN | IS_RST | IS_NOPORTS)))
		return 0;
	tenant = p->tenant;
	m = bpf_map_lookup_elem(&pending_v2, &tenant);
	if (!m)
		return 0;
	e = bpf_map_lookup_elem(m, &p->key);
	if (!e)
		return 0;
	scope = p->key.scope;
	if (!(p->is & IS_EDGE)) {
		slot = p->prev_slot;
		v = vport_at(slot, p->prev);
		if (v && v->other)
			scope = v->other;
		else if (n && entry_kind(e) == NEXT_EXIT)
			scope = n->edge; /* a relay's: from another node */
		else if (entry_kind(e) == NEXT_VPORT)
			scope = e->next;
	}
	reverse_key(&p->wkey, &p->key, scope);
	mate = bpf_map_lookup_elem(m, &p->wkey);
	known = mate ? mate : flow_established(&p->wkey);
	if (p->is & IS_ANYSYN) {
		if (mate)
			expect_ack(mate, p->seq + 1);
		return 0;
	}
	packets = entry_packets(e);
	replied = (e->kind & REPLIED) || (known && entry_packets(known));
	both = replied && packets > p->packets && !((e->kind | (known ? known->kind : 0)) & HANDSHAKE);
	if (!both && !lives_alone(p, packets))
		return 0;
	if (mate && both && !entry_packets(mate))
		mate = NULL; /* its replies come by another tuple */
	whose = charged_tenant(e, tenant);
	if (mate && has_capacity(whose, both))
		whose = charged_tenant(mate, tenant);
	if (!has_capacity(whose, both)) {
		count_deferred(whose, p->packets);
		return 0;
	}
	p->fresh = *e;
	if (bpf_map_lookup_elem(m, &p->key) != e)
		return 0; /* it was evicted meanwhile, and may be another flow's */
	if (!ensure_established(p, &p->key, tenant))
		return 0;
	if (mate) {
		p->fresh = *mate;
		if (bpf_map_lookup_elem(m, &p->wkey) != mate)
			mate = NULL;
	}
	if (mate) {
		if (!ensure_established(p, &p->wkey, tenant)) {
			bpf_map_delete_elem(&flows_v2, &p->key);
			release_quota(charged_tenant(e, tenant));
			return 0;
		}
		bpf_map_delete_elem(m, &p->wkey);
	}
	bpf_map_delete_elem(m, &p->key);
	return 1;
}

/* The entry e of k goes, which stands with a tenant if it is pending. */
static __always_inline void delete_flow(const struct flow_key *k, const struct flow *e, __u32 tenant)
{
	__u32 charged = charged_tenant(e, tenant);
	void *m;

	if (!bpf_map_delete_elem(&flows_v2, k))
		release_quota(charged);
	m = bpf_map_lookup_elem(&pending_v2, &tenant);
	if (m)
		bpf_map_delete_elem(m, k);
}

/* What is known of the other direction of a reply that was translated as it came in, also
 * where an instance of another node says it: may its sender take the packet's FIN or RST for
 * one? Its acknowledgement number is known but for its low bits (NAT_ACK). */
static __always_inline int nat_fits(struct pkt *p, const struct node *n)
{
	struct nat *x;

	if (!p->inward || p->key.scope != n->edge)
		return 1;
	reverse_key(&p->wkey, &p->key, n->edge);
	x = bpf_map_lookup_elem(&nats, &p->wkey);
	if (!x || !(x->state & NAT_ACKED))
		return 1;
	return p->seq - ((x->seen & ~SEEN_MASK) | (x->state & NAT_ACK) << 16) <= 2 * END_AHEAD;
}

/* Is it the entry of a connection that is older than a chain, and led past it? */
static __always_inline int adopted(const struct flow *e)
{
	return (e->flags & FLOW_ADOPTED) && entry_kind(e) != NEXT_PENDING;
}

/* Has the connection ended whose two entries at one place these are? */
static __always_inline int has_ended(const struct flow *e, const struct flow *mate)
{
	__u32 there = mate ? mate->flags : 0;

	return ((e->flags | there) & FLOW_RST) || (e->flags & there & FLOW_FIN);
}

/* Where the other direction of pkt.key has the entry that belongs to e. */
static __always_inline __u32 scope_of_mate(const struct pkt *p, const struct node *n, const struct flow *e)
{
	__u32 slot = p->prev_slot;
	struct vport *v;

	if (p->key.scope == n->edge)
		return n->edge;
	v = vport_at(slot, p->prev);
	if (v && v->kind == VPORT_INSTANCE && !(e->flags & FLOW_EMITTED))
		return v->other;
	return entry_kind(e) == NEXT_EXIT ? n->edge : e->next;
}

/* In whose pending table the entry of the other direction stands, unless it is established: at
 * an instance its tenant's, though the path may be another tier's. */
static __always_inline __u32 tenant_of_mate(const struct pkt *p, const struct flow *e)
{
	__u32 slot = p->prev_slot;
	struct vport *v;

	if (p->tenant)
		return p->tenant;
	v = vport_at(slot, p->prev);
	return v && v->kind == VPORT_INSTANCE ? v->tenant : tenant_of_path(entry_path(e));
}

/*
 * May the other end take the FIN or RST of the packet, which has come by the entry e, for
 * one? Others end nothing: anybody can send them, with a SYN behind (RFC 5961 section 3). Its
 * number fits if it is not before, nor far ahead of, what the other direction has
 * acknowledged. Where that has not been heard, each may. (Of what an instance began, that
 * direction is known where it comes out of the instance, or where it is translated.)
 * Of a SYN: does it use the ports again? Then what both ends have said before is no more.
 * While one of them goes on, it does not: anybody can send one.
 */
__noinline int end_fits(struct flow *e)
{
	struct pkt *p = packet();
	struct node *n = this_node();
	struct flow *mate;
	__u32 tenant, due;

	if (!p || !n || !e)
		return 1;
	tenant = tenant_of_mate(p, e);
	reverse_key(&p->wkey, &p->key, scope_of_mate(p, n, e));
	mate = flow_find(&p->wkey, tenant);
	if (!mate && p->key.scope == n->edge && entry_kind(e) == NEXT_VPORT) {
		p->wkey.scope = e->next;
		mate = flow_find(&p->wkey, tenant);
	}
	if (!mate || !entry_packets(mate))
		return (p->is & IS_ANYSYN) || nat_fits(p, n);
	if (p->is & IS_ANYSYN) {
		if (!(p->is & IS_SYN) || !has_ended(e, mate))
			return 0;
		mate->flags &= ~(FLOW_FIN | FLOW_RST);
		return 1;
	}
	due = entry_ack(mate);
	return !due || p->seq - due <= END_AHEAD;
}

/* Was the connection of an entry, whose other direction has mate, ever answered? */
static __always_inline int was_answered(const struct flow *e, const struct flow *mate)
{
	return (e->kind & REPLIED) || (mate && entry_packets(mate));
}

/* Do packets of an entry that is not at the edge leave the chains here? */
static __always_inline int leaves(const struct flow *e)
{
	return entry_kind(e) != NEXT_VPORT || e->next == e->entry;
}

/* A SYN-ACK has come, whose other direction has mate: does it accept a SYN that was noted? Then
 * the connection has ended (begin_anew). At the edge before an instance, that sees to the packet. */
static __always_inline void note_accepting(struct pkt *p, struct flow *mate)
{
	if (!mate || !(mate->slot & SYN_NOTED))
		return;
	if (mate->flags & FLOW_AT_EDGE) {
		p->must_sync = 1;
		if (entry_kind(mate) != NEXT_VPORT)
			p->is |= IS_ACCEPTING;
	} else if (leaves(mate)) {
		p->is |= IS_ACCEPTING;
	} else {
		return;
	}
	mate->flags |= FLOW_RST;
}

/*
 * Is the SYN, which has come by e, one that is sent once more, while the connection that mate
 * answers for is not open yet? Elsewhere than at the edge the low byte of numbers is not known.
 */
static __always_inline int is_repeated(const struct pkt *p, const struct flow *e, const struct flow *mate)
{
	return mate && entry_packets(mate) && ((e->kind & HANDSHAKE) || !entry_ack(e)) &&
	       p->seq + 1 - entry_ack(mate) <= 0xff;
}

/* No answer has come by the entry's place. Does it pass by, or is it of a connection that is
 * older than what is in force, and goes on without that this node hears the other end? */
static __always_inline int hears_one_end(const struct flow *e, int stale)
{
	__u32 slot = entry_path(e);
	struct path *path = bpf_map_lookup_elem(&paths, &slot);

	return entry_kind(e) == NEXT_PASS || adopted(e) ||
	       (stale && (entry_ack(e) || (slot && path && (path->flags & PATH_FORWARD))));
}

/*
 * A SYN has come. Does it begin a connection by the ports of one that has ended, or of which
 * this node hears one end alone (hears_one_end)? Then what was decided for that one is no more:
 * at the edge both directions' entries go, at an instance the packet is decided by its context
 * once more. 1: so it is. A connection that may live stays as it is,
 * whoever sent the SYN (RFC 5961 section 4).
 *
 * An end that knows the connection never accepts a SYN within it. So where a SYN-ACK follows
 * a SYN that was led by a stale entry, the connection of that is no more: the entry ends, and the
 * SYN-ACK is refused (begin_send). The next SYN begins anew.
 */
__noinline int begin_anew(__u32 tenant)
{
	struct pkt *p = packet();
	struct node *n = this_node();
	struct flow *e, *mate;
	struct group *g;
	__u32 context;
	int over, stale;

	if (!p || !n)
		return 0;
	e = flow_find(&p->key, tenant);
	if (!e || entry_kind(e) == NEXT_PENDING)
		return 0;
	reverse_key(&p->wkey, &p->key, scope_of_mate(p, n, e));
	mate = flow_find(&p->wkey, tenant);
	if (!(p->is & IS_SYN)) {
		if (!(p->is & IS_RST))
			note_accepting(p, mate);
		return 0;
	}
	stale = is_stale(e, p->now);
	over = has_ended(e, mate) || (stale && (p->is & IS_TAPPED)); /* a tap refuses nothing */
	if (!over && (was_answered(e, mate) || !hears_one_end(e, stale))) {
		if (stale && !is_repeated(p, e, mate))
			e->slot |= SYN_NOTED;
		return 0;
	}
	context = e->context;
	if (context && !(e->flags & FLOW_EMITTED)) {
		g = bpf_map_lookup_elem(&groups, &context);
		if (!g)
			return 0;
		retarget(e, NEXT_PENDING, 0, 0, context);
		entry_set_path(e, g->path_slot);
		entry_decided(e, p);
		e->flags &= ~(FLOW_ADOPTED | FLOW_FIN | FLOW_RST | FLOW_REVERSE);
		e->flags |= g->flags & GROUP_REVERSE ? FLOW_REVERSE : 0;
		if (mate) {
			mate->slot &= ~SYN_NOTED;
			mate->flags &= ~(FLOW_ADOPTED | FLOW_FIN | FLOW_RST);
		}
		return 1;
	}
	if (e->flags & FLOW_EMITTED)
		release_caused(tenant);
	delete_flow(&p->key, e, tenant);
	if (mate && (over || stale || entry_kind(mate) == NEXT_PASS))
		delete_flow(&p->wkey, mate, tenant);
	return 1;
}

/* Likewise of an entry that was found. */
static __always_inline int begins_anew(const struct pkt *p, __u32 tenant)
{
	return (p->is & IS_ANYSYN) && begin_anew(tenant);
}

/* The entry is in use. */
static __always_inline void mark_seen(struct pkt *p, struct flow *e)
{
	__u32 was = e->seen;

	if (was == p->now)
		return;
	if ((was ^ p->now) >> SYNC_EVERY)
		p->must_sync = 1;
	entry_set_seen(e, p->now);
}

/* The packet goes no further, and the entries at its next hop were not written: the next
 * packet sees to that, also within the same second. */
__noinline int relearn(void)
{
	struct pkt *p = packet();
	struct flow *e;

	if (!p || !p->learn || (p->is & (IS_ERROR | IS_NOPORTS)))
		return 0;
	e = flow_find(p->edited ? &p->came : &p->key, p->tenant);
	if (e && e->seen == p->now)
		e->seen = (p->now - 1) & SEEN_MASK;
	return 0;
}

#endif
