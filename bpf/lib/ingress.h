/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* First packets at an edge: what to do with one that has no decided flow entry. */
#ifndef ONPATH_INGRESS_H
#define ONPATH_INGRESS_H

#include "admission.h"
#include "reject.h"
#include "ha_query.h"
#include "flow.h"
#include "nat.h"

/* Between clients, relays and servers of DHCP: by both ports (RFC 2131, RFC 8415 §7.2). */
static __always_inline int is_dhcp(const struct flow_key *k, __u32 family)
{
	__u16 first = family == FAMILY_4 ? 67 : 546;
	__u16 s = bpf_ntohs(k->sport) - first, d = bpf_ntohs(k->dport) - first;

	return k->proto == IPPROTO_UDP && s <= 1 && d <= 1;
}

/* Both directions of a flow go the same way: by the chain (NEXT_PASS), where the
 * connection is older than it or no element is in the way, or out again behind the
 * functions (NEXT_EXIT). */
__noinline int pass_both(__u32 table, __u32 kind)
{
	struct pkt *p = packet();
	struct node *n = this_node();
	__u32 back;

	if (!p || !n)
		return 0;
	back = p->d.flags & FLOW_ADOPTED ? BACK_ELEMENT : BACK_EDGE; /* past the other tier's chain */
	p->d.kind = kind;
	p->d.next = p->d.slot = p->d.group = 0;
	write_flow();
	p->back.context = 0;
	p->back_tenant = p->tenant;
	p->establish = 0;
	reverse_key(&p->rkey, &p->key, n->edge);
	set_reply_target(p, kind, 0, 0);
	return write_reply_entry(p, table, back);
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

/* pkt.d says by which path the packet goes, so in whose pending table its flow may
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
	if (begins_anew(p, p->tenant)) {
		p->absent = 1;
		return 0;
	}
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
 * A connection that is older than a chain which cuts such. The end that speaks gets a
 * RST in reply. The other one, which may only wait, as a client does in the middle of a
 * download, gets the packet as a RST: its sequence number is the one expected there, unless
 * others are under way (RFC 9293 §3.5.3). A copy comes in here once more, and RSTs pass
 * (pass_older).
 * (Not of what the HA peer returned: where that came in is not known any more.)
 */
__noinline int cut(struct __sk_buff *skb)
{
	struct pkt *p = packet();
	__be16 old, new;
	__u32 at;

	if (!p)
		return TC_ACT_SHOT;
	count_in(skb, p, p->prev_slot, p->prev);
	at = p->l4 + 12; /* the header's length and the flags */
	if (!(p->is & (IS_HOST | IS_TAPPED)) && !p->queried && !bpf_skb_load_bytes(skb, at, &old, 2)) {
		new = old | bpf_htons(0x04);
		if (!bpf_l4_csum_replace(skb, p->l4 + 16, old, new, 2) && !bpf_skb_store_bytes(skb, at, &new, 2, 0))
			bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	}
	return send_reset(skb);
}

/*
 * A packet comes in whose source no machine out there can have toward its destination:
 * this machine's own address, or one that must not leave its link (RFC 6890). Where a chain
 * selects it, it would pass by the chain, or leave an entry for replies of others; so it is
 * dropped. (What no chain selects is the kernel's. Over a bridge, and to a tap, the
 * machine's own traffic comes.)
 */
__noinline int refuse_source(struct __sk_buff *skb)
{
	struct pkt *p = packet();
	struct node *n = this_node();

	if (!p || !n)
		return TC_ACT_OK;
	begin_at_edge(p, n);
	resolve(n->edge_table, 0);
	if (!p->d.matched)
		return TC_ACT_OK;
	count_in(skb, p, p->prev_slot, p->prev);
	return drop(p, DROP_SPOOFED);
}

/*
 * A packet names routers that it is to pass, by which its sender would lead it about what
 * stands on the ordinary way (RFC 7126 §4.3, RFC 5095). The kernel decides on such
 * (accept_source_route), but does not see what a chain takes; so it is dropped there.
 */
__noinline int refuse_source_route(struct __sk_buff *skb)
{
	struct pkt *p = packet();
	struct node *n = this_node();

	if (!p || !n || !n->edge_table || confined(p->key.dst, p->family) ||
	    (!(p->is & IS_HOST) && is_local(p, p->key.dst)))
		return TC_ACT_OK;
	begin_at_edge(p, n);
	resolve(n->edge_table, 0);
	if (!p->d.matched)
		return TC_ACT_OK;
	count_in(skb, p, p->prev_slot, p->prev);
	return drop(p, DROP_SOURCE_ROUTE);
}

/* A frame has more tags than can be put back. Chains do not take it; where one is that
 * nothing may pass by, and selects the packet, it is dropped. */
__noinline int refuse_tags(struct __sk_buff *skb)
{
	struct pkt *p = packet();
	struct node *n = this_node();

	if (!p || !n || !n->edge_table || confined(p->key.dst, p->family) ||
	    (!(p->is & IS_NOPORTS) && is_dhcp(&p->key, p->family)))
		return TC_ACT_UNSPEC;
	begin_at_edge(p, n);
	p->strict_only = 1;
	resolve(n->edge_table, 0);
	p->strict_only = 0;
	if (!p->d.matched)
		return TC_ACT_UNSPEC;
	count_in(skb, p, p->prev_slot, p->prev);
	return drop(p, DROP_UNCLASSIFIED);
}

/*
 * Of an error nobody knows what flow it is about: rules for protocols take none, or those
 * about flows that no chain takes would be lost where a chain selects pings.
 */
#define PROTO_UNKNOWN 255 /* IANA: reserved */

/*
 * An ICMP error about a flow that is unknown here. It is delivered only if its outer
 * addresses match no strict chain: its sender chooses the packet that it quotes.
 * (Of a chain with direction forward, flows may be of the other one; the HA peer of
 * a pair may know of the flow; and this machine's own errors are not to be missed.)
 */
__noinline int unknown_error(struct __sk_buff *skb)
{
	struct pkt *p = packet();
	struct node *n = this_node();
	struct path *path;
	__u32 slot;

	if (!p || !n || !n->edge_table || n->gateways[0] || (p->is & (IS_HOST | IS_TAPPED)))
		return TC_ACT_OK;
	outer_address(skb, p, 0, p->end);
	copy_addr(p->key.src, p->end);
	outer_address(skb, p, 1, p->end);
	copy_addr(p->key.dst, p->end);
	p->key.sport = p->key.dport = 0;
	p->key.proto = PROTO_UNKNOWN;
	if (is_local(p, p->key.dst))
		return TC_ACT_OK;
	begin_at_edge(p, n);
	p->is |= IS_NOPORTS;
	p->strict_only = 1;
	resolve(n->edge_table, 0);
	p->strict_only = 0;
	slot = p->d.first_path;
	path = bpf_map_lookup_elem(&paths, &slot);
	if (!p->d.matched || (path && (path->flags & PATH_FORWARD)))
		return TC_ACT_OK;
	count_in(skb, p, p->prev_slot, p->prev);
	return drop(p, DROP_UNCLASSIFIED);
}

/*
 * The connection is older than the chain at whose rule the walk has halted, and is cut, or
 * led past that chain alone: what the operator's chain before has chosen holds.
 */
static __always_inline int pass_older(struct __sk_buff *skb, struct pkt *p, struct node *n)
{
	struct path *path;
	int kept, cuts;
	__u32 slot;

	slot = p->rule_path_slot;
	path = bpf_map_lookup_elem(&paths, &slot);
	cuts = path && (path->flags & PATH_CUT);
	kept = has_functions(&p->d) || p->d.mirror_count;
	if (cuts && !(p->is & IS_RST))
		return cut(skb);
	if (cuts && !kept)
		return TC_ACT_OK;
	p->d.kind = has_functions(&p->d) ? NEXT_EXIT : NEXT_PASS;
	p->d.next = p->d.slot = p->d.group = 0;
	if (cuts)
		return GO_ON; /* and leaves no entry, by which others would pass */
	count_passed_by(p, slot);
	if (!kept)
		enter_path(p, &p->d);
	p->d.flags |= FLOW_ADOPTED;
	if (has_functions(&p->d))
		count_begun(p);
	pass_both(kept ? n->edge_table : 0, p->d.kind);
	return kept ? GO_ON : TC_ACT_OK;
}

/* A packet from outside without an established entry. */
__noinline int classify_ingress(struct __sk_buff *skb)
{
	struct pkt *p = packet();
	struct node *n = this_node();
	struct path *path;
	struct flow *e;
	int reason, local, own, rc;
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
	if (p->is & IS_ERROR) { /* what it quotes, and so its key, is its sender's choice */
		if (follow_at_edge())
			return GO_ON;
		return unknown_error(skb);
	}
	if (confined(p->key.dst, p->family) || (!(p->is & IS_NOPORTS) && is_dhcp(&p->key, p->family)))
		return TC_ACT_OK;
	local = !(p->is & IS_HOST) && is_local(p, p->key.dst);
	if (!local && confined(p->key.src, p->family))
		return p->is & IS_HOST ? TC_ACT_OK : refuse_source(skb);
	own = !(p->is & IS_HOST) && !local && is_local(p, p->key.src);
	if (own && !(p->is & (IS_TAPPED | IS_BRIDGED)))
		return refuse_source(skb);
	local |= own;
	if (local && !n->host_ifindex)
		return TC_ACT_OK; /* an uplink of another kind: the node's own is not steered there */
	if (local)
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
	if (p->is & IS_NOPORTS)
		reason = resolve(n->edge_table, 0);
	else
		reason = resolve_halting(p, n->edge_table);
	if (reason == HALTED) {
		if (follow_pending())
			return GO_ON;
		if (n->gateways[0]) { /* what that one knows does not begin */
			rc = query_ha_peer(skb, p->rule_path_slot);
			if (rc != GO_ON)
				return rc;
			reason = resolve_halting(p, n->edge_table); /* it has read other rules */
		}
		if (reason == HALTED)
			reason = admit_walk(NOBODY);
		if (reason == HALTED)
			return pass_older(skb, p, n);
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
		return drop(p, reason ? reason : DROP_NO_TABLE);
	}
	if (p->is & IS_NOPORTS) {
		count_passed(p);
		return TC_ACT_OK;
	}
	if (reason) {
		count_in(skb, p, p->prev_slot, p->prev);
		return drop(p, reason);
	}
	if (p->d.kind != NEXT_EXIT || has_functions(&p->d))
		count_begun(p);
	if (p->d.kind == NEXT_EXIT) {
		/* Nowhere else to go: functions and mirrors only, or all bypassed. */
		p->d.flags |= p->d.bypassed ? FLOW_BYPASS : 0;
		pass_both(n->edge_table, has_functions(&p->d) ? NEXT_EXIT : NEXT_PASS);
		return GO_ON;
	}
	write_flow();
	if ((p->is & (IS_ANYSYN | IS_SYN)) == IS_ANYSYN)
		flow_promote(); /* the SYN's entry expects the acknowledgement, though this one is new */
	return GO_ON;
}

#endif
