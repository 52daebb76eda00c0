/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* First packets: what to do with a packet that has no decided flow entry. */
#ifndef ONPATH_DECIDE_H
#define ONPATH_DECIDE_H

#include "admit.h"
#include "answer.h"
#include "ask.h"
#include "flow.h"
#include "nat.h"

static __always_inline int is_dhcp(const struct flow_key *k, __u32 family)
{
	__u16 d = bpf_ntohs(k->dport);

	if (k->proto != IPPROTO_UDP)
		return 0;
	return family == FAMILY_4 ? d == 67 || d == 68 : d == 546 || d == 547;
}

/* Both directions of a flow go the same way: by the chain (NEXT_PASS), where the
 * connection is older than it or no element is in the way, or out again behind the
 * functions (NEXT_EXIT). */
__noinline int pass_both(__u32 table, __u32 kind)
{
	struct pkt *p = packet();
	struct node *n = this_node();

	if (!p || !n)
		return 0;
	p->d.kind = kind;
	p->d.next = p->d.slot = p->d.group = 0;
	write_flow();
	p->back.context = 0;
	p->back_tenant = p->tenant;
	p->settle = 0;
	reverse_key(&p->rkey, &p->key, n->edge);
	answers_go(p, kind, 0, 0);
	return write_answer(p, table, BACK_EDGE);
}

/* Follow an entry that was found. */
static __always_inline void follow(struct pkt *p, struct flow *e, int pending)
{
	if (!(p->is & IS_ERROR))
		touch(p, e);
	p->followed = 1;
	load_decision(&p->d, e);
	if (pending)
		flow_promote();
}

/* pkt.d tells by which path the packet goes, so in whose pending table its flow may
 * stand. 1: it does, and pkt.d is what its entry says. */
__noinline int follow_pending(void)
{
	struct pkt *p = packet();
	struct path *path;
	struct flow *e;
	__u32 slot;

	if (!p)
		return 0;
	slot = p->d.first_path;
	path = bpf_map_lookup_elem(&paths, &slot);
	if (!slot || !path)
		return 0;
	p->tenant = path->tenant;
	e = flow_pending(&p->key, p->tenant);
	p->absent = !e;
	if (!e || entry_kind(e) == NEXT_PENDING)
		return 0;
	follow(p, e, 1);
	return 1;
}

static __always_inline void begin_at_edge(struct pkt *p, const struct node *n)
{
	p->d.context = 0;
	p->d.entry = n->edge;
	p->d.path = p->d.path_slot = p->d.flags = 0;
}

/* Follow a pending entry at the edge if there is one: for packets that begin no
 * flow. */
__noinline int follow_at_edge(void)
{
	struct pkt *p = packet();
	struct node *n = this_node();

	if (!p || !n || !n->edge_table || (p->is & IS_NOPORTS))
		return 0;
	begin_at_edge(p, n);
	resolve(n->edge_table, 0);
	return p->d.matched && follow_pending();
}

/*
 * A connection that is older than a chain which cuts such. The end that speaks is reset by
 * an answer. The other one, which may only wait, as a client does in the middle of a
 * download, gets the packet as a RST: its sequence number is the one expected there, unless
 * others are under way (RFC 9293 §3.5.3). A copy comes in here once more, and RSTs pass.
 * (Not of what the other gateway gave back: where that came in is not known any more.)
 */
__noinline int cut(struct __sk_buff *skb)
{
	struct pkt *p = packet();
	__be16 old, new;
	__u32 at;

	if (!p)
		return TC_ACT_SHOT;
	if (p->is & IS_RST)
		return TC_ACT_OK;
	count_in(skb, p, p->prev_slot, p->prev);
	at = p->l4 + 12; /* the header's length and the flags */
	if (!(p->is & (IS_HOST | IS_TAPPED)) && !p->asked && !bpf_skb_load_bytes(skb, at, &old, 2)) {
		new = old | bpf_htons(0x04);
		if (!bpf_l4_csum_replace(skb, p->l4 + 16, old, new, 2) && !bpf_skb_store_bytes(skb, at, &new, 2, 0))
			bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	}
	return send_reset(skb);
}

/* A packet from outside without an established entry. */
__noinline int decide_edge(struct __sk_buff *skb)
{
	struct pkt *p = packet();
	struct node *n = this_node();
	struct path *path;
	struct flow *e;
	int reason, local, rc;
	__u32 slot;

	if (!p || !n)
		return TC_ACT_OK;
	if (n->nat_count && is_local(p, p->key.dst) && nat_in(skb)) {
		e = flow_established(&p->key);
		if (e && entry_kind(e) != NEXT_PENDING) {
			follow(p, e, 0);
			return GO_ON;
		}
		if (follow_at_edge())
			return GO_ON;
		count_in(skb, p, p->prev_slot, p->prev);
		return drop(p, DROP_CLOSED);
	}
	if (!n->edge_table)
		return TC_ACT_OK;
	if (confined(p->key.src, p->family) || confined(p->key.dst, p->family) ||
	    is_dhcp(&p->key, p->family))
		return TC_ACT_OK;
	local = !(p->is & IS_HOST) && (is_local(p, p->key.dst) || is_local(p, p->key.src));
	if (local && !n->host_ifindex)
		return TC_ACT_OK; /* an uplink of another kind: the node's own is not steered there */
	if (local || (p->is & IS_ERROR))
		return follow_at_edge() ? GO_ON : TC_ACT_OK;
	begin_at_edge(p, n);
	if (p->is & IS_NOPORTS) {
		p->strict_only = 1;
		resolve(n->edge_table, 0);
		p->strict_only = 0;
		if (p->d.matched) {
			count_in(skb, p, p->prev_slot, p->prev);
			return drop(p, DROP_UNCLASSIFIED);
		}
	}
	if ((p->is & IS_NOPORTS) || n->gates[0])
		reason = resolve(n->edge_table, 0);
	else
		reason = resolve_halting(p, n->edge_table);
	if (reason == HALTED) {
		if (follow_pending())
			return GO_ON;
		reason = begin_flows(NOBODY);
	}
	if (!p->d.matched) {
		if (p->is & IS_ENCAP)
			count_encapsulated(p->packets);
		return TC_ACT_OK;
	}
	slot = p->d.path_slot;
	path = bpf_map_lookup_elem(&paths, &slot);
	if (!slot || !path || path->id != p->d.path) {
		count_in(skb, p, p->prev_slot, p->prev);
		return drop(p, DROP_NO_TABLE);
	}
	if (p->is & IS_NOPORTS) {
		count_passed(p);
		return TC_ACT_OK;
	}
	if (n->gates[0]) { /* what that one knows does not begin */
		if (follow_pending())
			return GO_ON;
		rc = ask_partner(skb, slot);
		if (rc != GO_ON)
			return rc;
		if (!may_begin_all(p))
			reason = DROP_NEW_FLOWS;
	}
	if ((p->is & IS_TCP) && !(p->is & IS_SYN) && bpf_ktime_get_ns() < path->adopt_until) {
		if (path->flags & PATH_CUT)
			return cut(skb);
		clear_functions(&p->d);
		pass_both(0, NEXT_PASS);
		count_passed(p);
		return TC_ACT_OK;
	}
	if (reason) {
		count_in(skb, p, p->prev_slot, p->prev);
		return drop(p, reason);
	}
	if (p->d.kind == NEXT_EXIT && !p->d.entry && !p->d.bypassed && !p->d.mirror_count &&
	    !has_functions(&p->d) &&
	    !(p->is & (IS_HOST | IS_TAPPED | IS_BRIDGED))) {
		write_flow(); /* a rule routes: carried past no element */
		return GO_ON;
	}
	if (p->d.kind == NEXT_EXIT) {
		/* Nowhere else to go: functions and mirrors only, or all bypassed. */
		p->d.flags |= p->d.bypassed ? FLOW_BYPASS : 0;
		pass_both(n->edge_table, has_functions(&p->d) ? NEXT_EXIT : NEXT_PASS);
		return GO_ON;
	}
	write_flow();
	return GO_ON;
}

static __always_inline int leave_at(struct pkt *p, const struct node *n, __u32 entry)
{
	__u32 last = p->last_function;
	struct group *g;

	if (!entry)
		return DROP_NO_ROUTE;
	p->d.entry = entry;
	p->d.group = 0;
	g = bpf_map_lookup_elem(&groups, &last);
	if ((entry != n->edge || n->gates[0]) && last && g && has_functions(&p->d)) {
		p->d.group = last; /* the last element: answers ask for it there */
		p->d.path = g->path;
		p->d.path_slot = g->path_slot;
	}
	p->d.kind = entry == n->edge ? NEXT_EXIT : NEXT_VPORT;
	p->d.next = entry == n->edge ? 0 : entry;
	p->d.slot = 0;
	return 0;
}

/* Count an entry against the quota of the instance's tenant. */
static __always_inline int within_quota(__u32 slot)
{
	struct tenant *t = bpf_map_lookup_elem(&tenants, &slot);
	struct held *h = bpf_map_lookup_elem(&holdings, &slot);

	if (!t || !h || (t->max && h->flows >= t->max) || !has_room(slot, 1))
		return 0;
	__sync_fetch_and_add(&h->flows, 1);
	return 1;
}

/* Is this TCP in the middle of a connection, and the path so young that such are
 * passed by? (A chain that cuts them does so at the edge.) */
static __always_inline int adopts(struct pkt *p, __u32 slot)
{
	struct path *path = bpf_map_lookup_elem(&paths, &slot);

	return (p->is & IS_TCP) && !(p->is & (IS_SYN | IS_ERROR)) && slot && path && !(path->flags & PATH_CUT) &&
	       bpf_ktime_get_ns() < path->adopt_until;
}

/* The first packet that comes out of an instance by the context it got in with. */
static __always_inline int decide_pending(struct pkt *p, struct node *n, const struct flow *e)
{
	__u32 group = e->context, path, path_slot, flags, known;
	struct group *g;
	int reason;

	load_decision(&p->d, e);
	path = p->d.path;
	path_slot = p->d.path_slot;
	known = p->d.flags & FLOW_KNOWN;
	flags = p->d.flags &= ~FLOW_KNOWN;
	g = bpf_map_lookup_elem(&groups, &group);
	if (!g)
		return DROP_NO_TABLE;
	/* Where the other tier's chain begins, flows do; but not those that only changed
	 * the instance before. */
	if ((p->is & IS_ERROR) || known || runs(p))
		reason = resolve(g->then, 0);
	else
		reason = resolve_halting(p, g->then);
	if (reason == HALTED)
		reason = begin_flows(tenant_of_path(path_slot));
	if (p->d.path != path && adopts(p, p->d.path_slot)) {
		count_passed(p); /* past the other tier's chain, which is younger than the connection */
		p->d.path = path;
		p->d.path_slot = path_slot;
		p->d.flags = flags;
		p->d.kind = NEXT_EXIT;
		p->d.next = p->d.slot = p->d.group = 0;
		clear_functions(&p->d);
		reason = 0;
	}
	if (reason)
		return reason;
	if (p->d.kind == NEXT_VPORT && runs(p))
		find_home(0);
	if (p->d.kind == NEXT_EXIT && p->d.entry)
		reason = leave_at(p, n, p->d.entry);
	return reason;
}

/* What an instance emits goes on behind its element as if it had come in there:
 * the table behind an element and the group before it have one number. */
static __always_inline void take_context(struct pkt *p)
{
	__u32 id = p->d.first_table;
	struct group *g = bpf_map_lookup_elem(&groups, &id);

	if (g && g->then == id)
		p->d.context = id;
}

/* A packet from a local instance without a decided entry. */
__noinline int decide_instance(struct __sk_buff *skb)
{
	struct pkt *p = packet();
	struct node *n = this_node();
	__u32 slot, emit, own;
	struct vport *v;
	struct flow *e;
	int reason;

	if (!p || !n)
		return TC_ACT_SHOT;
	slot = p->prev_slot;
	v = vport_at(slot, p->prev);
	if (!v)
		return drop(p, DROP_CLOSED);
	p->tenant = v->tenant;
	e = p->is & IS_NOPORTS ? NULL : flow_find(&p->key, p->tenant);
	if (e && entry_kind(e) != NEXT_PENDING) {
		follow(p, e, 1);
		return GO_ON;
	}
	if (e) {
		reason = decide_pending(p, n, e);
		if (reason)
			return drop(p, reason);
		if (!(p->is & (IS_ERROR | IS_NOPORTS))) {
			write_flow();
			flow_promote();
		}
		return GO_ON;
	}
	/* For an error, key is the reverse of the quoted tuple, whose destination
	 * is the error's: only its sender differs, and own tells by that. */
	p->okey.vport = p->prev;
	p->okey.family = p->family;
	p->okey.pad[0] = p->okey.pad[1] = p->okey.pad[2] = 0;
	if (p->family == FAMILY_4) {
		map_v4(p->okey.addr, 0);
		bpf_skb_load_bytes(skb, p->l3 + 12, &V4(p->okey.addr), 4);
	} else {
		bpf_skb_load_bytes(skb, p->l3 + 8, p->okey.addr, 16);
	}
	own = bpf_map_lookup_elem(&owns, &p->okey) != NULL;
	if ((v->flags & VPORT_MIRROR) && !own)
		return drop(p, DROP_MIRROR);
	p->d.context = p->d.group = 0;
	p->d.entry = v->entry;
	p->d.path = p->d.path_slot = p->d.mirror_count = 0;
	p->d.flags = 0;
	emit = v->emit;
	if (emit && !(p->is & (IS_ERROR | IS_NOPORTS))) {
		reason = resolve_halting(p, emit);
		if (reason == HALTED) {
			if (!may_begin(p, v->tenant))
				return drop(p, DROP_NEW_FLOWS);
			reason = begin_flows(v->tenant);
		}
		if (p->d.matched) {
			if (reason)
				return drop(p, reason);
			if (p->d.kind == NEXT_EXIT && p->d.entry)
				reason = leave_at(p, n, p->d.entry);
			if (reason)
				return drop(p, reason);
			if (!within_quota(v->tenant))
				return drop(p, DROP_QUOTA);
			p->d.flags |= FLOW_EMITTED;
			take_context(p);
			reason = write_flow();
			return reason ? drop(p, reason) : GO_ON;
		}
	}
	if (!own || !(v->flags & VPORT_ROUTES)) /* a fragment whose first did not come is no forgery */
		return drop(p, (p->is & (IS_ERROR | IS_NOPORTS)) == IS_NOPORTS ? DROP_UNCLASSIFIED
									      : DROP_SPOOFED);
	p->d.context = p->d.group = 0;
	p->d.path = p->d.path_slot = p->d.mirror_count = 0;
	clear_functions(&p->d);
	p->d.flags = FLOW_EMITTED;
	reason = leave_at(p, n, v->entry);
	if (reason)
		return drop(p, reason);
	if (p->is & (IS_ERROR | IS_NOPORTS))
		return GO_ON;
	if (!may_begin(p, v->tenant))
		return drop(p, DROP_NEW_FLOWS);
	if (!within_quota(v->tenant))
		return drop(p, DROP_QUOTA);
	reason = write_flow();
	return reason ? drop(p, reason) : GO_ON;
}

/* Drop a packet that was not counted yet. */
static __always_inline int end_here(struct __sk_buff *skb, struct pkt *p, int reason)
{
	if (p->is & IS_EDGE)
		count_in(skb, p, p->prev_slot, p->prev);
	return drop(p, reason);
}

/* An edge of a pair of gateways is gone, the other is there: packets leave there. */
static __always_inline int leave_beside(struct pkt *p, const struct node *n)
{
	__u32 other = other_gate(n, p->d.next), slot = 0;
	struct vport *v;

	if (!other)
		return 0;
	if (other != n->edge) {
		v = vport_of(&slot, other);
		if (!v || v->state == STATE_CLOSED)
			return 0;
	}
	return !leave_at(p, n, other);
}

/* Does pkt.d come from an entry at the edge whose path is no more? Connections older
 * than their chain go on passing by it. */
static __always_inline int is_orphan(const struct pkt *p)
{
	return (p->is & IS_EDGE) && p->d.path_slot && !p->d.path &&
	       (p->d.kind != NEXT_PASS || (p->d.flags & FLOW_BYPASS));
}

/*
 * The flow's entry, from which pkt.d comes, leads to what is no more, and tells no
 * group that would choose another: it must not hold up its flow for ever. One of an
 * instance whose way on is known is decided anew by that; any other goes. ANEW, or a
 * drop if this packet cannot be decided: the next one is. What is only closed may open
 * again.
 */
__noinline int let_go(void)
{
	struct pkt *p = packet();
	struct node *n = this_node();
	__u32 slot = 0, context, tenant, held_by;
	struct vport *v;
	struct flow *e;
	struct held *h;
	void *m;

	if (!p || !n || p->anew || (p->is & (IS_ERROR | IS_NOPORTS)) ||
	    (p->is & (IS_REMOTE | IS_RELAYED)) == IS_REMOTE)
		return DROP_CLOSED;
	if (!is_orphan(p) && vport_of(&slot, p->d.next))
		return DROP_CLOSED;
	tenant = p->tenant;
	if (!(p->is & (IS_EDGE | IS_REMOTE))) {
		slot = p->prev_slot;
		v = vport_at(slot, p->prev);
		tenant = v ? v->tenant : 0;
	}
	e = flow_find(&p->key, tenant);
	if (!e || e->next != p->d.next)
		return DROP_CLOSED;
	p->anew = 1;
	context = e->context;
	if (!(p->is & (IS_EDGE | IS_REMOTE)) && !(e->flags & FLOW_EMITTED) && context && bpf_map_lookup_elem(&groups, &context)) {
		turn_entry(e, NEXT_PENDING, 0, 0, context);
		return ANEW;
	}
	held_by = p->is & (IS_EDGE | IS_REMOTE) ? tenant_of_path(e->path) : tenant;
	h = bpf_map_lookup_elem(&holdings, &held_by);
	if (!bpf_map_delete_elem(&flows_v2, &p->key) && held_by && h && h->established)
		__sync_fetch_and_add(&h->established, -1);
	m = bpf_map_lookup_elem(&pending_v2, &tenant);
	if (m)
		bpf_map_delete_elem(m, &p->key);
	/* What was translated as it came in cannot be so once more. */
	return (p->is & IS_REMOTE) || (n->nat_count && !p->d.path_slot) ? DROP_CLOSED : ANEW;
}

/*
 * The next vport of a flow is gone. By its group's lost and none: another
 * member (every direction and node chooses the same one), a reset, a drop, or
 * past the element.
 */
__noinline int lost(struct __sk_buff *skb)
{
	struct pkt *p = packet();
	struct node *n = this_node();
	struct group *g;
	struct flow *e;
	__u32 id, was;
	int reason;

	if (!p || !n)
		return TC_ACT_SHOT;
	was = p->d.next;
	if (!is_orphan(p) && leave_beside(p, n))
		return GO_ON;
	id = was == p->d.entry ? 0 : p->d.group; /* to an edge, nothing is chosen */
	g = bpf_map_lookup_elem(&groups, &id);
	if (!id || !g) {
		reason = let_go();
		return reason == ANEW ? ANEW : end_here(skb, p, reason);
	}
	if ((g->flags & GROUP_RESET) && p->key.proto == IPPROTO_TCP && !(p->is & (IS_SYN | IS_ERROR))) {
		if (p->is & IS_EDGE)
			count_in(skb, p, p->prev_slot, p->prev);
		return send_reset(skb);
	}
	if (choose(id, 0, 0)) {
		p->d.next = p->member;
		p->d.slot = p->member_slot;
	} else {
		if (!(g->flags & GROUP_BYPASS))
			return end_here(skb, p, DROP_NO_INSTANCE);
		p->keep = KEEP_FUNCTIONS | KEEP_MIRRORS; /* those before the element that is gone */
		p->last_function = id;
		reason = resolve(g->then, 0);
		p->keep = 0;
		if (reason)
			return end_here(skb, p, reason);
		if (p->d.kind == NEXT_EXIT && p->d.entry) {
			if ((p->is & IS_EDGE) && !has_functions(&p->d)) {
				p->d.kind = NEXT_PASS;
				p->d.flags |= FLOW_BYPASS;
			} else {
				reason = leave_at(p, n, p->d.entry);
				if (reason)
					return end_here(skb, p, reason);
			}
		}
	}
	p->learn = p->news = 1;
	e = flow_find(&p->key, p->tenant);
	/* What comes for an instance from another node has none, though there may be one by
	 * which a function here is asked. */
	if (e && e->next == was && (p->is & (IS_REMOTE | IS_RELAYED)) != IS_REMOTE &&
	    !(p->is & (IS_ERROR | IS_NOPORTS)))
		store_decision(e, &p->d, p->key.scope);
	return GO_ON;
}

/* A packet from another node for a function of this one, and then on: its entry
 * is keyed by the vport it comes from, which lies on the other node. Where it says
 * that it comes from one of this node, it has none: what stands there is for what
 * really comes out there, and no other node's to ask by or to write. */
__noinline int decide_relay(void)
{
	struct pkt *p = packet();
	struct node *n = this_node();
	__u32 slot = 0, ours, entry;
	struct vport *prev, *v;
	struct flow *e;
	int reason;

	if (!p || !n)
		return TC_ACT_SHOT;
	prev = vport_of(&slot, p->prev);
	ours = prev && prev->kind != VPORT_REMOTE;
	if (!ours)
		p->is |= IS_RELAYED;
	p->asked_group = p->d.group;
	slot = p->d.slot;
	v = vport_of(&slot, p->d.next);
	if (!v)
		return drop(p, DROP_CLOSED);
	p->tenant = v->tenant; /* what comes from another tier's element tells no path */
	e = ours ? NULL : flow_find(&p->key, p->tenant);
	if (e && outlived(e, p->d.path_slot))
		turn_entry(e, NEXT_PENDING, 0, 0, 0);
	if (e && entry_kind(e) != NEXT_PENDING) {
		move_gate(e, p->d.entry);
		follow(p, e, 1);
		return GO_ON;
	}
	if (!p->asked_group)
		return drop(p, DROP_NO_TABLE);
	entry = p->d.entry;
	e = NULL;
	if (n->edge && other_gate(n, p->prev) == n->edge) { /* this edge may know more than the rules */
		p->key.scope = n->edge;
		e = entry_at_edge(p, n);
		p->key.scope = p->prev;
		p->tenant = v->tenant;
		if (e && vport_at_place(e->functions[0]) != v->id)
			e = NULL;
	}
	p->d.entry = entry;
	p->d.context = 0;
	p->start_group = p->asked_group;
	reason = resolve(0, 0);
	if (e) {
		reason = 0;
		if (*(__u64 *)p->d.functions != *(__u64 *)e->functions)
			p->last_function = 0; /* not the last one of these */
		if (go_by(&p->d, e, n)) {
			p->d.kind = NEXT_EXIT;
			p->d.entry = entry;
		}
	}
	if (!reason && p->d.kind == NEXT_EXIT && p->d.entry)
		reason = leave_at(p, n, p->d.entry);
	if (reason)
		return drop(p, reason);
	if (!ours && !(p->is & (IS_ERROR | IS_NOPORTS)))
		write_flow();
	return GO_ON;
}

#endif
