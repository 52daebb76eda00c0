/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What a packet leaves where it goes on: how its replies get back, and what comes
 * next when it comes out of an instance. */
#ifndef ONPATH_LEARN_H
#define ONPATH_LEARN_H

#include "flow.h"

#define NO_REPLIES 2 /* pkt.establish: of a path with direction forward, or one that is closed */

/* The tenant of the last of a decision's functions. */
static __always_inline __u32 tenant_of_last(const struct decision *d)
{
	struct function *f;
	struct vport *v;
	__u32 i, slot, index = 0;

#pragma unroll
	for (i = 0; i < MAX_INLINE; i++)
		if (d->functions[i])
			index = d->functions[i] & INLINE_SLOT;
	f = bpf_map_lookup_elem(&functions, &index);
	slot = f ? f->slot : 0;
	v = bpf_map_lookup_elem(&vports, &slot);
	return f && v ? v->tenant : 0;
}

/* Where a packet goes on, and its replies are learned. */
#define AT_INSTANCE 0 /* of this node */
#define AT_RELAY    1 /* another node, behind functions of this one, which replies from there run, too */
#define AT_EDGE     2 /* out of this node, to where the packet came from or leaves as well */

/* Whose pending table has the entry for replies of a packet that goes on to the vport at
 * slot: pkt.back_tenant. 0: there is nothing to be learned. */
static __always_inline int learns(struct pkt *p, __u32 at, __u32 slot)
{
	struct vport *v;
	struct flow *e;

	if (at == AT_RELAY) {
		p->back_tenant = tenant_of_last(&p->d); /* where replies will look */
		return 1;
	}
	v = bpf_map_lookup_elem(&vports, &slot);
	if (!v || (v->flags & VPORT_MIRROR))
		return 0;
	p->back_tenant = v->tenant;
	if (p->d.group)
		return 1;
	e = flow_find(&p->rkey, v->tenant); /* an instance's own traffic: it has begun it */
	if (e)
		mark_seen(p, e);
	return 0;
}

/*
 * What a packet of pkt.key's tuple leaves before it goes on to the vport, which has the
 * slot: where replies go, the reverse entry. (What comes next when it comes out of an
 * instance again is learn_context's.) Returns 0 or a drop reason. All three cases are
 * in one function because the verifier looks at it once.
 */
__noinline int learn_replies(__u32 at, __u32 vport, __u32 slot)
{
	struct pkt *p = packet();
	struct node *n = this_node();
	__u32 back = 0, group;
	struct group *g;

	if (!p || !n)
		return 0;
	group = p->d.group;
	p->back.context = 0;
	reverse_key(&p->rkey, &p->key, vport);
	if (at == AT_EDGE) {
		if (!n->edge || p->establish == NO_REPLIES || (p->d.path && !p->d.path_slot))
			return 0; /* forward only, or the path ended here: replies go the ordinary way */
	} else {
		if (!learns(p, at, slot))
			return 0;
		g = bpf_map_lookup_elem(&groups, &group);
		if (group && g)
			back = g->back;
		else if (at == AT_INSTANCE)
			return 0; /* another node's plan is ahead of this one's, or behind */
		if (at == AT_INSTANCE)
			p->back.context = group ^ 1;
		p->establish = 0;
	}
	if (n->edge && p->prev == n->edge)
		set_reply_target(p, NEXT_EXIT, 0, 0);
	else
		set_reply_target(p, NEXT_VPORT, p->prev, p->prev_slot);
	return write_reply_entry(p, back, BACK_ELEMENT);
}

/* What comes next when a packet of pkt.key's tuple comes out of the instance again that it
 * goes to now: an entry with its context at the instance's other side. */
__noinline int learn_context(__u32 slot)
{
	struct vport *v = bpf_map_lookup_elem(&vports, &slot);
	struct pkt *p = packet();
	struct group *g;
	struct flow *e;
	__u32 group;

	if (!v || !p || (v->flags & VPORT_MIRROR))
		return 0;
	copy_key(&p->wkey, &p->key, v->other);
	group = p->d.group;
	if (!group) { /* from the other tier's element, or its own traffic */
		e = flow_find(&p->wkey, v->tenant);
		if (e)
			move_gateway(e, p->d.entry);
		return 0;
	}
	g = bpf_map_lookup_elem(&groups, &group);
	if (!g)
		return 0;
	__builtin_memset(&p->back, 0, sizeof(p->back));
	p->back.kind = NEXT_PENDING;
	p->back.flags = g->flags & GROUP_REVERSE ? FLOW_REVERSE : 0; /* that of pkt.d is its functions' */
	p->back.context = group;
	p->back.entry = p->d.entry;
	p->back.path = p->d.path;
	p->back.path_slot = p->d.path_slot;
	e = flow_find(&p->wkey, v->tenant);
	if (!e) {
		p->back.flags |= p->followed ? FLOW_KNOWN : 0;
		store_decision(fresh_flow(p), &p->back, p->wkey.scope);
		flow_begin(p, &p->wkey, v->tenant);
		return 0;
	}
	if (e->context != group && !(p->d.flags & FLOW_EMITTED) && !(e->flags & FLOW_EMITTED))
		store_decision(e, &p->back, p->wkey.scope); /* an older path's: begin anew */
	else
		move_gateway(e, p->d.entry);
	if (e->seen != p->now)
		entry_set_seen(e, p->now);
	return 0;
}

/* Did an instance or a function begin the flow that leaves here, or change its
 * tuple? Then nobody else can take the replies. What came in at this edge as it
 * leaves has its entry here. */
static __always_inline int began_here(struct pkt *p, const struct node *n)
{
	if (p->d.flags & FLOW_EMITTED)
		return 1;
	if (p->d.entry != n->edge)
		return 0;
	copy_key(&p->rkey, &p->key, n->edge);
	if (flow_established(&p->rkey))
		return 0;
	p->back.first_path = 0;
	resolve(n->edge_table, BACK_EDGE);
	return !flow_pending(&p->rkey, tenant_of_path(p->back.first_path));
}

/*
 * In which table does the entry of pkt.rkey at the edge stand, if it is not
 * established? Packets find it there after the same rules have told them their
 * path. What no rule takes must be established at once: it replies to an
 * instance's own traffic, which its quota keeps within bounds. The result, in
 * pkt.back_tenant and pkt.establish, is for learn_replies, which calls no deeper. Returns
 * 0 or a drop reason: an instance may not have the node's own replies, but where
 * chains take up the node's traffic.
 */
__noinline int find_reply_table(void)
{
	struct pkt *p = packet();
	struct node *n = this_node();
	struct path *path;
	struct vport *v;
	__u32 slot, table;

	if (!p || !n)
		return 0;
	if (p->prev != n->edge && !p->edited && !n->host_ifindex && is_local(p, p->key.src))
		return DROP_SPOOFED;
	p->establish = 0;
	p->back_tenant = 0;
	if (!n->edge)
		return 0;
	slot = p->d.path_slot;
	path = bpf_map_lookup_elem(&paths, &slot);
	if (slot && path && (path->flags & PATH_CLOSED)) {
		p->establish = NO_REPLIES; /* they come in by the path that follows */
		return 0;
	}
	if (slot && path && (path->flags & PATH_FORWARD) && !began_here(p, n)) {
		p->establish = NO_REPLIES;
		return 0;
	}
	reverse_key(&p->rkey, &p->key, n->edge);
	if (flow_established(&p->rkey))
		return 0;
	table = n->edge_table;
	p->back.matched = 0;
	if (table)
		resolve(table, BACK_EDGE);
	p->establish = !table || !p->back.matched;
	slot = p->establish ? p->d.path_slot : p->back.first_path;
	path = bpf_map_lookup_elem(&paths, &slot);
	if (slot && path) {
		p->back_tenant = path->tenant;
		return 0;
	}
	slot = p->prev_slot;
	v = vport_at(slot, p->prev);
	if (v)
		p->back_tenant = v->tenant;
	return 0;
}

/* A packet that leaves here came for functions of this node from another one, and names
 * their group alone. Which element's instance it came from the rules for replies say:
 * pkt.reply_group, or 0. For learn_replies, which calls no deeper. */
__noinline int find_reply_group(void)
{
	struct node *n = this_node();
	struct pkt *p = packet();
	__u32 group;

	if (!p)
		return 0;
	p->reply_group = 0;
	if (!n || !n->edge_table || p->d.context || !(p->is & IS_RELAYED) || p->prev == n->edge)
		return 0;
	reverse_key(&p->rkey, &p->key, n->edge);
	p->reply.next = p->prev;
	if (resolve(n->edge_table, BACK_EDGE))
		return 0;
	group = p->back.group;
	if (group && is_member(group, p->prev))
		p->reply_group = group;
	return 0;
}

#endif
